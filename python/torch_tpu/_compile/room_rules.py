"""How each op runs at a room (see rooms): which let the rest be, which fill it first, and what with."""

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any

import sympy
import torch
from torch.fx import Node
from torch.fx.node import map_arg

from torch_tpu._compile.rooms import Dim, NoRule, Part, Rooms, Roomy, room_of

aten = torch.ops.aten

# Elementwise, whatever their tags say.
POINTWISE = {
    aten.gelu_backward, aten.silu_backward, aten.threshold_backward, aten.elu_backward, aten.hardtanh_backward,
    aten.leaky_relu_backward, aten.sigmoid_backward, aten.tanh_backward, aten.softplus_backward, aten.where,
    aten._to_copy, aten.clone, aten.alias, aten.detach, aten.lift_fresh_copy, aten.copy,
}  # fmt: skip

# Row by row: right where only the first dimension of each operand is dynamic.
ROWS = {
    aten.native_layer_norm, aten.convolution, aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward,
    aten.avg_pool2d, aten.avg_pool2d_backward, aten._adaptive_avg_pool2d, aten._adaptive_avg_pool2d_backward,
    aten.native_group_norm, aten._native_batch_norm_legit_no_training,
    aten._scaled_dot_product_fused_attention_overrideable,
    aten._scaled_dot_product_fused_attention_overrideable_backward, aten.upsample_nearest2d, aten.upsample_bilinear2d,
    aten.cat, aten.split, aten.split_with_sizes, aten.topk, aten.sort,
    aten.argmax, aten.argmin, aten.cumsum, aten.flip, aten.select_backward, aten.slice_backward,
    aten.unbind, aten.repeat_interleave,
}  # fmt: skip

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}


def rule(*packets: Any) -> Callable[[Rule], Rule]:
    def keep(f: Rule) -> Rule:
        RULES.update(dict.fromkeys(packets, f))
        return f

    return keep


def run(rooms: Rooms, node: Node, values: Mapping[Node, Any]) -> Any:
    """The node at its room: a Roomy, a tuple of them, or a size expression.

    Raises:
        NoRule: there is none for this op.
    """
    fake = node.meta.get("val")
    if isinstance(fake, torch.SymInt):
        return fake.node.expr
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    op = node.target
    if op is getitem and isinstance(args[0], tuple):
        return args[0][args[1]]
    if not isinstance(op, torch._ops.OpOverload):
        raise NoRule(str(op))
    leaves = _flat([args, kwargs])
    roomy = [a for a in leaves if isinstance(a, Roomy)]
    loose, sizes = any(a.loose() for a in roomy), any(isinstance(a, sympy.Expr) for a in leaves)
    if not loose and not sizes:
        return rooms.wrap(rooms.call(op, args, kwargs), fake)
    if torch.Tag.nondeterministic_seeded in op.tags and not _draws_nothing(op, args):
        raise NoRule(f"{op}: eager draws as many numbers as there are elements")
    packet = op.overloadpacket
    if packet in RULES:
        return RULES[packet](rooms, node, *args, **kwargs)
    if torch.Tag.pointwise in op.tags or packet in POINTWISE:
        return rooms.wrap(rooms.call(op, args, kwargs, rooms.true), fake, _together([a.dims for a in roomy]))
    if packet in ROWS and _rows(node, args, roomy):
        return rooms.wrap(rooms.call(op, args, kwargs), fake)
    raise NoRule(f"{op} with a dynamic size")


def _draws_nothing(op: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    names = [a.name for a in op._schema.arguments]
    k = names.index("dropout_p") if "dropout_p" in names else len(args)
    return "dropout_p" in names and (k >= len(args) or args[k] == 0)


def _flat(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in _flat(item)]
    if isinstance(tree, dict):
        return _flat(list(tree.values()))
    return [tree]


def _rows(node: Node, args: Sequence[Any], roomy: Sequence[Roomy]) -> bool:
    """Whether each loose operand is so only at the front of its first dimension, and the op works on another."""
    first = all(a.loose() in ([], [0]) and (not a.dims or _at_front(a.dims[0])) for a in roomy)
    names = [a.name for a in node.target._schema.arguments]
    at = [args[k] for k, name in enumerate(names[: len(args)]) if name in ("dim", "dims")]
    inside = [args[k] for k, name in enumerate(names[: len(args)]) if name == "normalized_shape"]
    if inside and len(inside[0]) >= len(roomy[0].dims):
        return False
    rank = max((len(a.dims) for a in roomy), default=0)
    dims = [d % rank for d in _flat(at) if isinstance(d, int) and rank]
    return first and 0 not in dims and (bool(dims) or not {"dim", "dims"} & set(names))


def _at_front(dim: Dim) -> bool:
    return all(part.valid is None for part in dim[1:])


def _loose(dim: Dim) -> bool:
    return any(part.valid is not None for part in dim)


def _together(all_dims: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The dimensions of what is broadcast from these."""
    rank = max(len(dims) for dims in all_dims)
    out: list[Dim] = []
    for d in range(rank):
        met = [dims[d - rank + len(dims)] for dims in all_dims if d - rank + len(dims) >= 0]
        wide = [dim for dim in met if any(p != Part(1) for p in dim)] or met
        loose = [dim for dim in wide if _loose(dim)] or wide
        if len({tuple(p for p in dim if p != Part(1)) for dim in loose}) > 1:
            raise NoRule("operands whose dynamic sizes are not the same")
        out.append(loose[0])
    return tuple(out)


# ---------------------------------------------------------------- shapes


@rule(aten.view, aten._unsafe_view, aten.reshape)
def _view(rooms: Rooms, node: Node, x: Roomy, shape: Sequence[Any]) -> Roomy:
    wanted = rooms.shape(node.meta["val"].shape)
    parts = [part for dim in x.dims for part in dim if part != Part(1)]
    dims: list[Dim] = []
    for size in wanted:
        got: list[Part] = []
        while size > 1:
            if not parts:
                raise NoRule("a view that divides a dynamic size")
            part = parts.pop(0)
            if size % part.room == 0:
                got.append(part)
                size //= part.room
            elif part.valid is None and part.room % size == 0:
                got.append(Part(size))
                parts.insert(0, Part(part.room // size))
                size = 1
            else:
                raise NoRule("a view that divides a dynamic size")
        dims.append(tuple(got) or (Part(1),))
    return rooms.wrap(x.tensor.reshape(wanted), node.meta["val"], tuple(dims))


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
    dims.insert(d % (len(dims) + 1), (Part(1),))
    return Roomy(x.tensor.unsqueeze(d), tuple(dims))


@rule(aten.squeeze)
def _squeeze(rooms: Rooms, node: Node, x: Roomy, d: Any = None) -> Roomy:
    asked = range(len(x.dims)) if d is None else [e % len(x.dims) for e in _flat([d])]
    gone = {e for e in asked if all(p == Part(1) for p in x.dims[e])}
    kept = [e for e in range(len(x.dims)) if e not in gone]
    return Roomy(x.tensor.squeeze(sorted(gone)), tuple(x.dims[e] for e in kept))


@rule(aten.expand)
def _expand(rooms: Rooms, node: Node, x: Roomy, shape: Sequence[Any], implicit: bool = False) -> Roomy:
    made = rooms.dims(node.meta["val"].shape)
    lead = len(made) - len(x.dims)
    kept = [x.dims[d - lead] if d >= lead and x.tensor.shape[d - lead] != 1 else dim for d, dim in enumerate(made)]
    return rooms.wrap(x.tensor.expand(rooms.shape(node.meta["val"].shape)), node.meta["val"], tuple(kept))


@rule(aten.slice)
def _slice(rooms: Rooms, node: Node, x: Roomy, d: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Roomy:
    at, dims = d % len(x.dims), list(x.dims)
    (dims[at],) = rooms.dims([node.meta["val"].shape[at]])
    if _loose(x.dims[at]):
        if step != 1 or not isinstance(start or 0, int) or (start or 0) < 0 or len(x.dims[at]) > 1:
            raise NoRule("a slice that starts at a place counted from a dynamic end")
        end = (start or 0) + room_of(dims[at])
    return rooms.wrap(rooms.call(node.target, [x, d, start, end, step], {}), node.meta["val"], tuple(dims))


@rule(aten.select)
def _select(rooms: Rooms, node: Node, x: Roomy, d: int, index: Any) -> Roomy:
    at = d % len(x.dims)
    dims = x.dims[:at] + x.dims[at + 1 :]
    if not _loose(x.dims[at]):
        return rooms.wrap(x.tensor.select(at, index), node.meta["val"], dims)
    if len(x.dims[at]) > 1 or not isinstance(index, int):
        raise NoRule("a place in a merged dynamic dimension")
    place = torch.full((1,), index, dtype=torch.int64, device="tpu")
    if index < 0:
        place = place + rooms.true(x.dims[at][0].valid)
    return rooms.wrap(x.tensor.index_select(at, place).squeeze(at), node.meta["val"], dims)


@rule(aten.full, aten.zeros, aten.ones, aten.empty, aten.new_zeros, aten.new_ones, aten.new_empty, aten.new_full,
      aten.full_like, aten.zeros_like, aten.ones_like, aten.empty_like, aten.arange)  # fmt: skip
def _make(rooms: Rooms, node: Node, *args: Any, **kwargs: Any) -> Roomy:
    if node.target.overloadpacket is aten.arange and not all(isinstance(a, (int, sympy.Expr)) for a in args):
        raise NoRule("a range of fractions")
    if node.target.overloadpacket in (aten.full, aten.new_full) and isinstance(args[-1], sympy.Expr):
        raise NoRule("a tensor filled with a size")
    return rooms.wrap(rooms.call(node.target, args, kwargs), node.meta["val"])


# ---------------------------------------------------------------- where elements meet


def _axes(x: Roomy, dims: Any) -> list[int]:
    found = [d % len(x.dims) for d in _flat([dims]) if d is not None] if x.dims else []
    return found or list(range(len(x.dims)))


def _reduced(x: Roomy, axes: Sequence[int], keep: bool) -> tuple[Dim, ...]:
    return tuple((Part(1),) if d in axes else dim for d, dim in enumerate(x.dims) if keep or d not in axes)


@rule(aten.sum, aten.any, aten.amax, aten.amin, aten.all)
def _reduce(rooms: Rooms, node: Node, x: Roomy, dims: Any = None, keep: bool = False, **kwargs: Any) -> Roomy:
    packet, dtype = node.target.overloadpacket, x.tensor.dtype
    low, high = (float("-inf"), float("inf")) if dtype.is_floating_point else _limits(dtype)
    value = {aten.sum: 0, aten.any: 0, aten.all: 1, aten.amax: low, aten.amin: high}[packet]
    axes = _axes(x, dims)
    filled = rooms.filled(x, value, [d for d in axes if _loose(x.dims[d])])
    every = dims is None and packet not in (aten.amax, aten.amin)
    args = [filled] if every else [filled, [] if dims is None else dims, keep]
    return rooms.wrap(rooms.call(node.target, args, kwargs), node.meta["val"], _reduced(x, axes, keep))


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    return (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)


@rule(aten.mean)
def _mean(rooms: Rooms, node: Node, x: Roomy, dims: Any = None, keep: bool = False, **kwargs: Any) -> Roomy:
    axes, out = _axes(x, dims), node.meta["val"]
    filled = rooms.filled(x, 0, [d for d in axes if _loose(x.dims[d])]).tensor
    wide = torch.float32 if out.dtype in (torch.float16, torch.bfloat16) else out.dtype
    total = filled.sum(axes, keep, dtype=wide) if axes else filled.to(wide)
    for d in axes:
        for part in x.dims[d]:
            total = total / (part.room if part.valid is None else rooms.true(part.valid))
    return rooms.wrap(total.to(out.dtype), out, _reduced(x, axes, keep))


@rule(aten._softmax, aten._log_softmax)
def _softmax(rooms: Rooms, node: Node, x: Roomy, d: int, half: bool) -> Roomy:
    filled = rooms.filled(x, float("-inf"), [d % len(x.dims)])
    return Roomy(rooms.call(node.target, [filled, d, half], {}), x.dims)


@rule(aten._softmax_backward_data, aten._log_softmax_backward_data)
def _softmax_backward(rooms: Rooms, node: Node, grad: Roomy, out: Roomy, d: int, dtype: torch.dtype) -> Roomy:
    grad = rooms.filled(grad, 0, [d % len(out.dims)])
    if node.target.overloadpacket is aten._softmax_backward_data:
        out = rooms.filled(out, 0, [d % len(out.dims)])
    return Roomy(rooms.call(node.target, [grad, out, d, dtype], {}), out.dims)


@rule(aten.var)
def _var(rooms: Rooms, node: Node, x: Roomy, dims: Any = None, correction: Any = 1, keepdim: bool = False) -> Roomy:
    if node.target is not aten.var.correction or x.tensor.is_complex():
        raise NoRule(f"{node.target} with a dynamic size")
    axes = _axes(x, dims)
    loose, count = [d for d in axes if _loose(x.dims[d])], 1
    for part in (part for d in axes for part in x.dims[d]):
        count = count * (part.room if part.valid is None else rooms.true(part.valid))
    mean = rooms.filled(x, 0, loose).tensor.sum(axes, True) / count
    apart = Roomy((x.tensor - mean).square(), x.dims)
    total = rooms.filled(apart, 0, loose).tensor.sum(axes, keepdim)
    out = total / (count - (1 if correction is None else correction))
    return rooms.wrap(out.to(x.tensor.dtype), node.meta["val"], _reduced(x, axes, keepdim))


def _product(rooms: Rooms, a: Roomy, b: Roomy) -> tuple[Roomy, Roomy, tuple[Dim, ...]]:
    inner = a.dims[-1], b.dims[-2]
    if any(map(_loose, inner)):
        if inner[0] != inner[1]:
            raise NoRule("a product of dynamic sizes that are not the same")
        a, b = rooms.filled(a, 0, [len(a.dims) - 1]), rooms.filled(b, 0, [len(b.dims) - 2])
    return a, b, (*a.dims[:-1], b.dims[-1])


@rule(aten.mm, aten.bmm)
def _mm(rooms: Rooms, node: Node, a: Roomy, b: Roomy) -> Roomy:
    a, b, dims = _product(rooms, a, b)
    return rooms.wrap(rooms.call(node.target, [a, b], {}), node.meta["val"], dims)


@rule(aten.mv)
def _mv(rooms: Rooms, node: Node, a: Roomy, v: Roomy) -> Roomy:
    a, b, dims = _product(rooms, a, Roomy(v.tensor.unsqueeze(1), (*v.dims, (Part(1),))))
    return rooms.wrap((a.tensor @ b.tensor).squeeze(1), node.meta["val"], dims[:1])


@rule(aten.addmm, aten.baddbmm)
def _addmm(rooms: Rooms, node: Node, bias: Roomy, a: Roomy, b: Roomy, **scales: Any) -> Roomy:
    a, b, dims = _product(rooms, a, b)
    return rooms.wrap(rooms.call(node.target, [bias, a, b], scales), node.meta["val"], dims)


@rule(aten.native_layer_norm_backward, aten.native_group_norm_backward, aten.convolution_backward)
def _summed_over_rows(rooms: Rooms, node: Node, *args: Any, **kwargs: Any) -> Any:
    roomy = [a for a in _flat([args, kwargs]) if isinstance(a, Roomy)]
    if not _rows(node, args, roomy):
        raise NoRule(f"{node.target} with a dynamic size inside")
    filled = [rooms.filled(a, 0) if isinstance(a, Roomy) else a for a in args]
    return rooms.wrap(rooms.call(node.target, filled, kwargs), node.meta["val"])


# ---------------------------------------------------------------- places


@rule(aten.embedding)
def _embedding(rooms: Rooms, node: Node, weight: Roomy, index: Roomy, *rest: Any) -> Roomy:
    out = rooms.call(node.target, [weight, rooms.filled(index, 0), *rest], {})
    return rooms.wrap(out, node.meta["val"], (*index.dims, *weight.dims[1:]))


@rule(aten.embedding_dense_backward)
def _embedding_backward(rooms: Rooms, node: Node, grad: Roomy, index: Roomy, *rest: Any) -> Roomy:
    args = [rooms.filled(grad, 0), rooms.filled(index, 0), *rest]
    return rooms.wrap(rooms.call(node.target, args, {}), node.meta["val"])


@rule(aten.nll_loss_forward)
def _nll(rooms: Rooms, node: Node, x: Roomy, target: Roomy, weight: Any, reduction: int, ignore: int) -> Any:
    args = [x, rooms.filled(target, ignore), weight, reduction, ignore]
    return rooms.wrap(rooms.call(node.target, args, {}), node.meta["val"])


@rule(aten.nll_loss_backward)
def _nll_backward(rooms: Rooms, node: Node, grad: Roomy, x: Roomy, target: Roomy, weight: Any, reduction: int,
                  ignore: int, total: Roomy) -> Any:  # fmt: skip
    args = [grad, x, rooms.filled(target, ignore), weight, reduction, ignore, total]
    return rooms.wrap(rooms.call(node.target, args, {}), node.meta["val"], x.dims)
