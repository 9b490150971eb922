"""What every Python test stands on: a plan cache of this checkout, child processes, the plugins installed here."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Before the device starts: the user's own plan cache is not ours to fill.
os.environ.setdefault("TORCH_TPU_CACHE_DIR", str(ROOT / "target/test-plans"))

Run = Callable[..., subprocess.CompletedProcess]


def cpu_plugins() -> list[str]:
    from torch_tpu import _plugin

    return [package for package in _plugin.CPU_PLUGINS if _plugin._folder(package)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "plugin" in metafunc.fixturenames:
        metafunc.parametrize("plugin", cpu_plugins())


@pytest.fixture(scope="session")
def run_python() -> Run:
    """Runs code in a fresh interpreter. Keywords are environment variables; None unsets one."""

    def run(code: str, *args: str, timeout: float = 120, **environ: str | None) -> subprocess.CompletedProcess:
        env = {**os.environ, **{k: v for k, v in environ.items() if v is not None}}
        for name in [k for k, v in environ.items() if v is None]:
            env.pop(name, None)
        command = [sys.executable, "-c", code, *args]
        return subprocess.run(command, env=env, cwd=ROOT / "tests", capture_output=True, text=True, timeout=timeout)

    return run


@pytest.fixture
def eager_mode():
    """Gives the mode back as it was found."""
    import torch

    before = torch.tpu.eager_mode
    yield
    torch.tpu.eager_mode = before
