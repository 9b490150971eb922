// Shape rules in C++ alone. A structured op's rule is reached with arguments on a device that holds nothing: outputs are
// made here, and the out= kernel that the composite ends in is nobody's, so nothing happens. The rules in Python that
// torch puts over Meta are slower, import torch._dynamo when first used (over a second), and word errors otherwise.
#include "Shadow.h"

#include <ATen/ops/as_strided_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "Form.h"
#include "Registration.h"

namespace tpu {
namespace {
caffe2::TypeMeta type_of(std::optional<c10::ScalarType> dtype) {
  return dtype.has_value() ? c10::scalarTypeToTypeMeta(*dtype) : c10::get_default_dtype();
}

at::Tensor shadow_empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                                std::optional<c10::Device>, std::optional<bool>) {
  at::Tensor made = make_twin(kShadow, 0, type_of(dtype));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return made;
}

at::Tensor shadow_empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                        std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  at::Tensor made = make_twin(kShadow, 0, type_of(dtype));
  made.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  if (format.has_value() && *format != c10::MemoryFormat::Preserve)
    made.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return made;
}

void shadow_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t base = stack->size() - schema.arguments().size();
  torch::jit::Stack returns;
  for (const c10::Argument& ret : schema.returns()) {
    const int32_t argument = written_argument(schema, ret);
    TORCH_CHECK_NOT_IMPLEMENTED(argument >= 0, c10::toString(op.operator_name()), " has no shape rule in C++");
    returns.push_back((*stack)[base + argument]);
  }
  stack->resize(base);
  for (c10::IValue& value : returns) stack->push_back(std::move(value));
}
}  // namespace

at::Tensor make_twin(c10::DeviceType where, size_t nbytes, caffe2::TypeMeta dtype) {
  const bool meta = where == c10::DeviceType::Meta;
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, c10::DataPtr(nullptr, c10::Device(where, meta ? -1 : 0)),
      c10::GetAllocator(c10::DeviceType::Meta), /*resizable=*/true);
  const auto key = meta ? c10::DispatchKey::Meta : c10::DispatchKey::IPU;
  return at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), c10::DispatchKeySet(key), dtype);
}

void register_shadow() {
  static c10::impl::NoOpDeviceGuardImpl<kShadow> guard;  // structured kernels guard their arguments' device
  static c10::impl::DeviceGuardImplRegistrar registrar(kShadow, &guard);
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::IPU, __FILE__, __LINE__);
  aten.impl("empty.memory_format", TORCH_FN(shadow_empty));
  aten.impl("empty_strided", TORCH_FN(shadow_empty_strided));
  aten.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  static torch::Library everything(torch::Library::IMPL, "_", c10::DispatchKey::IPU, __FILE__, __LINE__);
  everything.fallback(torch::CppFunction::makeFromBoxedFunction<&shadow_kernel>());
}
}  // namespace tpu
