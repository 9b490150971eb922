"""What the TPU compiler says of one program, and what follows from it."""

import math
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from torch_tpu._check.chips import Chip

# Instructions whose cycles the compiler estimates well; of others its figure is far from what a fusion of them gets.
SCHEDULED = {"fusion", "convolution", "dot", "custom-call", "sort", "scatter", "gather", "reduce", "reduce-window"}
LANES, SUBLANES = 128, 8  # of a vector register
WIDTH = {"i1": 1, "i8": 1, "ui8": 1, "i16": 2, "i32": 4, "ui32": 4, "i64": 8, "ui64": 8, "f16": 2, "bf16": 2, "f32": 4,
         "f64": 8}  # fmt: skip
TENSOR = re.compile(r"tensor<((?:\d+x)+)([a-z]+\d+)>")
# In the words of libtpu 0.0.51, and in those that its text has besides.
OUT_OF_MEMORY = re.compile(r"(?:memory required[^(]*\(|Used )([\d.]+)([KMGT]?)(?:\)| of )")
LARGE = 1 << 20  # bytes
NOTABLE = 5e-6  # seconds
ROUNDS = 0.8


@dataclass
class Instruction:
    """Something that runs by itself on the chip: a fusion, mostly."""

    name: str
    opcode: str
    result: str
    times: float
    """In one run of the program; of a loop whose length another loop sets, the mean."""
    seconds: float
    """Of all its runs in one run of the program."""
    flops: float = 0.0
    """Of its matrix products, in all its runs."""
    op: str = ""
    """The ATen op that it comes from (the last of them, for a fusion)."""
    line: str = ""
    """That op's Python line."""


@dataclass
class Held:
    """A value in the device's memory where the program needs most."""

    name: str
    """The instruction that made it, or which argument it is."""
    result: str
    """Dtype and sizes."""
    bytes: int
    """Without padding."""
    op: str = ""
    """The ATen op that made it."""
    line: str = ""
    """That op's Python line."""


@dataclass
class Report:
    """One program, compiled for one topology. Figures are of one device and one run."""

    name: str
    topology: str
    error: str | None = None
    """The compiler's words, if it refused the program; the figures are 0 then."""
    flops: float = 0.0
    bytes_accessed: float = 0.0
    transcendentals: float = 0.0
    estimated_cycles: int = 0
    """The compiler's estimates, summed over what runs."""
    argument_bytes: int = 0
    output_bytes: int = 0
    temporary_bytes: int = 0
    peak_memory_bytes: int = 0
    """With an error that says how much is needed: that."""
    memory_limit_bytes: int = 0
    held: list[Held] = field(default_factory=list)
    """The largest values at the peak; of a program refused for its memory, as a chip with more would hold them."""
    predicted_seconds: float = 0.0
    peak_flops: float = 0.0
    """Of the device, per second, in bfloat16."""
    compile_seconds: float = 0.0
    hints: list[str] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    """The slowest first."""
    times: int = 1
    """How often the program ran in what was checked."""
    ops: list[list[str]] = field(default_factory=list, repr=False)
    stablehlo: str = field(default="", repr=False)
    optimized_hlo: bytes = field(default=b"", repr=False)
    """A serialized `HloModuleProtoWithConfig`."""
    executable: bytes = field(default=b"", repr=False)

    @property
    def fits(self) -> bool:
        return self.error is None and self.peak_memory_bytes <= self.memory_limit_bytes

    @property
    def excess_bytes(self) -> int:
        """What it needs beyond the limit; 0 if it fits, or if it is not known."""
        return max(self.peak_memory_bytes - self.memory_limit_bytes, 0)

    @property
    def predicted_mfu(self) -> float:
        """Model flops utilization: the share of the device's peak that the program's flops make."""
        return self.flops / (self.predicted_seconds * self.peak_flops) if self.predicted_seconds else 0.0

    @property
    def arithmetic_intensity(self) -> float:
        """Flops per byte accessed."""
        return self.flops / self.bytes_accessed if self.bytes_accessed else 0.0

    def serialize(self) -> bytes:
        """The executable, as libtpu writes it."""
        return self.executable

    def as_dict(self) -> dict[str, Any]:
        """All figures under their names, for ``--json``."""
        skipped = {"stablehlo", "optimized_hlo", "executable", "instructions", "held", "ops"}
        figures = {k: v for k, v in vars(self).items() if k not in skipped}
        figures |= {k: getattr(self, k) for k in ("fits", "excess_bytes", "predicted_mfu", "arithmetic_intensity")}
        return figures | {
            "instructions": [vars(i) for i in self.instructions[:20]],
            "held": [vars(h) for h in self.held],
        }


def steps(reports: list[Report]) -> tuple[int, float]:
    """How many like rounds the checked script made, and the predicted seconds of one. The number is the largest of
    which plans with at least ROUNDS of all predicted time ran a multiple; 1 if there is no loop."""
    good = [r for r in reports if r.error is None]
    total = sum(r.predicted_seconds * r.times for r in good)
    for n in sorted({r.times for r in good}, reverse=True):
        inside = sum(r.predicted_seconds * r.times for r in good if r.times % n == 0)
        if n > 1 and inside >= ROUNDS * total > 0:
            return n, inside / n
    return 1, total


def report(
    name: str, text: str, answer: dict[str, Any], about: dict[str, Any], chip: Chip, starts: list[list[Any]] = ()
) -> Report:
    """From the compiler's answer. ``starts``: of each op its first value's number, its name and its Python line."""
    limit = int(about["attributes"].get("device_memory_bytes_limit", 0))
    r = Report(name, about["topology"], memory_limit_bytes=limit, peak_flops=chip.peak_flops, stablehlo=text)
    r.ops = [list(s[1:]) for s in starts]
    found = origin(text, starts)
    r.held = [holder(h, *found(h["line"])) for h in answer.get("held", ())]
    if why := answer.get("error"):
        r.error, r.peak_memory_bytes = blamed(why, text, starts), needed(why)
        return r
    cost, memory = answer["cost"] or {}, answer["memory"]
    r.flops, r.bytes_accessed = cost.get("flops", 0.0), cost.get("bytes accessed", 0.0)
    r.transcendentals, r.compile_seconds = cost.get("transcendentals", 0.0), answer["compile_seconds"]
    r.argument_bytes, r.output_bytes = memory["arguments"], memory["outputs"]
    r.temporary_bytes, r.peak_memory_bytes = memory["temporaries"], memory["peak"]
    r.optimized_hlo, r.executable = answer.get("optimized", b""), answer.get("executable", b"")
    r.estimated_cycles = round(sum((i["cycles"] or 0) * i["times"] for i in answer["instructions"]))
    for i in answer["instructions"]:
        op, line = found(i["line"])
        # the compiler's counts take what is in a loop once
        r.flops += (i["times"] - 1) * i["flops"]
        r.bytes_accessed += (i["times"] - 1) * i["bytes"]
        took, flops = seconds(i, chip) * i["times"], i["flops"] * i["times"]
        r.instructions.append(Instruction(i["name"], i["opcode"], i["result"], i["times"], took, flops, op, line))
    r.instructions.sort(key=lambda i: -i.seconds)
    r.predicted_seconds = sum(i.seconds for i in r.instructions)
    r.hints = hints(r)
    return r


def holder(h: dict[str, Any], op: str, line: str) -> Held:
    argument = h["parameter"] is not None
    name = f"argument {h['parameter']}" if argument else h["name"]
    return Held(name, h["result"], h["bytes"], "" if argument else op, "" if argument else line)


def needed(why: str) -> int:
    """The bytes that a refused program needs, in the compiler's words; 0: it says nothing of memory."""
    said = OUT_OF_MEMORY.search(why)
    return round(float(said[1]) * 1024 ** " KMGT".index(said[2] or " ")) if said else 0


def seconds(i: dict[str, Any], chip: Chip) -> float:
    """One run of an instruction: the compiler's cycles over the clock, or bytes over bandwidth where it schedules
    nothing. Transfers that run beside others cost nothing here."""
    if i["opcode"].endswith(("-start", "-done", "-update")):
        return 0.0
    if i["cycles"] and i["opcode"] in SCHEDULED:
        return i["cycles"] / chip.clock
    return i["bytes"] / chip.peak_bandwidth


def origin(text: str, starts: list[list[Any]]):
    """From a line of the module's text to the op it belongs to: a line's value has a number, and an op a first one."""
    lines, firsts = text.splitlines(), [s[0] for s in starts]

    def found(line: int) -> tuple[str, str]:
        made = re.match(r"\s*%(\d+)", lines[line - 1]) if 0 < line <= len(lines) else None
        k = bisect_right(firsts, int(made[1])) - 1 if made and firsts else -1
        return (starts[k][1], starts[k][2]) if k >= 0 else ("", "")

    return found


def blamed(why: str, text: str, starts: list[list[Any]]) -> str:
    """The compiler's words, with the op and the line they speak of."""
    place = re.search(r"-:(\d+)", why)
    op, line = origin(text, starts)(int(place[1])) if place else ("", "")
    if not op and len(starts) == 1:
        op, line = starts[0][1:]
    return f"{op} at {line}: {why}" if op else why


def hints(r: Report) -> list[str]:
    """What a person new to TPUs would want to know of this program."""
    said = []
    if "f64>" in r.stablehlo or "complex<f64>" in r.stablehlo:
        said.append("float64: a TPU has none, and its compiler computes with pairs of float32 (slow)")
    large = {(dims, ty) for dims, ty in TENSOR.findall(r.stablehlo) if nbytes(dims, ty) >= LARGE}
    if any(ty in ("i64", "ui64") for _, ty in large):
        said.append("int64: large tensors of it are computed as pairs of int32; int32 is enough for indices")
    wasted = sorted({f"{ty}[{dims[:-1].replace('x', ', ')}]" for dims, ty in large if padding(dims) > 1.25})
    if wasted:
        more = f" and {len(wasted) - 3} more" if len(wasted) > 3 else ""
        said.append(
            f"padding: {', '.join(wasted[:3])}{more} take over 1.25 times their bytes, because the last dimension is "
            f"filled up to {LANES} and the one before to {SUBLANES}"
        )
    if narrow := sorted({k for k in contracted(r.stablehlo) if 8 < k < LANES and k % LANES}):
        sizes = ", ".join(map(str, narrow[:4]))
        said.append(f"matrix products over {sizes} elements: a head or feature size of {LANES} fills the matrix unit")
    copies = sum(i.seconds for i in r.instructions if i.opcode in ("copy", "transpose"))
    if copies > max(0.05 * r.predicted_seconds, NOTABLE):
        share = 100 * copies / r.predicted_seconds
        said.append(f"layout: {share:.0f} % of the time of {r.name} goes into copies between layouts")
    return said


def nbytes(dims: str, ty: str) -> int:
    return math.prod(map(int, dims[:-1].split("x"))) * WIDTH.get(ty, 4)


def padding(dims: str) -> float:
    """How many times its bytes an array takes on the chip."""
    sizes = [int(d) for d in dims[:-1].split("x")]
    last, before = sizes[-1], sizes[-2] if len(sizes) > 1 else SUBLANES
    return (math.ceil(last / LANES) * LANES / last) * (math.ceil(before / SUBLANES) * SUBLANES / before)


def contracted(text: str) -> list[int]:
    """The sizes that large matrix products sum over."""
    found = []
    for line in text.splitlines():
        if "dot_general" in line and (dims := re.search(r"lhs_contracting_dimensions = \[([\d, ]+)\]", line)):
            operand = TENSOR.search(line.rsplit(" : ", 1)[-1])
            if operand and nbytes(*operand.groups()) >= LARGE // 8:
                sizes = [int(d) for d in operand[1][:-1].split("x")]
                found += [sizes[int(d)] for d in dims[1].split(",")]
    return found
