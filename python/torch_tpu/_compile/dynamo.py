"""What Dynamo has to know of the device before it traces anything.

Plain ``torch.compile(model)``: graphs that touch the device are ours, all others stay Inductor's. PyTorch has no hook
for a backend per device (``torch._dynamo`` knows one default for all), so the object that calls Inductor is asked
first. ``TORCH_TPU_COMPILE_DEFAULT=0`` leaves it alone.

``torch.tpu.*`` inside a compiled function is treated as ``torch.cuda.*`` is: what asks whether and which device there
is becomes a constant of the graph; the rest (synchronizing, generators, memory figures) runs in Python between graphs.
"""

import contextlib
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from torch_tpu._compile.late import when_imported

CONSTANT = ("is_available", "is_initialized", "device_count", "current_device", "is_bf16_supported")


def install() -> None:
    """Cheap: imports neither Dynamo nor Inductor."""
    when_imported("torch._dynamo.trace_rules", _teach)
    when_imported("torch._dynamo.variables.torch", _fold)
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


def _teach(trace_rules: ModuleType) -> None:
    trace_rules.add("torch_tpu")
    with contextlib.suppress(AttributeError):  # another PyTorch: these break the graph then
        for name in CONSTANT:
            trace_rules.manual_torch_name_rule_map[f"torch.tpu.{name}"] = trace_rules.TorchInGraphFunctionVariable


def _fold(variables: ModuleType) -> None:
    with contextlib.suppress(AttributeError):
        variables.constant_fold_functions.update({getattr(torch.tpu, name): None for name in CONSTANT})


def _touches_device(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    if any(isinstance(x, torch.Tensor) and x.device.type == "tpu" for x in inputs):
        return True
    made = (node.meta.get("example_value") for node in graph.graph.nodes)
    return any(isinstance(x, torch.Tensor) and x.device.type == "tpu" for x in made)
