"""What the device did with a piece of a program: segments, plans, recompilations."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

from torch_tpu import _C


class Explanation:
    """What happened inside an ``explain()`` block. Printing it gives a table; ``segments`` has the numbers.

    Each segment is a dict: ``ops`` (name and first Python line of each), ``times`` it was met, ``ended_by`` (reason to
    count), ``singly`` (how often its ops ran one by one: it was new or being compiled), ``change`` (what made it
    another program than one met before), ``compile_ms`` (0 when it came ``from_disk``; None when it has no plan of its
    own), ``runs`` and ``run_ms`` (of one run, to its end), ``bytes_in``, ``bytes_out``, ``donated`` (bytes of operands
    that results took over).

    ``graphs`` are the graphs of torch.compile that were called, each a dict: ``line`` (of the user, where it begins),
    ``calls``, ``ops``, ``plans`` (how many it is made of), ``divided`` (each op on the host between plans, with its
    line and why), ``rooms`` (for each plan of dynamic sizes, by symbol: the last size, and the largest there is place
    for), and ``exact`` (why a piece with dynamic sizes has a plan for each size).
    """

    def __init__(self) -> None:
        self.segments: list[dict[str, Any]] = []
        self.graphs: list[dict[str, Any]] = []
        self.compiled = 0  # plans compiled inside the block
        self.fallbacks: dict[str, int] = {}  # ops that ran on the CPU, with how often

    def __str__(self) -> str:
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            return "\n".join([*(" | ".join(row) for row in self._rows()), *self._graphs()])
        table = Table(*HEADS, title="segments", show_lines=True)
        for row in self._rows():
            table.add_row(*row)
        out = StringIO()
        console = Console(file=out, width=140)
        console.print(table)
        console.print(self.summary())
        for line in self._graphs():
            console.print(line, markup=False, soft_wrap=True)
        return out.getvalue()

    def summary(self) -> str:
        met = sum(s["times"] for s in self.segments)
        ops = sum(s["times"] * len(s["ops"]) for s in self.segments)
        singly = sum(s["singly"] for s in self.segments)
        text = (
            f"{ops} ops in {met} segments, {len(self.segments)} of them different; {singly} ran op by op; "
            f"{self.compiled} plans compiled."
        )
        if self.fallbacks:
            text += " On the CPU: " + ", ".join(f"{k} ({n})" for k, n in sorted(self.fallbacks.items())) + "."
        return text

    def _graphs(self) -> Iterator[str]:
        for g in self.graphs:
            yield f"graph {g['line']}: {g['ops']} ops in {g['plans']} plans, called {g['calls']} times"
            for op, line, reason in g["divided"]:
                yield f"  on the host: {op} {line}: {reason}"
            for room in g["rooms"]:
                yield "  sizes: " + ", ".join(f"{name} {size} of {most}" for name, (size, most) in room.items())
            for reason in g["exact"]:
                yield f"  a plan for each size: {reason}"

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for s in self.segments:
            compiled = "-" if s["compile_ms"] is None else "disk" if s["from_disk"] else f"{s['compile_ms']:.0f} ms"
            ran = f"{s['run_ms']:.2f} ms" if s.get("runs") else "op by op"
            ended = ", ".join(f"{why} ({n})" if len(s["ended_by"]) > 1 else why for why, n in s["ended_by"].items())
            size = "" if s["compile_ms"] is None else f"{_size(s['bytes_in'])} / {_size(s['bytes_out'])}"
            note = s["change"] or (s.get("failed") or "")
            yield (
                str(len(s["ops"])),
                _ops(s["ops"]),
                str(s["times"]),
                ended,
                compiled,
                ran,
                size,
                _size(s.get("donated", 0)),
                note,
            )


HEADS = ("ops", "from … to", "met", "ended by", "compile", "run", "bytes in / out", "donated", "what changed")


@contextmanager
def explain() -> Iterator[Explanation]:
    """Watches what the device does with the block. Programs run slower inside: each plan is awaited and timed.

        with torch.tpu.explain() as what:
            step()
        print(what)

    Set ``TORCH_TPU_DUMP=dir`` to also get the StableHLO of every plan.
    """
    what = Explanation()
    before, on_cpu, calls = _C.compile_count(), dict(_C.fallbacks()), {p: p.calls for p in _programs()}
    _C.start()
    _C.info("explain:start")
    try:
        yield what
    finally:
        _C.info("explain:stop")
        what.segments = json.loads(_C.info("explain"))
        met = [(p, p.calls - calls.get(p, 0)) for p in sorted(_programs(), key=lambda p: p.ordinal)]
        what.graphs = [{**p.report(), "calls": n} for p, n in met if n]
        what.compiled = _C.compile_count() - before
        what.fallbacks = {k: n - on_cpu.get(k, 0) for k, n in _C.fallbacks().items() if n != on_cpu.get(k, 0)}


def _programs() -> list[Any]:
    """The graphs of torch.compile that there are."""
    module = sys.modules.get("torch_tpu._compile.program")
    return list(module.PROGRAMS) if module else []


def _ops(ops: list[list[str]]) -> str:
    def one(op: list[str]) -> str:
        name, site = op
        return name.removeprefix("aten::") + (f" {site.rsplit('/', 1)[-1]}" if site else "")

    return one(ops[0]) if len(ops) == 1 else f"{one(ops[0])} … {one(ops[-1])}"


def _size(n: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"
