"""One ATen graph as it is called: its device pieces run as plans."""

from collections.abc import Sequence
from itertools import count
from operator import getitem
from typing import Any
from weakref import WeakSet

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from torch_tpu._compile.dynamic import HANDED, DynamicPiece
from torch_tpu._compile.pieces import DevicePiece, HostPiece, Refusal, Values, attribute, is_module
from torch_tpu._compile.redrawn import RedrawnPiece
from torch_tpu._compile.rooms import symbols_of
from torch_tpu._compile.schedule import AGAIN, SAVE, Piece, kept_off, line_of, schedule

ORDINALS = count()
PROGRAMS: "WeakSet[Program]" = WeakSet()


class Program:
    """Runs a graph. Takes its inputs as a list, which it empties (AOTAutograd's boxed convention)."""

    def __init__(self, module: torch.fx.GraphModule, seen: int | None = None) -> None:
        """``seen``: so many of the first outputs are for the caller (None: all), the rest for the backward graph."""
        self._boxed_call = True  # on the instance: Dynamo's wrappers copy its dict
        graph = module.graph
        self.inputs = graph.find_nodes(op="placeholder")
        self.kept: Values = {n: attribute(n) for n in graph.find_nodes(op="get_attr") if not is_module(n)}
        self.order = list(graph.nodes)
        (self.output,) = graph.find_nodes(op="output")
        for node in self.output.args[0][:seen]:
            if isinstance(node, Node):
                node.meta[HANDED] = True
        self.refused: dict[Node, str] = {}
        self.calls, self.ordinal = 0, next(ORDINALS)
        PROGRAMS.add(self)
        self.steps = self._steps([n for n in graph.nodes if n.op == "call_function"])
        self._shorten()

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        self.calls += 1
        if self.short is not None:
            step, takes, gives = self.short
            try:
                results = step(args if takes is None else [args[k] for k in takes])
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
                self.refused[refusal.node] = refusal.reason
                self.steps[k:] = self._steps([node for later in self.steps[k:] for node in later.nodes])
                continue
            values.update(zip(step.gives, results))
            for node in step.ends:
                del values[node]
            k += 1
        return map_arg(self.output.args[0], values.__getitem__)

    def report(self) -> dict[str, Any]:
        """What ``explain`` says about the graph: see there."""
        nodes = [node for step in self.steps for node in step.nodes]
        host = [node for step in self.steps if isinstance(step, HostPiece) for node in step.nodes]
        why = [(node, self.refused.get(node) or kept_off(node)) for node in host if node.target is not getitem]
        rooms = [step for step in self.steps if isinstance(step, DynamicPiece)]
        return {
            "line": next(filter(None, map(line_of, nodes)), ""),
            "ops": len([node for node in nodes if node.target is not getitem]),
            "plans": len(self.steps) - sum(isinstance(step, HostPiece) for step in self.steps),
            "divided": [(str(node.target), line_of(node), reason) for node, reason in why if reason],
            "rooms": [row for step in rooms if not step.reason for row in step.report()],
            "exact": [step.reason for step in rooms if step.reason],
        }

    def _shorten(self) -> None:
        """Where one piece does it all: the piece, which inputs it takes, and what each output is: a result of it, or
        (complement) an input. None: all as they are."""
        self.short: tuple[DevicePiece, list[int] | None, list[int] | None] | None = None
        if len(self.steps) != 1 or not isinstance(self.steps[0], DevicePiece) or self.kept:
            return
        step, outs = self.steps[0], self.output.args[0]
        place = {node: ~k for k, node in enumerate(self.inputs)} | {node: k for k, node in enumerate(step.gives)}
        if all(isinstance(out, Node) and out in place for out in outs):
            gives = None if list(outs) == step.gives else [place[out] for out in outs]
            takes = None if step.takes == self.inputs else [self.inputs.index(node) for node in step.takes]
            self.short = step, takes, gives

    def _steps(self, calls: Sequence[Node]) -> list[DevicePiece | HostPiece]:
        """The pieces of ``calls``, which all else has run before."""
        pieces = schedule(calls, self.refused)
        where = {node: k for k, piece in enumerate(pieces) for node in piece.nodes}
        uses: list[set[Node]] = [set() for _ in pieces]
        for node, k in where.items():
            uses[k].update(arg for arg in node.all_input_nodes if where.get(arg) != k and not is_module(arg))
        kept, steps, later = set(self.output.all_input_nodes), [], set()
        for k in reversed(range(len(pieces))):
            takes = [arg for arg in self.order if arg in uses[k]]
            gives = [node for node in pieces[k].nodes if node in later or node in kept]
            ends = [node for node in takes if node not in later and node not in kept]
            steps.append(_kind(pieces[k], takes)(pieces[k].nodes, takes, gives, ends))
            later |= uses[k]
        return steps[::-1]


def _kind(piece: Piece, takes: Sequence[Node]) -> type[DevicePiece | HostPiece]:
    if not piece.on_device:
        return HostPiece
    if any(node.target in (SAVE, AGAIN) for node in piece.nodes):
        return RedrawnPiece
    dynamic = any(symbols_of(node.meta.get("val")) for node in takes)
    return DynamicPiece if dynamic else DevicePiece
