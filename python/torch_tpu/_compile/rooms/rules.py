"""Which rule an op has: those that let the rest of a dimension be are here, the others in modules of their own."""

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any

import sympy
import torch
from torch.fx import Node
from torch.fx.node import map_arg

from torch_tpu._compile.rooms.core import Dim, NoRule, Part, Rooms, Roomy, is_loose, number_of

aten = torch.ops.aten

# Elementwise, whatever their tags say.
POINTWISE = {
    aten.gelu_backward, aten.silu_backward, aten.threshold_backward, aten.elu_backward, aten.hardtanh_backward,
    aten.leaky_relu_backward, aten.sigmoid_backward, aten.tanh_backward, aten.softplus_backward, aten.where,
    aten._to_copy, aten.clone, aten.alias, aten.detach, aten.lift_fresh_copy, aten.copy,
}  # fmt: skip

# Row by row: right where only the first dimension of each operand is dynamic.
ROWS = {
    aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward, aten.avg_pool2d, aten.avg_pool2d_backward,
    aten._adaptive_avg_pool2d, aten._adaptive_avg_pool2d_backward, aten.native_group_norm,
    aten._native_batch_norm_legit_no_training, aten.upsample_nearest2d, aten.upsample_bilinear2d,
}  # fmt: skip

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}


def rule(*packets: Any) -> Callable[[Rule], Rule]:
    """The function is the rule of these ops: it takes the rooms, the node and its arguments at their rooms."""

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
    if isinstance(fake, (torch.SymInt, torch.SymFloat)):
        return number_of(fake)
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    op = node.target
    if op is getitem and isinstance(args[0], tuple):
        return args[0][args[1]]
    if not isinstance(op, torch._ops.OpOverload):
        raise NoRule(str(op))
    leaves = flat([args, kwargs])
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
        args, kwargs, dims = together(rooms, args, kwargs)
        return rooms.wrap(rooms.call(op, args, kwargs, rooms.true), fake, dims)
    if packet in ROWS and in_first(roomy):
        return rooms.wrap(rooms.call(op, args, kwargs), fake)
    raise NoRule(f"{op} with a dynamic size")


def _draws_nothing(op: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    names = [a.name for a in op._schema.arguments]
    k = names.index("dropout_p") if "dropout_p" in names else len(args)
    return "dropout_p" in names and (k >= len(args) or args[k] == 0)


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in flat(item)]
    if isinstance(tree, dict):
        return flat(list(tree.values()))
    return [tree]


def in_first(roomy: Sequence[Roomy]) -> bool:
    """Whether each is loose at most at the front of its first dimension."""
    return all(a.loose() in ([], [0]) and (not a.dims or not is_loose(a.dims[0][1:])) for a in roomy)


def together(rooms: Rooms, *trees: Any) -> tuple[Any, ...]:
    """The same with all operands laid out alike, and the dimensions of what is broadcast from them."""
    all_dims = [a.dims for a in flat(trees) if isinstance(a, Roomy)]
    rank = max(len(dims) for dims in all_dims)
    out: list[Dim] = []
    for d in range(rank):
        met = [dims[d - rank + len(dims)] for dims in all_dims if d - rank + len(dims) >= 0]
        wide = [dim for dim in met if any(p != Part(1) for p in dim)] or met
        out.append(next((dim for dim in wide if is_loose(dim)), wide[0]))

    def alike(tree: Any) -> Any:
        if isinstance(tree, (list, tuple)):
            return type(tree)(map(alike, tree))
        if isinstance(tree, dict):
            return {k: alike(v) for k, v in tree.items()}
        if isinstance(tree, Roomy):
            for d, dim in enumerate(out[rank - len(tree.dims) :]):
                if any(p != Part(1) for p in tree.dims[d]):
                    tree = rooms.laid(tree, d, dim)
        return tree

    return *map(alike, trees), tuple(out)


def axis(x: Roomy, d: int) -> int:
    return d % len(x.dims) if x.dims else 0


def replaced(dims: tuple[Dim, ...], d: int, dim: Dim) -> tuple[Dim, ...]:
    return (*dims[:d], dim, *dims[d + 1 :])
