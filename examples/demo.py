"""Runs the three jobs on the device and on the CPU and holds the results beside each other.

Exit status 1 when a result is wrong, disagrees with the CPU, or an op fell back to the CPU.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parent))
import minilm
import mnist
import smollm2

console = Console(width=None if sys.stdout.isatty() else 140)


@dataclass
class Verdict:
    result: str
    result_ok: bool
    agreement: str
    agreement_ok: bool


@dataclass
class Row:
    job: str
    verdict: Verdict
    unit: str
    rate: float
    cpu_rate: float
    compiled: int
    reused: int
    fallbacks: dict[str, int]

    @property
    def ok(self) -> bool:
        return self.verdict.result_ok and self.verdict.agreement_ok and not self.fallbacks


def judge_minilm(tpu: minilm.Outcome, cpu: minilm.Outcome) -> Verdict:
    difference = (tpu.embeddings - cpu.embeddings).abs().max().item()
    found = minilm.SENTENCES[tpu.nearest].split(" ", 3)
    text = f"“{minilm.QUERY}” → “{' '.join(found[:3])}…”"
    return Verdict(text, tpu.nearest == minilm.ANSWER, f"max |Δ| {difference:.1e} (≤ 1e-5)", difference <= 1e-5)


def judge_smollm2(tpu: smollm2.Outcome, cpu: smollm2.Outcome) -> Verdict:
    same = sum(a == b for a, b in zip(tpu.tokens, cpu.tokens, strict=True))
    ok = same == smollm2.TOKENS
    return Verdict(tpu.text, "Paris" in tpu.text, f"{same} of {smollm2.TOKENS} tokens identical", ok)


def judge_mnist(tpu: mnist.Outcome, cpu: mnist.Outcome) -> Verdict:
    pairs = zip(tpu.losses[:20], cpu.losses[:20], strict=True)
    difference = max(abs(a - b) for a, b in pairs)
    text = f"test accuracy {tpu.accuracy:.1%} (≥ 97 %)"
    return Verdict(text, tpu.accuracy >= 0.97, f"losses 1–20 max |Δ| {difference:.1e} (≤ 1e-3)", difference <= 1e-3)


JOBS: dict[str, tuple[Any, str, Callable[[Any, Any], Verdict]]] = {
    "MiniLM embeddings": (minilm, "sentences/s", judge_minilm),
    "SmolLM2 chat": (smollm2, "tokens/s", judge_smollm2),
    "MNIST training": (mnist, "images/s", judge_mnist),
}


def run(name: str, progress: Progress, device: str) -> Row:
    module, unit, judge = JOBS[name]
    outcomes = {}
    before = counters()
    after = before
    for place in (device, "cpu"):
        task = progress.add_task(f"{name} on {place}", total=module.STEPS)
        outcomes[place] = module.run(place, lambda task=task: progress.advance(task))
        if place == device:
            after = counters()
    tpu, cpu = outcomes[device], outcomes["cpu"]
    fallbacks = {op: n - before[2].get(op, 0) for op, n in after[2].items() if n > before[2].get(op, 0)}
    compiled, reused = after[0] - before[0], after[1] - before[1]
    return Row(name, judge(tpu, cpu), unit, tpu.rate, cpu.rate, compiled, reused, fallbacks)


def counters() -> tuple[int, int, dict[str, int]]:
    """Plans compiled, plans reused and fallbacks of this process so far."""
    if not hasattr(torch, "tpu"):
        return 0, 0, {}
    return torch.tpu.compile_count(), torch.tpu._get_cache_stats().num_cache_hits, torch.tpu.fallbacks()


def show(rows: list[Row]) -> None:
    table = Table(title="the same PyTorch code on the device and on the CPU", show_lines=True)
    for heading in ("job", "result", "agreement with the CPU", "throughput", "plans", "fallbacks"):
        table.add_column(heading)
    for row in rows:
        mark = "[green]✓[/]" if row.ok else "[red]✗[/]"
        table.add_row(
            f"{mark} {row.job}",
            coloured(row.verdict.result, row.verdict.result_ok),
            coloured(row.verdict.agreement, row.verdict.agreement_ok),
            f"{row.rate:,.1f} {row.unit}\n{row.rate / row.cpu_rate:.2f}× torch CPU",
            f"{row.compiled:,} compiled\n{row.reused:,} reused",
            coloured(", ".join(f"{op} ×{n}" for op, n in row.fallbacks.items()) or "0", not row.fallbacks),
        )
    console.print(table)


def coloured(text: str, ok: bool) -> str:
    return escape(text) if ok else f"[red]{escape(text)}[/]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--only", choices=["minilm", "smollm2", "mnist"], help="one job instead of three")
    parser.add_argument("--json", metavar="FILE", help="also write the rows here")
    args = parser.parse_args()

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)
    names = [name for name, job in JOBS.items() if args.only in (None, job[0].__name__)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        rows = [run(name, progress, args.device) for name in names]
    show(rows)
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
