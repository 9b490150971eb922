"""Registers the device with PyTorch, once, through its documented hooks."""

import atexit
import os
from pathlib import Path

import torch

DEVICE = "tpu"


def register() -> None:
    holder = torch._C._get_privateuse1_backend_name()
    if holder != "privateuseone":
        raise RuntimeError(f"PyTorch has room for one outside device, and '{holder}' already took it")

    from torch_tpu import _C, _neighbours, tpu  # if the extension cannot load, PyTorch stays as it was
    from torch_tpu._check import environment
    from torch_tpu._compile import dynamo, higher_order

    torch.utils.rename_privateuse1_backend(DEVICE)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=False)
    torch._register_device_module(DEVICE, tpu)
    _C.set_library_dirs(str(Path(torch.__file__).parent), str(Path(__file__).parent))
    tpu.is_available()  # tells the extension, which must not start anything to know
    tpu.set_eager_mode(tpu.EagerMode.from_environment(os.environ))
    os.register_at_fork(after_in_child=tpu._after_fork)
    dynamo.install()
    higher_order.install()
    _neighbours.adapt()
    atexit.register(_C.shutdown)
    environment.start()
