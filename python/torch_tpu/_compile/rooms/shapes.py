"""Views, pieces and joints, and tensors made of sizes alone."""

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node

from torch_tpu._compile.rooms.core import ONE, Dim, NoRule, Part, Rooms, Roomy, is_loose, room_of
from torch_tpu._compile.rooms.rules import aten, axis, flat, replaced, rule, together

# ---------------------------------------------------------------- views


@rule(aten.view, aten._unsafe_view, aten.reshape)
def _view(rooms: Rooms, node: Node, x: Roomy, shape: Sequence[Any]) -> Roomy:
    fake = node.meta["val"]
    wanted = rooms.dims(fake.shape)
    dims = _divided(x.dims, [room_of(dim) for dim in wanted])
    if dims is None:  # the places between the equal ends are laid out anew
        head = 0
        while head < min(len(x.dims), len(wanted)) and x.dims[head] == wanted[head]:
            head += 1
        tail = 0
        while tail < min(len(x.dims), len(wanted)) - head and x.dims[-1 - tail] == wanted[-1 - tail]:
            tail += 1
        ends = x.dims[:head], x.dims[len(x.dims) - tail :]
        merged, parted = sum(x.dims[head : len(x.dims) - tail], ()), wanted[head : len(wanted) - tail]
        whole = x.tensor.reshape([room_of(dim) for dim in (*ends[0], merged, *ends[1])])
        x = rooms.laid(Roomy(whole, (*ends[0], merged, *ends[1])), head, sum(parted, ()))
        dims = wanted
    return rooms.wrap(x.tensor.reshape(rooms.shape(fake.shape)), fake, dims)


def _divided(have: Sequence[Dim], wanted: Sequence[int]) -> tuple[Dim, ...] | None:
    """The factors of `have` as dimensions of the sizes in `wanted`; None if a dynamic one would be divided."""
    parts = [part for dim in have for part in dim if part != Part(1)]
    dims: list[Dim] = []
    for size in wanted:
        got: list[Part] = []
        while size > 1:
            if not parts:
                return None
            part = parts.pop(0)
            if size % part.room == 0:
                got.append(part)
                size //= part.room
            elif part.valid is None and part.room % size == 0:
                got.append(Part(size))
                parts.insert(0, Part(part.room // size))
                size = 1
            else:
                return None
        dims.append(tuple(got) or ONE)
    return None if parts else tuple(dims)


@rule(aten.permute)
def _permute(rooms: Rooms, node: Node, x: Roomy, order: Sequence[int]) -> Roomy:
    return Roomy(x.tensor.permute(list(order)), tuple(x.dims[d] for d in order))


@rule(aten.transpose)
def _transpose(rooms: Rooms, node: Node, x: Roomy, a: int, b: int) -> Roomy:
    order = list(range(len(x.dims)))
    order[a], order[b] = order[b], order[a]
    return _permute(rooms, node, x, order)


@rule(aten.t)
def _t(rooms: Rooms, node: Node, x: Roomy) -> Roomy:
    return _permute(rooms, node, x, range(len(x.dims))[::-1])


@rule(aten.unsqueeze)
def _unsqueeze(rooms: Rooms, node: Node, x: Roomy, d: int) -> Roomy:
    dims = list(x.dims)
    dims.insert(d % (len(dims) + 1), ONE)
    return Roomy(x.tensor.unsqueeze(d), tuple(dims))


@rule(aten.squeeze)
def _squeeze(rooms: Rooms, node: Node, x: Roomy, d: Any = None) -> Roomy:
    asked = range(len(x.dims)) if d is None else [e % len(x.dims) for e in flat([d])]
    gone = {e for e in asked if all(p == Part(1) for p in x.dims[e])}
    kept = [e for e in range(len(x.dims)) if e not in gone]
    return Roomy(x.tensor.squeeze(sorted(gone)), tuple(x.dims[e] for e in kept))


@rule(aten.expand)
def _expand(rooms: Rooms, node: Node, x: Roomy, shape: Sequence[Any], implicit: bool = False) -> Roomy:
    made = rooms.dims(node.meta["val"].shape)
    lead = len(made) - len(x.dims)
    kept = [x.dims[d - lead] if d >= lead and x.tensor.shape[d - lead] != 1 else dim for d, dim in enumerate(made)]
    return rooms.wrap(x.tensor.expand(rooms.shape(node.meta["val"].shape)), node.meta["val"], tuple(kept))


@rule(aten.repeat)
def _repeat(rooms: Rooms, node: Node, x: Roomy, times: Sequence[Any]) -> Roomy:
    made = rooms.dims(node.meta["val"].shape)
    lead = len(made) - len(x.dims)
    dims = []
    for d, (dim, n) in enumerate(zip(made, times)):
        had = x.dims[d - lead] if d >= lead else ONE
        if is_loose(had) and n != 1:
            raise NoRule("a dynamic size repeated")
        dims.append(dim if room_of(had) == 1 else had if n == 1 else (Part(room_of(had) * rooms.size(n)),))
    return rooms.wrap(x.tensor.repeat([rooms.size(n) for n in times]), node.meta["val"], tuple(dims))


@rule(aten.diagonal)
def _diagonal(rooms: Rooms, node: Node, x: Roomy, offset: int = 0, a: int = 0, b: int = 1) -> Roomy:
    if len({a % len(x.dims), b % len(x.dims)} | set(x.loose())) > 2 or offset:
        raise NoRule("a diagonal beside a dynamic size")
    return rooms.wrap(x.tensor.diagonal(0, a, b), node.meta["val"])


# ---------------------------------------------------------------- pieces


@rule(aten.slice)
def _slice(rooms: Rooms, node: Node, x: Roomy, d: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Roomy:
    at, start, fake = axis(x, d), start or 0, node.meta["val"]
    (dim,) = rooms.dims([fake.shape[at]])
    first = _first(rooms, x, at, start)
    last = first + (room_of(dim) - 1) * step
    if isinstance(first, int) and last < x.tensor.shape[at]:
        return rooms.wrap(aten.slice(x.tensor, at, first, last + 1, step), fake, replaced(x.dims, at, dim))
    index = first + torch.arange(room_of(dim), device="tpu") * step
    return rooms.picked(x, at, index, dim)


def _first(rooms: Rooms, x: Roomy, at: int, start: Any) -> Any:
    """Where a slice begins that begins at `start`, which may count from the end."""
    n, first = rooms.end(x.dims[at]), rooms.true(start)
    if isinstance(first, torch.Tensor):
        return torch.where(first < 0, first + n, first)
    if first >= 0:
        return first
    return (n + first).clamp(min=0) if isinstance(n, torch.Tensor) else max(n + first, 0)


@rule(aten.slice_backward)
def _slice_backward(rooms: Rooms, node: Node, grad: Roomy, sizes: Any, d: int, start: Any, end: Any, step: int) -> Any:
    fake = node.meta["val"]
    at = d % len(fake.shape)
    (dim,), filled = rooms.dims([fake.shape[at]]), rooms.filled(grad, 0, [at])
    shape = [dim if e == at else had for e, had in enumerate(grad.dims)]
    out = torch.zeros([room_of(had) for had in shape], dtype=grad.tensor.dtype, device="tpu")
    index = _first(rooms, Roomy(out, tuple(shape)), at, start or 0)
    index = index + torch.arange(grad.tensor.shape[at], device="tpu") * step
    # what lies behind the end is zero, and adds nothing to the last place
    return rooms.wrap(out.index_add(at, index.clamp(max=room_of(dim) - 1), filled.tensor), fake, tuple(shape))


@rule(aten.select)
def _select(rooms: Rooms, node: Node, x: Roomy, d: int, index: Any) -> Roomy:
    at = axis(x, d)
    dims = x.dims[:at] + x.dims[at + 1 :]
    if not is_loose(x.dims[at]) and isinstance(index, int):
        return rooms.wrap(x.tensor.select(at, index), node.meta["val"], dims)
    place = _first(rooms, x, at, index)
    place = place.reshape(1) if isinstance(place, torch.Tensor) else torch.full((1,), place, device="tpu")
    return rooms.wrap(rooms.picked(x, at, place, ONE).tensor.squeeze(at), node.meta["val"], dims)


@rule(aten.select_backward)
def _select_backward(rooms: Rooms, node: Node, grad: Roomy, sizes: Any, d: int, index: Any) -> Roomy:
    fake = node.meta["val"]
    at = d % len(fake.shape)
    (dim,) = rooms.dims([fake.shape[at]])
    dims = (*grad.dims[:at], dim, *grad.dims[at:])
    whole = grad.tensor.unsqueeze(at).expand([room_of(had) for had in dims])
    here = torch.arange(room_of(dim), device="tpu") == _first(rooms, Roomy(whole, dims), at, index)
    here = here.view([-1 if e == at else 1 for e in range(len(dims))])
    return rooms.wrap(torch.where(here, whole, torch.zeros((), dtype=whole.dtype, device="tpu")), fake, dims)


@rule(aten.split, aten.split_with_sizes, aten.unbind)
def _split(rooms: Rooms, node: Node, x: Roomy, *how: Any, dim: int = 0) -> Any:
    which, fakes = node.target.overloadpacket, node.meta["val"]
    d = axis(x, how[-1] if len(how) > (which is not aten.unbind) else dim)
    if is_loose(x.dims[d]):
        raise NoRule("a dynamic size split")
    if which is aten.unbind:
        return tuple(Roomy(x.tensor.select(d, k), x.dims[:d] + x.dims[d + 1 :]) for k in range(x.tensor.shape[d]))
    parts, begin = [], 0
    for fake in fakes:
        size = int(fake.shape[d])
        parts.append(Roomy(x.tensor.narrow(d, begin, size), replaced(x.dims, d, (Part(size),))))
        begin += size
    return tuple(parts)


# ---------------------------------------------------------------- joints


@rule(aten.cat)
def _cat(rooms: Rooms, node: Node, tensors: Sequence[Roomy], d: int = 0) -> Roomy:
    fake = node.meta["val"]
    at = d % len(fake.shape)
    tensors = [x for x in tensors if len(x.dims) == len(fake.shape)]  # PyTorch lets empty ones of one dimension be
    # laid out alike but for the dimension that they are joined along
    hidden = [Roomy(x.tensor, replaced(x.dims, at, ONE)) for x in tensors]
    alike, dims = together(rooms, hidden)
    joined, ends = torch.cat([x.tensor for x in alike], at), [x.dims[at] for x in tensors]
    (dim,) = rooms.dims([fake.shape[at]])
    if any(map(is_loose, ends[:-1])):
        place = index = torch.arange(joined.shape[at], device="tpu")
        before, room = 0, 0
        for end in ends:
            index = torch.where(place >= before, place - before + room, index)
            before, room = before + rooms.end(end), room + room_of(end)
        joined = rooms.picked(Roomy(joined, dims), at, index, dim).tensor
    return rooms.wrap(joined, fake, replaced(dims, at, dim))


@rule(aten.stack)
def _stack(rooms: Rooms, node: Node, tensors: Sequence[Roomy], d: int = 0) -> Roomy:
    alike, dims = together(rooms, list(tensors))
    at = d % (len(dims) + 1)
    joined = torch.stack([x.tensor for x in alike], at)
    return rooms.wrap(joined, node.meta["val"], (*dims[:at], (Part(len(alike)),), *dims[at:]))


@rule(aten.constant_pad_nd)
def _pad(rooms: Rooms, node: Node, x: Roomy, pad: Sequence[Any], value: Any = 0) -> Roomy:
    made, dims = rooms.dims(node.meta["val"].shape), list(x.dims)
    for k in range(0, len(pad), 2):
        d = len(dims) - 1 - k // 2
        if is_loose(dims[d]) and not all(isinstance(n, int) for n in pad[k : k + 2]):
            raise NoRule("a dynamic size padded by another")
        if pad[k] or pad[k + 1]:
            rooms.end(dims[d])
            x, dims[d] = rooms.filled(x, value, [d]), made[d]
    out = aten.constant_pad_nd(x.tensor, [rooms.size(n) for n in pad], value)
    return rooms.wrap(out, node.meta["val"], tuple(dims))


@rule(aten.flip)
def _flip(rooms: Rooms, node: Node, x: Roomy, axes: Sequence[int]) -> Roomy:
    for d in (axis(x, d) for d in axes):
        place = torch.arange(x.tensor.shape[d], device="tpu")
        x = rooms.picked(x, d, rooms.end(x.dims[d]) - 1 - place, x.dims[d])
    return x


@rule(aten.roll)
def _roll(rooms: Rooms, node: Node, x: Roomy, shifts: Any, axes: Any = ()) -> Roomy:
    if not flat([axes]):
        raise NoRule("a roll of all elements")
    for shift, d in zip(flat([shifts]), flat([axes])):
        at = axis(x, d)
        place = torch.arange(x.tensor.shape[at], device="tpu") - rooms.true(shift)
        x = rooms.picked(x, at, torch.remainder(place, rooms.end(x.dims[at])), x.dims[at])
    return x


@rule(aten.tril, aten.triu)
def _triangle(rooms: Rooms, node: Node, x: Roomy, diagonal: Any = 0) -> Roomy:
    for dim in x.dims[-2:]:
        rooms.end(dim)
    if not isinstance(diagonal, int):
        raise NoRule("a triangle from a dynamic diagonal")
    return Roomy(rooms.call(node.target, [x, diagonal], {}), x.dims)


# ---------------------------------------------------------------- made of sizes


@rule(aten.zeros, aten.ones, aten.empty, aten.new_zeros, aten.new_ones, aten.new_empty,
      aten.zeros_like, aten.ones_like, aten.empty_like)  # fmt: skip
def _make(rooms: Rooms, node: Node, *args: Any, **kwargs: Any) -> Roomy:
    like = next((a.dims for a in args if isinstance(a, Roomy)), None) if "like" in node.target.name() else None
    return rooms.wrap(rooms.call(node.target, args, kwargs), node.meta["val"], like)


@rule(aten.full, aten.new_full, aten.full_like, aten.scalar_tensor)
def _full(rooms: Rooms, node: Node, *args: Any, **kwargs: Any) -> Roomy:
    fake, value = node.meta["val"], rooms.true(args[-1])
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, device="tpu")
    like = args[0].dims if node.target.overloadpacket is aten.full_like else rooms.dims(fake.shape)
    return rooms.wrap(value.to(fake.dtype).expand([room_of(dim) for dim in like]).clone(), fake, like)


@rule(aten.arange)
def _arange(rooms: Rooms, node: Node, *args: Any, **kwargs: Any) -> Roomy:
    fake = node.meta["val"]
    if not all(isinstance(a, (int, sympy.Expr)) for a in args):
        raise NoRule("a range of fractions")
    start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
    places = torch.arange(*rooms.shape(fake.shape), device="tpu")
    return rooms.wrap((places * rooms.true(step) + rooms.true(start)).to(fake.dtype), fake)
