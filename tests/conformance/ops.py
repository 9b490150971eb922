"""Writes docs/ops.md: for every ATen overload of the installed torch, how it runs on the device.

    python tests/conformance/ops.py [--check]

`--check` writes nothing and fails when the page is out of date.
"""

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path

import torch
from torch_tpu import _C

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/ops.md"
WAYS = {
    "native": "a lowering in the op table, or a view or a copy in the shim",
    "derived": "an in-place, `out=` or list form of a native one, derived from its schema",
    "composite": "PyTorch computes it from other ops before any device is asked (CompositeImplicitAutograd)",
    "decomposition": "PyTorch's own kernel for all devices, made of other ops (CompositeExplicitAutograd)",
    "fallback": "computed on the CPU, counted by `torch.tpu.fallbacks()`; the reason stands beside it",
    "elsewhere": "no kernel for the CPU either: made for one vendor's library or for another kind of tensor",
}
# Why an op stays on the CPU. The first pattern that matches tells.
REASONS = [
    (r"quant|fbgemm|qint|_q_|q_per|q_scale|q_zero|int_repr|dequant", "quantized tensors (legacy) live on the CPU"),
    (r"mkldnn|_mkl", "a tensor layout of the CPU's own library"),
    (r"sparse|csr|csc|bsr|bsc|coo|coalesce|_nnz|hspmm|sspaddmm|smm|_indices|_values|crow_|ccol_|indices$|values$",
     "sparse tensors are made of dense parts on the device and computed on the CPU"),
    (r"nested|jagged|to_padded_tensor|linear_backward|matmul_backward",
     "nested tensors in the strided layout are computed on the CPU"),
    (r"_to_dense|_spdiags|native_norm|_compute_linear", "for sparse tensors, or inside a CPU kernel"),
    (r"qscheme", "quantized tensors (legacy) live on the CPU"),
    (r"slow_conv|_for_cpu|_cummax_helper|_cummin_helper|_fused_sdp_choice|_scaled_mm_v2",
     "the CPU's own kernel of an op that goes another way on the device"),
    (r"^_ctc_loss", "takes its lengths from CPU tensors; the form with lists is native"),
    (r"^geqrf|linalg_lstsq|linalg_ldl", "LAPACK rarities: PyTorch has no shape rule for them, or nobody asks"),
    (r"_philox", "keyed random numbers, new in 2.15 and not public"),
    (r"hash_tensor", "a checksum for debugging"),
    (r"^_test|_foobar|_make_dep_token", "for PyTorch's own tests"),
    (r"linalg_eig|_linalg_eigvals", "the non-symmetric eigenproblem has no parallel algorithm that pays"),
    (r"^_validate|_assert|_has_|is_|_dim|dense_dim|_version|_debug", "asks about the tensor, not its numbers"),
    (r"from_file|_pin_memory|pinned|_storage|set_data|_cudnn|record_stream", "host memory"),
]  # fmt: skip


def kernel(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def way(name: str, table: dict) -> str:
    if kernel(name, "PrivateUse1"):
        short = name.removeprefix("aten::")
        schema = torch._C._get_schema(*(name.split(".") if "." in name else (name, "")))
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        return "derived" if writes and short not in table else "native"
    if kernel(name, "CompositeImplicitAutograd"):
        return "composite"
    if kernel(name, "CompositeExplicitAutograd") or kernel(name, "CompositeExplicitAutogradNonFunctional"):
        return "decomposition"
    return (
        "fallback"
        if any(kernel(name, k) for k in ("CPU", "SparseCPU", "SparseCsrCPU", "NestedTensorCPU", "QuantizedCPU"))
        else "elsewhere"
    )


def reason(name: str) -> str:
    short = name.removeprefix("aten::")
    return next((why for pattern, why in REASONS if re.search(pattern, short)), "")


def opinfo_names() -> set[str]:
    """Base names that PyTorch's own test data exercises."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = set()
    for op in op_db:
        found |= {op.name.split(".")[-1], op.aten_name, *(alias.name.split(".")[-1] for alias in op.aliases)}
    return found


class Page:
    def __init__(self):
        table = json.loads(_C.info("ops"))
        self.table = {e["name"]: e for e in table}
        self.by_base: dict[str, list[str]] = {}
        for e in table:
            self.by_base.setdefault(e["name"].split(".")[0], []).append(e["name"])
        result = HERE / "tpu.json"
        self.tpu = json.loads(result.read_text()) if result.exists() else {"examples": [], "failed": {}}
        self.opinfo = opinfo_names()

    def definition(self, name: str) -> str | None:
        """The table's entry that serves this overload."""
        short = name.removeprefix("aten::")
        if short in self.table:
            return short
        base, _, overload = short.partition(".")
        base = re.sub(r"^_foreach_", "", base)
        for b in (base, base.removesuffix("_")):
            named = self.by_base.get(b, [])
            for candidate in (overload, overload.removesuffix("_out"), overload.removesuffix("out")):
                full = f"{b}.{candidate}" if candidate else b
                if full in named:
                    return full
            if named:
                return named[0]
        return None

    def compiles(self, definition: str) -> str:
        names = [n for n in self.tpu["examples"] if n.split(" ")[0] == definition]
        if not names:
            return ""
        bad = {n for failed in self.tpu["failed"].values() for n in failed if n.split(" ")[0] == definition}
        return "yes" if not bad else f"{len(names) - len(bad)} of {len(names)}"

    def row(self, name: str) -> tuple[str, str, str, str]:
        how = way(name, self.table)
        short = name.removeprefix("aten::")
        definition = self.definition(name) if how in ("native", "derived") else None
        base = short.split(".")[0]
        tests = []
        if definition and self.table[definition]["examples"]:
            tests.append(f"{len(self.table[definition]['examples'])} examples")
        if {base, base.removesuffix("_"), base.removeprefix("_foreach_")} & self.opinfo:
            tests.append("OpInfo")
        where = self.compiles(definition) if definition else ""
        return short, how + (f": {reason(name)}" if how == "fallback" else ""), ", ".join(tests), where

    def text(self) -> str:
        names = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
        rows = [self.row(n) for n in names]
        counts = Counter(r[1].split(":")[0] for r in rows)
        tested = Counter(r[1].split(":")[0] for r in rows if r[2])
        topologies = ", ".join(sorted(self.tpu["failed"]))
        lines = [
            "# ATen on `tpu`, overload by overload",
            "",
            "Written by `python tests/conformance/ops.py` from the dispatcher of torch"
            f" {torch.__version__.split('+')[0]}.",
            "",
            "| Way | Overloads | Tested by name | What it means |",
            "|---|---:|---:|---|",
            *(f"| {w} | {counts[w]} | {tested[w]} | {meaning} |" for w, meaning in WAYS.items()),
            f"| all | {len(rows)} | {sum(tested.values())} | |",
            "",
            f"The op table has {len(self.table)} definitions with"
            f" {sum(len(e['examples']) for e in self.table.values())} examples, held against PyTorch's CPU by"
            " `make test`. *OpInfo* says that PyTorch's own test data for the op runs in `make conformance`"
            " ([conformance.md](conformance.md)).",
            "",
            *self.tpu_lines(topologies),
            "| Overload | Way | Tests | Compiles for TPU |",
            "|---|---|---|---|",
            *(f"| {name} | {how} | {tests} | {where} |" for name, how, tests, where in rows),
        ]
        return "\n".join(lines) + "\n"

    def tpu_lines(self, topologies: str) -> list[str]:
        if not topologies:
            return []
        total = len(self.tpu["examples"])
        failed = sorted({n for f in self.tpu["failed"].values() for n in f})
        lines = [
            f"libtpu compiles {total - len(failed)} of the {total} examples that have a program for all of {topologies}"
            " (`python tests/conformance/tpu.py`)." + (" The others, in the compiler's words:" if failed else ""),
            "",
        ]
        for name in failed:
            where = {t: f[name] for t, f in self.tpu["failed"].items() if name in f}
            said = next(iter(where.values())).replace("|", "\\|")
            lines.append(f"* `{name}` ({', '.join(where)}): {said}")
        return lines + [""] * bool(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    page = Page()
    text = page.text()
    unexplained = [r for r in text.splitlines() if r.endswith("fallback:  |  |  |") or "| fallback:  |" in r]
    print("\n".join(f"no reason for {r}" for r in unexplained))
    print("\n".join(text.splitlines()[4:13]))
    if not check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE.name} is out of date: run python tests/conformance/ops.py")
        return 1
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
