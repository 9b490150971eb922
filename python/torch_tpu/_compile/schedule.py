"""Which nodes of an ATen graph run together: on the device as one plan, or on the host as they stand."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from torch_tpu._compile.control import CONTROL

copy_ = torch.ops.aten.copy_.default
# What checkpointing makes of random ops.
SAVE, AGAIN = torch._prims.rng_prims.run_and_save_rng_state, torch._prims.rng_prims.run_with_rng_state


@dataclass
class Piece:
    """Nodes that run together, in order."""

    on_device: bool
    nodes: list[Node] = field(default_factory=list)


def tensors_of(value: Any) -> Iterable[torch.Tensor]:
    """The tensors in a node's (fake) value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


def runs_on_device(node: Node) -> bool:
    """Whether the node takes and gives device tensors only; host numbers (0-d) may come along."""
    if node.target in (SAVE, AGAIN):
        return True
    if not isinstance(node.target, torch._ops.OpOverload) and node.target not in CONTROL:
        return False
    made = list(tensors_of(node.meta.get("val")))
    if not made or any(t.device.type != "tpu" or t.layout != torch.strided for t in made):
        return False
    taken = [t for arg in node.all_input_nodes for t in tensors_of(arg.meta.get("val"))]
    return all(t.layout == torch.strided and (t.device.type == "tpu" or t.dim() == 0) for t in taken)


def schedule(nodes: Sequence[Node], refused: Set[Node]) -> list[Piece]:
    """Puts ``nodes`` (a graph's calls, in order) into as few pieces as their dependencies allow.

    ``refused`` are nodes that turned out not to run in a plan. Pieces alternate: even levels are the host's. Writes
    into inputs come last, as AOTAutograd has put them: what reads the old value must not move behind them.
    """
    level: dict[Node, int] = {}
    last: list[Node] = []
    for node in nodes:
        if node.target is copy_:
            last.append(node)
        else:
            level[node] = _level(node, level, refused)
    end = max(level.values(), default=0)
    for node in last:
        level[node] = max(_level(node, level, refused), end + (end + _parity(node, refused)) % 2)
    pieces = {k: Piece(on_device=k % 2 == 1) for k in sorted(set(level.values()))}
    for node in nodes:
        pieces[level[node]].nodes.append(node)
    return list(pieces.values())


def _parity(node: Node, refused: Set[Node]) -> int:
    return int(node not in refused and runs_on_device(node))


def _level(node: Node, level: dict[Node, int], refused: Set[Node]) -> int:
    before = max((level.get(arg, 0) for arg in node.all_input_nodes), default=0)
    if node.target is getitem:
        return before
    return before + (before + _parity(node, refused)) % 2
