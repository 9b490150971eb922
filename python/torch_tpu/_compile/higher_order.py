"""PyTorch's higher-order ops (``cond``, ``scan``, ``flex_attention`` …) on the device.

Under autocast they fall through for the devices PyTorch knows; ours joins those. ``flex_attention`` holds a fixed list
of device types with no way to add one, and ``import torch`` does not import it: its check is widened when it is first
imported. Everything behind both is PyTorch's own.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch

AUTOCAST = torch._C.DispatchKey.AutocastPrivateUse1
NAME = "torch.nn.attention.flex_attention"


def install() -> None:
    """Cheap: imports nothing of PyTorch's."""
    getattr(torch._ops, "_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS", []).append(AUTOCAST)
    for op in torch._ops._higher_order_ops.values():
        op.fallthrough(AUTOCAST)
    if NAME in sys.modules:
        _widen(sys.modules[NAME])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds that one module, where Python itself would, and is gone afterwards."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != NAME:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Widened(spec.loader)
        return spec


class _Widened(Loader):
    def __init__(self, own: Loader):
        self.own = own

    def __getattr__(self, name: str) -> Any:  # `inspect` reads the source through the loader
        return getattr(self.own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.own.exec_module(module)
        _widen(module)


def _widen(module: ModuleType) -> None:
    check = getattr(module, "_validate_device", None)
    if check is None:  # a PyTorch that no longer asks
        return

    def _validate_device(query: Any, key: Any, value: Any) -> None:
        if query.device.type != "tpu":
            check(query, key, value)

    module._validate_device = _validate_device
    op = torch.ops.higher_order.flex_attention

    @op.py_impl(AUTOCAST)
    def autocast(query: Any, key: Any, value: Any, *rest: Any) -> Any:
        dtype = torch.get_autocast_dtype("tpu")
        cast = [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (query, key, value)]
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(AUTOCAST)):
            return op(*cast, *rest)
