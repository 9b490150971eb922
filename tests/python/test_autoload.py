"""`import torch` with the backend installed: silent, cheap, and alive whatever is wrong."""

import shutil
from pathlib import Path

import pytest
import torch_tpu

NO_PLUGIN = {"TORCH_TPU_PJRT_PLUGIN": "/nowhere/plugin.so"}


@pytest.fixture
def broken(tmp_path):
    """Environment in which `torch_tpu` is found with an extension that was built for another torch."""
    source = Path(torch_tpu.__file__).parent
    shutil.copytree(source, tmp_path / "torch_tpu", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "torch_tpu/_C.py").write_text("raise ImportError('undefined symbol: _ZN3c10something')\n")
    return {"PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize("environ", [{}, NO_PLUGIN], ids=["plugin", "no plugin"])
def test_import_torch_is_silent(run_python, environ):
    done = run_python("import torch", **environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_device_needs_no_import(run_python):
    done = run_python("import torch; print(torch.device('tpu'), torch.accelerator.current_accelerator())")
    assert done.stdout.split() == ["tpu", "tpu"], done.stderr


def test_nothing_starts_before_the_first_tensor(run_python):
    done = run_python(
        "import torch; torch.tpu.is_available(); torch.tpu.device_count(); torch.manual_seed(1); "
        "print(torch.tpu.is_initialized()); torch.ones(1, device='tpu'); print(torch.tpu.is_initialized())"
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


@pytest.mark.parametrize("autoload", ["0", "1"])
@pytest.mark.parametrize("first", ["torch", "torch_tpu"])
def test_import_order_does_not_matter(run_python, autoload, first):
    second = {"torch": "torch_tpu", "torch_tpu": "torch"}[first]
    code = f"import {first}, {second}; torch_tpu.load(); torch_tpu._loader.load(); print(torch.tpu.is_available())"
    done = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    assert done.stdout.split() == ["True"], done.stderr


def test_autoload_off_means_no_device(run_python):
    done = run_python("import torch; print(hasattr(torch, 'tpu'))", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout.split() == ["False"]


def test_loading_brings_in_nothing_else(run_python):
    # What a load costs in seconds is benches/'s matter. What would make it dear is another library or the device.
    code = (
        "import sys, threading, torch; before = set(sys.modules)\n"
        "import torch_tpu\n"
        "print(sorted(m for m in set(sys.modules) - before if m.split('.')[0] != 'torch_tpu'))\n"
        "print(threading.active_count(), torch.tpu.is_initialized())"
    )
    done = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout.splitlines() == ["['torch.tpu']", "1 False"], done.stderr


def test_without_a_plugin_torch_works_and_the_device_says_what_to_install(run_python):
    code = (
        "import torch\n"
        "assert torch.ones(2).sum() == 2\n"
        "print(torch.tpu.is_available(), torch.tpu.device_count())\n"
        "torch.ones(2, device='tpu')\n"
    )
    done = run_python(code, **NO_PLUGIN)
    assert done.stdout.split() == ["False", "0"]
    assert "pip install" in done.stderr.splitlines()[-1]


def test_a_broken_extension_does_not_break_torch(run_python, broken):
    done = run_python("import torch; print(torch.ones(2).sum().item(), hasattr(torch, 'tpu'))", **broken)
    assert done.stdout.split() == ["2.0", "False"], done.stderr
    assert "undefined symbol" in done.stderr and "doctor" in done.stderr


def test_a_broken_extension_does_not_break_torch_where_warnings_are_errors(run_python, broken):
    code = "import warnings; warnings.simplefilter('error'); import torch; print('alive')"
    assert run_python(code, **broken).stdout.split() == ["alive"]


def test_a_broken_extension_is_explained(run_python, broken):
    done = run_python("import torch_tpu; print(torch_tpu.problem())", **broken)
    assert "undefined symbol" in done.stdout
    code = "import runpy, sys; sys.argv = ['torch_tpu', 'doctor']; runpy.run_module('torch_tpu', run_name='__main__')"
    done = run_python(code, **broken)
    assert done.returncode == 1
    assert "does not load" in done.stdout and "make setup" in done.stdout
