#include "Fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "Arguments.h"
#include "Copy.h"
#include "Generator.h"
#include "Registration.h"

namespace tpu {
namespace {
std::mutex g_mutex;
std::map<std::string, uint64_t> g_counts;

void count_and_warn(const c10::OperatorHandle& op, const char* reason) {
  const std::string name = c10::toString(op.operator_name());
  std::unique_lock<std::mutex> lock(g_mutex);
  const bool first = g_counts[name]++ == 0;
  lock.unlock();
  if (first && fallback_mode() == FallbackMode::kWarn)
    TORCH_WARN(name, " runs on the CPU: ", reason, ". (Said once per op; torch.tpu.fallbacks() counts them, ",
               "TORCH_TPU_FALLBACK=error makes them errors, =silent hides this.)");
}

// Ops that take host tensors beside device tensors, on every device of PyTorch.
bool takes_host_tensors(const std::string& name) {
  return name.find("ctc_loss") != std::string::npos || name.find("_packed_sequence") != std::string::npos ||
         name.find("_pack_padded") != std::string::npos;
}

// A CPU generator for one call, drawn from a tpu generator, which moves on so that the next call differs.
at::Generator host_generator(const std::optional<at::Generator>& given) {
  Generator* generator = generator_or_default(given);
  std::lock_guard<std::mutex> lock(generator->mutex_);
  const uint64_t offset = generator->get_offset();
  generator->set_offset(offset + 4);
  return at::detail::createCPUGenerator(generator->current_seed() + offset * 0x9e3779b97f4a7c15ULL);
}

// The call's arguments on the host. The same tensor twice stays the same tensor.
class HostArguments {
 public:
  // `overwritten`: an out= argument, whose old values nobody reads.
  at::Tensor tensor(const at::Tensor& real, bool overwritten = false) {
    if (!real.defined() || real.device().type() != kDevice) {
      if (real.defined() && real.dim() > 0 && !host_.defined()) host_ = real;
      return real;
    }
    any_device_ = true;
    for (const auto& [seen, twin] : twins_)
      if (seen.is_same(real)) return twin;
    at::Tensor twin =
        is_composed(real) ? composed(real, /*to_device=*/false)
        : overwritten
            ? at::Tensor(at::detail::empty_strided_cpu(real.sizes(), real.strides(), real.scalar_type()))
            : host_image(real);
    if (real.unsafeGetTensorImpl()->is_wrapped_number()) twin.unsafeGetTensorImpl()->set_wrapped_number(true);
    if (real.requires_grad()) twin.set_requires_grad(true);  // some kernels keep more for a backward to come
    twins_.emplace_back(real, twin);
    return twin;
  }

  c10::IValue value(const c10::IValue& real, const c10::Argument& argument) {
    const bool out = argument.kwarg_only() && argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (real.isTensor() || real.isList())
      return map_tensors(real, [&](const at::Tensor& item) { return tensor(item, out); });
    if (real.isDevice()) {
      if (real.toDevice().type() != kDevice) {
        keep_on_host_ = true;
        return real;
      }
      any_device_ = true;
      return c10::Device(c10::DeviceType::CPU);
    }
    if (real.isGenerator() && real.toGenerator().device().type() == kDevice) return host_generator(real.toGenerator());
    if (real.isNone() && argument.type()->str() == "Generator?") return host_generator(std::nullopt);
    return real;
  }

  // The device tensor a host result stands for, or a new one.
  at::Tensor back(const at::Tensor& result, bool may_alias, const c10::OperatorHandle& op) {
    if (!result.defined() || keep_on_host_ || result.device().type() != c10::DeviceType::CPU) return result;
    for (const auto& [real, twin] : twins_)
      if (twin.is_same(result)) return real;
    if (is_composed(result)) return composed(result, /*to_device=*/true);
    for (const auto& [real, twin] : twins_) {
      if (is_composed(twin)) continue;
      TORCH_CHECK(!may_alias || !twin.storage().is_alias_of(result.storage()), c10::toString(op.operator_name()),
                  " makes a view, which cannot be made on the CPU for a tpu tensor.");
    }
    return device_image(result);
  }

  const at::Tensor& host_tensor() const { return any_device_ ? host_ : none_; }

 private:
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 8> twins_;
  at::Tensor host_, none_;
  bool any_device_ = false;
  bool keep_on_host_ = false;
};

void write_back(const c10::IValue& real, const c10::IValue& host) {
  each_pair(real, host, [](at::Tensor to, const at::Tensor& from) {
    if (!to.defined() || to.is_same(from)) return;
    if (is_composed(to)) return overwrite_composed(to, from);
    take_geometry(to, from);
    copy_(to, from, false);
  });
}

void fallback_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  fall_back(op, stack, "the tpu core has no lowering for it");
}

// A kernel of `key` that runs the op on the CPU, for each op that `wanted` names and that has none.
template <class Wanted>
void to_cpu(torch::Library& aten, c10::DispatchKey key, Wanted wanted) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value() || name.name.rfind("aten::", 0) != 0 || op->hasKernelForDispatchKey(key) || !wanted(*op))
      continue;
    const std::string local = c10::toString(name).substr(std::strlen("aten::"));
    aten.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback_kernel>());
  }
}
}  // namespace

FallbackMode fallback_mode() {
  const char* text = std::getenv("TORCH_TPU_FALLBACK");
  if (text == nullptr) return FallbackMode::kWarn;
  if (std::strcmp(text, "error") == 0) return FallbackMode::kError;
  return std::strcmp(text, "silent") == 0 ? FallbackMode::kSilent : FallbackMode::kWarn;
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack, const char* reason_text) {
  const std::string reason = reason_text != nullptr ? reason_text : "";
  TORCH_CHECK_NOT_IMPLEMENTED(fallback_mode() != FallbackMode::kError, c10::toString(op.operator_name()),
                              " would run on the CPU, and TORCH_TPU_FALLBACK=error forbids it: ", reason, ".");

  const c10::FunctionSchema& schema = op.schema();
  const size_t n_args = schema.arguments().size();
  const size_t base = stack->size() - n_args;
  HostArguments twins;
  torch::jit::Stack host;
  for (size_t k = 0; k < n_args; ++k) host.push_back(twins.value((*stack)[base + k], schema.arguments()[k]));
  if (twins.host_tensor().defined() && !takes_host_tensors(schema.name()) &&
      schema.name().find("index") == std::string::npos)
    raise_device_mismatch(twins.host_tensor());
  const torch::jit::Stack host_arguments = host;
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.callBoxed(&host);
  }
  count_and_warn(op, reason.c_str());

  for (size_t k = 0; k < n_args; ++k) {
    const auto* info = schema.arguments()[k].alias_info();
    if (info != nullptr && info->isWrite()) write_back((*stack)[base + k], host_arguments[k]);
  }
  torch::jit::Stack returns;
  for (size_t k = 0; k < schema.returns().size(); ++k) {
    const c10::Argument& ret = schema.returns()[k];
    const bool may_alias = ret.alias_info() != nullptr;
    const c10::IValue& value = host[k];
    if (const int32_t argument = written_argument(schema, ret); argument >= 0) {
      returns.push_back((*stack)[base + argument]);
    } else {
      returns.push_back(map_tensors(value, [&](const at::Tensor& item) { return twins.back(item, may_alias, op); }));
    }
  }
  stack->resize(base);
  for (c10::IValue& value : returns) stack->push_back(std::move(value));
}

std::map<std::string, uint64_t> fallback_counts() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return g_counts;
}

void reset_fallback_counts() {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_counts.clear();
}

void register_fallback() {
  using Key = c10::DispatchKey;
  const auto library = [](const char* scope, Key key) {
    return new torch::Library(torch::Library::IMPL, scope, key, __FILE__, __LINE__);  // for ever
  };
  // Ops of tensors made of tensors, which the CPU has kernels of its own for.
  for (const auto& [key, cpu] : {std::pair(Key::SparsePrivateUse1, Key::SparseCPU),
                                 std::pair(Key::SparseCsrPrivateUse1, Key::SparseCsrCPU),
                                 std::pair(Key::NestedTensorPrivateUse1, Key::NestedTensorCPU)}) {
    library("_", key)->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback_kernel>());
    to_cpu(*library("aten", key), key, [cpu = cpu](const auto& op) { return op.hasKernelForDispatchKey(cpu); });
  }
  library("_", Key::PrivateUse1)->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback_kernel>());
  // Composite kernels that end in an "overrideable" op, which a backend is expected to bring and the CPU does not have.
  // Functional and in-place forms of structured ops would make an output on the device and end in the out= form; the
  // CPU has kernels for them as they are.
  to_cpu(*library("aten", Key::PrivateUse1), Key::PrivateUse1, [](const auto& op) {
    const c10::OperatorName& name = op.operator_name();
    const bool convolution = name.name == "aten::convolution" || name.name == "aten::convolution_backward";
    if (convolution && name.overload_name.empty()) return true;
    return op.hasKernelForDispatchKey(Key::CompositeExplicitAutogradNonFunctional) &&
           op.hasKernelForDispatchKey(Key::CPU);
  });
}
}  // namespace tpu
