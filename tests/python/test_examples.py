"""The jobs of `make demo`, held to the same verdicts."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("job", ["minilm", "smollm2", "mnist"])
def test_a_job_of_the_demo(job, tmp_path):
    rows = tmp_path / "rows.json"
    command = [sys.executable, ROOT / "examples/demo.py", "--only", job, "--json", rows]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(rows.read_text())
    assert row["fallbacks"] == {}
