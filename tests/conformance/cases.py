"""What PyTorch's own test data asks of a device: one case an (entry, dtype) of op_db, module_db or optim_db.

Every case is computed on the CPU and on the device from the same numbers; `Case.run` says where they part.
"""

import copy
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.testing._comparison import default_tolerances

warnings.filterwarnings("ignore")

DEVICE = "tpu"
DTYPES = (
    "float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128",
)  # fmt: skip
# Sums of products in another order: the error grows with the length of the sum, not with the op.
SLACK = 8
CONTRACTIONS = re.compile(
    r"mm|mv$|matmul|dot|inner|outer|einsum|[cC]onv|[lL]inear|attention|cdist|corrcoef|cov$|linalg|lstsq|^lu|qr|svd|addr"
    r"|cholesky|inverse|logdet|matrix|fft|stft|RNN|LSTM|GRU|Transformer|Multihead|CrossMap|kron|pdist|LBFGS|Muon"
)
# Where the CPU itself rounds as badly, a result may also be about as near the float64 one as the CPU's is.
WIDER = {
    torch.bfloat16: torch.float64, torch.float16: torch.float64, torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}  # fmt: skip
NEAR = 2
# The numbers are drawn, by two different generators: sizes and dtypes are compared.
DRAWN = re.compile(
    r"rand|bernoulli|multinomial|normal|dropout|uniform|exponential|cauchy|geometric|poisson|rrelu|Dropout|RReLU"
    r"|fractional_max_pool|FractionalMaxPool|lowrank"
)
DRAWN_NOT = re.compile(r"_norm(_|\.|$)|Norm|normalize|_loss|batch_norm|native_")
# The memory is whatever was there.
UNSPECIFIED = re.compile(r"^(new_)?empty(_|$)|^resize_")


class Mismatch(Exception):
    """The device's answer differs from the CPU's."""


@dataclass
class Outcome:
    samples: int = 0
    gradients: int = 0
    near: int = 0
    """Comparisons that passed because the CPU is as far from the float64 result."""
    why: str = ""

    @property
    def ok(self) -> bool:
        return not self.why


@dataclass(frozen=True)
class Case:
    suite: str  # ops | modules | optimizers
    name: str
    dtype: str
    check: Callable[[int], Iterator[tuple[str, Callable[[], int]]]]
    """Given how many samples to take: named steps; a step returns 1 if it compared gradients."""

    @property
    def key(self) -> str:
        return f"{self.suite} {self.name} {self.dtype}"

    def run(self, samples: int) -> Outcome:
        outcome, before = Outcome(), NEARLY
        step = "samples"
        try:
            for name, compare in self.check(samples):
                step = name
                outcome.gradients += compare()
                outcome.samples += 1
        except Mismatch as error:
            outcome.why = f"{step}: {error}"
        except Exception as error:
            first = str(error).strip().splitlines()
            outcome.why = f"{step}: {type(error).__name__}: {first[0] if first else ''}"
        outcome.why, outcome.near = outcome.why[:240], NEARLY - before
        return outcome


# ---------------------------------------------------------------- trees of tensors


def tree(f, x):
    if isinstance(x, torch.Tensor):
        return f(x)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(tree(f, y) for y in x))
    if isinstance(x, list | tuple):
        return type(x)(tree(f, y) for y in x)
    return {k: tree(f, v) for k, v in x.items()} if isinstance(x, dict) else x


def leaves(x) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree(found.append, x)
    return found


def to_device(x):
    """The same numbers on the device, and its name where the CPU's stands."""

    def move(x):
        return DEVICE if isinstance(x, str | torch.device) and str(x) == "cpu" else x

    x = tree(lambda t: t.detach().to(DEVICE).requires_grad_(t.requires_grad), x)
    if isinstance(x, dict):
        return {k: move(v) for k, v in x.items()}
    return type(x)(move(v) for v in x) if isinstance(x, list | tuple) else move(x)


def leaf(t: torch.Tensor) -> torch.Tensor:
    """The same numbers without their history."""
    return t.detach().clone().requires_grad_(t.requires_grad)


def spread(x):
    """The same numbers with a gap between neighbours in memory."""

    def one(t):
        if t.layout is not torch.strided or t.is_quantized or t.numel() == 0 or t.dim() == 0:
            return t
        return torch.stack((t.detach(), t.detach()), -1)[..., 0].requires_grad_(t.requires_grad)

    return tree(one, x)


def agree(got, want, slack: float, drawn: bool = False) -> None:
    got, want = leaves(got), leaves(want)
    if len(got) != len(want):
        raise Mismatch(f"{len(got)} results, not {len(want)}")
    for g, w in zip(got, want):
        if g.dtype != w.dtype or g.shape != w.shape:
            raise Mismatch(f"{g.dtype}{[*g.shape]}, not {w.dtype}{[*w.shape]}")
        if (
            g.device.type != DEVICE
            and w.device.type == "cpu"
            and g is not w
            and g.numel()
            and w.layout is torch.strided
        ):
            raise Mismatch(f"a result on {g.device}")
        g, w = g.detach().cpu(), w.detach()
        if drawn:
            continue
        if w.layout is not torch.strided or w.is_quantized:
            g, w = g.to_dense(), w.to_dense()
        rtol, atol = (slack * t for t in default_tolerances(w.dtype))
        try:
            torch.testing.assert_close(
                g.resolve_conj().resolve_neg(), w.resolve_conj().resolve_neg(), rtol=rtol, atol=atol, equal_nan=True,
                check_stride=False)  # fmt: skip
        except AssertionError as error:
            raise Mismatch(" ".join(str(error).split("\n\n", 1)[-1].split())) from None


def error(t: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Distance from the exact value; none for equal infinities and NaNs, infinite for a NaN elsewhere."""
    t, exact = t.detach().cpu().to(exact.dtype), exact.detach()
    same = (t == exact) | (t.isnan() & exact.isnan())
    return (t - exact).abs().nan_to_num(torch.inf, torch.inf).masked_fill(same, 0)


def as_near(got, want, exact) -> bool:
    """Whether every result is at most NEAR times as far from the exact one as the CPU's worst."""
    rows = list(zip(leaves(got), leaves(want), leaves(exact), strict=True))
    return all(bool((error(g, e) <= NEAR * error(w, e).max()).all()) for g, w, e in rows if w.numel())


NEARLY = 0


def agree_or_near(got, want, slack: float, drawn: bool, exact: Callable) -> None:
    global NEARLY
    try:
        agree(got, want, slack, drawn)
    except Mismatch:
        if not any(t.dtype in WIDER for t in leaves(want)):
            raise
        if [(g.dtype, g.shape) for g in leaves(got)] != [(w.dtype, w.shape) for w in leaves(want)]:
            raise
        try:
            near = as_near(got, want, exact())
        except Exception:
            near = False  # the op has no wider form to ask
        if not near:
            raise
        NEARLY += 1


def widened(x):
    """Everything narrower as float64 or complex128."""
    return tree(lambda t: t.detach().to(WIDER[t.dtype]).requires_grad_(t.requires_grad) if t.dtype in WIDER else t, x)


def gradients(outputs, inputs) -> list[torch.Tensor | None]:
    """Of the inputs, for one cotangent that depends on shapes and dtypes only."""
    outputs = [t for t in leaves(outputs) if t.requires_grad]
    inputs = [t for t in leaves(inputs) if t.requires_grad]
    if not outputs or not inputs:
        return []
    # numbers that halves hold, so that a wider call meets the same
    torch.manual_seed(1)
    cotangents = [torch.randint(-16, 17, t.shape).div(8).to(t.device, t.dtype) for t in outputs]
    return list(torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True))


def agree_gradients(got, want, slack: float, exact: Callable) -> int:
    if [g is None for g in got] != [w is None for w in want]:
        raise Mismatch("another set of inputs has gradients")
    there = lambda grads: [g for g in grads if g is not None]  # noqa: E731
    agree_or_near(there(got), there(want), slack, False, lambda: there(exact()))
    return int(bool(want))


# ---------------------------------------------------------------- op_db


def at_indices(result, x, *args, **kwargs):
    """Of equal numbers any may stand first: the numbers that the indices name, instead of the indices."""
    *values, indices = result if isinstance(result, tuple) else (result,)
    dim = kwargs.get("dim", next((a for a in args if not isinstance(a, bool)), -1))
    if values and values[0].dim() < x.dim():
        indices = indices.unsqueeze(dim)
    return [*values, torch.take_along_dim(x, indices, dim) if x.dim() else indices]


def magnitudes(result, *_args, **_kwargs):
    """Eigenvectors and singular vectors are right up to a factor of modulus one: the magnitudes of their elements."""
    return tree(torch.abs, result) if isinstance(result, tuple) else result


TIES = {
    **dict.fromkeys(("linalg.eigh", "linalg.svd", "svd", "svd_lowrank", "pca_lowrank"), magnitudes),
    **dict.fromkeys(("argsort", "sort", "mode"), at_indices),
    **dict.fromkeys(
        ("kthvalue", "topk"), lambda result, x, _k=1, *args, **kwargs: at_indices(result, x, *args, **kwargs)
    ),
}

# The gradient goes where the number came from, and of equal numbers any may have.
SORTS = {"argsort", "kthvalue", "mode", "msort", "sort", "topk"}


def dropout_rates(args, kwargs) -> list[float]:
    named = [v for k, v in kwargs.items() if "dropout" in k]
    return [v for v in (*args, *named) if isinstance(v, float)]


def check_op(op, dtype: torch.dtype, limit: int, compiled: bool = False):
    """Compiled: the samples and their gradients only, since the forms below are eager's."""
    name, run = op.full_name, op.op
    if compiled:
        torch.compiler.reset()
        run = torch.compile(lambda *args, **kwargs: op.op(*args, **kwargs), backend="tpu")
    unspecified = bool(UNSPECIFIED.search(name))
    drawn = unspecified or (bool(DRAWN.search(name)) and not DRAWN_NOT.search(name))
    slack = SLACK if CONTRACTIONS.search(name) else 1
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    grad = grad and (dtype.is_floating_point or dtype.is_complex)

    def call(function, args, kwargs):
        torch.manual_seed(0)
        return function(*args, **kwargs)

    def forward(sample, args, kwargs, lay_out=lambda x: x):
        """On both sides, with their gradients."""
        want = call(op.op, args, kwargs)
        there, with_kwargs = lay_out(to_device(args)), lay_out(to_device(kwargs))
        if name == "tensor_split":  # takes where to split from the CPU only
            there = (there[0], *args[1:])

        def compare():
            random = drawn or ("attention" in name and any(0 < p < 1 for p in dropout_rates(args, kwargs)))
            got = call(run, there, with_kwargs)
            wide = widened(args), widened(kwargs)
            pick = TIES.get(name, lambda result, *_args, **_kwargs: result)
            mine, theirs = pick(got, *there, **with_kwargs), pick(want, *args, **kwargs)
            agree_or_near(mine, theirs, slack, random, lambda: pick(call(op.op, *wide), *wide[0], **wide[1]))
            if not grad or random or (name in SORTS and args[0].unique().numel() < args[0].numel()):
                return 0
            chosen = sample.output_process_fn_grad or (lambda x: x)
            wanted = gradients(chosen(want), (args, kwargs))
            found = gradients(chosen(got), (there, with_kwargs))
            return agree_gradients(found, wanted, slack, lambda: gradients(chosen(call(op.op, *wide)), wide))

        return want, compare

    taken = 0
    for sample in op.sample_inputs("cpu", dtype, requires_grad=grad):
        if taken == limit:
            return
        args, kwargs = tree(leaf, (sample.input, *sample.args)), tree(leaf, dict(sample.kwargs))
        try:
            want, compare = forward(sample, args, kwargs)
        except Exception:
            continue  # the CPU itself refuses this sample
        taken += 1
        yield f"sample {taken}", compare
        if taken == 1 and not compiled:
            if not name.startswith(("as_strided", "view_as_complex")):  # which look at memory, not at numbers
                yield "with gaps in memory", forward(sample, args, kwargs, spread)[1]
            yield from variants(op, sample, args, kwargs, want, slack, drawn, call)


def variants(op, sample, args, kwargs, want, slack, drawn, call):
    """The in-place and the `out=` form."""
    args, kwargs = tree(lambda t: t.detach(), args), tree(lambda t: t.detach(), kwargs)
    wide = widened(args), widened(kwargs)
    if op.inplace_variant is not None and not sample.broadcasts_input:
        try:
            wanted = call(op.inplace_variant, tree(torch.clone, args), kwargs)
        except Exception:
            wanted = None  # the CPU refuses: a result of another dtype, say
        if wanted is not None:

            def in_place():
                mine = to_device(args)
                got = call(op.inplace_variant, mine, to_device(kwargs))
                agree_or_near(got, wanted, slack, drawn, lambda: call(op.op, *wide))
                if isinstance(got, torch.Tensor) and got is not mine[0]:
                    raise Mismatch("returned another tensor")
                return 0

            yield "in place", in_place
    if op.supports_out and isinstance(want, torch.Tensor) and want.layout is torch.strided:

        def out():
            room = torch.empty(0, dtype=want.dtype, device=DEVICE)
            call(op.op, to_device(args), {**to_device(kwargs), "out": room})
            agree_or_near(room, want, slack, drawn, lambda: call(op.op, *wide))
            return 0

        yield "out=", out


def op_cases() -> Iterator[Case]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        for name in DTYPES:
            dtype = getattr(torch, name)
            if op.supports_dtype(dtype, "cpu"):
                yield Case("ops", op.full_name, name, lambda n, op=op, dtype=dtype: check_op(op, dtype, n))


def compiled_cases() -> Iterator[Case]:
    """Every op under torch.compile, as float32 or as the first dtype that it has."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        there = [n for n in DTYPES if op.supports_dtype(getattr(torch, n), "cpu")]
        if there:
            name = "float32" if "float32" in there else there[0]
            dtype = getattr(torch, name)
            yield Case(
                "compiled", op.full_name, name, lambda n, op=op, dtype=dtype: check_op(op, dtype, min(n, 2), True)
            )


# ---------------------------------------------------------------- module_db


def check_module(info, dtype: torch.dtype, training: bool, limit: int):
    name = info.module_cls.__name__
    slack = SLACK if CONTRACTIONS.search(name) else 1
    drawn = training and bool(DRAWN.search(name)) and not DRAWN_NOT.search(name)
    torch.manual_seed(0)
    inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    for number, sample in enumerate(inputs[:limit], 1):
        torch.manual_seed(0)
        build, forward = sample.constructor_input, sample.forward_input
        module = info.module_cls(*build.args, **build.kwargs).to(dtype).train(training)
        mine = copy.deepcopy(module).to(DEVICE)
        args, kwargs = tree(leaf, forward.args), tree(leaf, forward.kwargs)

        def compare(module=module, mine=mine, args=args, kwargs=kwargs):
            dropout = any(getattr(m, "dropout", 0) or getattr(m, "p", 0) for m in module.modules()) and training
            torch.manual_seed(0)
            want = module(*args, **kwargs)
            there, with_kwargs = to_device(args), to_device(kwargs)
            torch.manual_seed(0)
            got = mine(*there, **with_kwargs)
            random = drawn or (dropout and not isinstance(dropout, tuple))
            wide, wide_args = copy.deepcopy(module).double(), (widened(args), widened(kwargs))
            agree_or_near(got, want, slack, random, lambda: wide(*wide_args[0], **wide_args[1]))
            if random:
                return 0
            wanted = gradients(want, (args, kwargs, list(module.parameters())))
            found = gradients(got, (there, with_kwargs, list(mine.parameters())))
            exact = lambda: gradients(  # noqa: E731
                wide(*wide_args[0], **wide_args[1]), (*wide_args, list(wide.parameters()))
            )
            compared = agree_gradients(found, wanted, slack, exact)
            agree(list(mine.buffers()), list(module.buffers()), slack)
            return compared

        try:
            module(*args, **kwargs)
        except Exception:
            continue
        module = copy.deepcopy(mine).to("cpu")
        yield f"sample {number}", lambda compare=compare, module=module: compare(module=module)


def module_cases() -> Iterator[Case]:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if info.is_lazy:
            continue
        for dtype in (d for d in info.dtypes if str(d).removeprefix("torch.") in DTYPES):
            for training in (True, False) if info.train_and_eval_differ else (True,):
                name = f"{info.module_cls.__module__.removeprefix('torch.')}.{info.module_cls.__name__}"
                yield Case(
                    "modules", name + ("" if training else ".eval"), str(dtype).removeprefix("torch."),
                    lambda n, info=info, dtype=dtype, training=training: check_module(info, dtype, training, n),
                )  # fmt: skip


# ---------------------------------------------------------------- optim_db


def check_optimizer(info, implementation: str, dtype: torch.dtype, limit: int):
    shapes = [(4, 3), (5,), (2, 3, 2), ()]
    for sample in info.optim_inputs_func(device="cpu")[:limit]:

        def three_steps(device, sample=sample):
            draw = torch.Generator().manual_seed(0)

            def numbers(shape):
                return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).to(device)

            parameters = [numbers(s).requires_grad_() for s in shapes]
            flags = {} if implementation == "forloop" else {implementation: True}
            flags |= {"foreach": False} if implementation == "forloop" and "foreach" in info.supported_impls else {}
            kwargs = {**sample.kwargs, **flags}
            kwargs = tree(lambda t: t.to(device), kwargs)
            optimizer = info.optim_cls(parameters, **kwargs)
            for _ in range(3):
                for p in parameters:
                    p.grad = numbers(p.shape)
                    if info.only_supports_sparse_grads:
                        p.grad = p.grad.to_sparse()
                if info.step_requires_closure:
                    optimizer.step(lambda: sum(p.square().sum() for p in parameters))
                else:
                    optimizer.step()
            return [p.detach() for p in parameters]

        try:
            want = three_steps("cpu")
        except Exception:
            continue
        yield sample.desc, lambda want=want, run=three_steps: agree(run(DEVICE), want, 1) or 0


def optimizer_cases() -> Iterator[Case]:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        for implementation in ("forloop", *(i for i in info.supported_impls if i != "forloop")):
            for dtype in ("float32", "float64", "bfloat16"):
                yield Case(
                    "optimizers", f"{info.optim_cls.__name__}.{implementation}", dtype,
                    lambda n, info=info, how=implementation, dtype=dtype: check_optimizer(
                        info, how, getattr(torch, dtype), n
                    ),
                )  # fmt: skip


def all_cases() -> list[Case]:
    return [*op_cases(), *compiled_cases(), *module_cases(), *optimizer_cases()]


def one_dtype_each(cases: list[Case]) -> list[Case]:
    """Of each entry one dtype, another one for each name, so that together they cover all."""
    by_name: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        by_name.setdefault((case.suite, case.name), []).append(case)
    return [group[zlib.crc32(name.encode()) % len(group)] for (_, name), group in by_name.items()]
