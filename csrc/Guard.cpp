// Streams and events. The device has one queue that keeps order: every stream id is a name for it, and events mark
// points in it.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>

#include "Registration.h"
#include "Runtime.h"

namespace tpu {
namespace {
thread_local c10::StreamId t_stream = 0;
std::atomic<c10::StreamId> g_next_stream{1};

c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device(), id); }

TpuEvent* recorded(void* event) {
  TORCH_CHECK(event != nullptr, "Both events must be recorded before calculating elapsed time.");
  return static_cast<TpuEvent*>(event);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device to) const override {
    check_index(to.index());
    return device();
  }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device to) const override { check_index(to.index()); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return is_available() ? 1 : 0; }

  c10::Stream getStream(c10::Device) const override { return stream(t_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override { return getNewStream(of, 0); }
  c10::Stream getNewStream(c10::Device of, int) const override {
    check_index(of.index());
    return stream(g_next_stream.fetch_add(1));
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream before = stream(t_stream);
    t_stream = to.id();
    return before;
  }
  bool queryStream(const c10::Stream&) const override {
    if (!g_started.load()) return true;
    const int32_t status = tpu_synchronize(0);
    if (status != TPU_PENDING) check(status);
    return status == TPU_OK;
  }
  void synchronizeStream(const c10::Stream&) const override { synchronize(); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { check_index(index), synchronize(); }

  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    ensure_started();
    TpuEvent* now = tpu_event_record();
    if (now == nullptr) raise_last_error();
    if (*event != nullptr) tpu_event_free(static_cast<TpuEvent*>(*event));
    *event = now;
  }
  void block(void*, const c10::Stream&) const override {}  // later work in the one queue comes after the event anyway
  bool queryEvent(void* event) const override {
    return event == nullptr || tpu_event_query(static_cast<TpuEvent*>(event)) == 1;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait_event(static_cast<TpuEvent*>(event));
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(queryEvent(recorded(start)) && queryEvent(recorded(end)),
                "Both events must be completed before calculating elapsed time.");
    return tpu_event_elapsed_ms(recorded(start), recorded(end));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) tpu_event_free(static_cast<TpuEvent*>(event));
  }
};
}  // namespace

void register_guard() { static c10::impl::DeviceGuardImplRegistrar registrar(kDevice, new Guard()); }
}  // namespace tpu
