"""The table of a sweep, as Markdown."""

from collections import Counter

from cases import DTYPES, NEAR, SLACK


def share(passed: int, all_: int) -> str:
    return f"{passed} of {all_} ({100 * passed / all_:.2f} %)" if all_ else "–"


def markdown(rows: list[dict], gaps: dict[str, str], samples: int) -> str:
    rows = [r for r in rows if r["samples"] or r["why"]]  # the CPU refuses every sample of the others
    suite = {s: [r for r in rows if r["key"].startswith(s + " ")] for s in ("ops", "compiled", "modules", "optimizers")}

    def passed(some: list[dict]) -> str:
        return share(sum(not r["why"] for r in some), len(some))

    def graded(some: list[dict]) -> str:
        """Of the cases that have gradients, those where they agree too."""
        with_gradients = [r for r in some if r["gradients"] or r["why"]]
        return passed([r for r in with_gradients if r["key"].split()[-1] in GRADED])

    lines = [
        "# Conformance",
        "",
        "PyTorch's own test data (op_db, module_db and optim_db of torch.testing) on `tpu`, held against torch's",
        "CPU: `make conformance`. A case is an entry with a dtype; it passes when every comparison does: the op on up",
        f"to {samples} of its samples, one of them with gaps in memory, its in-place and `out=` forms, and gradients",
        "of all inputs. Tolerances are `torch.testing.assert_close`'s defaults for the dtype; sums of products",
        f"(matmul, convolution, linear algebra, FFT) may differ by {SLACK} times that, since their order differs.",
        f"Below float64 a result may also be at most {NEAR} times as far from the float64 result as the CPU's is: both",
        f"round; {sum(r.get('near', 0) for r in rows)} comparisons passed only so. Of random results sizes and dtypes",
        "are compared here; their distributions have tests of their own. Equal numbers may be sorted in any order.",
        '*Compiled* is each op under `torch.compile(backend="tpu")`, up to 2 samples of one dtype, and gradients.',
        "",
        "| | Cases passed | Comparisons | With gradients | Without a CPU fallback |",
        "|---|---|---:|---|---|",
    ]
    for name, some in suite.items():
        native = share(sum(not r["fallbacks"] for r in some), len(some))
        lines.append(f"| {name} | {passed(some)} | {sum(r['samples'] for r in some)} | {graded(some)} | {native} |")
    lines += ["", "## Ops by dtype", "", "| dtype | Cases passed | With gradients |", "|---|---|---|"]
    for dtype in DTYPES:
        some = [r for r in suite["ops"] if r["key"].endswith(" " + dtype)]
        lines.append(f"| {dtype} | {passed(some)} | {graded(some) if dtype in GRADED else '–'} |")
    lines += ["", "## What does not pass", ""]
    lines += [
        "A case that fails and is not in `tests/conformance/gaps.txt` is an error, and so is one that stands there and"
        " passes: the list can only shrink.",
        "",
    ]
    lines += [f"* `{key}`: {gaps[key]}" for key in sorted(gaps)] or ["Nothing."]
    fallback = Counter(f for r in suite["ops"] for f in r["fallbacks"])
    lines += ["", "## What ran on the CPU", ""]
    lines += [f"* `{name}` in {n} cases" for name, n in sorted(fallback.items())] or ["Nothing."]
    return "\n".join(lines) + "\n"


GRADED = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
