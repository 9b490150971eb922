// Geometry of device tensors.
#pragma once
#include <ATen/core/Tensor.h>

namespace tpu {

// Gives `out` the sizes and strides of `twin`, and storage enough for them. False if the sizes were the same already.
bool take_geometry(const at::Tensor& out, const at::Tensor& twin);

}  // namespace tpu
