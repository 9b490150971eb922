// c10 allocators: device storages (an address nobody can read, with the core's cell as context) and pinned host memory.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include "Runtime.h"

namespace tpu {
c10::Allocator* allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* data);

void free_storage(void* cell);
inline c10::DataPtr data_ptr(TpuStorage* cell, void* address) {
  return c10::DataPtr(address, cell, &free_storage, device());
}

// For a storage whose DataPtr is not ours: PyTorch's serialization wraps a storage's bare address in a new one.
TpuStorage* cell_at(const c10::DataPtr& data);
// The core's cell behind a storage.
inline TpuStorage* cell(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.unsafeGetStorageImpl()->data_ptr();
  if (C10_UNLIKELY(data.get_deleter() != &free_storage)) return cell_at(data);
  return static_cast<TpuStorage*>(data.get_context());
}

// Gives the storage `nbytes`; the leading bytes stay.
void resize_storage(const c10::Storage& storage, size_t nbytes);

void register_allocators();
}  // namespace tpu
