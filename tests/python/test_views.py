"""Views, writes through them and storages: the device beside the CPU, bit for bit.

The property runs one random program on both: ops, views and writes on a small population of tensors. Every live tensor
must end with the same bits, geometry and storage sharing; what the CPU refuses, the device refuses in the same words.
"""

import itertools
import warnings

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch._prims_common import is_non_overlapping_and_dense_or_false

EagerMode = torch.tpu.EagerMode
INTS = [torch.int16, torch.uint8, torch.int32, torch.int64]
LIVE = 6


def first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]


def pattern(dtype: torch.dtype, *shape: int, step: int = 3) -> torch.Tensor:
    """Small whole numbers of both signs: sums and products of them are exact in every dtype here."""
    n = torch.Size(shape).numel()
    values = (torch.arange(n) * step) % 11 - 4
    if dtype == torch.bool:
        return (values > 0).reshape(shape)
    if dtype == torch.uint8:
        return values.abs().to(dtype).reshape(shape)
    if dtype.is_complex:
        return torch.complex(values.float(), (values.flip(0) + 1).float()).to(dtype).reshape(shape)
    return values.to(dtype).reshape(shape)


def bits(t: torch.Tensor) -> bytes:
    plain = t.detach().cpu().resolve_conj().resolve_neg()
    # not even the CPU agrees with itself on the sign of a zero: its vectors and its scalars negate differently
    return (plain if plain.dtype in (*INTS, torch.bool) else plain + 0).numpy().tobytes()


def strides(t: torch.Tensor) -> list[int]:
    """The strides that lead somewhere."""
    return [stride for stride, n in zip(t.stride(), t.shape) if n > 1 and t.numel()]


def same(host: torch.Tensor, dev: torch.Tensor) -> None:
    for what in (lambda t: (t.dtype, t.shape, t.is_conj(), t.is_neg(), t.storage_offset(), t.requires_grad), strides):
        assert what(dev) == what(host)
    assert dev.device.type == "tpu"
    assert dev.untyped_storage().nbytes() == host.untyped_storage().nbytes()
    assert bits(dev) == bits(host), f"\n{dev.cpu()}\n{host}"


def same_world(hosts: list[torch.Tensor], devs: list[torch.Tensor]) -> None:
    for host, dev in zip(hosts, devs):
        same(host, dev)

    def sharing(ts: list[torch.Tensor]) -> list[bool]:
        homes = [t.untyped_storage()._cdata for t in ts]
        return [a == b for a, b in itertools.combinations(homes, 2)]

    assert sharing(devs) == sharing(hosts)


def dim(t: torch.Tensor, a: int) -> int:
    return a % t.dim() if t.dim() else 0


def part(t: torch.Tensor, a: int, b: int) -> tuple[int, int, int]:
    """A dimension, and start and length of a non-empty piece of it."""
    d = dim(t, a)
    n = t.size(d)
    start = b % n
    return d, start, 1 + (a + b) % (n - start)


def one(t: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    """A number of another tensor."""
    return o.reshape(-1)[:1].to(t.dtype).reshape(()).clone()


def apart(t: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    """`o`, or a copy where the CPU would neither refuse the overlap with `t` nor define the outcome."""
    shared = t.untyped_storage()._cdata == o.untyped_storage()._cdata
    return (
        o.clone()
        if shared and not (is_non_overlapping_and_dense_or_false(t) and is_non_overlapping_and_dense_or_false(o))
        else o
    )


def writable(t: torch.Tensor) -> bool:
    """Whether each element has its own place, or the CPU sees that it has not. Else the order of writes matters."""
    places = torch.zeros(t.shape, dtype=torch.int64)
    for d, (n, stride) in enumerate(zip(t.shape, t.stride())):
        if stride == 0 and n > 1:
            return True
        places += (torch.arange(n) * stride).reshape(-1, *[1] * (t.dim() - d - 1))
    return len(places.unique()) == t.numel()


# Each takes the tensor, another one and two small numbers. A view or a new tensor comes back; a write gives None.
VIEWS = {
    "transpose": lambda t, o, a, b: t.transpose(dim(t, a), dim(t, b)),
    "permute": lambda t, o, a, b: t.permute(*torch.arange(t.dim()).roll(a).tolist()),
    "select": lambda t, o, a, b: t.select(dim(t, a), b % t.size(dim(t, a))),
    "narrow": lambda t, o, a, b: t.narrow(*part(t, a, b)),
    "slice": lambda t, o, a, b: t[..., b % 3 :: 1 + a % 3],
    "slice rows": lambda t, o, a, b: t[a % 2 : -1 : 2],
    "expand": lambda t, o, a, b: t.unsqueeze(dim(t, a)).expand(*t.shape[: dim(t, a)], 2, *t.shape[dim(t, a) :]),
    "unsqueeze": lambda t, o, a, b: t.unsqueeze(a % (t.dim() + 1)),
    "squeeze": lambda t, o, a, b: t.squeeze(),
    "diagonal": lambda t, o, a, b: t.diagonal(b % 3 - 1, 0, 1),
    "unfold": lambda t, o, a, b: t.unfold(dim(t, a), min(2, t.size(dim(t, a))), 1 + b % 2),
    "as_strided": lambda t, o, a, b: t.as_strided((2, 1 + a % 3), (1 + b % 3, 1 + a % 2), b % 2),
    "as_strided overlap": lambda t, o, a, b: t.as_strided((3, 2), (1, 1)),
    "view": lambda t, o, a, b: t.view(-1),
    "view dtype": lambda t, o, a, b: t.view(INTS[a % 4] if t.dtype in INTS else t.dtype),
    "reshape": lambda t, o, a, b: t.reshape(2, -1),
    "flatten": lambda t, o, a, b: t.flatten(),
    "chunk": lambda t, o, a, b: t.chunk(2, dim(t, a))[-1],
    "unbind": lambda t, o, a, b: t.unbind(dim(t, a))[0],
    "view_as_real": lambda t, o, a, b: torch.view_as_real(t),
    "view_as_complex": lambda t, o, a, b: torch.view_as_complex(t),
    "real": lambda t, o, a, b: t.real,
    "imag": lambda t, o, a, b: t.imag,
    "conj": lambda t, o, a, b: t.conj(),
    "neg view": lambda t, o, a, b: t if t.dtype == torch.bool else torch._neg_view(t),
    "detach": lambda t, o, a, b: t.detach(),
}
NEW = {
    "add": lambda t, o, a, b: t + t,
    "add scalar": lambda t, o, a, b: t + (a - 3),
    "neg": lambda t, o, a, b: -t,
    "where": lambda t, o, a, b: torch.where(t == one(t, o), t, one(t, o)),
    "flip": lambda t, o, a, b: t.flip(dim(t, a)),
    "clone": lambda t, o, a, b: t.clone(),
    "contiguous": lambda t, o, a, b: t.contiguous(),
    "to": lambda t, o, a, b: t.to([torch.int32, torch.float32, torch.int64, torch.bool][a % 4]),
    "cat": lambda t, o, a, b: torch.cat([t, t], dim(t, a)),
    "sum": lambda t, o, a, b: t.sum(dim(t, a)),
    "index": lambda t, o, a, b: t[torch.tensor([0, -1, 0], device=t.device)],
    "masked": lambda t, o, a, b: torch.masked_fill(t, t == 1, 2),
}
WRITES = {
    "add_": lambda t, o, a, b: t.add_(a - 3),
    "add_ tensor": lambda t, o, a, b: t.add_(one(t, o)),
    "mul_": lambda t, o, a, b: t.mul_(2 - b % 4),
    "copy_": lambda t, o, a, b: t.copy_(apart(t, o)),
    "copy_ self": lambda t, o, a, b: t.copy_(t.flip(dim(t, a))),
    "fill_": lambda t, o, a, b: t.fill_(a),
    "zero_": lambda t, o, a, b: t.zero_(),
    "masked_fill_": lambda t, o, a, b: t.masked_fill_(t == 1, b),
    "neg_": lambda t, o, a, b: t.neg_(),
    "x[k]": lambda t, o, a, b: t.__setitem__(b % t.size(0), a),
    "x[...]": lambda t, o, a, b: t.__setitem__(..., one(t, o)),
    "x[a:b]": lambda t, o, a, b: t.__setitem__((..., slice(b % 2, None, 1 + a % 2)), a),
    "x[index]": lambda t, o, a, b: t.__setitem__(torch.tensor([0, -1], device=t.device), a) if t.numel() else None,
    "x[mask]": lambda t, o, a, b: t.__setitem__(t == 2, a),
    "set_": lambda t, o, a, b: t.set_(o.detach()) if t.dtype == o.dtype else None,
    "resize_": lambda t, o, a, b: t.resize_(1 + a % 3, 1 + b % 3).fill_(b),
    "add_ out": lambda t, o, a, b: torch.add(t, a, out=t),
    "swap halves": lambda t, o, a, b: t[..., :2].copy_(t[..., -2:].clone()),
}
OPS = [*VIEWS.items(), *WRITES.items(), *NEW.items(), *VIEWS.items(), *WRITES.items()]
SEEDS = [
    (torch.int32, (4, 6)),
    (torch.float32, (2, 3, 4)),
    (torch.int64, (5,)),
    (torch.uint8, (3, 4)),
    (torch.complex64, (3, 4)),
    (torch.bool, (2, 6)),
    (torch.float32, ()),
    (torch.int32, (0, 3)),
]

steps = st.tuples(
    st.integers(0, len(OPS) - 1), st.integers(0, 7), st.integers(0, 7), st.integers(0, 7), st.integers(0, 7)
)
programs = st.tuples(
    st.lists(st.integers(0, len(SEEDS) - 1), min_size=2, max_size=3), st.lists(steps, min_size=8, max_size=14)
)


def attempt(op, args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the CPU warns about resizing outs and writes through expanded tensors
        try:
            return op(*args), None
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ZeroDivisionError) as error:
            return None, error


def run_program(program) -> None:
    seeds, moves = program
    hosts = [pattern(dtype, *shape, step=3 + i) for i, (dtype, shape) in enumerate(SEEDS[k] for k in seeds)]
    devs = [t.to("tpu") for t in hosts]
    log = [f"{SEEDS[k]}" for k in seeds]
    for k, i, j, a, b in moves:
        name, op = OPS[k]
        i, j = i % len(hosts), j % len(hosts)
        if name in WRITES and not writable(hosts[i]):
            continue
        made, refused = attempt(op, (hosts[i], hosts[j], a, b))
        ours, ours_refused = attempt(op, (devs[i], devs[j], a, b))
        log.append(f"{name}: t={i} o={j} a={a} b={b}" + (f" -> {refused}" if refused else ""))
        story = "\n".join(log)
        assert type(ours_refused) is type(refused), f"{story}\ndevice: {ours_refused!r}"
        if refused is not None:
            theirs = first_line(refused).replace("CPUBool", "TPUBool")
            assert first_line(ours_refused) == theirs, story
        elif isinstance(made, torch.Tensor) and name not in WRITES and made.numel() <= 256:
            hosts.append(made)
            devs.append(ours)
            del hosts[:-LIVE], devs[:-LIVE]
    try:
        same_world(hosts, devs)
    except AssertionError as error:
        raise AssertionError("\n".join([*log, str(error)])) from None


bounded = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "report_multiple_bugs": False,
    "phases": (Phase.explicit, Phase.generate, Phase.shrink),
}


@settings(max_examples=150, **bounded)
@given(programs)
def test_random_programs_agree_with_the_cpu(program):
    run_program(program)


@settings(max_examples=15, **bounded)
@given(programs)
def test_random_programs_agree_when_fused(program):
    before = torch.tpu.eager_mode
    torch.tpu.eager_mode = EagerMode.DEFER_AND_FUSE
    try:
        run_program(program)
    finally:
        torch.tpu.eager_mode = before


# ------------------------------------------------------------------ directed


def both(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    host = pattern(dtype, *shape)
    return host, host.to("tpu")


def agree(action, *shape: int, dtype: torch.dtype = torch.float32) -> None:
    """The action on a tensor of either device: same outcome, same tensor afterwards, same words where it fails."""
    host, dev = both(*shape, dtype=dtype)
    made, refused = attempt(action, (host,))
    ours, ours_refused = attempt(action, (dev,))
    assert type(ours_refused) is type(refused), ours_refused
    if refused is not None:
        assert first_line(ours_refused) == first_line(refused)
    made, ours = ([t] if isinstance(t, torch.Tensor) else t or [] for t in (made, ours))
    same_world([host, *made], [dev, *ours])


def test_overlapping_windows_read_what_the_cpu_reads():
    agree(lambda t: t.as_strided((5, 4), (2, 1), 1), 12)
    agree(lambda t: t.as_strided((3, 3, 2), (1, 1, 1)), 12)
    agree(lambda t: t.as_strided((2, 3), (0, 2), 1) + 1, 12)
    agree(lambda t: t.unfold(0, 4, 1).sum(1), 12)


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.add_(1),
        lambda t: t.copy_(torch.ones_like(t)),
        lambda t: t.copy_(torch.ones(2, 5)),
        lambda t: torch.mul(t, 2, out=t),
        lambda t: t.fill_(3),
        lambda t: t.zero_(),
        lambda t: t.masked_fill_(t == 1, 9),
        lambda t: t.masked_fill_(torch.arange(10, device=t.device).view(2, 5) < 3, 9),
        lambda t: t.index_fill_(0, torch.tensor([0], device=t.device), 9),
        lambda t: t.index_put_((torch.tensor([0], device=t.device),), torch.tensor(9, device=t.device).to(t.dtype)),
    ],
)
def test_writes_through_expanded_views_do_what_the_cpu_does(write):
    agree(lambda t: write(t.expand(2, 5)) and None, 5)


@pytest.mark.parametrize("op", [torch.add, torch.mul, torch.Tensor.copy_])
def test_a_write_that_overlaps_its_own_input_is_refused(op):
    def shifted(t):
        to, source = t[1:], t[:-1]
        return (to.copy_(source) if op is torch.Tensor.copy_ else op(to, source, out=to)) and None

    agree(shifted, 6)
    agree(lambda t: torch.add(t, 1, out=t) and None, 6)
    agree(lambda t: t[:3].add_(t[3:]) and None, 6)


LAYOUTS = {
    "dense": lambda t: t,
    "transposed": lambda t: t.t(),
    "strided": lambda t: t[:, ::2],
    "column": lambda t: t[:, 1],
    "expanded": lambda t: t[:, :1].expand(-1, 5),
    "row": lambda t: t[1],
    "conjugate": lambda t: t.conj(),
    "imaginary": lambda t: t.imag if t.is_complex() else t,
    "negative": lambda t: t if t.dtype == torch.bool else torch._neg_view(t),
}
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_between_host_and_device_in_any_layout(dtype, layout):
    view = LAYOUTS[layout]
    host, dev = both(4, 6, dtype=dtype)
    assert torch.equal(view(dev).cpu().resolve_neg(), view(host).resolve_neg())
    if layout == "expanded":
        return
    source = pattern(dtype, *view(host).shape, step=5)
    for a, b in [(view(dev), source), (view(dev), source.to("tpu")), (view(host), source)]:
        a.copy_(b)
    assert torch.equal(dev.cpu(), host)
    back = torch.zeros_like(host)
    view(back).copy_(view(dev))
    expected = torch.zeros_like(host)
    view(expected).copy_(view(host))
    assert torch.equal(back, expected)


@pytest.mark.parametrize("to", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_convert(dtype, to):
    host, dev = both(3, 4, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a complex number loses its imaginary part
        expected = host.to(to)
        if dtype.is_complex and to == torch.bool:
            expected = host != 0
        for target in (torch.empty(3, 4, dtype=to, device="tpu"), torch.empty(3, 4, dtype=to)):
            assert torch.equal(target.copy_(dev).cpu(), expected)
        assert torch.equal(torch.empty(4, 3, dtype=to, device="tpu").t().copy_(host).cpu(), expected)


def test_an_out_of_the_wrong_shape_is_resized_with_pytorchs_warning():
    x = torch.arange(3.0, device="tpu")
    out = torch.zeros(2, device="tpu")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(x, 1, out=out)
    assert out.tolist() == [1.0, 2.0, 3.0]
    empty = torch.empty(0, device="tpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.add(x, 1, out=empty) is empty
    assert empty.tolist() == [1.0, 2.0, 3.0]
    strided = torch.zeros(3, 2, device="tpu")[:, 0]
    torch.add(x, 1, out=strided)
    assert strided.tolist() == [1.0, 2.0, 3.0] and strided.stride() == (2,)
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.add(x, 1, out=torch.zeros(3, dtype=torch.int64, device="tpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.uint8], ids=str)
def test_a_resized_storage_keeps_its_contents(dtype):
    for t in both(6, dtype=dtype):
        before, view = t.tolist(), t[1:3]
        t.resize_(3, 4)
        assert t.flatten()[:6].tolist() == before and view.tolist() == before[1:3]
        t.flatten()[6:].fill_(1)
        t.resize_(2)
        assert t.tolist() == before[:2] and t.untyped_storage().nbytes() == 12 * t.element_size()
        t.untyped_storage().resize_(4 * t.element_size())
        assert t.tolist() == before[:2] and view.tolist() == before[1:3]
        t.untyped_storage().resize_(0)
        t.untyped_storage().resize_(2 * t.element_size())
        t.fill_(1)
        assert [int(v) for v in t.tolist()] == [1, 1]


def test_data_pointers_are_unique_and_count_bytes():
    base = torch.arange(24.0, device="tpu").reshape(4, 6)
    assert base[1].data_ptr() - base.data_ptr() == 24
    assert base[:, 2:].data_ptr() - base.data_ptr() == 8
    assert base.t().data_ptr() == base.detach().data_ptr() == base.untyped_storage().data_ptr()
    many = [torch.zeros(3, device="tpu") for _ in range(50)] + [torch.zeros(3, device="tpu") + 1 for _ in range(50)]
    pointers = sorted(t.data_ptr() for t in many)
    assert all(b - a >= 12 for a, b in itertools.pairwise(pointers))
    assert torch.empty(0, device="tpu").data_ptr() == 0 or torch.empty(0).data_ptr() == 0


def test_dtype_views():
    agree(lambda t: [t.view(torch.int32), t.view(torch.uint8), t.view(torch.int16)[:, ::2]], 2, 3)
    agree(lambda t: [t.view(torch.uint8), t.view(torch.int8)], 2, 3, dtype=torch.bool)
    agree(lambda t: [t.view(torch.int64), t.view(torch.float32)], 2, 4, dtype=torch.int32)
    agree(lambda t: [t.view(torch.complex64)], 2, 4)
    agree(lambda t: t.view(torch.int64), 3)
    agree(lambda t: t.view(torch.uint8)[..., 3:4].fill_(0x41), 2, 3)
    agree(lambda t: t.view(torch.int32).add_(1), 2, 3)


def test_complex_views():
    agree(lambda t: torch.view_as_real(t)[..., 1].mul_(2), 3, 4, dtype=torch.complex64)
    agree(lambda t: torch.view_as_real(t.conj()), 3, dtype=torch.complex64)
    agree(lambda t: t.conj().add_(1j) and None, 3, dtype=torch.complex64)
    agree(lambda t: t.conj().imag.fill_(5) and None, 3, dtype=torch.complex64)
    agree(lambda t: [t.conj() @ t.mT, t.mH], 2, 2, dtype=torch.complex64)
    agree(lambda t: torch.view_as_complex(t).real.zero_() and None, 3, 2)


def test_channels_last():
    def layout(t):
        c = t.to(memory_format=torch.channels_last)
        assert c.is_contiguous(memory_format=torch.channels_last) and not c.is_contiguous()
        return [c, c + 1, c.relu(), c.clone(), torch.empty_like(c).copy_(t), c.contiguous(), c[:, 1:], c.sum((2, 3))]

    agree(layout, 2, 3, 4, 5)
    host = pattern(torch.float32, 2, 3, 4, 5).to(memory_format=torch.channels_last)
    same(host, host.to("tpu"))
    assert host.to("tpu").cpu().stride() == host.stride()


def test_tensors_of_nothing_and_numbers():
    agree(lambda t: [t + 1, t.sum(), t.t(), torch.cat([t, t]), t.reshape(3, 0), t.clone()], 0, 3)
    agree(lambda t: t.max() and None, 0)
    agree(lambda t: t.fill_(3) and None, 0, 2)
    agree(lambda t: [t + 1, t.expand(3), t.view(1, 1), t.sum(), t.view(torch.int32)])
    agree(lambda t: t.add_(2) and None)
    agree(lambda t: t[0] and None)
    assert torch.empty(0, 3, device="tpu").tolist() == [] and torch.tensor(2.5, device="tpu").item() == 2.5
    assert torch.empty(2, 0, device="tpu").cpu().shape == (2, 0)


def test_pieces_of_a_large_tensor_come_down():
    host = torch.arange(3_000_000, dtype=torch.int32).reshape(1000, 3000)
    dev = host.to("tpu")
    for piece in [
        lambda t: t[400:600],
        lambda t: t[:, 7],
        lambda t: t[::250, ::500],
        lambda t: t[999, -1:],
        lambda t: t.t()[5],
    ]:
        assert torch.equal(piece(dev).cpu(), piece(host))
    assert dev[123, 456].item() == host[123, 456].item()
    target = torch.zeros(3000, 1000, dtype=torch.int32).t()
    assert torch.equal(target.copy_(dev), host)
    dev[500:, 1000:2000].copy_(torch.zeros(500, 1000, dtype=torch.int32))
    host[500:, 1000:2000] = 0
    assert torch.equal(dev.cpu(), host)


def test_setting_a_storage():
    def action(t):
        other = torch.zeros(0, dtype=t.dtype, device=t.device)
        other.set_(t.untyped_storage(), 2, (2, 3), (1, 2))
        other.fill_(9)
        assert other.is_set_to(t.as_strided((2, 3), (1, 2), 2))
        grown = torch.zeros(0, dtype=t.dtype, device=t.device).set_(t)
        return [other, grown]

    agree(action, 8)
    agree(
        lambda t: torch.zeros(0, device=t.device).set_(torch.zeros(2, dtype=torch.int64, device=t.device)) and None, 1
    )
    x = torch.zeros(3, device="tpu")
    with pytest.raises(RuntimeError, match=r"different device|devices must match"):
        x.set_(torch.zeros(3).untyped_storage(), 0, (3,), (1,))
    assert x.tolist() == [0.0, 0.0, 0.0]


def test_gradients_flow_through_views_and_writes():
    def run(device):
        x = pattern(torch.float32, 3, 4).to(device).requires_grad_()
        y = x * 2
        y[1, ::2] = x[0, :2] * 3
        y.t()[0].mul_(2)
        z = torch.cat([y.diagonal().flip(0), y.unfold(1, 2, 1).sum((0, 2)), y.as_strided((2, 2), (3, 1), 1).flatten()])
        z.square().sum().backward()
        return x.grad.cpu()

    assert torch.equal(run("tpu"), run("cpu"))
