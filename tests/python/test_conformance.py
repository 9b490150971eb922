"""A shard of `make conformance`: of each op, module and optimizer in PyTorch's test data one dtype, two samples; of the
ops under torch.compile every sixteenth."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "conformance"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "every", "least"), [("ops", 1, 600), ("compiled", 16, 40), ("modules", 1, 100), ("optimizers", 1, 40)]
)
def test_shard(suite: str, every: int, least: int) -> None:
    command = [sys.executable, FOLDER / "sweep.py", "--suite", suite, "--one-dtype", "--samples", "2"]
    command += ["--every", str(every)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= least


def test_the_page_of_ops_is_true() -> None:
    done = subprocess.run([sys.executable, FOLDER / "ops.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
