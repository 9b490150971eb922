// The tpu generator: a seed and an offset on the host. The device never holds generator state.
#pragma once
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <optional>

#include "Runtime.h"

namespace tpu {
class Generator final : public c10::GeneratorImpl {
 public:
  Generator();

  void set_current_seed(uint64_t seed) override { *state_ = {seed, 0}; }
  void set_offset(uint64_t offset) override { state_->offset = offset; }
  uint64_t get_offset() const override { return state_->offset; }
  uint64_t current_seed() const override { return state_->seed; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

 private:
  Generator* clone_impl() const override;

  // Shared between generators only by graphsafe_set_state, which makes two of them advance together.
  struct State {
    uint64_t seed = c10::default_rng_seed_val;
    uint64_t offset = 0;
  };
  std::shared_ptr<State> state_;
};

const at::Generator& default_generator();
// The generator an op draws from: the one given, else the default. Raises for a generator of another device.
Generator* generator_or_default(const std::optional<at::Generator>& given);
}  // namespace tpu
