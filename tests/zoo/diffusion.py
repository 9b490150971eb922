"""A tiny random pipeline of each family in diffusers: its own parts with small numbers, and what it is called with.

Prompts come as embeddings, so that no tokenizer is needed; noise is drawn on the CPU: the same on both devices.
"""

from collections.abc import Callable
from typing import Any

import diffusers as d
import torch

WORDS, WIDTH = 8, 32
STEPS = 2
Family = Callable[[], tuple[d.DiffusionPipeline, dict[str, Any]]]


def _vae(channels: int = 4, scale: int = 2) -> d.AutoencoderKL:
    blocks = ["DownEncoderBlock2D"] * scale, ["UpDecoderBlock2D"] * scale
    return d.AutoencoderKL(
        3, 3, *blocks, (8, 16, 16, 16)[:scale], latent_channels=channels, norm_num_groups=4, shift_factor=0.0
    )


def _prompt(width: int = WIDTH, count: int = 1) -> torch.Tensor:
    return torch.randn(count, WORDS, width)


def _words(mask: bool = False) -> dict[str, Any]:
    """Embeddings of a prompt and of none, and their masks."""
    given: dict[str, Any] = {"prompt_embeds": _prompt(), "negative_prompt_embeds": _prompt()}
    if mask:
        ones = torch.ones(1, WORDS, dtype=torch.long)
        given |= {"prompt_attention_mask": ones, "negative_prompt_attention_mask": ones}
    return given


SIZE = {"height": 32, "width": 32}


def ddpm():
    unet = d.UNet2DModel(
        sample_size=16, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return d.DDIMPipeline(unet=unet, scheduler=d.DDIMScheduler()), {"output_type": "np"}


def _unet(**more: Any) -> d.UNet2DConditionModel:
    return d.UNet2DConditionModel(
        sample_size=16, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, cross_attention_dim=WIDTH,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4, **more,
    )  # fmt: skip


def stable_diffusion():
    pipe = d.StableDiffusionPipeline(
        vae=_vae(), text_encoder=None, tokenizer=None, unet=_unet(),
        scheduler=d.PNDMScheduler(skip_prk_steps=True, steps_offset=1),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    return pipe, {**_words(), **SIZE}


def stable_diffusion_xl():
    unet = _unet(
        addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=6 * 8 + 32,
        use_linear_projection=True, transformer_layers_per_block=(1, 2),
    )  # fmt: skip
    pipe = d.StableDiffusionXLPipeline(
        vae=_vae(), text_encoder=None, text_encoder_2=None, tokenizer=None, tokenizer_2=None, unet=unet,
        scheduler=d.EulerDiscreteScheduler(), add_watermarker=False,
    )  # fmt: skip
    pooled = {"pooled_prompt_embeds": torch.randn(1, 32), "negative_pooled_prompt_embeds": torch.randn(1, 32)}
    return pipe, {**_words(), **pooled, **SIZE}


def stable_diffusion_3():
    transformer = d.SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8,
        num_attention_heads=4, joint_attention_dim=WIDTH, caption_projection_dim=32, pooled_projection_dim=32,
    )  # fmt: skip
    pipe = d.StableDiffusion3Pipeline(
        transformer=transformer, scheduler=d.FlowMatchEulerDiscreteScheduler(), vae=_vae(), text_encoder=None,
        tokenizer=None, text_encoder_2=None, tokenizer_2=None, text_encoder_3=None, tokenizer_3=None,
    )  # fmt: skip
    pooled = {"pooled_prompt_embeds": torch.randn(1, 32), "negative_pooled_prompt_embeds": torch.randn(1, 32)}
    return pipe, {**_words(), **pooled, **SIZE}


def flux():
    transformer = d.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=WIDTH, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
    )  # fmt: skip
    pipe = d.FluxPipeline(
        scheduler=d.FlowMatchEulerDiscreteScheduler(), vae=_vae(4), text_encoder=None, tokenizer=None,
        text_encoder_2=None, tokenizer_2=None, transformer=transformer,
    )  # fmt: skip
    return pipe, {"prompt_embeds": _prompt(), "pooled_prompt_embeds": torch.randn(1, 32), **SIZE}


def pixart():
    transformer = d.PixArtTransformer2DModel(
        sample_size=16, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=4, in_channels=4,
        out_channels=8, caption_channels=WIDTH, cross_attention_dim=32, use_additional_conditions=False,
    )  # fmt: skip
    pipe = d.PixArtAlphaPipeline(
        tokenizer=None, text_encoder=None, vae=_vae(), transformer=transformer,
        scheduler=d.DPMSolverMultistepScheduler(),
    )  # fmt: skip
    return pipe, {**_words(mask=True), "negative_prompt": None, "use_resolution_binning": False, **SIZE}


def dit():
    transformer = d.DiTTransformer2DModel(
        sample_size=8, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=2, in_channels=4,
        out_channels=8, num_embeds_ada_norm=1000,
    )  # fmt: skip
    return d.DiTPipeline(transformer, _vae(), d.DDIMScheduler()), {"class_labels": [1, 5], "output_type": "np"}


def sana():
    transformer = d.SanaTransformer2DModel(
        patch_size=1, in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2, attention_head_dim=8,
        num_cross_attention_heads=2, cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=WIDTH,
        sample_size=16,
    )  # fmt: skip
    vae = d.AutoencoderDC(
        in_channels=3, latent_channels=4, attention_head_dim=2, encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"), encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8), encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1), decoder_layers_per_block=[1, 1], downsample_block_type="conv",
        upsample_block_type="interpolate", decoder_norm_types="rms_norm", decoder_act_fns="silu",
        scaling_factor=0.41407,
    )  # fmt: skip
    pipe = d.SanaPipeline(
        tokenizer=None, text_encoder=None, vae=vae, transformer=transformer,
        scheduler=d.FlowMatchEulerDiscreteScheduler(shift=7.0),
    )  # fmt: skip
    return pipe, {**_words(mask=True), "negative_prompt": None, "use_resolution_binning": False, **SIZE}


def aura_flow():
    transformer = d.AuraFlowTransformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, out_channels=4, num_mmdit_layers=1, num_single_dit_layers=1,
        attention_head_dim=8, num_attention_heads=4, caption_projection_dim=32, joint_attention_dim=WIDTH,
        pos_embed_max_size=256,
    )  # fmt: skip
    pipe = d.AuraFlowPipeline(None, None, _vae(), transformer, d.FlowMatchEulerDiscreteScheduler())
    return pipe, {**_words(mask=True), **SIZE}


def wan():
    vae = d.AutoencoderKLWan(base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1,
                             temperal_downsample=[False, True, True])  # fmt: skip
    transformer = d.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=16, out_channels=16,
        text_dim=WIDTH, freq_dim=32, ffn_dim=32, num_layers=2, cross_attn_norm=True, qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )  # fmt: skip
    pipe = d.WanPipeline(None, None, vae, d.FlowMatchEulerDiscreteScheduler(shift=7.0), transformer)
    return pipe, {**_words(), "num_frames": 5, "height": 16, "width": 16}


def ltx():
    transformer = d.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, patch_size=1, patch_size_t=1, num_attention_heads=4, attention_head_dim=8,
        cross_attention_dim=32, num_layers=1, caption_channels=WIDTH,
    )  # fmt: skip
    vae = d.AutoencoderKLLTXVideo(
        in_channels=3, out_channels=3, latent_channels=8, block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8), layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1), spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False), decoder_inject_noise=(False,) * 5,
        upsample_residual=(False,) * 4, upsample_factor=(1,) * 4, timestep_conditioning=False, patch_size=1,
        patch_size_t=1, encoder_causal=True, decoder_causal=False,
    )  # fmt: skip
    vae.use_framewise_encoding = vae.use_framewise_decoding = False
    pipe = d.LTXPipeline(d.FlowMatchEulerDiscreteScheduler(), vae, None, None, transformer)
    return pipe, {**_words(mask=True), "num_frames": 9, **SIZE}


FAMILIES: dict[str, Family] = {
    f.__name__: f
    for f in (
        ddpm, stable_diffusion, stable_diffusion_xl, stable_diffusion_3, flux, pixart, dit, sana, aura_flow, wan, ltx,
    )
}  # fmt: skip


def made(family: str) -> tuple[d.DiffusionPipeline, dict[str, Any]]:
    """A pipeline on the CPU with weights of a size at which errors show, and its arguments."""
    torch.manual_seed(0)
    pipe, given = FAMILIES[family]()
    pipe.set_progress_bar_config(disable=True)
    for part in parts(pipe):
        part.eval()
        with torch.no_grad():
            for p in part.parameters():
                if p.dim() > 1:
                    p.normal_(0, 0.05)
    return pipe, {"num_inference_steps": STEPS, "output_type": "pt", **given}


def parts(pipe: d.DiffusionPipeline) -> list[torch.nn.Module]:
    return [part for part in pipe.components.values() if isinstance(part, torch.nn.Module)]


def drawn(pipe: d.DiffusionPipeline, given: dict[str, Any]) -> torch.Tensor:
    """What the pipeline makes; the noise comes from the CPU's generator."""
    where = {k: v.to(pipe.device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    out = pipe(**where, generator=torch.Generator("cpu").manual_seed(0), return_dict=False)[0]
    return torch.as_tensor(out[0] if isinstance(out, list) else out).cpu()
