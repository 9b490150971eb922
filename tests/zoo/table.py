"""The rows as docs/models.md."""

from typing import Any

HEAD = """# Architectures

`make zoo` makes a tiny model of every model type that an auto class of transformers 5.23 knows, with the type's own
configuration in small numbers and random weights, and runs it on the CPU and on the device (the CPU plugin):
forward, backward of one loss, and eight greedy tokens where it generates, all in float32. *close* is `assert_close`
at its defaults; *near* means that the largest error against a float64 run of the same model is at most twice the
CPU's, give or take the tolerance; *drawn* are models that draw random numbers when they run, of which sizes are
compared. Where one rounding decides a maximum or the side of a ReLU, gradients jump, on the CPU as well, so what
differs is asked again with other weights, three times in all. Each type runs in a process of its own with a limit
of {limit} s. The recipe (`tests/zoo/recipe.py`) knows no architecture; where it finds no configuration and input
that the CPU takes, the type is listed as not run.

"""


def render(rows: list[dict[str, Any]], limit: int = 240) -> tuple[str, bool]:
    """The document, and whether all that ran agrees."""
    ran = [r for r in rows if r["ran_on_cpu"]]
    agree = [r for r in ran if not r["reason"] and r["forward"] != "drawn"]
    drawn = [r for r in ran if not r["reason"] and r["forward"] == "drawn"]
    wrong = [r for r in ran if r["reason"]]
    idle = [r for r in rows if not r["ran_on_cpu"]]
    fallbacks = [r for r in ran if r["fallbacks"]]
    killed = [r for r in rows if "KILLED" in r["reason"]]
    share = len(agree) / max(len(ran) - len(drawn), 1)
    lines = [
        HEAD.format(limit=limit).rstrip(),
        "",
        "| | types |",
        "|---|---:|",
        f"| asked | {len(rows)} |",
        f"| run on the CPU | {len(ran)} |",
        f"| agree on the device in values | {len(agree)} ({share:.1%}) |",
        f"| agree in sizes only (*drawn*) | {len(drawn)} |",
        f"| of these every step *close* | {sum('near' not in (r['forward'], r['backward']) for r in agree)} |",
        f"| generate the same tokens | {sum(r['generate'] == 'close' for r in agree)} |",
        f"| agree with other weights than the first | {sum(r['draws'] > 1 for r in agree)} |",
        f"| use a CPU fallback | {len(fallbacks)} |",
        f"| end the process | {len(killed)} |",
        "",
        "## Disagree",
        "",
        *(f"* `{r['kind']}` ({r['model']}): {r['reason']}" for r in wrong),
        *(["None."] if not wrong else []),
        "",
        "## Run",
        "",
        "| type | class | forward | backward | generate | fallbacks | weights | s |",
        "|---|---|---|---|---|---|---:|---:|",
    ]
    for r in ran:
        steps = " | ".join(r[step] or "differs" for step in ("forward", "backward", "generate"))
        fell = ", ".join(r["fallbacks"])
        lines.append(f"| {r['kind']} | {r['model']} | {steps} | {fell} | {r['draws']} | {r['seconds']} |")
    lines += ["", "## Not run", "", *(f"* `{r['kind']}` ({r['model']}): {_short(r['reason'])}" for r in idle), ""]
    return "\n".join(lines), not wrong


def _short(reason: str) -> str:
    return reason.replace("|", "/")[:120].strip()
