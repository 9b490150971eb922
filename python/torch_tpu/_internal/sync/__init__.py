"""``sync.synchronize`` and ``sync.sync.synchronize`` are the same function."""

from torch_tpu._internal.sync import sync
from torch_tpu._internal.sync.sync import synchronize

__all__ = ["sync", "synchronize"]
