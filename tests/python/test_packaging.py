"""Distribution names, versions and the entry point."""

from importlib import metadata

import torch_tpu


def test_the_distribution_and_its_companion_resolve():
    assert metadata.version("torch-tpu-rs") == torch_tpu.__version__
    for name in ("torch-tpu", "torch_tpu"):
        assert metadata.version(name) == "0.2.0+rs"


def test_the_companion_holds_no_code():
    files = [str(file) for file in metadata.files("torch-tpu")]
    assert files and all(".dist-info/" in file for file in files)


def test_the_entry_point():
    (point,) = [p for p in metadata.entry_points(group="torch.backends") if p.name == "torch_tpu"]
    assert point.value == "torch_tpu._loader:load"
    assert point.load() is torch_tpu.load


def test_torch_is_required_within_bounds():
    (torch_requirement,) = [r for r in metadata.requires("torch-tpu-rs") if r.startswith("torch")]
    assert ">=2.11" in torch_requirement and "<2.16" in torch_requirement
