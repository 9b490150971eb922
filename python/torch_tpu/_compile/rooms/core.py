"""Tensors at their rooms, and what all rules use: true sizes, filling, laying out anew."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

# What PyTorch writes sizes with, beside sums and products: on numbers, and on 0-d tensors.
BY_NAME = {
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "ToFloat": lambda a: a.double() if isinstance(a, torch.Tensor) else float(a),
    "IntTrueDiv": lambda a, b: (a.double() if isinstance(a, torch.Tensor) else a) / b,
    "FloatTrueDiv": lambda a, b: a / b,
    "Max": lambda *a: _chosen(torch.maximum, max, a),
    "Min": lambda *a: _chosen(torch.minimum, min, a),
}
KINDS = {getattr(functions, name): f for name, f in BY_NAME.items()}


class NoRule(Exception):
    """Why a graph can't run in rooms."""


@dataclass(frozen=True)
class Part:
    """One factor of a dimension: its room, and how many of them are valid (None: all)."""

    room: int
    valid: sympy.Expr | None = None

    @property
    def true(self) -> sympy.Expr:
        """Its true size."""
        return sympy.Integer(self.room) if self.valid is None else self.valid


Dim = tuple[Part, ...]
ONE: Dim = (Part(1),)


@dataclass
class Roomy:
    """A tensor at its room, with what of each dimension is valid."""

    tensor: torch.Tensor
    dims: tuple[Dim, ...]

    def loose(self) -> list[int]:
        """Dimensions with an invalid rest."""
        return [d for d, dim in enumerate(self.dims) if is_loose(dim)]


def is_loose(dim: Dim) -> bool:
    return any(part.valid is not None for part in dim)


def room_of(dim: Dim) -> int:
    return prod(part.room for part in dim)


def room(n: int) -> int:
    """The next power of two."""
    return 1 << max(n - 1, 0).bit_length()


def smallest(room: int) -> int:
    """The smallest size that has this room."""
    return room // 2 + 1 if room > 1 else 0


def expression(size: Any) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def symbols_of(value: Any) -> set[sympy.Symbol]:
    sizes = value.shape if isinstance(value, torch.Tensor) else [value]  # None has none
    return {s for size in sizes if isinstance(size, torch.SymInt) for s in size.node.expr.free_symbols}


def _chosen(tensors: Callable[..., Any], numbers: Callable[..., Any], values: Sequence[Any]) -> Any:
    if not any(isinstance(v, torch.Tensor) for v in values):
        return numbers(values)
    return reduce(tensors, (v if isinstance(v, torch.Tensor) else torch.full((), v, device="tpu") for v in values))


def number_of(value: Any) -> Any:
    """What a number of a traced graph stands for: an expression if it depends on sizes."""
    return value.node.expr if isinstance(value, (torch.SymInt, torch.SymFloat)) else value


class Rooms:
    """Runs nodes at given rooms. ``sizes`` are the true sizes as 0-d int64 device tensors."""

    def __init__(self, rooms: Mapping[sympy.Symbol, int], sizes: Mapping[sympy.Symbol, torch.Tensor]) -> None:
        self.sizes = sizes
        self.ranges = {symbol: ValueRanges(smallest(room), room) for symbol, room in rooms.items()}

    def size(self, expr: Any) -> int:
        """The room of a size: the most that it can be. It may fall as another grows.

        Raises:
            NoRule: nothing bounds it.
        """
        expr = sympy.sympify(expr)
        most = expr if expr.is_Integer else bound_sympy(expr, self.ranges).upper
        if not most.is_Integer:
            raise NoRule(f"the size {expr}, which nothing bounds")
        return int(most)

    def dims(self, shape: Sequence[Any]) -> tuple[Dim, ...]:
        """What a (fake) tensor's shape says: symbolic sizes are valid at their front."""
        exprs = [expression(size) for size in shape]
        return tuple((Part(self.size(e), e if e.free_symbols else None),) for e in exprs)

    def shape(self, shape: Sequence[Any]) -> list[int]:
        return [self.size(expression(size)) for size in shape]

    def true(self, expr: Any) -> Any:
        """The value of a size expression, as a number or a 0-d tensor."""
        if not isinstance(expr, sympy.Expr):
            return expr
        if expr.is_Integer:
            return int(expr)
        if expr.is_Float:
            return float(expr)
        if expr.is_Symbol and expr in self.sizes:
            return self.sizes[expr]
        if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
            expr = sympy.Mul(*[expr.base] * int(expr.exp), evaluate=False)
        parts = [self.true(arg) for arg in expr.args]
        if isinstance(expr, (sympy.Add, sympy.Mul)):
            total = parts[0]
            for part in parts[1:]:
                total = total + part if isinstance(expr, sympy.Add) else total * part
            return total
        if type(expr) in KINDS:
            return KINDS[type(expr)](*parts)
        raise NoRule(f"the size {expr}")

    def end(self, dim: Dim) -> Any:
        """The true size of a dimension whose valid places are its front, as a number or a 0-d tensor.

        Raises:
            NoRule: they are not.
        """
        if is_loose(dim[1:]):
            raise NoRule("a place in a merged dynamic dimension")
        return self.true(prod((part.true for part in dim), start=sympy.Integer(1)))

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
                if not isinstance(value, torch.Tensor):
                    value = torch.full((), value, dtype=tensor.dtype, device="tpu")
                tensor = torch.where(mask, tensor, value)
        return Roomy(tensor, x.dims)

    # ------------------------------------------------------------ laying out anew

    def picked(self, x: Roomy, d: int, index: torch.Tensor, dim: Dim) -> Roomy:
        """x with dimension d made of the places in `index`, those beyond either end being of no account."""
        index = index.clamp(0, max(x.tensor.shape[d] - 1, 0))
        return Roomy(x.tensor.index_select(d, index), (*x.dims[:d], dim, *x.dims[d + 1 :]))

    def laid(self, x: Roomy, d: int, wanted: Dim) -> Roomy:
        """x with dimension d divided otherwise: the same places, in the order of their true sizes."""
        have = x.dims[d]
        if _plain(have) == _plain(wanted):
            return x
        if sympy.simplify(prod(p.true for p in have) - prod(p.true for p in wanted)) != 0:
            raise NoRule(f"operands whose dynamic sizes are not the same: {have} and {wanted}")
        place = torch.arange(room_of(wanted), device="tpu")
        order, count = 0, 1
        for part in reversed(wanted):
            order, place, count = order + place % part.room * count, place // part.room, count * self.true(part.true)
        source, count = 0, 1
        for k, part in reversed(list(enumerate(have))):
            true = self.true(part.true)
            source = source + (order % true if k else order) * count
            order, count = order // true, count * part.room
        return self.picked(x, d, source, wanted)

    def like(self, x: Any, dims: Sequence[Dim]) -> Any:
        """x divided as `dims` are, from the first on, wherever one of the two is dynamic: what an op takes for
        the same place of two operands must be the same."""
        if isinstance(x, Roomy):
            for d, (have, dim) in enumerate(zip(x.dims, dims)):
                if (is_loose(have) or is_loose(dim)) and have != ONE and dim != ONE:
                    x = self.laid(x, d, dim)
        return x

    def call(self, op: Callable[..., Any], args: Any, kwargs: Any, number: Callable[..., Any] | None = None) -> Any:
        """The op at the rooms of its sizes; with ``number`` an expression may also be a number to compute with.

        Raises:
            NoRule: one is, without it.
        """
        sized = [isinstance(a, sympy.Expr) for a in args]
        if number is None:
            kinds = [str(a.type) for a in op._schema.arguments if not a.kwarg_only]
            if any(s and "int" not in kind for s, kind in zip(sized, kinds)) or _has_expression(kwargs.values()):
                raise NoRule(f"{op} of a number that is a size")

        def plain(a: Any) -> Any:
            if isinstance(a, Roomy):
                return a.tensor
            if isinstance(a, sympy.Expr):
                return (number or self.size)(a)
            if isinstance(a, (list, tuple)):
                return type(a)(map(plain, a))
            return a

        if number is not None and any(sized) and op._overloadname == "Scalar" and hasattr(op.overloadpacket, "Tensor"):
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
        for d, dim in enumerate(x.dims):
            if any(part.valid is not None for part in dim[1:]):
                true = prod(part.true for part in dim)
                x = self.laid(x, d, (Part(self.size(true), true),))
        return x.tensor, [prod((part.true for part in dim), start=sympy.Integer(1)) for dim in x.dims]


def _has_expression(values: Iterable[Any]) -> bool:
    return any(isinstance(v, sympy.Expr) for v in values)


def _plain(dim: Dim) -> Dim:
    """Without factors of one, static ones that stand side by side multiplied."""
    out: list[Part] = []
    for part in dim:
        if part == Part(1):
            continue
        if out and part.valid is None and out[-1].valid is None:
            out[-1] = Part(out[-1].room * part.room)
        else:
            out.append(part)
    return tuple(out)
