"""One ATen graph as it is called: its device pieces run as plans."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from torch_tpu import _C
from torch_tpu._compile.schedule import schedule

Values = dict[Node, Any]


class Refusal(Exception):
    """A node that a plan cannot hold, met while it was recorded."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.name)
        self.node = node


class DevicePiece:
    """Nodes that run as one plan. It is recorded on the first call with inputs of a geometry (and, where sizes are
    dynamic, with given numbers)."""

    def __init__(
        self, nodes: Sequence[Node], takes: Sequence[Node], gives: Sequence[Node], ends: Sequence[Node]
    ) -> None:
        self.nodes, self.takes, self.gives, self.ends = nodes, takes, gives, ends
        self.graphs: dict[tuple[Any, ...], _C.Graph] = {}
        # the usual case, in which nothing has to be looked at: device tensors only
        self.plain = None if any(not _on_device(node) for node in takes) else _C.Graph()

    def __call__(self, args: list[Any]) -> Sequence[torch.Tensor]:
        if self.plain is not None:
            results = self.plain(args)
            return self._recorded(self.plain, args, args) if results is None else results
        tensors, numbers = [], []
        for arg in args:
            if not isinstance(arg, torch.Tensor):
                numbers.append(arg)
            else:
                tensors.append(arg if arg.device.type == "tpu" else arg.to("tpu"))
        key = tuple(numbers)
        graph = self.graphs.get(key)
        if graph is None:
            graph = self.graphs[key] = _C.Graph()
        results = graph(tensors)
        return self._recorded(graph, args, tensors) if results is None else results

    def _recorded(self, graph: _C.Graph, args: list[Any], tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        with torch.no_grad(), _disable_current_modes(), torch._C._DisableAutocast():
            stands = graph.record(tensors)
            try:
                rest = iter(stands)
                values = {n: next(rest) if isinstance(a, torch.Tensor) else a for n, a in zip(self.takes, args)}
                for node in self.nodes:
                    try:
                        values[node] = run(node, values)
                    except Exception as error:
                        raise Refusal(node) from error
                outs = [values[node].resolve_conj().resolve_neg() for node in self.gives]
            except BaseException:
                graph.abandon()
                raise
            graph.finish(stands, outs)
        results = graph(tensors)
        assert results is not None, "a graph was not kept"
        return results


class HostPiece:
    """Nodes that run as they stand."""

    def __init__(
        self, nodes: Sequence[Node], takes: Sequence[Node], gives: Sequence[Node], ends: Sequence[Node]
    ) -> None:
        self.nodes, self.takes, self.gives, self.ends = nodes, takes, gives, ends

    def __call__(self, args: Sequence[Any]) -> Sequence[Any]:
        values = dict(zip(self.takes, args))
        with torch.no_grad():
            for node in self.nodes:
                values[node] = run(node, values)
        return [values[node] for node in self.gives]


def run(node: Node, values: Values) -> Any:
    """The node's result for what its arguments stand for."""
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    return INSTEAD.get(node.target, node.target)(*args, **kwargs)


def _run_and_save_rng_state(op: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    return torch.tpu.get_rng_state(), op(*args, **kwargs)


def _run_with_rng_state(state: torch.Tensor, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    now = torch.tpu.get_rng_state()
    torch.tpu.set_rng_state(state.cpu())
    try:
        return op(*args, **kwargs)
    finally:
        torch.tpu.set_rng_state(now)


# What checkpointing makes of random ops; PyTorch's own know a fixed list of devices.
INSTEAD = {
    torch._prims.rng_prims.run_and_save_rng_state: _run_and_save_rng_state,
    torch._prims.rng_prims.run_with_rng_state: _run_with_rng_state,
}


def _on_device(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"


class Program:
    """Runs a graph. Takes its inputs as a list, which it empties (AOTAutograd's boxed convention)."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._boxed_call = True  # on the instance: Dynamo's wrappers copy its dict
        graph = module.graph
        self.inputs = graph.find_nodes(op="placeholder")
        self.kept: Values = {n: _attribute(module, str(n.target)) for n in graph.find_nodes(op="get_attr")}
        (self.output,) = graph.find_nodes(op="output")
        self.refused: set[Node] = set()
        self.steps = self._steps([n for n in graph.nodes if n.op == "call_function"])
        self._shorten()

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self.short is not None:
            step, takes, gives = self.short
            try:
                results = step([args[k] for k in takes])
            except Refusal:
                self.short = None  # below it is divided
            else:
                if gives is not None:
                    results = [results[k] if k >= 0 else args[~k] for k in gives]
                args.clear()
                return results
        values = {**self.kept, **dict(zip(self.inputs, args))}
        args.clear()
        k = 0
        while k < len(self.steps):
            step = self.steps[k]
            try:
                results = step([values[node] for node in step.takes])
            except Refusal as refusal:  # nothing of the step has run: it is divided there
                self.refused.add(refusal.node)
                self.steps[k:] = self._steps([node for later in self.steps[k:] for node in later.nodes])
                continue
            values.update(zip(step.gives, results))
            for node in step.ends:
                del values[node]
            k += 1
        return map_arg(self.output.args[0], values.__getitem__)

    def _shorten(self) -> None:
        """Where one piece does it all: the piece, which inputs it takes, and what each output is: a result of it, or
        (complement) an input; None: its results as they are."""
        self.short: tuple[DevicePiece, list[int], list[int] | None] | None = None
        if len(self.steps) != 1 or not isinstance(self.steps[0], DevicePiece) or self.kept:
            return
        step, outs = self.steps[0], self.output.args[0]
        place = {node: ~k for k, node in enumerate(self.inputs)} | {node: k for k, node in enumerate(step.gives)}
        if all(isinstance(out, Node) and out in place for out in outs):
            gives = None if list(outs) == step.gives else [place[out] for out in outs]
            self.short = step, [self.inputs.index(node) for node in step.takes], gives

    def _steps(self, calls: Sequence[Node]) -> list[DevicePiece | HostPiece]:
        """The pieces of ``calls``, which all else has run before."""
        pieces = schedule(calls, self.refused)
        where = {node: k for k, piece in enumerate(pieces) for node in piece.nodes}
        uses: list[set[Node]] = [set() for _ in pieces]
        for node, k in where.items():
            uses[k].update(arg for arg in node.all_input_nodes if where.get(arg) != k)
        kept, steps, later = set(self.output.all_input_nodes), [], set()
        for k in reversed(range(len(pieces))):
            takes = [*dict.fromkeys(arg for n in pieces[k].nodes for arg in n.all_input_nodes if arg in uses[k])]
            gives = [node for node in pieces[k].nodes if node in later or node in kept]
            ends = [node for node in takes if node not in later and node not in kept]
            steps.append((DevicePiece if pieces[k].on_device else HostPiece)(pieces[k].nodes, takes, gives, ends))
            later |= uses[k]
        return steps[::-1]


def _attribute(module: torch.nn.Module, target: str) -> Any:
    for name in target.split("."):
        module = getattr(module, name)
    return module
