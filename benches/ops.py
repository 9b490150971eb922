"""The most used ops at realistic sizes: the device's time over torch CPU's, in one run.

    python benches/ops.py [--match REGEX]

Each op runs to its end (synchronize), alternating with the CPU's so that a busy machine slows both.
"""

import argparse
import json
import re
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

ROUNDS = 7
GOAL = 3.0


def cases(device: str) -> dict[str, Callable[[], object]]:
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(device)

    def below(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=draw).to(device)

    a, b = normal(512, 1024), normal(512, 1024)
    square, other = normal(512, 512), normal(512, 512)
    batch, batch2 = normal(16, 128, 128), normal(16, 128, 128)
    image, kernel, depthwise = normal(8, 32, 56, 56), normal(64, 32, 3, 3), normal(32, 1, 3, 3)
    hidden, weight, bias, scale = normal(8, 128, 512), normal(2048, 512), normal(2048), normal(512)
    heads = normal(4, 8, 256, 64)
    table, tokens = normal(30000, 256), below(30000, 8, 256)
    rows, columns = below(512, 256), below(1024, 512, 64)
    classes = below(1024, 512)
    mask = normal(512, 1024) > 0
    halves = a.to(torch.bfloat16)
    mean, variance = torch.zeros(32, device=device), torch.ones(32, device=device)
    return {
        "add": lambda: a + b,
        "add scalar": lambda: a + 1.5,
        "add row": lambda: a + b[0],
        "mul bf16": lambda: halves * halves,
        "div": lambda: a / b,
        "exp": lambda: a.exp(),
        "tanh": lambda: a.tanh(),
        "sigmoid": lambda: a.sigmoid(),
        "rsqrt": lambda: (a * a + 1).rsqrt(),
        "pow": lambda: a.pow(2),
        "relu": lambda: a.relu(),
        "gelu": lambda: F.gelu(a),
        "silu": lambda: F.silu(a),
        "where": lambda: torch.where(mask, a, b),
        "masked_fill": lambda: a.masked_fill(mask, 0.0),
        "clamp": lambda: a.clamp(-1, 1),
        "compare": lambda: a > b,
        "to bf16": lambda: a.to(torch.bfloat16),
        "sum": lambda: a.sum(),
        "sum rows": lambda: a.sum(0),
        "mean last": lambda: a.mean(-1),
        "max last": lambda: a.max(-1),
        "argmax": lambda: a.argmax(-1),
        "var": lambda: a.var(-1),
        "cumsum": lambda: a.cumsum(-1),
        "softmax": lambda: a.softmax(-1),
        "log_softmax": lambda: a.log_softmax(-1),
        "cross_entropy": lambda: F.cross_entropy(a, classes),
        "layer_norm": lambda: F.layer_norm(hidden, (512,), scale, scale),
        "batch_norm": lambda: F.batch_norm(image, mean, variance, training=True),
        "matmul": lambda: square @ other,
        "bmm": lambda: batch @ batch2,
        "linear": lambda: F.linear(hidden, weight, bias),
        "attention": lambda: F.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
        "conv2d": lambda: F.conv2d(image, kernel, padding=1),
        "depthwise conv2d": lambda: F.conv2d(image, depthwise, padding=1, groups=32),
        "max_pool2d": lambda: F.max_pool2d(image, 2),
        "avg_pool2d": lambda: F.avg_pool2d(image, 2),
        "interpolate": lambda: F.interpolate(image, scale_factor=2, mode="bilinear"),
        "embedding": lambda: F.embedding(tokens, table),
        "index_select": lambda: a.index_select(0, rows),
        "gather": lambda: a.gather(1, columns),
        "scatter_add": lambda: torch.zeros_like(a).scatter_add(1, columns, a[:, :64]),
        "index_put": lambda: torch.zeros_like(a).index_put((rows,), a[:256], accumulate=True),
        "sort": lambda: a.sort(-1),
        "topk": lambda: a.topk(50, -1),
        "cat": lambda: torch.cat((a, b), 1),
        "transpose copy": lambda: a.t().contiguous(),
        "permute copy": lambda: heads.transpose(1, 2).contiguous(),
        "dropout": lambda: F.dropout(a, 0.1),
        "randn": lambda: torch.randn(512, 1024, device=device),
        "arange": lambda: torch.arange(524288, device=device),
    }


def once(f: Callable[[], object], wait: Callable[[], None]) -> float:
    start = time.perf_counter()
    f()
    wait()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--match", default="")
    match = parser.parse_args().match
    here, there = cases("tpu"), cases("cpu")
    rows = []
    for name in here:
        if not re.search(match, name):
            continue
        device, cpu = here[name], there[name]
        for _ in range(3):
            once(device, torch.tpu.synchronize)
            once(cpu, lambda: None)
        times = [(once(device, torch.tpu.synchronize), once(cpu, lambda: None)) for _ in range(ROUNDS)]
        ours, theirs = (min(t) for t in zip(*times))
        unit = f"× torch CPU ({theirs * 1e6:,.0f} µs)"
        rows.append({"name": name, "value": ours / theirs, "unit": unit, "goal": GOAL})
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
