"""Cutting the op stream by hand."""

from collections.abc import Sequence

import torch


def synchronize(tensors: torch.Tensor | Sequence[torch.Tensor] | None = None, wait: bool = False) -> None:
    """Sends what was recorded so far to the device; with `wait`, returns when it has run.

    There is one queue, so `tensors` does not narrow anything down.
    """
    if wait:
        torch.tpu.synchronize()
    else:
        torch.tpu.Event().record()
