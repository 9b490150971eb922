"""A device piece whose inputs have dynamic sizes: one plan for all sizes of a room where its ops allow it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch.fx import Node

from torch_tpu import _C
from torch_tpu._compile.pieces import DevicePiece, begin, recording, stored
from torch_tpu._compile.pieces import run as run_exactly
from torch_tpu._compile.rooms import BY_NAME, NoRule, Rooms, Roomy, number_of, room, run, symbols_of
from torch_tpu._compile.rooms.core import Dim, Part, is_loose, room_of

HANDED = "handed out"
"""Marks nodes whose values the program's caller sees: they lie in memory as eager's do."""


@dataclass
class Room:
    """What runs at one room: a plan for each way in which the inputs lie in memory."""

    graph: _C.Graph
    shapes: list[list[int] | None]  # of the inputs with dynamic sizes
    sizes: Callable[..., Sequence[Any]] = tuple  # of what is made (or the number it is), from the true sizes
    last: Sequence[int] = ()  # the true sizes of the last call
    packed: set[int] = field(default_factory=set)  # inputs that have come packed


@dataclass(frozen=True)
class Source:
    """Where a size is found: input k, or its dimension d, is ``factor`` times the size plus ``offset``."""

    k: int
    d: int | None
    factor: int = 1
    offset: int = 0

    def read(self, args: Sequence[Any]) -> int:
        n = args[self.k] if self.d is None else args[self.k].shape[self.d]
        return n if self.factor == 1 and not self.offset else (n - self.offset) // self.factor


class DynamicPiece(DevicePiece):
    """Where an op has no rule for rooms, it runs as any device piece, a plan for each size; ``reason`` says why."""

    def __init__(
        self, nodes: Sequence[Node], takes: Sequence[Node], gives: Sequence[Node], ends: Sequence[Node]
    ) -> None:
        super().__init__(nodes, takes, gives, ends)
        self.reason = ""
        self.rooms: dict[tuple[int, ...], Room] = {}
        fakes = [node.meta.get("val") for node in takes]
        self.where = _sources(fakes)
        if unknown := set().union(*map(symbols_of, fakes)) - set(self.where):
            self.reason = f"nothing tells the size {', '.join(map(str, unknown))}"
        if any("val" not in node.meta for node in takes):
            self.reason = "nothing tells the shape of an input"
        # A view of an input or of another result is made as eager makes it: AOTAutograd, which makes it anew from that
        # other tensor, goes by its sizes and strides.
        known = {*takes, *gives}
        self.views = {node: chain for node in gives if (chain := _views(node)) and _base(chain[0]) in known}
        self.made = [node for node in gives if node not in self.views]
        self.packed = [bool(node.meta.get(HANDED)) for node in self.made]
        self.shapes = [fake.shape if isinstance(fake, torch.Tensor) else None for fake in fakes]

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self.reason:
            return super().__call__(args)
        sizes = [source.read(args) for source in self.where.values()]
        key = tuple(map(room, sizes))
        found = self.rooms.get(key)
        if found is None:
            rooms = Rooms(dict(zip(self.where, key)), {})
            try:
                shapes = [None if s is None or not _is_dynamic(s) else rooms.shape(s) for s in self.shapes]
            except NoRule as why:
                self.reason = str(why)
                return super().__call__(args)
            found = self.rooms[key] = Room(_C.Graph(), shapes)
        found.last = sizes
        with torch.no_grad():
            tensors = [*self._given(found, args), *map(_number, sizes)]
        results = found.graph(tensors)
        if results is None:
            try:
                self._record_room(found, key, tensors)
            except Exception as error:  # no rule, or something that cannot be recorded: the exact sizes tell which
                self.reason = str(error) or type(error).__name__
                return super().__call__(args)
            results = found.graph(tensors)
            assert results is not None, "a graph was not kept"
        shapes, rest = zip(found.sizes(*sizes), self.packed), iter(results)
        made = [_sized(next(rest), s, packed) if isinstance(s, tuple) else s for s, packed in shapes]
        return self._with_views(args, made) if self.views else made

    def _given(self, found: Room, args: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors among the inputs as the plan takes them."""
        tensors = []
        for k, (x, place, shape) in enumerate(zip(args, found.shapes, self.shapes)):
            if shape is not None:
                tensors.append(_placed(x, place, shape, k in found.packed))
                if place is not None and list(tensors[-1].shape) != place:
                    found.packed.add(k)
        return tensors

    def report(self) -> list[dict[str, tuple[int, int]]]:
        """For each room the sizes of its last call and what it has place for, by symbol."""
        names = [str(symbol) for symbol in self.where]
        return [dict(zip(names, zip(room.last, key))) for key, room in self.rooms.items()]

    def _with_views(self, args: Sequence[Any], made: Sequence[Any]) -> list[Any]:
        values = {**dict(zip(self.takes, args)), **dict(zip(self.made, made))}
        with torch.no_grad():
            for chain in self.views.values():
                for node in chain:
                    if node not in values:
                        values[node] = run_exactly(node, values)
        return [values[node] for node in self.gives]

    def _record_room(self, into: Room, key: tuple[int, ...], tensors: list[torch.Tensor]) -> None:
        with recording(into.graph, tensors) as (stands, outs):
            inputs, numbers = stands[: len(stands) - len(key)], stands[len(stands) - len(key) :]
            rooms = Rooms(dict(zip(self.where, key)), dict(zip(self.where, numbers)))
            rest, values = iter(inputs), {}
            for node, shape in zip(self.takes, self.shapes):
                if shape is None:
                    values[node] = number_of(node.meta["val"])
                else:
                    values[node] = _unpacked(rooms, next(rest), rooms.dims(shape))
            for node in self.nodes:
                begin(node)
                values[node] = run(rooms, node, values)
            sizes = []
            for node, packed in zip(self.made, self.packed):
                value = values[node]
                if isinstance(value, sympy.Expr):
                    sizes.append(value)
                    continue
                x, shape = _packed(rooms, value) if packed else rooms.output(value)
                outs.append(stored(x).contiguous())
                sizes.append(tuple(shape))
            into.sizes = sympy.lambdify(list(self.where), sizes, [BY_NAME, "math"])
            self._try_views(into, key, outs)

    def _try_views(self, into: Room, key: Sequence[int], outs: Sequence[torch.Tensor]) -> None:
        """Fails where views of results are none at true sizes, or where Python cannot compute these sizes."""
        within = [max(n - 1, 1) for n in key]
        numbers = dict(zip(self.where, within))
        metas, rest = [], iter(outs)
        for shape, packed in zip(into.sizes(*within), self.packed):
            if isinstance(shape, tuple):
                x = next(rest)
                strides = _strides(shape) if packed else x.stride()
                metas.append(torch.empty_strided(shape, strides, dtype=x.dtype, device="meta"))
            else:
                metas.append(shape)
        values = dict(zip(self.made, metas))
        for node, shape in zip(self.takes, self.shapes):
            fake = node.meta["val"]
            if shape is None:
                values[node] = int(fake.node.expr.subs(numbers)) if isinstance(fake, torch.SymInt) else fake
        for chain in self.views.values():
            if _base(chain[0]) not in self.takes:
                for node in chain:
                    values[node] = run_exactly(node, values)


def _sources(fakes: Sequence[Any]) -> dict[sympy.Symbol, Source]:
    """Which input tells each symbol, the plainest first."""
    found: dict[sympy.Symbol, Source] = {}
    sizes = [(k, None, fake) for k, fake in enumerate(fakes) if isinstance(fake, torch.SymInt)]
    tensors = [(k, fake) for k, fake in enumerate(fakes) if isinstance(fake, torch.Tensor)]
    sizes += [(k, d, n) for k, fake in tensors for d, n in enumerate(fake.shape) if isinstance(n, torch.SymInt)]
    for k, d, size in sizes:
        if size.node.expr.is_Symbol:
            found.setdefault(size.node.expr, Source(k, d))
    for k, d, size in sizes:
        expr = size.node.expr
        for symbol in expr.free_symbols - set(found):
            line = sympy.Poly(expr, symbol).all_coeffs() if expr.is_polynomial(symbol) else []
            if len(line) == 2 and all(c.is_Integer for c in line) and line[0]:
                found[symbol] = Source(k, d, *map(int, line))
    return found


def _views(node: Node) -> list[Node]:
    """The views that lead to the node from what it is a view of, in order."""
    chain = []
    while _viewed(node) is not None:
        chain.insert(0, node)
        node = _viewed(node)
    return chain


def _viewed(node: Node) -> Node | None:
    """What the node's result is a view of; None if it is none."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args or not node.target._schema.arguments:
        return None
    alias, source = node.target._schema.arguments[0].alias_info, node.args[0]
    return None if alias is None or alias.is_write or not isinstance(source, Node) else source


def _base(node: Node) -> Node:
    """What the node is a view of in the end; itself if of nothing."""
    while (source := _viewed(node)) is not None:
        node = source
    return node


def _sized(x: torch.Tensor, shape: tuple[int, ...], packed: bool) -> torch.Tensor:
    """x with its valid front alone, in the memory of its room."""
    if x.shape != shape:
        x.set_(x.untyped_storage(), x.storage_offset(), shape, _strides(shape) if packed else x.stride())
    return x


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Those of a contiguous tensor."""
    return torch.empty(shape, device="meta").stride()


def _packed(rooms: Rooms, x: Any) -> tuple[torch.Tensor, list[sympy.Expr]]:
    """A result whose elements follow each other as those of a contiguous tensor of its true sizes do. Its dimensions up
    to the last dynamic one are one."""
    tensor, shape = rooms.output(x)
    dims = tuple((Part(n, s if s.free_symbols else None),) for n, s in zip(tensor.shape, shape))
    head = max((d + 1 for d, dim in enumerate(dims) if is_loose(dim)), default=0)
    if head:
        merged = sum(dims[:head], ())
        whole = Roomy(tensor.reshape(room_of(merged), *tensor.shape[head:]), (merged, *dims[head:]))
        tensor = rooms.laid(whole, 0, _front(merged)).tensor
    return tensor, shape


def _unpacked(rooms: Rooms, x: torch.Tensor, dims: tuple[Dim, ...]) -> Roomy:
    """An input at its room: as it is, or from a packed one."""
    sizes = [room_of(dim) for dim in dims]
    if list(x.shape) != sizes:
        head = len(dims) - x.dim() + 1
        merged = sum(dims[:head], ())
        x = rooms.laid(Roomy(x, (_front(merged), *dims[head:])), 0, merged).tensor.reshape(sizes)
    return Roomy(x, dims)


def _front(merged: Dim) -> Dim:
    """One part with all valid places first."""
    return (Part(room_of(merged), math.prod((part.true for part in merged), start=sympy.Integer(1))),)


def _is_dynamic(shape: Sequence[Any]) -> bool:
    return any(isinstance(size, torch.SymInt) for size in shape)


@lru_cache(4096)
def _number(n: int) -> torch.Tensor:
    return torch.tensor(n).to("tpu")


def _placed(x: torch.Tensor, shape: list[int] | None, fake: Sequence[Any], packed: bool) -> torch.Tensor:
    """x on the device, at the front of a tensor of `shape` or packed in the memory of one (what fills its room is both:
    ``packed`` says which). What an earlier graph gave lies there already; all else goes through the host, since a
    program that pads would be one more for each size."""
    if shape is None or (list(x.shape) == shape and not packed):
        return x if x.device.type == "tpu" else x.to("tpu")
    count, plain = math.prod(shape) * x.element_size(), not (x.is_conj() or x.is_neg())
    if x.device.type == "tpu" and plain and x.storage_offset() == 0 and x.untyped_storage().nbytes() >= count:
        if x.stride() == (strides := _strides(shape)) and not packed:
            return x.as_strided(shape, strides)
        if x.is_contiguous():
            head = max(d + 1 for d, n in enumerate(fake) if isinstance(n, torch.SymInt))
            sizes = [math.prod(shape[:head]), *shape[head:]]
            return x.as_strided(sizes, _strides(sizes))
    if list(x.shape) == shape:
        return x if x.device.type == "tpu" else x.to("tpu")
    whole = torch.zeros(shape, dtype=x.dtype)
    whole[tuple(slice(n) for n in x.shape)] = x.cpu()
    return whole.to("tpu")
