"""The incident at its own size: which model, how many sequences and which contexts a GPU has room for.

A Llama in 16 bits as somebody would serve it, instead of the small model that runs everywhere. Its weights may be
random: the time of a step does not depend on what they say.
"""

from typing import NamedTuple

import torch

from helpers import kernels
from helpers.caches import FullCache
from helpers.clock import devices, sweeps
from helpers.models import counts, geometry, sizing
from helpers.models.decoder import Decoder
from helpers.models.geometry import Geometry

REPORTED = (1_000, 30_000)  # tokens of the bug report, between which a step takes three times as long
# Sequences and contexts, the first that fit. The second are what a card of 10 GB and QUICK_BYTES have room for.
CASES = (
    (8, (16, 1_000, 10_000, 20_000, 30_000, sweeps.LONGEST_CONTEXT)),
    (4, (16, 1_000, 10_000, 20_000, 30_000)),
)


class OwnSize(NamedTuple):
    """Decode steps of `batch` sequences at `contexts` tokens; weights, activations and cache in `dtype`."""

    geometry: Geometry
    batch: int
    contexts: tuple[int, ...]
    dtype: torch.dtype

    @property
    def capacity(self) -> int:
        """Tokens of a sequence that the cache has room for."""
        return self.contexts[-1] + 64

    @property
    def weight_bytes(self) -> int:
        """What lies in memory, an untied input embedding included."""
        return counts.resident_bytes(self.geometry, self.dtype)

    @property
    def cache_bytes(self) -> int:
        return counts.kv_bytes(self.geometry, self.capacity, self.batch, self.dtype)

    @property
    def free_bytes(self) -> float:
        """What has to be free on the device before the first of it is made."""
        return self.weight_bytes + self.cache_bytes / sweeps.CACHE_SHARE

    def __str__(self):
        return (
            f"{self.geometry.name} in {str(self.dtype).removeprefix('torch.')}, {self.batch} sequences of up to "
            f"{self.contexts[-1]:,} tokens: {self.weight_bytes / 1e9:.1f} GB of weights, "
            f"{self.cache_bytes / 1e9:.1f} GB of cache"
        )


def all_sizes(dtype: torch.dtype = torch.bfloat16) -> list[OwnSize]:
    """All that may be timed, in the order of preference."""
    return [OwnSize(geometry.get(name), batch, contexts, dtype) for batch, contexts in CASES for name in sizing.FAMILY]


def fitting(free_bytes: float, budget: str = "quick", dtype: torch.dtype = torch.bfloat16) -> OwnSize | None:
    """The first whose cache has room (`sweeps.room_beside`) beside its weights on a GPU of which that much is free."""
    for one in all_sizes(dtype):
        if one.cache_bytes <= sweeps.room_beside(one.weight_bytes, free_bytes - one.weight_bytes, budget):
            return one
    return None


def make(device: torch.device, budget: str = "quick") -> tuple[OwnSize, Decoder, FullCache] | tuple[None, None, None]:
    """What `choose` takes, with its decoder, whose weights are random, and its empty cache; three times None where it
    takes nothing, or where somebody else takes the memory meanwhile, which a sentence says."""
    own = choose(device, budget)
    if own is None:
        return None, None, None
    try:
        decoder = Decoder(own.geometry, own.dtype, device)
        return own, decoder, FullCache(own.geometry, own.capacity, own.batch, own.dtype, device)
    except torch.OutOfMemoryError:
        print("Nothing is timed here: the memory that was free has gone to somebody else. Run this cell again later.")
        return None, None, None


def choose(device: torch.device, budget: str = "quick") -> OwnSize | None:
    """What to time on `device`, or None where it is no CUDA device or has no room; a sentence says which."""
    largest, *_, least = all_sizes()
    if device.type != "cuda":
        print(
            f"On a CUDA GPU the next cells would time {least.geometry.name} in 16 bits where "
            f'{least.free_bytes / 1e9:.1f} GB are free and, at budget = "full", up to {largest.geometry.name} with '
            f"{largest.batch} sequences of {largest.contexts[-1]:,} tokens, which takes {largest.free_bytes / 1e9:.0f}"
            "; here they do nothing."
        )
        return None
    free = devices.free_bytes(device)
    found = fitting(free, budget, kernels.half(device))
    if found is None:
        print(
            f"Nothing is timed here: {free / 1e9:.1f} GB of this GPU are free, and {least.geometry.name} with "
            f"{least.batch} sequences of {least.contexts[-1]:,} tokens takes {least.free_bytes / 1e9:.1f}."
        )
    else:
        print(found)
    return found
