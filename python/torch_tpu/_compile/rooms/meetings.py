"""Where elements of different places meet: reductions, products, norms, orders, attention."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from torch_tpu._compile.rooms.core import ONE, Dim, NoRule, Part, Rooms, Roomy, is_loose
from torch_tpu._compile.rooms.rules import aten, axis, flat, in_first, replaced, rule

# ---------------------------------------------------------------- reductions


def _axes(x: Roomy, dims: Any) -> list[int]:
    found = [d % len(x.dims) for d in flat([dims]) if d is not None] if x.dims else []
    return found or list(range(len(x.dims)))


def _reduced(x: Roomy, axes: Sequence[int], keep: bool) -> tuple[Dim, ...]:
    return tuple(ONE if d in axes else dim for d, dim in enumerate(x.dims) if keep or d not in axes)


def _least(dtype: torch.dtype) -> Any:
    return float("-inf") if dtype.is_floating_point else 0 if dtype == torch.bool else torch.iinfo(dtype).min


def _most(dtype: torch.dtype) -> Any:
    return float("inf") if dtype.is_floating_point else 1 if dtype == torch.bool else torch.iinfo(dtype).max


@rule(aten.sum, aten.any, aten.amax, aten.amin, aten.all, aten.prod)
def _reduce(rooms: Rooms, node: Node, x: Roomy, dims: Any = None, keep: bool = False, **kwargs: Any) -> Roomy:
    packet, dtype = node.target.overloadpacket, x.tensor.dtype
    value = {aten.sum: 0, aten.any: 0, aten.all: 1, aten.prod: 1}.get(packet)
    if value is None:
        value = _least(dtype) if packet is aten.amax else _most(dtype)
    axes = _axes(x, dims)
    filled = rooms.filled(x, value, [d for d in axes if is_loose(x.dims[d])])
    every = dims is None and packet not in (aten.amax, aten.amin)
    args = [filled] if every else [filled, [] if dims is None else dims, keep]
    return rooms.wrap(rooms.call(node.target, args, kwargs), node.meta["val"], _reduced(x, axes, keep))


@rule(aten.max, aten.min, aten.argmax, aten.argmin)
def _extreme(rooms: Rooms, node: Node, x: Roomy, d: Any = None, keep: bool = False) -> Any:
    packet, fake = node.target.overloadpacket, node.meta["val"]
    if isinstance(d, Roomy):
        raise NoRule(f"{node.target} with a dynamic size")
    places = packet in (aten.argmax, aten.argmin)
    if d is None and places and len(x.dims) != 1:
        raise NoRule("the place of an extreme over several dimensions")
    axes = _axes(x, d)
    if places or d is not None:
        rooms.end(x.dims[axes[0]])  # a place must be the same in the room
    value = _least(x.tensor.dtype) if packet in (aten.max, aten.argmax) else _most(x.tensor.dtype)
    filled = rooms.filled(x, value, [e for e in axes if is_loose(x.dims[e])])
    out = rooms.call(node.target, [filled] if d is None and not places else [filled, d, keep], {})
    dims = _reduced(x, axes, keep)
    if isinstance(out, tuple):
        return tuple(rooms.wrap(o, f, dims) for o, f in zip(out, fake))
    return rooms.wrap(out, fake, dims)


@rule(aten.mean)
def _mean(rooms: Rooms, node: Node, x: Roomy, dims: Any = None, keep: bool = False, **kwargs: Any) -> Roomy:
    axes, out = _axes(x, dims), node.meta["val"]
    filled = rooms.filled(x, 0, [d for d in axes if is_loose(x.dims[d])]).tensor
    wide = torch.float32 if out.dtype in (torch.float16, torch.bfloat16) else out.dtype
    total = filled.sum(axes, keep, dtype=wide) if axes else filled.to(wide)
    for d in axes:
        for part in x.dims[d]:
            total = total / rooms.true(part.true)
    return rooms.wrap(total.to(out.dtype), out, _reduced(x, axes, keep))


@rule(aten.var, aten.std)
def _var(rooms: Rooms, node: Node, x: Roomy, dims: Any = None, correction: Any = 1, keepdim: bool = False) -> Roomy:
    if node.target not in (aten.var.correction, aten.std.correction) or x.tensor.is_complex():
        raise NoRule(f"{node.target} with a dynamic size")
    axes = _axes(x, dims)
    loose, count = [d for d in axes if is_loose(x.dims[d])], 1
    for part in (part for d in axes for part in x.dims[d]):
        count = count * rooms.true(part.true)
    mean = rooms.filled(x, 0, loose).tensor.sum(axes, True) / count
    apart = Roomy((x.tensor - mean).square(), x.dims)
    total = rooms.filled(apart, 0, loose).tensor.sum(axes, keepdim)
    out = total / (count - (1 if correction is None else correction))
    out = out.sqrt() if node.target is aten.std.correction else out
    return rooms.wrap(out.to(x.tensor.dtype), node.meta["val"], _reduced(x, axes, keepdim))


@rule(aten.linalg_vector_norm)
def _vector_norm(rooms: Rooms, node: Node, x: Roomy, order: Any = 2, dims: Any = None, keep: bool = False,
                 **kwargs: Any) -> Roomy:  # fmt: skip
    if order <= 0:
        raise NoRule("a norm that zeros change")
    axes = _axes(x, dims)
    filled = rooms.filled(x, 0, [d for d in axes if is_loose(x.dims[d])])
    out = rooms.call(node.target, [filled, order, axes, keep], kwargs)
    return rooms.wrap(out, node.meta["val"], _reduced(x, axes, keep))


@rule(aten.logsumexp)
def _logsumexp(rooms: Rooms, node: Node, x: Roomy, dims: Any, keep: bool = False) -> Roomy:
    axes = _axes(x, dims)
    filled = rooms.filled(x, float("-inf"), [d for d in axes if is_loose(x.dims[d])])
    return rooms.wrap(rooms.call(node.target, [filled, axes, keep], {}), node.meta["val"], _reduced(x, axes, keep))


@rule(aten.trace)
def _trace(rooms: Rooms, node: Node, x: Roomy) -> Roomy:
    return rooms.wrap(rooms.filled(x, 0, x.loose()[:1]).tensor.trace(), node.meta["val"])


# ---------------------------------------------------------------- softmax and norms


@rule(aten._softmax, aten._log_softmax)
def _softmax(rooms: Rooms, node: Node, x: Roomy, d: int, half: bool) -> Roomy:
    filled = rooms.filled(x, float("-inf"), [axis(x, d)])
    return Roomy(rooms.call(node.target, [filled, d, half], {}), x.dims)


@rule(aten._softmax_backward_data, aten._log_softmax_backward_data)
def _softmax_backward(rooms: Rooms, node: Node, grad: Roomy, out: Roomy, d: int, dtype: torch.dtype) -> Roomy:
    grad = rooms.filled(rooms.like(grad, out.dims), 0, [axis(out, d)])
    if node.target.overloadpacket is aten._softmax_backward_data:
        out = rooms.filled(out, 0, [axis(out, d)])
    return Roomy(rooms.call(node.target, [grad, out, d, dtype], {}), out.dims)


@rule(aten.native_layer_norm, aten._fused_rms_norm)
def _row_norm(rooms: Rooms, node: Node, x: Roomy, shape: Sequence[Any], *rest: Any) -> Any:
    outer = len(x.dims) - len(shape)
    if any(d >= outer for d in x.loose()):
        raise NoRule("a norm over a dynamic size")
    out = rooms.call(node.target, [x, shape, *rest], {})
    dims = x.dims, *[(*x.dims[:outer], *[ONE] * len(shape))] * (len(out) - 1)
    return tuple(rooms.wrap(o, fake, dim) for o, fake, dim in zip(out, node.meta["val"], dims))


@rule(aten.native_layer_norm_backward, aten._fused_rms_norm_backward)
def _row_norm_backward(rooms: Rooms, node: Node, grad: Roomy, x: Roomy, shape: Sequence[Any], *rest: Any) -> Any:
    outer = len(x.dims) - len(shape)
    if any(d >= outer for d in x.loose()):
        raise NoRule("a norm over a dynamic size")
    # the statistics have as many dimensions as x, weights only the inner ones
    alike = [
        rooms.like(a, x.dims) if isinstance(a, Roomy) and len(a.dims) > len(shape) else a for a in (grad, x, *rest)
    ]
    grad, x, *rest = (rooms.filled(a, 0) for a in alike)
    args = [grad, x, shape, *rest]
    dx, *others = rooms.call(node.target, args, {})
    fakes = node.meta["val"]
    dx = None if dx is None else rooms.wrap(dx, fakes[0], x.dims)
    return dx, *(None if o is None else rooms.wrap(o, f) for o, f in zip(others, fakes[1:]))


@rule(aten.native_group_norm_backward)
def _summed_over_rows(rooms: Rooms, node: Node, *args: Any, **kwargs: Any) -> Any:
    if not in_first([a for a in flat([args, kwargs]) if isinstance(a, Roomy)]):
        raise NoRule(f"{node.target} with a dynamic size inside")
    return rooms.wrap(rooms.call(node.target, [rooms.filled(a, 0) for a in args], kwargs), node.meta["val"])


# ---------------------------------------------------------------- products


def _product(rooms: Rooms, a: Roomy, b: Roomy) -> tuple[Roomy, Roomy, tuple[Dim, ...]]:
    i, j = len(a.dims) - 1, len(b.dims) - 2
    if is_loose(a.dims[i]) or is_loose(b.dims[j]):
        b = rooms.laid(b, j, a.dims[i]) if is_loose(a.dims[i]) else b
        a = a if is_loose(a.dims[i]) else rooms.laid(a, i, b.dims[j])
        a, b = rooms.filled(a, 0, [i]), rooms.filled(b, 0, [j])
    b = rooms.like(b, a.dims[:-2])  # batches
    return a, b, (*a.dims[:-1], b.dims[-1])


@rule(aten.mm, aten.bmm)
def _mm(rooms: Rooms, node: Node, a: Roomy, b: Roomy) -> Roomy:
    a, b, dims = _product(rooms, a, b)
    return rooms.wrap(rooms.call(node.target, [a, b], {}), node.meta["val"], dims)


@rule(aten.mv)
def _mv(rooms: Rooms, node: Node, a: Roomy, v: Roomy) -> Roomy:
    a, b, dims = _product(rooms, a, Roomy(v.tensor.unsqueeze(1), (*v.dims, ONE)))
    return rooms.wrap((a.tensor @ b.tensor).squeeze(1), node.meta["val"], dims[:1])


@rule(aten.addmm, aten.baddbmm)
def _addmm(rooms: Rooms, node: Node, bias: Roomy, a: Roomy, b: Roomy, **scales: Any) -> Roomy:
    a, b, dims = _product(rooms, a, b)
    bias = rooms.like(bias, dims[len(dims) - len(bias.dims) :])
    return rooms.wrap(rooms.call(node.target, [bias, a, b], scales), node.meta["val"], dims)


@rule(aten.convolution)
def _convolution(rooms: Rooms, node: Node, x: Roomy, weight: Roomy, bias: Any, *how: Any) -> Roomy:
    _convolves(x, weight, how[3])
    out = rooms.call(node.target, [rooms.filled(x, 0, x.loose()), weight, bias, *how], {})
    dims = x.dims[0], *rooms.dims(node.meta["val"].shape[1:])
    return rooms.wrap(out, node.meta["val"], dims)


@rule(aten.convolution_backward)
def _convolution_backward(rooms: Rooms, node: Node, grad: Roomy, x: Roomy, weight: Roomy, *how: Any) -> Any:
    _convolves(x, weight, how[4])
    grad = rooms.like(grad, x.dims[:1])
    out = rooms.call(node.target, [rooms.filled(grad, 0), rooms.filled(x, 0), weight, *how], {})
    return rooms.wrap(out, node.meta["val"])


def _convolves(x: Roomy, weight: Roomy, transposed: bool) -> None:
    inside = [d for d in x.loose() if d > 1]
    if weight.loose() or 1 in x.loose() or (inside and transposed):
        raise NoRule("a convolution of a dynamic number of channels, or a transposed one of a dynamic size")
    if len(x.dims[0]) > 1:
        raise NoRule("a convolution of a merged batch")


# ---------------------------------------------------------------- orders


@rule(aten.cumsum, aten.cumprod, aten.logcumsumexp)
def _running(rooms: Rooms, node: Node, x: Roomy, d: int, **kwargs: Any) -> Roomy:
    rooms.end(x.dims[axis(x, d)])  # what comes before a place is valid
    return rooms.wrap(rooms.call(node.target, [x, d], kwargs), node.meta["val"], x.dims)


@rule(aten.sort)
def _sort(rooms: Rooms, node: Node, x: Roomy, d: int = -1, descending: bool = False, *, dim: Any = None,
          stable: Any = None) -> Any:  # fmt: skip
    at = axis(x, d if dim is None else dim)
    rooms.end(x.dims[at])
    # equal ones stay in order, so the rest comes after them
    out = torch.sort(_at_the_end(rooms, x, at, descending).tensor, dim=at, descending=descending, stable=True)
    return tuple(Roomy(o, x.dims) for o in out)


@rule(aten.topk)
def _topk(rooms: Rooms, node: Node, x: Roomy, k: Any, d: int = -1, largest: bool = True, ordered: bool = True) -> Any:
    at = axis(x, d)
    if not isinstance(k, int):
        raise NoRule("a dynamic number of largest elements")
    rooms.end(x.dims[at])
    filled = _at_the_end(rooms, x, at, largest)
    out = rooms.call(node.target, [filled, k, d, largest, ordered], {})
    dims = replaced(x.dims, at, (Part(k),))
    return tuple(rooms.wrap(o, f, dims) for o, f in zip(out, node.meta["val"]))


def _at_the_end(rooms: Rooms, x: Roomy, d: int, descending: bool) -> Roomy:
    dtype = x.tensor.dtype
    last = _least(dtype) if descending else float("nan") if dtype.is_floating_point else _most(dtype)
    return rooms.filled(x, last, [d])


# ---------------------------------------------------------------- attention


def _attended(rooms: Rooms, q: Roomy, k: Roomy, v: Roomy, bias: Roomy | None, causal: bool) -> tuple[Any, ...]:
    """Operands with nothing in their rests, and a bias that hides the keys there (where the causal mask does not)."""
    k = rooms.like(k, q.dims[:-2])
    v = rooms.like(v, (*q.dims[:-2], k.dims[-2]))
    q, k, v = (rooms.filled(x, 0) for x in (q, k, v))
    keys = k.dims[-2]
    over = *q.dims[:-1], keys
    if bias is not None:
        bias = rooms.filled(rooms.like(bias, over[len(over) - len(bias.dims) :]), 0)
    if is_loose(keys) and (bias is not None or not (causal and q.dims[-2] == keys)):
        shown = rooms.mask(k, len(k.dims) - 2).transpose(-1, -2)
        base = torch.zeros((), dtype=q.tensor.dtype, device="tpu") if bias is None else bias.tensor
        hidden = torch.where(shown, base, torch.full((), float("-inf"), dtype=base.dtype, device="tpu"))
        bias = Roomy(hidden.expand([*q.tensor.shape[:-1], k.tensor.shape[-2]]), over)
    return q, k, v, bias


@rule(aten._scaled_dot_product_fused_attention_overrideable)
def _attention(rooms: Rooms, node: Node, q: Roomy, k: Roomy, v: Roomy, bias: Any = None, dropout: float = 0.0,
               causal: bool = False, *rest: Any, **scale: Any) -> Any:  # fmt: skip
    q, k, v, bias = _attended(rooms, q, k, v, bias, causal)
    out = rooms.call(node.target, [q, k, v, bias, dropout, causal, *rest], scale)
    fakes = node.meta["val"]
    dims = (*q.dims[:-1], v.dims[-1]), q.dims[:-1]
    main = [rooms.wrap(o, f, dim) for o, f, dim in zip(out, fakes, dims)]
    return *main, *(Roomy(o, rooms.dims(o.shape)) if isinstance(o, torch.Tensor) else o for o in out[2:])


@rule(aten._scaled_dot_product_fused_attention_overrideable_backward)
def _attention_backward(rooms: Rooms, node: Node, grad: Roomy, q: Roomy, k: Roomy, v: Roomy, bias: Any, wanted: Any,
                        out: Roomy, lse: Roomy, cq: Any, ck: Any, mq: Any, mk: Any, dropout: float, causal: bool,
                        *rest: Any, **scale: Any) -> Any:  # fmt: skip
    had = bias
    q, k, v, bias = _attended(rooms, q, k, v, bias, causal)
    grad, out, lse = (rooms.filled(rooms.like(x, q.dims[:-1]), 0) for x in (grad, out, lse))
    args = [grad, q, k, v, bias, wanted, out, lse, cq, ck, mq, mk, dropout, causal, *rest]
    found, fakes = rooms.call(node.target, args, scale), node.meta["val"]
    summed: tuple[Dim, ...] = ()
    if had is not None:
        sizes = had.tensor.shape
        summed = tuple(ONE if n == 1 else dim for dim, n in zip(bias.dims, sizes))
        places = [d for d, n in enumerate(sizes) if n == 1]
        if wanted[3] and places:  # where the bias was broadcast
            found = (*found[:3], found[3].sum(places, keepdim=True))
    like = q.dims, k.dims, v.dims, summed
    return tuple(None if f is None or o is None else rooms.wrap(o, f, dim) for o, f, dim in zip(found, fakes, like))
