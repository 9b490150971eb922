// A dispatcher stack as the flat arguments of the C ABI.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "Allocator.h"
#include "Form.h"
#include "Values.h"

namespace tpu {
// Memory for one call's arguments: inline for ordinary calls, heap blocks for long lists. Pointers stay valid.
class Frame {
 public:
  Frame() {}
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  template <class T>
  T* take(size_t n) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 16);
    const size_t bytes = (n * sizeof(T) + 15) & ~size_t{15};
    if (C10_LIKELY(bytes <= kInline - used_)) {
      void* at = inline_ + used_;
      used_ += bytes;
      return static_cast<T*>(at);
    }
    more_.push_back(std::make_unique<std::max_align_t[]>(bytes / sizeof(std::max_align_t) + 1));
    return reinterpret_cast<T*>(more_.back().get());
  }
  void reset() {
    used_ = 0;
    more_.clear();
  }

 private:
  static constexpr size_t kInline = 3072;
  alignas(16) char inline_[kInline];
  size_t used_ = 0;
  std::vector<std::unique_ptr<std::max_align_t[]>> more_;
};

void fill_host_value(TpuTensor& out, const at::Tensor& tensor);
[[noreturn]] void raise_device_mismatch(const at::Tensor& other);

// Geometry, dtype, flags and cell of a tensor that is on the device.
inline void fill_device_tensor(TpuTensor& out, const c10::TensorImpl* impl) {
  const c10::IntArrayRef sizes = impl->sizes();
  out.storage = cell(impl->unsafe_storage());
  out.sizes = sizes.data();
  out.strides = impl->strides().data();
  out.offset = impl->storage_offset();
  out.ndim = static_cast<uint32_t>(sizes.size());
  out.dtype = static_cast<uint8_t>(impl->dtype().toScalarType());
  uint8_t flags = 0;
  if (impl->is_wrapped_number()) flags |= TPU_T_WRAPPED_NUMBER;
  if (impl->is_conj()) flags |= TPU_T_CONJ;
  if (impl->is_neg()) flags |= TPU_T_NEG;
  out.flags = flags;
}

// Device tensors and 0-dim host tensors; false for a host tensor with dimensions.
inline bool fill_tensor(TpuTensor& out, const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (C10_LIKELY(impl->device_type() == kDevice)) {
    fill_device_tensor(out, impl);
    return true;
  }
  if (impl->device_type() != c10::DeviceType::CPU || impl->dim() != 0) return false;
  fill_host_value(out, tensor);
  return true;
}

inline void fill_absent(TpuTensor& out) {
  out = TpuTensor{};
  out.flags = TPU_T_ABSENT;
}

void fill_tensor_argument(TpuArg& arg, const at::Tensor& tensor, Frame& frame);
// False when an index list holds host tensors, which bring_indices() then moves.
bool fill_arguments(const Form& form, const c10::IValue* values, TpuArg* args, Frame& frame);
void bring_indices(const Form& form, c10::IValue* values);

// Raises when an argument that the form writes is not on the device.
void check_written(const Form& form, const c10::IValue* values);
}  // namespace tpu
