"""Tensors leave and enter the device: files, pickles, copies, NumPy, data loaders, pinned memory, DLPack."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    model[1].weight = torch.nn.Parameter(model[0].weight.detach().t().contiguous())
    return model.to("tpu")


def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]
)
def test_save_and_load(dtype):
    x = torch.randn(3, 4).to(dtype).to("tpu")
    back = saved(x)
    assert (back.device, back.dtype) == (x.device, dtype)
    same(back, x)
    assert saved(x, map_location="cpu").device.type == "cpu"
    assert saved(x.cpu(), map_location="tpu").device.type == "tpu"


def test_a_state_dict_round_trip(model):
    state = saved(model.state_dict(), weights_only=True)
    for name, value in model.state_dict().items():
        assert state[name].device.type == "tpu"
        same(state[name], value)


def test_views_share_their_storage_after_loading():
    base = torch.arange(12.0, device="tpu").reshape(3, 4)
    base_back, view_back = saved([base, base.t()[1:]])
    same(view_back, base.t()[1:])
    base_back[0, 1] = 100.0
    assert view_back[0, 0].item() == 100.0


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copies_are_equal_and_apart(model, duplicate):
    other = duplicate(model)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert b.device.type == "tpu" and isinstance(b, torch.nn.Parameter) and b.requires_grad
        same(a, b)
        assert a.data_ptr() != b.data_ptr()


def test_numpy_wants_a_tensor_on_the_cpu():
    x = torch.arange(3, device="tpu")
    with pytest.raises(TypeError, match=r"Tensor\.cpu\(\)"):
        x.numpy()
    assert x.numpy(force=True).tolist() == x.cpu().numpy().tolist() == [0, 1, 2]
    assert torch.from_numpy(np.ones(2)).to("tpu").tolist() == [1.0, 1.0]


def test_printing():
    x = torch.tensor([[1.5, -2.0], [3.0, 1e6]], device="tpu")
    assert repr(x) == repr(x.cpu()).removesuffix(")") + ", device='tpu:0')"
    assert "device='tpu:0', requires_grad=True" in repr(torch.ones(1, device="tpu", requires_grad=True))


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("pin", [False, True], ids=["plain", "pinned"])
def test_data_loader_workers(start, pin):
    torch.ones(1, device="tpu") + 1  # the device runs before the workers are made
    data = TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, batch_size=4, num_workers=2, pin_memory=pin, multiprocessing_context=start)
    batches = [batch for (batch,) in loader]
    assert all(batch.is_pinned() == pin for batch in batches)
    assert torch.cat([batch.to("tpu", non_blocking=True) for batch in batches]).tolist() == list(range(8))


def test_pinned_memory():
    x = torch.arange(4.0).pin_memory()
    assert x.is_pinned() and not torch.arange(4.0).is_pinned()
    assert torch.empty(4, pin_memory=True).is_pinned()
    there = x.to("tpu", non_blocking=True)
    x.zero_()  # the upload has its own copy by now
    assert there.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_dlpack_refuses_device_memory_in_words():
    x = torch.arange(3.0, device="tpu")
    with pytest.raises((RuntimeError, BufferError, ValueError)):
        np.from_dlpack(x)
    with pytest.raises((RuntimeError, BufferError, ValueError)):
        torch.from_dlpack(x)
    assert np.from_dlpack(x.cpu()).tolist() == [0.0, 1.0, 2.0]


def test_a_forked_child_says_what_to_do(run_python):
    code = """
import os, torch
x = torch.ones(2, device="tpu") + 1
if os.fork() == 0:
    print(torch.tpu._is_in_bad_fork(), flush=True)
    torch.manual_seed(1)
    try:
        x + 1
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
print(x.tolist())
"""
    done = run_python(code)
    lines = done.stdout.splitlines()
    assert lines[0] == "True" and lines[-1] == "[2.0, 2.0]", done.stderr
    assert "spawn" in done.stdout


def test_tied_weights_stay_tied_on_the_way_there_and_back():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    model = Tied()
    weight = model.embed.weight
    for device in ("tpu", "cpu"):
        model.to(device)
        assert model.embed.weight is weight and model.head.weight is weight
        assert weight.device.type == device
        model.head(model.embed(torch.arange(5, device=device))).sum().backward()
    assert weight.grad.device.type == "cpu"
