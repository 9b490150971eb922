"""What the device is: name, memory, generation."""

import json
import os
import re
from dataclasses import dataclass

import torch

from torch_tpu import _C, _hardware
from torch_tpu.tpu._index import DeviceLike, check
from torch_tpu.tpu.memory import mem_get_info


@dataclass(frozen=True)
class DeviceProperties:
    name: str
    total_memory: int
    multi_processor_count: int
    major: int  # TPU generation; 0 elsewhere
    minor: int
    platform: str


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    check(device)
    _C.start()
    info = json.loads(_C.info("device"))
    platform, kind = info["platform"], info["device_kind"]
    generation = re.search(r"v?(\d+)", kind) if kind.startswith("TPU") else None
    return DeviceProperties(
        name=_hardware.display_name(kind, platform),
        total_memory=mem_get_info(device)[1],
        multi_processor_count=os.cpu_count() or 1 if platform == "cpu" else 1,
        major=int(generation[1]) if generation else 0,
        minor=0,
        platform=platform,
    )


def get_device_name(device: DeviceLike = None) -> str:
    """ "TPU v6e" and the like; on other platforms what PJRT says, marked as such."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    properties = get_device_properties(device)
    return properties.major, properties.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]
