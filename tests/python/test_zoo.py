"""A few architectures of `make zoo`, one of each kind."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

KINDS = ["bert", "llama", "t5", "vit", "whisper", "mixtral", "clip", "mamba", "wav2vec2"]


@pytest.mark.slow
def test_architectures_of_every_kind_agree_with_the_cpu(tmp_path):
    rows = tmp_path / "rows.jsonl"
    command = [sys.executable, ROOT / "tests/zoo/run.py", "--rows", rows, "--only", *KINDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert sorted(row["kind"] for row in found) == sorted(KINDS), done.stderr
    assert [(row["kind"], row["reason"]) for row in found if row["reason"]] == []
    assert all(row["forward"] in ("close", "near") and row["backward"] in ("close", "near") for row in found)
    assert [row["kind"] for row in found if row["fallbacks"]] == []
    assert sum(row["generate"] == "close" for row in found) >= 4


def test_what_is_no_number_agrees_with_none(monkeypatch):
    import torch

    monkeypatch.syspath_prepend(ROOT / "tests/zoo")
    import one

    def verdict(got, want):
        want = torch.tensor(want)
        return one.held([torch.tensor(got)], [want], lambda: [want.double()], ["it"])

    inf, nan = float("inf"), float("nan")
    assert verdict([1.0, -inf], [1.0, -inf]) == "close"
    for got in ([1.0, inf], [inf, inf], [nan, 1.0], [1.01, 1.0]):
        with pytest.raises(one.Differs):
            verdict(got, [1.0, 1.0])
    assert not one.numbers([torch.tensor([nan, nan])])


def test_whole_numbers_are_counted_into_bins():
    """As mixtures of experts count the tokens of each; the CPU does it for floating point only."""
    import torch

    chosen = torch.tensor([0, 3, 3, 1, 3, 2, 0, 9], dtype=torch.int32)
    want = torch.histc(chosen.float(), bins=4, min=0, max=3).int()
    assert torch.equal(torch.histc(chosen.to("tpu"), bins=4, min=0, max=3).cpu(), want)
