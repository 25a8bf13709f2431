"""A prefix that a batch of sessions shares, read once a step for all of them (cascade attention, Hydragen).

Hydragen (Juravsky et al., arXiv 2402.05099) and FlashInfer's cascade attend to the prefix and to each session's own
suffix apart, and merge the two by their log-sum-exps.
"""

import torch

from helpers.caches.base import KVCache
from helpers.caches.full import FullCache
from helpers.models import rope
from helpers.models.attention import causal


class SharedPrefixCache(KVCache):
    """`batch` sessions that continue one prefix.

    Args:
        prefix: a FullCache of batch 1 that holds the prefix; it is read, never written.
        capacity: tokens of prefix and suffix together.
        batch: sessions.
    """

    def __init__(self, prefix: FullCache, capacity: int, batch: int, backend: str | None = None):
        super().__init__(prefix.geometry, capacity, batch, prefix.dtype, prefix.device, backend)
        if prefix.batch != 1 or not 0 < prefix.length < capacity:
            raise ValueError(
                f"a prefix is one sequence shorter than the capacity of {capacity}; this cache holds {prefix.batch} of "
                f"{prefix.length} tokens"
            )
        self.prefix, self.prefix_length = prefix, prefix.length
        g, own = prefix.geometry, self._allocated(capacity - prefix.length)
        shape = (g.layers, batch, g.kv_heads, own, g.head_dim)
        self.keys = torch.zeros(shape, dtype=prefix.dtype, device=prefix.device)
        self.values = torch.zeros(shape, dtype=prefix.dtype, device=prefix.device)
        self.cos, self.sin = rope.tables(capacity, g.head_dim, g.rope_theta, prefix.device)
        self.rewind(self.prefix_length)

    def rewind(self, length: int) -> None:
        """As `KVCache.rewind`, but never into the prefix.

        Raises:
            ValueError: also for a length shorter than the prefix.
        """
        if length < self.prefix_length:
            raise ValueError(
                f"cannot continue at {length} tokens: the first {self.prefix_length} are the shared prefix"
            )
        super().rewind(length)

    def fill(self, length: int, seed: int = 0, chunk: int = 1024) -> None:
        """Random suffixes until each session holds `length` tokens, the prefix among them."""
        generator = torch.Generator().manual_seed(seed)
        own = length - self.prefix_length
        for tensor in (self.keys, self.values):
            part = tensor[:, :, :, :own]
            part.copy_(torch.randn(part.shape, generator=generator))
        self.rewind(length)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        start, end = self._claim(layer, k.shape[2])
        own = slice(start - self.prefix_length, end - self.prefix_length)
        self.keys[layer, :, :, own] = rope.rotate(k, self.cos[start:end], self.sin[start:end])
        self.values[layer, :, :, own] = v

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        end = self.lengths[layer]
        start = end - q.shape[2]
        q = rope.rotate(q, self.cos[start:end], self.sin[start:end])
        if q.shape[2] == 1:
            return self.read(layer, q[:, :, 0])[:, :, None]
        prefix_k, prefix_v, k, v = self.parts(layer)
        shared = (part.expand(self.batch, -1, -1, -1) for part in (prefix_k, prefix_v))
        return causal(q, *(torch.cat(pair, dim=2) for pair in zip(shared, (k, v), strict=True)))

    def read(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Attention of the newest token of each session over prefix and suffix: q [batch, q_heads, head_dim], rotated.

        Returns the same shape. A subclass may replace it, with `parts` for what it attends to.
        """
        own = self.lengths[layer] - self.prefix_length
        prefix = self.prefix.keys[layer], self.prefix.values[layer], self.prefix_length
        return self.kernels.cascade_attention(q, *prefix, self.keys[layer], self.values[layer], own)

    def parts(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What `layer` holds: keys and values of the prefix [1, kv_heads, prefix, head_dim], then those of the
        suffixes [batch, kv_heads, suffix, head_dim]."""
        own = self.lengths[layer] - self.prefix_length
        shared = (tensor[layer][:, :, : self.prefix_length] for tensor in (self.prefix.keys, self.prefix.values))
        return *shared, self.keys[layer][:, :, :own], self.values[layer][:, :, :own]

    @property
    def nbytes(self) -> int:
        """Bytes of the suffixes, and of the prefix once."""
        return self.prefix.nbytes + self.keys.nbytes + self.values.nbytes

    def step_bytes(self) -> int:
        """Bytes a step reads: the prefix once for the whole batch, each suffix for its own session."""
        token = self.prefix.nbytes // self.prefix.keys.shape[3]
        return token * (self.prefix_length + self.batch * (self.length - self.prefix_length))
