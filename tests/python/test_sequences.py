"""Ops over sequences of different lengths, beside the CPU with their gradients: bags of embeddings, CTC, segments."""

import pytest
import torch
import torch.nn.functional as F


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch):
    monkeypatch.setenv("TORCH_TPU_FALLBACK", "error")


def both(f, *tensors):
    """`f` and the gradients of what may have one, on the CPU and on the device."""
    found = []
    for device in ("cpu", "tpu"):
        given = [t.detach().to(device) for t in tensors]
        inputs = [t.requires_grad_() for t in given if t.is_floating_point()]
        out = f(*given)
        weights = torch.linspace(0.5, 2, out.numel()).reshape(out.shape).to(device)
        found.append([t.cpu() for t in (out.detach(), *torch.autograd.grad((out * weights).sum(), inputs))])
    for got, want in zip(found[1], found[0]):
        torch.testing.assert_close(got, want)


INDICES = torch.tensor([1, 4, 4, 0, 2, 5, 1, 3, 2])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padding", [None, 4])
def test_embedding_bag(mode, last, padding):
    offsets = torch.tensor([0, 3, 3, 4, 9] if last else [0, 3, 3, 4])

    def bags(table):
        at = table.device
        return F.embedding_bag(
            INDICES.to(at), table, offsets.to(at), mode=mode, include_last_offset=last, padding_idx=padding
        )

    both(bags, torch.randn(6, 3))


def test_weighted_embedding_bag():
    offsets = torch.tensor([0, 2, 7])

    def bags(table, weights):
        at = table.device
        return F.embedding_bag(INDICES.to(at), table, offsets.to(at), mode="sum", per_sample_weights=weights)

    both(bags, torch.randn(6, 3), torch.randn(9))


@pytest.mark.parametrize("flat", [False, True])
def test_ctc(flat):
    labels = torch.tensor([[1, 1, 3, 2], [2, 3, 0, 0], [4, 0, 0, 0]])
    lengths = [4, 2, 1]
    if flat:
        labels = torch.cat([row[:n] for row, n in zip(labels, lengths)])

    def loss(logits):
        return F.ctc_loss(logits.log_softmax(2), labels.to(logits.device), (8, 7, 5), lengths, reduction="none")

    both(loss, torch.randn(8, 3, 5))


def test_other_lengths_take_the_same_plan():
    labels, logits = torch.tensor([[1, 2, 3], [3, 2, 1]]), torch.randn(9, 2, 4).log_softmax(2)
    first = F.ctc_loss(logits.to("tpu"), labels.to("tpu"), (9, 8), (3, 2)).cpu()
    plans = torch.tpu.compile_count()
    second = F.ctc_loss(logits.to("tpu"), labels.to("tpu"), (7, 9), (1, 3)).cpu()
    assert torch.tpu.compile_count() == plans
    torch.testing.assert_close(first, F.ctc_loss(logits, labels, (9, 8), (3, 2)))
    torch.testing.assert_close(second, F.ctc_loss(logits, labels, (7, 9), (1, 3)))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segments(reduce):
    lengths = torch.tensor([2, 0, 4, 1])

    def segments(data):
        return torch.segment_reduce(data, reduce, lengths=lengths.to(data.device), initial=1.5)

    both(segments, torch.randn(7, 2))
