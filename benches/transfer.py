"""Host to device and back, beside a plain copy of the same bytes on the host."""

import json
import time
from collections.abc import Callable

import torch

SIZES_MIB = (1, 16, 128)
ROUNDS = 7
GOAL = 0.5


def gib_per_s(copy: Callable[[], object], size: int) -> float:
    copy()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        copy()
        seconds.append(time.perf_counter() - start)
    return size / min(seconds) / 2**30


def main() -> None:
    rows = []
    for mib in SIZES_MIB:
        size = mib << 20
        host = torch.rand(size // 4)
        target = torch.empty_like(host)
        device = host.to("tpu")
        torch.tpu.synchronize()

        def upload(host: torch.Tensor = host) -> None:
            host.to("tpu")
            torch.tpu.synchronize()

        plain = gib_per_s(lambda host=host, target=target: target.copy_(host), size)
        there = gib_per_s(upload, size)
        back = gib_per_s(lambda device=device, target=target: target.copy_(device), size)
        goal = {"unit": "× memcpy", "goal": GOAL if mib == max(SIZES_MIB) else None, "at_least": True}
        rows += [
            {"name": f"memcpy, {mib} MiB", "value": plain, "unit": "GiB/s"},
            {"name": f"to the device, {mib} MiB", "value": there / plain, **goal},
            {"name": f"to the host, {mib} MiB", "value": back / plain, **goal},
        ]
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
