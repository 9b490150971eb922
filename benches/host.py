"""Host time per call on the device beside torch's CPU eager. Shapes are small: the path is measured, not arithmetic.

    python benches/host.py [--mode strict|fused|debug]

`dispatch` is the time until Python has control again; `e2e` includes waiting for the device. Nothing may compile while
the clock runs.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

ROUNDS = 5
# Microseconds, and multiples of torch CPU's time for the same line.
GOALS_US = {"add": 6.0, "view_add": 10.0}
GOALS_RATIO = {"add": 3.0, "adamw_step": 1.5}
MODES = {"strict": "DEFER_NEVER", "fused": "DEFER_AND_FUSE", "debug": "DEFER_NEVER_AND_LAUNCH_BLOCKING"}


@dataclass
class Timing:
    dispatch_us: float
    e2e_us: float
    compiles: int


def cases(device: str) -> dict[str, tuple[Callable[[], object], int]]:
    """What to time, and how many calls make one round."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    weight = torch.randn(8, 8, device=device, requires_grad=True)
    batch = torch.randn(32, 64, device=device)
    linear = nn.Linear(64, 64).to(device)
    mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device)
    optimizer = torch.optim.AdamW(mlp.parameters(), lr=1e-3, foreach=True)
    encoder = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).to(device)
    tokens = torch.randn(2, 16, 64, device=device)

    def setitem() -> None:
        x[:, 2] = 1.0

    def chain() -> torch.Tensor:
        z = x
        for _ in range(50):
            z = z * 1.001 + 0.5
        return z

    def linear_backward() -> None:
        linear.zero_grad(set_to_none=True)
        linear(batch).relu().sum().backward()

    def adamw_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        mlp(batch).square().mean().backward()
        optimizer.step()

    @torch.no_grad()
    def encode() -> torch.Tensor:
        return encoder(tokens)

    return {
        "add": (lambda: x + y, 1000),
        "add_": (lambda: x.add_(y), 1000),
        "mm": (lambda: x @ y, 500),
        "view_add": (lambda: x.t() + y, 500),
        "setitem": (setitem, 300),
        "autograd_add": (lambda: weight + y, 500),
        "chain_100": (chain, 20),
        "linear_fwd_bwd": (linear_backward, 50),
        "encoder_layer": (encode, 20),
        "adamw_step": (adamw_step, 20),
    }


def time_calls(call: Callable[[], object], calls: int, wait: Callable[[], None], compiled: Callable[[], int]) -> Timing:
    for _ in range(5):
        call()
        wait()
    for _ in range(max(5, calls // 4)):
        call()
    wait()
    before, dispatch, e2e = compiled(), [], []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        dispatch.append(time.perf_counter() - start)
        wait()
        e2e.append(time.perf_counter() - start)
    return Timing(1e6 * min(dispatch) / calls, 1e6 * min(e2e) / calls, compiled() - before)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="strict")
    torch.tpu.eager_mode = torch.tpu.EagerMode[MODES[parser.parse_args().mode]]

    rows = []
    on_cpu = cases("cpu")
    for name, (call, calls) in cases("tpu").items():
        cpu = time_calls(*on_cpu[name], wait=lambda: None, compiled=lambda: 0)
        tpu = time_calls(call, calls, wait=torch.tpu.synchronize, compiled=torch.tpu.compile_count)
        ratio = tpu.dispatch_us / cpu.dispatch_us
        rows += [
            {"name": name, "value": tpu.dispatch_us, "unit": "µs", "goal": GOALS_US.get(name)},
            {"name": f"{name}, end to end", "value": tpu.e2e_us, "unit": "µs"},
            {"name": f"{name}, of torch CPU", "value": ratio, "unit": "×", "goal": GOALS_RATIO.get(name)},
        ]
        if tpu.compiles:
            rows.append({"name": f"{name}, compiled while timing", "value": tpu.compiles, "unit": "plans", "goal": 0})
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
