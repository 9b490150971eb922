"""The entry point PyTorch calls at the end of ``import torch``. Cheap, silent, repeatable, and never fatal."""

import contextlib
import threading
import warnings

_lock = threading.RLock()
_done = False
_problem: Exception | None = None


def load() -> None:
    """Makes ``tpu`` a device of this process. No PJRT client is created before the first tensor needs one."""
    global _done, _problem
    with _lock:
        if _done:
            return
        _done = True  # first: what follows imports torch_tpu, which calls load() again
        try:
            from torch_tpu import _device

            _device.register()
        except Exception as error:  # `import torch` must survive whatever is wrong with us
            _problem = error
            _warn(f"torch_tpu could not load, so this process has no 'tpu' device: {error}\n{ADVICE}")


def problem() -> Exception | None:
    """Why there is no ``tpu`` device in this process, or None when there is one."""
    return _problem


ADVICE = "`python -m torch_tpu doctor` tells what is wrong and what to do about it."


def _warn(text: str) -> None:
    with contextlib.suppress(RuntimeWarning):  # `python -W error` must not make `import torch` fail either
        warnings.warn(text, RuntimeWarning, stacklevel=3)
