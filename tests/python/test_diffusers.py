"""diffusers as it is: pipelines, eager and compiled, and schedulers, beside the CPU."""

import inspect
import os
import sys

import pytest
import torch
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/zoo"))
diffusion = pytest.importorskip("diffusion")
COMPILED = ("stable_diffusion", "flux")
"""In every run; `TORCH_TPU_ZOO=1` compiles the rest too."""


@pytest.mark.parametrize("family", diffusion.FAMILIES)
def test_two_steps_of_a_pipeline(family, monkeypatch):
    monkeypatch.setenv("TORCH_TPU_FALLBACK", "error")
    pipe, given = diffusion.made(family)
    want = diffusion.drawn(pipe, given)
    assert want.isfinite().all() and want.std() > 1e-3
    pipe.to("tpu")
    assert pipe.device.type == "tpu"
    # Pictures lie in 0…1; two steps and the decoder add some 20 roundings to a forward's.
    near = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(diffusion.drawn(pipe, given), want, **near)
    if family in COMPILED or os.environ.get("TORCH_TPU_ZOO"):
        for part in diffusion.parts(pipe):
            part.compile()
        torch.testing.assert_close(diffusion.drawn(pipe, given), want, **near)


SCHEDULERS = [
    "CMStochasticIterativeScheduler", "DDIMInverseScheduler", "DDIMParallelScheduler", "DDIMScheduler",
    "DDPMParallelScheduler", "DDPMScheduler", "DEISMultistepScheduler", "DPMSolverMultistepInverseScheduler",
    "DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler", "EDMDPMSolverMultistepScheduler",
    "EDMEulerScheduler",
    "EulerAncestralDiscreteScheduler", "EulerDiscreteScheduler", "FlowMatchEulerDiscreteScheduler",
    "FlowMatchHeunDiscreteScheduler", "HeunDiscreteScheduler", "IPNDMScheduler", "KDPM2AncestralDiscreteScheduler",
    "KDPM2DiscreteScheduler", "LCMScheduler", "LMSDiscreteScheduler", "PNDMScheduler", "SASolverScheduler",
    "TCDScheduler", "UnCLIPScheduler", "UniPCMultistepScheduler",
]  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULERS)
def test_steps_of_a_scheduler(name, monkeypatch):
    import diffusers

    monkeypatch.setenv("TORCH_TPU_FALLBACK", "error")

    def run(device):
        scheduler = getattr(diffusers, name)()
        scheduler.set_timesteps(5, device=device)
        x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0)).to(device)
        draws = "generator" in inspect.signature(scheduler.step).parameters
        more = {"generator": torch.Generator("cpu").manual_seed(1)} if draws else {}
        for t in scheduler.timesteps[:5]:
            scaled = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
            x = scheduler.step((scaled * 0.3).sin(), t, x, **more).prev_sample
        assert x.device.type == device
        return x.cpu()

    torch.testing.assert_close(run("tpu"), run("cpu"), rtol=1e-5, atol=1e-5)
