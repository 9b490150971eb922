"""Names and one-liners that other projects rely on. Those of distributed training and kernels are not here yet."""

import inspect

import pytest
import torch
import torch_tpu

# What trainers, launchers and PyTorch itself look up on torch.tpu.
NAMES = [
    "is_available",
    "device_count",
    "current_device",
    "set_device",
    "device",
    "synchronize",
    "is_initialized",
    "_lazy_init",
    "_is_in_bad_fork",
    "init",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "initial_seed",
    "get_rng_state",
    "set_rng_state",
    "get_rng_state_all",
    "set_rng_state_all",
    "default_generators",
    "_get_generator",
    "Stream",
    "Event",
    "stream",
    "current_stream",
    "default_stream",
    "set_stream",
    "get_amp_supported_dtype",
    "is_bf16_supported",
    "get_device_name",
    "get_device_properties",
    "get_device_capability",
    "empty_cache",
    "memory_stats",
    "memory_allocated",
    "memory_reserved",
    "max_memory_allocated",
    "max_memory_reserved",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
    "mem_get_info",
    "ipc_collect",
    "EagerMode",
    "eager_mode",
    "set_eager_mode",
    "compile_count",
    "fallbacks",
    "cache_stats",
    "_get_cache_stats",
    "_clear_cache",
    "__version__",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_module_has(name):
    assert hasattr(torch.get_device_module("tpu"), name)


def test_everything_listed_exists():
    assert [name for name in torch.tpu.__all__ if not hasattr(torch.tpu, name)] == []


def test_the_device_is_found_by_every_style_of_detection():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == "tpu"
    assert torch.accelerator.current_accelerator(check_available=True).type == "tpu"
    assert torch._C._get_accelerator().type == "tpu"
    assert hasattr(torch, "tpu") and torch.tpu.is_available()
    assert torch.get_device_module() is torch.tpu
    assert torch._utils._get_available_device_type() == "tpu"
    assert torch._utils._is_privateuse1_backend_available()
    assert str(torch.device("tpu", 0)) == "tpu:0"


def test_libraries_find_the_package_and_the_device():
    from importlib.metadata import version
    from importlib.util import find_spec

    from transformers.utils import is_torch_tpu_available

    assert is_torch_tpu_available()
    # as diffusers, vLLM and others look
    assert find_spec("torch_tpu") and version("torch_tpu") == version("torch-tpu")
    assert torch_tpu.__version__


def test_libraries_stay_as_they_are_if_asked(run_python):
    code = (
        "import torch, accelerate.state, safetensors.torch, tempfile\n"
        "print(accelerate.PartialState().device.type)\n"
        "file = tempfile.mkdtemp() + '/x'\n"
        "safetensors.torch.save_file({'x': torch.ones(2)}, file)\n"
        "try: print(safetensors.torch.load_file(file, device='tpu')['x'].device.type)\n"
        "except Exception as error: print(type(error).__name__)\n"
    )
    assert run_python(code).stdout.split() == ["tpu", "tpu"]
    # whoever brings torch in
    for first in ("accelerate.state", "accelerate.utils.modeling", "safetensors.torch", "transformers"):
        done = run_python(f"import {first}\n" + code)
        assert (done.stdout.split(), done.stderr) == (["tpu", "tpu"], "")
    assert run_python(code, TORCH_TPU_ADAPT="0").stdout.split() == ["cpu", "SafetensorError"]


def test_device_counts_and_indices():
    assert torch.tpu.device_count() == torch.accelerator.device_count() == 1
    assert torch.tpu.current_device() == torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)


@pytest.mark.parametrize("device", [0, 3, "tpu", "tpu:0", torch.device("tpu"), None])
def test_set_device_takes_what_launchers_pass(device):
    torch.tpu.set_device(device)
    with torch.tpu.device(device):
        assert torch.tpu.current_device() == 0


def test_a_device_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="expected a tpu device, got cpu"):
        torch.tpu.set_device("cpu")


def test_tensors_and_modules_move_by_name():
    assert torch.ones(2).tpu().is_tpu
    assert next(torch.nn.Linear(2, 2).tpu().parameters()).device == torch.device("tpu:0")
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert packed.tpu().is_tpu


def test_internal_places_forward_to_public_names():
    internal = torch_tpu._internal
    assert internal.sync.synchronize is internal.sync.sync.synchronize
    assert list(inspect.signature(internal.sync.synchronize).parameters) == ["tensors", "wait"]
    x = torch.ones(2, device="tpu") + 1
    internal.sync.synchronize(x, wait=False)
    internal.sync.synchronize([x], wait=True)
    assert internal.execution_mode.EagerMode is torch.tpu.EagerMode


def test_dispatch_keys_have_the_devices_name():
    library = torch.library.Library("tpu_contract", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "TPU")
    assert torch.ops.tpu_contract.twice(torch.ones(2, device="tpu")).tolist() == [2.0, 2.0]


def test_profiler_activities_have_the_devices_name():
    assert torch.profiler.ProfilerActivity.PrivateUse1 == torch.profiler.ProfilerActivity.TPU


def test_fake_tensors_know_the_device():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(2, 3, device="tpu")
        assert (x @ torch.empty(3, 4, device="tpu")).device == torch.device("tpu:0")
