"""Control flow in a plan. The functions of PyTorch's higher-order ops are recorded as bodies, which the ops of control
flow (crates/tpu-aten/src/ops/control.rs) run as often as data say.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_tpu import _C

# Runs a function of a higher-order op, op by op.
Inside = Callable[[GraphModule, Sequence[Any]], Any]
hops = torch.ops.higher_order


def plain(value: torch.Tensor) -> torch.Tensor:
    """An array of its own, dense."""
    return value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def laid(value: torch.Tensor, like: Any) -> torch.Tensor:
    """A dense value as the graph saw it: ops may depend on strides (``view``, and those that keep a memory format)."""
    if not isinstance(like, torch.Tensor) or any(isinstance(n, torch.SymInt) for n in (*like.shape, *like.stride())):
        return value
    strides = like.stride()
    if value.stride() == strides or 0 in strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device="tpu").copy_(value)


def call(node: Node, args: Sequence[Any], kwargs: dict[str, Any], inside: Inside) -> Any:
    """The results of a higher-order op in the graph that is being recorded.

    Raises:
        NotImplementedError: for what no plan can hold; the op then runs on the host.
    """
    if kwargs.pop("mutated_arg_indices", ""):
        raise NotImplementedError("a branch or loop that writes into its inputs")
    results = CONTROL[node.target](inside, *args, **kwargs)
    fakes = node.meta.get("val")
    if not isinstance(fakes, (list, tuple)) or len(fakes) != len(results):
        return results
    return [r if r is None else laid(r, fake) for r, fake in zip(results, fakes)]


def _cond(inside: Inside, pred: Any, yes: GraphModule, no: GraphModule, operands: Sequence[Any]) -> Sequence[Any]:
    if not isinstance(pred, torch.Tensor):
        return inside(yes if pred else no, operands)
    (first, mask), (second, other) = _body(inside, yes, operands), _body(inside, no, operands)
    if mask != other:
        raise NotImplementedError("branches of which one gives None where the other gives a tensor")
    return _spread(torch.ops.tpu.cond(pred, _tensors(operands), first, second), mask)


def _while_loop(
    inside: Inside, test: GraphModule, body: GraphModule, carried: Sequence[Any], more: Sequence[Any] = ()
) -> Sequence[Any]:
    if not all(isinstance(value, torch.Tensor) for value in carried):
        raise NotImplementedError("a loop that carries numbers of the host")
    (goes_on, _), (turn, mask) = _body(inside, test, [*carried, *more]), _body(inside, body, [*carried, *more])
    return _spread(torch.ops.tpu.while_loop(_tensors(carried), _tensors(more), goes_on, turn), mask)


def _scan(
    inside: Inside, body: GraphModule, init: Sequence[Any], xs: Sequence[torch.Tensor], more: Sequence[Any] = ()
) -> Sequence[Any]:
    if not xs:
        raise NotImplementedError("a scan over nothing")
    slices = [torch.empty(x.shape[1:], dtype=x.dtype, device="tpu") for x in xs]
    name, mask = _body(inside, body, [*init, *slices, *more])
    return _spread(torch.ops.tpu.scan(_tensors(init), _tensors(xs), _tensors(more), name), mask)


def _map(inside: Inside, body: GraphModule, xs: Sequence[torch.Tensor], more: Sequence[Any] = ()) -> Sequence[Any]:
    return _scan(inside, body, (), xs, more)


def _associative_scan(_: Inside, combine: GraphModule, xs: Sequence[torch.Tensor], more: Sequence[Any]) -> Any:
    return hops.associative_scan(combine, xs, more)  # PyTorch's own way makes ordinary ops of it, log(n) deep


CONTROL: dict[Any, Callable[..., Any]] = {
    hops.cond: _cond,
    hops.while_loop: _while_loop,
    hops.scan: _scan,
    hops.map_impl: _map,
    hops.associative_scan: _associative_scan,
}


def _body(inside: Inside, module: GraphModule, args: Sequence[Any]) -> tuple[str, list[bool]]:
    """The name of what ``module`` computes from such tensors (numbers are constants in it), and which of its results
    are tensors rather than None."""
    graph = _C.Graph()
    # never written, so they take no memory
    stands = graph.record_filled([torch.empty(x.shape, dtype=x.dtype, device="tpu") for x in _tensors(args)])
    try:
        rest = iter(stands)
        fakes = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
        given = [laid(next(rest), f) if isinstance(x, torch.Tensor) else x for x, f in zip(args, fakes, strict=True)]
        results = inside(module, given)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        for result in results:
            if result is not None and not (isinstance(result, torch.Tensor) and result.device.type == "tpu"):
                raise NotImplementedError(f"a branch or loop that gives {result!r} of the host")
        outs = [plain(result) for result in results if result is not None]
    except BaseException:
        graph.abandon()
        raise
    return graph.body(stands, outs), [result is not None for result in results]


def _tensors(args: Sequence[Any]) -> list[torch.Tensor]:
    return [x if x.device.type == "tpu" else x.to("tpu") for x in args if isinstance(x, torch.Tensor)]


def _spread(results: Sequence[torch.Tensor], mask: Sequence[bool]) -> list[torch.Tensor | None]:
    rest = iter(results)
    return [next(rest) if there else None for there in mask]
