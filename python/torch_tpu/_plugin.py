"""Which PJRT plugin to use, and the settings the core starts with. Looks at files only; starts nothing."""

import functools
import json
import os
import re
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from torch_tpu import _hardware

# Package and library of the CPU plugins we know, best first.
CPU_PLUGINS = {
    "fastatomstruct_xla_cpu": "libpjrt_cpu.so",
    "lammps_jax_pjrt_cpu": "pjrt_c_api_cpu_plugin.so",
}
TPU_PLUGIN = {"libtpu": "libtpu.so"}
INSTALL = (
    "Install a PJRT plugin (`pip install fastatomstruct-xla-cpu` for the CPU, `pip install libtpu` on a TPU host) "
    "or point TORCH_TPU_PJRT_PLUGIN at a plugin library."
)
DEFAULT_CACHE_BYTES = 4 << 30


class PluginError(RuntimeError):
    """No usable plugin; the text says what to do."""


@dataclass(frozen=True)
class Plugin:
    path: Path
    kind: str  # "cpu", "tpu" or "gpu"
    package: str | None  # the distribution it came with, where known
    reason: str  # why this one was chosen


def find() -> Plugin:
    """The plugin this process would use. Raises PluginError, whose text says what to install."""
    names = ("TORCH_TPU_PJRT_PLUGIN", "TPU_LIBRARY_PATH")
    plugin = _find(*(os.environ.get(name, "").strip() for name in names))
    if not plugin.path.is_file():
        raise PluginError(f"{plugin.reason}, but there is no file {plugin.path}. {INSTALL}")
    return plugin


def available() -> bool:
    """Whether a device can be expected to start. Never raises, never starts one."""
    try:
        find()
    except PluginError:
        return False
    return True


@functools.cache
def _find(chosen: str, library: str) -> Plugin:
    if chosen:
        return _chosen(chosen)
    if library:
        return Plugin(Path(library), "tpu", None, f"TPU_LIBRARY_PATH={library}")
    if chips := _hardware.chips():
        if plugin := _packaged(TPU_PLUGIN, "tpu", f"this machine has {len(chips)} x {chips[0]}"):
            return plugin
        raise PluginError(f"This machine has {chips[0]} hardware but no libtpu. `pip install libtpu`.")
    if plugin := _packaged(CPU_PLUGINS, "cpu", "the first CPU plugin installed"):
        return plugin
    raise PluginError(f"No PJRT plugin was found. {INSTALL}")


def _chosen(name: str) -> Plugin:
    """A plugin named by the user: a path, "cpu", "tpu", or the package that contains it."""
    why = f"TORCH_TPU_PJRT_PLUGIN={name}"
    if "/" in name or name.endswith(".so"):
        return Plugin(Path(name).expanduser(), _kind(Path(name).name), None, why)
    if name == "cpu":
        plugin = _packaged(CPU_PLUGINS, "cpu", why)
    elif name in ("tpu", "libtpu"):
        plugin = _packaged(TPU_PLUGIN, "tpu", why)
    else:
        plugin = _by_package(name.replace("-", "_"), why)
    if plugin is None:
        raise PluginError(f"{why}, but no such plugin package is installed. {INSTALL}")
    return plugin


def _packaged(known: dict[str, str], kind: str, why: str) -> Plugin | None:
    for package, library in known.items():
        if folder := _folder(package):
            return Plugin(folder / library, kind, package, why)
    return None


def _by_package(package: str, why: str) -> Plugin | None:
    folder = _folder(package)
    if folder is None:
        return None
    if library := CPU_PLUGINS.get(package):
        return Plugin(folder / library, "cpu", package, why)
    libraries = sorted(folder.rglob("*.so"), key=lambda p: ("pjrt" not in p.name and "plugin" not in p.name, p.name))
    if not libraries:
        return None
    return Plugin(libraries[0], _kind(libraries[0].name), package, why)


def _folder(package: str) -> Path | None:
    """Where a package lies, without importing it or its parents."""
    path = None
    for part in package.split("."):
        spec = PathFinder.find_spec(part, path)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = list(spec.submodule_search_locations)
    return Path(path[0]) if path else None


def _kind(file: str) -> str:
    if "tpu" in file:
        return "tpu"
    return "gpu" if re.search("cuda|rocm|gpu", file) else "cpu"


# ------------------------------------------------------------------ settings


def parse_bytes(text: str, name: str) -> int:
    """ "4294967296", "4G", "512MiB", "1.5g" -> bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", text, re.IGNORECASE)
    if not match:
        raise ValueError(f"{name}={text!r} is not a size: write bytes, or a number with K, M, G or T, such as 2G")
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * 1024**power)


def cache_dir() -> Path:
    if chosen := os.environ.get("TORCH_TPU_CACHE_DIR"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "torch_tpu"


def cache_bytes() -> int:
    """Cap of the plan cache on disk; 0 when it is off."""
    text = os.environ.get("TORCH_TPU_CACHE_SIZE", "")
    return parse_bytes(text, "TORCH_TPU_CACHE_SIZE") if text.strip() else DEFAULT_CACHE_BYTES


def memory_limit() -> int | None:
    text = os.environ.get("TORCH_TPU_MEMORY_LIMIT", "")
    return parse_bytes(text, "TORCH_TPU_MEMORY_LIMIT") or None if text.strip() else None


def bounds() -> dict[str, int]:
    """What fused eager holds back at most: ops and bytes of a segment, plans that wait for the device."""
    found = {}
    for key, name in (
        ("segment_ops", "TORCH_TPU_SEGMENT_OPS"),
        ("segment_bytes", "TORCH_TPU_SEGMENT_BYTES"),
        ("queue", "TORCH_TPU_QUEUE"),
    ):
        if text := os.environ.get(name, "").strip():
            number = parse_bytes(text, name)
            if number < 1:
                raise ValueError(f"{name}={text!r} must be at least 1")
            found[key] = number
    return found


def config_json() -> str:
    """What the core's start takes. Called once, by the extension, when the first tensor needs a device."""
    import torch

    plugin = find()
    # XLA would print how its client was configured, and screenfuls about the CPU for each plan from the disk;
    # what fails comes back as a status
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    cap = cache_bytes()
    return json.dumps(
        {
            "plugin": str(plugin.path.resolve()),
            "kind": plugin.kind,
            "cache_dir": str(cache_dir()) if cap else None,
            "cache_bytes": cap,
            "torch": torch.__version__,
            "memory_limit": memory_limit(),
            **bounds(),
            # One process drives one device.
            "options": {"cpu_device_count": 1} if plugin.kind == "cpu" else {},
        }
    )


def package_version(package: str | None) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package) if package else None
    except metadata.PackageNotFoundError:
        return None
