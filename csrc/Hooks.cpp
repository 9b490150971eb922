#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "Allocator.h"
#include "Generator.h"
#include "Registration.h"

namespace tpu {
namespace {
// What PyTorch's device-neutral code asks. Nothing here starts the device except what needs it to answer.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return is_available(); }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    check_index(index);
    return g_started.load();
  }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return is_available() ? 1 : 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex index) const override { check_index(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    check_index(index);
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    check_index(index);
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    check_index(index);
    return at::make_generator<Generator>();
  }
  at::Device getDeviceFromPtr(void*) const override { return device(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage, nbytes);
  }
};
}  // namespace

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks()); }
}  // namespace tpu
