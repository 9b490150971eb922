#include "Allocator.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace tpu {
namespace {
using c10::CachingAllocator::Stat;

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    ensure_started();
    void* address = nullptr;
    TpuStorage* made = tpu_storage_new(nbytes, &address);
    if (C10_UNLIKELY(made == nullptr)) raise_last_error();
    return data_ptr(made, address);
  }

  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "tpu memory cannot be copied by address.");
  }

  bool initialized() override { return g_started.load(); }

  void emptyCache(c10::MempoolId_t) override {
    if (initialized()) tpu_empty_cache();
  }

  // One in-order queue: a block is never handed to work that could overtake its last use.
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    check_index(index);
    TpuMemoryStats m{};
    if (initialized()) tpu_memory_stats(&m);
    c10::CachingDeviceAllocator::DeviceStats out;
    const auto n = [](uint64_t value) { return static_cast<int64_t>(value); };
    const Stat bytes{n(m.current), n(m.peak), n(m.allocated_total), n(m.freed_total)};
    const int64_t live = n(m.active_count), made = n(m.allocation_count);
    const Stat count{live, live, made, made - live};
    constexpr size_t all = 0;  // the aggregate of PyTorch's pools; this allocator has no small and large pool
    out.allocated_bytes[all] = out.reserved_bytes[all] = out.active_bytes[all] = out.requested_bytes[all] = bytes;
    out.allocation[all] = out.active[all] = out.segment[all] = count;
    out.num_alloc_retries = n(m.retry_count);
    out.num_ooms = n(m.oom_count);
    out.num_device_alloc = made;
    out.num_device_free = made - live;
    return out;
  }

  void resetAccumulatedStats(c10::DeviceIndex index) override {
    check_index(index);
    if (initialized()) tpu_memory_reset_accumulated();
  }

  void resetPeakStats(c10::DeviceIndex index) override {
    check_index(index);
    if (initialized()) tpu_memory_reset_peak();
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    check_index(index);
    ensure_started();
    TpuMemoryStats m{};
    tpu_memory_stats(&m);
    return {m.limit > m.current ? m.limit - m.current : 0, m.limit};
  }
};

// Host memory on its own cache lines. The core copies from it before an upload returns, so no event has to hold it.
struct PinnedMemory final : at::HostAllocator {
  static constexpr size_t kAlign = 64;
  inline static std::mutex mutex;
  inline static std::map<uintptr_t, size_t> blocks;

  static void release(void* start) {
    std::unique_lock<std::mutex> lock(mutex);
    blocks.erase(reinterpret_cast<uintptr_t>(start));
    lock.unlock();
    std::free(start);
  }

  static bool contains(const void* data) {
    const auto at = reinterpret_cast<uintptr_t>(data);
    std::lock_guard<std::mutex> lock(mutex);
    auto next = blocks.upper_bound(at);
    if (next == blocks.begin()) return false;
    --next;
    return at < next->first + next->second;
  }

  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) return c10::DataPtr(nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU));
    void* start = std::aligned_alloc(kAlign, (nbytes + kAlign - 1) / kAlign * kAlign);
    if (start == nullptr)
      C10_THROW_ERROR(OutOfMemoryError, "No host memory for " + std::to_string(nbytes) + " pinned bytes.");
    std::lock_guard<std::mutex> lock(mutex);
    blocks.emplace(reinterpret_cast<uintptr_t>(start), nbytes);
    return c10::DataPtr(start, start, &release, c10::Device(c10::DeviceType::CPU));
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override { std::memcpy(to, from, count); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

DeviceMemory g_device_memory;
PinnedMemory g_pinned_memory;
}  // namespace

c10::Allocator* allocator() { return &g_device_memory; }
c10::Allocator* pinned_allocator() { return &g_pinned_memory; }
bool is_pinned(const void* data) { return PinnedMemory::contains(data); }

void free_storage(void* context) {
  if (context != nullptr) tpu_storage_free(static_cast<TpuStorage*>(context));
}

TpuStorage* cell_at(const c10::DataPtr& data) {
  TpuStorage* found = g_started.load() ? tpu_storage_find(data.get()) : nullptr;
  TORCH_CHECK(found != nullptr, "This tpu tensor has no storage of the tpu device (made from foreign memory?).");
  return found;
}

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  ensure_started();
  void* address = nullptr;
  TpuStorage* made = tpu_storage_resized(cell(storage), nbytes, &address);
  if (made == nullptr) raise_last_error();
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(data_ptr(made, address));
  storage.unsafeGetStorageImpl()->set_nbytes(nbytes);
}

void register_allocators() {
  c10::SetAllocator(kDevice, &g_device_memory);
  at::setHostAllocator(kDevice, &g_pinned_memory);
}
}  // namespace tpu
