"""The latent cache of MLA: one latent and one rotated key a token and layer, shared by all query heads."""

import torch

from helpers.caches.base import KVCache
from helpers.kernels import FEW
from helpers.models import rope
from helpers.models.attention import causal
from helpers.models.geometry import Geometry


class LatentCache(KVCache):
    """Rows [layers, batch, capacity, kv_lora_rank + qk_rope_head_dim]: the latent, then the shared rotated key.

    Every query head reads the same row, and the latent serves as key and as value, so that a row is read once for
    both (DeepSeek-V2, arXiv 2405.04434, section 2.1). Queries come already absorbed: `helpers.models.latent_attention`
    carries them into the latent before, and carries the answer out of it after.

    Raises:
        ValueError: a geometry without MLA.
    """

    keeps_latents = True

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
        mla = geometry.mla
        self.rank, self.rotary = mla.kv_lora_rank, mla.qk_rope_head_dim
        self._entry, self._query_width = (1, self.rotary, self.rank), self.rank + self.rotary
        # The width of a query and key before absorption, which is what the model was trained to divide by.
        self.scale = (mla.qk_nope_head_dim + mla.qk_rope_head_dim) ** -0.5
        shape = (geometry.layers, batch, self._allocated(capacity), self.rank + self.rotary)
        self.rows = torch.zeros(shape, dtype=dtype, device=device)
        self.cos, self.sin = rope.tables(capacity, self.rotary, geometry.rope_theta, device)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store t tokens: k [batch, 1, t, qk_rope_head_dim], not yet rotated, and v [batch, 1, t, kv_lora_rank].

        Raises:
            CacheFull: a sequence would exceed the capacity; nothing was stored.
            ValueError: another shape or type; nothing was stored.
        """
        places = self._claimed(layer, k, v)
        rows = self.rows[layer][:, None]
        places.write(rows[..., : self.rank], v)
        places.write(rows[..., self.rank :], places.rotate(k))

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Causal attention of the last t tokens.

        Args:
            q: [batch, q_heads, t, kv_lora_rank + qk_rope_head_dim], the second part not yet rotated.

        Returns:
            The weighted latents, [batch, q_heads, t, kv_lora_rank].
        """
        places = self._asked(layer, q)
        absorbed, position = q.split((self.rank, self.rotary), dim=-1)
        q, rows = torch.cat((absorbed, places.rotate(position)), dim=-1), self.rows[layer]
        if q.shape[2] <= FEW:
            return self.kernels.decode_attention_latent(q, rows, self.rank, places.lengths, self.scale)
        rows = rows[:, None, : places.longest]
        return causal(q, rows, rows[..., : self.rank], places.lengths, self.scale)

    def rotate(self, layer: int, q_rope: torch.Tensor) -> torch.Tensor:
        """Rotate q_rope [batch, q_heads, t, qk_rope_head_dim] to the positions of the last t tokens of `layer`."""
        end = self._ends[layer]
        return self._places(end - q_rope.shape[2], end).rotate(q_rope)

    def held(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of what `layer` holds: latents [batch, n, kv_lora_rank], rotated keys [batch, n, qk_rope_head_dim].

        Raises:
            ValueError: the sequences differ in length.
        """
        return self.rows[layer, :, : self.seen(layer)].split((self.rank, self.rotary), dim=-1)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def _read_bytes(self, tokens: int) -> int:
        return self.nbytes // (self.rows.shape[2] * self.batch) * tokens
