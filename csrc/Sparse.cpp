// Tensors made of dense ones: sparse and nested. The core holds their parts, the CPU computes with them.
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/native/SparseTensorUtils.h>
#include <torch/library.h>

#include "Copy.h"
#include "Registration.h"
#include "Runtime.h"

namespace tpu {
at::Tensor composed(const at::Tensor& tensor, bool to_device) {
  const auto move = [to_device](const at::Tensor& part) {
    return to_device ? device_image(part) : part.device().is_cpu() ? part : host_image(part);
  };
  if (tensor.layout() == c10::kStrided) {
    const auto* nested = static_cast<const at::native::NestedTensorImpl*>(tensor.unsafeGetTensorImpl());
    return at::detail::make_tensor<at::native::NestedTensorImpl>(move(nested->get_buffer()), nested->get_nested_sizes(),
                                                                 nested->get_nested_strides(),
                                                                 nested->get_storage_offsets());
  }
  const at::TensorOptions options = tensor.options().device(to_device ? device() : c10::Device(c10::kCPU));
  if (tensor.layout() == c10::kSparse) {
    const auto* sparse = at::sparse::get_sparse_impl(tensor);
    return at::_sparse_coo_tensor_unsafe(move(sparse->indices()), move(sparse->values()), tensor.sizes(), options,
                                         sparse->coalesced());
  }
  const auto* rows = at::sparse_csr::get_sparse_csr_impl(tensor);
  return at::_sparse_compressed_tensor_unsafe(move(rows->compressed_indices()), move(rows->plain_indices()),
                                              move(rows->values()), tensor.sizes(), options);
}

void overwrite_composed(at::Tensor& to, const at::Tensor& from) {
  TORCH_CHECK(to.layout() == c10::kSparse, "A tpu tensor of layout ", to.layout(), " cannot be written in place.");
  at::native::copy_sparse_(to, composed(from, /*to_device=*/true), false);
}

void register_sparse() {
  static torch::Library m(torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse));
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
  static torch::Library rows(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCsrPrivateUse1, __FILE__, __LINE__);
  rows.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  rows.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  rows.impl("values", TORCH_FN(at::native::values_sparse_csr));
  rows.impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
}
}  // namespace tpu
