"""Results whose sizes are data: they stay on the device, in few programs, whatever the counts."""

import math

import pytest
import torch
from torch_tpu import _C

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@pytest.fixture(autouse=True)
def at_home(monkeypatch):
    monkeypatch.setenv("TORCH_TPU_FALLBACK", "error")


def flat(value) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in flat(v)]


def check(call, *tensors: torch.Tensor) -> None:
    want = flat(call(*tensors))
    got = flat(call(*(t.to("tpu") for t in tensors)))
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert g.device.type == "tpu"
        torch.testing.assert_close(g.cpu(), w, equal_nan=True, check_stride=False)


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2 if dtype == torch.bool else 4, shape, generator=g).to(dtype)


def mask(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4


CALLS = {
    "nonzero": lambda x: (x.nonzero(), torch.argwhere(x), *torch.nonzero(x, as_tuple=True)),
    "masked_select": lambda x: torch.masked_select(x, mask(*x.shape).to(x.device)),
    "mask": lambda x: x[mask(*x.shape).to(x.device)],
    "row mask": lambda x: x[mask(x.shape[0]).to(x.device)],
    "column mask": lambda x: x[:, mask(x.shape[1]).to(x.device)],
    "last mask": lambda x: x[..., mask(x.shape[-1]).to(x.device)],
    "inner mask": lambda x: x[:, mask(*x.shape[1:]).to(x.device)],
    "mask on the host": lambda x: x[mask(*x.shape)],
    "mask and number": lambda x: x[mask(*x.shape[:2]).to(x.device), 1],
    "unique": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "unique rows": lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True),
    "unique columns": lambda x: torch.unique(x, dim=1, return_counts=True),
    "consecutive": lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    "consecutive columns": lambda x: torch.unique_consecutive(x[:, :, :1], dim=1, return_inverse=True),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype):
    x = values(3, 5, 4, dtype=dtype)
    for call in CALLS.values():
        check(call, x)


@pytest.mark.parametrize("name", CALLS)
def test_views_are_read_as_what_they_show(name):
    check(CALLS[name], values(8, 5, 3)[::2].transpose(0, 2))


def test_nothing_and_scalars():
    for x in (torch.zeros(0), torch.zeros(0, 3), torch.zeros(4), torch.zeros(3, 0, 2)):
        check(lambda x: (x.nonzero(), x[x > 0], torch.masked_select(x, x > 0), torch.unique(x, return_inverse=True)), x)
    for x in (torch.tensor(3.0), torch.tensor(0.0)):
        check(lambda x: (x.nonzero(), x[x > 0], torch.masked_select(x, x > 0), torch.unique(x, return_inverse=True)), x)
    check(lambda x: torch.unique(x, dim=0, return_inverse=True), torch.zeros(0, 3))
    assert torch.tensor(2.0, device="tpu").is_nonzero()


def test_nan_equals_nothing():
    x = torch.tensor([math.nan, 1.0, math.nan, -0.0, 0.0, math.inf, 1.0])
    check(lambda x: torch.unique(x, return_counts=True), x)
    check(lambda x: torch.unique_consecutive(torch.cat([x, x[:1], x[:1]]), return_counts=True), x)


def test_counts_and_repeats():
    x = values(40, dtype=torch.int64)
    check(torch.bincount, x)
    check(lambda x: torch.bincount(x, minlength=9), x)
    check(torch.bincount, x, torch.rand(40))
    check(torch.bincount, x, torch.rand(40).half())
    check(torch.bincount, x[:0])
    check(torch.repeat_interleave, x)
    check(lambda t, n: t.repeat_interleave(n, dim=0), torch.rand(40, 2), x)
    check(lambda t, n: t.repeat_interleave(n, dim=0, output_size=int(x.sum())), torch.rand(40, 2), x)


def test_writing_through_masks():
    def put(x, m, v):
        a, b, c, d, e = (x.clone() for _ in range(5))
        a[m] = 7
        b[:, m[0]] = v[:, : int(m[0].sum())]
        c[m] += 1
        d[m, None] = 3
        e[:, m[0], None] = v[:, :1, None]
        return a, b, c, d, e, torch.where(m, x, 0)

    check(put, values(4, 6), mask(4, 6), torch.rand(4, 6))

    def mixed(x, m, i):
        x = x.clone()
        x[m, :, i] = 5
        x[m] = x[m] * 2
        return x, x[m, 0], x[m, :, i]

    check(mixed, values(4, 3, 6), torch.tensor([True, False, True, True]), torch.tensor([1, 5, 0]))


def test_a_number_through_a_mask_needs_no_answer_of_the_device(eager_mode):
    x, m = torch.rand(16, device="tpu"), torch.rand(16, device="tpu") > 0.5
    torch.tpu.eager_mode = torch.tpu.EagerMode.DEFER_AND_FUSE
    torch.tpu.synchronize()
    before = _C.compile_count()
    x[m] = 1.0
    x.masked_fill_(m, 3.0)
    x.masked_scatter_(m, torch.ones(16, device="tpu"))
    assert _C.compile_count() == before, "something was read, so what was recorded had to run"
    assert (x[m] == 1).all()


def test_gradients():
    def f(x, m):
        x = x.clone().requires_grad_()
        y = (x[m] ** 2).sum() + torch.masked_select(x, m).sum() * 3 + x[:, m[0]].prod()
        return torch.autograd.grad(y, x)[0]

    check(f, torch.rand(4, 6) + 0.5, mask(4, 6))


def test_results_are_ordinary_tensors():
    x = values(6, 5).to("tpu")
    y = x[x > 1]
    assert y.untyped_storage().nbytes() == y.numel() * 4
    y.add_(1)
    y[0] = 9
    torch.testing.assert_close(y.cpu()[1:], (x.cpu()[x.cpu() > 1] + 1)[1:])
    assert y.view(-1, 1).shape == (y.numel(), 1) and y.sort().values[-1] == 9
    z = x.nonzero()
    z.zero_()
    assert z.sum() == 0
    z.resize_(2, 2)
    assert z.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, out: torch.nonzero(x, out=out(torch.int64)),
        lambda x, out: torch.masked_select(x, x > 1, out=out(x.dtype)),
    ],
)
def test_out(call):
    x = values(6, 5)

    def run(device, dtype=None, n=0):
        return call(x.to(device), lambda t: torch.empty(n, dtype=dtype or t, device=device))

    assert torch.equal(run("tpu").cpu(), run("cpu"))
    with pytest.warns(UserWarning, match="was resized"):
        assert torch.equal(run("tpu", n=3).cpu(), run("cpu"))
    with pytest.raises(RuntimeError, match="scalar type"):
        run("tpu", torch.int16)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, n: (x < n).nonzero(),
        lambda x, n: x[x < n],
        lambda x, n: x.view(-1, 8)[:, x[:8] < n],
        lambda x, n: torch.unique(x.clamp(max=n), return_inverse=True, return_counts=True),
        lambda x, n: torch.bincount(x.clamp(max=n)),
        lambda x, n: torch.repeat_interleave((x < n).long()),
    ],
)
def test_few_programs_serve_all_counts(call):
    length = 512
    x = torch.randperm(length).to("tpu")
    call(x, 7)
    before = _C.compile_count()
    counts = range(1, length, 23)
    for n in counts:
        call(x, n)
    programs = _C.compile_count() - before
    assert programs <= math.log2(length) + 1 < len(counts)


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.bincount(torch.tensor([-1, 2], device=d)),
        lambda d: torch.repeat_interleave(torch.tensor([1, -2], device=d)),
        lambda d: torch.eye(3, device=d)[torch.ones(3, device=d).bool(), torch.tensor([True, True, False], device=d)],
    ],
)
def test_errors_come_at_the_call(call, monkeypatch):
    monkeypatch.setenv("TORCH_TPU_FALLBACK", "silent")
    with pytest.raises(Exception) as want:
        call("cpu")
    with pytest.raises(want.type) as got:
        call("tpu")
    assert str(want.value).splitlines()[0] in str(got.value)
