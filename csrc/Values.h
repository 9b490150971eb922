// Tensors inside dispatcher values: alone, in lists, in lists with gaps.
#pragma once
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace tpu {
inline bool holds_tensors(const c10::IValue& value) {
  if (!value.isList()) return false;
  c10::TypePtr item = value.toList().elementType();
  if (item->kind() == c10::TypeKind::OptionalType) item = item->castRaw<c10::OptionalType>()->getElementType();
  return item->kind() == c10::TypeKind::TensorType;
}

// The value with each tensor replaced by what `f` makes of it.
template <class F>
c10::IValue map_tensors(const c10::IValue& value, F f) {
  if (value.isTensor()) return f(value.toTensor());
  if (!holds_tensors(value)) return value;
  const c10::impl::GenericList from = value.toList();
  c10::impl::GenericList to(from.elementType());
  for (const c10::IValue& item : value.toListRef())
    to.push_back(item.isTensor() ? c10::IValue(f(item.toTensor())) : item);
  return to;
}

// Calls `f` with each tensor and the one at the same place of `twin`; a gap (None) is an undefined tensor.
template <class F>
void each_pair(const c10::IValue& value, const c10::IValue& twin, F f) {
  const auto tensor = [](const c10::IValue& v) { return v.isTensor() ? v.toTensor() : at::Tensor(); };
  if (!value.isList()) return f(tensor(value), tensor(twin));
  const auto items = value.toListRef(), twins = twin.toListRef();
  for (size_t k = 0; k < items.size(); ++k) f(tensor(items[k]), tensor(twins[k]));
}
template <class F>
void each_tensor(const c10::IValue& value, F f) {
  if (value.isTensor() || value.isNone() || holds_tensors(value))
    each_pair(value, value, [&](const at::Tensor& tensor, const at::Tensor&) { f(tensor); });
}
}  // namespace tpu
