"""Reads the example calls of the op table (crates/tpu-aten/README.md) into torch arguments.

An example is positional by schema order or `name=value`. Tensors get values from a seed made of the example's own text,
so that a failure repeats. Beside the README's tensor suffixes: `!` cycles through the dtype's awkward values (NaN,
±inf, ±0, halves, extremes), `h` makes a 0-d tensor that stays on the host.
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
    if how == "!":
        if dtype == torch.bool:
            values = [False, True, True]
        elif integral:
            info = torch.iinfo(dtype)
            values = [info.max, info.min, 0, 1, 2, 3, 7, 5] if info.min == 0 else [
                info.max, info.min, 0, 1, -1, 2, -3, 7, -8, 5]  # fmt: skip
        else:
            values = list(AWKWARD)
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
        return tensor(m[1], dims, m[3], seed)
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


REFERENCES = {
    "aten::_thnn_fused_lstm_cell": lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "aten::_thnn_fused_gru_cell": gru_cell,
    "aten::_thnn_fused_gru_cell_backward": gru_cell_backward,
}
