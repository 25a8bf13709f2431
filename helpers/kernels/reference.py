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
    """Attention of one new token per sequence; see `helpers.kernels` for the shapes."""
    if block_table is not None:
        k, v = gather(k, block_table), gather(v, block_table)
    batch, q_heads, head_dim = q.shape
    kv_heads, capacity = k.shape[1], k.shape[2]
    if q_heads % kv_heads:
        raise ValueError(f"{q_heads} query heads cannot share {kv_heads} KV heads evenly")
    used = capacity if isinstance(length, torch.Tensor) else length
    if not 0 <= used <= capacity:
        raise ValueError(f"length must lie between 0 and the cache's capacity of {capacity} tokens, not {length}")
    k, v = k[:, :, :used], v[:, :, :used]
    # The query heads that share a KV head are the rows of one small matrix, so that K and V are read once for all.
    grouped = q.view(batch, kv_heads, q_heads // kv_heads, head_dim)
    scores = grouped @ k.transpose(-1, -2) * (head_dim**-0.5 if scale is None else scale)
    if isinstance(length, torch.Tensor):
        beyond = torch.arange(used, device=q.device) >= length.view(-1, 1, 1, 1)
        scores = scores.masked_fill(beyond, -torch.inf)
        v = v.masked_fill(beyond.transpose(-1, -2), 0.0)  # zero times what lies there may not be zero
    lse = scores.float().logsumexp(dim=-1, keepdim=True)
    weights = torch.where(lse.isfinite(), (scores - lse).exp(), 0.0).to(v.dtype)
    out = (weights @ v).view(batch, q_heads, v.shape[-1])
    return (out, lse.view(batch, q_heads)) if return_lse else out


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
        outs: one [batch, q_heads, width] per stretch.
        lses: their log-sum-exps, [batch, q_heads] each.

    Returns:
        The same two over all keys: [batch, q_heads, width] and [batch, q_heads].
    """
    outs, lses = torch.stack(list(outs)), torch.stack(list(lses))
    lse = lses.logsumexp(dim=0)
    weights = torch.where(lses.isfinite(), (lses - lse).exp(), 0.0)
    return (outs * weights[..., None].to(outs.dtype)).sum(dim=0), lse


def cascade_attention(q, prefix_k, prefix_v, prefix_length, k, v, length, scale=None, attend=decode_attention):
    """Attention of sequences with one common prefix, stored once as [1, kv_heads, capacity, head_dim].

    `attend` is the backend's own `decode_attention`.
    """
    batch, q_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    # Over the prefix, the queries of all sequences are one large group of query heads.
    by_kv_head = q.view(batch, kv_heads, -1, head_dim).transpose(0, 1)
    together = by_kv_head.reshape(1, batch * q_heads, head_dim)
    out, lse = attend(together, prefix_k, prefix_v, prefix_length, scale, return_lse=True)
    out = out.view(kv_heads, batch, -1, head_dim).transpose(0, 1).reshape(batch, q_heads, head_dim)
    lse = lse.view(kv_heads, batch, -1).transpose(0, 1).reshape(batch, q_heads)
    own, own_lse = attend(q, k, v, length, scale, return_lse=True)
    return merge([out, own], [lse, own_lse])[0]
