"""Threads, forks, Ctrl-C and the end of the process."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

EagerMode = torch.tpu.EagerMode


def together(work, n: int = 8) -> list:
    """Runs `work(i)` on n threads that start at once; what they gave, in order. Raises what one of them raised."""
    gate, results, errors = threading.Barrier(n), [None] * n, []

    def run(i: int) -> None:
        try:
            gate.wait()
            results[i] = work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results


def chain(device: str, i: int) -> list[torch.Tensor]:
    x = torch.arange(12, dtype=torch.int32, device=device).reshape(3, 4) + i
    base = x.clone()
    for k in range(25):
        view = base.t()[1:, ::2]
        view.add_(k)
        base[k % 3] = x[(k + 1) % 3] * 2
        x = torch.cat([base[1:], x[:1]]) - base.sum().remainder(7).to(torch.int32)
        base.view(-1)[k % 12].zero_()
    return [x.cpu(), base.cpu()]


@pytest.mark.parametrize("mode", list(EagerMode))
def test_eight_threads_compute_what_one_computes(eager_mode, mode):
    torch.tpu.eager_mode = mode
    got = together(lambda i: chain("tpu", i))
    for i, tensors in enumerate(got):
        for a, b in zip(tensors, chain("cpu", i)):
            assert torch.equal(a, b)


def test_threads_may_read_and_write_one_storage():
    x = torch.zeros(8, 100, dtype=torch.int64, device="tpu")
    shared = torch.arange(100, device="tpu")

    def work(i: int) -> None:
        for _ in range(20):
            x[i].add_(shared)

    together(work)
    # rows of one storage: each write makes a new value of the whole, so none may be lost
    assert torch.equal(x.cpu(), torch.arange(100).mul(20).expand(8, 100))


def test_backward_in_threads():
    weight = torch.arange(6.0).reshape(2, 3)

    def gradient(device: str, i: int) -> torch.Tensor:
        w = weight.clone().to(device).requires_grad_()
        x = torch.full((4, 2), float(i), device=device)
        for _ in range(5):
            (x @ w).square().sum().backward()
        return w.grad.cpu()

    for i, grad in enumerate(together(lambda i: gradient("tpu", i))):
        assert torch.equal(grad, gradient("cpu", i))


def test_generators_in_threads():
    def draw(i: int) -> torch.Tensor:
        generator = torch.Generator("tpu").manual_seed(i)
        return torch.cat([torch.rand(4, device="tpu", generator=generator).cpu() for _ in range(10)])

    alone = [draw(i) for i in range(8)]
    for a, b in zip(together(draw), alone):
        assert torch.equal(a, b)
    # the default generator is one for all: no two draws may be the same
    torch.manual_seed(1)
    draws = together(lambda i: [torch.rand(4, device="tpu").cpu() for _ in range(10)])
    rows = torch.stack([t for thread in draws for t in thread])
    assert len(rows.unique(dim=0)) == 80
    torch.manual_seed(1)
    in_turn = torch.stack([torch.rand(4, device="tpu").cpu() for _ in range(80)])
    assert torch.equal(rows.flatten().sort()[0], in_turn.flatten().sort()[0])


@pytest.mark.parametrize("mode", list(EagerMode))
def test_random_numbers_do_not_depend_on_the_mode(eager_mode, mode):
    def draw() -> list[torch.Tensor]:
        torch.manual_seed(11)
        x = torch.rand(5, device="tpu")
        y = torch.randn(3, 3, device="tpu")
        z = torch.nn.functional.dropout(torch.ones(40, device="tpu"), 0.5)
        return [t.cpu() for t in (x, y, z, torch.randperm(9, device="tpu"), torch.randint(0, 99, (6,), device="tpu"))]

    torch.tpu.eager_mode = EagerMode.DEFER_NEVER
    expected = draw()
    torch.tpu.eager_mode = mode
    for a, b in zip(draw(), expected):
        assert torch.equal(a, b)


def test_errors_belong_to_their_thread():
    def work(i: int) -> str:
        table = torch.ones(3, 2, device="tpu")
        index = torch.tensor([i], device="tpu")
        try:
            return str(torch.nn.functional.embedding(index, table).tolist())
        except (IndexError, RuntimeError):
            return "refused"

    assert together(work) == ["[[1.0, 1.0]]"] * 3 + ["refused"] * 5


# ------------------------------------------------------------------ forks

FORK = """
import os, sys, torch
{before}
child = os.fork()
if child == 0:
    {in_child}
    sys.exit(0)
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status), flush=True)
x = torch.ones(2, device="tpu") + 1
print(x.tolist())
"""


USES = [
    "x + 1",
    "x.cpu()",
    "x.add_(1)",
    "torch.ones(2).to('tpu')",
    "torch.empty(2, device='tpu')",
    "torch.tpu.synchronize()",
    "print(x)",
    "torch.rand(2, device='tpu')",
    "torch.tpu.Event().record()",
    "x[0].item()",
    "x.resize_(5)",
    "x.untyped_storage().resize_(100)",
]


def test_a_forked_child_is_told_what_to_do(run_python):
    in_child = f"""
    for use in {USES!r}:
        try:
            exec(use)
            print("no error:", use)
        except RuntimeError as error:
            print(error)
    view = x[:1]
    del x, view
    sys.stdout.flush()"""
    code = FORK.format(before="x = torch.ones(2, device='tpu') + 1\nx.cpu()", in_child=in_child)
    done = run_python(code, timeout=60)
    lines = done.stdout.splitlines()
    for use, line in zip(USES, lines):
        assert "Cannot re-initialize TPU in forked subprocess" in line and "spawn" in line, (use, line)
    assert lines[len(USES) :] == ["child 0", "[2.0, 2.0]"] and done.stderr == "", done.stderr


def test_a_fork_before_the_first_use_is_fine(run_python):
    code = FORK.format(before="", in_child="print((torch.ones(2, device='tpu') + 1).tolist(), flush=True)")
    done = run_python(code, timeout=60)
    assert done.stdout.splitlines() == ["[2.0, 2.0]", "child 0", "[2.0, 2.0]"], done.stderr


def test_a_fork_while_threads_work_leaves_the_parent_alone(run_python):
    code = """
import os, threading, torch
stop = False
def work():
    x = torch.zeros(64, device="tpu")
    while not stop:
        x.add_(1)
    return x.cpu()
threads = [threading.Thread(target=work) for _ in range(3)]
for t in threads: t.start()
codes = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        y = torch.ones(3) + 1
        os._exit(int(y.sum().item()))
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop = True
for t in threads: t.join()
print(set(codes))
"""
    done = run_python(code, timeout=60)
    assert (done.stdout, done.stderr) == ("{6}\n", "")


# ------------------------------------------------------------------ Ctrl-C

# A segment of many sorts and scans: one program that takes seconds to compile.
SLOW = """
def slow():
    torch.tpu.eager_mode = torch.tpu.EagerMode.DEFER_AND_FUSE
    x = torch.ones(48, 48, device="tpu")
    for i in range(60):
        x = torch.sort(x + i, dim=i % 2)[0].cumsum(i % 2).sort(dim=1 - i % 2)[0]
    return x
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_during_a_long_wait(tmp_path):
    code = """
import signal, time, torch
# whoever runs the tests in the background may have it ignored, which children inherit
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.ones(1, device="tpu").cpu()
y = torch.full((2000, 2000), 1e-3, device="tpu")
for _ in range(30):
    y = y @ y
print("waiting", flush=True)
begin = time.monotonic()
try:
    y.cpu()
    print("not interrupted", time.monotonic() - begin, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print((torch.ones(2) + 1).tolist(), flush=True)
print(y.shape, y.cpu().shape, flush=True)
"""
    env = {**os.environ, "TORCH_TPU_CACHE_DIR": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.2)
    begin = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"
    assert time.monotonic() - begin < 3  # the whole wait takes longer
    assert child.stdout.read().splitlines() == ["[2.0, 2.0]", "torch.Size([2000, 2000]) torch.Size([2000, 2000])"]
    assert child.wait() == 0


# ------------------------------------------------------------------ the end

ENDS = {
    "queued work": "x = torch.ones(64, 64, device='tpu')\nfor _ in range(500): x = x @ x * 1e-3",
    "a live graph": "x = torch.ones(3, device='tpu', requires_grad=True)\n"
    "y = (x * 2).exp().sum()\ny.backward()\nz = x.grad * y",
    "a compile under way": SLOW + "y = slow()\ntorch.tpu.eager_mode = torch.tpu.EagerMode.DEFER_NEVER",
    "a module of a global": "m = torch.nn.Linear(4, 4).to('tpu')\no = torch.optim.AdamW(m.parameters())\n"
    "m(torch.ones(2, 4, device='tpu')).sum().backward()\no.step()",
    "a poisoned tensor": "x = torch.ones(3, device='tpu')[torch.tensor([7], device='tpu')]",
    "a cycle": "class A: pass\na = A(); a.a = a; a.x = torch.ones(3, device='tpu') + 1",
    "an event": "x = torch.ones(64, 64, device='tpu') @ torch.ones(64, 64, device='tpu')\n"
    "e = torch.tpu.Event(); e.record()",
    "an open segment": "torch.tpu.eager_mode = torch.tpu.EagerMode.DEFER_AND_FUSE\nx = torch.ones(3, device='tpu') * 5",
    "sys.exit": "x = torch.ones(64, device='tpu') + 1\nimport sys; sys.exit(0)",
}


@pytest.mark.parametrize("work", ENDS.values(), ids=ENDS)
def test_the_interpreter_ends_quickly_and_silently(run_python, tmp_path, work):
    watch = "\nimport time\nprint(time.time(), flush=True)"
    head, _, tail = work.rpartition("\n")
    # the clock starts at the last statement that is the script's own
    code = f"import torch\n{head}{watch}\n{tail}"
    done = run_python(code, timeout=100, TORCH_TPU_CACHE_DIR=str(tmp_path))
    took = time.time() - float(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert took < 15  # a wait that never ends is what this is about


def test_a_forked_child_reads_memory_figures_and_has_none(run_python):
    done = run_python("""
import os, signal, torch
x = torch.ones(4, device="tpu")
assert torch.tpu.memory_allocated() >= 16
child = os.fork()
if child == 0:
    signal.alarm(20)
    torch.tpu.reset_peak_memory_stats()
    os._exit(torch.tpu.memory_allocated() + torch.tpu.max_memory_allocated())
print(os.waitpid(child, 0)[1])
""")
    assert done.stdout.strip() == "0", done.stdout + done.stderr
