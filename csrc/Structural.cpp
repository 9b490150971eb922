// What every PrivateUse1 backend must bring itself: allocation, storage, views that PyTorch does not compose, copies.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_efficientzerotensor_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/all.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/tensor_split_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "Arguments.h"
#include "Copy.h"
#include "Registration.h"

namespace tpu {
namespace {
using at::IntArrayRef;
using at::Tensor;
using std::optional;

c10::ScalarType check_options(optional<c10::ScalarType> dtype, optional<c10::Layout> layout, optional<c10::Device> on,
                              optional<bool> pinned) {
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided, "tpu tensors are strided, not ", *layout, ".");
  TORCH_CHECK_TYPE(dtype != c10::ScalarType::ComplexHalf, "tpu tensors can't be complex32: XLA has no such type.");
  if (C10_UNLIKELY(dtype == c10::kDouble || dtype == c10::kComplexDouble)) {
    static const bool tpu = (ensure_started(), std::strstr(tpu_info("device"), "\"kind\":\"tpu\"") != nullptr);
    if (tpu) TORCH_WARN_ONCE("A TPU computes float64 and complex128 in pairs of float32: 49 bits of precision, slowly.");
  }
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  if (on.has_value()) check_index(on->index());
  return dtype.value_or(c10::typeMetaToScalarType(at::get_default_dtype()));
}

constexpr c10::DispatchKeySet kKeys{c10::DispatchKey::PrivateUse1};

Tensor empty(IntArrayRef size, optional<c10::ScalarType> dtype, optional<c10::Layout> layout, optional<c10::Device> on,
             optional<bool> pinned, optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, allocator(), kKeys, check_options(dtype, layout, on, pinned), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<c10::ScalarType> dtype,
                     optional<c10::Layout> layout, optional<c10::Device> on, optional<bool> pinned) {
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, check_options(dtype, layout, on, pinned));
}

void make_room(const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const size_t needed = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                                         tensor.storage_offset());
  if (needed > tensor.storage().nbytes()) {
    TORCH_CHECK(tensor.storage().resizable(), "Trying to resize storage that is not resizable");
    resize_storage(tensor.storage(), needed);
  }
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, optional<c10::MemoryFormat> format) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) {
    impl->set_sizes_contiguous(size);
    make_room(self);
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
    impl->empty_tensor_restride(*format);
  }
  return self;
}

Tensor& set_storage(Tensor& self, c10::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  TORCH_CHECK(source.device().type() == kDevice, "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(),
              "\". This is no longer allowed; the devices must match.");
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  TORCH_CHECK(stride.empty() || stride.size() == size.size(), "unequal size length (", size.size(),
              ") and stride length (", stride.size(), ")");
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty())
    impl->set_sizes_contiguous(size);
  else
    impl->set_sizes_and_strides(size, stride);
  make_room(self);
  return self;
}

Tensor& set_empty(Tensor& self) {
  return at::native::set_tensor_(self, empty({0}, self.scalar_type(), {}, {}, {}, {}));
}

// A composite that wants its indices on the host.
std::vector<Tensor> tensor_split(const Tensor& self, const Tensor& at_or_count, int64_t dim) {
  return at::native::tensor_split(self, at_or_count.cpu(), dim);
}

bool equal(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.device() == other.device(), "Cannot compare two tensors on different devices. Got: ", self.device(),
              " and ", other.device());
  return self.sizes() == other.sizes() && (self.numel() == 0 || at::all(at::eq(self, other)).item().toBool());
}

// `module.to()` then moves parameters in place (`param.data = …`), so that tied weights stay tied, as on CUDA.
bool compatible(const Tensor& self, const Tensor& from) {
  const auto dense = [](const Tensor& t) {
    return t.layout() == at::kStrided && (t.device().type() == kDevice || t.device().is_cpu() || t.device().is_cuda());
  };
  return dense(self) && dense(from);
}

// Batches of heads go to the table's fused attention if the user lets them, but not float64: logsumexp is float32.
int64_t choose_attention(const Tensor& q, const Tensor& k, const Tensor& v, const optional<Tensor>& mask, double,
                         bool causal, optional<double>, bool grouped) {
  const auto math = static_cast<int64_t>(at::SDPBackend::math);
  if (q.is_nested() || q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || q.sym_numel() == 0 || k.sym_numel() == 0)
    return math;
  // sizes may be symbols: torch.compile asks too
  const c10::SymInt heads = grouped ? q.sym_size(1) / k.sym_size(1) * k.sym_size(1) : k.sym_size(1);
  const bool fits =
      q.sym_size(0) == k.sym_size(0) && q.sym_size(1) == heads && q.sym_size(3) == k.sym_size(3) && v.sym_size(3) > 0 &&
      k.sym_sizes().slice(0, 3) == v.sym_sizes().slice(0, 3) && q.is_floating_point() && q.scalar_type() != at::kDouble &&
      !(mask && (causal || !at::is_expandable_to(mask->sym_sizes(), {q.sym_size(0), heads, q.sym_size(2), k.sym_size(2)})));
  const bool fused = fits && at::globalContext().userEnabledOverrideableSDP();
  return fused ? static_cast<int64_t>(at::SDPBackend::overrideable) : math;
}
}  // namespace

bool take_geometry(const Tensor& out, const Tensor& twin) {
  if (out.sizes() == twin.sizes()) return false;
  out.unsafeGetTensorImpl()->set_sizes_and_strides(twin.sizes(), twin.strides());
  make_room(out);
  return true;
}

void register_structural() {
  static torch::Library m(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_efficientzerotensor", TORCH_FN(at::native::_efficientzerotensor));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", [](const Tensor& from, const Tensor& to, bool later) { return to.copy_(from, later); });
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  m.impl("record_stream", [](Tensor&, c10::Stream) {});  // one queue keeps order: memory is never reused too early
  // Encoders ask this before they pack a padded batch into a nested tensor, which would leave the device.
  m.impl("_nested_tensor_from_mask_left_aligned", [](const Tensor&, const Tensor&) { return false; });
  static torch::Library graded(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  for (torch::Library* library : {&m, &graded})
    library->impl("tensor_split.tensor_indices_or_sections", TORCH_FN(tensor_split));
  m.impl("equal", TORCH_FN(equal));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(compatible));
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose_attention);
}
}  // namespace tpu
