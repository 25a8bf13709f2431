"""The full cache: every key and value of every token, for ever. Its slope is what the course is about."""

import torch

from helpers.caches.base import KVCache
from helpers.models import rope
from helpers.models.attention import causal
from helpers.models.geometry import Geometry


class FullCache(KVCache):
    """Keys, rotated when they arrive, and values, each [layers, batch, kv_heads, capacity, head_dim]."""

    def __init__(
        self,
        geometry: Geometry,
        capacity: int,
        batch: int = 1,
        dtype=torch.float32,
        device="cpu",
        backend: str | None = None,
    ):
        super().__init__(geometry, capacity, batch, dtype, device, backend)
        if geometry.mla is not None:
            raise ValueError(f"{geometry.name} keeps latents, not keys and values: use LatentCache")
        shape = (geometry.layers, batch, geometry.kv_heads, self._allocated(capacity), geometry.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.cos, self.sin = rope.tables(capacity, geometry.head_dim, geometry.rope_theta, device)
        # Views of single layers, made once: indexing a tensor costs as much as a small kernel.
        self.layers = list(zip(self.keys, self.values, strict=True))
        self.single = self._bound("float32", self.keys, self.values)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        start, end = self._claim(layer, k.shape[2])
        if self.single and end - start == 1:
            self.single.append(layer, start, k, v)
            return
        self.keys[layer, :, :, start:end] = rope.rotate(k, self.cos[start:end], self.sin[start:end])
        self.values[layer, :, :, start:end] = v

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        end = self.lengths[layer]
        start = end - q.shape[2]
        if self.single and end - start == 1:
            return self.single.attend(layer, start, q)
        q = rope.rotate(q, self.cos[start:end], self.sin[start:end])
        k, v = self.layers[layer]
        if q.shape[2] == 1:
            return self.kernels.decode_attention(q[:, :, 0], k, v, end)[:, :, None]
        return causal(q, k[:, :, :end], v[:, :, :end])

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def step_bytes(self) -> int:
        return self.nbytes // self.keys.shape[3] * self.length
