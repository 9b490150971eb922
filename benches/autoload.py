"""What autoload adds to `import torch`: fresh processes with and without it, alternating, best of each."""

import json
import os
import subprocess
import sys

ROUNDS = 5
CLOCKED = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"


def import_ms(autoload: bool) -> float:
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload))}
    done = subprocess.run([sys.executable, "-c", CLOCKED], env=env, capture_output=True, text=True, check=True)
    return 1e3 * float(done.stdout)


def main() -> None:
    without, with_ = zip(*[(import_ms(False), import_ms(True)) for _ in range(ROUNDS)], strict=True)
    added = min(with_) - min(without)
    rows = [
        {"name": "import torch", "value": min(without), "unit": "ms"},
        {"name": "added by autoload", "value": added, "unit": "ms", "goal": 100},
        {"name": "ratio", "value": min(with_) / min(without), "unit": "×"},
    ]
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
