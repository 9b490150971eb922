"""Runs the benchmarks, each in a process of its own, prints one table and writes one JSON file.

    python benches/run.py [--json FILE] [NAME...]

A benchmark is a script that prints a JSON object: rows of {"name", "value", "unit"} and, where there is one, a "goal"
(what `value` may reach at most, or at least when "at_least" is set). Ratios are taken inside one run, so they hold on a
busy machine too.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent
NAMES = ["host", "compile", "step", "beside", "ops", "autoload", "first_op", "transfer"]


def measure(name: str) -> list[dict]:
    done = subprocess.run([sys.executable, FOLDER / f"{name}.py"], capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return [{"name": "failed", "value": None, "unit": lines[-1]}]
    return json.loads(done.stdout)["rows"]


def met(row: dict) -> bool | None:
    if row["value"] is None:
        return False
    if row.get("goal") is None:
        return None
    return row["value"] >= row["goal"] if row.get("at_least") else row["value"] <= row["goal"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Benchmarks of the tpu device beside torch CPU.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--json", default="target/bench.json", metavar="FILE")
    args = parser.parse_args()

    results = {}
    table = Table("benchmark", "measured", "goal", title="tpu device, host side")
    for name in args.names or NAMES:
        results[name] = measure(name)
        for row in results[name]:
            value = "-" if row["value"] is None else f"{row['value']:,.2f}"
            bound = "≥" if row.get("at_least") else "≤"
            goal = "" if row.get("goal") is None else f"{bound} {row['goal']:g}"
            style = {True: "green", False: "red", None: None}[met(row)]
            table.add_row(f"{name}: {row['name']}", f"{value} {row['unit']}", goal, style=style)
        table.add_section()
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    Path(args.json).parent.mkdir(parents=True, exist_ok=True)
    Path(args.json).write_text(json.dumps(results, indent=2) + "\n")
    failed = [row for rows in results.values() for row in rows if row["value"] is None]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
