"""Every op of the table on the device, held against the CPU: values, dtypes, sizes, what in-place ops leave.

The examples are the op table's own: of each op the first, the last and one between, or all of them with
TORCH_TPU_TEST_ALL_EXAMPLES=1.
Falling back to the CPU is an error here, unless the definition itself refuses the signature: a lowering that breaks
must not hide behind the fallback.
"""

import json
import os
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from op_examples import INVARIANTS, REFERENCES, OnHost, parse
from torch_tpu import _C

ALL = os.environ.get("TORCH_TPU_TEST_ALL_EXAMPLES", "0") not in ("", "0")
TABLE = json.loads(_C.info("ops"))
# Sums of products in another order: the error grows with the length of the sum, not with the op.
CONTRACTIONS = re.compile(r"mm|mv\b|dot|conv|addr|attention|transformer|upsample|cdist|lstm|gru")
SLACK = 8
# Calls whose Meta kernel refuses what the CPU takes: they run on the CPU.
ON_CPU = re.compile(r"masked_fill.Tensor .*h$")
# Statistics saved by a batch norm in eval are empty on the CPU and nobody's business elsewhere.
EVAL_STATISTICS = re.compile(r"batch_norm")


def overload(name: str):
    """The functional overload, else the in-place one that the definition stands for."""
    base, _, over = name.partition(".")
    for candidate in (base, base + "_", base.removesuffix("_functional") + "_"):
        op = getattr(getattr(torch.ops.aten, candidate, None), over or "default", None)
        if op is not None:
            return op
    return None


def chosen(examples: list[str]) -> list[str]:
    if ALL or len(examples) <= 3:
        return examples
    return [examples[0], examples[len(examples) // 2], examples[-1]]


def tree(f, value):
    if isinstance(value, (torch.Tensor, OnHost)):
        return f(value)
    return [tree(f, v) for v in value] if isinstance(value, list) else value


def flat(value) -> list:
    return [x for v in value for x in flat(v)] if isinstance(value, (list, tuple)) else [value]


def call(op, args: list, device: str) -> tuple[list, list]:
    """Results and, for what the op writes, the arguments afterwards."""
    args = [tree(lambda t: t.tensor.clone() if isinstance(t, OnHost) else t.clone().to(device), a) for a in args]
    schema = op._schema
    reference = REFERENCES.get(op.name()) if device == "cpu" else None
    if reference is not None:
        return flat(reference(*args)), []
    for k, a in enumerate(schema.arguments):
        if isinstance(args[k], (bool, int, float, complex)) and str(a.type) in ("Tensor", "Optional[Tensor]"):
            args[k] = torch.tensor(args[k])
    positional = [v for v, a in zip(args, schema.arguments) if not a.kwarg_only]
    keyword = {
        a.name: v for v, a in zip(args, schema.arguments) if a.kwarg_only and not (v is None and a.has_default_value())
    }
    if any(a.name == "device" for a in schema.arguments):
        keyword["device"] = device
    torch.manual_seed(0)
    out = op(*positional, **keyword)
    return [x for x in flat(out) if not isinstance(x, int)] if schema.returns else [], flat(args)


def agree(name: str, random: bool, got, want) -> None:
    if not isinstance(want, torch.Tensor):
        assert got is None or not isinstance(got, torch.Tensor), "a result where the CPU has none"
        return
    if want.numel() == 0 and EVAL_STATISTICS.search(name):
        return
    assert got.dtype == want.dtype and got.shape == want.shape, (
        f"{got.dtype}{[*got.shape]}, wanted {want.dtype}{[*want.shape]}"
    )
    got = got.cpu().resolve_conj().resolve_neg()
    if random:
        assert not got.is_floating_point() or bool(torch.isfinite(got.float()).all()), "random values are not finite"
        return
    tolerance = {}
    if CONTRACTIONS.search(name) and (got.is_floating_point() or got.is_complex()):
        rtol, atol = torch.testing._comparison.default_tolerances(got.dtype)
        tolerance = {"rtol": rtol * SLACK, "atol": atol * SLACK}
    torch.testing.assert_close(got, want.resolve_conj().resolve_neg(), equal_nan=True, check_stride=False, **tolerance)


@pytest.mark.parametrize("entry", TABLE, ids=[e["name"] for e in TABLE])
def test_op(entry, monkeypatch):
    monkeypatch.setenv("TORCH_TPU_FALLBACK", "error")
    op = overload(entry["name"])
    if op is None:
        pytest.skip("this torch has no such operator")
    failures = []
    for example in chosen(entry["examples"]):
        if ON_CPU.match(f"{entry['name']} {example}"):
            continue
        args = parse(example, op._schema)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want, after = call(op, args, "cpu")
            try:
                got, left = call(op, args, "tpu")
                if invariants := INVARIANTS.get(op._schema.name):
                    got, want = invariants(*(g.cpu() for g in got)), invariants(*want)
                results = [(g, w) for g, w in zip(got, want)] + [
                    p for p in zip(left, after) if isinstance(p[1], torch.Tensor)
                ]
                for g, w in results:
                    agree(entry["name"], entry["random"], g, w)
            except NotImplementedError as refusal:
                if "its lowering fails" in str(refusal):
                    failures.append(f"{example}: {refusal}")
            except Exception as error:  # all examples of an op are reported together
                failures.append(
                    f"{example}: {str(error).strip().splitlines()[0] if str(error) else type(error).__name__}"
                )
    assert not failures, "\n".join(failures)
