// The hot path: one boxed kernel serves every op of the table. Steady state: flatten, one call into the core, wrap.
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "Arguments.h"
#include "Fallback.h"
#include "Generator.h"

namespace tpu {
at::Tensor wrap_over(c10::Storage storage, const TpuOut& out) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(out.dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(out.sizes, out.ndim),
                                                      c10::IntArrayRef(out.strides, out.ndim), out.offset);
  return tensor;
}

at::Tensor wrap(const TpuOut& out) {
  if (out.absent) return {};
  return wrap_over(c10::make_intrusive<c10::StorageImpl>(
                       c10::StorageImpl::use_byte_size_t(), static_cast<size_t>(out.nbytes),
                       data_ptr(out.storage, out.address), allocator(), /*resizable=*/true),
                   out);
}

namespace {
// Replaces the arguments by the returns. Outputs are wrapped before the arguments go: dropping those may free cells,
// and freeing is a call into the core, which ends the life of the result's size arrays.
void push_returns(const Form& form, torch::jit::Stack* stack, const TpuResult& result) {
  const TpuOut* outs = result.more != nullptr ? result.more : result.outs;
  const size_t base = stack->size() - form.n_args;
  if (C10_UNLIKELY(form.returns_list)) {
    c10::List<at::Tensor> list;
    list.reserve(result.n_outs);
    for (uint32_t k = 0; k < result.n_outs; ++k) list.push_back(wrap(outs[k]));
    stack->resize(base);
    stack->emplace_back(std::move(list));
    return;
  }
  c10::SmallVector<c10::IValue, 4> returns;
  uint32_t next = 0;
  for (const int32_t argument : form.returns) {
    if (argument != kFresh) {
      returns.push_back(argument == kZero ? c10::IValue(int64_t{0}) : (*stack)[base + argument]);
      continue;
    }
    while (form.writes[next] >= 0) ++next;
    returns.emplace_back(wrap(outs[next++]));
  }
  stack->resize(base);
  for (c10::IValue& value : returns) stack->emplace_back(std::move(value));
}

// tpu_call under the lock of the generator that the op draws from.
int32_t call_random(const Form& form, c10::IValue* values, TpuArg* args, Frame& frame, TpuResult* result) {
  Generator* generator =
      generator_or_default(form.generator_arg >= 0 && !values[form.generator_arg].isNone()
                               ? std::optional<at::Generator>(values[form.generator_arg].toGenerator())
                               : std::nullopt);
  int64_t* state = frame.take<int64_t>(2);
  TpuArg& arg = args[form.generator_arg >= 0 ? static_cast<uint32_t>(form.generator_arg) : form.n_args];
  arg.kind = TPU_A_GENERATOR;
  arg.n = 2;
  arg.ints = state;
  std::lock_guard<std::mutex> lock(generator->mutex_);
  state[0] = static_cast<int64_t>(generator->current_seed());
  state[1] = static_cast<int64_t>(generator->get_offset());
  const int32_t status = tpu_call(form.id, args, form.n_args + (form.generator_arg < 0), result);
  if (status == TPU_OK) generator->set_offset(generator->get_offset() + result->rng_increment);
  return status;
}
}  // namespace

void call_form(const Form& form, torch::jit::Stack* stack) {
  Frame frame;
  TpuResult result;
  c10::SmallVector<at::Tensor, 4> found;  // by the first of two programs, where the results' sizes are data
  for (int round = 0; round < 4; ++round) {
    c10::IValue* values = stack->data() + (stack->size() - form.n_args);
    if (C10_UNLIKELY(round > 0)) frame.reset();
    TpuArg* args = frame.take<TpuArg>(form.n_args + 1 + found.size());
    if (C10_UNLIKELY(!fill_arguments(form, values, args, frame))) {
      bring_indices(form, values);
      continue;
    }
    for (size_t k = 0; k < found.size(); ++k) fill_tensor_argument(args[form.n_args + k], found[k], frame);
    if (!form.written.empty()) check_written(form, values);
    ensure_started();
    sync_default_dtype();
    if (C10_UNLIKELY(form.may_contract)) sync_matmul_precision();
    result.more = nullptr;
    result.rng_increment = 0;
    int32_t status = C10_UNLIKELY(form.random) ? call_random(form, values, args, frame, &result)
                                               : tpu_call(form.id, args, form.n_args + found.size(), &result);
    if (C10_UNLIKELY(status == TPU_PENDING)) {
      for (uint32_t k = 0; k < result.n_outs; ++k) found.push_back(wrap(result.outs[k]));
      wait_ready(cell(found[0].storage()));
      continue;
    }
    if (C10_UNLIKELY(status == TPU_NEED_META)) {
      status = define_by_meta(form, stack, args);
      if (status == TPU_OK) continue;
      if (status == kDoneOnCpu) return;
    }
    if (C10_LIKELY(status == TPU_OK)) return push_returns(form, stack, result);
    if (status != TPU_FALLBACK) raise_last_error();
    return fall_back(form.op, stack, tpu_last_error(nullptr));
  }
  TORCH_INTERNAL_ASSERT(false, form.name, ": the core asks for the same Meta outcome again and again");
}
}  // namespace tpu
