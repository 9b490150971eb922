"""Reads the example calls of the op table (crates/tpu-aten/README.md) into torch arguments.

An example is positional by schema order or `name=value`. Tensors get values from a seed made of the example's own text,
so that a failure repeats. Beside the README's tensor suffixes: `!` cycles through the dtype's awkward values (NaN,
±inf, ±0, halves, extremes), `?` the same without NaN (torch's CPU
kernels answer it by vector width here and there), `^` makes Hermitian positive definite matrices, `h` makes a 0-d
tensor that stays on the host.
"""

from __future__ import annotations

import re
import zlib

import torch

DTYPES = {
    "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64, "f16": torch.float16,
    "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "c64": torch.complex64,
    "c128": torch.complex128, "f8e5m2": torch.float8_e5m2, "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2fnuz": torch.float8_e5m2fnuz, "f8e4m3fnuz": torch.float8_e4m3fnuz, "f8e8m0": torch.float8_e8m0fnu,
}  # fmt: skip
TENSOR = re.compile(r"(\w+)\[([\d,]*)\](.*)$", re.S)
AWKWARD = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, -7.25, 1e-3,
           20.0, -20.0, 100.0, -100.0]  # fmt: skip


class OnHost:
    """A 0-d tensor that stays on the CPU while others are on the device."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor


def _tokens(text: str) -> list[str]:
    """Splits at blanks outside brackets and quotes."""
    out, depth, quoted, word = [], 0, False, ""
    for c in text:
        if c == "'":
            quoted = not quoted
        elif not quoted and c in "([":
            depth += 1
        elif not quoted and c in ")]":
            depth -= 1
        if c.isspace() and depth == 0 and not quoted:
            if word:
                out.append(word)
            word = ""
        else:
            word += c
    return out + [word] if word else out


def tensor(name: str, dims: list[int], how: str, seed: int) -> torch.Tensor:
    """A tensor of dtype `name` with the values that the suffix `how` asks for."""
    dtype = DTYPES[name]
    g = torch.Generator().manual_seed(seed)
    count = 1
    for d in dims:
        count *= d
    integral = not dtype.is_floating_point and not dtype.is_complex
    if how in ("!", "?"):
        if dtype == torch.bool:
            values = [False, True, True]
        elif integral:
            info = torch.iinfo(dtype)
            values = [info.max, info.min, 0, 1, 2, 3, 7, 5] if info.min == 0 else [
                info.max, info.min, 0, 1, -1, 2, -3, 7, -8, 5]  # fmt: skip
        else:
            values = AWKWARD[how == "?" :]
        # start at a seeded place, so that two tensors of one call meet in many pairs
        start = seed % len(values)
        picked = [values[(start + i) % len(values)] for i in range(count)]
        if dtype.is_complex:
            other = [values[(start + 3 * i + i // len(values)) % len(values)] for i in range(count)]
            picked = [complex(a, b) for a, b in zip(picked, other)]
        return torch.tensor(picked, dtype=dtype).reshape(dims)
    if how.startswith("%"):
        return torch.randint(0, int(how[1:]), dims, generator=g).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, dims, generator=g).to(dtype)
    if integral:
        signed = dtype.is_signed and how != "+"
        return torch.randint(-9 if signed else int(how == "+"), 10, dims, generator=g).to(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    if how == "~":
        return torch.rand(dims, generator=g, dtype=wide).to(dtype)
    x = torch.randn(dims, generator=g, dtype=wide)
    if how == "^":
        x = x @ x.mH / dims[-1] + torch.eye(dims[-1])
    return (x.abs() + 0.1 if how == "+" else x).to(dtype)


def _value(token: str, seed: int):
    if token == "-":
        return None
    if token[0] == "'":
        return token.strip("'")
    if token[0] == "[":
        return [_value(t, seed + 7919 * (i + 1)) for i, t in enumerate(_tokens(token[1:-1]))]
    if token[0] == "(":
        return [_value(t.strip(), seed) for t in token[1:-1].split(",") if t.strip()]
    if m := TENSOR.match(token):
        if m[1] not in DTYPES:
            raise ValueError(f"no dtype {m[1]!r} in {token!r}")
        dims = [int(d) for d in m[2].split(",") if d]
        if m[3] == "h":
            return OnHost(tensor(m[1], dims, "", seed))
        made = tensor(m[1], dims, m[3].rstrip("|"), seed)
        return made.mT.contiguous().mT if m[3].endswith("|") else made
    if token in DTYPES:
        return DTYPES[token]
    if token in ("True", "False"):
        return token == "True"
    for number in (int, float, complex):
        try:
            return number(token)
        except ValueError:
            pass
    raise ValueError(f"what is {token!r}?")


def parse(example: str, schema: torch.FunctionSchema) -> list:
    """The example's arguments, one for each of `schema`'s, defaults filled in."""
    given: dict[str, object] = {}
    position = 0
    names = [a.name for a in schema.arguments]
    for k, token in enumerate(_tokens(example)):
        seed = zlib.crc32(f"{example}|{k}".encode())
        name, eq, rest = token.partition("=")
        if eq and name.isidentifier():
            if name not in names:
                raise ValueError(f"{schema.name} has no argument {name!r}")
            given[name] = _value(rest, seed)
        else:
            given[names[position]] = _value(token, seed)
            position += 1
    values = []
    for a in schema.arguments:
        v = given.get(a.name, a.default_value if a.has_default_value() else None)
        n = a.N
        if n and isinstance(v, (int, float)) and not isinstance(v, bool):
            v = [v] * n
        if isinstance(v, float) and str(a.type) in ("int", "Optional[int]"):
            v = int(v)
        values.append(v)
    return values


# ---------------------------------------------------------------- ops that the CPU has no kernel for


def _sum(*terms):
    return sum(t.double() for t in terms if t is not None)


def _as(dtype: torch.dtype, *results):
    return [None if t is None else t.to(dtype) for t in results]


def lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    """The cell by the book, in float64; its third result is the activated gates side by side."""
    i, f, c, o = _sum(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    i, f, c, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(c), torch.sigmoid(o)
    cy = f * cx.double() + i * c
    return _as(cx.dtype, o * torch.tanh(cy), cy, torch.cat([i, f, c, o], 1))


def lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    """Derivatives written out gate by gate, in float64."""
    gh, gc, c, cy = (torch.zeros_like(cx) if t is None else t for t in (grad_hy, grad_cy, cx, cy))
    gh, gc, c, t = gh.double(), gc.double(), c.double(), torch.tanh(cy.double())
    i, f, g, o = workspace.double().chunk(4, 1)
    inner = gh * o * (1 - t**2) + gc
    gates = torch.cat(
        [inner * g * i * (1 - i), inner * c * f * (1 - f), inner * i * (1 - g**2), gh * t * o * (1 - o)], 1
    )
    return _as(workspace.dtype, gates, inner * f, gates.sum(0) if has_bias else None)


def gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    """The cell by the book, in float64; its second result is reset, update, new, old state, hidden part of new."""
    (ir, iz, n), (hr, hz, hn) = _sum(input_gates, input_bias).chunk(3, 1), _sum(hidden_gates, hidden_bias).chunk(3, 1)
    r, z, h = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz), hx.double()
    new = torch.tanh(n + r * hn)
    return _as(hx.dtype, (1 - z) * new + z * h, torch.cat([r, z, new, h, hn], 1))


def gru_cell_backward(grad_hy, workspace, has_bias):
    """Derivatives written out gate by gate, in float64."""
    g = grad_hy.double()
    r, z, n, h, hn = workspace.double().chunk(5, 1)
    to_new = g * (1 - z) * (1 - n**2)
    to_reset, to_update = to_new * hn * r * (1 - r), g * (h - n) * z * (1 - z)
    inputs, hidden = torch.cat([to_reset, to_update, to_new], 1), torch.cat([to_reset, to_update, to_new * r], 1)
    biases = [inputs.sum(0), hidden.sum(0)] if has_bias else [None, None]
    return _as(workspace.dtype, inputs, hidden, g * z, *biases)


def embedding_bag(weight, indices, offsets, scale=False, mode=0, sparse=False, per_sample=None, last=False, padding=-1):
    """The CPU's sums with the other results as accelerators give them: the bag of each index, sizes of bags."""
    call = torch.ops.aten._embedding_bag
    found = call(weight, indices, offsets, scale, mode, sparse, per_sample, last, padding)
    bags = found[0].shape[0]
    where = torch.searchsorted(offsets, torch.arange(len(indices)), right=True) - 1
    sizes = torch.zeros(len(offsets), dtype=indices.dtype)
    sizes.index_add_(0, where[indices != padding], torch.ones_like(indices[indices != padding]))
    winners = found[3] if mode == 2 else torch.zeros(0)
    if mode == 2:
        winners[sizes[:bags] == 0] = -1
    return [found[0], where.to(indices.dtype), sizes, winners.to(indices.dtype)]


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    """The CPU's loss; forward variables that the CPU leaves unset are those of impossible states."""
    loss, alpha = torch.ops.aten._ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    for b, (t, s) in enumerate(zip(input_lengths, target_lengths)):
        alpha[b, t:] = alpha[b, :, 2 * s + 1 :] = float("-inf")
    return [loss, alpha]


# Batch normalization over several devices: what each step is by definition, in float64. Channels are dimension 1.


def _channels(x):
    return x.double().transpose(0, 1).flatten(1)


def batch_norm_stats(x, eps):
    """Mean and inverse deviation of each channel."""
    c = _channels(x)
    return _as(torch.float32, c.mean(1), (c.var(1, correction=0) + eps).rsqrt())


def _normal(x, mean, rstd):
    shape = [1, -1] + [1] * (x.dim() - 2)
    return (x.double() - mean.double().view(shape)) * rstd.double().view(shape), shape


def batch_norm_elemt(x, weight, bias, mean, rstd, eps):
    """The normalized elements."""
    y, shape = _normal(x, mean, rstd)
    y = y if weight is None else y * weight.view(shape)
    return _as(x.dtype, y if bias is None else y + bias.view(shape))


def batch_norm_gather_stats(x, mean, rstd, running_mean, running_var, momentum, eps, counts):
    """Statistics of all parts together, from their sums of elements and of squares; the running ones move on."""
    n = counts.double() if isinstance(counts, torch.Tensor) else torch.full(mean.shape[:1], float(counts)).double()
    n, m, var = n[:, None], mean.double(), rstd.double() ** -2 - eps
    total = (n * m).sum(0) / n.sum()
    spread = (n * (var + m * m)).sum(0) - n.sum() * total**2
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_((momentum * total).to(running_mean.dtype))
        running_var.mul_(1 - momentum).add_((momentum * spread / (n.sum() - 1)).to(running_var.dtype))
    return _as(torch.float32, total, (spread / n.sum() + eps).rsqrt())


def batch_norm_backward_reduce(g, x, mean, rstd, weight, input_g, weight_g, bias_g):
    """Sums of the gradient, and of its product with the centred input."""
    c, d = _channels(g), _channels(x) - mean.double()[:, None]
    both = (c * d).sum(1)
    asked = [input_g, input_g, weight_g, bias_g]
    found = _as(torch.float32, c.sum(1), both, both * rstd, c.sum(1))
    return [t if wanted else None for t, wanted in zip(found, asked)]


def batch_norm_backward_elemt(g, x, mean, rstd, weight, sum_dy, sum_dy_xmu, count):
    """The input's gradient after the sums were exchanged."""
    n = count.sum()
    y, shape = _normal(x, mean, rstd)
    wide = [t.double().view(shape) for t in (rstd, torch.ones_like(rstd) if weight is None else weight)]
    trend = y * (sum_dy_xmu * rstd).double().view(shape) / n
    return _as(x.dtype, (g.double() - sum_dy.double().view(shape) / n - trend) * wide[0] * wide[1])


# The CPU's slopes of random numbers are fits of three or four digits.


def gamma_slope(alpha, x):
    """Minus dP/da over the density, the derivative by differences."""
    a, x = alpha.double(), x.double()
    h = a * 1e-4
    slope = (torch.special.gammainc(a + h, x) - torch.special.gammainc(a - h, x)) / (2 * h)
    return _as(alpha.dtype, -slope / ((a - 1) * x.log() - x - a.lgamma()).exp())


def dirichlet_slope(x, alpha, total):
    """The same of a beta number, over 1 - x; the derivative by quadrature in t = x r^(4/a)."""
    x64, a, b = x.double()[..., None], alpha.double()[..., None], (total - alpha).double()[..., None]
    n = 20000
    r = torch.linspace(0, 1, n + 1, dtype=torch.float64).clamp(min=1e-9)
    simpson = torch.tensor([1.0] + [4.0, 2.0] * (n // 2 - 1) + [4.0, 1.0], dtype=torch.float64) / (3 * n)
    t = x64 * r ** (4 / a)
    weight = (1 - t) ** (b - 1) * 4 * r**3 * x64**a / a * simpson
    log_beta = a.lgamma() + b.lgamma() - (a + b).lgamma()
    slope = (weight * (x64.log() + r.log() * 4 / a - a.digamma() + (a + b).digamma())).sum(-1) / log_beta.exp()[..., 0]
    density = ((a - 1) * x64.log() + (b - 1) * (1 - x64).log() - log_beta).exp()[..., 0]
    found = -slope / density / (1 - x64[..., 0])
    return _as(x.dtype, torch.where((a > 0)[..., 0] & (b > 0)[..., 0], found, torch.nan))


def attention_weights(q, k, bias, causal, scale):
    """Weights of each (batch, head, query, key) and the logarithms of their sums, in float64."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q.double() @ k.double().mT * (scale or q.shape[-1] ** -0.5)
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores, scores.logsumexp(-1)


def attention(q, k, v, bias, drop, causal, debug, scale):
    scores, log = attention_weights(q, k, bias, causal, scale)
    y = scores.softmax(-1) @ v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)
    zero = torch.tensor(0)
    return y.to(q.dtype), log.float(), None, None, zero, zero, None


def attention_backward(grad, q, k, v, bias, mask, out, log, _1, _2, _3, _4, drop, causal, seed, offset, scale):
    # by hand, since the `out` and `logsumexp` of an example are no forward's
    scores, _ = attention_weights(q, k, bias, causal, scale)
    weights = (scores - log.double().unsqueeze(-1)).exp()
    rate, groups = scale or q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
    wide_k, wide_v = (t.double().repeat_interleave(groups, 1) for t in (k, v))
    ds = weights * (grad.double() @ wide_v.mT - (grad * out).double().sum(-1, keepdim=True))
    own = [ds @ wide_k * rate, ds.mT @ q.double() * rate, weights.mT @ grad.double(), ds]
    for i in (1, 2):
        own[i] = own[i].unflatten(1, (-1, groups)).sum(2)
    like = (q, k, v, bias)
    return [g.sum_to_size(t.shape).to(t.dtype) if m else None for g, t, m in zip(own, like, mask)]


def product(a, b, out_dtype):
    return [(a.double() @ b.double()).to(out_dtype)]


def product_added(c, a, b, out_dtype, beta=1, alpha=1):
    return [(beta * c + alpha * (a.double() @ b.double())).to(out_dtype)]


def grouped_mm(a, b, offs=None, bias=None, out_dtype=None):
    """One product a group; what lies in no group is zero."""
    dtype, (a, b) = out_dtype or a.dtype, (a.double(), b.double())
    if offs is None:
        return [(a @ b).to(dtype)]
    rows, columns, inner = a.shape[-2], b.shape[-1], a.dim() == b.dim() == 2
    y, start = torch.zeros(len(offs) if inner else 1, rows, columns, dtype=torch.float64), 0
    for g, end in enumerate(offs.tolist()):
        own = slice(start, max(start, end))
        if inner:
            y[g] = a[:, own] @ b[own]
        elif a.dim() == 2:
            y[0, own] += a[own] @ b[g]
        else:
            y[0, :, own] += a[g] @ b[:, own]
        start = end
    return [(y if inner else y[0]).to(dtype)]


def scaled_grouped_mm(a, b, scale_a, scale_b, offs=None, bias=None, result=None, out_dtype=None, fast=False):
    return grouped_mm(a.double() * scale_a.unsqueeze(-1), b.double() * scale_b.unsqueeze(-2), offs, None, out_dtype)


def int4_pack(weight, tiles):
    n, k = weight.shape[0], weight.shape[1] * 2
    return [weight.contiguous().view(torch.int32).reshape(n // 8, k // (tiles * 16), 32, tiles // 2)]


def int4_mm(x, packed, group, scales_and_zeros):
    n = scales_and_zeros.shape[1]
    bytes_ = packed.contiguous().view(torch.uint8).reshape(n, -1)
    digits = torch.stack([bytes_ >> 4, bytes_ & 15], 2).reshape(n, -1, group).double() - 8
    scales, zeros = scales_and_zeros.transpose(0, 1).unsqueeze(-1).double().unbind(2)
    return [(x.double() @ (digits * scales + zeros).reshape(n, -1).T).to(x.dtype)]


REFERENCES = {
    "aten::_standard_gamma_grad": gamma_slope,
    "aten::_dirichlet_grad": dirichlet_slope,
    "aten::batch_norm_stats": batch_norm_stats,
    "aten::batch_norm_elemt": batch_norm_elemt,
    "aten::batch_norm_gather_stats": batch_norm_gather_stats,
    "aten::batch_norm_gather_stats_with_counts": batch_norm_gather_stats,
    "aten::batch_norm_backward_reduce": batch_norm_backward_reduce,
    "aten::batch_norm_backward_elemt": batch_norm_backward_elemt,
    "aten::_embedding_bag": embedding_bag,
    "aten::_embedding_bag_forward_only": embedding_bag,
    "aten::_ctc_loss": ctc_loss,
    "aten::mm.dtype": product,
    "aten::bmm.dtype": product,
    "aten::addmm.dtype": product_added,
    "aten::baddbmm.dtype": product_added,
    "aten::_grouped_mm": grouped_mm,
    "aten::_scaled_grouped_mm": scaled_grouped_mm,
    "aten::_convert_weight_to_int4pack": int4_pack,
    "aten::_weight_int4pack_mm": int4_mm,
    "aten::_scaled_dot_product_fused_attention_overrideable": attention,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": attention_backward,
    "aten::_thnn_fused_lstm_cell": lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "aten::_thnn_fused_gru_cell": gru_cell,
    "aten::_thnn_fused_gru_cell_backward": gru_cell_backward,
}


# ---------------------------------------------------------------- results that are right up to signs or phases


def svd(u, s, vh):
    """Singular values, the product, and that the vectors are orthonormal."""
    if u.dim() < 2 or u.numel() == 0:
        return [s]
    k = s.shape[-1]
    return [s, (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], u.mH @ u, vh @ vh.mH]


def eigh(w, v):
    """Eigenvalues, the product, and that the vectors are orthonormal."""
    return [w, (v * w.unsqueeze(-2)) @ v.mH, v.mH @ v] if v.numel() else [w]


INVARIANTS = {"aten::_linalg_svd": svd, "aten::_linalg_eigh": eigh}
