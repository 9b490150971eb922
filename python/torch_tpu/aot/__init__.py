"""Programs that leave the process: exported PyTorch models as StableHLO, as files that another process runs at once, and as
portable artifacts for other programs. See docs/aot.md.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_tpu.aot._artifact import load, save
from torch_tpu.aot._loaded import Loaded
from torch_tpu.aot._portable import portable

__all__ = ["Loaded", "load", "portable", "save", "stablehlo"]


def stablehlo(
    subject: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
) -> str:
    """The StableHLO module, as text, that ``subject`` is compiled from: a ``torch.export.ExportedProgram``, or a module or
    function with example arguments, which is exported first. Tensors may live on any device, the meta device too.

    ``main`` takes the parameters, buffers and constants in the order of the program's ``graph_signature.input_specs``, then
    the user's tensors in the order of the flattened arguments, then, if random numbers are drawn, the generator's state
    (seed and offset, ``tensor<2xui64>``). It gives the new values of the inputs that the program writes (buffers and the
    user's tensors, in the order of the parameters; they are marked ``tf.aliasing_output``), then the user's results in the
    order of the flattened output, then, if the program checks indices and the like, a 0-d ``i32``: 0, or which check failed.
    Values that are no tensors are none of its parameters and results.

    Raises:
        NotImplementedError: for an op that has no lowering, with its line.
        ValueError: for a program with dynamic sizes.
    """
    from torch_tpu.aot._capture import capture  # torch.export is slow to import

    return capture(subject, args, kwargs).module
