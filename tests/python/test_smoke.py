"""A little of everything, quickly: what `make smoke` runs against another torch."""

import torch
import torch.nn.functional as F
from torch import nn


def test_arithmetic_views_and_writes():
    x = torch.arange(12.0, device="tpu").reshape(3, 4)
    y = x.t()[1:] * 2 + 1
    x[:, 0] += 10
    cpu = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(y.cpu(), cpu.t()[1:] * 2 + 1)
    assert x[:, 0].tolist() == [10.0, 14.0, 18.0]


def test_training_lowers_the_loss():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, target = torch.randn(64, 8).to("tpu"), torch.randint(4, (64,)).to("tpu")
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_attention_agrees_with_the_cpu():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    actual = F.scaled_dot_product_attention(q.to("tpu"), k.to("tpu"), v.to("tpu"), is_causal=True)
    torch.testing.assert_close(actual.cpu(), expected)


def test_errors_are_pytorchs():
    try:
        torch.ones(2, device="tpu") + torch.ones(3, device="tpu")
    except RuntimeError as error:
        assert "size of tensor a (2) must match" in str(error)
    else:
        raise AssertionError("shapes that do not match were added")
