"""Sparse and nested tensors: their parts live on the device, the CPU computes with them."""

import pytest
import torch
from torch import nn

ENTRIES = torch.tensor([[0, 1, 1, 1], [2, 0, 2, 2]])


@pytest.fixture
def coo() -> torch.Tensor:
    return torch.sparse_coo_tensor(ENTRIES, torch.tensor([3.0, 4.0, 5.0, 6.0]), (2, 3))


OPERATIONS = {
    "to_dense": lambda s: s.to_dense(),
    "add": lambda s: (s + s).to_dense(),
    "mul": lambda s: (s * 2).to_dense(),
    "coalesce": lambda s: s.coalesce().values(),
    "transpose": lambda s: s.t().to_dense(),
    "sum": lambda s: torch.sparse.sum(s, 1).to_dense(),
    "clone": lambda s: s.clone().to_dense(),
    "in place": lambda s: s.clone().coalesce().mul_(3).to_dense(),
    "zero": lambda s: s.clone().zero_().to_dense(),
    "into dense": lambda s: torch.zeros(2, 3, device=s.device).add_(s),
    "matrix product": lambda s: torch.sparse.mm(s, torch.ones(3, 2, device=s.device)),
    "rows": lambda s: s.to_dense().to_sparse_csr().values(),
    "rows product": lambda s: s.to_sparse_csr() @ torch.ones(3, device=s.device),
    "there and back": lambda s: s.to_dense().to_sparse().coalesce().indices(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_sparse_agrees_with_the_cpu(coo, name):
    there = OPERATIONS[name](coo.to("tpu"))
    assert there.device.type == "tpu"
    torch.testing.assert_close(there.cpu(), OPERATIONS[name](coo))


def test_compressed_layouts_travel(coo):
    rows = coo.to_sparse_csr()
    assert torch.equal(rows.to("tpu").cpu().to_dense(), rows.to_dense())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad])
def test_sparse_gradients(optimizer):
    weights = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        module = nn.Embedding(5, 3, sparse=True).to(device)
        steps = optimizer(module.parameters(), lr=0.1)
        for _ in range(2):
            steps.zero_grad()
            (module(torch.tensor([1, 2, 1], device=device)) ** 2).sum().backward()
            assert module.weight.grad.layout == torch.sparse_coo
            steps.step()
        weights.append(module.weight.detach().cpu())
    torch.testing.assert_close(weights[1], weights[0])


@pytest.mark.parametrize("reduce", ["mean", "amax"])
def test_reducing_products_have_gradients(coo, reduce):
    grads = []
    for device in ("cpu", "tpu"):
        rows = coo.to_dense().to_sparse_csr().to(device).requires_grad_()
        dense = torch.arange(1.0, 7.0).reshape(3, 2).to(device).requires_grad_()
        torch.sparse.mm(rows, dense, reduce).sum().backward()
        grads.append(dense.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])


def test_strided_nested_tensors():
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    nested = torch.nested.nested_tensor(parts, device="tpu")
    padded = (nested * 2).to_padded_tensor(0.0)
    want = (torch.nested.nested_tensor(parts) * 2).to_padded_tensor(0.0)
    assert torch.equal(padded.cpu(), want)


def test_jagged_nested_tensors():
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    nested = torch.nested.nested_tensor([p.to("tpu") for p in parts], layout=torch.jagged)
    assert torch.equal((nested * 2).values().cpu(), torch.cat(parts) * 2)
