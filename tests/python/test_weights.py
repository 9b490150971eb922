"""Real weights of several families: what they say of real data is right, and the CPU says the same."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import ROOT

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights are installed; nothing is downloaded
sys.path.insert(0, str(ROOT / "examples"))


def folder(package: str) -> Path:
    return Path(find_spec(package).origin).parent


@pytest.fixture
def no_fallback():
    """The device does all of it."""
    before = dict(torch.tpu.fallbacks())
    yield
    assert torch.tpu.fallbacks() == before


@pytest.mark.slow
def test_whisper_transcribes_a_telephone_call(no_fallback):
    import whisper

    want, got = whisper.run("cpu"), whisper.run("tpu")
    assert got.tokens == want.tokens
    assert got.errors == want.errors < 0.4  # a hard recording for 38 million parameters
    assert "family" in got.text or len(got.text) > 100
    assert whisper.run("tpu", cache_implementation="static").tokens == want.tokens


@pytest.mark.parametrize("photo, place", [("grace_hopper", 652), ("chelsea", range(281, 286)), ("coffee", range(504, 969))])
def test_efficientnet_knows_what_is_in_a_photo(photo, place, no_fallback):
    pass


SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")
REACTION = "CC(=O)O.OCC>>CC(=O)OCC"


def reaction(vocabulary: Path) -> torch.Tensor:
    names = vocabulary.read_text().split()
    places = [names.index(name) for name in ["[CLS]", *SMILES.findall(REACTION), "[SEP]"]]
    return torch.tensor([places])


@pytest.mark.parametrize(
    "package, weights, kind",
    [
        ("rxnfp", "models/transformers/bert_pretrained", "BertForMaskedLM"),
        ("rxnmapper", "models/transformers/albert_heads_8_uspto_all_1310k", "AlbertForMaskedLM"),
    ],
)
def test_masked_atoms_of_a_reaction_are_found(package, weights, kind, no_fallback):
    """Chemistry as language: each atom, hidden in turn, is guessed from the rest."""
    import transformers

    where = folder(package) / weights
    ids = reaction(where / "vocab.txt")
    mask = (where / "vocab.txt").read_text().split().index("[MASK]")
    hidden = ids.repeat(ids.shape[1] - 2, 1)
    each = torch.arange(len(hidden))
    hidden[each, each + 1] = mask
    model = getattr(transformers, kind).from_pretrained(where).eval()
    with torch.no_grad():
        want = model(hidden).logits
        got = model.to("tpu")(hidden.to("tpu")).logits.cpu()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    found = (got[each, each + 1].argmax(1) == ids[0, 1:-1]).float().mean().item()
    assert found > 0.8, f"{found:.0%} of the atoms were guessed"


def speech() -> torch.Tensor:
    import whisper

    return torch.from_numpy(whisper.recording()[0].copy())


def test_silero_finds_speech_with_torchscript(no_fallback):
    """The TorchScript file, loaded onto the device: an STFT as a convolution, convolutions, an LSTM cell with a state."""
    from silero_vad import get_speech_timestamps, load_silero_vad

    model = load_silero_vad()
    want = get_speech_timestamps(speech(), model)
    got = get_speech_timestamps(speech().to("tpu"), model.to("tpu"))
    assert got == want
    assert sum(piece["end"] - piece["start"] for piece in got) > 16000 * 15, "most of the call is speech"


def test_a_voice_is_nearer_to_itself(no_fallback):
    """Resemblyzer's speaker encoder, three LSTM layers, on pieces of one call by two people."""
    pass
