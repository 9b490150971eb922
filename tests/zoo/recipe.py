"""A tiny model of every architecture in transformers: its own configuration with small numbers, its own kind of input.

Nothing here knows an architecture: numbers are made small by the names that configurations share, inputs are found by
the names of `forward`'s arguments, and of several ways to feed a model the first that runs on the CPU is taken.
"""

import copy
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 120
BATCH, LENGTH, TARGET = 2, 10, 6

# Most specific first: what is generated from, then what has a loss, then the bare model.
HEADS = (
    "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM", "CTC",
    "IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION", "SEMANTIC_SEGMENTATION", "UNIVERSAL_SEGMENTATION",
    "INSTANCE_SEGMENTATION", "OBJECT_DETECTION", "ZERO_SHOT_OBJECT_DETECTION", "DEPTH_ESTIMATION",
    "AUDIO_CLASSIFICATION",
    "IMAGE_TO_IMAGE", "IMAGE_MATTING", "KEYPOINT_DETECTION", "KEYPOINT_MATCHING", "MASK_GENERATION", "POSE_ESTIMATION",
    "TEXT_TO_WAVEFORM", "TEXT_TO_SPECTROGRAM", "TIME_SERIES_PREDICTION", "SEQUENCE_CLASSIFICATION",
    "TABLE_QUESTION_ANSWERING",
    "VISUAL_QUESTION_ANSWERING", "ZERO_SHOT_IMAGE_CLASSIFICATION", "RETRIEVAL", "PRETRAINING", "MASKED_IMAGE_MODELING",
    "BACKBONE", "TEXT_ENCODING",
)  # fmt: skip

SMALL: dict[str, Any] = {
    # widths
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "emb_dim": 32,
    "encoder_hidden_size": 32,
    "decoder_hidden_size": 32, "hidden_dim": 32, "model_dim": 32, "projection_dim": 16, "embedding_size": 32,
    "d_embed": 32, "word_embed_proj_dim": 32, "d_kv": 8, "head_dim": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "qk_head_dim": 16, "v_head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 16, "attention_head_size": 8,
    "mamba_d_head": 8, "mamba_d_state": 8, "state_size": 8, "mamba_n_heads": 8, "d_inner": 64, "time_step_rank": 4,
    # layers
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_encoder_layers": 2, "num_decoder_layers": 2, "depth": 2, "encoder_num_hidden_layers": 2, "num_block": 2,
    "decoder_num_hidden_layers": 2, "num_hidden_groups": 1, "n_encoder_layers": 2, "prenet_layers": 2, "num_blocks": 2,
    # heads
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2, "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 4, "attention_heads": 4, "num_query_heads": 4,
    # inner widths
    "intermediate_size": 64, "ffn_dim": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_ff": 64, "n_inner": 64,
    "ffn_hidden_size": 64, "inner_dim": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "expert_ffn_hidden_size": 32, "feed_forward_size": 64, "encoder_intermediate_size": 64, "mlp_dim": 64, "dim_ff": 64,
    "decoder_intermediate_size": 64, "dim_feedforward": 64, "encoder_feed_forward_dim": 64, "intermediate_dim": 64,
    # experts
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "moe_topk": 2, "moe_k": 2, "n_shared_experts": 1,
    # lengths and words
    "vocab_size": VOCABULARY, "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY, "max_position_embeddings": 64,
    "n_positions": 64, "n_ctx": 64, "max_source_positions": 64, "max_target_positions": 64, "type_vocab_size": 2,
    "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "sliding_window": 8, "window_size": 4,
    "attention_window": 4, "block_size": 4, "decoder_vocab_size": VOCABULARY, "entity_vocab_size": 20, "num_labels": 3,
    # pictures and sound
    "image_size": 32, "patch_size": 8, "num_mel_bins": 16, "num_frames": 4, "frames": 4, "num_channels": 3,
    "tubelet_size": 2,
    "temporal_patch_size": 2, "crop_size": 32, "num_queries": 6, "max_length": 20,
}  # fmt: skip

# What is a width by its name: all are divided by one factor where small numbers of our choice do not fit together.
WIDTH = re.compile(
    r"size|dim|width|channels|embd|d_model|d_ff|d_kv|rank|inner|hidden|filters|units|features|d_state|d_head"
)
NO_WIDTH = re.compile(
    r"vocab|image|patch|kernel|window|batch|stride|pool|crop|temporal|spatial|group|type|chunk|num_|n_|grid|block"
)
FACTOR = 8
LARGEST = 120_000_000
"""Parameters that a tiny model may have."""

# How a configuration is made small, and the attention; the first that gives a model which runs on the CPU is taken.
WAYS = (("small", "sdpa"), ("divided", "sdpa"), ("divided", "eager"), ("small", "eager"), ("shallow", "eager"))


def kinds() -> dict[str, type[PreTrainedModel]]:
    """Every model type that an auto class knows, and the class of it that is asked."""
    import transformers

    found: dict[str, type[PreTrainedModel]] = {}
    tables = [getattr(auto, f"MODEL_FOR_{head}_MAPPING_NAMES") for head in HEADS] + [auto.MODEL_MAPPING_NAMES]
    for kind in CONFIG_MAPPING:
        names = next((table[kind] for table in tables if kind in table), None)
        name = names[0] if isinstance(names, tuple | list) else names
        if name is not None and isinstance(getattr(transformers, name, None), type):
            found[kind] = getattr(transformers, name)
    return found


def shrink(config: PreTrainedConfig, how: str) -> PreTrainedConfig:
    """The same structure with small numbers: ``small`` ones of our choice, all widths ``divided`` by one factor, or the
    configuration's own widths in a ``shallow`` model."""
    for name, value in list(vars(config).items()):
        new = _smaller(name, value, how)
        if new is not value:
            _set(config, name, new)
    for rope in (getattr(config, "rope_parameters", None), getattr(config, "rope_scaling", None)):
        if isinstance(rope, dict) and "mrope_section" in rope:
            small = [2, 1, 1] if how == "small" else [n // FACTOR for n in rope["mrope_section"]]
            rope["mrope_section"] = rope["mrope_section"] if how == "shallow" else small
    for name, value in (("use_cache", True), ("return_dict", True)):
        if hasattr(config, name):
            _set(config, name, value)
    return config


def _smaller(name: str, value: Any, how: str) -> Any:
    if isinstance(value, PreTrainedConfig):
        return shrink(value, how)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if name.endswith("_token_id"):
        if whole and value >= VOCABULARY:
            return VOCABULARY - 1 - sum(map(ord, name)) % 40
        return [v % VOCABULARY for v in value] if isinstance(value, list) else value
    if name in ("layer_types", "mlp_layer_types", "block_types", "layers_block_type") and isinstance(value, list):
        return _spread(value, 2)
    width = bool(WIDTH.search(name) and not NO_WIDTH.search(name))
    if how == "small":
        if name == "image_size" and isinstance(value, list | tuple):
            return type(value)(32 for _ in value)
        if whole and name in SMALL and (name in ("sliding_window", "max_length") or value > SMALL[name]):
            return SMALL[name]
        return value
    if how == "divided" and width:
        if whole and value >= 4 * FACTOR and value % FACTOR == 0:
            return value // FACTOR
        numbers = isinstance(value, list | tuple) and all(isinstance(v, int) for v in value)
        if numbers and all(v >= 2 * FACTOR and v % FACTOR == 0 for v in value):
            return type(value)(v // FACTOR for v in value)
        return value
    kept = width or name in ("image_size", "patch_size", "num_channels", "num_mel_bins") or "head" in name
    return SMALL[name] if whole and not kept and name in SMALL and value > SMALL[name] else value


def _set(config: PreTrainedConfig, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except Exception:  # a property that follows from others
        return


def _spread(value: list[Any], count: int) -> list[Any]:
    """So many of the list, each kind of layer among them if there is room."""
    different = list(dict.fromkeys(map(str, value)))
    kinds = [next(v for v in value if str(v) == d) for d in different]
    return (kinds + value)[:count] if len(kinds) > 1 else value[:count]


def configuration(kind: str, model: type[PreTrainedModel], how: str, attention: str) -> PreTrainedConfig:
    config = CONFIG_MAPPING[kind]()
    wanted = model.config_class
    if wanted is not None and not isinstance(config, wanted):
        config = wanted()
    config = shrink(config, how)
    config._attn_implementation = attention
    return config


def tiny(kind: str, cls: type[PreTrainedModel]) -> Iterator[PreTrainedModel | Exception]:
    """Models to try, or why there is none."""
    for how, attention in WAYS:
        try:
            config = configuration(kind, cls, how, attention)
            with torch.device("meta"):
                count = sum(p.numel() for p in cls(copy.deepcopy(config)).parameters())
            if count > LARGEST:
                raise ValueError(f"{count:,} parameters, {how}")
            torch.manual_seed(0)
            yield cls(config)
        except Exception as error:
            yield error


# ---------------------------------------------------------------- inputs


def _first(config: PreTrainedConfig, *names: str, default: Any = None) -> Any:
    """The first of these that the configuration or one of its parts has."""
    parts = [config, *(v for v in vars(config).values() if isinstance(v, PreTrainedConfig))]
    for part in parts:
        for name in names:
            if (value := getattr(part, name, None)) is not None:
                return value
    return default


def _words(length: int, low: int = 3) -> torch.Tensor:
    return torch.randint(low, 70, (BATCH, length))


def _picture(config: PreTrainedConfig, size: int | None) -> torch.Tensor:
    side = size or _first(config, "image_size", "img_size", default=32)
    height, width = side if isinstance(side, list | tuple) else (side, side)
    return torch.rand(BATCH, _first(config, "num_channels", "in_channels", "in_chans", default=3), height, width)


def ways(model: PreTrainedModel) -> Iterator[dict[str, Any]]:
    """Inputs to try, the likeliest first."""
    config, takes = model.config, inspect.signature(model.forward).parameters
    decoder = {"decoder_input_ids": _words(TARGET)} if "decoder_input_ids" in takes else {}
    if model.main_input_name == "input_values" or "input_values" in takes:
        mels, frames = _first(config, "num_mel_bins", default=16), _first(config, "max_length", default=20)
        for shape in ((BATCH, 4000), (BATCH, frames, mels), (BATCH, 1, 4000), (BATCH, 2, 4000)):
            yield {"input_values": torch.randn(shape), **decoder}
    if "input_features" in takes:
        mels = _first(config, "num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim", default=16)
        for shape in ((BATCH, mels, 128), (BATCH, 64, mels), (BATCH, 1, 64, mels), (BATCH, 64, 160)):
            ones = {"attention_mask": torch.ones(BATCH, 64, dtype=torch.long)} if shape[1] == 64 else {}
            yield {"input_features": torch.randn(shape), **decoder}
            if "attention_mask" in takes and ones:
                yield {"input_features": torch.randn(shape), **ones, **decoder}
    if "pixel_values_videos" in takes:
        for frames in (_first(config, "num_frames", "frames_per_clip", default=4), 4, 16):
            yield {"pixel_values_videos": torch.rand(BATCH, frames, 3, *_picture(config, None).shape[2:])}
    if "pixel_values" in takes:
        text = {"input_ids": _words(LENGTH)} if "input_ids" in takes else {}
        for size in (None, 32, 64, 128, 224):
            picture = {"pixel_values": _picture(config, size)}
            if "input_ids" not in takes or takes["pixel_values"].default is inspect.Parameter.empty:
                yield {**picture, **text, **decoder}
            elif model.main_input_name == "pixel_values" or size is None:
                yield {**picture, **text, **decoder}
                yield {**picture, **decoder}
        for frames in (4, 8, 16):
            yield {"pixel_values": torch.rand(BATCH, frames, 3, *_picture(config, None).shape[2:])}
    if "grid_thw" in takes or "image_grid_thw" in takes:
        # patches in rows, and how they lie in the picture
        patch, time = _first(config, "patch_size", default=8), _first(config, "temporal_patch_size", default=1)
        channels = _first(config, "in_channels", "in_chans", "num_channels", default=3)
        for width in (channels * time * patch * patch, channels * patch * patch):
            rows, grid = torch.rand(16, width), torch.tensor([[1, 4, 4]])
            for name in ("hidden_states", "pixel_values"):
                if name in takes and "grid_thw" in takes:
                    yield {name: rows, "grid_thw": grid}
    if "input_ids" in takes:
        mask = {"attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long)} if "attention_mask" in takes else {}
        for length in (LENGTH, 16, 64):
            more = {"attention_mask": torch.ones(BATCH, length, dtype=torch.long)} if mask else {}
            yield {"input_ids": _words(length), **more, **decoder}
            yield {"input_ids": _words(length), **more}
        boxes = torch.tensor([1, 2, 5, 7]).expand(BATCH, LENGTH, 4).contiguous()
        yield {"input_ids": _words(LENGTH), "bbox": boxes, **mask, **decoder}
        yield {"input_ids": _words(LENGTH), "bbox": boxes, "pixel_values": _picture(config, None), **mask}
    past = _first(config, "context_length", "input_size", "prediction_length", default=32)
    for shape in ((BATCH, past), (BATCH, past, _first(config, "num_input_channels", default=1)), (BATCH, 2 * past + 8)):
        if "past_values" in takes:
            yield {"past_values": torch.rand(shape)}
            if "past_time_features" in takes:
                features = torch.rand(*shape[:2], _first(config, "num_time_features", default=1))
                yield {"past_values": torch.rand(shape), "past_time_features": features,
                       "past_observed_mask": torch.ones(shape)}  # fmt: skip
    if "hidden_states" in takes:
        yield {"hidden_states": torch.rand(BATCH, LENGTH, 32)}
    if "inputs" in takes:
        yield {"inputs": _words(LENGTH)}
        yield {"inputs": torch.rand(BATCH, LENGTH, _first(config, "d_model", default=32))}
