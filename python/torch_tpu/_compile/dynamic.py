"""A device piece whose inputs have dynamic sizes: one plan for all sizes of a room where its ops allow it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch.fx import Node

from torch_tpu import _C
from torch_tpu._compile.pieces import DevicePiece, begin, recording, stored
from torch_tpu._compile.room_rules import run
from torch_tpu._compile.rooms import Rooms, Roomy, room, symbols_of


@dataclass
class Room:
    """What runs at one room: a plan for each way in which the inputs lie in memory."""

    graph: _C.Graph
    shapes: list[list[int] | None]  # of the inputs with dynamic sizes
    sizes: Callable[..., Sequence[tuple[int, ...]]] = tuple  # of the results, from the true sizes
    last: Sequence[int] = ()  # the true sizes of the last call


class DynamicPiece(DevicePiece):
    """Where an op has no rule for rooms, it runs as any device piece, a plan for each size; ``reason`` says why."""

    def __init__(
        self, nodes: Sequence[Node], takes: Sequence[Node], gives: Sequence[Node], ends: Sequence[Node]
    ) -> None:
        super().__init__(nodes, takes, gives, ends)
        self.reason = ""
        self.rooms: dict[tuple[int, ...], Room] = {}
        fakes = [node.meta.get("val") for node in takes]
        found: dict[sympy.Symbol, tuple[int, int | None]] = {}
        for k, fake in enumerate(fakes):
            if isinstance(fake, torch.SymInt) and fake.node.expr.is_Symbol:
                found.setdefault(fake.node.expr, (k, None))
            elif isinstance(fake, torch.Tensor):
                for d, size in enumerate(fake.shape):
                    if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                        found.setdefault(size.node.expr, (k, d))
        self.where = found
        if unknown := set().union(*map(symbols_of, fakes)) - set(found):
            self.reason = f"nothing tells the size {', '.join(map(str, unknown))}"
        if any("val" not in node.meta for node in takes):
            self.reason = "nothing tells the shape of an input"
        if any(_base(node) is not node and _base(node) in {*takes, *gives} for node in gives):
            # AOTAutograd makes such a result anew from the other tensor, by the sizes and strides of this one
            self.reason = "a result is a view of an input or of another result"
        self.shapes = [fake.shape if isinstance(fake, torch.Tensor) else None for fake in fakes]

    def __call__(self, args: list[Any]) -> Sequence[torch.Tensor]:
        if self.reason:
            return super().__call__(args)
        sizes = [args[k] if d is None else args[k].shape[d] for k, d in self.where.values()]
        key = tuple(map(room, sizes))
        found = self.rooms.get(key)
        if found is None:
            rooms = Rooms(dict(zip(self.where, key)), {})
            shapes = [None if s is None or not _is_dynamic(s) else rooms.shape(s) for s in self.shapes]
            found = self.rooms[key] = Room(_C.Graph(), shapes)
        found.last = sizes
        with torch.no_grad():
            given = zip(args, found.shapes, self.shapes)
            tensors = [_placed(x, room) for x, room, shape in given if shape is not None] + [_number(n) for n in sizes]
        results = found.graph(tensors)
        if results is None:
            try:
                self._record_room(found, key, tensors)
            except Exception as error:  # no rule, or something that cannot be recorded: the exact sizes tell which
                self.reason = str(error) or type(error).__name__
                return super().__call__(args)
            results = found.graph(tensors)
            assert results is not None, "a graph was not kept"
        for x, shape in zip(results, found.sizes(*sizes)):
            if x.shape != shape:
                x.set_(x.untyped_storage(), x.storage_offset(), shape, x.stride())
        return results

    def report(self) -> list[dict[str, tuple[int, int]]]:
        """For each room the sizes of its last call and what it has place for, by symbol."""
        names = [str(symbol) for symbol in self.where]
        return [dict(zip(names, zip(room.last, key))) for key, room in self.rooms.items()]

    def _record_room(self, into: Room, key: tuple[int, ...], tensors: list[torch.Tensor]) -> None:
        with recording(into.graph, tensors) as (stands, outs):
            inputs, numbers = stands[: -len(key)], stands[-len(key) :]
            rooms = Rooms(dict(zip(self.where, key)), dict(zip(self.where, numbers)))
            rest, values = iter(inputs), {}
            for node, shape in zip(self.takes, self.shapes):
                fake = node.meta["val"]
                if shape is None:
                    values[node] = fake.node.expr if isinstance(fake, torch.SymInt) else fake
                else:
                    values[node] = Roomy(next(rest), rooms.dims(shape))
            for node in self.nodes:
                begin(node)
                values[node] = run(rooms, node, values)
            given = [rooms.output(values[node]) for node in self.gives]
            outs.extend(stored(x).contiguous() for x, _ in given)
            into.sizes = sympy.lambdify(list(self.where), [tuple(sizes) for _, sizes in given], "math")
            into.sizes(*key)  # an expression that Python cannot compute is found here


def _base(node: Node) -> Node:
    """What the node's result is a view of."""
    while isinstance(node.target, torch._ops.OpOverload) and node.args and node.target._schema.arguments:
        alias = node.target._schema.arguments[0].alias_info
        source = node.args[0]
        if alias is None or alias.is_write or not isinstance(source, Node):
            break
        node = source
    return node


def _is_dynamic(shape: Sequence[Any]) -> bool:
    return any(isinstance(size, torch.SymInt) for size in shape)


@lru_cache(4096)
def _number(n: int) -> torch.Tensor:
    return torch.tensor(n).to("tpu")


def _placed(x: torch.Tensor, shape: list[int] | None) -> torch.Tensor:
    """x on the device, at the front of a tensor of `shape`. What an earlier graph gave lies in its room already; all
    else goes through the host, since a program that pads would be one more for each size."""
    if shape is None or list(x.shape) == shape:
        return x if x.device.type == "tpu" else x.to("tpu")
    strides = torch.empty(shape, device="meta").stride()
    count = math.prod(shape) * x.element_size()
    plain = x.device.type == "tpu" and x.storage_offset() == 0 and x.stride() == strides
    if plain and x.untyped_storage().nbytes() >= count and not (x.is_conj() or x.is_neg()):
        return x.as_strided(shape, strides)
    whole = torch.zeros(shape, dtype=x.dtype)
    whole[tuple(slice(n) for n in x.shape)] = x.cpu()
    return whole.to("tpu")
