// Shapes, dtypes, strides and errors of a call, from PyTorch's own Meta kernels.
#pragma once
#include "Form.h"

namespace tpu {

constexpr int32_t kDoneOnCpu =
    100;  // beside TpuStatus: the call was completed on the CPU, its returns are on the stack

// Runs the form on Meta tensors for the arguments on top of the stack and tells the core the outcome.
// TPU_OK: call again (outputs given by the user may have been resized). TPU_FALLBACK: there is no usable Meta kernel.
// Throws PyTorch's own exception for a wrong call.
int32_t define_by_meta(const Form& form, torch::jit::Stack* stack, const TpuArg* args);

}  // namespace tpu
