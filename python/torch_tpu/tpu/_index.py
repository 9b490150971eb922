"""Device arguments. A process drives one device, index 0, which every rank sees as its own."""

from typing import Any

import torch

DeviceLike = torch.device | str | int | None


def check(device: DeviceLike) -> int:
    """0 for whatever names a tpu device. Any index is accepted: launchers pass LOCAL_RANK to every process."""
    if device is None or isinstance(device, int):
        return 0
    if torch.device(device).type != "tpu":
        raise ValueError(f"expected a tpu device, got {device}")
    return 0


class device:  # named like torch.cuda.device
    """Selects a device for a ``with`` block. There is one, so this only checks its argument."""

    def __init__(self, device: DeviceLike):
        self.idx = check(device)

    def __enter__(self) -> "device":
        return self

    def __exit__(self, *_exc: Any) -> None:
        pass


def current_device() -> int:
    return 0


def set_device(device: DeviceLike) -> None:
    check(device)
