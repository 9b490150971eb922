"""Places where other projects look for parts of the backend. Everything here forwards to the public names."""

from torch_tpu._internal import execution_mode, sync

__all__ = ["execution_mode", "sync"]
