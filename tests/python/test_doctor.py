"""`python -m torch_tpu doctor`: facts, and problems with what to do about them."""

import json

import pytest

CODE = """
import runpy, sys
sys.argv = ["torch_tpu", "doctor", *sys.argv[1:]]
runpy.run_module("torch_tpu", run_name="__main__")
"""


@pytest.fixture
def doctor(run_python):
    def run(*args: str, **environ: str):
        done = run_python(CODE, *args, **environ)
        assert done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


def problems(done) -> str:
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert all(problem["action"] for problem in report["problems"])
    return " ".join(problem["problem"] for problem in report["problems"])


def test_a_healthy_installation(doctor, plugin):
    done = doctor("--json", TORCH_TPU_PJRT_PLUGIN=plugin)
    report = json.loads(done.stdout)
    assert (done.returncode, report["problems"]) == (0, [])
    assert report["plugin"]["package"] == plugin and report["plugin"]["version"]
    assert report["device"]["name"] == "cpu (PJRT)"
    assert report["device"]["total_memory"] > 0


def test_the_table_says_the_same(doctor):
    done = doctor()
    assert done.returncode == 0
    for word in ("torch_tpu", "plugin", "device", "plan cache", "none"):
        assert word in done.stdout


def test_a_missing_plugin(doctor):
    assert "/nowhere/plugin.so" in problems(doctor("--json", TORCH_TPU_PJRT_PLUGIN="/nowhere/plugin.so"))


def test_a_file_that_is_no_plugin(doctor, tmp_path):
    library = tmp_path / "plugin.so"
    library.write_text("not a library")
    assert "does not run" in problems(doctor("--json", TORCH_TPU_PJRT_PLUGIN=str(library)))


def test_a_cache_that_cannot_be_made(doctor, tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written" in problems(doctor("--json", TORCH_TPU_CACHE_DIR=str(tmp_path / "file/plans")))


@pytest.mark.parametrize("name", ["TORCH_TPU_CACHE_SIZE", "TORCH_TPU_MEMORY_LIMIT"])
def test_a_size_that_is_none(doctor, name):
    assert f"{name}='big'" in problems(doctor("--json", **{name: "big"}))


def test_autoload_off_is_mentioned(doctor):
    assert "AUTOLOAD" in problems(doctor("--json", TORCH_DEVICE_BACKEND_AUTOLOAD="0"))


def test_variables_in_effect_are_listed(doctor):
    report = json.loads(doctor("--json", TORCH_TPU_FALLBACK="error").stdout)
    assert report["environment"]["TORCH_TPU_FALLBACK"] == "error"
