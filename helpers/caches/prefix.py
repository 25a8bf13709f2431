"""A prefix that a batch of sessions shares, read once a step for all of them (cascade attention, Hydragen).

Hydragen (Juravsky et al., arXiv 2402.05099) and FlashInfer's cascade attend to the prefix and to each session's own
suffix apart, and merge the two by their log-sum-exps.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from helpers.caches.base import KVCache, Places
from helpers.caches.full import FullCache
from helpers.kernels import FEW
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
        self._least = self.prefix_length
        self._move([self.prefix_length] * batch)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        places = self._claimed(layer, k, v)
        places.write(self.keys[layer], places.rotate(k))
        places.write(self.values[layer], v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        places = self._asked(layer, q)
        q = places.rotate(q)
        if q.shape[2] == 1:
            return self.read(layer, q[:, :, 0])[:, :, None]
        own = places.longest - self.prefix_length
        if q.shape[2] <= min(FEW, own - max(self._behind)):
            return self._cascade(layer, q, places.lengths)
        parts = zip(self._shared(layer), (self.keys[layer], self.values[layer]), strict=True)
        k, v = (torch.cat((shared.expand(self.batch, -1, -1, -1), x[:, :, :own]), dim=2) for shared, x in parts)
        return causal(q, k, v, places.lengths)

    def read(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Attention of the newest token of each session over prefix and suffix: q [batch, q_heads, head_dim], rotated.

        Returns the same shape. A subclass may replace it, with `parts` for what it attends to.
        """
        end = self._ends[layer]
        return self._cascade(layer, q, self._places(end - 1, end).lengths)

    def _cascade(self, layer: int, q: torch.Tensor, lengths: int | torch.Tensor) -> torch.Tensor:
        prefix = self.prefix.keys[layer], self.prefix.values[layer], self.prefix_length
        own = self.keys[layer], self.values[layer], lengths - self.prefix_length
        return self.kernels.cascade_attention(q, *prefix, *own)

    def parts(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What `layer` holds: keys and values of the prefix [1, kv_heads, prefix, head_dim], then those of the
        suffixes [batch, kv_heads, suffix, head_dim].

        Raises:
            ValueError: the suffixes differ in length.
        """
        own = self.seen(layer) - self.prefix_length
        return *self._shared(layer), self.keys[layer][:, :, :own], self.values[layer][:, :, :own]

    def _shared(self, layer: int) -> list[torch.Tensor]:
        return [tensor[layer][:, :, : self.prefix_length] for tensor in (self.prefix.keys, self.prefix.values)]

    @property
    def nbytes(self) -> int:
        """Bytes of the suffixes, and of the prefix once."""
        return self.prefix.nbytes + self.keys.nbytes + self.values.nbytes

    def step_bytes(self, length: int | Sequence[int]) -> int:
        """Bytes a step reads: the prefix once for the whole batch, each suffix for its own session."""
        return self._read_bytes(self.prefix_length) + sum(
            self._read_bytes(tokens - self.prefix_length) for tokens in self._each(length)
        )

    def _read_bytes(self, tokens: int) -> int:
        return self.prefix.step_bytes(tokens)

    def _check_range(self, length: int) -> None:
        if isinstance(length, int) and length < self._least:
            raise ValueError(
                f"cannot continue at {length} tokens: the first {self.prefix_length} are the shared prefix"
            )
        super()._check_range(length)

    def _find(self, start: int, end: int) -> Places:
        """As in a full cache, but the rows begin behind the prefix."""
        places, gone = super()._find(start, end), self.prefix_length
        sequences, heads, rows = places.index
        rows = slice(start - gone, end - gone) if isinstance(rows, slice) else rows - gone
        return replace(places, index=(sequences, heads, rows))
