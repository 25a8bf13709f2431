"""The static cache: a full cache whose decode step may be captured once and replayed at any context."""

import torch

from helpers.caches.full import FullCache
from helpers.models import rope


class StaticCache(FullCache):
    """A full cache that decodes without telling Python where it is: lengths and positions live on the device.

    One captured step then serves every context, and sequences of unequal length. A prefill of several tokens goes as in
    `FullCache`, for sequences of one length.

    `counts` int32 [batch] are the tokens held; `positions` int64 [batch] is where the newest of them lies.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.counts = torch.zeros(self.batch, dtype=torch.int32, device=self.device)
        self.positions = torch.zeros(self.batch, dtype=torch.long, device=self.device)
        self.sequences = torch.arange(self.batch, device=self.device)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        start, end = self._claim(layer, k.shape[2])
        if end - start > 1:
            self.lengths[layer] = start
            super().append(layer, k, v)
            self._place(end)
            return
        if layer == 0:
            self.positions.copy_(self.counts)
            self.counts.add_(1)
        k = rope.rotate(k, *self._angles())
        self.keys[layer][self.sequences, :, self.positions] = k[:, :, 0]
        self.values[layer][self.sequences, :, self.positions] = v[:, :, 0]

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        if q.shape[2] > 1:
            return super().attend(layer, q)
        q = rope.rotate(q, *self._angles())
        return self.kernels.decode_attention(q[:, :, 0], self.keys[layer], self.values[layer], self.counts)[:, :, None]

    def rewind(self, length: int) -> None:
        super().rewind(length)
        self._place(length)

    def fill(self, length: int, seed: int = 0, chunk: int = 1024) -> None:
        super().fill(length, seed, chunk)
        self._place(length)

    def advance(self) -> None:
        """Note one more token: a replayed graph moved the device's counts, and Python has not seen it."""
        super().rewind(self.length + 1)

    def _place(self, length: int) -> None:
        self.counts.fill_(length)
        self.positions.fill_(max(0, length - 1))

    def _angles(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of each sequence's newest position, [batch, 1, 1, head_dim]."""
        return self.cos[self.positions][:, None, None], self.sin[self.positions][:, None, None]
