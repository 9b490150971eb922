"""Registers the device with PyTorch, once, through its documented hooks."""

import os

import torch

DEVICE = "tpu"


def register() -> None:
    from torch_tpu import _C, tpu  # the extension first: if it cannot load, PyTorch stays as it was

    torch.utils.rename_privateuse1_backend(DEVICE)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=False)
    torch._register_device_module(DEVICE, tpu)
    tpu.set_eager_mode(tpu.EagerMode.from_environment(os.environ))
    os.register_at_fork(after_in_child=_C.mark_forked)
