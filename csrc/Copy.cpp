#include "Copy.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <cstring>

#include "Arguments.h"

namespace tpu {
namespace {
constexpr int64_t kSparseBytes = 256 * 1024;  // a view wider than this and 4 times its own bytes is packed first

// Elements from the view's first to its last.
int64_t extent(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return last + 1;
}

void download(const at::Tensor& tensor, size_t nbytes, void* to) {
  TpuStorage* from = cell(tensor.storage());
  wait_ready(from);
  check(tpu_download(from, static_cast<uint64_t>(tensor.storage_offset()) * tensor.element_size(), nbytes, to));
}

// Same place for every element, dimensions of size 1 apart.
bool same_strides(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (int64_t d = 0; d < a.dim(); ++d)
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  return true;
}

at::Tensor on_host(const at::Tensor& like, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return at::detail::empty_strided_cpu(sizes, strides, like.scalar_type());
}

void upload(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() == 0) return;
  TpuTensor target;
  fill_device_tensor(target, to.unsafeGetTensorImpl());
  const bool whole = tpu_is_whole(&target) != 0;
  at::Tensor source = from;
  if (to.is_conj()) source = source.conj();
  if (to.is_neg()) source = source.neg();
  const bool ready = source.scalar_type() == to.scalar_type() && source.sizes() == to.sizes() && !source.is_conj() &&
                     !source.is_neg() && (whole ? same_strides(source, to) : source.is_contiguous());
  if (!ready) {
    at::Tensor staged =
        whole ? on_host(to, to.sizes(), to.strides()) : at::Tensor(at::detail::empty_cpu(to.sizes(), to.scalar_type()));
    staged.copy_(source);
    source = staged;
  }
  check(tpu_upload(&target, source.const_data_ptr(), static_cast<uint64_t>(to.numel()) * to.element_size()));
}

void on_device(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  static const Form* const form = find_form("aten::copy_");
  if (form == nullptr) {
    upload(self, host_image(source));
    return;
  }
  torch::jit::Stack stack;
  stack.reserve(3);
  stack.emplace_back(self);
  stack.emplace_back(source);
  stack.emplace_back(non_blocking);
  call_form(*form, &stack);
}
}  // namespace

at::Tensor host_image(const at::Tensor& tensor) {
  at::Tensor out;
  if (tensor.numel() == 0) {
    out = on_host(tensor, tensor.sizes(), tensor.strides());
  } else {
    const int64_t width = extent(tensor) * static_cast<int64_t>(tensor.element_size());
    if (width > kSparseBytes && width > 4 * tensor.numel() * static_cast<int64_t>(tensor.element_size())) {
      at::Tensor packed = at::empty(tensor.sizes(), tensor.options());
      if (find_form("aten::copy_") != nullptr) {
        on_device(packed, tensor, false);
        return host_image(packed);
      }
    }
    at::Tensor bytes = at::detail::empty_cpu({extent(tensor)}, tensor.scalar_type());
    download(tensor, static_cast<size_t>(width), bytes.mutable_data_ptr());
    out = std::move(bytes);
    out.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  }
  if (tensor.is_conj()) out.unsafeGetTensorImpl()->_set_conj(true);
  if (tensor.is_neg()) out.unsafeGetTensorImpl()->_set_neg(true);
  return out;
}

at::Tensor device_image(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.resolve_conj().resolve_neg();
  const at::TensorOptions options = at::TensorOptions().dtype(plain.scalar_type()).device(device());
  at::Tensor out = plain.is_non_overlapping_and_dense() ? at::empty_strided(plain.sizes(), plain.strides(), options)
                                                        : at::empty(plain.sizes(), options);
  upload(out, plain);
  return out;
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  TORCH_CHECK(self.defined(), "self is undefined");
  TORCH_CHECK(source.defined(), "src is undefined");
  if (self.is_same(source)) return self;
  const bool to_device = self.device().type() == kDevice;
  const bool from_device = source.device().type() == kDevice;
  if (to_device) at::assert_no_internal_overlap(self);
  if (to_device && from_device) {
    on_device(self, source, non_blocking);
  } else if (to_device) {
    upload(self, source.device().is_cpu() ? source : source.to(c10::Device(c10::DeviceType::CPU)));
  } else if (!self.device().is_cpu()) {
    self.copy_(host_image(source));
  } else if (self.scalar_type() == source.scalar_type() && same_strides(self, source) &&
             self.is_conj() == source.is_conj() && self.is_neg() == source.is_neg() &&
             source.is_non_overlapping_and_dense()) {
    if (self.numel() > 0)
      download(source, static_cast<size_t>(self.numel()) * self.element_size(), self.mutable_data_ptr());
  } else {
    self.copy_(host_image(source));
  }
  return self;
}

at::Scalar local_scalar(const at::Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  at::Tensor one = at::detail::empty_cpu({}, self.scalar_type());
  download(self, self.element_size(), one.mutable_data_ptr());
  return at::_local_scalar_dense(one);
}
}  // namespace tpu
