// Ops that the core does not lower run on the CPU: counted, and said once per op.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <string>

namespace tpu {
enum class FallbackMode { kWarn, kSilent, kError };  // TORCH_TPU_FALLBACK: unset, silent, error
FallbackMode fallback_mode();

// Runs the op on CPU copies of the arguments on top of the stack; returns come back to the device.
void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack, const char* reason);

// Calls per op name so far.
std::map<std::string, uint64_t> fallback_counts();
void reset_fallback_counts();
}  // namespace tpu
