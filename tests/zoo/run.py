"""`make zoo`: every architecture of three libraries, each in a process of its own; writes docs/models.md.

    python tests/zoo/run.py [--only TYPE…] [--rows FILE] [--again failed|missing|uncompiled] [--compiled] [--table FILE]

Rows are kept as JSON lines, so that a run can do some types only and the table still has all.
"""

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCH_TPU_FALLBACK", "silent")

import one
import recipe
import table
import vision

LIMIT = 240
"""Seconds a type may take."""


def child(kind: str, cls: type, compiled: bool, file: str) -> int:
    """Forks before the device starts; the row goes into a file."""
    pid = os.fork()
    if pid:
        return pid
    out = os.open(os.devnull, os.O_WRONLY)
    os.dup2(out, 1), os.dup2(out, 2)
    import torch

    torch.set_num_threads(1)
    row = one.run(kind, cls, compiled, begun=Path(f"{file}.begun").touch)
    Path(file).write_text(json.dumps(asdict(row)))
    os._exit(0)


def sweep(kinds: dict[str, type], rows: dict[str, dict], keep: Path, compiled: bool, jobs: int) -> None:
    waiting, running = list(kinds.items()), {}
    total, done = len(waiting), 0
    while waiting or running:
        while waiting and len(running) < jobs:
            kind, cls = waiting.pop(0)
            file = f"{keep}.{kind.replace('/', '.')}"
            running[child(kind, cls, compiled, file)] = (kind, cls, file, time.monotonic())
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            for other, (_, _, _, since) in running.items():
                if time.monotonic() - since > LIMIT:
                    os.kill(other, signal.SIGKILL)
            time.sleep(0.05)
            continue
        kind, cls, file, since = running.pop(pid)
        begun, took = Path(f"{file}.begun"), time.monotonic() - since
        if Path(file).exists():
            row = json.loads(Path(file).read_text())
            Path(file).unlink()
        else:
            where = "on the device" if begun.exists() else "on the CPU"
            how = f"took longer than {LIMIT} s" if took > LIMIT else f"KILLED with status {status}"
            row = asdict(one.Row(kind, cls.__name__, ran_on_cpu=begun.exists(), seconds=round(took, 1)))
            row["reason"] = f"{how} {where}"
        begun.unlink(missing_ok=True)
        rows[kind] = row
        with keep.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        done += 1
        print(f"{done}/{total} {kind} {row['seconds']} s {row['reason']}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", help="these types")
    parser.add_argument("--again", choices=["failed", "missing", "uncompiled"], help="which of the rows")
    parser.add_argument("--rows", type=Path, default=Path("target/zoo.jsonl"), help="where rows are kept")
    parser.add_argument("--compiled", action="store_true", help="torch.compile too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--table", type=Path, help="write docs/models.md")
    options = parser.parse_args()
    kinds, rows = recipe.kinds() | vision.kinds(), {}
    if options.rows.exists():
        if options.again is None and options.only is None:
            options.rows.unlink()
        else:
            rows = {row["kind"]: row for row in map(json.loads, options.rows.read_text().splitlines())}
    asked = dict(kinds)
    if options.only is not None:
        asked = {kind: kinds[kind] for kind in options.only}
    elif options.again == "missing":
        asked = {kind: cls for kind, cls in kinds.items() if kind not in rows}
    elif options.again == "failed":
        asked = {kind: cls for kind, cls in kinds.items() if kind not in rows or rows[kind]["reason"]}
    elif options.again == "uncompiled":
        asked = {kind: cls for kind, cls in kinds.items() if kind in rows and table.compiles(rows[kind])}
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    sweep(asked, rows, options.rows, options.compiled, options.jobs)
    text, good = table.render([rows[kind] for kind in kinds if kind in rows], LIMIT, one.ATTEMPT)
    if options.table:
        options.table.write_text(text)
    print(text.split("\n## ")[0])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
