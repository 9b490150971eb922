"""Libraries that list devices by name and have no hook for another: the least that lets them find ``tpu``.

Each adaptation is made when its library is imported, by whoever imports it; nothing is imported for it.
``TORCH_TPU_ADAPT=0`` leaves all of them as they are. docs/ecosystem.md says what each one changes.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch


def _accelerate(state: ModuleType) -> None:
    """``Accelerator()`` and ``Trainer`` take the device if accelerate knows no other; ``cpu=True`` still is the CPU."""
    known = state.PartialState.default_device

    def default_device(self: Any) -> torch.device:
        device = known.fget(self)
        return torch.device("tpu") if device.type == "cpu" and torch.tpu.is_available() else device

    state.PartialState.default_device = property(default_device, doc=known.__doc__)


def _memory(modeling: ModuleType) -> None:
    """``device_map="auto"`` counts the device's free memory too, and so places the model there first."""
    known = modeling.get_max_memory

    @functools.wraps(known)
    def get_max_memory(max_memory: dict[Any, Any] | None = None) -> dict[Any, Any]:
        found = known(max_memory)
        if max_memory is None and set(found) == {"cpu"} and torch.tpu.is_available():
            found = {0: torch.tpu.mem_get_info()[0], **found}
        return found

    modeling.get_max_memory = get_max_memory


def _safetensors(package: ModuleType) -> None:
    """``device="tpu"`` is taken by name: the format's reader knows the current accelerator by its number."""
    known = package.safe_open
    if hasattr(known, "__wrapped__"):  # taken from where it was adapted
        return

    @functools.wraps(known, assigned=("__doc__", "__name__", "__module__"), updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **settings: Any) -> Any:
        return known(filename, framework, 0 if str(device).split(":")[0] == "tpu" else device, **settings)

    package.safe_open = safe_open


ADAPTED: dict[str, Callable[[ModuleType], None]] = {
    "accelerate.state": _accelerate,
    "accelerate.utils.modeling": _memory,
    "safetensors": _safetensors,
    "safetensors.torch": _safetensors,
}


def _change(name: str, module: ModuleType) -> None:
    # another version may lack what is changed here, and so may a module whose import brought torch in and still goes on
    with contextlib.suppress(AttributeError):
        ADAPTED[name](module)


class _Adapting(Loader):
    """The library's own loader, and the adaptation after it."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _change(module.__name__, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in ADAPTED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Adapting(spec.loader)
        return spec


def adapt() -> None:
    """From here on; what is imported already is adapted at once."""
    if os.environ.get("TORCH_TPU_ADAPT") == "0":
        return
    sys.meta_path.insert(0, _Finder())
    for name in ADAPTED:
        if name in sys.modules:
            _change(name, sys.modules[name])
