"""One architecture: its tiny model on the CPU and on the device, from the same weights and inputs."""

import copy
import inspect
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import feed
import recipe
import torch
import vision
from torch.testing._comparison import default_tolerances

# A result may be this many times as far from the float64 one as the CPU's is.
NEAR = 2
TOKENS = 8
ATTEMPT = 10
"""Seconds that a tiny model's forward may take on the CPU."""
# Where one rounding decides a maximum or the side of a ReLU, gradients jump, on the CPU as well: what differs is asked
# again with other weights, so often in all.
DRAWS = 3


@dataclass
class Row:
    """What became of one type. Of the steps: `close` (assert_close at its defaults), `near` (as near the float64 result
    as the CPU's), `drawn` (random numbers, of which the sizes agree), `-` (there is no such step), or nothing, and
    `reason` says why."""

    kind: str
    model: str = ""
    ran_on_cpu: bool = False
    forward: str = ""
    backward: str = ""
    generate: str = ""
    compiled: str = "-"
    fallbacks: list[str] = field(default_factory=list)
    draws: int = 0
    """Weights asked until one agreed."""
    seconds: float = 0.0
    reason: str = ""


class Differs(Exception):
    pass


def floats(x: Any) -> list[torch.Tensor]:
    """All tensors of numbers in a model's output, in order."""
    if isinstance(x, torch.Tensor):
        return [x] if x.is_floating_point() else []
    if isinstance(x, dict):
        x = [x[k] for k in x if k != "past_key_values"]
    return [t for y in x for t in floats(y)] if isinstance(x, list | tuple) else []


def numbers(tensors: list[torch.Tensor]) -> bool:
    """Whether each has one that can be compared."""
    return bool(tensors) and all(bool(t.isfinite().any()) for t in tensors if t.numel())


def held(got: list[torch.Tensor], want: list[torch.Tensor], exact, names: list[str]) -> str:
    """`close` or `near`; raises Differs."""
    if [g.shape for g in got] != [w.shape for w in want]:
        raise Differs(f"sizes {[[*g.shape] for g in got]}, not {[[*w.shape] for w in want]}"[:120])
    verdict, truth = "close", None
    for i, (g, w) in enumerate(zip(got, want)):
        g, w = g.detach().cpu(), w.detach()
        try:
            torch.testing.assert_close(g, w, equal_nan=True)
        except AssertionError:
            truth = exact() if truth is None else truth
            verdict = "near"
            e = truth[i].detach()
            rtol, atol = default_tolerances(w.dtype)
            even = all(torch.equal(kind(g), kind(w)) for kind in (torch.isnan, torch.isposinf, torch.isneginf))
            finite = w.isfinite() & e.isfinite()
            ours, theirs = ((t[finite].double() - e[finite]).abs().max() for t in (g, w))
            if not even or not ours <= NEAR * theirs + atol + rtol * e[finite].abs().max():
                raise Differs(f"{names[i]} is {ours:.1e} from float64, the CPU {theirs:.1e}") from None
    return verdict


def exactly(f, *args) -> Any:
    """In float64, what the model makes itself too."""
    torch.set_default_dtype(torch.float64)
    try:
        return f(*args)
    finally:
        torch.set_default_dtype(torch.float32)


def to(x: Any, place: str | torch.dtype) -> Any:
    def one(t):
        return t.to(place) if isinstance(place, str) or t.is_floating_point() else t

    return {k: one(v) for k, v in x.items()}


def outputs(model, inputs) -> Any:
    torch.manual_seed(0)
    return model(**inputs)


def loss_of(output) -> torch.Tensor:
    first = next(t for t in floats(output) if t.requires_grad)
    return first.square().mean()


def gradients(model, inputs) -> tuple[list[str], list[torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    loss_of(outputs(model, inputs)).backward()
    pairs = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    return [name for name, _ in pairs], [grad.clone() for _, grad in pairs]


def named(wanted: list[str], names: list[str], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those: a model that keeps what it computed without gradients has fewer of them the second time."""
    found = dict(zip(names, tensors))
    return [found[name] for name in wanted]


def quiet(model) -> None:
    """No dropout and no dropped layers: two devices draw different numbers."""
    model.eval()
    for part in model.modules():
        for name in ("layerdrop", "layer_dropout", "encoder_layerdrop", "decoder_layerdrop"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)


def settle(model, draw: int = 0) -> None:
    """Weights of a size at which errors show and nothing overflows, whatever the initialization did or left out."""
    torch.manual_seed(1 + draw)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point() and (p.dim() > 1 or not p.isfinite().all()):
                p.normal_(0, 0.05)


def run(kind: str, cls: type, compiled: bool = False, begun: Callable[[], None] = lambda: None) -> Row:
    """``begun`` is called when the model has run on the CPU."""
    warnings.filterwarnings("ignore")
    row, start = Row(kind, cls.__name__), time.perf_counter()
    try:
        _run(row, cls, compiled, begun)
    except Exception as error:
        first = str(error).strip().splitlines()
        row.reason = f"{type(error).__name__}: {first[0] if first else ''}"[:200]
    row.seconds = round(time.perf_counter() - start, 1)
    return row


def _run(row: Row, cls: type, compiled: bool, begun: Callable[[], None]) -> None:
    cpu, inputs, _ = running(row.kind, cls)
    row.ran_on_cpu = True
    begun()
    try:
        for row.draws in range(1, DRAWS + 1):
            settle(cpu, row.draws - 1)
            try:
                return compared(row, cpu, inputs, compiled)
            except Differs:
                if row.draws == DRAWS:
                    raise
    finally:
        row.fallbacks = sorted(torch.tpu.fallbacks())


def compared(row: Row, cpu: torch.nn.Module, inputs: dict[str, Any], compiled: bool) -> None:
    """Fills the row; raises Differs."""
    # Copied before anything runs: some models keep what they compute where `to` does not see it.
    cpu, exact, device = copy.deepcopy(cpu), copy.deepcopy(cpu).double(), copy.deepcopy(cpu).to("tpu")
    if hasattr(exact, "set_experts_implementation"):
        exact.set_experts_implementation("eager")  # the CPU's grouped product takes no float64
    with torch.no_grad():
        output = outputs(cpu, inputs)
    drawn = torch.get_rng_state().tolist() != torch.manual_seed(0).get_state().tolist()
    there, wide = to(inputs, "tpu"), to(inputs, torch.float64)
    names = [f"result {i}" for i in range(len(floats(output)))]
    with torch.no_grad():
        got = floats(outputs(device, there))
    if drawn:  # a forward that draws numbers, which differ from device to device
        if [g.shape for g in got] != [w.shape for w in floats(output)]:
            raise Differs("results of other sizes")
        row.forward, row.backward, row.generate = "drawn", "-", "-"
        return
    row.forward = held(got, floats(output), lambda: floats(exactly(outputs, exact, wide)), names)
    try:
        names, want = gradients(cpu, inputs)
    except Exception:
        want = []
    if not numbers(want):
        row.backward = "-"  # not on the CPU either
    else:
        got_names, got = gradients(device, there)
        if got_names != names:
            raise Differs("gradients of other parameters than on the CPU")
        row.backward = held(got, want, lambda: named(names, *exactly(gradients, exact, wide)), names)
    row.generate = generated(cpu, device, inputs, there)
    if compiled:
        row.compiled = ""
        row.compiled = under_compile(
            cpu, device, inputs, there, floats(output), lambda: floats(exactly(outputs, exact, wide))
        )


def under_compile(cpu, device, inputs, there, want: list[torch.Tensor], exact) -> str:
    """The forward under torch.compile: as eager, or as the CPU's where tracing alone changes what a model computes.
    `-` if the CPU's can't be traced either."""

    def asked(model, given, **options) -> list[torch.Tensor]:
        with torch.no_grad():
            return floats(outputs(torch.compile(model, **options), given))

    names = [f"result {i}" for i in range(len(want))]
    try:
        return held(asked(device, there), want, exact, names)
    except Exception:
        torch.compiler.reset()
        try:
            traced = asked(cpu, inputs, backend="aot_eager")
        except Exception:
            return "-"
        if all(torch.allclose(t, w, equal_nan=True) for t, w in zip(traced, want)):
            raise
        return held(asked(device, there), traced, lambda: [t.double() for t in traced], names)


@contextmanager
def within(seconds: int):
    """Raises TimeoutError in what takes longer: such a model is not tiny."""

    def late(*_):
        raise TimeoutError(f"more than {seconds} s for a forward on the CPU")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def running(kind: str, cls: type) -> tuple[torch.nn.Module, dict[str, Any], Any]:
    """A tiny model that runs on the CPU, its inputs and what it gives."""
    network = isinstance(cls, vision.Network)
    problem = built = None
    for cpu in cls.tiny() if network else recipe.tiny(kind, cls):
        if isinstance(cpu, Exception):
            built = built or cpu
            continue
        quiet(cpu)
        settle(cpu)
        for inputs in cls.ways(cpu) if network else feed.ways(cpu):
            try:
                with torch.no_grad(), within(ATTEMPT):
                    output = outputs(copy.deepcopy(cpu), inputs)
            except TimeoutError as error:
                problem = error
                break
            except Exception as error:
                problem = problem or error
                continue
            if numbers(floats(output)):
                return cpu, inputs, output
    raise problem or built or ValueError("no way to feed it")


def generated(cpu, device, inputs, there) -> str:
    """The same tokens."""
    if (
        not hasattr(cpu, "generate")
        or not cpu.can_generate()
        or "generation_config" not in inspect.signature(cpu.generate).parameters
    ):
        return "-"
    settings = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}

    def tokens(model, given):
        torch.manual_seed(0)
        given = {k: v for k, v in given.items() if k != "decoder_input_ids"}
        answer = model.generate(**given, **settings)
        return answer if isinstance(answer, torch.Tensor) else answer.sequences

    try:
        want = tokens(cpu, inputs)
    except Exception:
        return "-"  # not on the CPU either
    got = tokens(device, there).cpu()
    if not torch.equal(got, want):
        raise Differs(f"generates {got[0].tolist()}, not {want[0].tolist()}")
    return "close"
