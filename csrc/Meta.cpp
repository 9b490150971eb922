// Shapes, dtypes, strides and errors of a call, from PyTorch's own shape rules: structured ones directly, others on Meta.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>

#include "Arguments.h"
#include "Copy.h"
#include "Fallback.h"
#include "Shadow.h"

namespace tpu {
namespace {

class Twins {
 public:
  Twins(c10::DeviceType where, bool host_too) : where_(where), host_too_(host_too) {}

  at::Tensor tensor(const at::Tensor& real) {
    if (!real.defined()) return real;
    if (real.device().type() != kDevice && !(host_too_ && real.device().is_cpu() && real.dim() == 0)) return real;
    const c10::TensorImpl* key = real.unsafeGetTensorImpl();
    for (const auto& [seen, made] : made_)
      if (seen == key) return made;
    at::Tensor made = make_twin(where_, real.storage().nbytes(), real.dtype());
    c10::TensorImpl* impl = made.unsafeGetTensorImpl();
    impl->set_storage_offset(real.storage_offset());
    impl->set_sizes_and_strides(real.sizes(), real.strides());
    if (key->is_wrapped_number()) impl->set_wrapped_number(true);
    if (real.is_conj()) impl->_set_conj(true);
    if (real.is_neg()) impl->_set_neg(true);
    made_.emplace_back(key, made);
    return made;
  }

  c10::IValue value(const c10::IValue& real, Travel travel) {
    if (real.isNone() || travel == Travel::kGenerator) return c10::IValue();
    if (travel == Travel::kDevice) return c10::Device(c10::DeviceType::Meta);
    return map_tensors(real, [this](const at::Tensor& item) { return tensor(item); });
  }

 private:
  c10::DeviceType where_;
  bool host_too_;
  c10::SmallVector<std::pair<const c10::TensorImpl*, at::Tensor>, 8> made_;
};

// Python code in a Meta kernel must not see the caller's function modes (a default device, for one).
struct PlainPython {
  at::impl::TorchFunctionDisabledState before = at::impl::PythonTorchFunctionTLS::get_disabled_state();
  PlainPython() {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~PlainPython() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before); }
};

// Runs the shape rule. Null: fine. Else the exception; `missing` tells "there is none" from "the call is wrong".
std::exception_ptr run(const c10::OperatorHandle& op, c10::DispatchKey key, torch::jit::Stack& stack, bool& missing) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  PlainPython plain;
  missing = false;
  try {
    op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
  } catch (const c10::NotImplementedError&) {
    missing = true;
    return std::current_exception();
  } catch (python_error& error) {
    pybind11::gil_scoped_acquire gil;
    error.persist();
    missing = error.type != nullptr && PyErr_GivenExceptionMatches(error.type, PyExc_NotImplementedError);
    return std::current_exception();
  } catch (const std::exception&) {
    return std::current_exception();
  }
  return nullptr;
}

void add_outcome(c10::SmallVectorImpl<TpuTensor>& outs, const at::Tensor& tensor) {
  TpuTensor& out = outs.emplace_back();
  if (!tensor.defined()) {
    fill_absent(out);
    return;
  }
  out.sizes = tensor.sizes().data();
  out.strides = tensor.strides().data();
  out.offset = 0;
  out.ndim = static_cast<uint32_t>(tensor.dim());
  out.dtype = static_cast<uint8_t>(tensor.scalar_type());
  out.storage = nullptr;
  out.flags = (tensor.is_conj() ? TPU_T_CONJ : 0) | (tensor.is_neg() ? TPU_T_NEG : 0);
}

// A user's out= tensor takes the geometry that its Meta twin was given. Meta has already warned where PyTorch warns.
bool resize_outs(const Form& form, const c10::IValue* real, const c10::SmallVectorImpl<c10::IValue>& meta) {
  bool resized = false;
  for (const int32_t k : form.written)
    each_pair(real[k], meta[k], [&](const at::Tensor& out, const at::Tensor& twin) {
      if (out.defined()) resized |= take_geometry(out, twin);
    });
  return resized;
}
}  // namespace

int32_t define_by_meta(const Form& form, torch::jit::Stack* stack, const TpuArg* args) {
  const c10::IValue* values = stack->data() + (stack->size() - form.n_args);
  // Without a CPU kernel it is a composite that copies views.
  const bool structured = form.op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
                          form.op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && !form.late_shape;
  c10::SmallVector<c10::IValue, 8> meta;
  torch::jit::Stack results;
  bool missing = true;
  std::exception_ptr failure;
  // The C++ rule; else Meta; else Meta with 0-dim host tensors on Meta too, which some Python rules forget to allow.
  for (const int attempt : {0, 1, 2}) {
    if (attempt == 0 ? !structured : attempt == 1 ? !missing : missing || !failure) continue;
    Twins twins(attempt == 0 ? kShadow : c10::DeviceType::Meta, attempt == 2);
    meta.clear();
    for (uint32_t k = 0; k < form.n_args; ++k) meta.push_back(twins.value(values[k], form.travel[k]));
    results.assign(meta.begin(), meta.end());
    failure = run(form.op, attempt == 0 ? c10::DispatchKey::IPU : c10::DispatchKey::Meta, results, missing);
  }
  // Without a Meta kernel an op that only writes arguments still has known results: those arguments as they are.
  const bool only_writes = std::all_of(form.writes.begin(), form.writes.end(), [](int32_t k) { return k >= 0; });
  if (failure && !(missing && only_writes && !form.is_out)) {
    if (!missing && fallback_mode() == FallbackMode::kError) std::rethrow_exception(failure);
    fall_back(form.op, stack, missing ? "PyTorch has no Meta kernel for it" : "its Meta kernel refuses the arguments");
    return kDoneOnCpu;
  }

  if (form.is_out && resize_outs(form, values, meta)) return TPU_OK;

  c10::SmallVector<TpuTensor, 8> outs;
  uint32_t next = 0;
  const auto fresh = [&]() -> const c10::IValue& {
    while (form.returns[next] != kFresh) ++next;
    return results[next++];
  };
  for (const int32_t argument : form.writes)
    each_tensor(argument >= 0 ? meta[argument] : fresh(), [&](const at::Tensor& t) { add_outcome(outs, t); });
  const uint32_t n_args = form.n_args + (form.random && form.generator_arg < 0);
  const int32_t status =
      tpu_define(form.id, args, n_args, outs.data(), static_cast<uint32_t>(outs.size()), python_site().c_str());
  if (status == TPU_ERROR) raise_last_error();
  return status;
}
}  // namespace tpu
