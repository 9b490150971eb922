"""What is installed, what runs, and what is wrong, in words a person can act on."""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import torch_tpu
from torch_tpu import _hardware, _plugin

Report = dict[str, Any]
PROBE_SECONDS = 120
ENVIRONMENT = ("TORCH_TPU_", "TPU_", "PJRT_", "LIBTPU_", "XLA_FLAGS", "XDG_CACHE_HOME", "TORCH_DEVICE_BACKEND_AUTOLOAD")

# Runs in a process of its own: a plugin that aborts must not take the doctor with it.
PROBE = """
import json, torch, torch_tpu
torch_tpu.load()
x = torch.arange(4.0).to("tpu")
assert (x + x).tolist() == [0.0, 2.0, 4.0, 6.0], "wrong result"
from torch_tpu import _C
properties = torch.tpu.get_device_properties()
print("@" + json.dumps({
    "device": json.loads(_C.info("device")),
    "name": properties.name,
    "total_memory": properties.total_memory,
}))
"""


def examine() -> Report:
    problems: list[dict[str, str]] = []
    report: Report = {
        "versions": _versions(problems),
        "hardware": _hardware.chips(),
        "plugin": _plugin_facts(problems),
        "device": None,
        "cache": _cache_facts(problems),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(ENVIRONMENT)},
        "problems": problems,
    }
    if error := torch_tpu.problem():
        text = f"The extension does not load: {error}"
        _add(problems, text, f"Reinstall torch-tpu-rs for torch {torch.__version__} (from source: `make setup`).")
    elif report["plugin"]:
        report["device"] = _probe(problems)
    return report


def render(report: Report) -> str:
    """The report as a table, or as plain lines where `rich` is not installed."""
    rows = list(_rows(report))
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return "\n".join(f"{name:<18}{value}" for name, value in rows)
    table = Table(show_header=False, title="torch_tpu doctor", title_justify="left")
    for name, value in rows:
        wrong = name in ("problem", "what to do")
        table.add_row(name, value, style="red" if wrong else None)
    console = Console(width=None if sys.stdout.isatty() else 120)
    with console.capture() as capture:
        console.print(table, markup=False)
    return capture.get().rstrip()


def _rows(report: Report):
    for name, version in report["versions"].items():
        yield name, version or "not installed"
    yield "TPU hardware", ", ".join(report["hardware"]) or "none found"
    if plugin := report["plugin"]:
        origin = " ".join(filter(None, (plugin["package"], plugin["version"])))
        yield "plugin", f"{plugin['path']}\n{origin or 'not from a package'} ({plugin['reason']})"
    if device := report["device"]:
        yield "device", f"{device['name']}, {device['total_memory'] / 2**30:,.1f} GiB"
        info = device["device"]
        stablehlo = info["plugin_attributes"].get("stablehlo_current_version")
        yield "PJRT", f"{info['pjrt_version']}, platform {info['platform']} {info['platform_version']}"
        yield "StableHLO", f"up to {'.'.join(map(str, stablehlo))}" if stablehlo else "not told by the plugin"
        yield "devices", "\n".join(f"{d['id']}: {d['kind']} {d['attributes'] or ''}" for d in info["devices"])
    cache = report["cache"]
    if cache["limit_bytes"]:
        used = f"{cache['bytes'] / 2**20:,.1f} of {cache['limit_bytes'] / 2**20:,.0f} MiB"
        yield "plan cache", f"{cache['path']}\n{cache['entries']} entries, {used}"
    else:
        yield "plan cache", "off (TORCH_TPU_CACHE_SIZE=0)"
    for name, value in report["environment"].items():
        yield name, value
    for problem in report["problems"]:
        yield "problem", problem["problem"]
        yield "what to do", problem["action"]
    if not report["problems"]:
        yield "problems", "none"


def _add(problems: list[dict[str, str]], problem: str, action: str) -> None:
    problems.append({"problem": problem, "action": action})


def _versions(problems: list[dict[str, str]]) -> dict[str, str | None]:
    companion = _plugin.package_version("torch-tpu")
    if companion and not companion.endswith("+rs"):
        text = f"The distribution torch-tpu {companion} also provides `torch_tpu`, and one hides the other."
        _add(problems, text, "`pip uninstall torch-tpu`, then reinstall torch-tpu-rs.")
    if not torch._is_device_backend_autoload_enabled():
        text = "TORCH_DEVICE_BACKEND_AUTOLOAD is off: torch.device('tpu') exists only after `import torch_tpu`."
        _add(problems, text, "Unset it, or import torch_tpu in the program.")
    elif not any(point.name == "torch_tpu" for point in metadata.entry_points(group="torch.backends")):
        text = "The entry point is not installed: torch.device('tpu') exists only after `import torch_tpu`."
        _add(problems, text, "Install the package (`pip install torch-tpu-rs`) instead of putting it on PYTHONPATH.")
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_tpu": torch_tpu.__version__,
        "torch-tpu": companion,
        "libtpu": _plugin.package_version("libtpu"),
    }


def _plugin_facts(problems: list[dict[str, str]]) -> dict[str, Any] | None:
    try:
        _plugin.memory_limit()
        plugin = _plugin.find()
    except _plugin.PluginError as error:
        _add(problems, str(error), _plugin.INSTALL)
        return None
    except ValueError as error:
        _add(problems, str(error), "Correct or unset the variable.")
        return None
    return {
        "path": str(plugin.path),
        "kind": plugin.kind,
        "package": plugin.package,
        "version": _plugin.package_version(plugin.package),
        "reason": plugin.reason,
    }


def _cache_facts(problems: list[dict[str, str]]) -> dict[str, Any]:
    path = _plugin.cache_dir()
    try:
        limit = _plugin.cache_bytes()
    except ValueError as error:
        _add(problems, str(error), "Correct or unset the variable.")
        limit = 0
    writable = _writable(path)
    if limit and not writable:
        text = f"The plan cache cannot be written at {path}, so every process compiles again."
        _add(problems, text, "Make it writable, or choose another place with TORCH_TPU_CACHE_DIR.")
    sizes = [size for file in path.rglob("*") if (size := _size(file)) is not None] if path.is_dir() else []
    return {
        "path": str(path),
        "limit_bytes": limit,
        "entries": len(sizes),
        "bytes": sum(sizes),
        "writable": writable,
    }


def _writable(path: Path) -> bool:
    """Whether files can be made at `path`, or it can be made."""
    if path.exists():
        return path.is_dir() and os.access(path, os.W_OK | os.X_OK)
    return path.parent != path and _writable(path.parent)


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size if file.is_file() else None
    except OSError:  # removed by another process meanwhile
        return None


def _probe(problems: list[dict[str, str]]) -> dict[str, Any] | None:
    """Starts the device in another process and adds two vectors on it."""
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        text = f"The device did not start within {PROBE_SECONDS} seconds."
        _add(problems, text, "Another process may hold it; on a host without a TPU choose a CPU plugin.")
        return None
    if done.returncode == 0:
        answer = [line for line in done.stdout.splitlines() if line.startswith("@")]
        return json.loads(answer[-1][1:])
    lines = done.stderr.strip().splitlines() or [f"the process ended with status {done.returncode}"]
    text = f"The device does not run: {lines[-1]}"
    _add(problems, text, "Check the plugin above; another one can be chosen with TORCH_TPU_PJRT_PLUGIN.")
    return None
