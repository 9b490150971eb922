"""Memory figures of the device: our own accounting, read through torch.accelerator so that both views agree."""

from collections import OrderedDict
from typing import Any

import torch

from torch_tpu.tpu._index import DeviceLike, check

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
]


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, Any]:
    """Statistics under CUDA's keys, such as ``allocated_bytes.all.peak`` and ``num_ooms``."""
    return torch.accelerator.memory_stats(check(device))


def memory_allocated(device: DeviceLike = None) -> int:
    return torch.accelerator.memory_allocated(check(device))


def max_memory_allocated(device: DeviceLike = None) -> int:
    return torch.accelerator.max_memory_allocated(check(device))


def memory_reserved(device: DeviceLike = None) -> int:
    return torch.accelerator.memory_reserved(check(device))


def max_memory_reserved(device: DeviceLike = None) -> int:
    return torch.accelerator.max_memory_reserved(check(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of the device."""
    return torch.accelerator.get_memory_info(check(device))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    torch.accelerator.reset_peak_memory_stats(check(device))


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(check(device))


def empty_cache() -> None:
    torch.accelerator.empty_cache()


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """The figures a person asks for, one per line."""
    free, total = mem_get_info(device)
    rows = {
        "allocated": memory_allocated(device),
        "peak": max_memory_allocated(device),
        "free": free,
        "total": total,
    }
    return "\n".join(f"{name:<10}{value / 2**20:14,.1f} MiB" for name, value in rows.items())
