"""PyTorch's flex_attention on the device, beside scaled_dot_product_attention on the CPU."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

HEADS, LENGTH, WIDTH = 4, 130, 16
WARNS = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def flex(compiled):
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


def causal(b, h, q, kv):
    return q >= kv


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    q = torch.randn(2, HEADS, LENGTH, WIDTH)
    return q, torch.randn(2, 2, LENGTH, WIDTH), torch.randn(2, 2, LENGTH, WIDTH)


@WARNS
@pytest.mark.parametrize("compiled", [False, True])
def test_mask_bias_and_gradients(inputs, compiled):
    from torch.nn.attention.flex_attention import create_block_mask

    bias = torch.randn(HEADS, LENGTH, LENGTH)
    want_args = [x.double().requires_grad_() for x in (*inputs, bias)]
    q, k, v, b = want_args
    masked = b.masked_fill(~torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(), -torch.inf)
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=masked, enable_gqa=True)
    want.square().sum().backward()

    args = [x.to("tpu").requires_grad_() for x in (*inputs, bias)]
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device="tpu")
    out = flex(compiled)(
        *args[:3], score_mod=lambda s, b, h, i, j: s + args[3][h, i, j], block_mask=mask, enable_gqa=True
    )
    out.square().sum().backward()
    torch.testing.assert_close(out.cpu(), want.float(), rtol=1e-4, atol=1e-4)
    for got, wanted in zip(args, want_args):
        torch.testing.assert_close(got.grad.cpu(), wanted.grad.float(), rtol=1e-4, atol=1e-4)


@WARNS
@pytest.mark.parametrize("compiled", [False, True])
def test_autocast(inputs, compiled):
    want = F.scaled_dot_product_attention(*inputs, enable_gqa=True)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        out = flex(compiled)(*[x.to("tpu") for x in inputs], enable_gqa=True)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.cpu().float(), want, rtol=3e-2, atol=3e-2)


def test_autocast_passes_other_higher_order_ops():
    def f(x):
        return torch.cond(x.sum() > 0, lambda y: y @ y, lambda y: y @ y + 1, (x,))

    x = torch.ones(3, 3)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        out = f(x.to("tpu"))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.cpu().float(), f(x))


def test_other_devices_are_refused_as_before(inputs):
    with pytest.raises(ValueError, match="same device type"):
        flex(False)(inputs[0].to("tpu"), *inputs[1:])
    with pytest.raises(ValueError, match="only supported on"):
        flex(False)(*[x.to("meta") for x in inputs], enable_gqa=True)


def test_nothing_is_imported_for_it():
    code = """
import inspect, sys, torch
assert "torch.nn.attention.flex_attention" not in sys.modules
from torch.nn.attention import flex_attention
assert "supported" in inspect.getsource(flex_attention), "the module's source stays readable"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
