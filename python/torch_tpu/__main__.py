"""``python -m torch_tpu doctor [--json]``."""

import argparse
import json
import sys

from torch_tpu import _doctor


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_tpu", description="Tools of the tpu backend.")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="tell what is installed, what runs, and what is wrong")
    doctor.add_argument("--json", action="store_true", help="for programs")
    args = parser.parse_args()

    report = _doctor.examine()
    print(json.dumps(report, indent=2) if args.json else _doctor.render(report))
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
