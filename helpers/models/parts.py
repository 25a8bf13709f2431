"""The caches of one pass over several parts, as one cache of one sequence: how a pass takes ragged lengths."""

from collections.abc import Sequence

import torch


class Parts:
    """What attention asks of a cache, handed on to the cache of each part.

    Args:
        caches: one a part.
        shapes: (batch, t) of each: its sequences, and how many tokens each of them takes in this pass. Its rows
            stand one after the other, sequence by sequence, behind those of the parts before it.
    """

    def __init__(self, caches: Sequence, shapes: Sequence[tuple[int, int]]):
        self.caches, self.shapes = caches, shapes
        self.rows = [batch * tokens for batch, tokens in shapes]

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """k and v [1, heads, all rows, width]."""
        for cache, own_k, own_v in zip(self.caches, self._apart(k), self._apart(v), strict=True):
            cache.append(layer, own_k, own_v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """q [1, heads, all rows, width] → the same shape, or the width of what the caches answer."""
        mixed = [cache.attend(layer, own) for cache, own in zip(self.caches, self._apart(q), strict=True)]
        return torch.cat([own.transpose(0, 1).flatten(1, 2) for own in mixed], dim=1)[None]

    def _apart(self, x: torch.Tensor) -> list[torch.Tensor]:
        """x [1, heads, all rows, width] as [batch, heads, t, width] of each part."""
        pieces = zip(x[0].split(self.rows, dim=1), self.shapes, strict=True)
        return [piece.unflatten(1, shape).transpose(0, 1) for piece, shape in pieces]
