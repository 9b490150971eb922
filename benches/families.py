"""One pass of a model of every family, to its end: strict and fused eager, torch.compile and torch CPU eager, in turn.

    python benches/families.py [--only NAME…] [--train] [--table FILE]

Random weights; transformers' models have four layers of width 256 unless said otherwise, those of timm and torchvision
are what their names say. Float32, no gradients (with ``--train``: forward and backward of one loss).
"""

import argparse
import copy
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

MODES = torch.tpu.EagerMode
WARM, ROUNDS = 3, 5
SECONDS = 20
"""After which no further round begins."""
Made = tuple[nn.Module, dict[str, Any]]

WIDTH = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
DECODER = {**WIDTH, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000, "pad_token_id": 0}
BOTH_SIDES = {
    "d_model": 256, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024, "vocab_size": 1000,
    "max_position_embeddings": 256,
}  # fmt: skip


def words(batch: int = 8, length: int = 128) -> torch.Tensor:
    return torch.randint(10, 1000, (batch, length))


def pictures(batch: int = 4, side: int = 224) -> torch.Tensor:
    return torch.rand(batch, 3, side, side)


def auto(kind: str, inputs: dict[str, Any], **numbers: Any) -> Callable[[], Made]:
    """A model of transformers, by its type."""

    def make() -> Made:
        import transformers as t

        return t.AutoModel.from_config(t.AutoConfig.for_model(kind, **numbers)), inputs

    return make


def timm(name: str, batch: int = 4, side: int = 224) -> Callable[[], Made]:
    def make() -> Made:
        import timm

        return timm.create_model(name, pretrained=False), {"x": pictures(batch, side)}

    return make


def torchvision(name: str, inputs: dict[str, Any], **numbers: Any) -> Callable[[], Made]:
    def make() -> Made:
        import torchvision

        return torchvision.models.get_model(name, weights=None, **numbers), inputs

    return make


def decoding() -> Made:
    """One token of Llama with a static cache of 256."""
    import transformers as t

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            config = t.LlamaConfig(**DECODER)
            self.model = t.LlamaForCausalLM(config)
            self.caches: dict[torch.device, t.StaticCache] = {}

        def forward(self, token, place):
            cache = self.caches.setdefault(token.device, t.StaticCache(self.model.config, max_cache_len=256))
            return self.model(token, past_key_values=cache, cache_position=place, position_ids=place[None]).logits

    return Step(), {"token": words(1, 1), "place": torch.tensor([17])}


def recurrent() -> Made:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(128, 256, 2, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0]

    return Net(), {"x": torch.randn(8, 100, 128)}


def diffusion(part: str) -> Callable[[], Made]:
    def make() -> Made:
        import diffusers as d

        if part == "unet":
            net = d.UNet2DConditionModel(
                sample_size=32, block_out_channels=(64, 128, 256), layers_per_block=1, cross_attention_dim=256,
                down_block_types=("CrossAttnDownBlock2D",) * 2 + ("DownBlock2D",),
                up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 2,
            )  # fmt: skip
            noise = {"sample": torch.randn(2, 4, 32, 32), "timestep": torch.tensor([10, 10])}
            return net, {**noise, "encoder_hidden_states": torch.randn(2, 77, 256)}
        if part == "dit":
            net = d.DiTTransformer2DModel(
                sample_size=32, num_layers=4, patch_size=2, attention_head_dim=64, num_attention_heads=4, in_channels=4
            )
            noise = {"hidden_states": torch.randn(2, 4, 32, 32), "timestep": torch.tensor([10, 10])}
            return net, {**noise, "class_labels": torch.tensor([1, 5])}
        blocks = ["DownEncoderBlock2D"] * 3, ["UpDecoderBlock2D"] * 3
        return d.AutoencoderKL(3, 3, *blocks, (32, 64, 128)).decoder, {"sample": torch.randn(1, 4, 32, 32)}

    return make


def sees(kind: str, batch: int = 4, side: int = 224, **numbers: Any) -> Callable[[], Made]:
    return auto(kind, {"pixel_values": pictures(batch, side)}, **numbers)


def reads(kind: str, **numbers: Any) -> Callable[[], Made]:
    return auto(kind, {"input_ids": words()}, **numbers)


SMALL = {"vocab_size": 1000, **WIDTH}
TOWER = {**WIDTH, "projection_dim": 256}
FAMILIES: dict[str, Callable[[], Made]] = {
    "BERT": reads("bert", **SMALL),
    "ALBERT": reads("albert", embedding_size=128, **SMALL),
    "DeBERTa v2": reads("deberta-v2", relative_attention=True, pos_att_type=["p2c", "c2p"], **SMALL),
    "GPT-2": reads("gpt2", n_embd=256, n_layer=4, n_head=4, vocab_size=1000),
    "Llama": reads("llama", **DECODER),
    "Llama, one token": decoding,
    "Qwen3": reads("qwen3", **DECODER),
    "Gemma 3": reads("gemma3_text", **DECODER),
    "Mixtral (MoE)": reads("mixtral", num_local_experts=4, **{**DECODER, "num_hidden_layers": 2}),
    "Mamba": reads("mamba", hidden_size=256, num_hidden_layers=2, vocab_size=1000),
    "T5": auto("t5", {"input_ids": words(8, 64), "decoder_input_ids": words(8, 64)}, vocab_size=1000, d_model=256,
               d_kv=64, d_ff=1024, num_layers=4, num_heads=4),
    "BART": auto("bart", {"input_ids": words(8, 64), "decoder_input_ids": words(8, 64)}, **BOTH_SIDES),
    "Whisper": auto("whisper", {"input_features": torch.randn(2, 80, 600), "decoder_input_ids": words(2, 32)},
                    **{**BOTH_SIDES, "max_source_positions": 300, "max_target_positions": 64, "pad_token_id": 0}),
    "wav2vec 2.0": auto("wav2vec2", {"input_values": torch.randn(2, 16000)}, **SMALL),
    "ViT": sees("vit", **WIDTH),
    "CLIP": auto("clip", {"input_ids": words(4, 64), "pixel_values": pictures()}, vision_config=WIDTH,
                 text_config={**SMALL, "bos_token_id": 1, "eos_token_id": 2}, projection_dim=256),
    "DINOv2": sees("dinov2", **WIDTH),
    "SegFormer": sees("segformer", batch=2),
    "Swin": sees("swin", batch=2),
    "ConvNeXt": timm("convnext_atto"),
    "ResNet": timm("resnet18"),
    "ResNet-50": timm("resnet50", batch=2),
    "EfficientNet": timm("efficientnet_b0"),
    "MobileNetV3": timm("mobilenetv3_small_100", batch=8),
    "RegNet": timm("regnety_004"),
    "DenseNet": torchvision("densenet121", {"x": pictures(2)}),
    "VGG": torchvision("vgg11", {"x": pictures(1)}),
    "MLP-Mixer": timm("gmixer_12_224"),
    "DeepLabV3": torchvision("deeplabv3_mobilenet_v3_large", {"x": pictures(1)}, weights_backbone=None),
    "ResNet 3D": torchvision("r3d_18", {"x": torch.rand(1, 3, 8, 112, 112)}),
    "UNet (diffusion)": diffusion("unet"),
    "DiT": diffusion("dit"),
    "VAE decoder": diffusion("vae"),
    "LSTM": recurrent,
}  # fmt: skip


def first(result: Any) -> torch.Tensor:
    """A model's first tensor of numbers."""
    if isinstance(result, torch.Tensor):
        return result
    parts = list(result.values()) if isinstance(result, dict) else result
    return next(first(part) for part in parts if isinstance(part, torch.Tensor | tuple | list | dict))


def passing(model: nn.Module, inputs: dict[str, Any], train: bool) -> Callable[[], Any]:
    """What gives the result: fused eager does not compute what nobody holds."""
    if not train:
        return torch.no_grad()(lambda: model(**inputs))

    def step() -> list[torch.Tensor | None]:
        model.zero_grad()
        first(model(**inputs)).square().mean().backward()
        return [p.grad for p in model.parameters()]

    return step


def measure(name: str, train: bool) -> dict[str, float]:
    """Milliseconds of each way, and of torch on the CPU."""
    torch.manual_seed(0)
    model, inputs = FAMILIES[name]()
    model.eval()
    device = copy.deepcopy(model).to("tpu")
    there = {k: v.to("tpu") for k, v in inputs.items()}
    eager, compiled = passing(device, there, train), passing(torch.compile(device, dynamic=False), there, train)
    ways = {
        "torch CPU": (MODES.DEFER_NEVER, passing(model, inputs, train)),
        "strict": (MODES.DEFER_NEVER, eager),
        "fused": (MODES.DEFER_AND_FUSE, eager),
        "compiled": (MODES.DEFER_NEVER, compiled),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for mode, step in ways.values():
        with torch.tpu.set_eager_mode(mode):
            for _ in range(WARM):
                result = step()
                torch.tpu.synchronize()
    end = time.perf_counter() + SECONDS
    while len(times["compiled"]) < ROUNDS and (time.perf_counter() < end or not times["compiled"]):
        for way, (mode, step) in ways.items():
            with torch.tpu.set_eager_mode(mode):
                start = time.perf_counter()
                result = step()
                torch.tpu.synchronize()
                times[way].append(time.perf_counter() - start)
    del result
    torch.compiler.reset()
    return {way: median(t) * 1e3 for way, t in times.items()}


def geometric(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def render(found: dict[str, dict[str, float]]) -> str:
    """A table, the slowest beside the CPU first."""
    lines = ["| family | torch CPU, ms | strict | fused | compiled |", "|---|---:|---:|---:|---:|"]
    for name, t in sorted(found.items(), key=lambda pair: -pair[1]["compiled"] / pair[1]["torch CPU"]):
        ratios = " | ".join(f"{t[way] / t['torch CPU']:.2f}" for way in ("strict", "fused", "compiled"))
        lines.append(f"| {name} | {t['torch CPU']:.1f} | {ratios} |")
    means = (geometric([t[way] / t["torch CPU"] for t in found.values()]) for way in ("strict", "fused", "compiled"))
    return "\n".join([*lines, f"| geometric mean | | {' | '.join(f'{m:.2f}' for m in means)} |", ""])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", choices=FAMILIES, metavar="NAME")
    parser.add_argument("--train", action="store_true", help="forward and backward")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    found, rows = {}, []
    for name in options.only or FAMILIES:
        try:
            t = found[name] = measure(name, options.train)
        except Exception as error:
            rows.append({"name": name, "value": None, "unit": f"{type(error).__name__}: {str(error)[:150]}"})
            print(rows[-1], file=sys.stderr)
            continue
        print(name, {way: round(ms, 2) for way, ms in t.items()}, file=sys.stderr, flush=True)
        for way in ("strict", "fused", "compiled"):
            rows.append({"name": f"{name}, {way} / torch CPU", "value": t[way] / t["torch CPU"], "unit": "×"})
    if found:
        mean = geometric([t["compiled"] / t["torch CPU"] for t in found.values()])
        rows.append({"name": "compiled / torch CPU, geometric mean", "value": mean, "unit": "×", "goal": 1.0})
        if options.table:
            options.table.write_text(render(found))
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
