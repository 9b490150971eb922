"""Device pieces of checkpointed graphs, whose random numbers are drawn a second time.

From which state an op draws is known to the host when the plan is called: it counts from where the call finds the
generator. So a saved state is made beside the plan. And what draws again runs with the generator set to the first of
the saved states, in a plan for each set of distances between them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from torch_tpu._compile.pieces import DevicePiece, Values, stored
from torch_tpu._compile.schedule import AGAIN, SAVE


class RedrawnPiece(DevicePiece):
    """A device piece with nodes that save the generator's state or draw from a saved one."""

    def __init__(
        self, nodes: Sequence[Node], takes: Sequence[Node], gives: Sequence[Node], ends: Sequence[Node]
    ) -> None:
        super().__init__(nodes, takes, gives, ends)
        self.plain = None
        saved = {node.args[0] for node in nodes if node.target is AGAIN}
        self.states = [k for k, node in enumerate(takes) if node in saved]
        # by what makes another graph: which results are states, and how far from the call's they are
        self.saved: dict[tuple[Any, ...], dict[int, int]] = {}

    def __call__(self, args: list[Any]) -> Sequence[torch.Tensor]:
        states = [args[k] for k in self.states]
        first = states[0] if states else torch.tpu.get_rng_state()
        seed, start = first.view(torch.int64).tolist()
        self.start = start
        distances = tuple((s - seed, o - start) for s, o in (x.view(torch.int64).tolist() for x in states))
        key = self.key = (distances, *(x.shape for x in args if isinstance(x, torch.Tensor)))
        rest = [None if k in self.states else x for k, x in enumerate(args)]
        if not states:
            results = self._called(rest, key)
        else:
            self.distances = dict(zip((self.takes[k] for k in self.states), distances))
            now = torch.tpu.get_rng_state()
            torch.tpu.set_rng_state(first)
            try:
                results = self._called(rest, key)
            finally:
                torch.tpu.set_rng_state(now)
        if saved := self.saved.get(key):
            results = list(results)
            for k, distance in saved.items():  # in order
                results.insert(k, torch.tensor([seed, start + distance]).view(torch.uint8))
        return results

    def _run(self, node: Node, values: Values) -> Any:
        if node.target is SAVE:
            if self.states:
                raise NotImplementedError("random numbers drawn beside others that are drawn again")
            offset = torch.tpu.get_rng_state().view(torch.int64)[1].item() - self.start
            return offset, _drawn(node.args, node.kwargs, values)
        if node.target is AGAIN:
            return self._again(node, values)
        before = torch.tpu.get_rng_state()
        result = super()._run(node, values)
        if self.states and not torch.equal(before, torch.tpu.get_rng_state()):
            raise NotImplementedError("random numbers drawn beside others that are drawn again")
        return result

    def _again(self, node: Node, values: Values) -> Any:
        now = torch.tpu.get_rng_state()
        other, distance = self.distances[node.args[0]]
        if other:
            raise NotImplementedError("random numbers drawn again from states of different seeds")
        state = now.clone()
        state.view(torch.int64)[1] += distance
        torch.tpu.set_rng_state(state)
        try:
            return _drawn(node.args[1:], node.kwargs, values)
        finally:
            torch.tpu.set_rng_state(now)

    def _outs(self, values: Values) -> list[torch.Tensor]:
        given = [values[node] for node in self.gives]
        self.saved[self.key] = {k: value for k, value in enumerate(given) if isinstance(value, int)}
        return [stored(value) for value in given if not isinstance(value, int)]


def _drawn(args: Sequence[Any], kwargs: dict[str, Any], values: Values) -> Any:
    (op, *args), kwargs = map_arg((args, kwargs), values.__getitem__)
    return op(*args, **kwargs)
