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

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking);
at::Scalar local_scalar(const at::Tensor& self);
}  // namespace tpu
