"""What the TPU compiler says of known models, as the table of docs/tpu-check.md. Needs libtpu, transformers and no TPU.

python benches/tpu_check.py [--topologies v5e:1x1,v6e:1x1,tpu7x:1x1x1] [NAME...]
python benches/tpu_check.py --large
"""

import argparse
import sys
from collections.abc import Callable

import qwen3
import torch
from models import GPT, mlp
from torch import nn
from torch.nn import functional as F
from torch_tpu import aot


class Loss(nn.Module):
    """Cross-entropy of a model's logits with their targets."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        out = self.model(x)
        return F.cross_entropy(getattr(out, "logits", out).flatten(0, -2).float(), y.flatten())


def transformer(kind: str, **sizes):
    import transformers

    config = getattr(transformers, f"{kind}Config")(use_cache=False, attn_implementation="sdpa", **sizes)
    return config, transformers


def minilm():
    config, transformers = transformer(
        "Bert", vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return transformers.BertModel(config).eval(), (torch.zeros(32, 128, dtype=torch.long),), False


def smollm2(tokens: int):
    config, transformers = transformer(
        "Llama", vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536, tie_word_embeddings=True)  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    return model, (torch.zeros(1, tokens, dtype=torch.long),), False


class Step(nn.Module):
    """A model's logits for one token, behind what a static cache holds: its tokens' keys and values."""

    def __init__(self, model: nn.Module, room: int):
        super().__init__()
        self.model, self.room = model, room

    def cache(self) -> list[torch.Tensor]:
        c = self.model.config
        shape = (1, c.num_key_value_heads, self.room, c.hidden_size // c.num_attention_heads)
        return [torch.zeros(shape, dtype=torch.bfloat16) for _ in range(2 * c.num_hidden_layers)]

    def forward(self, token, place, *held):
        import transformers

        cache = transformers.StaticCache(self.model.config, max_cache_len=self.room)
        for layer, keys, values in zip(cache.layers, held[::2], held[1::2]):
            layer.keys, layer.values, layer.cumulative_length, layer.is_initialized = keys, values, place, True
            layer.dtype, layer.device = keys.dtype, keys.device
        return self.model(token, past_key_values=cache, position_ids=place[None], use_cache=True).logits


def decode():
    step = Step(smollm2(1)[0], 512)
    return step, (torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long), *step.cache()), False


def gpt():
    return Loss(GPT()), (torch.zeros(8, 128, dtype=torch.long),) * 2, True


def mnist():
    return Loss(mlp()), (torch.zeros(128, 784), torch.zeros(128, dtype=torch.long)), True


def summed(devices: int) -> str:
    """A StableHLO module that adds up 1,024 numbers over all devices."""
    group = str([list(range(devices))])
    return f"""module @sum attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = {devices} : i32}} {{
  func.func public @main(%a: tensor<1024xf32>) -> tensor<1024xf32> {{
    %0 = "stablehlo.all_reduce"(%a) <{{replica_groups = dense<{group}> : tensor<1x{devices}xi64>}}> ({{
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %s = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }}) : (tensor<1024xf32>) -> tensor<1024xf32>
    return %0 : tensor<1024xf32>
  }}
}}"""


CASES: dict[str, tuple[str, Callable]] = {
    "minilm": ("MiniLM, 32 × 128 tokens, float32", minilm),
    "prefill": ("SmolLM2-135M, 512 tokens, bfloat16", lambda: smollm2(512)),
    "decode": ("SmolLM2-135M, one token behind 512, bfloat16", decode),
    "mnist": ("MLP 784-512-512-10, batch 128, training", mnist),
    "gpt": ("GPT 4 × 256, 8 × 128 tokens, training", gpt),
    "qwen3": ("two layers of Qwen3-8B, 1 × 4096 tokens, bfloat16, training", lambda: (*qwen3.ours(), True)),
    "jax": ("the same in JAX", lambda: (qwen3.theirs(), (), False)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--large", action="store_true", help="only: a sum over the devices of large topologies")
    parser.add_argument("--topologies", default="v5e:1x1,v6e:1x1,tpu7x:1x1x1")
    options = parser.parse_args()
    if options.large:
        for topology, devices in {"v6e:16x16": 256, "tpu7x:4x4x4": 128, "tpu7x:16x16x32": 16384}.items():
            r = aot.compile(summed(devices), topology=topology)
            print(f"{topology}, {devices} devices: {r.error or f'compiled in {r.compile_seconds:.1f} s'}", flush=True)
        return
    print("| program | chip | GFLOP | GB accessed | peak GB | million cycles | predicted ms | MFU |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    cycles = {}
    for name in options.names or CASES:
        title, make = CASES[name]
        with torch.device("meta"):
            model, args, train = make()
        for topology in options.topologies.split(","):
            r = aot.compile(model, args, topology=topology, train=train)
            if r.error:
                print(f"| {title} | {topology} | {r.error} |")
                continue
            figures = (
                f"{r.flops / 1e9:.1f}", f"{r.bytes_accessed / 1e9:.2f}", f"{r.peak_memory_bytes / 1e9:.2f}",
                f"{r.estimated_cycles / 1e6:.2f}", f"{r.predicted_seconds * 1e3:.3f}", f"{r.predicted_mfu:.0%}",
            )  # fmt: skip
            print(f"| {title} | {topology} |", " | ".join(figures), "|", flush=True)
            cycles[name, topology] = r.estimated_cycles, r.peak_memory_bytes
            for hint in r.hints:
                print(f"  {topology}: {hint}", file=sys.stderr)
    for topology in options.topologies.split(","):
        if {("qwen3", topology), ("jax", topology)} <= cycles.keys():
            ours, theirs = cycles["qwen3", topology], cycles["jax", topology]
            of_cycles, of_memory = (a / b for a, b in zip(ours, theirs))
            print(f"{topology}, ours / JAX: {of_cycles:.2f} × the cycles, {of_memory:.2f} × the peak memory")


if __name__ == "__main__":
    main()
