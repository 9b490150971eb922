"""The training step of two layers shaped as those of Qwen3-8B, in PyTorch and in JAX. The same maths: bfloat16, norms
and the softmax in float32, a loss that sums the output, the gradients of all parameters.
"""

import os

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, GROUPS, HEAD, INNER, LENGTH = 2, 4096, 32, 8, 128, 12288, 4096
EPSILON, BASE = 1e-6, 1e6


class Norm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPSILON)).to(x.dtype)


def turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = Norm(WIDTH), Norm(WIDTH)
        self.q_norm, self.k_norm = Norm(HEAD), Norm(HEAD)
        self.q = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, GROUPS * HEAD, bias=False) for _ in range(2))
        self.o = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        y = self.before(x)
        q = turned(self.q_norm(self.q(y).view(b, s, HEADS, HEAD)).transpose(1, 2), cos, sin)
        k = turned(self.k_norm(self.k(y).view(b, s, GROUPS, HEAD)).transpose(1, 2), cos, sin)
        v = self.v(y).view(b, s, GROUPS, HEAD).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, HEADS * HEAD))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x, cos, sin):
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


def ours() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The layers and their inputs, on the meta device."""
    with torch.device("meta"):
        model = Layers().to(torch.bfloat16)
        x = torch.empty(1, LENGTH, WIDTH, dtype=torch.bfloat16)
        turn = torch.empty(LENGTH, HEAD, dtype=torch.bfloat16)
    return model, (x, turn, turn)


def theirs() -> str:
    """The StableHLO of the same step in JAX."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # beside libtpu it would look for a TPU
    import jax
    from jax import numpy as jnp

    def norm(w, x):
        y = x.astype(jnp.float32)
        return w * (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + EPSILON)).astype(x.dtype)

    def turned(x, cos, sin):
        a, b = jnp.split(x, 2, -1)
        return x * cos[:, None] + jnp.concatenate([-b, a], -1) * sin[:, None]

    def layer(p, x, cos, sin):
        b, s, _ = x.shape
        y = norm(p["before"], x)
        q = turned(norm(p["q_norm"], (y @ p["q"].T).reshape(b, s, HEADS, HEAD)), cos, sin)
        k = turned(norm(p["k_norm"], (y @ p["k"].T).reshape(b, s, GROUPS, HEAD)), cos, sin)
        v = (y @ p["v"].T).reshape(b, s, GROUPS, HEAD)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + y.reshape(b, s, HEADS * HEAD) @ p["o"].T
        y = norm(p["between"], x)
        return x + (jax.nn.silu(y @ p["gate"].T) * (y @ p["up"].T)) @ p["down"].T

    def loss(params, x, cos, sin):
        for p in params:
            x = layer(p, x, cos, sin)
        return x.astype(jnp.float32).sum()

    model, inputs = ours()
    shape = lambda t: jax.ShapeDtypeStruct(tuple(t.shape), jnp.bfloat16)  # noqa: E731
    params = [{n.removesuffix(".weight"): shape(p) for n, p in one.named_parameters()} for one in model.layers]
    return jax.jit(jax.value_and_grad(loss)).lower(params, *map(shape, inputs)).as_text()
