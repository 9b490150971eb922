"""torch.tpu and torch.accelerator: modes, memory, random numbers, streams and events, properties."""

import threading

import pytest
import torch

EagerMode = torch.tpu.EagerMode
MIB = 1 << 20

# ------------------------------------------------------------------ modes


def test_the_mode_is_an_attribute(eager_mode):
    torch.tpu.eager_mode = EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    assert torch.tpu.eager_mode is EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    import torch_tpu._internal.execution_mode as execution_mode

    execution_mode.eager_mode = EagerMode.DEFER_AND_FUSE
    assert torch.tpu.eager_mode is execution_mode.eager_mode is EagerMode.DEFER_AND_FUSE


def test_the_mode_is_set_by_call_or_for_a_block(eager_mode):
    torch.tpu.set_eager_mode(EagerMode.DEFER_NEVER)
    with torch.tpu.set_eager_mode(EagerMode.DEFER_AND_FUSE):
        assert torch.tpu.eager_mode is EagerMode.DEFER_AND_FUSE
    assert torch.tpu.eager_mode is EagerMode.DEFER_NEVER


@pytest.mark.parametrize("mode", ["strict", 1, None])
def test_a_mode_is_an_eager_mode(eager_mode, mode):
    with pytest.raises(TypeError, match="EagerMode"):
        torch.tpu.eager_mode = mode


@pytest.mark.parametrize(
    ("environ", "mode"),
    [
        ({}, "DEFER_NEVER"),
        ({"TORCH_TPU_DEFER_AND_FUSE": "1"}, "DEFER_AND_FUSE"),
        ({"TORCH_TPU_DEFER_AND_FUSE": "0"}, "DEFER_NEVER"),
        ({"TORCH_TPU_LAUNCH_BLOCKING": "1"}, "DEFER_NEVER_AND_LAUNCH_BLOCKING"),
        ({"TORCH_TPU_LAUNCH_BLOCKING": "1", "TORCH_TPU_DEFER_AND_FUSE": "1"}, "DEFER_NEVER_AND_LAUNCH_BLOCKING"),
    ],
)
def test_the_environment_sets_the_first_mode(environ, mode):
    assert EagerMode.from_environment(environ).name == mode


@pytest.mark.parametrize("mode", list(EagerMode))
def test_results_do_not_depend_on_the_mode(eager_mode, mode):
    torch.tpu.eager_mode = mode
    x = torch.arange(6.0, device="tpu").reshape(2, 3)
    assert (x.t() @ x + 1).sum().item() == 9 + (x.cpu().t() @ x.cpu()).sum().item()


# ------------------------------------------------------------------ memory


def test_memory_follows_tensors():
    before = torch.tpu.memory_allocated()
    torch.tpu.reset_peak_memory_stats()
    x = torch.ones(MIB, device="tpu")
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() - before >= 4 * MIB
    del x
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() - before < 4 * MIB
    assert torch.tpu.max_memory_allocated() - before >= 4 * MIB
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() - before < 4 * MIB


def test_both_views_of_memory_agree():
    x = torch.ones(MIB, device="tpu")
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated("tpu:0") == torch.accelerator.memory_allocated() > 0
    assert torch.tpu.memory_reserved() >= torch.tpu.memory_allocated()
    stats = torch.tpu.memory_stats(device="tpu")
    for key in ("active_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries", "num_ooms"):
        assert stats[key] >= 0
    del x


def test_free_and_total_memory():
    torch.tpu.init()
    free, total = torch.tpu.mem_get_info()
    assert 0 < free <= total
    assert (free, total) == pytest.approx(torch.accelerator.get_memory_info(), rel=0.1)
    assert torch.tpu.get_device_properties().total_memory == total
    torch.tpu.empty_cache()
    assert "MiB" in torch.tpu.memory_summary()


@pytest.mark.parametrize("mode", [EagerMode.DEFER_NEVER, EagerMode.DEFER_AND_FUSE])
def test_a_training_step_takes_little_more_than_parameters_states_and_activations(eager_mode, mode):
    torch.tpu.eager_mode = mode
    before = torch.tpu.memory_allocated()
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(48)]).to("tpu")
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(128, 64, device="tpu")

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for _ in range(6):
        step()
    torch.tpu.synchronize()
    step()
    torch.tpu.reset_peak_memory_stats()
    for _ in range(3):
        step()
    held = [*model.parameters(), *(t for state in optimizer.state.values() for t in state.values())]
    activations = x.nbytes * (1 + len(model))
    assert torch.tpu.max_memory_allocated() - before <= 1.15 * (sum(t.nbytes for t in held) + activations)


# ------------------------------------------------------------------ random numbers


def test_the_state_is_seed_and_offset():
    torch.tpu.manual_seed(2**40 + 5)
    state = torch.tpu.get_rng_state()
    assert (state.dtype, state.device.type, len(state)) == (torch.uint8, "cpu", 16)
    assert int.from_bytes(bytes(state[:8].tolist()), "little") == 2**40 + 5 == torch.tpu.initial_seed()
    assert not state[8:].any()
    torch.rand(3, device="tpu")
    assert torch.tpu.get_rng_state()[8:].any()


def test_a_seed_repeats_and_a_state_resumes():
    torch.manual_seed(7)
    first = torch.rand(5, device="tpu").cpu()
    state = torch.tpu.get_rng_state("tpu:0")
    second = torch.randn(5, device="tpu").cpu()
    torch.tpu.set_rng_state(state, "tpu:0")
    assert torch.equal(torch.randn(5, device="tpu").cpu(), second)
    torch.tpu.manual_seed_all(7)
    assert torch.equal(torch.rand(5, device="tpu").cpu(), first)


def test_fork_rng_gives_the_state_back():
    torch.manual_seed(3)
    before = torch.tpu.get_rng_state()
    with torch.random.fork_rng(device_type="tpu"):
        torch.rand(5, device="tpu")
    assert torch.equal(torch.tpu.get_rng_state(), before)


def test_generators_are_independent():
    ours = torch.Generator(device="tpu").manual_seed(5)
    default = torch.tpu.get_rng_state()
    a = torch.rand(4, device="tpu", generator=ours).cpu()
    assert torch.equal(torch.tpu.get_rng_state(), default)
    assert torch.equal(torch.rand(4, device="tpu", generator=ours.manual_seed(5)).cpu(), a)
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(4, device="tpu", generator=torch.Generator())


def test_shared_generator_states_advance_together():
    (default,) = torch.tpu.default_generators
    assert default.device.type == "tpu"
    one, other = torch.Generator(device="tpu"), torch.Generator(device="tpu")
    other.graphsafe_set_state(one.graphsafe_get_state())
    torch.rand(4, device="tpu", generator=one)
    assert torch.equal(one.get_state(), other.get_state())
    torch.rand(4, device="tpu", generator=one.clone_state())
    assert torch.equal(one.get_state(), other.get_state())


# ------------------------------------------------------------------ streams and events


def test_events_tell_when_work_is_done():
    start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    assert start.record() is start
    x = torch.ones(256, 256, device="tpu")
    for _ in range(10):
        x = x @ x * 1e-3
    end.record(torch.tpu.current_stream())
    end.synchronize()
    assert end.query() and start.query()
    assert start.elapsed_time(end) > 0


def test_streams_name_the_one_queue():
    side = torch.tpu.Stream(device="tpu", priority=-1)
    before = torch.tpu.current_stream()
    with torch.tpu.stream(side) as active:
        assert active is side
        assert torch.tpu.current_stream() == side
        x = torch.ones(3, device="tpu") * 2
        event = side.record_event()
    assert torch.tpu.current_stream() == before == torch.tpu.default_stream()
    before.wait_event(event)
    before.wait_stream(side)
    event.wait()
    assert x.tolist() == [2.0, 2.0, 2.0]
    side.synchronize()
    assert side.query() and event.query()
    with torch.tpu.stream(None):
        assert torch.tpu.current_stream() == before


def test_pytorchs_own_streams_and_events_work():
    stream, event = torch.Stream(device="tpu"), torch.Event("tpu")
    with stream:
        assert torch.accelerator.current_stream() == stream
    event.record(stream)
    event.synchronize()
    torch.accelerator.synchronize()
    assert event.query()


def test_the_current_stream_belongs_to_the_thread():
    seen = []
    with torch.tpu.stream(torch.tpu.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_stream().stream_id))
        thread.start()
        thread.join()
    assert seen == [torch.tpu.default_stream().stream_id]


# ------------------------------------------------------------------ properties and counters


def test_properties():
    properties = torch.tpu.get_device_properties("tpu:0")
    assert properties.name == torch.tpu.get_device_name()
    assert properties.multi_processor_count >= 1
    assert torch.tpu.get_device_capability() == (properties.major, properties.minor)
    assert torch.tpu.is_bf16_supported()
    assert torch.bfloat16 in torch.tpu.get_amp_supported_dtype()


def test_a_plan_is_compiled_once():
    x = torch.ones(5, 11, device="tpu")

    def use() -> None:
        torch.cosh(x)
        torch.tpu.synchronize()

    use()
    compiled, hits = torch.tpu.compile_count(), torch.tpu._get_cache_stats().num_cache_hits
    use()
    assert torch.tpu.compile_count() == compiled
    assert torch.tpu._get_cache_stats().num_cache_hits > hits
    assert torch.tpu._get_cache_stats().num_cache_reqs >= torch.tpu._get_cache_stats().num_cache_hits


def test_a_second_process_compiles_nothing(run_python, tmp_path):
    code = "import torch; x = torch.ones(3, device='tpu'); (x + x).cpu(); print(torch.tpu.compile_count())"
    first, second = (run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert int(first.stdout) > 0, first.stderr
    assert int(second.stdout) == 0, second.stderr
    off = run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path), TORCH_TPU_CACHE_SIZE="0")
    assert int(off.stdout) > 0, off.stderr


def test_fallbacks_are_counted():
    before = sum(torch.tpu.fallbacks().values())
    x = torch.eye(3, device="tpu")
    with pytest.warns(UserWarning):
        torch.linalg.ldl_factor_ex(x)
    assert sum(torch.tpu.fallbacks().values()) == before + 1


def test_indexing_and_masking_with_broadcast_indices_and_host_numbers_stay_on_the_device():
    before = dict(torch.tpu.fallbacks())
    mask = torch.ones(2, 5, dtype=torch.bool, device="tpu")
    rows, columns = torch.arange(2, device="tpu")[:, None, None], torch.arange(5, device="tpu")[None, None, :]
    assert mask[rows, columns].shape == (2, 1, 5)
    assert torch.zeros(5, device="tpu").masked_fill(mask[0], torch.tensor(2.0)).tolist() == [2.0] * 5
    assert torch.tpu.fallbacks() == before
