#include "Arguments.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_to_copy.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <unordered_map>

namespace tpu {
namespace {
uint64_t bits(double value) {
  uint64_t out;
  std::memcpy(&out, &value, sizeof out);
  return out;
}

void fill_scalar(TpuScalar& out, const c10::IValue& value) {
  const at::Scalar s = value.toScalar();
  if (s.isBoolean()) {
    out = {TPU_S_BOOL, s.toBool(), 0};
  } else if (s.isIntegral(false)) {
    out = {TPU_S_INT, static_cast<uint64_t>(s.toLong()), 0};
  } else if (s.isComplex()) {
    out = {TPU_S_COMPLEX, bits(s.toComplexDouble().real()), bits(s.toComplexDouble().imag())};
  } else {
    out = {TPU_S_DOUBLE, bits(s.toDouble()), 0};
  }
}

int64_t int_of(const c10::IValue& value) {
  return value.isBool() ? static_cast<int64_t>(value.toBool()) : value.toInt();
}

double double_of(const c10::IValue& value) {
  return value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
}

template <class T, class Fill>
const T* fill_items(c10::ArrayRef<c10::IValue> items, Frame& frame, Fill fill) {
  T* const first = frame.take<T>(items.size());
  T* out = first;
  for (const c10::IValue& item : items) fill(*out++, item);
  return first;
}

// False when an index list holds a tensor of the host.
bool fill_list(TpuArg& arg, const c10::IValue& value, Travel travel, Frame& frame) {
  const c10::ArrayRef<c10::IValue> items = value.toListRef();
  bool on_device = true;
  arg.n = static_cast<uint32_t>(items.size());
  switch (travel) {
    case Travel::kTensorList:
    case Travel::kIndexList:
      arg.kind = TPU_A_TENSOR_LIST;
      arg.tensors = fill_items<TpuTensor>(items, frame, [&](TpuTensor& out, const c10::IValue& item) {
        if (item.isNone() || !item.toTensor().defined()) return fill_absent(out);
        if (travel == Travel::kIndexList && item.toTensor().device().is_cpu())
          on_device = false;
        else if (!fill_tensor(out, item.toTensor()))
          raise_device_mismatch(item.toTensor());
      });
      return on_device;
    case Travel::kScalarList:
      arg.kind = TPU_A_SCALAR_LIST;
      arg.scalars = fill_items<TpuScalar>(items, frame, fill_scalar);
      return true;
    case Travel::kDoubleList:
      arg.kind = TPU_A_DOUBLE_LIST;
      arg.doubles = fill_items<double>(items, frame, [](double& out, const auto& item) { out = double_of(item); });
      return true;
    default:
      arg.kind = TPU_A_INT_LIST;
      arg.ints = fill_items<int64_t>(items, frame, [](int64_t& out, const auto& item) { out = int_of(item); });
      return true;
  }
}
}  // namespace

Travel travel_of(const c10::Argument& argument) {
  static const std::unordered_map<std::string, Travel> by_type{
      {"Tensor", Travel::kTensor}, {"Tensor[]", Travel::kTensorList}, {"Tensor?[]", Travel::kIndexList},
      {"Scalar", Travel::kScalar}, {"Scalar[]", Travel::kScalarList}, {"int", Travel::kInt},
      {"int[]", Travel::kIntList}, {"bool", Travel::kBool},           {"bool[]", Travel::kIntList},
      {"float", Travel::kDouble},  {"float[]", Travel::kDoubleList},  {"str", Travel::kString},
      {"Device", Travel::kDevice}, {"Generator", Travel::kGenerator},
  };
  std::string type = argument.type()->str();
  if (type.back() == '?') type.pop_back();
  const auto found = by_type.find(type);
  return found == by_type.end() ? Travel::kUnknown : found->second;
}

void fill_host_value(TpuTensor& out, const at::Tensor& tensor) {
  out = TpuTensor{};
  out.dtype = static_cast<uint8_t>(tensor.scalar_type());
  out.flags = TPU_T_HOST;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) out.flags |= TPU_T_WRAPPED_NUMBER;
  const bool plain = !tensor.is_conj() && !tensor.is_neg();
  if (plain && tensor.scalar_type() == at::kLong) {
    out.host = {TPU_S_INT, static_cast<uint64_t>(*static_cast<const int64_t*>(tensor.const_data_ptr())), 0};
  } else if (plain && tensor.scalar_type() == at::kDouble) {
    out.host = {TPU_S_DOUBLE, bits(*static_cast<const double*>(tensor.const_data_ptr())), 0};
  } else {
    fill_scalar(out.host, at::_local_scalar_dense(tensor.resolve_conj().resolve_neg()));
  }
}

void raise_device_mismatch(const at::Tensor& other) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", device(),
              " and ", other.device(), "!");
}

void fill_tensor_argument(TpuArg& arg, const at::Tensor& tensor, Frame& frame) {
  TpuTensor* out = frame.take<TpuTensor>(1);
  if (C10_UNLIKELY(!fill_tensor(*out, tensor))) raise_device_mismatch(tensor);
  arg.kind = TPU_A_TENSOR;
  arg.n = 1;
  arg.tensors = out;
}

bool fill_arguments(const Form& form, const c10::IValue* values, TpuArg* args, Frame& frame) {
  for (uint32_t k = 0; k < form.n_args; ++k) {
    const c10::IValue& value = values[k];
    TpuArg& arg = args[k];
    arg.n = 1;
    if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) {
      arg.kind = TPU_A_NONE;
      arg.n = 0;
      continue;
    }
    switch (form.travel[k]) {
      case Travel::kTensor:
        fill_tensor_argument(arg, value.toTensor(), frame);
        break;
      case Travel::kScalar:
        arg.kind = TPU_A_SCALAR;
        fill_scalar(arg.scalar, value);
        break;
      case Travel::kInt:
        arg.kind = TPU_A_INT;
        arg.i = int_of(value);
        break;
      case Travel::kBool:
        arg.kind = TPU_A_BOOL;
        arg.i = int_of(value);
        break;
      case Travel::kDouble:
        arg.kind = TPU_A_DOUBLE;
        arg.d = double_of(value);
        break;
      case Travel::kString: {
        const std::string& text = value.toStringRef();
        arg.kind = TPU_A_STRING;
        arg.n = static_cast<uint32_t>(text.size());
        arg.str = text.data();
        break;
      }
      case Travel::kDevice:
        arg.kind = TPU_A_DEVICE;
        arg.i = 0;
        break;
      case Travel::kGenerator:
        arg.kind = TPU_A_NONE;  // the caller, which holds the generator's lock, puts seed and offset here
        break;
      case Travel::kUnknown:
        TORCH_INTERNAL_ASSERT(false, form.name, ": argument ", k, " has a type that does not cross to the core");
      default:
        if (C10_UNLIKELY(!fill_list(arg, value, form.travel[k], frame))) return false;
    }
  }
  return true;
}

void bring_indices(const Form& form, c10::IValue* values) {
  for (uint32_t k = 0; k < form.n_args; ++k) {
    if (form.travel[k] != Travel::kIndexList) continue;
    values[k] = map_tensors(values[k], [](const at::Tensor& item) {
      const bool host = item.defined() && item.device().is_cpu();
      return host ? at::_to_copy(item, item.options().device(device())) : item;
    });
  }
}

void check_written(const Form& form, const c10::IValue* values) {
  for (const int32_t k : form.written) {
    if (!values[k].isTensor() || !values[k].toTensor().defined()) continue;
    const at::Tensor& to = values[k].toTensor();
    if (to.device().type() != kDevice) raise_device_mismatch(to);
    if (!form.may_repeat) at::assert_no_internal_overlap(to);
    for (uint32_t j = 0; j < form.n_args; ++j)
      if (static_cast<int32_t>(j) != k && values[j].isTensor() && values[j].toTensor().defined())
        at::assert_no_partial_overlap(to, values[j].toTensor());
  }
}
}  // namespace tpu
