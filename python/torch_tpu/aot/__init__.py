"""Programs that leave the process: exported PyTorch models as StableHLO, as files that another process runs at once,
and as portable artifacts for other programs (docs/aot.md); and what the TPU compiler says of them (docs/tpu-check.md).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_tpu._check.report import Report
from torch_tpu.aot._artifact import load, save
from torch_tpu.aot._compile import compile, topologies
from torch_tpu.aot._loaded import Loaded
from torch_tpu.aot._portable import portable

__all__ = ["Loaded", "Report", "compile", "load", "portable", "save", "stablehlo", "topologies"]


def stablehlo(
    subject: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
) -> str:
    """The StableHLO module, as text, that ``subject`` is compiled from: a ``torch.export.ExportedProgram``, or a module
    or function with example arguments, which is exported first. Tensors may live on any device, the meta device too.

    ``main`` takes, in this order:

    * parameters, buffers and constants as in the program's ``graph_signature.input_specs``,
    * the user's tensors as in the flattened arguments,
    * if random numbers are drawn: the generator's seed and offset, a ``tensor<2xui64>``.

    It gives:

    * the new values of inputs that the program writes (buffers, the user's tensors), in the order of the parameters,
      which are marked ``tf.aliasing_output``,
    * the user's results as in the flattened output, each an array of its own,
    * if it checks indices and the like: a 0-d ``i32``, which is 0 or says which check failed.

    Arguments and results that are no tensors are none of these.

    Raises:
        NotImplementedError: for an op that has no lowering, with its line.
        ValueError: for a program with dynamic sizes.
    """
    from torch_tpu.aot._capture import capture  # torch.export is slow to import

    return capture(subject, args, kwargs).module
