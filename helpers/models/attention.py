"""Causal attention of many queries at once: what a prefill computes. A single query goes to `helpers.kernels`."""

import torch
import torch.nn.functional as F


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: int = 512) -> torch.Tensor:
    """Attention of the last t tokens over all n of them, each over itself and what came before.

    Args:
        q: [batch, q_heads, t, head_dim], rotated.
        k, v: [batch, kv_heads, n, head_dim] with n ≥ t; query heads share KV heads in groups.
        block: queries masked at a time when there is a history, so that a mask stays small.

    Returns:
        [batch, q_heads, t, head_dim].
    """
    t, n = q.shape[2], k.shape[2]
    if t == n:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    positions = torch.arange(n, device=q.device)
    parts = []
    for start in range(0, t, block):
        end = min(start + block, t)
        seen = n - t + end
        mask = positions[:seen] <= positions[n - t + start : seen, None]
        parts.append(
            F.scaled_dot_product_attention(
                q[:, :, start:end], k[:, :, :seen], v[:, :, :seen], attn_mask=mask, enable_gqa=True
            )
        )
    return torch.cat(parts, dim=2)
