"""The reference backend: what every other backend must compute, in plain torch, on any device.

Read this one to know what a kernel does. It is slower than the others because each line is a pass over memory.
"""

import torch
import torch.nn.functional as F

from helpers.kernels import Capabilities

CAPABILITIES = Capabilities(
    dtypes=(torch.float32, torch.float64, torch.float16, torch.bfloat16), scales_per_channel=True
)


def linear(x, weight, bias=None):
    """x [batch, in], weight [out, in], bias [out] → [batch, out]."""
    return F.linear(x, weight, bias)


def decode_attention(q, k, v, length, scale=None, return_lse=False, block_table=None):
    """Attention of the newest token or tokens of each sequence; see `helpers.kernels` for the shapes."""
    if block_table is not None:
        k, v = gather(k, block_table), gather(v, block_table)
    batch, q_heads, head_dim = q.shape[0], q.shape[1], q.shape[-1]
    queries = q.shape[2] if q.dim() == 4 else 1
    kv_heads, capacity = k.shape[1], k.shape[2]
    if q_heads % kv_heads:
        raise ValueError(f"{q_heads} query heads cannot share {kv_heads} KV heads evenly")
    used = capacity if isinstance(length, torch.Tensor) else length
    if not 0 <= used <= capacity:
        raise ValueError(f"length must lie between 0 and the cache's capacity of {capacity} tokens, not {length}")
    k, v = k[:, :, :used], v[:, :, :used]
    # The query heads that share a KV head, and their newest tokens, are the rows of one small matrix: K and V are read
    # once for all.
    grouped = q.reshape(batch, kv_heads, q_heads // kv_heads * queries, head_dim)
    scores = grouped @ k.transpose(-1, -2) * (head_dim**-0.5 if scale is None else scale)
    tokens = torch.arange(used, device=q.device)
    if isinstance(length, torch.Tensor):
        length = length.view(-1, 1, 1, 1)
        v = v.masked_fill(tokens[:, None] >= length, 0.0)  # zero times what lies there may not be zero
    if queries > 1 or isinstance(length, torch.Tensor):
        # The last query sees the whole sequence, each one before it one token fewer.
        fewer = torch.arange(queries - 1, -1, -1, device=q.device).repeat(q_heads // kv_heads)
        scores = scores.masked_fill(tokens >= length - fewer[:, None], -torch.inf)
    lse = scores.float().logsumexp(dim=-1, keepdim=True)
    weights = torch.where(lse.isfinite(), (scores - lse).exp(), 0.0).to(v.dtype)
    out = (weights @ v).view(*q.shape[:-1], v.shape[-1])
    return (out, lse.view(q.shape[:-1])) if return_lse else out


def gather(blocks, table):
    """Blocks [blocks, kv_heads, block_size, ·] of a paged cache, and the table [batch, n] of those that each sequence
    has → its tokens in one piece [batch, kv_heads, n · block_size, ·]. A copy."""
    return blocks[table.long()].transpose(1, 2).flatten(2, 3)


def decode_attention_int8(q, k_q, k_scale, v_q, v_scale, length, scale=None, return_lse=False):
    """As `decode_attention`, number · scale, one scale a token and head [batch, kv_heads, capacity]."""
    used = _used(length)
    pairs = ((x[:, :, :used], s[:, :, :used, None]) for x, s in ((k_q, k_scale), (v_q, v_scale)))
    k, v = (numbers.to(q.dtype) * s.to(q.dtype) for numbers, s in pairs)
    return decode_attention(q, k, v, length, scale, return_lse)


def decode_attention_int4(
    q, k_q, k_scale, v_q, v_scale, length, k_zero=None, v_zero=None, scale=None, return_lse=False
):
    """As `decode_attention`, over numbers packed two to a byte: nibble · scale + zero."""
    used = _used(length)
    parts = (_first(used, *packed) for packed in ((k_q, k_scale, k_zero), (v_q, v_scale, v_zero)))
    k, v = (unpack_int4(*part)[:, :, :used].to(q.dtype) for part in parts)
    return decode_attention(q, k, v, length, scale, return_lse)


def _used(length) -> int:
    """Tokens of the longest sequence: what lies behind them need not be converted."""
    return int(length.max()) if isinstance(length, torch.Tensor) else length


def _first(tokens, packed, scale, zero):
    """The rows of packed numbers, scales and zeros that serve the first `tokens`."""
    each = packed.shape[2] // scale.shape[2]  # tokens that a row of scales serves
    rows = max(1, -(-tokens // each))
    return packed[:, :, : rows * each], scale[:, :, :rows], None if zero is None else zero[:, :, :rows]


def unpack_int4(packed, scale, zero=None):
    """uint8 [batch, kv_heads, capacity, head_dim/2] → values [batch, kv_heads, capacity, head_dim] in scale's dtype.

    A byte holds dims j (low nibble) and j + head_dim/2 (high). scale and zero are [batch, kv_heads, rows, columns];
    each of their numbers serves capacity/rows tokens by head_dim/columns dims. Without zeros, (nibble - 8) · scale.
    """
    zero = -8 * scale if zero is None else zero
    nibbles = torch.cat((packed & 15, packed >> 4), dim=-1)
    scale, zero = (_spread(s[..., None] if s.dim() == 3 else s, nibbles.shape) for s in (scale, zero))
    return nibbles.to(scale.dtype) * scale + zero


def _spread(scale, shape):
    """Repeat the scale of a block of tokens and dims for each of them."""
    rows, columns = scale.shape[2:]
    return scale.repeat_interleave(shape[2] // rows, dim=2).repeat_interleave(shape[3] // columns, dim=3)


def decode_attention_latent(q, latent, rank, length, scale, return_lse=False):
    """Absorbed multi-head latent attention: q [batch, q_heads, rank + rope], latent [batch, capacity, rank + rope].

    All query heads read the same row, whose first `rank` numbers are also the value (DeepSeek-V2, arXiv 2405.04434).
    """
    return decode_attention(q, latent[:, None], latent[:, None, :, :rank], length, scale, return_lse)


def merge(outs, lses):
    """Attention over several stretches of keys, from the attention over each (Flash-Decoding, arXiv 2311.01282).

    Args:
        outs: one [batch, q_heads, width] per stretch, or [batch, q_heads, t, width].
        lses: their log-sum-exps, without the width.

    Returns:
        The same two over all keys.
    """
    outs, lses = torch.stack(list(outs)), torch.stack(list(lses))
    lse = lses.logsumexp(dim=0)
    weights = torch.where(lses.isfinite(), (lses - lse).exp(), 0.0)
    return (outs * weights[..., None].to(outs.dtype)).sum(dim=0), lse


def cascade_attention(
    q, prefix_k, prefix_v, prefix_length, k, v, length, scale=None, attend=decode_attention, merge=merge
):
    """Attention of sequences with one common prefix, stored once as [1, kv_heads, capacity, head_dim].

    With several newest tokens, these are all of the sequences' own. `attend` and `merge` are the backend's.
    """
    batch, kv_heads, head_dim = q.shape[0], k.shape[1], q.shape[-1]
    # Over the prefix, the queries of all sequences and of all their newest tokens are one large group of query heads.
    by_kv_head = q.reshape(batch, kv_heads, -1, head_dim).transpose(0, 1)
    together = by_kv_head.reshape(1, -1, head_dim)
    out, lse = attend(together, prefix_k, prefix_v, prefix_length, scale, return_lse=True)
    out = out.view(kv_heads, batch, -1, head_dim).transpose(0, 1).reshape(q.shape)
    lse = lse.view(kv_heads, batch, -1).transpose(0, 1).reshape(q.shape[:-1])
    own, own_lse = attend(q, k, v, length, scale, return_lse=True)
    return merge([out, own], [lse, own_lse])[0]
