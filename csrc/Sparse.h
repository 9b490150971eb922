// Tensors that are several dense tensors: sparse (COO and compressed) and nested. The core holds their parts; all that
// is computed with them is computed on the CPU.
#pragma once
#include <ATen/core/Tensor.h>

namespace tpu {
inline bool is_composed(const at::Tensor& tensor) {
  return tensor.layout() != c10::kStrided || tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::NestedTensor);
}
// The same tensor with its device parts on the host, and the other way round.
at::Tensor composed_on_host(const at::Tensor& tensor);
at::Tensor composed_on_device(const at::Tensor& tensor);
// Puts the contents of the sparse `from` (on the host) in the place of `to`'s.
void overwrite_composed(at::Tensor& to, const at::Tensor& from);
}  // namespace tpu
