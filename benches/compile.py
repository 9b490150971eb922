"""Host time of a compiled call beside what PyTorch itself needs around it (guards, wrappers), and beside eager."""

import json
import time
from collections.abc import Callable

import torch
from torch import nn

ROUNDS = 7


def timed(call: Callable[[], object], n: int) -> float:
    """Microseconds until Python has control again, the best of several rounds."""
    for _ in range(10):
        call()
    torch.tpu.synchronize()
    before, best = torch.tpu.compile_count(), float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(n):
            call()
        best = min(best, (time.perf_counter() - start) / n)
        torch.tpu.synchronize()
    assert torch.tpu.compile_count() == before, "something compiled while the clock ran"
    return best * 1e6


def main() -> None:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to("tpu")
    deep = nn.Sequential(*[nn.Linear(8, 8) for _ in range(100)]).to("tpu")  # 200 parameters
    x, small = torch.randn(32, 64, device="tpu"), torch.randn(4, 8, device="tpu")
    rows = []

    def row(name: str, value: float, goal: float | None = None) -> None:
        rows.append({"name": name, "value": value, "unit": "µs", "goal": goal})

    def nothing(_graph: torch.fx.GraphModule, _inputs: list) -> Callable[..., tuple[torch.Tensor]]:
        return lambda *_: (x,)

    compiled = torch.compile(mlp, backend="tpu", dynamic=False)
    guarded = torch.compile(mlp, backend=nothing, dynamic=False)
    wide = torch.compile(deep, backend="tpu", dynamic=False)
    with torch.no_grad():
        row("mlp, no_grad", timed(lambda: compiled(x), 200), 40)
        row("mlp, guards alone", timed(lambda: guarded(x), 200))
        row("mlp, eager", timed(lambda: mlp(x), 200))
        row("200 parameters", timed(lambda: wide(small), 50), 100)
    row("mlp, with autograd", timed(lambda: compiled(x), 200), 80)
    row("mlp, forward and backward", timed(lambda: compiled(x).sum().backward(), 50))
    row("mlp, the same eager", timed(lambda: mlp(x).sum().backward(), 50))
    optimizer = torch.optim.AdamW(mlp.parameters(), lr=1e-3)
    step = torch.compile(lambda: optimizer.step(), backend="tpu")
    row("AdamW step, 4 parameters", timed(step, 20))
    row("AdamW step, eager", timed(optimizer.step, 20))
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
