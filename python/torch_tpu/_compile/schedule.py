"""Which nodes of an ATen graph run together: on the device as one plan, or on the host as they stand."""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

from torch_tpu._compile.control import CONTROL

copy_ = torch.ops.aten.copy_.default
# Lines in here are nobody's but PyTorch's.
OUTSIDE = str(Path(torch.__file__).parent) + "/"
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


def kept_off(node: Node) -> str | None:
    """Why the node runs on the host; None if it takes and gives device tensors only (host numbers, 0-d, may come
    along), nothing for one that computes sizes."""
    if node.target in (SAVE, AGAIN):
        return None
    made = list(tensors_of(node.meta.get("val")))
    if not isinstance(node.target, torch._ops.OpOverload) and node.target not in CONTROL:
        return "it is no op of ATen" if made else ""
    if not made:
        return ""
    if any(t.device.type != "tpu" or t.layout != torch.strided for t in made):
        return "it makes something that is no dense tensor of the device"
    taken = [t for arg in node.all_input_nodes for t in tensors_of(arg.meta.get("val"))]
    if all(t.layout == torch.strided and (t.device.type == "tpu" or t.dim() == 0) for t in taken):
        return None
    return "it takes something that is no dense tensor of the device"


def line_of(node: Node) -> str:
    """The user's Python line that the node comes from, as ``file:line``; nothing if tracing noted none."""
    found = re.findall(r'File "([^<"][^"]*)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [(file, line) for file, line in found if not file.startswith(OUTSIDE)]
    return ":".join(own[-1]) if own else ""


def schedule(nodes: Sequence[Node], refused: Container[Node]) -> list[Piece]:
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


def _parity(node: Node, refused: Container[Node]) -> int:
    return int(node not in refused and kept_off(node) is None)


def _level(node: Node, level: dict[Node, int], refused: Container[Node]) -> int:
    before = max((level.get(arg, 0) for arg in node.all_input_nodes), default=0)
    if node.target is getitem:
        return before
    return before + (before + _parity(node, refused)) % 2
