"""TPUs as an ordinary PyTorch device.

Nothing needs to be imported: ``import torch`` finds this package through its entry point and ``torch.device("tpu")``
works from then on. Importing ``torch_tpu`` does the same where autoload is switched off.
"""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version

try:
    __version__ = _version("torch-tpu-rs")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0+source"

# With autoload on, the next line already calls `load` (torch's last act); the call below then finds the work done.
import torch  # noqa: F401

from torch_tpu._loader import load, problem

__all__ = ["__version__", "load", "problem"]

load()

if problem() is None:
    from torch_tpu import _internal, aot, tpu  # noqa: F401
