"""Compiled training steps, to their end, beside JAX and Inductor on the same CPU, each in its own process, in turn.

    python benches/beside.py [gpt] [resnet] [mlp]

All start from the same weights, and the losses must agree. The first call (tracing and compiling, nothing cached) is
compared too. Without jax installed its rows are left out.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

ROUNDS, STEPS = 5, {"gpt": 3, "resnet": 1, "mlp": 30}
WARM = 3  # a compiled optimizer is traced again when it has state


def serve(device: str) -> None:
    """Answers as `jax_steps.py` does."""
    import torch
    from models import training

    steps = {}
    for line in sys.stdin:
        name, count = line.split()
        start = time.perf_counter()
        if name not in steps:
            steps[name] = training(name, device, lambda f: torch.compile(f, dynamic=False))
            start = time.perf_counter()
        for _ in range(int(count)):
            loss = steps[name]()
        if device == "tpu":
            torch.tpu.synchronize()
        print(time.perf_counter() - start, float(loss), flush=True)


class Peer:
    def __init__(self, *command: str, **environment: str):
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL, env={**os.environ, **environment})  # fmt: skip

    def run(self, name: str, steps: int) -> tuple[float, float]:
        print(name, steps, file=self.process.stdin, flush=True)
        seconds, loss = map(float, self.process.stdout.readline().split())
        return seconds, loss


def main() -> None:
    import numpy as np
    import torch
    from models import case

    here, names = Path(__file__).parent, sys.argv[1:] or list(STEPS)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            model, x, y = case(name)
            held = {k: v.numpy() for k, v in model.state_dict().items()} | {"input": x.numpy(), "target": y.numpy()}
            with open(Path(folder, f"{name}.npz"), "wb") as file:
                np.savez(file, **held)
        script = str(here / "beside.py")
        fresh = {"TORCH_TPU_CACHE_DIR": f"{folder}/plans", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        peers = {"ours": Peer(script, "--serve", "tpu", **fresh), "Inductor": Peer(script, "--serve", "cpu", **fresh)}
        if find_spec("jax"):
            off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "JAX_PLATFORMS": "cpu"}
            peers["JAX"] = Peer(str(here / "jax_steps.py"), folder, **off)
        for name in names:
            first = {who: peer.run(name, 1) for who, peer in peers.items()}
            for who, (_, loss) in first.items():
                torch.testing.assert_close(loss, first["ours"][1], rtol=1e-4, atol=1e-4, msg=f"{name}: {who} {first}")
            for peer in peers.values():
                peer.run(name, WARM)
            times = {who: [] for who in peers}
            for _ in range(ROUNDS):
                for who, peer in peers.items():
                    times[who].append(peer.run(name, STEPS[name])[0] / STEPS[name])
            middle = {who: median(t) for who, t in times.items()}
            rows += [{"name": f"{name}, {who}", "value": t * 1e3, "unit": "ms"} for who, t in middle.items()]
            for who, goal in (("JAX", 1.05), ("Inductor", 1.5)):
                if who in middle:
                    ratio = middle["ours"] / middle[who]
                    rows.append({"name": f"{name}, ours / {who}", "value": ratio, "unit": "×", "goal": goal})
            rows += [{"name": f"{name}, first call, {who}", "value": t, "unit": "s"} for who, (t, _) in first.items()]
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1:2] == ["--serve"] else main()
