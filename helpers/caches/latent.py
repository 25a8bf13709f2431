"""The latent cache of MLA: one latent and one rotated key a token and layer, shared by all query heads."""

import torch

from helpers.caches.base import KVCache
from helpers.models import rope
from helpers.models.geometry import Geometry

QUERIES_AT_ONCE = 128


class LatentCache(KVCache):
    """Rows [layers, batch, capacity, kv_lora_rank + qk_rope_head_dim]: the latent, then the shared rotated key.

    Every query head reads the same row, and the latent serves as key and as value, so that a row is read once for
    both (DeepSeek-V2, arXiv 2405.04434, section 2.1). Queries come already absorbed: `helpers.models.latent_attention`
    carries them into the latent before, and carries the answer out of it after.

    Raises:
        ValueError: a geometry without MLA.
    """

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
        if geometry.mla is None:
            raise ValueError(f"{geometry.name} has {geometry.attention} attention and no latent: use FullCache")
        mla = geometry.mla
        self.rank, self.rotary = mla.kv_lora_rank, mla.qk_rope_head_dim
        # The width of a query and key before absorption, which is what the model was trained to divide by.
        self.scale = (mla.qk_nope_head_dim + mla.qk_rope_head_dim) ** -0.5
        shape = (geometry.layers, batch, self._allocated(capacity), self.rank + self.rotary)
        self.rows = torch.zeros(shape, dtype=dtype, device=device)
        self.cos, self.sin = rope.tables(capacity, self.rotary, geometry.rope_theta, device)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store t tokens: k [batch, 1, t, qk_rope_head_dim], not yet rotated, and v [batch, 1, t, kv_lora_rank].

        Raises:
            CacheFull: the sequence would exceed the capacity; nothing was stored.
        """
        start, end = self._claim(layer, v.shape[2])
        self.rows[layer, :, start:end, : self.rank] = v[:, 0]
        self.rows[layer, :, start:end, self.rank :] = rope.rotate(k[:, 0], self.cos[start:end], self.sin[start:end])

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Causal attention of the last t tokens.

        Args:
            q: [batch, q_heads, t, kv_lora_rank + qk_rope_head_dim], the second part not yet rotated.

        Returns:
            The weighted latents, [batch, q_heads, t, kv_lora_rank].
        """
        absorbed, position = q.split((self.rank, self.rotary), dim=-1)
        q = torch.cat((absorbed, self.rotate(layer, position)), dim=-1)
        rows, end = self.rows[layer], self.lengths[layer]
        if q.shape[2] > 1:
            return attend_causal(q * self.scale, rows[:, :end], self.rank)
        return self.kernels.decode_attention_latent(q[:, :, 0], rows, self.rank, end, self.scale)[:, :, None]

    def rotate(self, layer: int, q_rope: torch.Tensor) -> torch.Tensor:
        """Rotate q_rope [batch, q_heads, t, qk_rope_head_dim] to the positions of the last t tokens of `layer`."""
        end = self.lengths[layer]
        start = end - q_rope.shape[2]
        return rope.rotate(q_rope, self.cos[start:end], self.sin[start:end])

    def held(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of what `layer` holds: latents [batch, n, kv_lora_rank], rotated keys [batch, n, qk_rope_head_dim]."""
        return self.rows[layer, :, : self.lengths[layer]].split((self.rank, self.rotary), dim=-1)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def step_bytes(self) -> int:
        return self.nbytes // self.rows.shape[2] * self.length

    def fill(self, length: int, seed: int = 0, chunk: int = 1024) -> None:
        self.rewind(0)
        generator = torch.Generator(device="cpu").manual_seed(seed)
        for start in range(0, length, chunk):
            tokens = min(chunk, length - start)
            k, v = (
                torch.randn((self.batch, 1, tokens, width), generator=generator).to(self.device, self.dtype)
                for width in (self.rotary, self.rank)
            )
            for layer in range(self.geometry.layers):
                self.append(layer, k, v)


def attend_causal(q: torch.Tensor, rows: torch.Tensor, rank: int) -> torch.Tensor:
    """The last t tokens over all n rows, each over itself and what came before.

    Args:
        q: [batch, heads, t, width], rotated and scaled.
        rows: [batch, n, width] with n ≥ t.

    Returns:
        [batch, heads, t, rank].
    """
    t, n = q.shape[2], rows.shape[1]
    positions = torch.arange(n, device=q.device)
    parts = []
    for start in range(0, t, QUERIES_AT_ONCE):  # in blocks, so that heads · t · n scores are never held at once
        end = min(start + QUERIES_AT_ONCE, t)
        seen = n - t + end
        piece = rows[:, None, :seen]
        scores = q[:, :, start:end] @ piece.transpose(2, 3)
        scores.masked_fill_(positions[:seen] > positions[n - t + start : seen, None], float("-inf"))
        parts.append(scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype) @ piece[..., :rank])
    return torch.cat(parts, dim=2)
