"""Programs held against the real TPU compiler. It is in the libtpu package and needs no TPU."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_tpu import aot
from torch_tpu._check.compiler import Compiler
from torch_tpu._check.report import Report, needed, steps

pytestmark = pytest.mark.skipif(
    not (find_spec("libtpu") or os.environ.get("TORCH_TPU_CHECK_LIBRARY")), reason="libtpu is not installed"
)
TOPOLOGY = "v6e:1x1"


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.fixture(scope="module")
def product():
    """A product of 4096 × 4096 matrices, for two chips."""
    layer = nn.Linear(4096, 4096, bias=False, dtype=torch.bfloat16, device="meta")
    return {t: aot.compile(layer, (meta(4096, 4096),), topology=t) for t in ("v5e:1x1", TOPOLOGY)}


def test_a_large_product_is_near_the_peak(product):
    for r in product.values():
        assert r.error is None and r.fits
        assert r.flops == pytest.approx(2 * 4096**3, rel=0.01)
        assert 0.85 <= r.predicted_mfu <= 1.0
        assert r.estimated_cycles > 0
        assert r.argument_bytes == 2 * 4096**2 * 2 and r.output_bytes == 4096**2 * 2
        assert 0 < r.peak_memory_bytes <= r.memory_limit_bytes
        assert "stablehlo.dot_general" in r.stablehlo
        assert r.optimized_hlo and r.serialize()


def test_what_moves_memory_is_near_the_bandwidth():
    r = aot.compile(
        lambda a, b: torch.tanh(a + b) * b, [meta(8192, 8192, dtype=torch.float32) for _ in "ab"], topology=TOPOLOGY
    )
    assert r.bytes_accessed == 3 * 8192**2 * 4
    assert 0.7 <= r.bytes_accessed / r.predicted_seconds / 1640e9 <= 1.0


def test_the_parts_add_up_to_what_the_compiler_counts(product):
    for r in product.values():
        assert sum(i.flops for i in r.instructions) == pytest.approx(r.flops, rel=0.01)


def test_what_a_loop_does_counts_as_often_as_it_turns():
    heads, length, width = 16, 2048, 128  # several tiles of queries and keys: a loop in a loop

    def attention(q, k, v, causal=False):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    given = [meta(1, heads, length, width) for _ in "qkv"]
    whole = aot.compile(attention, given, topology=TOPOLOGY)
    half = aot.compile(attention, given, {"causal": True}, topology=TOPOLOGY)
    assert "stablehlo.while" in whole.stablehlo
    assert whole.flops == pytest.approx(4 * heads * length**2 * width, rel=0.05)
    assert 0.5 < half.flops / whole.flops < 0.65  # the tiles on the diagonal are computed in full
    assert 0.4 < half.predicted_seconds / whole.predicted_seconds < 0.9


def test_more_work_takes_longer(product):
    layer = nn.Linear(4096, 8192, bias=False, dtype=torch.bfloat16, device="meta")
    more = aot.compile(layer, (meta(4096, 4096),), topology=TOPOLOGY)
    assert more.predicted_seconds > 1.5 * product[TOPOLOGY].predicted_seconds
    assert more.flops == pytest.approx(2 * product[TOPOLOGY].flops, rel=0.01)


def test_a_training_step_of_a_model_that_takes_no_memory():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(32768, 32768), nn.GELU(), nn.Linear(32768, 32768)).to(torch.bfloat16)
    r = aot.compile(model, (meta(256, 32768),), topology="v5e:1x1", train=True)
    assert r.error is None
    assert r.flops == pytest.approx(5 * 2 * 256 * 32768**2, rel=0.02)  # no gradient of the input
    assert r.argument_bytes > 2 * 32768**2 * 2


def test_a_program_that_does_not_fit_says_so():
    model = nn.Linear(65536, 131072, bias=False, dtype=torch.bfloat16, device="meta")
    r = aot.compile(model, (meta(8, 65536),), topology="v5e:1x1")
    assert not r.fits and "Ran out of memory" in r.error
    assert r.excess_bytes == r.peak_memory_bytes - r.memory_limit_bytes > 0
    assert r.held[0].name == "argument 0" and r.held[0].bytes == 65536 * 131072 * 2, "from a chip that has more"


def test_the_need_is_read_from_the_compilers_words():
    assert needed("memory required for HLO temporaries (27.50G) exceeds available HBM (15.75G)") == 27.5 * 2**30
    assert needed("Ran out of memory in memory space hbm. Used 20.25M of 15.75M hbm. Exceeded by") == 20.25 * 2**20
    assert needed("no lowering for it") == 0


def test_what_fills_the_memory_has_its_op_and_line():
    def scores(x, y):
        product = x @ y
        return torch.softmax(product.float(), -1).to(y.dtype) @ y

    r = aot.compile(scores, [meta(4096, 4096) for _ in "xy"], topology=TOPOLOGY)
    largest = max(r.held, key=lambda h: h.bytes if h.op else 0)
    assert largest.bytes >= 4096**2 * 2 and "test_check.py" in largest.line
    assert sum(h.bytes for h in r.held) <= 1.1 * r.peak_memory_bytes
    assert any("test_check.py" in i.line for i in r.instructions[:2]), "the slowest too"


def test_a_loop_of_the_script_is_told_by_what_runs_equally_often():
    def plan(times, seconds):
        return Report("p", TOPOLOGY, times=times, predicted_seconds=seconds)

    assert steps([plan(1, 2.0), plan(40, 1.0), plan(80, 0.25)]) == (40, 1.5)
    assert steps([plan(1, 100.0), plan(40, 1.0)])[0] == 1, "most of the time is no loop"
    assert steps([]) == (1, 0)


def test_a_program_that_does_not_compile_says_where_and_the_next_does():
    with Compiler(TOPOLOGY) as compiler:
        assert "error" in compiler.compile("module @m { nonsense }")
        good = (
            "module @m { func.func public @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n"
            "  %0 = stablehlo.add %a, %a : tensor<8xf32>\n  return %0 : tensor<8xf32> } }"
        )
        assert "error" not in compiler.compile(good)
        os.killpg(compiler.process.pid, signal.SIGKILL)  # as a program that takes the compiler down
        assert "died" in compiler.compile(good)["error"]
        assert "error" not in compiler.compile(good)


@pytest.mark.parametrize("topology, devices", [("v6e:2x2", 4), ("tpu7x:4x4x4", 128)])
def test_many_devices(topology, devices):
    text = """module @m attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = DEVICES : i32} {
  func.func public @main(%a: tensor<1024xf32>) -> tensor<1024xf32> {
    %0 = "stablehlo.all_reduce"(%a) <{replica_groups = dense<GROUP> : tensor<1xDEVICESxi64>}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %s = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<1024xf32>) -> tensor<1024xf32>
    return %0 : tensor<1024xf32>
  }
}"""
    text = text.replace("DEVICES", str(devices)).replace("GROUP", str([list(range(devices))]))
    r = aot.compile(text, topology=topology)
    assert r.error is None and any("all-reduce" in i.opcode for i in r.instructions)


def test_a_sharded_product():
    text = """module @m attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%a: tensor<512x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                         %b: tensor<256x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<512x256xf32>, tensor<256x512xf32>) -> tensor<512x512xf32>
    return %0 : tensor<512x512xf32>
  }
}"""
    r = aot.compile(text, topology="v6e:2x2")
    assert r.error is None and r.argument_bytes == 2 * 512 * 256 * 4 // 4, "a quarter of each on a device"
    assert any("all-gather" in i.opcode or "collective" in i.opcode for i in r.instructions)


def test_hints():
    def attention(q, k):
        return (q.double() @ k.mT.double()).float()

    r = aot.compile(attention, [meta(8, 2048, 64, dtype=torch.float32) for _ in "qk"], topology=TOPOLOGY)
    assert any("float64" in h for h in r.hints)
    assert any("64" in h and "128" in h for h in r.hints)


@pytest.mark.parametrize("name", ["v6e:3x7", "v9:1x1", "nonsense"])
def test_an_unknown_topology_lists_the_known_ones(name):
    with pytest.raises(ValueError, match="known are v4:1x1x1 to"):
        aot.compile(lambda x: x + 1, (meta(8),), topology=name)


SCRIPT = """
import sys, torch
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).to("tpu")
run = torch.compile(net)
for _ in range(3):
    out = run(torch.ones(8, 64, device="tpu"))
print("sum is finite:", out.sum().isfinite().item())
if "fail" in sys.argv:
    raise RuntimeError("halfway")
if "interrupted" in sys.argv:
    import os, signal
    os.kill(os.getpid(), signal.SIGINT)
    out.sum().item()
if "huge" in sys.argv:
    torch.zeros(1 << 33, dtype=torch.uint8, device="tpu").view(torch.int32)[:8].sum().item()
"""


@pytest.fixture
def check(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run(*options, args=(), **environment):
        command = [sys.executable, "-m", "torch_tpu", "check", "--topology", TOPOLOGY, *options, script, *args]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})

    run.script = script
    return run


def test_the_command(check, tmp_path):
    done = check("--json", tmp_path / "r.json", "--html", tmp_path / "r.html")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sum is finite: True" in done.stdout and "all compile and fit" in done.stdout
    assert "script.py:6" in done.stdout, "the slowest fusions name their lines"
    figures = json.loads((tmp_path / "r.json").read_text())
    assert figures["steps"] == 3 and 0 < figures["predicted_seconds_per_step"] <= figures["predicted_seconds"] / 3
    graph = next(p for p in figures["programs"] if p["times"] == 3 and p["flops"] > 2 * 8 * 64 * 64)
    assert graph["predicted_seconds"] > 0 and graph["fits"] and graph["memory_limit_bytes"] > 30 << 30
    assert figures["predicted_seconds"] >= 3 * graph["predicted_seconds"]
    assert "<pre>" in (tmp_path / "r.html").read_text()


def test_a_script_that_fails_gives_the_report_so_far(check):
    done = check(args=["fail"])
    assert done.returncode == 1
    assert "RuntimeError: halfway" in done.stderr and "before the script failed" in done.stdout


def test_an_interrupted_script_gives_the_report_so_far(check):
    done = check(args=["interrupted"])
    assert done.returncode == 130
    assert "before the script failed" in done.stdout and "Traceback" not in done.stderr


def test_bad_calls(check, tmp_path):
    done = check("--json", tmp_path / "no" / "r.json")
    assert done.returncode == 2 and "can't be written" in done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "torch_tpu", "check", "--topology", "v9:1x1", check.script],
        capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 2 and "known are" in done.stderr and "Traceback" not in done.stderr
    done = check(TORCH_TPU_CHECK_LIBRARY=str(tmp_path / "none.so"))
    assert done.returncode == 2 and "is no file" in done.stderr
    other = tmp_path / "other.so"
    other.write_bytes(b"no library")
    done = check(TORCH_TPU_CHECK_LIBRARY=str(other))
    assert done.returncode == 2 and "can't be used" in done.stderr and "Traceback" not in done.stderr


def test_the_environment_form(check):
    done = subprocess.run(
        [sys.executable, check.script], capture_output=True, text=True, env={**os.environ, "TORCH_TPU_CHECK": TOPOLOGY}
    )
    assert done.returncode == 0 and "sum is finite" in done.stdout
    assert "all compile and fit" in done.stderr


def test_the_pytest_plugin(tmp_path):
    (tmp_path / "test_it.py").write_text("""
import torch

def test_good():
    assert (torch.ones(4, device="tpu") + 1).sum().item() == 8

def test_bad():
    torch.fft.fft(torch.ones(8, dtype=torch.complex128, device="tpu")).cpu()
""")
    command = [sys.executable, "-m", "pytest", "-q", "--tpu-check", TOPOLOGY, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "does not compile" in done.stdout and "fft" in done.stdout


def test_the_pytest_plugin_costs_nothing_unasked(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.has_plugin('torch_tpu')\n"
        "    assert 'torch' not in sys.modules and 'torch_tpu' not in sys.modules\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
