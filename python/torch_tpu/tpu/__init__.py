"""``torch.tpu``: the device's module, with the names that ``torch.cuda`` taught everyone to look for."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch

from torch_tpu import _C, __version__, _plugin
from torch_tpu.tpu import memory, random, streams
from torch_tpu.tpu._explain import Explanation, explain
from torch_tpu.tpu._index import DeviceLike, check, current_device, device, set_device
from torch_tpu.tpu._mode import EagerMode, EagerModeModule, set_eager_mode
from torch_tpu.tpu._properties import (
    DeviceProperties,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    is_bf16_supported,
)
from torch_tpu.tpu.memory import *
from torch_tpu.tpu.random import *
from torch_tpu.tpu.random import _get_generator
from torch_tpu.tpu.streams import *

__all__ = [
    "DeviceProperties",
    "EagerMode",
    "Explanation",
    "cache_stats",
    "compile_count",
    "current_device",
    "default_generators",
    "device",
    "device_count",
    "eager_mode",
    "explain",
    "fallbacks",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "memory",
    "random",
    "set_device",
    "set_eager_mode",
    "streams",
    "synchronize",
    *memory.__all__,
    *random.__all__,
    *streams.__all__,
]


class _TpuModule(EagerModeModule):
    @property
    def default_generators(self) -> tuple[torch.Generator, ...]:
        return (_get_generator(),)

    @property
    def _initialized(self) -> bool:
        """What ``torch.utils.checkpoint`` asks before it keeps the generator's state."""
        return _C.is_started()


sys.modules[__name__].__class__ = _TpuModule


# ------------------------------------------------------------------ presence; none of these starts the device


def is_available() -> bool:
    available = _plugin.available()
    _C.set_available(available)
    return available


def device_count() -> int:
    return int(is_available())


def is_initialized() -> bool:
    return _C.is_started()


_in_bad_fork = False


def _after_fork() -> None:
    """A child of a process whose device runs has a copy of it without the threads that drive it."""
    global _in_bad_fork
    _in_bad_fork = _in_bad_fork or _C.is_started()


def _is_in_bad_fork() -> bool:
    return _in_bad_fork


def init() -> None:
    """Starts the device now rather than at its first tensor."""
    _C.start()


_lazy_init = init


def synchronize(device: DeviceLike = None) -> None:
    """Waits until everything recorded so far has run."""
    torch.accelerator.synchronize(check(device))


def ipc_collect() -> None:
    """Nothing to collect: device memory is never shared between processes."""


# ------------------------------------------------------------------ what the backend did


def compile_count() -> int:
    """Plans compiled by this process. Plans found on disk do not count."""
    return _C.compile_count()


def fallbacks() -> dict[str, int]:
    """Ops that ran on the CPU because the device has no lowering for them, with how often."""
    return dict(_C.fallbacks())


def cache_stats() -> dict[str, Any]:
    """Counters of the plan cache; empty before the device has started."""
    return json.loads(_C.info("cache")) or {}


def _get_cache_stats() -> SimpleNamespace:
    stats = cache_stats()
    hits = stats.get("plan_hits", 0) + (stats.get("disk") or {}).get("hits", 0)
    return SimpleNamespace(num_cache_reqs=hits + compile_count(), num_cache_hits=hits, per_entry_stats=[])


def _clear_cache() -> None:
    _C.clear_plan_cache()
