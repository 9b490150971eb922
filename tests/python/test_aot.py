"""torch_tpu.aot: StableHLO text, files that another process runs without compiling, and a reader that is not ours."""

import copy
import io
import json
import re
import sys
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import export
from torch.nn import functional as F
from torch.testing import assert_close
from torch_tpu import _plugin, aot


class Cached(nn.Module):
    """Attention over a key-value cache that it writes."""

    def __init__(self, length: int = 16, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, 50)
        self.register_buffer("keys", torch.zeros(1, 4, length, width // 4))
        self.register_buffer("values", torch.zeros(1, 4, length, width // 4))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        batch, steps, width = x.shape
        q, k, v = (part.view(batch, steps, 4, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        at = self.position + torch.arange(steps, device=x.device)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        mask = torch.arange(self.keys.shape[2], device=x.device) <= at[:, None]
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        self.position.add_(steps)
        return self.out(y.transpose(1, 2).reshape(batch, steps, width))


class Mixed(nn.Module):
    """Arguments and results of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("offset", torch.arange(3.0), persistent=False)
        self.table = torch.tensor([2.0, 3.0, 4.0])

    def forward(self, x, pair, *, scale=2, shift=None):
        y = self.linear(x) * scale + self.offset + self.table
        pair["b"].mul_(2)
        return {"y": y + pair["a"], "given": (x, pair["b"]), "none": None, "number": 7, "weight": self.linear.weight}


def mixed_arguments() -> tuple[tuple, dict]:
    return (torch.randn(2, 4), {"a": torch.randn(3), "b": torch.randn(2)}), {"scale": 3, "shift": torch.ones(1)}


def cpu(tree):
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, tree)


def signature(text: str) -> list[str]:
    main = re.search(r"@main\((.*?)\) -> \(", text)[1]
    return re.findall(r"tensor<([^>]*)>", main)


def shape_of(tensor: torch.Tensor) -> str:
    names = {torch.float32: "f32", torch.int64: "i64", torch.bool: "i1"}
    return "x".join([*map(str, tensor.shape), names[tensor.dtype]])


# ------------------------------------------------------------------ text


def test_parameters_stand_in_the_order_of_the_signature():
    args, kwargs = mixed_arguments()
    program = export(Mixed(), args, kwargs)
    held = {**program.state_dict, **program.constants}
    given = [args[0], args[1]["a"], args[1]["b"], kwargs["shift"]]
    targets = [spec.target for spec in program.graph_signature.input_specs if spec.target is not None]
    assert len(targets) == 4
    assert signature(aot.stablehlo(program)) == [shape_of(t) for t in [*(held[name] for name in targets), *given]]


def test_the_text_is_the_same_wherever_the_tensors_live():
    model = Cached().eval()
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    here = aot.stablehlo(model, (tokens,))
    assert here == aot.stablehlo(copy.deepcopy(model).to("tpu"), (tokens.to("tpu"),))
    assert here == aot.stablehlo(copy.deepcopy(model).to("meta"), (tokens.to("meta"),))
    assert here == aot.stablehlo(export(model, (tokens,)))
    assert '"stablehlo.dot_general"' in here and here.count("tf.aliasing_output") == 3


def test_nothing_is_compiled_for_a_text():
    before = torch.tpu.compile_count()
    aot.stablehlo(nn.Conv2d(3, 5, 3), (torch.randn(1, 3, 17, 19),))
    assert torch.tpu.compile_count() == before


def lowers_not(x):
    y = x + 1
    return torch.linalg.eig(y)[0]


def test_an_op_without_a_lowering_is_named_with_its_line():
    line = lowers_not.__code__.co_firstlineno + 2
    with pytest.raises(NotImplementedError) as error:
        aot.stablehlo(lowers_not, (torch.randn(3, 3),))
    text = str(error.value)
    assert "aten.linalg_eig.default" in text and "float32[3, 3]" in text
    assert f'test_aot.py", line {line}' in text and "torch.linalg.eig(y)" in text


def test_sizes_must_be_known():
    with pytest.raises(NotImplementedError, match=r"aten\.nonzero\.default gives depends on its data[\s\S]*line \d+"):
        aot.stablehlo(lambda x: x.nonzero(), (torch.ones(3),))
    rows = torch.export.Dim("rows", min=2, max=9)
    program = export(nn.Linear(4, 4), (torch.randn(3, 4),), dynamic_shapes=({0: rows},))
    with pytest.raises(ValueError, match="dynamic sizes"):
        aot.stablehlo(program)


def test_a_subject_that_cannot_be_exported_is_a_type_error():
    with pytest.raises(TypeError, match="expected an ExportedProgram, a module or a function, got <class 'int'>"):
        aot.stablehlo(3)
    with pytest.raises(TypeError, match="args is a tuple"):
        aot.stablehlo(torch.sin, torch.ones(2))
    with pytest.raises(TypeError, match="holds its example arguments"):
        aot.stablehlo(export(nn.ReLU(), (torch.ones(2),)), (torch.ones(2),))


# ------------------------------------------------------------------ files


def saved(path: Path, model, *args, **kwargs) -> aot.Loaded:
    """A copy of the model, through a file."""
    aot.save(path, copy.deepcopy(model), args, kwargs)
    return aot.load(path)


def test_arguments_and_results_of_every_kind(tmp_path):
    model, (args, kwargs) = Mixed(), mixed_arguments()
    loaded = saved(tmp_path / "m", model, *copy.deepcopy(args), **copy.deepcopy(kwargs))
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    got, wanted = loaded(*ours, **kwargs), model(*theirs, **kwargs)
    assert got["number"] == 7 and got["none"] is None and isinstance(got["given"], tuple)
    assert got["y"].device.type == "tpu"
    assert_close(cpu(got), {k: v.detach() if isinstance(v, torch.Tensor) else v for k, v in wanted.items()})
    assert_close(ours, theirs, msg="what is written into an argument")


def test_another_process_compiles_nothing_and_traces_nothing(run_python, tmp_path):
    model, tokens = Cached(), torch.randint(50, (3, 1, 2))
    aot.save(tmp_path / "m", copy.deepcopy(model), (tokens[0],))
    torch.save([model(t) for t in tokens], tmp_path / "wanted")
    torch.save(tokens, tmp_path / "tokens")
    code = """
import sys, torch, torch_tpu.aot
folder = sys.argv[1]
program = torch_tpu.aot.load(folder + "/m")
for tokens, wanted in zip(torch.load(folder + "/tokens"), torch.load(folder + "/wanted")):
    torch.testing.assert_close(program(tokens).cpu(), wanted)
torch.testing.assert_close(program.state_dict()["position"], torch.tensor(6))
print(torch.tpu.compile_count(), torch.tpu.cache_stats()["plans"], "torch._dynamo" in sys.modules)
"""
    done = run_python(code, str(tmp_path), TORCH_TPU_CACHE_DIR=str(tmp_path / "empty"))
    assert done.stdout.split() == ["0", "0", "False"], done.stderr
    assert not (tmp_path / "empty").exists() or not [p for p in (tmp_path / "empty").rglob("??/*") if p.is_file()]


def test_a_file_is_sound_when_the_disk_cache_knew_the_program(tmp_path):
    model, tokens = Cached(), torch.randint(50, (1, 2))
    saved(tmp_path / "first", model, tokens)
    aot.load(edited(tmp_path / "first", identity="0"), recompile=True)  # through the disk cache
    loaded = saved(tmp_path / "second", model, tokens)
    assert_close(loaded(tokens).cpu(), model(tokens))


def test_a_model_on_the_device_is_saved_as_one_on_the_cpu(tmp_path):
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    loaded = saved(tmp_path / "m", copy.deepcopy(model).to("tpu"), x.to("tpu"))
    assert_close(loaded(x).cpu(), model(x).detach())
    assert_close(loaded(x.to("tpu")).cpu(), model(x).detach())


@dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


def test_classes_of_the_structure_must_be_known_where_it_is_loaded(run_python, tmp_path):
    torch.export.register_dataclass(Pair, serialized_type_name="test_aot.Pair")
    loaded = saved(tmp_path / "m", lambda x: Pair(x + 1, x - 1), torch.zeros(2))
    assert_close(loaded(torch.ones(2)).second.cpu(), torch.zeros(2))
    done = run_python("import sys, torch_tpu; torch_tpu.aot.load(sys.argv[1])", str(tmp_path / "m"))
    assert "RuntimeError: torch_tpu.aot: cannot load" in done.stderr and "test_aot.Pair" in done.stderr


def test_batch_norm_in_training_keeps_its_statistics(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).train()
    loaded = saved(tmp_path / "m", model, torch.randn(4, 3, 8, 8))
    for _ in range(3):
        x = torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
        assert_close(loaded(x).cpu(), model(x).detach())
        assert_close(loaded(x.to("tpu")).cpu(), model(x).detach())
    assert_close(loaded.state_dict(), {k: v.detach() for k, v in model.state_dict().items()})
    assert loaded.state_dict()["1.num_batches_tracked"] == 6


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(1 << 20, 32))  # 128 MB

    def forward(self, x):
        self.rows[1:3] += x
        return self.rows[:3].clone()


def test_a_buffer_is_overwritten_where_it_lies(run_python, tmp_path):
    aot.save(tmp_path / "m", Large(), (torch.ones(2, 32),))
    code = """
import re, sys, torch, torch_tpu
program = torch_tpu.aot.load(sys.argv[1])
def most():
    return int(re.search("VmHWM:[^0-9]+([0-9]+)", open("/proc/self/status").read())[1])
for _ in range(2):
    program(torch.ones(2, 32)).cpu()
open("/proc/self/clear_refs", "w").write("5")  # the peak is what is used now
before = most()
for _ in range(5):
    rows = program(torch.ones(2, 32)).cpu()
print(most() - before)
print(rows[:, 0].tolist())
"""
    done = run_python(code, str(tmp_path / "m"))
    grew, rows = done.stdout.splitlines()
    assert int(grew) < 64 << 10, f"the peak grew by {grew} kB: a copy of the buffer has 131072"
    assert rows == "[0.0, 7.0, 7.0]"


def add_up(x, total):
    total.add_(x)
    return total.sum()


@pytest.mark.parametrize("place", ["cpu", "tpu", "part", "transposed", "unwritten"])
def test_what_is_written_into_an_argument_arrives_there(tmp_path, place):
    loaded = saved(tmp_path / "m", add_up, torch.ones(3, 2), torch.zeros(3, 2))
    total = {
        "cpu": lambda: torch.ones(3, 2),
        "tpu": lambda: torch.ones(3, 2).to("tpu"),
        "part": lambda: torch.ones(5, 2, device="tpu")[1:4],
        "transposed": lambda: torch.ones(2, 3, device="tpu").t(),
        "unwritten": lambda: torch.empty(3, 2, device="tpu"),
    }[place]()
    before, x = total.cpu().clone(), torch.randn(3, 2)
    for times in (1, 2):
        version = total._version
        result = loaded(x, total)
        assert_close(total.cpu(), before + times * x)
        assert_close(result.cpu(), total.cpu().sum())
        assert total._version > version


def test_random_numbers_come_from_the_process_generator(tmp_path):
    loaded = saved(tmp_path / "m", nn.Dropout(0.5).train(), torch.ones(64))
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append([loaded(torch.ones(64)).cpu().tolist() for _ in range(2)])
    assert draws[0] == draws[1] != draws[2]
    assert draws[0][0] != draws[0][1] and set(draws[0][0]) == {0.0, 2.0}


def test_an_index_out_of_range_is_an_error_of_the_call(tmp_path):
    loaded = saved(tmp_path / "m", nn.Embedding(5, 3), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(IndexError):
        loaded(torch.tensor([1, 5])).cpu()
    assert loaded(torch.tensor([1, 4])).cpu().shape == (2, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64, torch.int8, torch.bool])
def test_parameters_of_other_dtypes(tmp_path, dtype):
    class Held(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("held", torch.tensor([[1, 0, 3], [0, 5, 6]]).to(dtype).t())
            self.register_buffer("empty", torch.empty(0, 2, dtype=dtype))

        def forward(self, x):
            return torch.where(x > 0, self.held, torch.zeros_like(self.held)), self.empty.clone()

    model, x = Held(), torch.randn(3, 2)
    assert_close(cpu(saved(tmp_path / "m", model, x)(x)), model(x))


def test_calls_that_do_not_fit_are_refused(tmp_path):
    args, kwargs = mixed_arguments()
    loaded = saved(tmp_path / "m", Mixed(), *args, **kwargs)
    x, pair = args
    with pytest.raises(TypeError, match=r"expected arguments of the structure[\s\S]*but got"):
        loaded(x, pair)
    with pytest.raises(TypeError, match="structure"):
        loaded(x, [pair["a"], pair["b"]], **kwargs)
    with pytest.raises(ValueError, match=r"'x': expected a tensor float32\[2, 4\], but got float32\[3, 4\]"):
        loaded(torch.randn(3, 4), pair, **kwargs)
    with pytest.raises(TypeError, match=r"'x': expected a tensor float32\[2, 4\], but got int64\[2, 4\]"):
        loaded(x.long(), pair, **kwargs)
    with pytest.raises(TypeError, match=r"'x': expected a tensor float32\[2, 4\], but got float"):
        loaded(1.0, pair, **kwargs)
    with pytest.raises(ValueError, match="'scale': the program was exported for 3, but got 4"):
        loaded(x, pair, **{**kwargs, "scale": 4})
    with pytest.raises(TypeError, match="with values"):
        loaded(x.to("meta"), pair, **kwargs)
    reordered = {"b": pair["b"], "a": pair["a"]}
    assert loaded(x, reordered, shift=kwargs["shift"], scale=3)["number"] == 7


def test_parameters_without_values_are_not_saved(tmp_path):
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="parameter 'weight' is on the meta device"):
        aot.save(tmp_path / "m", model, (torch.randn(2, 4, device="meta"),))
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ files from elsewhere


def edited(path: Path, **changes) -> Path:
    """The file with another manifest."""
    other = path.with_suffix(".edited")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "manifest.json":
                manifest = json.loads(data)
                for key, value in changes.items():
                    where = manifest if key in manifest else manifest["plugin"]
                    where[key] = value
                data = json.dumps(manifest)
            new.writestr(name, data)
    return other


@pytest.fixture
def file(tmp_path) -> Path:
    torch.manual_seed(0)
    aot.save(tmp_path / "m", nn.Linear(4, 3), (torch.ones(2, 4),))
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"torch_tpu": "0.0.1"}, r"torch_tpu '0\.0\.1' \(here: "),
        ({"platform_version": "another"}, r"platform_version 'another' \(here: "),
        ({"identity": "0"}, "another build of this plugin or another processor"),
    ],
)
def test_another_version_or_plugin_is_refused_unless_recompiled(file, changes, why):
    wanted = aot.load(file)(torch.ones(2, 4)).cpu()
    other = edited(file, **changes)
    with pytest.raises(RuntimeError, match=why + r"[\s\S]*recompile=True"):
        aot.load(other)
    assert_close(aot.load(other, recompile=True)(torch.ones(2, 4)).cpu(), wanted)


def test_a_file_without_an_executable_is_compiled_when_asked_to(file):
    wanted = aot.load(file)(torch.ones(2, 4)).cpu()
    bare = file.with_suffix(".bare")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(bare, "w") as new:
        for name in old.namelist():
            if name != "executable":
                new.writestr(name, old.read(name))
    with pytest.raises(RuntimeError, match=r"holds no executable[\s\S]*recompile=True"):
        aot.load(bare)
    assert_close(aot.load(bare, recompile=True)(torch.ones(2, 4)).cpu(), wanted)


def test_another_format_is_refused(file):
    for recompile in (False, True):
        with pytest.raises(RuntimeError, match="in format 99, and this version of torch_tpu reads format 2"):
            aot.load(edited(file, format=99), recompile=recompile)


def test_a_real_other_plugin_refuses_and_recompiles(run_python, file):
    others = [name for name in _plugin.CPU_PLUGINS if _plugin._folder(name) and name != _plugin.find().package]
    if not others:
        pytest.skip("only one CPU plugin is installed")
    code = """
import sys, torch, torch_tpu.aot
try:
    torch_tpu.aot.load(sys.argv[1])
except RuntimeError as error:
    print(error)
print(torch_tpu.aot.load(sys.argv[1], recompile=True)(torch.ones(2, 4)).tolist())
print(torch.tpu.compile_count())
"""
    done = run_python(code, str(file), TORCH_TPU_PJRT_PLUGIN=others[0], TORCH_TPU_CACHE_DIR=str(file) + ".plans")
    refusal, result, compiled = done.stdout.splitlines()
    assert "recompile=True" in refusal and "it was compiled for" in refusal and compiled == "1"
    assert_close(torch.tensor(json.loads(result)), aot.load(file)(torch.ones(2, 4)).cpu())


def test_damaged_files_are_refused(file):
    whole = file.read_bytes()
    wanted = aot.load(file)(torch.ones(2, 4)).cpu()
    refused = 0
    for place in range(0, len(whole), max(1, len(whole) // 200)):
        file.write_bytes(whole[:place])
        with pytest.raises(RuntimeError, match="damaged or no artifact"):
            aot.load(file)
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            result = aot.load(file)(torch.ones(2, 4)).cpu()
        except RuntimeError as error:
            assert "torch_tpu.aot" in str(error)
            refused += 1
        else:
            assert_close(result, wanted, msg=f"a byte at {place}: a file that loads is right")
    assert refused > 150
    with pytest.raises(FileNotFoundError):
        aot.load(file.with_suffix(".missing"))
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w") as archive:
        archive.writestr("hello.txt", "not ours")
    file.write_bytes(text.getvalue())
    with pytest.raises(RuntimeError, match="damaged or no artifact"):
        aot.load(file)


# ------------------------------------------------------------------ portable artifacts

READER = """
import dataclasses, sys
import jax, numpy as np
from jax import export, numpy as jnp
jax.config.update("jax_enable_x64", True)
folder = sys.argv[1]
given, wanted = ([f[k] for k in f] for f in (np.load(folder + "/given.npz"), np.load(folder + "/wanted.npz")))
# the types, from a function of JAX's own; the program, from the artifact
shell = export.export(jax.jit(lambda *_: tuple(jnp.zeros(w.shape, w.dtype) for w in wanted)))(*given)
artifact = open(folder + "/artifact", "rb").read()
program = dataclasses.replace(shell, mlir_module_serialized=artifact, module_kept_var_idx=tuple(range(len(given))))
for got, want in zip(program.call(*given), wanted, strict=True):
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-5)
print("agrees")
"""


def conv_net() -> tuple[nn.Module, tuple]:
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)
    )
    return net.train(), (torch.randn(2, 3, 8, 8),)


@pytest.mark.parametrize("case", [lambda: (Cached(), (torch.randint(50, (1, 3)),)), conv_net], ids=["cache", "conv"])
def test_jax_reads_a_portable_artifact(run_python, tmp_path, case):
    pytest.importorskip("jaxlib")
    if find_spec("jax") is None:
        pytest.skip("jax is not installed")
    model, args = case()
    program = export(model, args).run_decompositions({})  # its signature names what is written
    (tmp_path / "artifact").write_bytes(aot.portable(program))
    state = dict(program.state_dict)
    given = [state[spec.target] for spec in program.graph_signature.input_specs if spec.target] + list(args)
    np.savez(tmp_path / "given.npz", *(t.detach().clone().numpy() for t in given))
    result = model(*args)
    written = {spec.target for spec in program.graph_signature.output_specs if spec.target}
    names = [spec.target for spec in program.graph_signature.input_specs if spec.target in written]
    after = model.state_dict()
    wanted = [*(after[name] for name in names), result.detach()]
    checked = [np.int32(0)] if "tensor<i32>) {\n" in aot.stablehlo(program) else []
    np.savez(tmp_path / "wanted.npz", *(t.numpy() for t in wanted), *checked)
    done = run_python(READER, str(tmp_path), JAX_PLATFORMS="cpu", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout.strip() == "agrees", done.stderr[-3000:]


def test_a_portable_artifact_of_chosen_version():
    pytest.importorskip("jaxlib")
    new, old = (aot.portable(torch.acosh, (torch.ones(3),), version=v) for v in (None, "1.0.0"))
    assert new[:4] == old[:4] == b"ML\xefR" and b"StableHLO_v1.0.0" in old and b"StableHLO_v1.0.0" not in new
    with pytest.raises(ValueError, match=r"StableHLO 99\.0\.0 \(jaxlib writes "):
        aot.portable(torch.sin, (torch.ones(3),), version="99.0.0")


def test_without_jaxlib_the_error_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "jaxlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jaxlib", None)
    with pytest.raises(ImportError, match="pip install jaxlib"):
        aot.portable(torch.sin, (torch.ones(3),))
