"""Whole steps, to their end: strict eager, fused eager and torch.compile, in turn within one run.

A training step of a GPT (4 layers of width 256, 8 × 128 tokens, AdamW), and 150 pointwise ops on 5,000² bfloat16.
"""

import json
import time
from collections.abc import Callable
from statistics import median

import torch
from models import GPT
from torch.nn import functional as F

MODES = torch.tpu.EagerMode
ROUNDS = 5


def training(device: str, compiled: bool = False) -> Callable[[], None]:
    torch.manual_seed(0)
    net = GPT().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    tokens = torch.randint(512, (8, 129)).to(device)
    run = torch.compile(net, dynamic=False) if compiled else net

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(run(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def pointwise(device: str, compiled: bool = False) -> Callable[[], None]:
    x = torch.ones(5000, 5000, dtype=torch.bfloat16).to(device)

    def work(y):
        for _ in range(50):
            y = (y * 1.001 + 0.5).tanh()
        return y

    run = torch.compile(work, dynamic=False) if compiled else work
    return lambda: run(x)


def main() -> None:
    rows = []
    for name, make, goal in (("GPT step", training, 0.6), ("150 pointwise ops", pointwise, 1 / 3)):
        ways = {
            "strict": (MODES.DEFER_NEVER, make("tpu")),
            "fused": (MODES.DEFER_AND_FUSE, make("tpu")),
            "compiled": (MODES.DEFER_NEVER, make("tpu", compiled=True)),
        }
        times: dict[str, list[float]] = {way: [] for way in (*ways, "torch CPU")}
        there = make("cpu")
        for k in range(3 + ROUNDS):
            for way, (mode, step) in ways.items():
                with torch.tpu.set_eager_mode(mode):
                    torch.tpu.synchronize()
                    start = time.perf_counter()
                    step()
                    torch.tpu.synchronize()
                times[way] += [time.perf_counter() - start] if k >= 3 else []
            if k >= 3:
                start = time.perf_counter()
                there()
                times["torch CPU"].append(time.perf_counter() - start)
        middle = {way: median(t) for way, t in times.items()}
        rows += [{"name": f"{name}, {way}", "value": t * 1e3, "unit": "ms"} for way, t in middle.items()]
        rows.append(
            {"name": f"{name}, fused / strict", "value": middle["fused"] / middle["strict"], "unit": "×", "goal": goal}
        )
        ratio = middle["fused"] / middle["compiled"]
        rows.append({"name": f"{name}, fused / compiled", "value": ratio, "unit": "×", "goal": 1.15})
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
