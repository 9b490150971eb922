"""What a script written for another device relies on: honest timing, memory accounts, autocast, copies, printing."""

import copy
import gc
import io
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch_tpu import _plugin

MIB = 1 << 20


def test_elapsed_time_is_the_work_and_not_the_recording():
    x = torch.ones(1500, 1500, device="tpu")
    (x @ x).cpu()  # compiled
    start, middle, end = (torch.tpu.Event(enable_timing=True) for _ in range(3))
    torch.tpu.synchronize()
    start.record()
    middle.record()
    for _ in range(3):
        y = x @ x
    end.record()
    assert not end.query() and not torch.tpu.current_stream().query()  # seconds of work, microseconds of recording
    end.synchronize()
    assert end.query() and middle.query()
    torch.tpu.synchronize()
    assert torch.tpu.current_stream().query()
    assert start.elapsed_time(end) > 10 * start.elapsed_time(middle) >= 0
    assert y[0, 0].item() == 1500.0


def test_memory_returns_to_where_it_was():
    gc.collect()  # what earlier tests left
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    x = torch.ones(MIB, device="tpu", requires_grad=True)
    loss = (x * 2).exp().sum()
    loss.backward()
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() >= before + 8 * MIB
    view = x.detach()[5:]
    del x, loss
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() >= before + 4 * MIB  # the view holds its storage
    del view
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() <= before + MIB
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == torch.tpu.memory_allocated()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == torch.tpu.memory_allocated()


def test_overwriting_in_a_loop_does_not_grow():
    x = torch.zeros(MIB, device="tpu")
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    for _ in range(50):
        x.add_(1)
        torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == before
    assert torch.tpu.max_memory_allocated() <= before + 8 * MIB
    assert x[-1].item() == 50.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_chooses_as_on_other_devices(dtype):
    x = torch.randn(4, 4, device="tpu")
    with torch.autocast("tpu", dtype):
        assert (x @ x).dtype == dtype
        assert torch.nn.functional.softmax(x @ x, 1).dtype == torch.float32
        assert (x + x).dtype == torch.float32
        with torch.autocast("tpu", enabled=False):
            assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def shared() -> dict[str, torch.Tensor]:
    base = torch.arange(12, device="tpu").reshape(3, 4)
    return {"base": base, "row": base[1], "column": base[:, 2], "turned": base.t()}


def by_file(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, by_file, lambda v: by_file(v, map_location="tpu"), lambda v: by_file(v, map_location="cpu")],
)
def test_copies_keep_what_views_share(duplicate):
    tensors = shared()
    twins = duplicate(tensors)
    for name, twin in twins.items():
        assert torch.equal(twin.cpu(), tensors[name].cpu()) and twin.stride() == tensors[name].stride()
    twins["base"].view(-1)[6] = 100
    assert [twins["row"][2].item(), twins["column"][1].item(), twins["turned"][2, 1].item()] == [100] * 3
    assert tensors["base"][1, 2].item() == 6


def test_pickles_keep_dtype_device_and_grad():
    for x in (
        torch.randn(3, device="tpu", requires_grad=True),
        torch.ones(2, dtype=torch.bfloat16, device="tpu"),
        torch.tensor(3, device="tpu"),
        torch.empty(0, 2, device="tpu"),
    ):
        twin = pickle.loads(pickle.dumps(x))
        assert (twin.dtype, twin.device, twin.requires_grad) == (x.dtype, x.device, x.requires_grad)
        assert torch.equal(twin, x)


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(5),
        torch.tensor([1.5, float("nan"), float("inf")]),
        torch.tensor([True, False]),
        torch.tensor(2.5),
        torch.empty(0),
        torch.arange(5000.0).reshape(50, 100),
        torch.tensor([1 + 2j]),
        torch.ones(2, 2, dtype=torch.bfloat16),
    ],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)
def test_printing_says_what_the_cpu_says_and_warns_of_nothing(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = repr(x.to("tpu"))
    assert text.replace(", device='tpu:0'", "").replace("\n       device='tpu:0')", ")").split() == repr(x).split()


def test_dlpack_says_what_to_do():
    x = torch.ones(2, device="tpu")
    for give in (torch.from_dlpack, np.from_dlpack):
        with pytest.raises((RuntimeError, BufferError, ValueError, TypeError)) as caught:
            give(x)
        assert str(caught.value)
    assert x.tolist() == [1.0, 1.0]


def test_float64_on_a_tpu_warns_once(run_python, tmp_path):
    plugin = tmp_path / "libtpu_stand_in.so"  # whose name makes it a TPU's
    plugin.symlink_to(_plugin.find().path)
    code = "import torch\nfor _ in range(2): print(torch.ones(2, dtype=torch.float64, device='tpu') + 1)"
    done = run_python(code, TORCH_TPU_PJRT_PLUGIN=str(plugin))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pairs of float32") == 1
    assert "pairs of float32" not in run_python(code).stderr
