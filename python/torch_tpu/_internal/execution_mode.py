"""``execution_mode.eager_mode = EagerMode.DEFER_AND_FUSE``."""

import sys

from torch_tpu.tpu._mode import EagerMode, EagerModeModule, set_eager_mode

__all__ = ["EagerMode", "eager_mode", "set_eager_mode"]

sys.modules[__name__].__class__ = EagerModeModule
