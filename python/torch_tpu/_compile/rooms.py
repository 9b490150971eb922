"""Dynamic sizes in rooms: a graph traced for any size runs at the next power of two, one plan for all sizes up to it.

A dimension of symbolic size n is padded to its *room*; only its front is valid. Most ops never let elements of
different places meet, so the rest may hold anything. Where they do meet (a sum over such a dimension, a product
contracting it, an index looked up), it is filled first with what changes nothing. The true sizes are 0-d tensors, so a
plan holds for all of them. What has no rule here refuses, and the graph gets a plan for each size instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch


class NoRule(Exception):
    """Why a graph can't run in rooms."""


@dataclass(frozen=True)
class Part:
    """One factor of a dimension: its room, and how many of them are valid (None: all)."""

    room: int
    valid: sympy.Expr | None = None


Dim = tuple[Part, ...]


@dataclass
class Roomy:
    """A tensor at its room, with what of each dimension is valid."""

    tensor: torch.Tensor
    dims: tuple[Dim, ...]

    def loose(self) -> list[int]:
        """Dimensions with an invalid rest."""
        return [d for d, dim in enumerate(self.dims) if any(part.valid is not None for part in dim)]


def room(n: int) -> int:
    """The next power of two."""
    return 1 << max(n - 1, 0).bit_length()


def expression(size: Any) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def symbols_of(value: Any) -> set[sympy.Symbol]:
    sizes = value.shape if isinstance(value, torch.Tensor) else [value]  # None has none
    return {s for size in sizes if isinstance(size, torch.SymInt) for s in size.node.expr.free_symbols}


class Rooms:
    """Runs nodes at given rooms. ``sizes`` are the true sizes as 0-d int64 device tensors."""

    def __init__(self, rooms: Mapping[sympy.Symbol, int], sizes: Mapping[sympy.Symbol, torch.Tensor]) -> None:
        self.rooms, self.sizes = rooms, sizes

    def size(self, expr: sympy.Expr) -> int:
        return int(expr.subs(self.rooms))

    def dims(self, shape: Sequence[Any]) -> tuple[Dim, ...]:
        """What a (fake) tensor's shape says: symbolic sizes are valid at their front."""
        exprs = [expression(size) for size in shape]
        return tuple((Part(self.size(e), e if e.free_symbols else None),) for e in exprs)

    def shape(self, shape: Sequence[Any]) -> list[int]:
        return [self.size(expression(size)) for size in shape]

    def true(self, expr: sympy.Expr) -> Any:
        """The value of a size expression, as a number or a 0-d tensor."""
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            return self.sizes[expr]
        parts = [self.true(arg) for arg in expr.args]
        if isinstance(expr, (sympy.Add, sympy.Mul)):
            total = parts[0]
            for part in parts[1:]:
                total = total + part if isinstance(expr, sympy.Add) else total * part
            return total
        raise NoRule(f"the size {expr}")

    # ------------------------------------------------------------ filling

    def mask(self, x: Roomy, d: int) -> torch.Tensor | None:
        """Which places of dimension d are valid, in x's rank."""
        found = None
        for k, part in enumerate(x.dims[d]):
            if part.valid is None:
                continue
            front = torch.arange(part.room, device="tpu") < self.true(part.valid)
            shape = [p.room if j == k else 1 for j, p in enumerate(x.dims[d])]
            front = front.view(shape)
            found = front if found is None else found & front
        if found is None:
            return None
        found = found.expand([p.room for p in x.dims[d]]).reshape(-1)
        return found.view([-1 if e == d else 1 for e in range(len(x.dims))])

    def filled(self, x: Any, value: Any, dims: Sequence[int] | None = None) -> Any:
        """x with `value` in the invalid rest of these dimensions (all by default)."""
        if not isinstance(x, Roomy):
            return x
        tensor = x.tensor
        for d in x.loose() if dims is None else dims:
            if (mask := self.mask(x, d)) is not None:
                tensor = torch.where(mask, tensor, torch.full((), value, dtype=tensor.dtype, device="tpu"))
        return Roomy(tensor, x.dims)

    def call(self, op: Callable[..., Any], args: Any, kwargs: Any, number: Callable[..., Any] | None = None) -> Any:
        def plain(a: Any) -> Any:
            if isinstance(a, Roomy):
                return a.tensor
            if isinstance(a, sympy.Expr):
                return (number or self.size)(a)
            if isinstance(a, (list, tuple)):
                return type(a)(map(plain, a))
            return a

        if number is not None and op._overloadname == "Scalar" and hasattr(op.overloadpacket, "Tensor"):
            op = op.overloadpacket.Tensor  # a size is a tensor here
        return op(*plain(list(args)), **{k: plain(v) for k, v in kwargs.items()})

    def wrap(self, out: Any, fake: Any, dims: tuple[Dim, ...] | None = None) -> Any:
        if isinstance(out, (list, tuple)):
            return tuple(self.wrap(o, f) for o, f in zip(out, fake))
        if not isinstance(out, torch.Tensor):
            return out
        dims = self.dims(fake.shape) if dims is None else dims
        if [room_of(dim) for dim in dims] != list(out.shape) or out.dtype != fake.dtype:
            raise NoRule(f"a result {out.dtype}{list(out.shape)} where {fake.dtype}{[*fake.shape]} was expected")
        return Roomy(out, dims)

    def output(self, x: Any) -> tuple[torch.Tensor, list[sympy.Expr]]:
        """A result to give out: the tensor at its room, and the sizes of its valid front."""
        if not isinstance(x, Roomy):
            raise NoRule(f"a result that is {x!r}")
        sizes = []
        for dim in x.dims:
            if any(part.valid is not None for part in dim[1:]):
                raise NoRule("a result with a dynamic size inside a merged dimension")
            head = dim[0].valid if dim and dim[0].valid is not None else sympy.Integer(dim[0].room if dim else 1)
            for part in dim[1:]:
                head = head * part.room
            sizes.append(head)
        return x.tensor, sizes


def room_of(dim: Dim) -> int:
    total = 1
    for part in dim:
        total *= part.room
    return total
