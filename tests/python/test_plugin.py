"""The choice of a plugin and the settings the core starts with."""

import json

import pytest
from torch_tpu import _hardware, _plugin


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ("PJRT_PLUGIN", "CACHE_DIR", "CACHE_SIZE", "MEMORY_LIMIT"):
        monkeypatch.delenv(f"TORCH_TPU_{name}", raising=False)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    _plugin._find.cache_clear()
    yield
    _plugin._find.cache_clear()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Makes these packages the only ones installed; gives their folders."""

    def install(**packages: str):
        for package, library in packages.items():
            (tmp_path / package).mkdir()
            (tmp_path / package / library).touch()
        folders = {package: tmp_path / package for package in packages}
        monkeypatch.setattr(_plugin, "_folder", folders.get)
        return folders

    return install


def test_the_users_choice_comes_first(monkeypatch, tmp_path):
    library = tmp_path / "my_plugin.so"
    library.touch()
    monkeypatch.setenv("TORCH_TPU_PJRT_PLUGIN", str(library))
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/elsewhere/libtpu.so")
    assert _plugin.find().path == library


def test_then_the_tpu_library_path(monkeypatch, tmp_path):
    library = tmp_path / "libtpu.so"
    library.touch()
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(library))
    assert (_plugin.find().path, _plugin.find().kind) == (library, "tpu")


def test_then_libtpu_where_there_is_hardware(monkeypatch, installed):
    folders = installed(libtpu="libtpu.so", fastatomstruct_xla_cpu="libpjrt_cpu.so")
    monkeypatch.setattr(_hardware, "chips", lambda: ["TPU v6e"])
    assert _plugin.find().path == folders["libtpu"] / "libtpu.so"


def test_libtpu_without_hardware_is_left_alone(monkeypatch, installed):
    folders = installed(libtpu="libtpu.so", fastatomstruct_xla_cpu="libpjrt_cpu.so")
    monkeypatch.setattr(_hardware, "chips", lambda: [])
    assert _plugin.find().path == folders["fastatomstruct_xla_cpu"] / "libpjrt_cpu.so"


@pytest.mark.parametrize("name", ["cpu", "lammps_jax_pjrt_cpu", "lammps-jax-pjrt-cpu"])
def test_plugins_have_names(monkeypatch, installed, name):
    folders = installed(lammps_jax_pjrt_cpu="pjrt_c_api_cpu_plugin.so")
    monkeypatch.setenv("TORCH_TPU_PJRT_PLUGIN", name)
    assert _plugin.find().path == folders["lammps_jax_pjrt_cpu"] / "pjrt_c_api_cpu_plugin.so"


def test_a_package_we_do_not_know_is_searched(monkeypatch, installed):
    folders = installed(some_cuda_plugin="xla_cuda_plugin.so")
    (folders["some_cuda_plugin"] / "a_kernel.so").touch()
    monkeypatch.setenv("TORCH_TPU_PJRT_PLUGIN", "some-cuda-plugin")
    assert (_plugin.find().path.name, _plugin.find().kind) == ("xla_cuda_plugin.so", "gpu")


def test_nothing_installed_says_what_to_install(monkeypatch, installed):
    installed()
    monkeypatch.setattr(_hardware, "chips", lambda: [])
    with pytest.raises(_plugin.PluginError, match="pip install fastatomstruct-xla-cpu"):
        _plugin.find()
    assert not _plugin.available()


def test_hardware_without_libtpu_says_so(monkeypatch, installed):
    installed(fastatomstruct_xla_cpu="libpjrt_cpu.so")
    monkeypatch.setattr(_hardware, "chips", lambda: ["TPU v5e"])
    with pytest.raises(_plugin.PluginError, match="TPU v5e hardware but no libtpu"):
        _plugin.find()


@pytest.mark.parametrize("name", ["no_such_package", "/nowhere/plugin.so"])
def test_a_wrong_choice_is_not_replaced_by_another(monkeypatch, name):
    monkeypatch.setenv("TORCH_TPU_PJRT_PLUGIN", name)
    with pytest.raises(_plugin.PluginError, match=f"TORCH_TPU_PJRT_PLUGIN={name}"):
        _plugin.find()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1024", 1024),
        ("2G", 2 << 30),
        ("1.5g", 3 << 29),
        ("512 MiB", 512 << 20),
        ("8kb", 8192),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text, expected):
    assert _plugin.parse_bytes(text, "NAME") == expected


@pytest.mark.parametrize("text", ["", "-1", "G", "two", "1X", "1G1"])
def test_wrong_sizes_name_the_variable(text):
    with pytest.raises(ValueError, match="NAME="):
        _plugin.parse_bytes(text, "NAME")


def test_the_cache_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert _plugin.cache_dir() == tmp_path / ".cache/torch_tpu"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert _plugin.cache_dir() == tmp_path / "xdg/torch_tpu"
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path / "plans"))
    assert _plugin.cache_dir() == tmp_path / "plans"


def test_the_core_is_told_everything(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCH_TPU_CACHE_SIZE", "1G")
    monkeypatch.setenv("TORCH_TPU_MEMORY_LIMIT", "64M")
    config = json.loads(_plugin.config_json())
    assert set(config) == {"plugin", "kind", "cache_dir", "cache_bytes", "memory_limit", "options", "torch"}
    assert (config["cache_dir"], config["cache_bytes"]) == (str(tmp_path), 1 << 30)
    assert config["memory_limit"] == 64 << 20


def test_a_cache_of_no_size_is_off(monkeypatch):
    monkeypatch.setenv("TORCH_TPU_CACHE_SIZE", "0")
    config = json.loads(_plugin.config_json())
    assert (config["cache_dir"], config["cache_bytes"]) == (None, 0)


# ------------------------------------------------------------------ hardware


def machine(root, *devices: tuple[str, str], node: str | None):
    for i, (vendor, device) in enumerate(devices):
        folder = root / f"sys/bus/pci/devices/0000:00:0{i}.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(device + "\n")
    (root / "dev/vfio").mkdir(parents=True)
    if node:
        (root / "dev" / node).touch()
    return root


@pytest.mark.parametrize("node", ["accel0", "vfio/0"])
def test_chips_are_read_from_sysfs(tmp_path, node):
    root = machine(tmp_path, ("0x1ae0", "0x006f"), ("0x1ae0", "0x0042"), ("0x8086", "0x006f"), node=node)
    assert _hardware.chips(root) == ["TPU v6e"]


def test_a_google_network_card_is_no_tpu(tmp_path):
    assert _hardware.chips(machine(tmp_path, ("0x1ae0", "0x0042"), node="vfio/0")) == []


def test_a_chip_nobody_may_open_does_not_count(tmp_path):
    assert _hardware.chips(machine(tmp_path, ("0x1ae0", "0x006f"), node=None)) == []


@pytest.mark.parametrize(
    ("kind", "platform", "name"),
    [
        ("TPU v5 lite", "tpu", "TPU v5e"),
        ("TPU v4", "tpu", "TPU v4"),
        ("TPU7x", "tpu", "TPU v7"),
        ("cpu", "cpu", "cpu (PJRT)"),
    ],
)
def test_names(kind, platform, name):
    assert _hardware.display_name(kind, platform) == name
