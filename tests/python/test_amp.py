"""Autocast and gradient scaling."""

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_runs_products_in_the_lower_precision(dtype):
    layer, x = nn.Linear(8, 8).to("tpu"), torch.randn(4, 8, device="tpu")
    with torch.autocast("tpu", dtype=dtype):
        y = layer(x)
        assert y.dtype == dtype
        assert (x @ x.t()).dtype == dtype
        assert torch.softmax(y, -1).dtype == torch.float32
        assert (x + x).dtype == torch.float32
    assert layer(x).dtype == torch.float32


def test_autocast_agrees_with_the_cpu():
    torch.manual_seed(0)
    layer, x = nn.Linear(16, 16), torch.randn(4, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = layer(x)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        actual = layer.to("tpu")(x.to("tpu"))
    torch.testing.assert_close(actual.cpu(), expected)


def test_the_default_autocast_type_is_bfloat16():
    with torch.autocast("tpu"):
        assert (torch.ones(2, 2, device="tpu") @ torch.ones(2, 2, device="tpu")).dtype == torch.bfloat16


def test_grad_scaler_skips_a_step_that_overflowed():
    weight = nn.Parameter(torch.ones(3, device="tpu"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("tpu", init_scale=4.0, growth_interval=1)

    def step(factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    step(1.0)
    assert weight.tolist() == pytest.approx([0.9] * 3)
    assert scaler.get_scale() == 8.0
    step(float("inf"))
    assert weight.tolist() == pytest.approx([0.9] * 3)
    assert scaler.get_scale() == 4.0
