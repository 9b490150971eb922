"""From an exported program to one StableHLO module, through the device's own recorder."""

import copy
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    TensorArgument,
)
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torch_tpu import _C, tpu
from torch_tpu._compile import control
from torch_tpu._compile.control import laid, plain
from torch_tpu._compile.pieces import begin

KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
    InputKind.USER_INPUT: "input",
}


@dataclass
class Input:
    """One input of an exported program: a tensor, which is a parameter of the module, or a constant of its trace."""

    name: str
    kind: str
    tensor: torch.Tensor | None  # what it holds, or for the user's input what stands for it
    value: Any = None  # of a constant of the trace


@dataclass
class Capture:
    """An exported program as the device compiles it."""

    program: dict[str, Any]  # what the core says about it (crates/tpu-runtime/src/aot.rs)
    module: str
    origins: list[list[Any]]  # of each op its first value's number in the module, its name and its Python line
    inputs: list[Input]
    outputs: list[Any]  # the user's, in order: ``{}`` for a tensor, ``{"value": …}`` for a constant
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec


def capture(
    subject: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
) -> Capture:
    """Exports ``subject`` if it is not yet, and records it."""
    exported = _exported(subject, args, kwargs)
    _check_sizes(exported)
    # functional: what the program writes becomes a result; the ops stay those of ATen
    exported = exported.run_decompositions({})
    inputs = _inputs(exported)
    writes, outputs, tensors = _outputs(exported, inputs)
    text = _record(exported.graph_module, inputs, writes, tensors)
    program = json.loads(text)
    module, origins = program.pop("module"), program.pop("origins")
    return Capture(program, module, origins, inputs, outputs, exported.call_spec.in_spec, exported.call_spec.out_spec)


class _Loss(torch.nn.Module):
    """The sum of a model's floating-point results, as a function of the tensors among its arguments."""

    def __init__(self, model: torch.nn.Module, given: Any) -> None:
        super().__init__()
        self.model = model
        self.leaves, self.spec = pytree.tree_flatten(given)

    def tensors(self) -> list[torch.Tensor]:
        return [x for x in self.leaves if isinstance(x, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor]:
        rest = iter(tensors)
        given = [next(rest) if isinstance(x, torch.Tensor) else x for x in self.leaves]
        args, kwargs = pytree.tree_unflatten(given, self.spec)
        found = pytree.tree_leaves(self.model(*args, **kwargs))
        return (sum(t.float().sum() for t in found if isinstance(t, torch.Tensor) and t.is_floating_point()),)


def _fake(x: torch.Tensor) -> torch.Tensor:
    fake = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="tpu", requires_grad=x.requires_grad)
    return torch.nn.Parameter(fake, x.requires_grad) if isinstance(x, torch.nn.Parameter) else fake


def _faked(model: torch.nn.Module, memo: dict[int, Any]) -> torch.nn.Module:
    """The same module with tensors that hold nothing. What is shared stays shared."""
    if id(model) not in memo:
        twin = memo[id(model)] = copy.copy(model)

        def held(tensors: dict[str, Any]) -> dict[str, Any]:
            return {k: t if t is None else memo.setdefault(id(t), _fake(t)) for k, t in tensors.items()}

        twin.__dict__ = dict(model.__dict__)
        twin._parameters, twin._buffers = held(model._parameters), held(model._buffers)
        twin._modules = {k: m if m is None else _faked(m, memo) for k, m in model._modules.items()}
    return memo[id(model)]


def training(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, list[list[Any]]]:
    """The StableHLO module of a training step: the model's loss (see `_Loss`), then the gradients of its parameters.
    With it, where its values come from (see `Capture.origins`)."""
    from torch._functorch.aot_autograd import aot_export_module
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:  # on the device, without its memory: some ops of meta tensors have no gradients
        loss = _Loss(_faked(model, {}), pytree.tree_map_only(torch.Tensor, _fake, (args, kwargs)))
    given = loss.tensors()
    with torch.enable_grad(), mode:
        joint, signature = aot_export_module(loss, given, trace_joint=True, output_loss_index=0)
    held = dict(loss.named_parameters(remove_duplicate=False)) | dict(loss.named_buffers(remove_duplicate=False))
    inputs = [Input(name, "parameter", held[name]) for name in (*signature.parameters, *signature.buffers)]
    targets = [item.name for item in inputs]
    inputs += [Input(name, "input", x) for name, x in zip(signature.user_inputs, given, strict=True)]
    (output,) = joint.graph.find_nodes(op="output")
    names = [node.name if isinstance(node, Node) else None for node in output.args[0]]
    writes = {targets.index(buffer): names.index(name) for name, buffer in signature.buffers_to_mutate.items()}
    tensors = [k for k, name in enumerate(names) if name is not None and k not in writes.values()]
    program = json.loads(_record(joint, inputs, writes, tensors))
    return program["module"], program["origins"]


def _check_sizes(exported: ExportedProgram) -> None:
    for node in exported.graph.nodes:
        if free_unbacked_symbols(node.meta.get("val")):
            raise NotImplementedError(
                f"torch_tpu.aot: the size of what {node.target} gives depends on its data, and a compiled program has "
                f"fixed sizes{_place(node)}"
            )
    if exported.range_constraints:
        sizes = ", ".join(map(str, exported.range_constraints))
        raise ValueError(
            f"torch_tpu.aot: the program has dynamic sizes ({sizes}), and a compiled program has fixed ones: "
            "export it without dynamic_shapes"
        )


def _exported(subject: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> ExportedProgram:
    if isinstance(subject, ExportedProgram):
        if args is not None or kwargs is not None:
            raise TypeError("torch_tpu.aot: an ExportedProgram holds its example arguments; got others beside it")
        return subject
    if not callable(subject):
        raise TypeError(f"torch_tpu.aot: expected an ExportedProgram, a module or a function, got {type(subject)}")
    if args is not None and not isinstance(args, (tuple, list)):
        raise TypeError(f"torch_tpu.aot: args is a tuple of example arguments, got {type(args)}")
    if not isinstance(subject, torch.nn.Module):
        subject = _Function(subject)
    return torch.export.export(subject, tuple(args or ()), dict(kwargs or {}))


class _Function(torch.nn.Module):
    """torch.export takes modules only."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if isinstance(function, FunctionType):
            # an export notes the lines of functions of this name
            code = function.__code__.replace(co_name="forward")
            copy = FunctionType(code, function.__globals__, "forward", function.__defaults__, function.__closure__)
            copy.__kwdefaults__ = function.__kwdefaults__
            function = copy
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _inputs(exported: ExportedProgram) -> list[Input]:
    inputs = []
    placeholders = exported.graph.find_nodes(op="placeholder")
    for spec, node in zip(exported.graph_signature.input_specs, placeholders, strict=True):
        kind = KINDS.get(spec.kind)
        if kind is not None and isinstance(spec.arg, ConstantArgument):
            inputs.append(Input(node.name, kind, None, spec.arg.value))
            continue
        value = node.meta.get("val")
        if kind is None or not isinstance(spec.arg, TensorArgument) or not isinstance(value, torch.Tensor):
            raise NotImplementedError(f"torch_tpu.aot: input {node.name!r} of the program is a {spec.kind.name}")
        if value.layout != torch.strided:
            raise NotImplementedError(f"torch_tpu.aot: input {node.name!r} of the program is {value.layout}")
        if kind == "input":
            inputs.append(Input(node.name, kind, value))
        else:
            held = exported.state_dict.get(spec.target)
            inputs.append(Input(spec.target, kind, exported.constants[spec.target] if held is None else held))
    return inputs


def _outputs(exported: ExportedProgram, inputs: list[Input]) -> tuple[dict[int, int], list[dict[str, Any]], list[int]]:
    """Which result is written into which input, the user's results, and which are tensors among these."""
    placeholders = [node.name for node in exported.graph.find_nodes(op="placeholder")]
    targets = [item.name for item in inputs]
    writes: dict[int, int] = {}
    outputs: list[dict[str, Any]] = []
    tensors: list[int] = []
    for k, spec in enumerate(exported.graph_signature.output_specs):
        if spec.kind.name in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
            writes[targets.index(spec.target)] = k
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            writes[placeholders.index(spec.target)] = k
        elif spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT) and isinstance(spec.arg, TensorArgument):
            outputs.append({})
            tensors.append(k)
        elif spec.kind is OutputKind.USER_OUTPUT and isinstance(spec.arg, ConstantArgument):
            outputs.append({"value": spec.arg.value})
        else:
            raise NotImplementedError(f"torch_tpu.aot: a result of the program is a {spec.kind.name} {spec.arg}")
    return writes, outputs, tensors


def _record(graph_module: GraphModule, inputs: list[Input], writes: dict[int, int], tensors: list[int]) -> str:
    # never written, so they take no memory
    held = [torch.empty(i.tensor.shape, dtype=i.tensor.dtype, device="tpu") for i in inputs if i.tensor is not None]
    graph = _C.Graph()
    with torch.no_grad(), _disable_current_modes(), torch._C._DisableAutocast():
        stands = graph.record_filled(held)
        try:
            rest = iter(stands)
            given = [i.value if i.tensor is None else next(rest) for i in inputs]
            shown = [value if i.tensor is None else laid(value, i.tensor) for i, value in zip(inputs, given)]
            run = _Run(graph_module)
            run.extra_traceback = False  # errors name the line themselves
            results = run.run(*shown)
            # a result is an array of its own, whatever it is in the program
            outs = [plain(results[k]) for k in tensors]
            for k, result in writes.items():
                given[k].copy_(results[result])
        except BaseException:
            graph.abandon()
            raise
        return graph.text(stands, outs)


class _Run(Interpreter):
    """Runs a program on the device, wherever it was exported."""

    def run_node(self, n: Node) -> Any:
        return self._call(n) if n.op == "call_function" else super().run_node(n)

    def _call(self, n: Node) -> Any:
        if n.target is torch.ops.aten._assert_tensor_metadata.default:
            return None  # it asks for the device of the export
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        args, kwargs = pytree.tree_map_only(torch.device, lambda _: torch.device("tpu"), (args, kwargs))
        before = tpu.fallbacks()
        begin(n)
        error = value = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what would run on the CPU is refused below
                if n.target in control.CONTROL:
                    value = control.call(n, args, dict(kwargs), lambda module, given: _Run(module).run(*given))
                else:
                    value = n.target(*args, **kwargs)
        except Exception as raised:
            error = raised
        lacking = sorted(op for op, times in tpu.fallbacks().items() if times != before.get(op))
        if error is None and not lacking:
            return value
        why = f"there is no lowering of {', '.join(lacking)} for them" if lacking else error
        if "is being recorded" in str(why):
            why = "there is no lowering for them, so it would run on the CPU, or it needs a value while it is traced"
        raise NotImplementedError(
            f"torch_tpu.aot: {n.target} cannot be compiled for {_shown(args)}: {why}{_place(n)}"
        ) from error


def _shown(args: Any) -> str:
    def show(arg: Any) -> str:
        if isinstance(arg, torch.Tensor):
            return f"{str(arg.dtype).removeprefix('torch.')}{list(arg.shape)}"
        if isinstance(arg, (list, tuple)):
            return f"[{', '.join(map(show, arg))}]"
        return repr(arg)

    return f"({', '.join(map(show, args))})"


def _place(node: Node) -> str:
    """The Python line of a node, as the export noted it."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    calls = [k for k, line in enumerate(lines) if line.startswith('File "') and not line.startswith('File "<')]
    return "\ncalled at " + " — ".join(lines[calls[-1] : calls[-1] + 2]) if calls else ""
