"""PyTorch's higher-order ops (``cond``, ``scan``, ``flex_attention`` …) on the device.

Under autocast they fall through for the devices PyTorch knows; ours joins those. ``flex_attention`` holds a fixed list
of device types with no way to add one: its check is widened. Everything behind both is PyTorch's own.
"""

from types import ModuleType
from typing import Any

import torch

from torch_tpu._compile.late import when_imported

AUTOCAST = torch._C.DispatchKey.AutocastPrivateUse1


def install() -> None:
    """Cheap: imports nothing of PyTorch's."""
    getattr(torch._ops, "_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS", []).append(AUTOCAST)
    for op in torch._ops._higher_order_ops.values():
        op.fallthrough(AUTOCAST)
    when_imported("torch.nn.attention.flex_attention", _widen)


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
