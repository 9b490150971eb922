// Tensors without data, for shape rules: on Meta, or on a device of our own that no backend serves.
#pragma once
#include <ATen/core/Tensor.h>

namespace tpu {
constexpr c10::DeviceType kShadow = c10::DeviceType::IPU;

// A tensor of no dimensions over a storage that claims `nbytes`.
at::Tensor make_twin(c10::DeviceType where, size_t nbytes, caffe2::TypeMeta dtype);
}  // namespace tpu
