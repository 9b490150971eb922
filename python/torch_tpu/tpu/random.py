"""The device's default generator: (seed, offset) on the host, so nothing here starts or waits for the device."""

from collections.abc import Iterable

import torch

from torch_tpu import _C
from torch_tpu.tpu._index import DeviceLike, check

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _get_generator(device: DeviceLike = None) -> torch.Generator:
    check(device)
    return _C.default_generator()


def get_rng_state(device: DeviceLike = "tpu") -> torch.Tensor:
    """16 bytes: the seed, then the offset, little-endian."""
    return _get_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "tpu") -> None:
    _get_generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for state in new_states:
        set_rng_state(state)


def manual_seed(seed: int) -> None:
    _get_generator().manual_seed(int(seed))


def seed() -> int:
    """Seeds with a random number and returns it."""
    return _get_generator().seed()


def initial_seed() -> int:
    return _get_generator().initial_seed()


manual_seed_all = manual_seed
seed_all = seed
