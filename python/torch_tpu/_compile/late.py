"""Things to do to modules of PyTorch that ``import torch`` does not import: done when somebody does."""

import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


def when_imported(name: str, action: Action) -> None:
    """Has ``action`` applied to the module right after its first import, or now if that has been."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(MetaPathFinder):
    """Finds one module, where Python itself would, and is gone afterwards."""

    def __init__(self, name: str, action: Action):
        self.name, self.action = name, action

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.action)
        return spec


class _Loader(Loader):
    def __init__(self, own: Loader, action: Action):
        self.own, self.action = own, action

    def __getattr__(self, name: str) -> Any:  # `inspect` reads the source through the loader
        return getattr(self.own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.own.exec_module(module)
        self.action(module)
