"""``python -m torch_tpu check``: runs a script and tells what the TPU compiler says of its programs."""

import argparse
import html
import json
import runpy
import sys
import traceback
from pathlib import Path

from torch_tpu._check.compiler import CheckError
from torch_tpu._check.report import Report, steps

SLOWEST = 8


def check(options: argparse.Namespace) -> int:
    """Exit status: 0 if all compiles and fits, 1 if not or if the script failed, 2 for a call that can't be served."""
    import torch

    from torch_tpu._check.watch import Watch, count

    script = Path(options.script)
    if not script.is_file():
        return _refuse(f"there is no script {script}")
    for file in filter(None, (options.json, options.html)):
        try:
            Path(file).touch()
        except OSError as error:
            return _refuse(f"the report can't be written to {file}: {error.strerror}")
    try:
        watch = Watch(options.topology, options.verbose)
    except (ValueError, CheckError) as error:
        return _refuse(str(error))
    sys.argv = [options.script, *options.args]
    sys.path.insert(0, str(script.resolve().parent))
    status = 0
    with torch.tpu.explain() as what:
        try:
            runpy.run_path(options.script, run_name="__main__")
        except SystemExit as leave:
            status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        except KeyboardInterrupt:
            status = 130
        except BaseException:
            traceback.print_exc()
            status = 1
    try:
        reports = watch.finish(_progress)
    except KeyboardInterrupt:
        watch.close()
        reports, status = list(watch.reports.values()), 130
    count(watch.reports, what.segments)
    print(render(reports, options.topology, what.fallbacks, failed=status != 0))
    figures = summary(reports, options.topology, what.fallbacks)
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    if options.html:
        Path(options.html).write_text(page(render(reports, options.topology, what.fallbacks, failed=status != 0)))
    return status or int(not figures["compiles_and_fits"])


def _refuse(why: str) -> int:
    print(f"torch_tpu check: {why}", file=sys.stderr)
    return 2


def _progress(done: int, all_: int) -> None:
    if sys.stderr.isatty():
        bar = "#" * (30 * done // max(all_, 1))
        print(f"\rcompiling for the TPU [{bar:<30}] {done}/{all_} ", end="", file=sys.stderr, flush=True)


def summary(reports: list[Report], topology: str, fallbacks: dict[str, int]) -> dict:
    good = [r for r in reports if r.error is None]
    seconds = sum(r.predicted_seconds * r.times for r in good)
    flops = sum(r.flops * r.times for r in good)
    rounds, each = steps(reports)
    return {
        "topology": topology,
        "plans": len(reports),
        "failed": sum(r.error is not None and not r.excess_bytes for r in reports),
        "do_not_fit": sum(r.excess_bytes > 0 for r in reports),
        "compiles_and_fits": all(r.fits for r in reports),
        "predicted_seconds": seconds,
        "steps": rounds,
        "predicted_seconds_per_step": each,
        "flops": flops,
        "predicted_mfu": flops / (seconds * good[0].peak_flops) if seconds else 0.0,
        "peak_memory_bytes": max((r.peak_memory_bytes for r in good), default=0),
        "memory_limit_bytes": max((r.memory_limit_bytes for r in reports), default=0),
        "fallbacks": fallbacks,
        "hints": sorted({h for r in reports for h in r.hints}),
        "programs": [r.as_dict() for r in reports],
    }


def render(reports: list[Report], topology: str, fallbacks: dict[str, int], failed: bool) -> str:
    """The report as text."""
    total = summary(reports, topology, fallbacks)
    lines = [f"{topology}: {len(reports)} plans" + (" so far, before the script failed" if failed else "")]
    rows = [("plan", "runs", "predicted", "of all", "peak memory", "flops/byte", "MFU", "")]
    for r in sorted(reports, key=lambda r: -r.predicted_seconds * r.times):
        took = r.predicted_seconds * r.times
        share = took / total["predicted_seconds"] if total["predicted_seconds"] else 0
        note = "" if r.fits else "DOES NOT FIT" if r.excess_bytes else "DOES NOT COMPILE"
        rows.append(
            (r.name, str(r.times), duration(r.predicted_seconds), f"{share:.0%}", size(r.peak_memory_bytes),
             f"{r.arithmetic_intensity:.1f}", f"{r.predicted_mfu:.0%}", note)
        )  # fmt: skip
    shown = rows[:21]
    widths = [max(len(row[k]) for row in shown) for k in range(len(rows[0]))]
    lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in shown]
    if len(rows) > len(shown):
        lines.append(f"… and {len(rows) - len(shown)} plans more")
    for r in reports:
        if r.excess_bytes:
            more = f"{size(r.excess_bytes)} more than the {size(r.memory_limit_bytes)} there are"
            lines += ["", f"does not fit: {r.name} needs {more}; at its peak it holds"]
            lines += [f"  {size(h.bytes):>10}  {h.name} {h.result}  {h.op} {h.line}".rstrip() for h in r.held[:SLOWEST]]
        elif r.error:
            lines += ["", f"does not compile: {r.name}", f"  {r.error}"]
    slow = sorted(((i.seconds * r.times, i) for r in reports for i in r.instructions), key=lambda pair: -pair[0])
    if slow:
        lines += ["", "slowest on the chip:"]
        lines += [f"  {duration(s):>9}  {i.name} {i.result}  {i.op} {i.line}".rstrip() for s, i in slow[:SLOWEST]]
    if total["hints"] or fallbacks:
        lines += ["", "hints:"] + [f"  * {h}" for h in total["hints"]]
        lines += [f"  * {op} ran on the CPU {n} times: each is a round trip" for op, n in sorted(fallbacks.items())]
    good = "all compile and fit" if total["compiles_and_fits"] else (
        f"{total['failed']} do not compile, {total['do_not_fit']} do not fit"
    )  # fmt: skip
    if total["steps"] > 1:
        each = duration(total["predicted_seconds_per_step"])
        lines += ["", f"{total['steps']} like steps, each predicted {each} on the chip"]
    lines += [
        "",
        f"{good}; predicted {duration(total['predicted_seconds'])} on the chip in all, "
        f"MFU {total['predicted_mfu']:.0%}, "
        f"at most {size(total['peak_memory_bytes'])} of {size(total['memory_limit_bytes'])} in one plan",
    ]
    return "\n".join(lines)


def page(text: str) -> str:
    return (
        "<!doctype html><meta charset=utf-8><title>torch_tpu check</title>"
        f"<body style='background:#111;color:#ddd'><pre>{html.escape(text)}</pre>\n"
    )


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.2f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def size(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}"
        n /= 1024
    return f"{n:.2f} GiB"
