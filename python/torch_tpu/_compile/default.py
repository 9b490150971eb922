"""Plain ``torch.compile(model)``: graphs that touch the device are ours, all others stay Inductor's.

PyTorch has no hook for a backend per device (``torch._dynamo`` knows one default for all), so the object that calls
Inductor is asked first. ``TORCH_TPU_COMPILE_DEFAULT=0`` leaves it alone.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch


def install() -> None:
    """Cheap: imports neither Dynamo nor Inductor."""
    if os.environ.get("TORCH_TPU_COMPILE_DEFAULT", "1") == "0":
        return
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    if wrapper is None:  # another PyTorch: backend="tpu" remains
        return
    inductor = wrapper.__call__

    def __call__(self: Any, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        if _touches_device(graph, inputs):
            from torch_tpu._compile.backend import tpu

            return tpu(graph, inputs)
        return inductor(self, graph, inputs)

    wrapper.__call__ = __call__


def _touches_device(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    if any(isinstance(x, torch.Tensor) and x.device.type == "tpu" for x in inputs):
        return True
    made = (node.meta.get("example_value") for node in graph.graph.nodes)
    return any(isinstance(x, torch.Tensor) and x.device.type == "tpu" for x in made)
