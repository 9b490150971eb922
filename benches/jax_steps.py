"""The training steps of `models.py` in JAX, with the same weights: `beside.py` starts this as a process of its own.

    python benches/jax_steps.py FOLDER

FOLDER holds `NAME.npz`: the state dict, `input` and `target`. A line `NAME N` on standard input runs N steps and is
answered with the seconds they took and the last loss.
"""

import sys
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

LEARNING_RATE, DECAY, BETAS, EPSILON = 1e-4, 1e-2, (0.9, 0.999), 1e-8


def linear(p, name, x):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def gelu(x):
    return jax.nn.gelu(x, approximate=False)


def layer_norm(p, name, x):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def gpt(p, _state, tokens):
    b, s = tokens.shape
    x = p["words.weight"][tokens] + p["places.weight"][jnp.arange(s)]
    d, layers = x.shape[-1], len({n.split(".")[1] for n in p if n.startswith("blocks.")})
    for k in range(layers):
        name = f"blocks.{k}"
        mixed = linear(p, f"{name}.mix", layer_norm(p, f"{name}.before", x))
        q, key, v = mixed.reshape(b, s, 3, 4, d // 4).transpose(2, 0, 3, 1, 4)
        scores = q @ key.swapaxes(-1, -2) / np.sqrt(d // 4)
        scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -jnp.inf)
        y = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, s, d)
        x = x + linear(p, f"{name}.out", y)
        x = x + linear(p, f"{name}.down", gelu(linear(p, f"{name}.up", layer_norm(p, f"{name}.between", x))))
    return linear(p, "head", layer_norm(p, "norm", x)), {}


def convolve(p, name, x, stride=1):
    w = p[f"{name}.weight"]
    pad = w.shape[-1] // 2
    return lax.conv_general_dilated(x, w, (stride, stride), ((pad, pad), (pad, pad)))


def batch_norm(p, state, new, name, x):
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    count = x.size // x.shape[1]
    new[f"{name}.running_mean"] = 0.9 * state[f"{name}.running_mean"] + 0.1 * mean
    new[f"{name}.running_var"] = 0.9 * state[f"{name}.running_var"] + 0.1 * var * (count / (count - 1))
    new[f"{name}.num_batches_tracked"] = state[f"{name}.num_batches_tracked"] + 1
    scale = p[f"{name}.weight"] * lax.rsqrt(var + 1e-5)
    return x * scale[:, None, None] + (p[f"{name}.bias"] - mean * scale)[:, None, None]


def resnet(p, state, x):
    new = {}
    norm = partial(batch_norm, p, state, new)
    x = jax.nn.relu(norm("norm", convolve(p, "stem", x)))
    for k in range(8):
        name = f"blocks.{k}"
        stride = 2 if k in (2, 4, 6) else 1
        y = jax.nn.relu(norm(f"{name}.norm1", convolve(p, f"{name}.one", x, stride)))
        y = norm(f"{name}.norm2", convolve(p, f"{name}.two", y))
        if f"{name}.short.weight" in p:
            x = norm(f"{name}.norm3", convolve(p, f"{name}.short", x, stride))
        x = jax.nn.relu(y + x)
    return linear(p, "head", x.mean((2, 3))), new


def mlp(p, _state, x):
    for k in (0, 2):
        x = gelu(linear(p, str(k), x))
    return linear(p, "4", x), {}


def loss_of(model, p, state, x, y):
    logits, new = model(p, state, x)
    rows = jax.nn.log_softmax(logits.reshape(-1, logits.shape[-1]))
    return -jnp.take_along_axis(rows, y.reshape(-1, 1), 1).mean(), new


def adamw(p, grads, moments, t):
    t = t + 1
    first = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, moments[0], grads)
    second = jax.tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, moments[1], grads)
    size, root = LEARNING_RATE / (1 - BETAS[0] ** t), jnp.sqrt(1 - BETAS[1] ** t)

    def move(w, m, v):
        return w * (1 - LEARNING_RATE * DECAY) - size * m / (jnp.sqrt(v) / root + EPSILON)

    return jax.tree.map(move, p, first, second), (first, second), t


class Training:
    """One model's jitted step; what it overwrites is donated."""

    def __init__(self, name: str, folder: Path):
        held = dict(np.load(folder / f"{name}.npz"))
        self.x, self.y = jnp.asarray(held.pop("input")), jnp.asarray(held.pop("target"))
        kept = {k for k in held if "running_" in k or "num_batches" in k}
        p = {k: jnp.asarray(v) for k, v in held.items() if k not in kept}
        state = {k: jnp.asarray(held[k]) for k in kept}
        zeros = partial(jax.tree.map, jnp.zeros_like)
        model = {"gpt": gpt, "resnet": resnet, "mlp": mlp}[name]
        slope = jax.value_and_grad(partial(loss_of, model), has_aux=True)
        if name == "resnet":
            self.carry, self.grads = state, None

            def step(state, x, y):
                (loss, new), grads = slope(p, state, x, y)
                return new, loss, grads
        else:
            self.carry = p, (zeros(p), zeros(p)), jnp.float32(0)

            def step(carry, x, y):
                p, moments, t = carry
                (loss, _), grads = slope(p, {}, x, y)
                return adamw(p, grads, moments, t), loss, None

        self.step = jax.jit(step, donate_argnums=0)

    def run(self, steps: int) -> tuple[float, float]:
        start = time.perf_counter()
        for _ in range(steps):
            self.carry, loss, self.grads = self.step(self.carry, self.x, self.y)
        jax.block_until_ready((self.carry, loss, self.grads))
        return time.perf_counter() - start, float(loss)


def main() -> None:
    folder, trainings = Path(sys.argv[1]), {}
    for line in sys.stdin:
        name, steps = line.split()
        if name not in trainings:
            trainings[name] = Training(name, folder)
        print(*trainings[name].run(int(steps)), flush=True)


if __name__ == "__main__":
    main()
