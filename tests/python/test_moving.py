"""Views that walk along a storage: one program for all places, and the right elements at each."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

MODES = [torch.tpu.EagerMode.DEFER_NEVER, torch.tpu.EagerMode.DEFER_AND_FUSE]
pytestmark = pytest.mark.usefixtures("eager_mode")


def compiled(work) -> int:
    torch.accelerator.synchronize()
    before = torch.tpu.compile_count()
    work()
    torch.accelerator.synchronize()
    return torch.tpu.compile_count() - before


LOOPS = {
    "row": lambda x, z, i: x[i] + 1,
    "rows": lambda x, z, i: torch.relu(x[4 * i : 4 * i + 4]),
    "column": lambda x, z, i: x[:, i].exp(),
    "every second column": lambda x, z, i: x[:, i : i + 8 : 2] * 3,
    "beside another": lambda x, z, i: torch.cat([z[:4], x[i : i + 4]]),
    "product": lambda x, z, i: x[i : i + 4] @ z.mT,
    "write a row": lambda x, z, i: x[i].copy_(z[0]),
    "write a column": lambda x, z, i: x[:, i].add_(1),
    "two at a time": lambda x, z, i: x[i] + x[i + 7],
    "from one to another": lambda x, z, i: x[i].copy_(x[i + 9]),
    "across rows": lambda x, z, i: x.view(-1)[i * 9 : i * 9 + 100] + 1,
    "windows": lambda x, z, i: x.view(-1)[5 * i : 5 * i + 60].unfold(0, 6, 3) * 2,
    "repeated": lambda x, z, i: x[i].expand(100, 40) + 1,
    "steps": lambda x, z, i: x[i::2][:10].mul_(2),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_along_a_storage_compiles_no_more_after_three_rounds(mode, loop):
    torch.tpu.eager_mode = mode
    f = LOOPS[loop]
    torch.manual_seed(0)
    want, rows = torch.rand(80, 40), torch.rand(8, 40)
    x, z = want.to("tpu"), rows.to("tpu")

    def turn(rounds):
        for i in rounds:
            torch.testing.assert_close(f(x, z, i).cpu(), f(want, rows, i))

    turn(range(3))
    assert compiled(lambda: turn(range(3, 16))) == 0
    assert compiled(lambda: turn(range(16))) == 0
    torch.testing.assert_close(x.cpu(), want)


@pytest.mark.parametrize("mode", MODES)
def test_batches_cut_from_a_data_set_on_the_device(mode):
    torch.tpu.eager_mode = mode
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    data, labels = torch.rand(480, 12, device="tpu"), torch.randint(3, (480,), device="tpu")

    def epoch(batches):
        for i in batches:
            optimizer.zero_grad()
            part = slice(i * 24, (i + 1) * 24)
            torch.nn.functional.cross_entropy(model(data[part]), labels[part]).backward()
            optimizer.step()
        torch.accelerator.synchronize()

    epoch(range(4))
    epoch(range(4))
    assert compiled(lambda: epoch(range(20))) == 0


def test_a_storage_that_grows_into_use():
    """Places of a storage never written: it has no layout before its first write."""
    for _ in range(2):
        x = torch.empty(9, 5, device="tpu")
        for i in range(9):
            x[i] = float(i)
        assert x.cpu().tolist() == [[float(i)] * 5 for i in range(9)]


@st.composite
def walks(draw):
    """Sizes of a storage, and a kind of view with several places."""
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    numel = torch.Size(sizes).numel()
    rank = draw(st.integers(0, 3))
    shape = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    strides = draw(st.lists(st.integers(0, 9), min_size=rank, max_size=rank))
    reach = sum((n - 1) * s for n, s in zip(shape, strides)) + 1
    if reach > numel:
        shape, strides, reach = [], [], 1
    offsets = draw(st.lists(st.integers(0, numel - reach), min_size=3, max_size=8))
    return sizes, shape, strides, offsets


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(walks(), st.sampled_from([torch.float32, torch.int64, torch.bool]))
def test_every_place_of_any_view_reads_and_writes_right(walk, dtype):
    sizes, shape, strides, offsets = walk
    want = torch.randint(0, 2 if dtype is torch.bool else 50, sizes).to(dtype)
    x = want.to("tpu")
    alone = all(s for n, s in zip(shape, strides) if n > 1)
    for offset in offsets:
        there, here = (t.as_strided(shape, strides, offset) for t in (x, want))
        assert there.clone().tolist() == here.clone().tolist()
        if alone and len(set(torch.arange(10**4).as_strided(shape, strides).flatten().tolist())) == here.numel():
            there.logical_not_(), here.logical_not_()
            assert x.cpu().tolist() == want.tolist()


def test_batches_of_a_compiled_model():
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    data = torch.rand(240, 12)
    want = [model(data[i : i + 24]) for i in range(0, 240, 24)]
    run, there = torch.compile(model.to("tpu")), data.to("tpu")

    def turn():
        for i, w in enumerate(want):
            got = run(there[24 * i : 24 * i + 24])
            torch.testing.assert_close(got.cpu(), w)
            if i == 3:
                got.sum().backward()

    turn()
    turn()  # gradients are added up from here on
    assert compiled(turn) == 0


def test_batches_of_a_compiled_model_in_inference_mode():
    model, data = torch.nn.Linear(12, 3), torch.rand(240, 12)
    with torch.inference_mode():
        want = [model(data[i : i + 24]) for i in range(0, 240, 24)]
        run, there = torch.compile(model.to("tpu")), data.to("tpu")
        for i in range(4):
            run(there[24 * i : 24 * i + 24])

        def turn():
            for i, w in enumerate(want):
                torch.testing.assert_close(run(there[24 * i : 24 * i + 24]).cpu(), w)

        turn()
        assert compiled(turn) == 0


def test_a_compiled_function_that_writes_its_input_or_returns_a_view_of_it():
    @torch.compile
    def f(x, y):
        y.add_(1)
        return x[1:], x * 2

    x, y = torch.rand(12, 4, device="tpu"), torch.zeros(12, 4, device="tpu")
    for i in range(10):
        part, twice = f(x[i : i + 2], y[i : i + 2])
        assert part.data_ptr() == x[i + 1].data_ptr() and part.tolist() == x[i + 1 : i + 2].tolist()
        assert twice.tolist() == (2 * x[i : i + 2]).tolist()
    assert y[:, 0].tolist() == [1] + 9 * [2] + [1, 0]
