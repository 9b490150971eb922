"""The rows as docs/models.md."""

from typing import Any

HEAD = """# Architectures

`make zoo` makes a tiny model of every model type that an auto class of transformers 5.23 knows, with the type's own
configuration in small numbers and random weights, and runs it on the CPU and on the device (the CPU plugin):
forward, backward of one loss, and eight greedy tokens where it generates, all in float32. One of the smallest networks
of every family in timm 1.0 and torchvision 0.29 is run as it is, on small pictures where it takes them. *close* is
`assert_close` at its defaults; *near* means that the largest error against a float64 run of the same model is at most
twice the CPU's, give or take the tolerance; *drawn* are models that draw random numbers when they run, of which sizes
are compared. Where one rounding decides a maximum or the side of a ReLU, gradients jump, on the CPU as well, so what
differs is asked again with other weights, three times in all. *compiled* is the forward under `torch.compile`,
beside the CPU's eager one, or beside the CPU's traced one where tracing alone changes what a model computes (`-` where
the CPU can't trace it). Each type runs in a process of its own with a limit of {limit} s. The recipe
(`tests/zoo/recipe.py`, `feed.py`) knows no architecture; where it finds no configuration and input that the CPU takes
within {attempt} s, the type is listed as not run.

"""

LIBRARIES = ("transformers", "timm", "torchvision")


def library(row: dict[str, Any]) -> str:
    return row["kind"].split("/")[0] if "/" in row["kind"] else "transformers"


def compiles(row: dict[str, Any]) -> bool:
    """Whether it is worth a try under torch.compile, and has had none."""
    return row["ran_on_cpu"] and not row["reason"] and row["forward"] != "drawn" and row["compiled"] == "-"


def render(rows: list[dict[str, Any]], limit: int, attempt: int) -> tuple[str, bool]:
    """The document, and whether all that ran agrees."""
    groups = [[r for r in rows if library(r) == name] for name in LIBRARIES]
    ran = [r for r in rows if r["ran_on_cpu"]]
    wrong = [r for r in ran if r["reason"]]
    idle = [r for r in rows if not r["ran_on_cpu"]]
    lines = [
        HEAD.format(limit=limit, attempt=attempt).rstrip(),
        "",
        "| | " + " | ".join(LIBRARIES) + " |",
        "|---|" + "---:|" * len(LIBRARIES),
        *(f"| {what} | {' | '.join(cells)} |" for what, cells in zip(TOTALS, zip(*map(_totals, groups)))),
        "",
        "## Disagree",
        "",
        *(f"* `{r['kind']}` ({r['model']}): {r['reason']}" for r in wrong),
        *(["None."] if not wrong else []),
        "",
        "## Run",
        "",
        "| type | class | forward | backward | generate | compiled | fallbacks | weights | s |",
        "|---|---|---|---|---|---|---|---:|---:|",
    ]
    for r in ran:
        steps = " | ".join(r[step] or "differs" for step in ("forward", "backward", "generate", "compiled"))
        fell = ", ".join(r["fallbacks"])
        lines.append(f"| {r['kind']} | {r['model']} | {steps} | {fell} | {r['draws']} | {r['seconds']} |")
    lines += ["", "## Not run", "", *(f"* `{r['kind']}` ({r['model']}): {_short(r['reason'])}" for r in idle), ""]
    return "\n".join(lines), not wrong


TOTALS = (
    "asked", "run on the CPU", "agree on the device in values", "agree in sizes only (*drawn*)",
    "of these every step *close*", "generate the same tokens", "asked under `torch.compile` too",
    "of these agree compiled", "agree with other weights than the first", "use a CPU fallback", "end the process",
)  # fmt: skip


def _totals(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    ran = [r for r in rows if r["ran_on_cpu"]]
    good = [r for r in ran if not r["reason"]]
    drawn = [r for r in good if r["forward"] == "drawn"]
    agree = [r for r in good if r["forward"] != "drawn"]
    counts = (
        sum("near" not in (r["forward"], r["backward"]) for r in agree),
        sum(r["generate"] == "close" for r in agree),
        sum(r["compiled"] != "-" for r in ran),
        sum(r["compiled"] in ("close", "near") for r in ran),
        sum(r["draws"] > 1 for r in agree),
        sum(bool(r["fallbacks"]) for r in ran),
        sum("KILLED" in r["reason"] for r in rows),
    )
    share = len(agree) / max(len(ran) - len(drawn), 1)
    return tuple(map(str, (len(rows), len(ran), f"{len(agree)} ({share:.1%})", len(drawn), *counts)))


def _short(reason: str) -> str:
    return reason.replace("|", "/")[:120].strip()
