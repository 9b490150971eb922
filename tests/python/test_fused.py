"""Fused eager: the same results as the CPU, no compiling from the fourth round of a loop on, bounded memory."""

import copy
import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

FUSED = torch.tpu.EagerMode.DEFER_AND_FUSE


@pytest.fixture(autouse=True)
def fused():
    with torch.tpu.set_eager_mode(FUSED):
        yield


def compiled() -> int:
    """Programs compiled so far, those under way included; cuts nothing."""
    while torch.tpu.cache_stats()["compiling"]:
        time.sleep(0.01)
    return torch.tpu.compile_count()


def compiles_after_third_round(one_round, rounds: int = 8) -> list[int]:
    """What rounds four and later compile, in a loop that runs on and in one that waits after each round."""
    counts = []
    for wait in (False, True):
        for k in range(rounds):
            one_round(k)
            if wait:
                torch.tpu.synchronize()
            if k == 2:
                before = compiled()
        counts.append(compiled() - before)
        torch.tpu.synchronize()
    return counts


NOTHING = [0, 0]


def model(seed: int = 0, width: int = 16) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(8, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, width),
        nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4),
    )  # fmt: skip
    return net.to("tpu")


# ---------------------------------------------------------------- the same results


def _scale(pool, i, j, draw):
    pool.append(pool[i] * draw)


def _add(pool, i, j, draw):
    pool.append(pool[i] + pool[j])


def _matmul(pool, i, j, draw):
    pool.append(pool[i] @ pool[j].t() * 0.1)


def _in_place(pool, i, j, draw):
    pool[i].mul_(draw).add_(pool[j].clone())


def _row(pool, i, j, draw):
    pool[i][1] = pool[j][2].clone()


def _column(pool, i, j, draw):
    pool[i][:, 1].add_(pool[j].select(1, 0).clone())


def _transposed(pool, i, j, draw):
    pool[i].t().mul_(draw)


def _view(pool, i, j, draw):
    pool.append(pool[i].t())


def _reduce(pool, i, j, draw):
    pool.append(pool[i].softmax(1) + pool[j].mean())


def _gradient(pool, i, j, draw):
    x = pool[i].detach().clone().requires_grad_()
    (x.tanh() * pool[j].detach()).sum().backward()
    pool.append(x.grad)


def _drop(pool, i, j, draw):
    if len(pool) > 3:
        del pool[i]


def _copy(pool, i, j, draw):
    pool[i].copy_(pool[j].clone())


STEPS = [_scale, _add, _matmul, _in_place, _row, _column, _transposed, _view, _reduce, _gradient, _drop, _copy]
step = st.tuples(st.sampled_from(STEPS), st.integers(0, 99), st.integers(0, 99), st.sampled_from([0.5, -1.0, 0.9]))


def run(device: str, program, reads: set[int]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    pool = [torch.randn(4, 4).to(device) for _ in range(3)]
    for k, (action, i, j, draw) in enumerate(program):
        action(pool, i % len(pool), j % len(pool), draw)
        if k in reads:
            pool[-1].cpu()
    return [t.cpu() for t in pool]


@settings(max_examples=25, deadline=None)
@given(st.lists(step, min_size=5, max_size=120), st.sets(st.integers(0, 119), max_size=3))
def test_random_programs_agree_with_the_cpu(program, reads):
    for got, want in zip(run("tpu", program, reads), run("cpu", program, reads), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_random_numbers_are_those_of_strict():
    def draw():
        torch.manual_seed(3)
        x = torch.rand(5, device="tpu") + torch.randn(5, device="tpu")
        return F.dropout(x, 0.5).cpu()

    mine = draw()
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER):
        assert torch.equal(mine, draw())


def test_threads_agree_with_the_cpu():
    def work(seed: int, device: str) -> torch.Tensor:
        x = torch.randn(6, 6, generator=torch.Generator().manual_seed(seed)).to(device)
        for _ in range(60):
            x = (x @ x.t()).tanh() + x[:, :1] * 0.5
        return x.cpu()

    got: dict[int, torch.Tensor] = {}
    threads = [threading.Thread(target=lambda s=s: got.update({s: work(s, "tpu")})) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, value in got.items():
        torch.testing.assert_close(value, work(seed, "cpu"), rtol=1e-4, atol=1e-4)
    assert len(got) == 4


def test_a_mistake_is_raised_where_it_is_made_and_nothing_is_lost():
    x = torch.ones(3, device="tpu") * 2
    with pytest.raises(RuntimeError, match="size of tensor"):
        x + torch.ones(4, device="tpu")
    bad = torch.ones(3, device="tpu")[torch.tensor([7], device="tpu")]
    good = x + 1
    assert good.tolist() == [3.0, 3.0, 3.0]
    with pytest.raises(IndexError):
        bad.cpu()
    assert (x * 2).tolist() == [4.0, 4.0, 4.0]


# ---------------------------------------------------------------- loops


def train(net: nn.Module, optimizer, batch: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(net(batch), target)
    loss.backward()
    optimizer.step()
    return loss


DATA = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(4, (32,), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_training(kind, read):
    net = model()
    optimizer = kind(net.parameters(), lr=0.01)
    x, y = DATA.to("tpu"), TARGET.to("tpu")

    def one_round(_):
        for _ in range(3):
            loss = train(net, optimizer, x, y)
            if read:
                loss.item()

    assert compiles_after_third_round(one_round) == NOTHING


def test_learning_rate_schedule_and_loss_scale():
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    x, y = DATA.to("tpu"), TARGET.to("tpu")

    def one_round(k):
        optimizer.zero_grad()
        (F.cross_entropy(net(x), y) * (1.5 + k)).backward()
        optimizer.step()
        schedule.step()

    assert compiles_after_third_round(one_round) == NOTHING


def test_gradient_accumulation_and_evaluation():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = DATA.to("tpu"), TARGET.to("tpu")

    def one_round(_):
        net.train()
        optimizer.zero_grad()
        for _ in range(4):
            F.cross_entropy(net(x), y).backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            (net(x).argmax(1) == y).float().mean().item()

    assert compiles_after_third_round(one_round) == NOTHING


def test_two_models_and_two_optimizers():
    maker, judge = nn.Linear(4, 8).to("tpu"), model(1)
    makes, judges = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    x, noise = DATA.to("tpu"), DATA[:, :4].contiguous().to("tpu")

    def one_round(_):
        judges.zero_grad()
        (judge(x).mean() - judge(maker(noise).detach()).mean()).backward()
        judges.step()
        makes.zero_grad()
        judge(maker(noise)).mean().backward()
        makes.step()

    assert compiles_after_third_round(one_round) == NOTHING


def test_a_short_last_batch_is_one_shape_more():
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    x, y = DATA.to("tpu"), TARGET.to("tpu")

    def one_round(_):
        for a, b in ((0, 12), (12, 24), (24, 32)):
            train(net, optimizer, x[a:b], y[a:b]).item()

    assert compiles_after_third_round(one_round) == NOTHING


def test_a_growing_cache_compiles_for_its_shapes_only():
    layer = nn.Linear(8, 8).to("tpu")

    def one_round(_):
        with torch.no_grad():
            keys = torch.zeros(1, 0, 8, device="tpu")
            token = torch.ones(1, 1, 8, device="tpu")
            for _ in range(12):
                keys = torch.cat((keys, layer(token)), 1)
                token = F.scaled_dot_product_attention(token, keys, keys)
                token.sum().item()

    assert compiles_after_third_round(one_round, rounds=6) == NOTHING


def test_an_exception_in_the_middle_of_a_step():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = DATA.to("tpu"), TARGET.to("tpu")

    def one_round(_):
        train(net, optimizer, x, y)
        with pytest.raises(RuntimeError):
            net(x[:, :5])
        train(net, optimizer, x, y)

    assert compiles_after_third_round(one_round) == NOTHING


def test_training_agrees_with_the_cpu():
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    mine = copy.deepcopy(net).to("tpu")
    theirs, ours = torch.optim.AdamW(net.parameters(), lr=0.01), torch.optim.AdamW(mine.parameters(), lr=0.01)
    for _ in range(20):
        want = train(net, theirs, DATA, TARGET)
        got = train(mine, ours, DATA.to("tpu"), TARGET.to("tpu"))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- bounds


def test_many_ops_without_a_read_stay_in_bounded_memory():
    import resource

    x = torch.zeros(16, device="tpu")
    for _ in range(20_000):
        x = x + 1
    torch.tpu.synchronize()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(980_000):
        x = x + 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert x[0].item() == 1_000_000
    assert grown < 64 << 10, f"{grown} KiB for 64 million bytes of results"


def test_what_a_step_overwrites_is_donated():
    torch.tpu.synchronize()
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to("tpu")
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randn(16, 512, device="tpu")

    def one_step():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    for _ in range(6):
        one_step()
        torch.tpu.synchronize()
    gc.collect()
    with torch.tpu.explain() as what:
        one_step()
    written = sum(p.numel() * 4 for p in net.parameters()) * 3  # parameters and two moments
    donated = sum(s.get("donated", 0) for s in what.segments)
    assert donated >= 0.99 * written, what


def test_synchronize_waits_for_what_is_compiled_in_the_background():
    def one_round():
        x = torch.ones(7, 5, device="tpu")
        for _ in range(20):
            x = (x * 1.01).sin() + x.cos()
        return x

    for _ in range(3):
        kept = one_round()
        torch.tpu.synchronize()
    with torch.tpu.explain() as what:
        kept = one_round()
    assert kept.shape == (7, 5)
    assert what.compiled == 0
    assert all(s["singly"] == 0 for s in what.segments), what


# ---------------------------------------------------------------- seeing it


def test_explain_tells_segments_lines_and_changes():
    def work(n: int):
        x = torch.full((n, 3), 0.5, device="tpu")
        y = (x * 1.5).exp()
        return (y + x).sum().item()

    with torch.tpu.explain() as what:
        for n in (5, 5, 6):
            work(n)
    assert [s["times"] for s in what.segments] == [2, 1]
    first, second = what.segments
    assert [name for name, _ in first["ops"]][1:3] == ["aten::mul.Tensor", "aten::exp"]
    assert all(Path(__file__).name in site for _, site in first["ops"])
    assert first["ended_by"] == {"read": 2}
    assert "[5, 3] and is" in second["change"] or "was" in second["change"]
    text = str(what)
    assert "read" in text and "different" in text


def test_explain_command(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "torch.tpu.eager_mode = torch.tpu.EagerMode.DEFER_AND_FUSE\n"
        "x = torch.ones(3, device='tpu')\n"
        "print((x * 2 + 1).tolist(), sys.argv[1])\n"
    )
    command = [sys.executable, "-m", "torch_tpu", "explain", "--json", tmp_path / "out.json", script, "word"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[3.0, 3.0, 3.0] word" in done.stdout and "segments" in done.stdout
    segments = json.loads((tmp_path / "out.json").read_text())
    assert any(len(s["ops"]) > 1 for s in segments)
