"""Multi-head latent attention (MLA) as DeepSeek-V2 and V3 use it, decoded in the absorbed form.

The cache holds a latent c per token. In the expanded form a head's key is W_K c and its value W_V c, made anew for
every cached token at every step. Since q · (W_K c) = (W_K^T q) · c, and Σ p (W_V c) = W_V (Σ p c), the two matrices
can go to the query and to the output instead, once a step, and the latents are read as they are.
"""

import torch
from torch import nn

from helpers.models.geometry import Geometry


class LatentAttention(nn.Module):
    """Projections of MLA; the cache (`helpers.caches.latent`) does the attending.

    Args:
        g: a geometry with `mla`.
        layer: which layer of the cache is this one's.
        linear: makes a projection from (inputs, outputs); norm: makes an RMSNorm from its width.
        where: dtype and device of the parameters.

    Shapes follow DeepSeek's: queries come through a latent of their own where q_lora_rank is not 0. Rotary lanes are
    paired half a width apart (`helpers.models.rope`); DeepSeek's checkpoints pair neighbours, a permutation of rows.
    """

    def __init__(self, g: Geometry, layer: int, linear, norm, **where):
        super().__init__()
        self.g, self.layer, m = g, layer, g.mla
        self.query_down = linear(g.hidden, m.q_lora_rank) if m.q_lora_rank else nn.Identity()
        self.query_norm = norm(m.q_lora_rank) if m.q_lora_rank else nn.Identity()
        self.query_up = linear(m.q_lora_rank or g.hidden, g.q_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim))
        self.kv_down = linear(g.hidden, m.kv_lora_rank + m.qk_rope_head_dim)
        self.kv_norm = norm(m.kv_lora_rank)
        # One row per head and lane, as the other matrices, and used head by head.
        self.key_up = nn.Parameter(torch.empty(g.q_heads * m.qk_nope_head_dim, m.kv_lora_rank, **where), False)
        self.value_up = nn.Parameter(torch.empty(g.q_heads * m.v_head_dim, m.kv_lora_rank, **where), False)
        self.out = linear(g.q_heads * m.v_head_dim, g.hidden)

    def forward(self, x: torch.Tensor, cache) -> torch.Tensor:
        """x [batch, t, hidden] → [batch, t, hidden]."""
        g, m, (batch, t, _) = self.g, self.g.mla, x.shape
        latent, key = self.kv_down(x).split((m.kv_lora_rank, m.qk_rope_head_dim), dim=-1)
        cache.append(self.layer, key[:, None], self.kv_norm(latent)[:, None])

        q = self.query_up(self.query_norm(self.query_down(x))).view(batch, t, g.q_heads, -1).transpose(1, 2)
        heads = self.mix(*q.split((m.qk_nope_head_dim, m.qk_rope_head_dim), dim=-1), cache)
        return self.out(heads.transpose(1, 2).reshape(batch, t, -1))

    def mix(self, q_nope: torch.Tensor, q_rope: torch.Tensor, cache) -> torch.Tensor:
        """Query into the latent, attention there, output out of it.

        Args:
            q_nope: [batch, q_heads, t, qk_nope_head_dim], the part of the queries that knows no position.
            q_rope: [batch, q_heads, t, qk_rope_head_dim], the part that does, not yet rotated.

        Returns:
            [batch, q_heads, t, v_head_dim].
        """
        mixed = cache.attend(self.layer, torch.cat((q_nope @ self.w_uk, q_rope), dim=-1))
        return mixed @ self.w_uv.transpose(1, 2)

    @property
    def w_uk(self) -> torch.Tensor:
        """The up-projection of the keys, head by head: [q_heads, qk_nope_head_dim, kv_lora_rank]."""
        return self.key_up.view(self.g.q_heads, -1, self.g.mla.kv_lora_rank)

    @property
    def w_uv(self) -> torch.Tensor:
        """The up-projection of the values, head by head: [q_heads, v_head_dim, kv_lora_rank]."""
        return self.value_up.view(self.g.q_heads, -1, self.g.mla.kv_lora_rank)
