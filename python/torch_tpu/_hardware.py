"""What TPU hardware this machine has, read from /dev and sysfs alone: nothing is opened, nothing is started."""

from pathlib import Path

GOOGLE = "0x1ae0"
# Google's network cards share the vendor id, so the device id decides.
CHIPS = {
    "0x0027": "TPU v3",
    "0x005e": "TPU v4",
    "0x0062": "TPU v5p",
    "0x0063": "TPU v5e",
    "0x006f": "TPU v6e",
    "0x0076": "TPU v7",
}
# PJRT's device kind -> the name TPU software agrees on.
KINDS = {
    "TPU v5 lite": "TPU v5e",
    "TPU v5": "TPU v5p",
    "TPU v6 lite": "TPU v6e",
    "TPU7x": "TPU v7",
    "TPU v7x": "TPU v7",
}


def chips(root: Path = Path("/")) -> list[str]:
    """Names of the TPU chips on this machine that a process could open."""
    if not _device_nodes(root):
        return []
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _read(device / "vendor") == GOOGLE and (name := CHIPS.get(_read(device / "device"))):
            found.append(name)
    return found


def display_name(kind: str, platform: str) -> str:
    """The name of a device that PJRT calls `kind`: "TPU v6e" on a TPU, an honest "cpu (PJRT)" elsewhere."""
    if platform == "tpu" or kind.startswith("TPU"):
        return KINDS.get(kind, kind)
    return f"{kind} (PJRT)"


def _device_nodes(root: Path) -> bool:
    accel = any((root / "dev").glob("accel*"))
    return accel or any(p.name.isdigit() for p in (root / "dev/vfio").glob("*"))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip().lower()
    except OSError:
        return ""
