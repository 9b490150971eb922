"""Places named by a tensor: looking up, writing, adding."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from torch_tpu._compile.rooms.core import ONE, NoRule, Rooms, Roomy, is_loose
from torch_tpu._compile.rooms.rules import aten, axis, replaced, rule, together


def _named(rooms: Rooms, index: Roomy, x: Roomy, d: int, spare: bool = False) -> Roomy:
    """Indices into dimension d of x, which may count from its true end; those out of it stay out of the room too.
    With a `spare` place at the end of the room the rest of `index` names that, else the first."""
    if not is_loose(x.dims[d]) and not spare:
        return rooms.filled(index, 0)
    n, size, i = rooms.end(x.dims[d]), x.tensor.shape[d] + spare, index.tensor
    i = torch.where((i >= n) | (i < -n), size + i.abs(), torch.where(i < 0, i + n, i))
    return rooms.filled(Roomy(i, index.dims), size - 1 if spare else 0)


def _beside(rooms: Rooms, index: Roomy, x: Roomy, d: int) -> tuple[Roomy, int]:
    """The index divided as x is but along dimension d, and which that is."""
    at = axis(x, d)
    return rooms.like(index, replaced(x.dims, at, ONE)), at


def _spared(x: Roomy, d: int) -> torch.Tensor:
    """x with one place more at the end of dimension d: what is written there is lost."""
    shape = [1 if e == d else n for e, n in enumerate(x.tensor.shape)]
    return torch.cat([x.tensor, torch.zeros(shape, dtype=x.tensor.dtype, device="tpu")], d)


# ---------------------------------------------------------------- looking up


@rule(aten.embedding)
def _embedding(rooms: Rooms, node: Node, weight: Roomy, index: Roomy, *rest: Any) -> Roomy:
    out = rooms.call(node.target, [weight, _named(rooms, index, weight, 0), *rest], {})
    return rooms.wrap(out, node.meta["val"], (*index.dims, *weight.dims[1:]))


@rule(aten.embedding_dense_backward)
def _embedding_backward(rooms: Rooms, node: Node, grad: Roomy, index: Roomy, *rest: Any) -> Roomy:
    args = [rooms.filled(rooms.like(grad, index.dims), 0), rooms.filled(index, 0), *rest]
    return rooms.wrap(rooms.call(node.target, args, {}), node.meta["val"])


@rule(aten.index_select)
def _index_select(rooms: Rooms, node: Node, x: Roomy, d: int, index: Roomy) -> Roomy:
    at = axis(x, d)
    out = x.tensor.index_select(at, _named(rooms, index, x, at).tensor)
    return rooms.wrap(out, node.meta["val"], replaced(x.dims, at, index.dims[0]))


@rule(aten.gather)
def _gather(rooms: Rooms, node: Node, x: Roomy, d: int, index: Roomy, **kwargs: Any) -> Roomy:
    index, at = _beside(rooms, index, x, d)
    out = rooms.call(node.target, [x, d, _named(rooms, index, x, at)], kwargs)
    return rooms.wrap(out, node.meta["val"], index.dims)


def _indexed(rooms: Rooms, x: Roomy, indices: Sequence[Roomy | None]) -> tuple[list[int], list[Roomy], Any, int]:
    """Which dimensions are indexed, by what (laid out alike), what the indices broadcast to, and where that goes."""
    at = [d for d, index in enumerate(indices) if index is not None]
    if any(indices[d].tensor.dtype in (torch.bool, torch.uint8) for d in at):
        raise NoRule("a mask, whose size depends on data")
    alike, dims = together(rooms, [indices[d] for d in at])
    return at, alike, dims, at[0] if at == list(range(at[0], at[-1] + 1)) else 0


@rule(aten.index, aten._unsafe_index)
def _index(rooms: Rooms, node: Node, x: Roomy, indices: Sequence[Roomy | None]) -> Roomy:
    at, alike, dims, where = _indexed(rooms, x, indices)
    given: list[torch.Tensor | None] = [None] * len(indices)
    for d, index in zip(at, alike):
        given[d] = _named(rooms, index, x, d).tensor
    rest = [dim for d, dim in enumerate(x.dims) if d not in at]
    out = rooms.call(node.target, [x.tensor, given], {})
    return rooms.wrap(out, node.meta["val"], (*rest[:where], *dims, *rest[where:]))


# ---------------------------------------------------------------- writing and adding


@rule(aten.index_put, aten._unsafe_index_put)
def _index_put(rooms: Rooms, node: Node, x: Roomy, indices: Sequence[Roomy | None], values: Roomy,
               accumulate: bool = False) -> Roomy:  # fmt: skip
    at, alike, dims, where = _indexed(rooms, x, indices)
    rest = [dim for d, dim in enumerate(x.dims) if d not in at]
    target = (*rest[:where], *dims, *rest[where:])
    values = rooms.like(values, target[len(target) - len(values.dims) :])
    # one of them, at its full shape, leads what is in the rest to a place that is lost
    lead = alike[0]
    shape = torch.broadcast_shapes(*(i.tensor.shape for i in alike))
    lead = Roomy(lead.tensor.expand(shape), dims)
    given: list[torch.Tensor | None] = [None] * len(indices)
    for d, index in zip(at, alike):
        given[d] = _named(rooms, index, x, d).tensor
    given[at[0]] = _named(rooms, lead, x, at[0], spare=True).tensor
    out = rooms.call(node.target, [_spared(x, at[0]), given, values, accumulate], {})
    return rooms.wrap(out.narrow(at[0], 0, x.tensor.shape[at[0]]), node.meta["val"], x.dims)


@rule(aten.index_add, aten.index_copy, aten.index_fill)
def _index_add(rooms: Rooms, node: Node, x: Roomy, d: int, index: Roomy, source: Any, **kwargs: Any) -> Roomy:
    at = axis(x, d)
    source = rooms.like(source, replaced(x.dims, at, index.dims[0]))
    out = rooms.call(node.target, [_spared(x, at), at, _named(rooms, index, x, at, spare=True), source], kwargs)
    return rooms.wrap(out.narrow(at, 0, x.tensor.shape[at]), node.meta["val"], x.dims)


@rule(aten.scatter, aten.scatter_add, aten.scatter_reduce)
def _scatter(rooms: Rooms, node: Node, x: Roomy, d: int, index: Roomy, source: Any, *rest: Any, **kwargs: Any) -> Roomy:
    index, at = _beside(rooms, index, x, d)
    source = rooms.like(source, index.dims)
    out = rooms.call(node.target, [_spared(x, at), at, _named(rooms, index, x, at, spare=True), source, *rest], kwargs)
    return rooms.wrap(out.narrow(at, 0, x.tensor.shape[at]), node.meta["val"], x.dims)


# ---------------------------------------------------------------- losses by class


@rule(aten.nll_loss_forward)
def _nll(rooms: Rooms, node: Node, x: Roomy, target: Roomy, weight: Any, reduction: int, ignore: int) -> Any:
    target = rooms.laid(target, 0, x.dims[0]) if target.dims else target
    args = [x, rooms.filled(target, ignore), weight, reduction, ignore]
    out, total = rooms.call(node.target, args, {})
    fakes = node.meta["val"]
    return rooms.wrap(out, fakes[0], target.dims if reduction == 0 else ()), rooms.wrap(total, fakes[1])


@rule(aten.nll_loss_backward)
def _nll_backward(rooms: Rooms, node: Node, grad: Roomy, x: Roomy, target: Roomy, weight: Any, reduction: int,
                  ignore: int, total: Roomy) -> Any:  # fmt: skip
    target = rooms.laid(target, 0, x.dims[0]) if target.dims else target
    args = [grad, x, rooms.filled(target, ignore), weight, reduction, ignore, total]
    return rooms.wrap(rooms.call(node.target, args, {}), node.meta["val"], x.dims)
