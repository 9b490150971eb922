"""What is public about the chips that libtpu compiles for. A device, as PyTorch sees it, is a chip or one of its two.

Sources: Google Cloud's "TPU v4", "TPU v5e", "TPU v5p", "TPU v6e" and "TPU7x (Ironwood)" pages
(cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e, /tpu7x), their tables of peak compute and HBM bandwidth per chip.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    kind: str
    """What libtpu calls the device."""
    devices: int
    """Devices of a chip."""
    flops: float
    """Peak bfloat16 operations per second of a chip."""
    bandwidth: float
    """Bytes per second between a chip and its HBM."""
    lanes: int
    """Multiply-accumulate units of a chip: MXUs times their size."""

    @property
    def peak_flops(self) -> float:
        """Of one device, per second."""
        return self.flops / self.devices

    @property
    def peak_bandwidth(self) -> float:
        """Of one device, bytes per second."""
        return self.bandwidth / self.devices

    @property
    def clock(self) -> float:
        """Hz. Not published for all: the rate at which all multiply-accumulate units together reach the peak."""
        return self.flops / (2 * self.lanes)


CHIPS = {
    # 8 MXUs of 128 × 128 in two cores
    "v4": Chip("TPU v4", 2, 275e12, 1228e9, 8 * 128 * 128),
    # 4 MXUs of 128 × 128
    "v5e": Chip("TPU v5 lite", 1, 197e12, 819e9, 4 * 128 * 128),
    # 8 MXUs of 128 × 128
    "v5p": Chip("TPU v5", 1, 459e12, 2765e9, 8 * 128 * 128),
    # 2 MXUs of 256 × 256, each with two products a cycle
    "v6e": Chip("TPU v6 lite", 1, 918e12, 1640e9, 4 * 256 * 256),
    # two devices like a v6e's core
    "tpu7x": Chip("TPU7x", 2, 2307e12, 7380e9, 8 * 256 * 256),
}

# Sizes that Cloud TPU offers, small to large; `topologies()` asks libtpu which of them it takes.
FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBES = (
    "1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16",
    "16x16x32",
)  # fmt: skip
SIZES = {"v4": CUBES, "v5e": FLAT, "v5p": CUBES, "v6e": FLAT, "tpu7x": CUBES}


def chip_of(topology: str) -> Chip:
    """Raises ValueError for a name of no known generation."""
    generation = topology.split(":")[0]
    if generation not in CHIPS:
        raise ValueError(f"unknown topology '{topology}'; known are {known()}")
    return CHIPS[generation]


def known() -> str:
    return ", ".join(f"{generation}:{sizes[0]} to {generation}:{sizes[-1]}" for generation, sizes in SIZES.items())
