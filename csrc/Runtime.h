// The way from c10 to the core: start on first use, waits that answer to Ctrl-C, the core's errors as PyTorch's own.
#pragma once
#include <c10/core/Device.h>
#include <c10/macros/Macros.h>

#include <atomic>
#include <string>

#include "capi.h"

namespace tpu {
constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;
inline c10::Device device() { return c10::Device(kDevice, 0); }
// Accepts no index, -1 and 0; raises what PyTorch raises for an ordinal that does not exist.
void check_index(c10::DeviceIndex index);

extern std::atomic<bool> g_started;
void start_slowly();
// Starts the device on the first use that needs it. A failed start is tried again by the next use.
inline void ensure_started() {
  if (C10_UNLIKELY(!g_started.load(std::memory_order_acquire))) start_slowly();
}

// Raises the exception that belongs to this thread's last core error.
[[noreturn]] void raise_last_error();
inline void check(int32_t status) {
  if (C10_UNLIKELY(status != TPU_OK)) raise_last_error();
}

// These release the GIL while they wait and let a pending signal (KeyboardInterrupt) through.
void wait_ready(TpuStorage* storage);
void wait_event(TpuEvent* event);
void synchronize();

// "file.py:line" of the innermost Python frame outside torch and torch_tpu, or "".
std::string python_site();
// Directories whose frames python_site() skips.
void set_library_dirs(std::string torch_dir, std::string own_dir);

// Whether a plugin can be found; told by Python at load, so that nothing has to start to know.
void set_available(bool available);
bool is_available();

// The core mirrors torch.get_default_dtype() and torch.get_float32_matmul_precision() (70 ns, so only where it counts).
void sync_default_dtype();
void sync_matmul_precision();
}  // namespace tpu
