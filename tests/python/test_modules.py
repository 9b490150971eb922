"""Modules and functions that PyTorch treats specially on a device of its own: held against the CPU, with gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def leaves(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value if v is not None for t in leaves(v)]


def agree(got: torch.Tensor, want: torch.Tensor) -> None:
    # whole modules add up sums of products in another order: 8 × the default, as for matmul-like ops
    torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-5, atol=1e-5, equal_nan=True)


def check(function, *inputs: torch.Tensor, module: nn.Module | None = None) -> None:
    """`function(module, *inputs)` on both devices, then the gradients of everything that has one."""
    twin = copy.deepcopy(module).to("tpu") if module is not None else None
    here = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
    there = [x.detach().to("tpu").requires_grad_(x.requires_grad) for x in inputs]
    want, got = leaves(function(module, *here)), leaves(function(twin, *there))
    assert len(want) == len(got)
    for g, w in zip(got, want):
        agree(g, w)
    pairs = list(zip(there, here))
    if module is not None:
        pairs += list(zip(twin.parameters(), module.parameters()))
    if any(w.requires_grad for w in want):
        sum((w.abs() ** 2).sum() for w in want if w.requires_grad).backward()
        sum((g.abs() ** 2).sum() for g in got if g.requires_grad).backward()
        for g, w in pairs:
            if w.grad is not None:
                agree(g.grad, w.grad)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


RECURRENT = {
    "lstm": (nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True), (3, 6, 4)),
    "lstm-projected": (nn.LSTM(4, 5, bias=False, proj_size=3), (3, 6, 4)),
    "gru": (nn.GRU(4, 5, 2, bidirectional=True), (3, 6, 4)),
    "gru-without-bias": (nn.GRU(4, 5, bias=False), (3, 6, 4)),
    "rnn": (nn.RNN(4, 5, 2, nonlinearity="relu"), (3, 6, 4)),
    "lstm-cell": (nn.LSTMCell(4, 5), (3, 4)),
    "gru-cell": (nn.GRUCell(4, 5), (3, 4)),
    "rnn-cell": (nn.RNNCell(4, 5), (3, 4)),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent(name):
    module, shape = RECURRENT[name]
    check(lambda m, x: m(x), torch.randn(shape, requires_grad=True), module=module)


def test_packed_sequence():
    lengths = torch.tensor([6, 4, 2])

    def run(m, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        return nn.utils.rnn.pad_packed_sequence(m(packed)[0])[0]

    check(run, torch.randn(6, 3, 4, requires_grad=True), module=nn.LSTM(4, 5))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}])
def test_encoder_layer(training, options):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **options).train(training)
    with torch.set_grad_enabled(training):
        check(lambda m, x: m(x), torch.randn(3, 6, 8, requires_grad=training), module=layer)


def test_encoder_with_padding():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2).eval()
    padding = torch.arange(6) >= torch.tensor([[6], [4], [3]])
    x = torch.randn(3, 6, 8)
    with torch.no_grad():
        want = encoder(x, src_key_padding_mask=padding)
        got = encoder.to("tpu")(x.to("tpu"), src_key_padding_mask=padding.to("tpu")).cpu()
    agree(got[~padding], want[~padding])  # what stands at padded positions is nobody's result


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention(training, need_weights):
    module = nn.MultiheadAttention(8, 2, batch_first=True).train(training)
    mask = torch.ones(6, 6, dtype=torch.bool).triu(1)

    def run(m, x):
        return m(x, x, x, need_weights=need_weights, attn_mask=mask.to(x.device))

    with torch.set_grad_enabled(training):
        check(run, torch.randn(3, 6, 8, requires_grad=training), module=module)


@pytest.mark.parametrize("how", ["plain", "causal", "bool-mask", "float-mask", "grouped", "scaled"])
def test_scaled_dot_product_attention(how):
    keys = 2 if how == "grouped" else 4
    q, k, v = (torch.randn(2, h, 6, 8, requires_grad=True) for h in (4, keys, keys))
    mask = {"bool-mask": torch.rand(6, 6) > 0.3, "float-mask": torch.randn(2, 1, 6, 6)}.get(how)
    options = {"causal": {"is_causal": True}, "grouped": {"enable_gqa": True}, "scaled": {"scale": 0.3}}.get(how, {})

    def run(_, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.to(q.device), **options)

    check(run, q, k, v)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode):
    indices, offsets = torch.randint(10, (9,)), torch.tensor([0, 3, 3, 7])
    check(lambda m, i, o: m(i, o), indices, offsets, module=nn.EmbeddingBag(10, 4, mode=mode))


def test_ctc_loss():
    targets, lengths = torch.randint(1, 5, (2, 3)), (torch.tensor([8, 7]), torch.tensor([3, 2]))
    log_probs = torch.randn(8, 2, 5).log_softmax(-1).requires_grad_()
    check(lambda _, p: F.ctc_loss(p, targets.to(p.device), *lengths), log_probs)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode):
    grid = (torch.rand(2, 4, 4, 2) * 2 - 1).requires_grad_()
    check(
        lambda _, x, g: F.grid_sample(x, g, mode=mode, align_corners=False),
        torch.randn(2, 3, 5, 6, requires_grad=True),
        grid,
    )


def test_bool_masks():
    x = torch.randn(4, 5, requires_grad=True)
    mask = x.detach() > 0
    check(lambda _, x, m: (x[m], torch.masked_select(x, m), m.nonzero(), torch.unique(m)), x, mask)

    def write(_, x, m):
        y = x.clone()
        y[m] = 0
        y[:, m[0]] = 3.0
        return y

    check(write, x, mask)


def test_ranges_of_one_dtype_have_their_own_lengths():
    for arguments in [(-1, 2, 2), (-3, 7, 2), (1, 1, 1), (2, -3, -1), (2, -3.5, -1), (0.5, 3, 0.25), (0, 3, 0.25)]:
        assert torch.equal(torch.arange(*arguments, device="tpu").cpu(), torch.arange(*arguments))


def test_fourier():
    x = torch.randn(4, 16, requires_grad=True)
    for name in ("fft", "rfft", "ifft", "fft2", "hfft", "ihfft"):
        check(lambda _, x, name=name: getattr(torch.fft, name)(x), x)
    check(lambda _, x: torch.stft(x, 8, window=torch.hann_window(8, device=x.device), return_complex=True), x)


def test_linear_algebra():
    a = torch.randn(4, 4) + 4 * torch.eye(4)
    for name in ("inv", "det", "svdvals", "pinv", "matrix_exp", "eigvals"):
        check(lambda _, a, name=name: getattr(torch.linalg, name)(a).abs().sort(-1)[0], a)
    check(lambda _, a, b: torch.linalg.solve(a, b), a.requires_grad_(), torch.randn(4, 2, requires_grad=True))
