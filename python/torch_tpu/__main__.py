"""``python -m torch_tpu doctor``, ``explain script.py args…`` and ``check --topology v6e:1x1 script.py args…``."""

import argparse
import json
import runpy
import sys
from pathlib import Path

from torch_tpu import _doctor


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_tpu", description="Tools of the tpu backend.")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="tell what is installed, what runs, and what is wrong")
    doctor.add_argument("--json", action="store_true", help="for programs")
    explain = commands.add_parser("explain", help="run a script and tell which segments it was cut into")
    explain.add_argument("--json", metavar="FILE", help="also write the segments here")
    explain.add_argument("script")
    explain.add_argument("args", nargs=argparse.REMAINDER)
    check = commands.add_parser(
        "check", help="run a script and hold its programs against the TPU compiler, without a TPU"
    )
    check.add_argument("--topology", required=True, help="generation and size, such as v6e:1x1")
    check.add_argument("--json", metavar="FILE", help="also write the figures here")
    check.add_argument("--html", metavar="FILE", help="also write the report here")
    check.add_argument("--verbose", action="store_true", help="show what the TPU compiler prints")
    check.add_argument("script")
    check.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.command == "check":
        from torch_tpu._check.command import check as run

        return run(options)
    return _examine(options.json) if options.command == "doctor" else _explain(options)


def _examine(as_json: bool) -> int:
    report = _doctor.examine()
    print(json.dumps(report, indent=2) if as_json else _doctor.render(report))
    return 1 if report["problems"] else 0


def _explain(options: argparse.Namespace) -> int:
    import torch

    script = Path(options.script)
    if not script.is_file():
        print(f"there is no script {script}", file=sys.stderr)
        return 2
    sys.argv = [options.script, *options.args]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with torch.tpu.explain() as what:
            runpy.run_path(options.script, run_name="__main__")
    finally:
        print(what)
        if options.json:
            Path(options.json).write_text(json.dumps(what.segments, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
