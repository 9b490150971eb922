"""The Dynamo backend ``tpu``."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

from torch_tpu._compile.program import Program

MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def tpu(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a Dynamo graph, forward and backward, each into one plan where all its ops have lowerings.

    ``mode`` is accepted and changes nothing: there is one way to compile. There are no ``options``.

    Raises:
        ValueError: for an unknown mode or any option.
    """
    if mode not in MODES:
        raise ValueError(
            f"torch.compile(backend='tpu'): mode is one of {', '.join(map(repr, MODES[1:]))}, not {mode!r}"
        )
    if options:
        raise ValueError(f"torch.compile(backend='tpu') takes no options; got {', '.join(sorted(options))}")
    return _aot(graph, inputs)


def _boxed(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[[list[Any]], Sequence[Any]]:
    return Program(graph)


def _forward(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[[list[Any]], Sequence[Any]]:
    """Of a graph that is differentiated: after what it returns it gives what the backward graph needs."""
    context = TracingContext.try_get()
    seen = None if context is None or context.fw_metadata is None else context.fw_metadata.num_forward
    return Program(graph, seen)


_aot = aot_autograd(
    fw_compiler=_forward,
    bw_compiler=_boxed,
    inference_compiler=_boxed,
    partition_fn=min_cut_rematerialization_partition,
    keep_inference_input_mutations=True,
)
