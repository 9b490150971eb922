"""``TORCH_TPU_CHECK=v6e:1x1 python script.py``: the same as the command, told at the end on standard error."""

import atexit
import os
import sys


def start() -> None:
    """Does nothing unless the variable is set. Processes that this one starts are not checked."""
    topology = os.environ.get("TORCH_TPU_CHECK")
    if not topology:
        return
    os.environ["TORCH_TPU_CHECK"] = ""
    from torch_tpu._check.compiler import CheckError
    from torch_tpu._check.watch import Watch

    try:
        watch = Watch(topology)
    except (ValueError, CheckError) as error:
        print(f"TORCH_TPU_CHECK: {error}", file=sys.stderr)
        os._exit(2)
    atexit.register(_tell, watch, topology)


def _tell(watch, topology: str) -> None:
    import torch

    from torch_tpu import _C
    from torch_tpu._check.command import render, summary

    reports, fallbacks = watch.finish(), torch.tpu.fallbacks()
    print(render(reports, topology, fallbacks, failed=False), file=sys.stderr)
    if not summary(reports, topology, fallbacks)["compiles_and_fits"]:
        _C.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # nothing else changes the status this late
