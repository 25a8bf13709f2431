"""Which synthetic model fits a device together with its cache, and what to do when it does not.

Time does not care what the weights say, only how many bytes there are. So a GPU is timed on the real shape of
Llama-3.1-8B where that fits, else on the 3B or 1B of the same family; a model far too large for it is timed as a slice
of its layers.
"""

import bisect
import dataclasses
import gc
from collections.abc import Callable, Iterable, Sequence

import torch

from helpers.models import counts
from helpers.models.geometry import Geometry

FAMILY = ("Llama-3.1-8B", "Llama-3.2-3B", "Llama-3.2-1B")  # largest first
# Activations, logits, the workspace of cuBLAS, a captured graph's pool, and what fragmentation loses.
SPARE_BYTES = 1_500_000_000
SPARE_FRACTION = 0.05


class NothingFits(MemoryError):
    """Not even the smallest candidate fits the memory that is free."""


def model_bytes(geometry: Geometry, context: int, batch: int = 1, dtype: torch.dtype = torch.bfloat16) -> int:
    """Bytes that lie in memory: all weights, every expert among them, and a full cache of `context` tokens."""
    return counts.resident_bytes(geometry, dtype) + counts.kv_bytes(geometry, context, batch, dtype)


def usable_bytes(free_bytes: int) -> int:
    """What of `free_bytes` may be planned with."""
    return int(free_bytes - max(SPARE_BYTES, SPARE_FRACTION * free_bytes))


def fitting(
    models: Sequence[Geometry], free_bytes: int, context: int, batch: int = 1, dtype: torch.dtype = torch.bfloat16
) -> list[Geometry]:
    """Those of `models`, largest first, that fit with their cache.

    Raises:
        NothingFits: not even the last does; the message says how much is missing.
    """
    usable = usable_bytes(free_bytes)
    needed = [model_bytes(model, context, batch, dtype) for model in models]
    if needed[-1] > usable:
        raise NothingFits(
            f"{models[-1].name} with {context} tokens and a batch of {batch} needs {needed[-1] / 1e9:.1f} GB and "
            f"{usable / 1e9:.1f} of {free_bytes / 1e9:.1f} GB can be planned with: shorten the context, or free memory "
            "on the device"
        )
    return [model for model, size in zip(models, needed, strict=True) if size <= usable]


@dataclasses.dataclass(frozen=True)
class Slice:
    """A model too large for the device, cut down to `part.layers` of its `whole.layers` layers.

    Timed twice, once with all layers of the slice and once with half of them: the difference is the time of those
    layers alone, without embedding and head, of which the whole model has one each as well. Where layers differ
    (windows, dense ones before experts), a slice has each kind in the proportion of the whole, to the nearest layer.
    """

    whole: Geometry
    part: Geometry
    half: Geometry

    def whole_seconds(self, part_seconds: float, half_seconds: float) -> float:
        """Time of the whole model from the times of `part` and `half`."""
        a_layer = (part_seconds - half_seconds) / (self.part.layers - self.half.layers)
        return part_seconds + (self.whole.layers - self.part.layers) * a_layer

    def __str__(self):
        whole, part, half = self.whole.layers, self.part.layers, self.half.layers
        return (
            f"{self.whole.name}: timed with {part} and with {half} of its {whole} layers; the whole is the former plus "
            f"{whole - part} layers at (difference ÷ {part - half}) each"
        )


def slice_of(
    whole: Geometry, free_bytes: int, context: int = 8192, batch: int = 1, dtype: torch.dtype = torch.bfloat16
) -> Slice:
    """As many layers of `whole` as fit `free_bytes` with their cache, at most all of them.

    Raises:
        NothingFits: fewer than two layers fit.
    """

    def needed(layers: int) -> int:
        return model_bytes(_cut(whole, layers), context, batch, dtype)

    layers = bisect.bisect_right(range(1, whole.layers + 1), usable_bytes(free_bytes), key=needed)
    if layers < 2:
        raise NothingFits(
            f"two layers of {whole.name} with {context} tokens and a batch of {batch} need {needed(2) / 1e9:.1f} GB; "
            f"{free_bytes / 1e9:.1f} GB are free"
        )
    return Slice(whole, _cut(whole, layers), _cut(whole, layers // 2))


def _cut(whole: Geometry, layers: int) -> Geometry:
    """`layers` layers of a model, each kind of layer in its proportion."""

    def share(count: int) -> int:
        return round(layers * count / whole.layers)

    sliding = share(whole.sliding_layers)
    return whole.replace(
        name=f"{whole.name}, {layers} layers",
        layers=layers,
        sliding_layers=sliding,
        sliding_window=whole.sliding_window if sliding else None,
        moe=whole.moe and dataclasses.replace(whole.moe, dense_layers=share(whole.moe.dense_layers)),
    )


def first_that_fits(candidates: Iterable, build: Callable):
    """build(candidate) of the first candidate for which it does not run out of memory; a line for each that does.

    Raises:
        NothingFits: all ran out of memory.
    """
    tried = []
    for candidate in candidates:
        try:
            return build(candidate)
        except torch.OutOfMemoryError:
            tried.append(getattr(candidate, "name", str(candidate)))
            print(f"{tried[-1]} does not fit the memory that is free; trying a smaller one.")
        # Outside of the handler, whose traceback would keep the half-built model alive.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    raise NothingFits(f"nothing fits the memory that is free on the device; tried: {', '.join(tried) or 'none'}")
