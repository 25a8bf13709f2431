"""A full cache that also notes where attention goes."""

import torch

from helpers.caches.full import FullCache


class AttentionProbe(FullCache):
    """Attends as `FullCache` does and keeps the attention weights that the first `first` positions receive.

    share[layer, head, position] is the mean weight over the queries that came since the last `reset`, each of which
    saw at least those positions and spends a total of 1.
    """

    def __init__(self, *args, first: int = 8, **kwargs):
        super().__init__(*args, **kwargs)
        self.first = first
        self.reset()

    def reset(self) -> None:
        """Forget what was noted; keys and values stay."""
        shape = (self.geometry.layers, self.geometry.q_heads, self.first)
        self._sums = torch.zeros(shape, dtype=torch.float64)
        self._queries = [0] * self.geometry.layers

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        places, t = self._asked(layer, q), q.shape[2]
        k = self.keys[layer][:, :, : places.longest]
        grouped = places.rotate(q).reshape(self.batch, k.shape[1], -1, q.shape[3])
        scores = (grouped @ k.transpose(-1, -2) * q.shape[3] ** -0.5).view(self.batch, q.shape[1], t, -1)
        newest = torch.arange(-t, 0, device=self.device)[:, None]
        newest = newest + torch.as_tensor(places.lengths, device=self.device).view(-1, 1, 1, 1)
        later = torch.arange(places.longest, device=self.device) > newest
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)[..., : self.first]
        self._sums[layer, :, : weights.shape[-1]] += weights.mean(0).sum(1).cpu()
        self._queries[layer] += t
        return super().attend(layer, q)

    @property
    def share(self) -> torch.Tensor:
        """[layers, q_heads, first], from 0 to 1.

        Raises:
            ValueError: nothing was noted yet.
        """
        if not all(self._queries):
            raise ValueError("no query came since the last reset: prefill or decode with this cache first")
        return self._sums / torch.tensor(self._queries)[:, None, None]
