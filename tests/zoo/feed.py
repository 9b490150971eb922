"""What a tiny model is fed with, by the names of `forward`'s arguments."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

BATCH, LENGTH, TARGET = 2, 10, 6

PAIRED = (
    "input_ids", "attention_mask", "bbox", "visual_feats", "visual_pos", "flattened_patches", "decoder_input_ids",
    "states", "actions", "rewards", "returns_to_go", "timesteps", "task_inputs", "input_features_mask",
    "past_values", "past_time_features", "past_observed_mask", "future_values", "future_time_features",
    "target_sizes", "pixel_attention_mask", "spatial_shapes", "image_grid_thw", "grid_thw",
)  # fmt: skip
"""Arguments that are optional by their default and needed together."""

SHAPES = ("plain", "pairs", "video", "patches", "bands", "sound")


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
    needed = {
        n for n, p in takes.items() if p.default is inspect.Parameter.empty and n not in ("self", "kwargs", "args")
    }
    for optional in ((), ("input_ids",), PAIRED):
        names = [n for n in takes if n in needed or n in optional]
        for shape in SHAPES:
            given = {n: _supply(n, config, shape) for n in names}
            if given and all(v is not None for v in given.values()):
                yield given
    books = _first(config, "num_codebooks", default=4)
    if "input_ids" in takes:
        yield {"input_ids": torch.randint(3, 60, (BATCH * books, LENGTH))}
        yield {"input_ids": torch.randint(3, 60, (BATCH, LENGTH, books))}


def _supply(name: str, config: PreTrainedConfig, shape: str) -> torch.Tensor | None:
    """A value for an argument of this name; the shape says how pictures and sound come."""
    side = {"plain": None, "pairs": 64, "video": 32}.get(shape)
    if name.endswith("input_ids") or name == "task_inputs":
        return _words(LENGTH)
    if name.endswith("attention_mask") and name != "pixel_attention_mask":
        return torch.ones(BATCH, LENGTH, dtype=torch.long)
    if name in ("pixel_values", "pixel_values_videos"):
        picture = _picture(config, side)
        if shape == "pairs":
            return picture[:, None].repeat(1, 2, 1, 1, 1)
        if shape == "video" or name == "pixel_values_videos":
            return picture[:, None].repeat(1, _first(config, "num_frames", default=4), 1, 1, 1)
        patch, channels = (
            _first(config, "patch_size", default=8),
            _first(config, "num_channels", "in_channels", default=3),
        )
        if shape == "patches":
            return torch.rand(16, channels * _first(config, "temporal_patch_size", default=1) * patch * patch)
        return torch.rand(16, channels, patch, patch) if shape == "bands" else picture
    if name in ("grid_thw", "image_grid_thw"):
        return torch.tensor([[1, 4, 4]])
    if name == "merge_sizes":
        return torch.tensor([2])
    if name == "grid_hws":
        return torch.tensor([[4, 4]])
    if name == "pixel_position_ids":
        return torch.arange(16).expand(2, 16).T.expand(BATCH, 16, 2).contiguous()
    if name == "input_values":
        return torch.randn(BATCH, 1, 3840) if shape in ("plain", "sound") else torch.randn(BATCH, 3840)
    if name == "input_features":
        mels = _first(config, "num_mel_bins", "feature_size", "input_dim", "n_mels", default=16)
        return torch.randn(BATCH, mels, 64) if shape == "plain" else torch.randn(BATCH, 64, mels)
    if name in ("input_features_mask", "feature_mask"):
        return torch.ones(BATCH, 64, dtype=torch.long)
    if name == "bbox":
        corners = 4 if shape == "plain" else 8
        return (
            torch.rand(BATCH, LENGTH, corners)
            if hasattr(config, "dim_bbox")
            else torch.randint(0, 9, (BATCH, LENGTH, 4)).sort(-1).values
        )
    if name == "visual_feats":
        return torch.rand(BATCH, 5, _first(config, "visual_feat_dim", default=32))
    if name == "visual_pos":
        return torch.rand(BATCH, 5, 4)
    if name == "flattened_patches":
        patch = _first(config, "patch_size", default=8)
        where = torch.arange(1, 9).view(1, 8, 1).expand(BATCH, 8, 2)
        width = _first(config, "patch_embed_hidden_size", default=3 * patch * patch)
        return torch.cat([where, torch.rand(BATCH, 8, width)], -1)
    if name == "decoder_input_ids":
        return _words(TARGET)
    if name == "states":
        return torch.rand(BATCH, LENGTH, _first(config, "state_dim", default=17))
    if name == "state":
        return torch.rand(BATCH, _first(config, "max_state_dim", default=32))
    if name == "actions":
        return torch.rand(BATCH, LENGTH, _first(config, "act_dim", "action_dim", default=4))
    if name in ("rewards", "returns_to_go"):
        return torch.rand(BATCH, LENGTH, 1)
    if name == "timesteps":
        return torch.arange(LENGTH).expand(BATCH, LENGTH)
    past = _first(config, "context_length", default=8) + max(_first(config, "lags_sequence", default=[0]))
    future, more = _first(config, "prediction_length", default=4), _first(config, "num_time_features", default=0)
    if name in ("past_values", "past_observed_mask"):
        return torch.rand(BATCH, past) if name == "past_values" else torch.ones(BATCH, past)
    if name == "future_values":
        return torch.rand(BATCH, future)
    if name in ("past_time_features", "future_time_features"):
        return torch.rand(BATCH, past if name.startswith("past") else future, more)
    return None
