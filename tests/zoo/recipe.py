"""A tiny model of every architecture in transformers: its own configuration with small numbers, its own kind of input.

Nothing here knows an architecture: numbers are made small by the names that configurations share; inputs are found by
the names of `forward`'s arguments (`feed.py`), and of several ways to make and feed a model the first that runs on the
CPU is taken.
"""

import copy
import re
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 120

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
    r"vocab|image|patch|kernel|window|batch|stride|pool|crop|temporal|spatial|group|type|chunk|^num_|^n_|grid|block"
)
FACTOR = 8
LARGEST = 120_000_000
"""Parameters that a tiny model may have."""

# Small numbers for what a configuration leaves open or derives from others.
FILLED: dict[str, Any] = {
    "head_dim": 8, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "rope_theta": 10000.0, "attn_layer_indices": [1], "attn_layer_offset": 1, "attn_layer_period": 2,
    "expert_layer_offset": 1, "expert_layer_period": 2, "prediction_length": 4, "context_length": 8,
    "lags_sequence": [1, 2],
    "rotary_dim": 8, "mask_token_id": 4, "mlp_layer_types": None, "num_kv_shared_layers": 0,
}  # fmt: skip

# How a configuration is made small, and the attention; the first that gives a model which runs on the CPU is taken.
WAYS = (
    ("small", "sdpa"), ("divided", "sdpa"), ("divided", "eager"), ("small", "eager"),
    ("filled", "eager"), ("built", "eager"), ("narrow", "eager"), ("shallow", "eager"),
)  # fmt: skip
BUILT = ("built", "narrow")
"""Made by the constructor from small numbers, which derives the rest; the others get small numbers afterwards."""


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
    _sections(config)
    _heads(config)
    for name, value in (("use_cache", True), ("return_dict", True)):
        if hasattr(config, name):
            _set(config, name, value)
    return config


def _sections(config: PreTrainedConfig) -> None:
    """Rotary embeddings of several axes share the half of a head's width between them."""
    heads, width = (getattr(config, name, None) for name in ("num_attention_heads", "hidden_size"))
    head, rope = getattr(config, "head_dim", None), getattr(config, "rope_parameters", None)
    if head is None and isinstance(heads, int) and isinstance(width, int) and heads:
        head = width // heads
    if isinstance(rope, dict) and isinstance(head, int) and head >= 4:
        half, own = int(head * rope.get("partial_rotary_factor", 1.0)) // 2, rope.get("mrope_section") or [0, 1, 1]
        quarter = half // 4
        rest = half - 2 * quarter
        rope["mrope_section"] = [quarter, quarter, rest] if own[0] == own[1] else [rest, quarter, quarter]


def _heads(config: PreTrainedConfig) -> None:
    """As many heads as divide the width, where what was made small does not fit together."""
    width = next(
        (w for n in ("hidden_size", "d_model", "embed_dim") if isinstance(w := getattr(config, n, 0), int) and w), 0
    )
    for name, value in list(vars(config).items()):
        if name.endswith("attention_heads") and isinstance(value, int) and value and width and width % value:
            _set(config, name, next(n for n in (4, 2, 1) if width % n == 0))


def built(cls: type[PreTrainedConfig], how: str) -> PreTrainedConfig:
    """What the constructor makes of small numbers."""
    return cls(**_changes(cls(), how))


def _changes(config: PreTrainedConfig, how: str) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name.startswith("_"):
            continue
        if isinstance(value, PreTrainedConfig):
            changes[name] = {"model_type": value.model_type, **_changes(value, how)}
        elif name not in ("layer_types", "mlp_layer_types", "layers_block_type", "block_types"):
            new = _smaller(name, value, how)
            if new is not value:
                changes[name] = new
    return changes


def _smaller(name: str, value: Any, how: str) -> Any:
    if isinstance(value, PreTrainedConfig):
        return shrink(value, how)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if how in ("filled", "built") and name in FILLED and (value is None or how == "built" or (whole and value > 4)):
        return FILLED[name]
    if name.endswith("_token_id"):
        if whole and value >= VOCABULARY:
            return VOCABULARY - 1 - sum(map(ord, name)) % 40
        return [v % VOCABULARY for v in value] if isinstance(value, list) else value
    if name in ("layer_types", "mlp_layer_types", "block_types", "layers_block_type") and isinstance(value, list):
        return _spread(value, 2)
    width = bool(WIDTH.search(name) and not NO_WIDTH.search(name))
    if how == "narrow" and not width:
        return SMALL[name] if whole and "vocab" in name and name in SMALL else value
    if how in ("small", "filled", "built"):
        if name == "image_size" and isinstance(value, list | tuple):
            return type(value)(32 for _ in value)
        if whole and name in SMALL and (name in ("sliding_window", "max_length") or value > SMALL[name]):
            return SMALL[name]
        return value
    if how in ("divided", "narrow") and width:
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
    make = CONFIG_MAPPING[kind]
    if model.config_class is not None and not issubclass(make, model.config_class):
        make = model.config_class
    if how in BUILT:
        config = built(make, how)
        _sections(config)
        for part in vars(config).values():
            if isinstance(part, PreTrainedConfig):
                _sections(part)
    else:
        config = shrink(make(), how)
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
