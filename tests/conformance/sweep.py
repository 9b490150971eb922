"""Runs the cases in worker processes, so that a crash or a hang costs one case, and holds them against the known gaps.

    python tests/conformance/sweep.py [--suite ops] [--match REGEX] [--dtypes float32,int64] [--samples N]
                                      [--one-dtype] [--every N] [--jobs 2] [--rows FILE] [--table FILE]

`gaps.txt` names what does not pass yet, a line each: `suite name dtype: reason`. A case that fails and is not named
there is an error, and so is one that is named and passes: the list can only shrink.
"""

import argparse
import json
import multiprocessing
import queue
import re
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
GAPS = HERE / "gaps.txt"
SAMPLES = 4


def read_gaps() -> dict[str, str]:
    lines = [line for line in GAPS.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)


def worker(pipe) -> None:
    sys.path.insert(0, str(HERE))
    import torch
    from cases import all_cases

    torch.set_num_threads(1)
    cases = {case.key: case for case in all_cases()}
    torch.tpu.init()
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        key, samples = asked
        before = torch.tpu.fallbacks()
        start = time.monotonic()
        outcome = cases[key].run(samples)
        fallbacks = sorted(k for k, n in torch.tpu.fallbacks().items() if n != before.get(k, 0))
        seconds = round(time.monotonic() - start, 2)
        pipe.send(dict(vars(outcome), key=key, fallbacks=fallbacks, seconds=seconds))


class Worker:
    """A process that is replaced when a case takes it down."""

    def __init__(self, limit: float):
        self.limit, self.process = limit, None

    def run(self, key: str, samples: int) -> dict:
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=worker, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
            try:
                self.pipe.recv()
            except EOFError:
                raise SystemExit("the device does not start: python -m torch_tpu doctor") from None
        failed = {"key": key, "samples": 0, "gradients": 0, "near": 0, "fallbacks": [], "seconds": self.limit}
        try:
            self.pipe.send((key, samples))
            if self.pipe.poll(self.limit):
                return self.pipe.recv()
            failed["why"] = f"no answer in {self.limit:.0f} s"
            self.process.kill()
        except (EOFError, ConnectionError):
            self.process.join(10)
            failed["why"] = f"the process died ({self.process.exitcode})"
        self.process = None
        return failed

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()


def sweep(keys: list[str], samples: int, jobs: int, limit: float = 240.0) -> list[dict]:
    todo: queue.SimpleQueue = queue.SimpleQueue()
    for key in keys:
        todo.put(key)
    rows: list[dict] = []

    def drive() -> None:
        mine = Worker(limit)
        while True:
            try:
                key = todo.get_nowait()
            except queue.Empty:
                return mine.close()
            rows.append(mine.run(key, samples))
            if sys.stderr.isatty():
                print(f"\r{len(rows)}/{len(keys)} ", end="", file=sys.stderr)

    threads = [threading.Thread(target=drive) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(rows, key=lambda row: row["key"])


def judge(rows: list[dict], gaps: dict[str, str], whole: bool) -> list[str]:
    """What must be changed in the code, or in the list. With fewer samples an entry that passes is not stale."""
    wrong = [f"{r['key']}: {r['why']}" for r in rows if r["why"] and r["key"] not in gaps]
    if not whole:
        return wrong
    stale = [f"{r['key']}: passes; take it out of {GAPS.name}" for r in rows if not r["why"] and r["key"] in gaps]
    return wrong + stale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="", help="ops, compiled, modules or optimizers; all by default")
    parser.add_argument("--match", default="", help="a regular expression that the name must match")
    parser.add_argument("--dtypes", default="", help="comma-separated; all by default")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each case at most so many")
    parser.add_argument("--one-dtype", action="store_true", help="of each entry one dtype only")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth case only")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rows", type=Path, help="write every row here, as JSON; rows already there stay and count")
    parser.add_argument("--table", type=Path, help="write the table here, as Markdown")
    options = parser.parse_args()

    sys.path.insert(0, str(HERE))
    from cases import all_cases, one_dtype_each

    cases = [c for c in all_cases() if re.search(options.match, c.name)]
    cases = [c for c in cases if options.suite in ("", c.suite)]
    if options.dtypes:
        cases = [c for c in cases if c.dtype in options.dtypes.split(",")]
    if options.one_dtype:
        cases = one_dtype_each(cases)
    start = time.monotonic()
    rows = sweep([c.key for c in cases[:: options.every]], options.samples, options.jobs)
    if options.rows:
        kept = json.loads(options.rows.read_text()) if options.rows.exists() else []
        rows = sorted({r["key"]: r for r in [*kept, *rows]}.values(), key=lambda r: r["key"])
        options.rows.write_text(json.dumps(rows, indent=0))
    problems = judge(rows, read_gaps(), options.samples >= SAMPLES)
    if options.table:
        from table import markdown

        options.table.write_text(markdown(rows, read_gaps(), options.samples))
    print("\n".join(problems))
    failed = [r for r in rows if r["why"]]
    known = sum(r["key"] in read_gaps() for r in failed)
    print(
        f"{len(rows)} cases, {sum(r['samples'] for r in rows)} comparisons: {len(rows) - len(failed)} passed,"
        f" {len(failed)} failed ({known} of them known) in {time.monotonic() - start:.0f} s"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
