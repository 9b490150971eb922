// A callable form of an op of the core's table: its functional, in-place, mutable or out= overload.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <vector>

#include "capi.h"

namespace tpu {
// How an argument travels, decided once from its schema type.
enum class Travel : uint8_t {
  kTensor,
  kTensorList,
  kIndexList,  // Tensor?[]: indices, which may sit on the host and are brought over
  kScalar,
  kScalarList,
  kInt,
  kIntList,
  kBool,
  kDouble,
  kDoubleList,
  kString,
  kDevice,
  kGenerator,
  kUnknown,
};
Travel travel_of(const c10::Argument& argument);

constexpr int32_t kFresh = -1, kZero = -2;  // returns that are no argument: a new tensor; a count, which nobody reads
struct Form {
  explicit Form(const c10::OperatorHandle& handle) : op(handle) {}

  c10::OperatorHandle op;
  uint32_t id = 0;
  uint32_t n_args = 0;
  bool is_out = false;
  bool random = false;
  bool late_shape = false;    // PyTorch's structured rule leaves the shape to the kernel
  bool may_repeat = false;    // may write an expanded tensor, each element more than once
  bool may_contract = false;  // products of float32, whose precision the user chooses
  bool returns_list = false;
  int32_t generator_arg = -1;
  c10::SmallVector<Travel, 8> travel;    // per argument
  c10::SmallVector<int32_t, 4> writes;   // per output of the functional op: the argument it is written into, or -1
  c10::SmallVector<int32_t, 4> returns;  // per return of this form: the argument it is, kFresh or kZero
  c10::SmallVector<int32_t, 4> written;  // arguments that are written, each once
  std::string name;
};

// The form registered under this name ("aten::copy_"), or null.
const Form* find_form(const std::string& name);

// The tensor that a result of the core is, over a storage of its own or another's.
at::Tensor wrap(const TpuOut& out);
at::Tensor wrap_over(c10::Storage storage, const TpuOut& out);

// Runs the form on the arguments on top of the stack and leaves its returns there.
void call_form(const Form& form, torch::jit::Stack* stack);

// Runs the form on Meta tensors for the arguments on top of the stack and tells the core the outcome. TPU_OK: call
// again (a user's out= may have been resized). TPU_FALLBACK: the core cannot lower it. kDoneOnCpu: the CPU did it, its
// returns are on the stack. Throws PyTorch's own exception for a wrong call.
constexpr int32_t kDoneOnCpu = 100;
int32_t define_by_meta(const Form& form, torch::jit::Stack* stack, const TpuArg* args);

// The written argument that a return is, by the names in the schema's alias annotations; -1 if it is a new value.
int32_t written_argument(const c10::FunctionSchema& schema, const c10::Argument& ret);

std::vector<std::string> form_names();
// Names of the table that this torch cannot serve, and schemas that differ from the dispatcher's.
const std::vector<std::string>& unmatched_ops();
const std::vector<std::string>& schema_mismatches();
}  // namespace tpu
