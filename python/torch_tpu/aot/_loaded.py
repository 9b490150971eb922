"""A program from a file, as it is called."""

from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _C


class Loaded:
    """Call it as the exported module was called: arguments of the same structure, with tensors of the same shapes and
    dtypes, on the CPU or the device. The results are on the device, and no gradients flow through them.

    The program keeps its buffers between calls. What it writes into the user's tensors is written into them.
    """

    def __init__(
        self,
        graph: _C.Graph,
        manifest: dict[str, Any],
        held: dict[int, torch.Tensor],
        in_spec: pytree.TreeSpec,
        out_spec: pytree.TreeSpec,
    ) -> None:
        self._graph = graph
        self._inputs = manifest["inputs"]
        self._outputs = manifest["outputs"]
        self._held = held
        self._in_spec, self._out_spec = in_spec, out_spec
        tensors = [k for k, item in enumerate(self._inputs) if "value" not in item]
        self._written = {tensors[place] for place in manifest["program"]["updates"]}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and constants as they are now, on the CPU."""
        return {self._inputs[k]["name"]: tensor.cpu() for k, tensor in self._held.items()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._given(args, kwargs)
        with torch.no_grad():
            sent = {k: tensor.detach().to("tpu") for k, tensor in given.items()}
            results = self._graph(self._operands(sent))
            if results is None:  # one of them is a part of something, or lies otherwise in memory
                sent = {k: tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
                        for k, tensor in sent.items()}  # fmt: skip
                results = self._graph(self._operands(sent))
                assert results is not None
                copied = given
            else:
                copied = {k: tensor for k, tensor in given.items() if tensor.device.type != "tpu"}
            for k in self._written.intersection(given):
                if k in copied:
                    given[k].copy_(sent[k])
                else:
                    torch.autograd.graph.increment_version(given[k])
        rest = iter(results)
        flat = [item["value"] if "value" in item else next(rest) for item in self._outputs]
        return pytree.tree_unflatten(flat, self._out_spec)

    def _operands(self, sent: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        both = {**self._held, **sent}
        return [both[k] for k in sorted(both)]

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, torch.Tensor]:
        """The user's tensors by their place among the inputs, all of them checked."""
        try:
            flat = self._in_spec.flatten_up_to((args, kwargs))
        except ValueError as error:
            got = pytree.tree_structure((args, kwargs))
            raise TypeError(f"expected arguments of the structure\n{self._in_spec}\nbut got\n{got}") from error
        places = [k for k, item in enumerate(self._inputs) if item["kind"] == "input"]
        given = {}
        for k, value in zip(places, flat, strict=True):
            item = self._inputs[k]
            if "value" not in item:
                _check(item, value)
                given[k] = value
            elif type(value) is not type(item["value"]) or value != item["value"]:
                raise ValueError(
                    f"input {item['name']!r}: the program was exported for {item['value']!r}, but got {value!r}"
                )
        return given


def _check(item: dict[str, Any], value: Any) -> None:
    expected = f"input {item['name']!r}: expected a tensor {item['dtype']}{item['shape']}"
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{expected}, but got {type(value).__name__}")
    dtype = str(value.dtype).removeprefix("torch.")
    got = f"{expected}, but got {dtype}{list(value.shape)}"
    if dtype != item["dtype"]:
        raise TypeError(got)
    if list(value.shape) != item["shape"]:
        raise ValueError(got)
    if value.is_meta or value.layout != torch.strided:
        raise TypeError(f"{expected} with values, but got one on {value.device} of layout {value.layout}")
