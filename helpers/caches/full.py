"""The full cache: every key and value of every token, for ever. Its slope is what the course is about."""

import math

import torch

from helpers.caches.base import KVCache
from helpers.kernels import FEW
from helpers.models import rope
from helpers.models.attention import causal
from helpers.models.geometry import Geometry


class FullCache(KVCache):
    """Keys, rotated when they arrive, and values, each [layers, batch, kv_heads, capacity, head_dim].

    Args:
        over: a cache at least as large whose memory this one takes as its own, laid out anew: for timing, which does
            not depend on what is stored. Each then overwrites what the other held.

    Raises:
        ValueError: as `KVCache`, and where `over` is too small or stores another type.
    """

    def __init__(
        self,
        geometry: Geometry,
        capacity: int,
        batch: int = 1,
        dtype=torch.float32,
        device="cpu",
        backend: str | None = None,
        over: "FullCache | None" = None,
    ):
        super().__init__(geometry, capacity, batch, dtype, device, backend)
        shape = (geometry.layers, batch, geometry.kv_heads, self._allocated(capacity), geometry.head_dim)
        if over is None:
            self.keys = torch.zeros(shape, dtype=dtype, device=device)
            self.values = torch.zeros(shape, dtype=dtype, device=device)
        else:
            self.keys, self.values = (_laid_over(whole, shape, dtype) for whole in (over.keys, over.values))
        self.cos, self.sin = rope.tables(capacity, geometry.head_dim, geometry.rope_theta, device)
        # Views of single layers, made once: indexing a tensor costs as much as a small kernel.
        self.layers = list(zip(self.keys, self.values, strict=True))
        self.bound = self._bind("float32", self.keys, self.values)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        if self._takes(k):
            return self._append_bound(layer, k, v)
        places = self._claimed(layer, k, v)
        keys, values = self.layers[layer]
        places.write(keys, places.rotate(k))
        places.write(values, v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        if self._takes(q):
            return self._attend_bound(layer, q)
        places = self._asked(layer, q)
        q = places.rotate(q)
        k, v = self.layers[layer]
        if q.shape[2] <= FEW:
            return self.kernels.decode_attention(q, k, v, places.lengths)
        return causal(q, k[:, :, : places.longest], v[:, :, : places.longest], places.lengths)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def _read_bytes(self, tokens: int) -> int:
        return self.nbytes // (self.keys.shape[3] * self.batch) * tokens


def _laid_over(whole: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The beginning of `whole` as a contiguous tensor of `shape`."""
    size = math.prod(shape)
    if size > whole.numel() or dtype != whole.dtype:
        raise ValueError(
            f"a cache of {list(shape)} in {dtype} does not fit the memory of one of {list(whole.shape)} in "
            f"{whole.dtype}: make the larger one first"
        )
    return whole.view(-1)[:size].view(shape)
