#include "Generator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstring>

namespace tpu {
namespace {
constexpr size_t kStateBytes = 16;  // seed, then offset, each a little-endian u64
}

Generator::Generator()
    : c10::GeneratorImpl(tpu::device(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(std::make_shared<State>()) {}

uint64_t Generator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return state_->seed;
}

void Generator::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK(state.device_type() == c10::DeviceType::CPU && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
                  state.is_contiguous(),
              "RNG state must be a contiguous torch.ByteTensor on the CPU.");
  TORCH_CHECK(state.numel() == kStateBytes, "RNG state of a tpu generator has ", kStateBytes, " bytes, got ",
              state.numel(), ".");
  uint64_t words[2];
  std::memcpy(words, state.data(), kStateBytes);
  state_->seed = words[0];
  state_->offset = words[1];
}

c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  at::Tensor out = at::empty({kStateBytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  const uint64_t words[2] = {state_->seed, state_->offset};
  std::memcpy(out.data_ptr(), words, kStateBytes);
  return out.getIntrusivePtr();
}

void Generator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  auto* same_kind = dynamic_cast<Generator*>(other.get());
  TORCH_CHECK(same_kind != nullptr, "Expected the state of a tpu generator.");
  state_ = same_kind->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> Generator::graphsafe_get_state() const {
  auto out = c10::make_intrusive<Generator>();
  out->state_ = state_;
  return out;
}

Generator* Generator::clone_impl() const {
  auto* out = new Generator();
  *out->state_ = *state_;
  return out;
}

const at::Generator& default_generator() {
  static const at::Generator the_one = at::make_generator<Generator>();
  return the_one;
}

Generator* generator_or_default(const std::optional<at::Generator>& given) {
  const at::Generator& chosen = given.has_value() && given->defined() ? *given : default_generator();
  TORCH_CHECK(chosen.device().type() == kDevice, "Expected a 'tpu' device type for generator but found '",
              chosen.device().type(), "'");
  return static_cast<Generator*>(chosen.unsafeGetGeneratorImpl());
}
}  // namespace tpu
