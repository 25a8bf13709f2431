"""The static cache: a full cache whose decode step may be captured once and replayed at any context."""

import torch

from helpers.caches.full import FullCache
from helpers.models import rope


class StaticCache(FullCache):
    """A full cache that decodes without telling Python where it is: lengths and positions live on the device.

    One captured step then serves every context, and sequences of unequal length. Several tokens at once, as in a
    prefill, go as in `FullCache`.

    `counts` int32 [batch] are the tokens held; `positions` int64 [batch] is where the newest of them lies.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.counts = torch.zeros(self.batch, dtype=torch.int32, device=self.device)
        self.positions = torch.zeros(self.batch, dtype=torch.long, device=self.device)
        self.sequences = torch.arange(self.batch, device=self.device)
        self._bound_places = self.kernels.CAPABILITIES.bound_places

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        if k.shape[2] > 1:
            super().append(layer, k, v)
            self._tell(self._ends[layer])
            return
        self._check_entry(k, v)
        self._claim(layer, 1)
        if layer == 0:
            self.positions.copy_(self.counts)
            self.counts.add_(1)
        if self._bound_places:
            self.bound.append(layer, self.positions, k, v)
            return
        k = rope.rotate(k, *self._angles())
        self.keys[layer][self.sequences, :, self.positions] = k[:, :, 0]
        self.values[layer][self.sequences, :, self.positions] = v[:, :, 0]

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        if q.shape[2] > 1:
            return super().attend(layer, q)
        self._check_query(layer, q)
        if self._bound_places:
            return self.bound.attend(layer, None, q, self.counts)
        q = rope.rotate(q, *self._angles())
        return self.kernels.decode_attention(q, self.keys[layer], self.values[layer], self.counts)

    def rewind(self, length: int) -> None:
        super().rewind(length)
        self._tell(length)

    def truncate(self, sequence: int, length: int) -> None:
        super().truncate(sequence, length)
        self._tell(self._ends[-1])

    def advance(self) -> None:
        """Note one more token: a replayed graph moved the device's counts, and Python has not seen it.

        Raises:
            CacheFull: there is no room for it.
        """
        for layer in range(self.geometry.layers):
            self._claim(layer, 1)

    def _tell(self, longest: int) -> None:
        """Put the lengths on the device, where they have always been."""
        if self._even:
            self.counts.fill_(longest)
            self.positions.fill_(max(0, longest - 1))
        else:
            self.counts.copy_(longest - self._fewer)
            self.positions.copy_(self.counts - 1)
            self.positions.clamp_(min=0)

    def _angles(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of each sequence's newest position, [batch, 1, 1, head_dim]."""
        return self.cos[self.positions][:, None, None], self.sin[self.positions][:, None, None]
