"""Eager modes: policies on the one path that every op takes."""

import enum
from collections.abc import Mapping
from types import ModuleType

from torch_tpu import _C


class EagerMode(enum.Enum):
    """When recorded ops are sent to the device."""

    DEFER_NEVER = 0  # strict: each op at once, Python does not wait
    DEFER_AND_FUSE = 1  # fused: ops are collected and compiled together
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 2  # debug: each op at once, and Python waits for it

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "EagerMode":
        if _is_on(environ, "TORCH_TPU_LAUNCH_BLOCKING"):
            return cls.DEFER_NEVER_AND_LAUNCH_BLOCKING
        return cls.DEFER_AND_FUSE if _is_on(environ, "TORCH_TPU_DEFER_AND_FUSE") else cls.DEFER_NEVER


def get_eager_mode() -> EagerMode:
    return EagerMode(_C.get_eager_mode())


class set_eager_mode:  # a function that can also be used in a `with` statement
    """Sets the mode from here on; in a ``with`` statement, until its end."""

    def __init__(self, mode: EagerMode):
        if not isinstance(mode, EagerMode):
            raise TypeError(f"eager mode must be a torch.tpu.EagerMode, not {mode!r}")
        self._before = get_eager_mode()
        _C.set_eager_mode(mode.value)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_exc) -> None:
        _C.set_eager_mode(self._before.value)


class EagerModeModule(ModuleType):
    """A module whose ``eager_mode`` attribute reads and sets the mode."""

    @property
    def eager_mode(self) -> EagerMode:
        return get_eager_mode()

    @eager_mode.setter
    def eager_mode(self, mode: EagerMode) -> None:
        set_eager_mode(mode)


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() in ("1", "true", "on", "yes")
