"""StableHLO for other programs: versioned bytecode, which later versions of StableHLO read. jaxlib's MLIR writes it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def portable(
    subject: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    version: str | None = None,
) -> bytes:
    """What :func:`stablehlo` gives, as a portable artifact: MLIR bytecode in the versioned dialect VHLO. ``version`` is
    the StableHLO version to write for (``"1.9.0"``); None: one that readers of the last twelve weeks know.

    Raises:
        ImportError: where jaxlib is not installed.
        ValueError: for a version that jaxlib's StableHLO cannot write.
    """
    try:
        from jaxlib.mlir import ir, passmanager
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext
        from jaxlib.mlir.dialects import chlo
        from jaxlib.mlir.dialects import stablehlo as dialect
    except ImportError as error:
        raise ImportError(
            "torch_tpu.aot.portable writes MLIR bytecode through jaxlib, which cannot be imported here "
            f"({error}): pip install jaxlib. torch_tpu.aot.stablehlo gives the same program as text without it."
        ) from error
    from torch_tpu.aot._capture import capture

    text = capture(subject, args, kwargs).module
    if version is None:
        weeks = dialect.StablehloCompatibilityRequirement.WEEK_12
        version = dialect.get_version_from_compatibility_requirement(weeks)
    with ir.Context() as context:
        registry = ir.DialectRegistry()
        _jax_mlir_ext.register_dialects(registry)
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        dialect.register_dialect(context)
        chlo.register_dialect(context)
        dialect.register_stablehlo_passes()
        module = ir.Module.parse(text)
        # CHLO has no versioned form
        passes = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
        passmanager.PassManager.parse(passes).run(module.operation)
        try:
            return dialect.serialize_portable_artifact(module, version)
        except ValueError as error:
            known = f"{dialect.get_minimum_version()} to {dialect.get_current_version()}"
            raise ValueError(
                f"torch_tpu.aot: cannot write this program for StableHLO {version} (jaxlib writes {known}): {error}"
            ) from error
