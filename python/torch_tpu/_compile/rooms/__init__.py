"""Dynamic sizes in rooms: a graph traced for any size runs at the next power of two, one plan for all sizes up to it.

A dimension of symbolic size n is padded to its *room*; only its front is valid. Most ops never let elements of
different places meet, so the rest may hold anything. Where they do meet (a sum over such a dimension, a product
contracting it, an index looked up), it is filled first with what changes nothing. The true sizes are 0-d tensors, so a
plan holds for all of them. What has no rule here refuses, and the graph gets a plan for each size instead.

``core`` has the parts that rules are made of, ``rules`` finds the rule of an op; the rules are in ``shapes``,
``meetings`` and ``places``.
"""

from torch_tpu._compile.rooms import meetings, places, shapes  # noqa: F401 - they register their rules
from torch_tpu._compile.rooms.core import BY_NAME, NoRule, Rooms, Roomy, number_of, room, symbols_of
from torch_tpu._compile.rooms.rules import run

__all__ = ["BY_NAME", "NoRule", "Rooms", "Roomy", "number_of", "room", "run", "symbols_of"]
