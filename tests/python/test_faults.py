"""What goes wrong, goes wrong in PyTorch's words, at the user's line, and nothing else is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

F = torch.nn.functional
LONG = torch.int64
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """What the CPU is asked to refuse runs there: no word about that."""
    monkeypatch.setenv("TORCH_TPU_FALLBACK", "silent")


@pytest.fixture
def bystander():
    """A tensor that must outlive whatever a test does, and a device that must still work afterwards."""
    x = torch.arange(4.0, device="tpu") * 2
    yield x
    assert x.tolist() == [0.0, 2.0, 4.0, 6.0] and (x + 1).sum().item() == 16.0


def refusal(call, device: str) -> tuple[type, str]:
    with pytest.raises(Exception) as caught:
        call(lambda *shape, dtype=torch.float32: torch.ones(shape, dtype=dtype, device=device))
    return caught.type, str(caught.value).splitlines()[0]


REFUSED = {
    "broadcast": lambda t: t(2, 3) + t(2, 4),
    "reshape": lambda t: t(2, 3).reshape(4),
    "view": lambda t: t(2, 3).t().view(6),
    "matmul": lambda t: t(2, 3) @ t(2, 4),
    "matmul dtypes": lambda t: t(2, 3) @ t(3, 4, dtype=torch.float64),
    "mv": lambda t: torch.mv(t(2, 3), t(4)),
    "bmm": lambda t: torch.bmm(t(2, 3, 4), t(2, 3, 4)),
    "linear": lambda t: F.linear(t(2, 3), t(4, 5)),
    "conv channels": lambda t: F.conv2d(t(1, 3, 5, 5), t(4, 2, 3, 3)),
    "conv kernel": lambda t: F.conv2d(t(1, 2, 2, 2), t(4, 2, 3, 3)),
    "cat": lambda t: torch.cat([t(2, 3), t(2, 4)]),
    "stack": lambda t: torch.stack([t(2, 3), t(2, 4)]),
    "dim": lambda t: t(2, 3).sum(5),
    "select": lambda t: t(2, 3)[4],
    "too many indices": lambda t: t(2, 3)[0, 0, 0],
    "float index": lambda t: t(2, 3)[t(2)],
    "mask of another shape": lambda t: t(2, 3)[t(3, dtype=torch.bool)],
    "embedding of floats": lambda t: F.embedding(t(2), t(3, 4)),
    "gather by floats": lambda t: t(2, 3).gather(0, t(2, 3)),
    "gather dims": lambda t: t(2, 3).gather(0, t(2, dtype=LONG)),
    "index_select by floats": lambda t: t(2, 3).index_select(0, t(2)),
    "index_select by a matrix": lambda t: t(2, 3).index_select(0, t(2, 2, dtype=LONG)),
    "scatter dtypes": lambda t: t(2, 3).scatter(0, t(1, 3, dtype=LONG), t(1, 3, dtype=LONG)),
    "masked_fill by floats": lambda t: t(2, 3).masked_fill(t(2, 3), 1),
    "max of nothing": lambda t: t(0).max(),
    "min of nothing": lambda t: t(0).min(),
    "argmax of nothing": lambda t: t(0).argmax(),
    "max along nothing": lambda t: t(0, 3).max(0),
    "mean of integers": lambda t: t(2, dtype=LONG).mean(),
    "softmax of integers": lambda t: t(2, dtype=LONG).softmax(0),
    "bits of floats": lambda t: t(3) & t(3),
    "minus bool": lambda t: -t(3, dtype=torch.bool),
    "integers to a negative power": lambda t: t(3, dtype=LONG) ** -1,
    "in-place promotion": lambda t: t(2, dtype=LONG).add_(2.5),
    "in-place product of bools": lambda t: t(2, dtype=torch.bool).mul_(2),
    "in-place division of integers": lambda t: t(2, dtype=LONG).div_(2),
    "in-place broadcast": lambda t: t(3).add_(t(2, 3)),
    "out of another category": lambda t: torch.exp(t(3), out=t(3, dtype=LONG)),
    "item": lambda t: t(2).item(),
    "truth": lambda t: bool(t(2)),
    "targets": lambda t: F.cross_entropy(t(2, 3), t(3, dtype=LONG)),
    "targets of int32": lambda t: F.cross_entropy(t(2, 3), t(2, dtype=torch.int32)),
    "layer norm": lambda t: F.layer_norm(t(2, 3), (4,)),
    "batch norm": lambda t: F.batch_norm(t(1, 3), None, None, training=True),
    "topk": lambda t: t(3).topk(5),
    "sort": lambda t: t(3).sort(2),
    "multinomial": lambda t: torch.multinomial(t(3), 5),
    "dropout": lambda t: F.dropout(t(3), 1.5),
    "normal": lambda t: t(3).normal_(0, -1),
    "copy": lambda t: t(3).copy_(t(4)),
    "assignment": lambda t: t(3).__setitem__(slice(0, 2), t(3)),
    "leaf": lambda t: t(3).requires_grad_().add_(1),
    "gradient of a vector": lambda t: t(3).requires_grad_().backward(),
    "pool": lambda t: F.max_pool2d(t(1, 1, 2, 2), 3),
    "pad": lambda t: F.pad(t(1, 3), (4, 0), mode="reflect"),
    "einsum": lambda t: torch.einsum("ij,jk->ik", t(2, 3), t(2, 3)),
    "dot": lambda t: torch.dot(t(2), t(3)),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_a_wrong_call_is_refused_in_the_cpus_words(bystander, call):
    assert refusal(call, "tpu") == refusal(call, "cpu")


MIXED = [
    lambda h, d: h + d,
    lambda h, d: d + h,
    lambda h, d: d @ h,
    lambda h, d: d.add_(h),
    lambda h, d: torch.cat([d, h]),
    lambda h, d: torch.add(d, d, out=h),
    lambda h, d: F.linear(d, h),
    lambda h, d: torch.where(d > 0, h, d),
]


@pytest.mark.parametrize("call", MIXED)
def test_devices_do_not_mix(bystander, call):
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device.* tpu:0 and cpu|tpu:0.*cpu"):
        call(torch.ones(3, 3), torch.ones(3, 3, device="tpu"))


def test_a_device_that_is_not_there():
    with pytest.raises(RuntimeError, match="invalid device ordinal 3"):
        torch.ones(2, device="tpu:3")


def bad(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="tpu")


OUT_OF_RANGE = {
    "embedding": lambda x: F.embedding(bad(1, 9), x),
    "gather": lambda x: x.gather(0, bad(7, 0, 0).reshape(1, 3)),
    "index_select": lambda x: x.index_select(0, bad(4)),
    "index": lambda x: x[bad(0, 5)],
    "negative index": lambda x: x[bad(-5)],
    "two indices": lambda x: x[bad(0), bad(3)],
    "index_put_": lambda x: x.clone().index_put_((bad(4),), x[0]),
    "assignment": lambda x: (y := x.clone(), y.__setitem__(bad(8), 1))[0],
    "scatter": lambda x: x.scatter(0, bad(4, 0, 0).reshape(1, 3), 1.0),
    "index_add": lambda x: x.index_add(0, bad(6), x[:1]),
    "take": lambda x: x.take(bad(12)),
    "index_copy": lambda x: x.index_copy(0, bad(4), x[:1]),
    "index_fill": lambda x: x.index_fill(1, bad(3), 2.0),
    "index_reduce": lambda x: x.index_reduce(0, bad(-1), x[:1], "amax"),
    "scatter_add": lambda x: x.scatter_add(0, bad(-1, 0, 0).reshape(1, 3), x),
    "scatter_reduce": lambda x: x.scatter_reduce(1, bad(0, 3).reshape(2, 1), x, "sum"),
    "put": lambda x: x.put(bad(-13), x[0, :1]),
    "nll_loss": lambda x: F.nll_loss(x, bad(0, 1, 2, 3)),
    "cross_entropy": lambda x: F.cross_entropy(x, bad(0, 1, 2, -1)),
    "nll_loss of images": lambda x: F.nll_loss(x.view(1, 3, 2, 2), bad(0, 1, 2, 3).view(1, 2, 2)),
}


@pytest.mark.parametrize("call", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_an_index_out_of_range_is_an_error_where_it_is_read(bystander, call):
    x = torch.arange(12.0, device="tpu").reshape(4, 3)
    with pytest.raises(IndexError, match=r"range|bounds|index|Target"):
        result = call(x)
        poisoned = result * 2  # goes on: the device has not looked yet
        poisoned.cpu()
    assert x.sum().item() == 66.0


def test_a_poisoned_tensor_stays_poisoned(bystander):
    table = torch.ones(3, 2, device="tpu")
    y = F.embedding(bad(3), table) + 1
    for _ in range(2):
        with pytest.raises((IndexError, RuntimeError), match=r"index out of range.*embedding"):
            y.tolist()
    with pytest.raises((IndexError, RuntimeError)):
        y.sum().item()
    assert table.tolist() == [[1.0, 1.0]] * 3
    torch.tpu.synchronize()


def test_a_fault_names_the_op_and_its_line(run_python, tmp_path):
    code = "import torch\nx = torch.ones(3, device='tpu')\ny = x[torch.tensor([5], device='tpu')]\ny.tolist()"
    done = run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path))
    assert done.stderr.splitlines()[-1].startswith("IndexError: ")
    assert "(in aten::index.Tensor, first called at <string>:3)" in done.stderr


def test_a_failed_write_leaves_other_storages_alone(bystander):
    x = torch.zeros(3, device="tpu")
    kept = x.clone()
    x[bad(5)] = 1.0
    with pytest.raises((IndexError, RuntimeError)):
        x.tolist()
    assert kept.tolist() == [0.0, 0.0, 0.0]


# ------------------------------------------------------------------ plugins

USE = "import torch\ntry:\n    torch.ones(2, device='tpu') + 1\nexcept RuntimeError as e:\n    print(e)\nprint('alive')"


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("/nowhere/plugin.so", ["no file", "pip install"]),
        ("no-such-package", ["no-such-package", "pip install"]),
        ("text", ["text.so", "invalid ELF header"]),
        ("foreign", ["GetPjrtApi"]),
    ],
)
def test_a_plugin_that_will_not_do_is_named_and_advised_on(run_python, tmp_path, library, words):
    if library == "text":
        library = str(tmp_path / "text.so")
        Path(library).write_text("this is no library\n" * 100)
    if library == "foreign":
        library = str(tmp_path / "foreign.so")
        source = tmp_path / "foreign.c"
        source.write_text("int nothing(void) { return 0; }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(source)], check=True)
    done = run_python(USE, TORCH_TPU_PJRT_PLUGIN=library)
    assert done.returncode == 0 and done.stdout.endswith("alive\n"), done.stderr
    for word in words:
        assert word in done.stdout, done.stdout
    assert "Traceback" not in done.stderr and "panicked" not in done.stderr


# ------------------------------------------------------------------ the plan cache

ADD = """
import torch
x = torch.arange(3.0, device="tpu")
print((x * 3 + 1).tolist())
"""
COUNT = ADD + "print(torch.tpu.compile_count())"
RIGHT = "[1.0, 4.0, 7.0]"


def test_a_cache_that_cannot_be_written_is_no_error(run_python, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    for place in (blocked / "cache", "/proc/torch_tpu"):
        done = run_python(ADD, TORCH_TPU_CACHE_DIR=str(place))
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, RIGHT, "")


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_damaged_entries_are_misses(run_python, tmp_path):
    first = run_python(COUNT, TORCH_TPU_CACHE_DIR=str(tmp_path))
    assert first.stdout.startswith(RIGHT), first.stderr
    found = entries(tmp_path)
    for path, other in zip(found, [*found[1:], found[0]]):
        kind, data = path.stat().st_ino % 5, bytearray(path.read_bytes())
        if kind == 0:  # a bit turned
            data[len(data) // 2] ^= 0x10
        elif kind == 1:  # half of it
            data = data[: len(data) // 2]
        elif kind == 2:  # a file made and never filled
            data = bytearray()
        elif kind == 3:  # no file of ours
            data = bytearray(b"\x7fELF" * 100)
        else:  # another entry's head
            data = bytearray(other.read_bytes()[:40]) + data[40:]
        path.write_bytes(data)
    again = run_python(COUNT, TORCH_TPU_CACHE_DIR=str(tmp_path))
    assert (again.returncode, again.stdout.split("\n")[0], again.stderr) == (0, RIGHT, "")
    assert run_python(COUNT, TORCH_TPU_CACHE_DIR=str(tmp_path)).stdout == f"{RIGHT}\n0\n"


def test_a_process_killed_while_it_writes_leaves_a_usable_cache(run_python, tmp_path):
    code = """
import torch
x = torch.arange(3.0, device="tpu")
print("started", flush=True)
n = 2
while True:
    torch.ones(n, device="tpu").cumsum(0)
    n += 1
"""
    env = {**os.environ, "TORCH_TPU_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"started\n"
        time.sleep(0.7)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    (tmp_path / "ab").mkdir(exist_ok=True)
    (tmp_path / "ab" / ".tmpQ1w2e3").write_bytes(b"tpuplan1 half an entry")
    assert run_python(COUNT, TORCH_TPU_CACHE_DIR=str(tmp_path)).stdout.startswith(RIGHT)
    assert run_python(COUNT, TORCH_TPU_CACHE_DIR=str(tmp_path)).stdout == f"{RIGHT}\n0\n"


def test_a_cache_size_of_zero_turns_the_disk_off(run_python, tmp_path):
    for _ in range(2):
        done = run_python(COUNT, TORCH_TPU_CACHE_DIR=str(tmp_path), TORCH_TPU_CACHE_SIZE="0")
        assert int(done.stdout.split("\n")[1]) > 0, done.stderr
    assert entries(tmp_path) == []


def test_a_size_that_is_none_is_explained(run_python):
    done = run_python("import torch; torch.ones(1, device='tpu')", TORCH_TPU_CACHE_SIZE="lots")
    assert "TORCH_TPU_CACHE_SIZE='lots' is not a size" in done.stderr


def test_a_second_process_compiles_nothing(run_python, tmp_path):
    code = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4))
model.to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(5, 8).to("tpu"), torch.tensor([0, 1, 2, 3, 0]).to("tpu")
for _ in range(3):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item(), torch.tpu.compile_count(), torch.tpu.fallbacks())
"""
    first, second = (run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path)).stdout.split() for _ in range(2))
    assert int(first[1]) > 0 and second == [first[0], "0", "{}"]


# ------------------------------------------------------------------ memory


def test_the_memory_limit_is_an_error_at_the_users_line(run_python):
    code = """
import traceback, torch
small = torch.arange(4.0, device="tpu")
kept = []
try:
    for _ in range(100):
        kept.append(torch.zeros(1024, 1024, device="tpu") + 1)
except torch.OutOfMemoryError as error:
    print(len(kept), "line 7, in" in traceback.format_exc(), error)
print(torch.tpu.memory_stats()["num_ooms"], small.tolist())
try:
    torch.ones(20 << 20).to("tpu")
except torch.OutOfMemoryError:
    print("upload")
del kept[4:]
print((kept[0][:256].clone() + small[1]).mean().item(), kept[3].sum().item())
kept.clear()
print(torch.tpu.memory_allocated() < 1 << 20, (torch.zeros(1024, 1024, device="tpu") + 1).sum().item())
"""
    done = run_python(code, TORCH_TPU_MEMORY_LIMIT="40M")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 5, done.stderr
    count, here, message = lines[0].split(" ", 2)
    assert 7 <= int(count) <= 10 and here == "True", lines[0]
    assert "40.00 MiB" in message and "4.00 MiB" in message, message
    assert lines[1] == "1 [0.0, 1.0, 2.0, 3.0]"
    assert lines[2:] == ["upload", "2.0 1048576.0", "True 1048576.0"]


def test_fallbacks_can_be_forbidden(run_python):
    code = """
import torch
x = torch.ones(3, device="tpu")
try:
    torch.ops.aten._linalg_eigvals(torch.eye(3, device="tpu"))
except NotImplementedError as error:
    print(error)
print((x + 1).tolist(), torch.tpu.fallbacks())
"""
    done = run_python(code, TORCH_TPU_FALLBACK="error")
    lines = done.stdout.splitlines()
    assert "aten::_linalg_eigvals would run on the CPU" in lines[0], done.stderr
    assert lines[1] == "[2.0, 2.0, 2.0] {}"


def test_overwriting_heals_a_failed_tensor():
    table = torch.arange(6.0, device="tpu").reshape(3, 2)
    failed = table.index_select(0, torch.tensor([0, 7]).to("tpu"))
    with pytest.raises((IndexError, RuntimeError)):
        failed.cpu()
    failed.zero_()
    assert failed.tolist() == [[0.0, 0.0], [0.0, 0.0]]
