"""Decode attention on a GPU: one Triton kernel that reads the cache, and a small one that adds up its parts.

The grid of `split_attention` is (KV heads × tiles of query heads, splits, batch). A program walks over its share of
one sequence's tokens, TILE at a time. It holds all query heads of the group, so that each cached byte is read once
for the whole group (and for all of the newest tokens, whose queries count as further heads), and keeps a running
maximum and sum (online softmax, arXiv 1805.02867). `combine` then weighs the parts by their log-sum-exp
(Flash-Decoding, arXiv 2311.01282).

Everything is written transposed, scores [tokens, heads] and output [dims, heads]: then the cache tile is the left
operand of both products, where the tensor cores take it straight from registers after it was widened, and where
8 heads are enough to fill an instruction.

A scale of a quantised cache belongs to a token. So it multiplies the token's score and its probability, one number
for a head, and never the tile, which has head_dim numbers for a token.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-1e30)


# Integers become numbers of COMPUTE by way of fp16: 0x6400 is 1024.0, and or-ing n < 1024 into its mantissa makes
# 1024 + n, so a subtraction on two lanes at once replaces a conversion, which GPUs do at a sixteenth of the rate.


@triton.jit
def widen(stored, COMPUTE: tl.constexpr):
    """Stored numbers in the type that the products are computed in; exact."""
    if stored.dtype == tl.int8:
        shifted = (stored.to(tl.uint8, bitcast=True) ^ 0x80).to(tl.uint16)
        return ((shifted | 0x6400).to(tl.float16, bitcast=True) - 1152.0).to(COMPUTE)
    else:
        return stored.to(COMPUTE)


@triton.jit
def widen_low(packed, COMPUTE: tl.constexpr):
    """0 to 15, from the low halves of bytes: the first half of the head dimension."""
    return (((packed & 0xF).to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - 1024.0).to(COMPUTE)


@triton.jit
def widen_high(packed, COMPUTE: tl.constexpr):
    """0 to 15, from the high halves of bytes: the second half of the head dimension. They come as 16 · n."""
    sixteenfold = ((packed & 0xF0).to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)
    return (sixteenfold * 0.0625 - 64.0).to(COMPUTE)


@triton.jit
def rotated(q_line, column, real, cos_line, sin_line, angle, WIDTH: tl.constexpr):
    """Columns of queries, turned to their places (`models.rope`): lane i is paired with lane i + WIDTH / 2."""
    HALF: tl.constexpr = WIDTH // 2
    partner = (column + HALF) % WIDTH
    sign = tl.where(column < HALF, -1.0, 1.0)
    x = tl.load(q_line + column[:, None], mask=real[None, :], other=0.0).to(tl.float32)
    other = tl.load(q_line + partner[:, None], mask=real[None, :], other=0.0).to(tl.float32)
    cos = tl.load(cos_line + angle[None, :] + column[:, None], mask=real[None, :], other=0.0)
    sin = tl.load(sin_line + angle[None, :] + column[:, None], mask=real[None, :], other=0.0)
    return x * cos + other * (sin * sign[:, None])


@triton.jit(do_not_specialize=["length"])
def split_attention(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, k_zero_ptr, v_zero_ptr, table_ptr, lengths_ptr,
    part_ptr, part_lse_ptr, cos_ptr, sin_ptr,
    length, softmax_scale, group, queries,
    q_stride_batch, q_stride_head, q_stride_query,
    k_stride_row, k_stride_head, k_stride_token,
    v_stride_row, v_stride_head, v_stride_line,
    scale_stride_row, scale_stride_head, scale_stride_token, scale_stride_half,
    table_stride,
    KV_HEADS: tl.constexpr,     # KV heads
    HEADS: tl.constexpr,        # query heads a program holds, padded to a power of two
    SEVERAL: tl.constexpr,      # every `queries` neighbouring heads are one head's queries for the newest tokens
    HEAD_TILES: tl.constexpr,   # programs that share one KV head
    WIDTH: tl.constexpr,        # columns of a K tile: head_dim, half of it for int4, the latent's rank for MLA
    TAIL: tl.constexpr,         # MLA: columns of the rotary key behind the latent; 0 elsewhere
    TILE: tl.constexpr,         # tokens a step
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,        # tokens of a block, a multiple of TILE; 0: the cache is not paged
    INT4: tl.constexpr,         # two numbers to a byte: dims i and i + head_dim/2
    SCALES: tl.constexpr,       # scales a token has: 0, 1, or 2 (int4, one for each half of head_dim)
    ZEROS: tl.constexpr,        # int4: True: value = nibble · scale + zero; False: value = (nibble - 8) · scale
    V_FORM: tl.constexpr,       # "rows" [token, dim], "columns" [dim, token], or "latent": V is the K tile itself
    COMPUTE: tl.constexpr,      # type of the products' operands; they are summed in float32
    RAGGED: tl.constexpr,       # True: each sequence's length is in lengths_ptr; False: all have `length`
    ROTATE: tl.constexpr,       # True: queries come unrotated, and theirs are the newest places of cos_ptr and sin_ptr
):  # fmt: skip
    """One share of one sequence: writes the attention output over it, and its log-sum-exp (natural).

    Tiles are loaded without a mask: the capacity is a multiple of TILE, and what lies beyond the length is finite.
    """
    kv_head = tl.program_id(0) // HEAD_TILES
    head_tile = tl.program_id(0) % HEAD_TILES
    split = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)

    if RAGGED:
        length = tl.load(lengths_ptr + batch)
    share = tl.cdiv(tl.cdiv(length, TILE), SPLITS) * TILE
    first = split * share
    last = tl.minimum(first + share, length)

    token = tl.arange(0, TILE)
    column = tl.arange(0, WIDTH)
    head = head_tile * HEADS + tl.arange(0, HEADS)
    real_head = head < group

    q_row = kv_head * group + head[None, :]
    q_head = q_ptr + batch * q_stride_batch
    if SEVERAL:
        q_head += q_row // queries * q_stride_head + q_row % queries * q_stride_query
    else:
        q_head += q_row * q_stride_head
    if ROTATE:
        DIM: tl.constexpr = 2 * WIDTH if INT4 else WIDTH
        if SEVERAL:
            newest = length - queries + head % queries
        else:
            newest = length - 1 + 0 * head
        angle = tl.maximum(newest, 0).to(tl.int64) * DIM
        q = rotated(q_head, column, real_head, cos_ptr, sin_ptr, angle, DIM).to(q_ptr.dtype.element_ty).to(COMPUTE)
    else:
        q = tl.load(q_head + column[:, None], mask=real_head[None, :], other=0.0).to(COMPUTE)
    if INT4:
        if ROTATE:
            q_high = rotated(q_head, WIDTH + column, real_head, cos_ptr, sin_ptr, angle, DIM)
            q_high = q_high.to(q_ptr.dtype.element_ty).to(COMPUTE)
        else:
            q_high = tl.load(q_head + WIDTH + column[:, None], mask=real_head[None, :], other=0.0).to(COMPUTE)
        q_sum = tl.sum(q.to(tl.float32), 0)
        q_high_sum = tl.sum(q_high.to(tl.float32), 0)
    if TAIL > 0:
        tail = tl.arange(0, TAIL)
        q_tail = tl.load(q_head + WIDTH + tail[:, None], mask=real_head[None, :], other=0.0).to(COMPUTE)

    # Queries before the last see fewer tokens, and perhaps none of a tile; hence a finite number below all scores.
    seen = length
    if SEVERAL:
        seen = (length - queries + 1 + head % queries)[None, :]
    top = tl.full([HEADS], LOWEST, tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    out = tl.zeros([WIDTH, HEADS], tl.float32)
    out_high = tl.zeros([WIDTH, HEADS], tl.float32)

    for start in range(first, last, TILE):
        # A tile lies in one block, so that it has one address and its rows stay 16-byte aligned.
        if BLOCK > 0:
            row = tl.load(table_ptr + batch * table_stride + start // BLOCK).to(tl.int64)
            inside = tl.multiple_of(start % BLOCK, TILE)
        else:
            row = batch
            inside = tl.multiple_of(start, TILE)

        k_tile = k_ptr + row * k_stride_row + kv_head * k_stride_head + inside.to(tl.int64) * k_stride_token
        k = tl.load(k_tile + token[:, None] * k_stride_token + column[None, :])
        scale_line = row * scale_stride_row + kv_head * scale_stride_head + (inside + token) * scale_stride_token

        if INT4:
            low = tl.dot(widen_low(k, COMPUTE), q, input_precision="ieee")
            high = tl.dot(widen_high(k, COMPUTE), q_high, input_precision="ieee")
            k_scale = tl.load(k_scale_ptr + scale_line).to(tl.float32)
            k_scale_high = k_scale
            if SCALES == 2:
                k_scale_high = tl.load(k_scale_ptr + scale_line + scale_stride_half).to(tl.float32)
            k_zero = -8.0 * k_scale
            k_zero_high = -8.0 * k_scale_high
            if ZEROS:
                k_zero = tl.load(k_zero_ptr + scale_line).to(tl.float32)
                k_zero_high = k_zero
                if SCALES == 2:
                    k_zero_high = tl.load(k_zero_ptr + scale_line + scale_stride_half).to(tl.float32)
            scores = low * k_scale[:, None] + high * k_scale_high[:, None]
            scores += k_zero[:, None] * q_sum[None, :] + k_zero_high[:, None] * q_high_sum[None, :]
        else:
            scores = tl.dot(widen(k, COMPUTE), q, input_precision="ieee")
            if TAIL > 0:
                k_tail = tl.load(k_tile + WIDTH + token[:, None] * k_stride_token + tail[None, :])
                scores = tl.dot(widen(k_tail, COMPUTE), q_tail, scores, input_precision="ieee")
            if SCALES == 1:
                scores *= tl.load(k_scale_ptr + scale_line).to(tl.float32)[:, None]

        in_sequence = start + token[:, None] < seen
        scores = tl.where(in_sequence, scores * (softmax_scale * LOG2_E), float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 0))
        fade = tl.exp2(top - new_top)
        weights = tl.exp2(scores - new_top[None, :])
        top = new_top
        total = total * fade + tl.sum(weights, 0)
        out *= fade[None, :]
        out_high *= fade[None, :]

        v_tile = v_ptr + row * v_stride_row + kv_head * v_stride_head
        if V_FORM == "latent":
            v = tl.trans(k)
        elif V_FORM == "columns":
            v = tl.load(v_tile + column[:, None] * v_stride_line + (inside + token)[None, :])
        else:
            v_tile += inside.to(tl.int64) * v_stride_line
            v = tl.trans(tl.load(v_tile + token[:, None] * v_stride_line + column[None, :]))

        if INT4:
            v_scale = tl.load(v_scale_ptr + scale_line).to(tl.float32)
            v_scale_high = v_scale
            if SCALES == 2:
                v_scale_high = tl.load(v_scale_ptr + scale_line + scale_stride_half).to(tl.float32)
            v_zero = -8.0 * v_scale
            v_zero_high = -8.0 * v_scale_high
            if ZEROS:
                v_zero = tl.load(v_zero_ptr + scale_line).to(tl.float32)
                v_zero_high = v_zero
                if SCALES == 2:
                    v_zero_high = tl.load(v_zero_ptr + scale_line + scale_stride_half).to(tl.float32)
            out += tl.sum(weights * v_zero[:, None], 0)[None, :]
            out_high += tl.sum(weights * v_zero_high[:, None], 0)[None, :]
            out = tl.dot(widen_low(v, COMPUTE), (weights * v_scale[:, None]).to(COMPUTE), out, input_precision="ieee")
            weights_high = (weights * v_scale_high[:, None]).to(COMPUTE)
            out_high = tl.dot(widen_high(v, COMPUTE), weights_high, out_high, input_precision="ieee")
        else:
            if SCALES == 1:
                weights *= tl.load(v_scale_ptr + scale_line).to(tl.float32)[:, None]
            out = tl.dot(widen(v, COMPUTE), weights.to(COMPUTE), out, input_precision="ieee")

    # An empty share has total = 0; its log-sum-exp of minus infinity gives it no weight in `combine`.
    some = total > 0
    divisor = tl.where(some, total, 1.0)
    line = ((batch * KV_HEADS + kv_head) * group + head) * SPLITS + split
    tl.store(part_lse_ptr + line, tl.where(some, (top + tl.log2(divisor)) * LN_2, float("-inf")), mask=real_head)
    OUT: tl.constexpr = 2 * WIDTH if INT4 else WIDTH
    part = part_ptr + line[None, :] * OUT + column[:, None]
    tl.store(part, out / divisor[None, :], mask=real_head[None, :])
    if INT4:
        tl.store(part + WIDTH, out_high / divisor[None, :], mask=real_head[None, :])


@triton.jit
def combine(
    part_ptr, part_lse_ptr, out_ptr, lse_ptr,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,  # PARTS rounded up to a power of two
    CHUNK: tl.constexpr,   # parts added up at a time, at most PADDED: all of them at once would not fit the registers
    WIDTH: tl.constexpr,
):  # fmt: skip
    """One query head: the average of its parts [PARTS, WIDTH], each weighed by exp(its log-sum-exp).

    Where every part is empty the output is 0 and the log-sum-exp minus infinity.
    """
    line = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    part = tl.arange(0, PADDED)
    lse = tl.load(part_lse_ptr + line * PARTS + part, mask=part < PARTS, other=float("-inf"))
    top = tl.max(lse, 0)
    safe_top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp(lse - safe_top), 0)
    out = tl.zeros([WIDTH], tl.float32)
    for first in range(0, PADDED, CHUNK):
        few = first + tl.arange(0, CHUNK)
        real = few < PARTS
        weights = tl.exp(tl.load(part_lse_ptr + line * PARTS + few, mask=real, other=float("-inf")) - safe_top)
        row = part_ptr + (line * PARTS + few[:, None]) * WIDTH
        out += tl.sum(tl.load(row + column[None, :], mask=real[:, None], other=0.0) * weights[:, None], 0)
    divisor = tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + line * WIDTH + column, (out / divisor).to(out_ptr.dtype.element_ty))
    tl.store(lse_ptr + line, tl.where(total > 0, safe_top + tl.log(divisor), float("-inf")))
