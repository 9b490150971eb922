"""Pieces of a graph: those that run as one plan on the device, those that run as they stand."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import getitem
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from torch_tpu import _C
from torch_tpu._compile import control
from torch_tpu._compile.schedule import AGAIN, SAVE, line_of

Values = dict[Node, Any]
NO_VALUE = "it has no lowering for such arguments, or needs a value on the host"


class Refusal(Exception):
    """A node that a plan cannot hold, met while it was recorded."""

    def __init__(self, node: Node, reason: Exception) -> None:
        super().__init__(node.name)
        text = str(reason) or type(reason).__name__
        self.node, self.reason = node, NO_VALUE if "is being recorded" in text else text.splitlines()[0]


@contextmanager
def recording(graph: _C.Graph, inputs: list[torch.Tensor]) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Records the block's ops into the graph: stand-ins of the inputs, and a list that takes the outputs."""
    # tensors of inference mode count no writes
    with torch.inference_mode(False), torch.no_grad(), _disable_current_modes(), torch._C._DisableAutocast():
        stands, outs = graph.record(inputs), []
        try:
            yield stands, outs
            graph.finish(stands, outs)
        except BaseException:
            graph.abandon()
            raise


def stored(x: torch.Tensor) -> torch.Tensor:
    """The same numbers as they stand in memory: without what PyTorch only notes (conjugation, a sign, all zeros)."""
    return x.clone() if x._is_zerotensor() else x.resolve_conj().resolve_neg()


def begin(node: Node) -> None:
    """From here on the node is recorded."""
    if node.target is not getitem:
        _C.info(f"site:{line_of(node)}")


class DevicePiece:
    """Nodes that run as one plan. It is recorded on the first call with inputs of a geometry (and, where sizes are
    dynamic, with given numbers)."""

    def __init__(
        self, nodes: Sequence[Node], takes: Sequence[Node], gives: Sequence[Node], ends: Sequence[Node]
    ) -> None:
        self.nodes, self.takes, self.gives, self.ends = nodes, takes, gives, ends
        self.graphs: dict[tuple[Any, ...], _C.Graph] = {}
        self.walks = Walks()
        # the usual case, in which nothing has to be looked at: device tensors only
        self.plain = None if any(not _on_device(node) for node in takes) else _C.Graph()

    def __call__(self, args: list[Any]) -> Sequence[torch.Tensor]:
        if self.plain is not None:
            results = self.plain(args)
            return self._recorded(self.plain, args, args) if results is None else results
        return self._called(args)

    def _called(self, args: list[Any], further: tuple[Any, ...] = ()) -> Sequence[torch.Tensor]:
        """Through the graph for these numbers and what ``further`` makes another graph."""
        tensors, numbers = [], []
        for arg in args:
            if not isinstance(arg, torch.Tensor):
                numbers.append(arg)
            else:
                tensors.append(arg if arg.device.type == "tpu" else arg.to("tpu"))
        key = (*numbers, *further)
        graph = self.graphs.get(key)
        if graph is None:
            graph = self.graphs[key] = _C.Graph()
        results = graph(tensors)
        return self._recorded(graph, args, tensors) if results is None else results

    def _recorded(self, graph: _C.Graph, args: list[Any], tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        tensors, moved = self.walks.standing(tensors)
        if moved and (results := graph(tensors)) is not None:
            return results
        with recording(graph, tensors) as (stands, outs):
            versions = [stand._version for stand in stands]
            rest = iter(stands)
            values = {n: next(rest) if isinstance(a, torch.Tensor) else a for n, a in zip(self.takes, args)}
            for node in self.nodes:
                begin(node)
                try:
                    values[node] = self._run(node, values)
                except Exception as error:
                    raise Refusal(node, error) from error
            outs.extend(self._outs(values))
            self.walks.recorded(tensors, stands, versions, outs)
        results = graph(tensors)
        assert results is not None, "a graph was not kept"
        return results

    def _run(self, node: Node, values: Values) -> Any:
        return run(node, values, in_plan=True)

    def _outs(self, values: Values) -> list[torch.Tensor]:
        return [stored(values[node]) for node in self.gives]


class Walks:
    """Inputs that begin elsewhere in their storage in each call, as batches cut from a data set do: a program for each
    place would be compiled, so from the third place on such an input is copied out first."""

    PLACES = 2

    def __init__(self) -> None:
        self.places: dict[tuple[Any, ...], list[list[int]]] = {}
        self.bound: set[int] = set()
        """Inputs that are written, or that results are views of: a copy would not do."""

    def standing(self, tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], bool]:
        """The inputs, those that walk as copies; whether any does."""
        met = self.places.get(_geometry(tensors), [])
        if len(met) < self.PLACES:
            return tensors, False
        walking = {i for i, t in enumerate(tensors) if any(t.storage_offset() != offsets[i] for offsets in met)}
        if not walking or walking & self.bound:
            return tensors, False
        with torch.no_grad():
            return [t.clone() if i in walking else t for i, t in enumerate(tensors)], True

    def recorded(
        self, tensors: list[torch.Tensor], stands: list[torch.Tensor], versions: list[int], outs: list[torch.Tensor]
    ) -> None:
        """Takes in what a program does with its inputs."""
        self.places.setdefault(_geometry(tensors), []).append([t.storage_offset() for t in tensors])
        given = {out.untyped_storage().data_ptr() for out in outs}
        for i, (stand, version) in enumerate(zip(stands, versions)):
            if stand._version != version or stand.untyped_storage().data_ptr() in given:
                self.bound.add(i)


def _geometry(tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    return tuple((t.dtype, t.shape, t.stride(), t.untyped_storage().nbytes()) for t in tensors)


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


def run(node: Node, values: Values, in_plan: bool = False) -> Any:
    """The node's result for what its arguments stand for."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda arg: attribute(arg) if is_module(arg) else values[arg])
    if in_plan and node.target in control.CONTROL:
        return control.call(node, args, dict(kwargs), inside)
    return INSTEAD.get(node.target, node.target)(*args, **kwargs)


def inside(module: torch.fx.GraphModule, args: Sequence[Any]) -> Any:
    """What a function of a higher-order op gives, op by op, while a plan is recorded."""
    values: Values = dict(zip(module.graph.find_nodes(op="placeholder"), args, strict=True))
    for node in module.graph.nodes:
        if node.op == "get_attr" and not is_module(node):
            values[node] = attribute(node)
        elif node.op == "call_function":
            try:
                values[node] = run(node, values, in_plan=True)
            except Exception as error:
                raise NotImplementedError(f"{node.target} in a branch or loop: {error}") from error
    (output,) = module.graph.find_nodes(op="output")
    return map_arg(output.args[0], values.__getitem__)


def is_module(node: Node) -> bool:
    """Whether the node names a function of a higher-order op, which is no value."""
    return node.op == "get_attr" and isinstance(attribute(node), torch.nn.Module)


def attribute(node: Node) -> Any:
    """What a ``get_attr`` node names."""
    found: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        found = getattr(found, name)
    return found


def _run_and_save_rng_state(op: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    return torch.tpu.get_rng_state(), op(*args, **kwargs)


def _run_with_rng_state(state: torch.Tensor, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    now = torch.tpu.get_rng_state()
    torch.tpu.set_rng_state(state)
    try:
        return op(*args, **kwargs)
    finally:
        torch.tpu.set_rng_state(now)


# PyTorch's own know a fixed list of devices.
INSTEAD = {SAVE: _run_and_save_rng_state, AGAIN: _run_with_rng_state}


def _on_device(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"
