"""Compiling for TPUs that are not here."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torch_tpu._check import chips
from torch_tpu._check.compiler import Compiler
from torch_tpu._check.report import Report, report


def compile(
    subject: Callable[..., Any] | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    topology: str = "v6e:1x1",
    train: bool = False,
) -> Report:
    """Compiles a module, function, ``torch.export.ExportedProgram`` or StableHLO module (text) with the TPU compiler
    for one device of ``topology`` (generation and size, such as ``v6e:2x2``), and says what it takes there. Needs
    ``pip install libtpu`` and no TPU; tensors may live on the meta device, so a large model takes no memory.

    With ``train`` the program is a training step of a module: its forward, the sum of its floating-point results as
    loss, and the gradients of all parameters that want one.

    A program that does not compile gives a report whose ``error`` has the compiler's words. A multi-device program is
    given as StableHLO with ``mhlo.num_partitions`` or ``mhlo.num_replicas`` among the module's attributes.

    Raises:
        ValueError: for a topology that libtpu does not know.
        RuntimeError: without libtpu.
        NotImplementedError: for an op that has no lowering.
    """
    text, origins = (subject, []) if isinstance(subject, str) else _program(subject, args, kwargs, train)
    with Compiler(topology) as compiler:
        answer = compiler.compile(text, *_devices(text), keep=True)
        name = type(subject).__name__ if isinstance(subject, nn.Module) else getattr(subject, "__name__", "program")
        return report(name, text, answer, compiler.about, compiler.chip, origins)


def _devices(text: str) -> tuple[int, int]:
    """Replicas and partitions, from the module's attributes."""
    head = text[: text.find("func.func")]
    counts = [re.search(rf"mhlo\.num_{what} = (\d+)", head) for what in ("replicas", "partitions")]
    return tuple(int(c[1]) if c else 1 for c in counts)


def _program(
    subject: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, train: bool
) -> tuple[str, list[list[Any]]]:
    """A StableHLO module, and of each op its first value's number, its name and its Python line."""
    from torch_tpu.aot._capture import capture, training  # torch.export is slow to import

    if train:
        if not isinstance(subject, nn.Module):
            raise TypeError(f"torch_tpu.aot.compile: train=True takes a module, got {type(subject)}")
        return training(subject, tuple(args), dict(kwargs or {}))
    program = capture(subject) if isinstance(subject, torch.export.ExportedProgram) else capture(subject, args, kwargs)
    return program.module, program.origins


def topologies() -> list[dict[str, Any]]:
    """What the installed libtpu accepts: for each ``topology`` its ``kind``, ``chips``, ``devices`` (as PyTorch sees
    them), and of a device ``cores``, ``memory_limit_bytes``, and the published ``peak_flops`` (bfloat16, per second)
    and ``peak_bandwidth`` (bytes per second; sources: `torch_tpu/_check/chips.py`).

    Raises:
        RuntimeError: without libtpu.
    """
    found = []
    with Compiler("v5e:1x1") as compiler:
        for name in (f"{generation}:{size}" for generation, sizes in chips.SIZES.items() for size in sizes):
            try:
                compiler.open(name)
            except ValueError:
                continue
            about, chip = compiler.about, compiler.chip
            found.append(
                {
                    "topology": name,
                    "kind": about["kind"],
                    "chips": about["chips"],
                    "devices": about["devices"],
                    "cores": about["attributes"].get("num_cores"),
                    "memory_limit_bytes": about["attributes"].get("device_memory_bytes_limit"),
                    "peak_flops": chip.peak_flops,
                    "peak_bandwidth": chip.peak_bandwidth,
                }
            )
    return found
