"""The file: a zip whose entries are stored as they are.

``manifest.json`` says what the rest is; ``program.mlir`` is the StableHLO text; ``executable`` what the plugin made of
it, if it can write that; ``tensors/<k>`` the bytes of input ``k``.
"""

import ctypes
import json
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _C, __version__
from torch_tpu.aot._loaded import Loaded

if TYPE_CHECKING:
    from torch_tpu.aot._capture import Capture

FORMAT = 2


def save(
    path: str | os.PathLike[str],
    subject: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Compiles ``subject`` (as :func:`stablehlo` takes it) and writes it with its parameters to ``path``: whole or not.

    Some plugins cannot write the executable of every program; a warning says so then.

    Raises:
        NotImplementedError: for an op that has no lowering, with its line.
        ValueError: for dynamic sizes, and for parameters on the meta device: they have no values to write.
        TypeError: for arguments or results that only this process knows (classes not registered with a name).
    """
    from torch_tpu.aot._capture import capture  # torch.export is slow to import

    made = capture(subject, args, kwargs)
    manifest = _manifest(made)
    try:
        executable = _C.compile(json.dumps({**made.program, "module": made.module}))
    except NotImplementedError as error:
        executable = None  # the text is there
        manifest["no_executable"] = str(error)
        warnings.warn(
            f"torch_tpu.aot: {os.fspath(path)!r} needs load(..., recompile=True): this plugin compiles the program but "
            f"cannot write its executable ({error})",
            stacklevel=2,
        )
    path = Path(path)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr("manifest.json", json.dumps(manifest, indent=1))
                archive.writestr("program.mlir", made.module)
                if executable is not None:
                    archive.writestr("executable", executable)
                for k, item in enumerate(made.inputs):
                    if item.tensor is not None and item.kind != "input":
                        with archive.open(f"tensors/{k}", "w", force_zip64=True) as entry:
                            entry.write(_bytes(item.tensor))
            file.close()
            os.chmod(file.name, 0o666 & ~_umask())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def load(path: str | os.PathLike[str], *, recompile: bool = False) -> Loaded:
    """The program in ``path``, ready to be called. Nothing is traced; nothing is compiled where the file was written
    with this plugin, on such a processor. Elsewhere, or under another version of torch_tpu, ``recompile=True`` compiles
    its StableHLO text anew.

    Raises:
        RuntimeError: for a file that is damaged or no artifact; for an executable that does not fit here, unless
            ``recompile``.
    """
    with open(path, "rb") as file, _explained(path):
        with _reading():
            archive = zipfile.ZipFile(file)
            manifest = json.loads(archive.read("manifest.json"))
            version = manifest["format"]
        if version != FORMAT:
            raise _Refused(f"it is in format {version}, and this version of torch_tpu reads format {FORMAT}")
        with _reading():
            why = _misfit(manifest)
            program = json.dumps({**manifest["program"], "module": archive.read("program.mlir").decode()})
            executable = archive.read("executable") if "executable" in archive.namelist() else b""
            specs = manifest["in_spec"], manifest["out_spec"]
        try:
            in_spec, out_spec = map(pytree.treespec_loads, specs)
        except NotImplementedError as error:
            raise _Refused(str(error)) from error  # a class that this process does not know; it says what to import
        if not executable:
            why = why or f"it holds no executable ({manifest.get('no_executable', 'it is missing')})"
        graph = _C.Graph()
        if not why:
            try:
                graph.load(program, executable)
            except (RuntimeError, ValueError) as error:
                why = f"this plugin refuses its executable: {error}"
        if why:
            if not recompile:
                raise _Refused(f"{why}. load(..., recompile=True) compiles its StableHLO text for this plugin")
            graph.load(program, b"")
        held = {}
        for k, item in enumerate(manifest["inputs"]):
            if item["kind"] != "input" and "value" not in item:
                with _reading():
                    tensor = _tensor(archive, k, item)
                held[k] = tensor.to("tpu")
    return Loaded(graph, manifest, held, in_spec, out_spec)


class _Refused(Exception):
    """Why a file is not loaded."""


@contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except _Refused as error:
        raise RuntimeError(f"torch_tpu.aot: cannot load {os.fspath(path)!r}: {error}") from error.__cause__


@contextmanager
def _reading() -> Iterator[None]:
    """Whatever goes wrong while a file is read and understood is the file's fault."""
    try:
        yield
    except Exception as error:
        what = str(error) or type(error).__name__
        raise _Refused(f"it is damaged or no artifact of torch_tpu.aot.save ({what})") from error


def _manifest(made: "Capture") -> dict[str, Any]:
    inputs = []
    for item in made.inputs:
        entry: dict[str, Any] = {"name": item.name, "kind": item.kind}
        if item.tensor is None:
            entry["value"] = _plain(item.name, item.value)
        else:
            if item.kind != "input" and item.tensor.is_meta:
                raise ValueError(f"torch_tpu.aot: {item.kind} {item.name!r} is on the meta device: no values to save")
            entry |= {"dtype": str(item.tensor.dtype).removeprefix("torch."), "shape": list(item.tensor.shape)}
        inputs.append(entry)
    return {
        "format": FORMAT,
        "torch_tpu": __version__,
        "torch": torch.__version__,
        "plugin": _plugin(),
        "program": made.program,
        "inputs": inputs,
        "outputs": [{"value": _plain("a result", o["value"])} if "value" in o else {} for o in made.outputs],
        "in_spec": _dumped(made.in_spec, "arguments"),
        "out_spec": _dumped(made.out_spec, "results"),
    }


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"torch_tpu.aot: {name} is {value!r}; a file holds tensors, numbers, strings and None")


def _dumped(spec: pytree.TreeSpec, what: str) -> str:
    try:
        return pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise TypeError(f"torch_tpu.aot: the structure of the {what} cannot be written: {error}") from error


def _plugin() -> dict[str, Any]:
    _C.start()
    device = json.loads(_C.info("device"))
    return {k: device[k] for k in ("platform", "platform_version", "pjrt_version", "device_kind", "identity")}


def _misfit(manifest: dict[str, Any]) -> str:
    """Why the executable is not for this process; nothing if it is."""
    there, here = {"torch_tpu": manifest["torch_tpu"], **manifest["plugin"]}, {"torch_tpu": __version__, **_plugin()}
    if there == here:
        return ""
    known = [k for k in here if k != "identity" and there.get(k) != here[k]]
    differs = ", ".join(f"{k} {there.get(k)!r} (here: {here[k]!r})" for k in known)
    return "it was compiled for " + (differs or "another build of this plugin or another processor")


def _bytes(tensor: torch.Tensor) -> Any:
    """The elements in row-major order, without a copy where they lie so."""
    host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    size = host.numel() * host.element_size()
    if size == 0:
        return b""
    buffer = (ctypes.c_char * size).from_address(host.data_ptr())
    buffer.tensor = host  # keeps the memory
    return memoryview(buffer)


def _tensor(archive: zipfile.ZipFile, k: int, item: dict[str, Any]) -> torch.Tensor:
    dtype, shape = getattr(torch, item["dtype"]), torch.Size(item["shape"])
    data = archive.read(f"tensors/{k}")
    if len(data) != shape.numel() * dtype.itemsize:
        raise ValueError(f"{item['name']} has {len(data)} bytes instead of {shape.numel() * dtype.itemsize}")
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
