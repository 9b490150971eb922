// Bytes between host and device, and the geometry they lie in.
#pragma once
#include <ATen/core/Tensor.h>

namespace tpu {
// A CPU tensor with the values, sizes and (unless the view is very sparse) strides of a device tensor.
at::Tensor host_image(const at::Tensor& tensor);
// A device tensor with the values, sizes and strides of a CPU tensor.
at::Tensor device_image(const at::Tensor& tensor);

// Gives `out` the sizes and strides of `twin`, and storage enough for them. False if it had these sizes already.
bool take_geometry(const at::Tensor& out, const at::Tensor& twin);

// A tensor made of dense ones (sparse, nested); the same with its parts elsewhere; a sparse one's contents replaced.
inline bool is_composed(const at::Tensor& t) { return t.layout() != c10::kStrided || t.is_nested(); }
at::Tensor composed(const at::Tensor& tensor, bool to_device);
void overwrite_composed(at::Tensor& to, const at::Tensor& from);

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking);
at::Scalar local_scalar(const at::Tensor& self);
}  // namespace tpu
