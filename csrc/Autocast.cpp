// torch.autocast("tpu"): PyTorch's own op lists and policies, applied by boxed kernels.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "Registration.h"
#include "Runtime.h"
#include "Values.h"

namespace tpu {
namespace {
namespace autocast = at::autocast;

enum class Policy { kLower, kFloat, kFloatUnlessAsked, kPromote };

c10::IValue cast(const c10::IValue& value, at::ScalarType to) {
  return map_tensors(
      value, [to](const at::Tensor& item) { return item.defined() ? autocast::cached_cast(to, item, kDevice) : item; });
}

// The widest floating type among the eligible tensors.
at::ScalarType widest(const c10::IValue* values, size_t n) {
  at::ScalarType type = autocast::get_lower_precision_fp_from_device_type(kDevice);
  for (size_t k = 0; k < n; ++k)
    each_tensor(values[k], [&](const at::Tensor& tensor) {
      if (tensor.defined()) type = autocast::prioritize(type, tensor, kDevice);
    });
  return type;
}

bool eligible(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && autocast::is_autocast_eligible(value.toTensor(), kDevice);
}

class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(Policy policy, const c10::OperatorHandle& op) : policy_(policy) {
    const auto& arguments = op.schema().arguments();
    for (size_t k = 0; k < arguments.size(); ++k)
      if (arguments[k].real_type()->str() == "ScalarType?") dtype_argument_ = static_cast<int>(k);
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    c10::impl::ExcludeDispatchKeyGuard off(c10::DispatchKey::AutocastPrivateUse1);
    const size_t n = op.schema().arguments().size();
    c10::IValue* values = stack->data() + (stack->size() - n);
    if (policy_ == Policy::kFloatUnlessAsked) {
      if (dtype_argument_ >= 0 && eligible(values[0]) && values[dtype_argument_].isNone())
        values[dtype_argument_] = static_cast<int64_t>(at::kFloat);
    } else {
      const at::ScalarType to = policy_ == Policy::kLower   ? autocast::get_lower_precision_fp_from_device_type(kDevice)
                                : policy_ == Policy::kFloat ? at::kFloat
                                                            : widest(values, n);
      for (size_t k = 0; k < n; ++k) values[k] = cast(values[k], to);
    }
    op.callBoxed(stack);
  }

 private:
  Policy policy_;
  int dtype_argument_ = -1;
};
torch::Library& library() {
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  return aten;
}

void add(Policy policy, const char* name, const char* overload = "") {
  auto op = c10::Dispatcher::singleton().findSchema({std::string("aten::") + name, overload});
  if (!op.has_value()) return;
  const std::string local = std::string(name) + (*overload == 0 ? "" : ".") + overload;
  library().impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(policy, *op)));
}

at::Tensor norm(const at::Tensor& self, const at::Scalar& p) {
  c10::impl::ExcludeDispatchKeyGuard off(c10::DispatchKey::AutocastPrivateUse1);
  return autocast::is_autocast_eligible(self, kDevice) ? at::norm(self, p, at::kFloat) : at::norm(self, p);
}

at::Tensor norm_dim(const at::Tensor& self, const std::optional<at::Scalar>& p, at::IntArrayRef dim, bool keepdim) {
  c10::impl::ExcludeDispatchKeyGuard off(c10::DispatchKey::AutocastPrivateUse1);
  return autocast::is_autocast_eligible(self, kDevice) ? at::norm(self, p, dim, keepdim, at::kFloat)
                                                       : at::norm(self, p, dim, keepdim);
}

at::Tensor refused(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(false, "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n",
              "Use binary_cross_entropy_with_logits or BCEWithLogitsLoss, which merge the sigmoid into the loss.");
}
}  // namespace

void register_autocast() {
  static torch::Library rest(torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  rest.fallback(torch::CppFunction::makeFallthrough());
#define TPU_ADD_LOWER(...) add(Policy::kLower, TPU_NAMES(__VA_ARGS__));
#define TPU_ADD_FLOAT(...) add(Policy::kFloat, TPU_NAMES(__VA_ARGS__));
#define TPU_ADD_UNLESS(...) add(Policy::kFloatUnlessAsked, TPU_NAMES(__VA_ARGS__));
#define TPU_ADD_PROMOTE(...) add(Policy::kPromote, TPU_NAMES(__VA_ARGS__));
#define TPU_PICK(_1, _2, NAME, ...) NAME
#define TPU_NAMES(...) TPU_PICK(__VA_ARGS__, TPU_TWO, TPU_ONE, )(__VA_ARGS__)
#define TPU_ONE(name) #name
#define TPU_TWO(name, overload) #name, #overload
  AT_FORALL_LOWER_PRECISION_FP(TPU_ADD_LOWER)
  AT_FORALL_FP32(TPU_ADD_FLOAT)
  AT_FORALL_FP32_SET_OPT_DTYPE(TPU_ADD_UNLESS)
  AT_FORALL_PROMOTE(TPU_ADD_PROMOTE)
  auto& m = library();
  m.impl("norm.Scalar", TORCH_FN(norm));
  m.impl("norm.ScalarOpt_dim", TORCH_FN(norm_dim));
  m.impl("binary_cross_entropy", TORCH_FN(refused));
  autocast::set_autocast_dtype(kDevice, at::kBFloat16);
}
}  // namespace tpu
