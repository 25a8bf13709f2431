"""Causal attention of several queries a sequence: a prompt, or drafted tokens that one pass verifies.

A few queries, up to `helpers.kernels.FEW`, are answered by a decode kernel, which reads keys and values once for them.
"""

import torch
import torch.nn.functional as F

ROWS_AT_ONCE = 2048  # queries times heads that read one KV head, so that a mask stays small


def causal(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor | int | None = None,
    scale: float | None = None,
    tile: int = 512,
) -> torch.Tensor:
    """Attention of the last t tokens of each sequence, each over itself and what came before.

    Args:
        q: [batch, q_heads, t, head_dim], rotated.
        k, v: [batch, kv_heads, n, head_dim] with n ≥ t; query heads share KV heads in groups. The rows of v may have
            another width.
        lengths: tokens that each sequence holds, the t included, integer [batch]; an int or None: all n.
        scale: of the scores; head_dim ** -0.5 if None.
        tile: queries masked at a time.

    Returns:
        [batch, q_heads, t, width of v].
    """
    batch, heads, t, width = q.shape
    n, uneven = k.shape[2], isinstance(lengths, torch.Tensor)
    if t == n and not uneven and k.shape[1] > 1:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    # All heads that read one KV head are the rows of one product: nothing is repeated for them.
    together = heads if k.shape[1] == 1 else 1
    tile = min(tile, max(1, ROWS_AT_ONCE // together))
    positions = torch.arange(n, device=q.device)
    newest = (lengths - t if uneven else torch.full((1,), n - t, device=q.device))[:, None] + positions[:t]
    parts = []
    for start in range(0, t, tile):
        end = min(start + tile, t)
        seen = n if uneven else n - t + end
        mask = (positions[:seen] <= newest[:, start:end, None])[:, None]
        rows = q[:, :, start:end]
        if together > 1:
            rows, mask = rows.reshape(batch, 1, -1, width), mask.repeat(1, 1, heads, 1)
        part = F.scaled_dot_product_attention(
            rows, k[:, :, :seen], v[:, :, :seen], attn_mask=mask, scale=scale, enable_gqa=together == 1
        )
        parts.append(part.view(batch, heads, end - start, -1))
    return torch.cat(parts, dim=2)
