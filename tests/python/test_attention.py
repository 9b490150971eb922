"""Scaled dot product attention and what is made of it, beside the CPU."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@pytest.fixture(autouse=True)
def nothing_on_the_cpu(monkeypatch):
    monkeypatch.setenv("TORCH_TPU_FALLBACK", "error")


def both(f, *tensors):
    """`f` and its gradients by `tensors`, on the CPU and on the device."""
    answers = []
    for device in ("cpu", "tpu"):
        args = [t.detach().to(device).requires_grad_(t.requires_grad) for t in tensors]
        wanted = [t for t in args if t.requires_grad]
        y = f(*args)
        cotangent = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape).to(device)
        answers.append([y, *torch.autograd.grad(y, wanted, cotangent)])
    return zip(*answers)


def leaf(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype).requires_grad_()


def hold(f, *tensors, **tolerance):
    torch.manual_seed(0)
    for want, got in both(f, *tensors):
        torch.testing.assert_close(got.cpu(), want, **tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [2, 16])  # the more heads, the smaller the tiles
@pytest.mark.parametrize("length, keys", [(5, 7), (9, 5), (6, 6), (40, 1100), (256, 300), (300, 270), (515, 131)])
def test_plain_and_causal(causal, heads, length, keys):
    q, k, v = leaf(2, heads, length, 8), leaf(2, heads, keys, 8), leaf(2, heads, keys, 4)
    hold(lambda *a: F.scaled_dot_product_attention(*a, is_causal=causal), q, k, v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (1, 7), (3, 5, 1), (5, 1300), (1030, 1100), (3, 1030, 1)])
def test_a_bias_gets_its_gradient(shape):
    keys = max(shape[-1], 7)
    q, k, v = leaf(2, 3, max(shape[-2], 5), 8), leaf(2, 3, keys, 8), leaf(2, 3, keys, 8)
    hold(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), q, k, v, leaf(*shape), rtol=1e-4, atol=1e-5)


def test_rows_that_see_nothing_are_zero():
    mask = torch.rand(5, 7) > 0.5
    mask[2] = False
    hold(lambda *a: F.scaled_dot_product_attention(*a[:3], a[3]), *[leaf(1, 2, n, 8) for n in (5, 7, 7)], mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [5, 300])
def test_heads_share_keys(causal, length):
    q, k, v = leaf(2, 18, length, 8), leaf(2, 6, length, 8), leaf(2, 6, length, 8)
    f = lambda *a: F.scaled_dot_product_attention(*a, is_causal=causal, enable_gqa=True, scale=0.5)  # noqa: E731
    hold(f, q, k, v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [16, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype, length):
    q, k, v = (leaf(2, 16, length, 8, dtype=dtype) for _ in range(3))
    # weights are rounded before they meet the values, as on the CPU, but sums run in another order
    tolerance = {} if dtype == torch.float64 else {"rtol": 0.02, "atol": 0.01}
    hold(lambda *a: F.scaled_dot_product_attention(*a, is_causal=length > 16), q, k, v, **tolerance)


@pytest.mark.parametrize("heads, length", [(2, 64), (32, 280)])
def test_what_is_dropped_is_the_same_in_the_backward(heads, length):
    q = leaf(1, heads, length, 8).to("tpu")
    v = torch.eye(length, device="tpu").expand(1, heads, length, length).clone().requires_grad_()
    torch.manual_seed(1)
    y = F.scaled_dot_product_attention(q, q, v, dropout_p=0.25)
    whole = F.scaled_dot_product_attention(q, q, v)
    kept = (y != 0).cpu()
    assert 0.7 < kept.float().mean() < 0.8
    torch.testing.assert_close(y.cpu()[kept], whole.cpu()[kept] / 0.75)
    cotangent = torch.randn_like(y)
    torch.testing.assert_close(torch.autograd.grad(y, v, cotangent)[0], y.mT @ cotangent, rtol=1e-4, atol=1e-5)
    again = F.scaled_dot_product_attention(q, q, v, dropout_p=0.25)
    assert not torch.equal(again, y)
    torch.manual_seed(1)
    assert torch.equal(F.scaled_dot_product_attention(q, q, v, dropout_p=0.25), y)


def test_only_dropping_draws():
    q = torch.randn(1, 1, 4, 8, device="tpu")
    before = torch.tpu.get_rng_state()
    F.scaled_dot_product_attention(q, q, q)
    assert torch.equal(torch.tpu.get_rng_state(), before)


def test_the_user_may_ask_for_the_composite():
    q = torch.randn(1, 1, 4, 8, device="tpu", requires_grad=True)
    assert "Overrideable" in type(F.scaled_dot_product_attention(q, q, q).grad_fn).__name__
    with sdpa_kernel(SDPBackend.MATH):
        assert "Overrideable" not in type(F.scaled_dot_product_attention(q, q, q).grad_fn).__name__


def programs(script: str, tmp_path) -> str:
    """The text of all programs that a script makes."""
    env = dict(os.environ, TORCH_TPU_DUMP=str(tmp_path))
    subprocess.run([sys.executable, "-c", "import torch\n" + script], env=env, check=True)
    return "\n".join(f.read_text() for f in tmp_path.glob("*.mlir"))


def test_no_matrix_of_all_scores(tmp_path):
    script = """
q = torch.randn(1, 2, 2048, 16, device='tpu', requires_grad=True)
torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
q.grad.cpu()"""
    text = programs(script, tmp_path)
    assert "stablehlo.while" in text and "2048x2048x" not in text


@pytest.mark.parametrize(
    "switch, name",
    [
        ("", "HIGHEST"),
        ("torch.set_float32_matmul_precision('high')", "HIGH"),
        ("torch.set_float32_matmul_precision('medium')", "DEFAULT"),
        ("torch.backends.fp32_precision = 'tf32'", "HIGH"),
        ("torch.backends.fp32_precision = 'ieee'", "HIGHEST"),
    ],
)
def test_the_precision_of_products_is_the_users(switch, name, tmp_path):
    script = f"""
x, w = torch.randn(8, 8, device='tpu'), torch.randn(4, 2, 3, 3, device='tpu')
if {switch!r}: (x @ x).cpu()  # the program that was right before is not what runs after
{switch}
(x @ x).cpu(), torch.nn.functional.conv2d(torch.randn(1, 2, 5, 5, device='tpu'), w).cpu()
"""
    text = programs(script, tmp_path)
    for op in ("dot_general", "convolution"):
        lines = [line for line in text.splitlines() if f"stablehlo.{op}" in line]
        assert any(f"<precision {name}>" in line for line in lines), lines


MODULES = {
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0), 2),
    "decoder": lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, dropout=0), 1),
    "both": lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True, dropout=0),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, training):
    torch.manual_seed(0)
    module, x, y = MODULES[name]().train(training), torch.randn(2, 5, 8), torch.randn(2, 6, 8)
    args = {"attention": (x, x, x), "encoder": (x,), "decoder": (x, y), "both": (y, x)}[name]
    answers = []
    for device in ("cpu", "tpu"):
        module.to(device)
        with torch.set_grad_enabled(training):
            out = module(*[a.to(device) for a in args])
        out = out[0] if isinstance(out, tuple) else out
        grads = torch.autograd.grad(out.square().sum(), list(module.parameters())) if training else []
        answers.append([t.cpu() for t in (out, *grads)])
        if device == "cpu":
            module.zero_grad()
    for want, got in zip(*answers):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
