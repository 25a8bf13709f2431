"""What a decode step does beside attention and products, in few launches on a GPU.

`append` rotates the newest keys and puts them and their values into a cache, quantised on the way where the cache is.
`rotate_rows` turns the keys of a ring, which are stored as they came, to their places of this step. `add_norm` and
`silu_mul` are what stands between the products of a layer.
"""

import triton
import triton.language as tl

TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal float32, below which no scale may fall
FP8_LARGEST = tl.constexpr(448.0)  # of e4m3
TO_INTEGER = tl.constexpr(12582912.0)  # 1.5 · 2^23: a float32 that it is added to keeps no fraction


@triton.jit
def nearest(x):
    """x rounded to a whole number, ties to even, for |x| < 2^22."""
    return (x + TO_INTEGER) - TO_INTEGER


@triton.jit
def store_int8(low, high, column, numbers_ptr, scale_ptr, HALF: tl.constexpr):
    """One row with one symmetric scale, as `quantize.int8_per_token`."""
    largest = tl.maximum(tl.max(tl.abs(low), 0), tl.max(tl.abs(high), 0))
    scale = tl.maximum(tl.div_rn(largest, 127.0), TINY)
    tl.store(scale_ptr, scale)
    tl.store(numbers_ptr + column, nearest(tl.div_rn(low, scale)).to(tl.int8))
    tl.store(numbers_ptr + HALF + column, nearest(tl.div_rn(high, scale)).to(tl.int8))


@triton.jit
def grid_of(least, most):
    """Scale and zero of 16 levels between two numbers, as `quantize.asymmetric`."""
    return tl.maximum(tl.div_rn(most, 15.0) - tl.div_rn(least, 15.0), TINY), least


@triton.jit
def levels_of(x, scale, zero):
    """0 to 15."""
    level = nearest(tl.div_rn(x, scale) - tl.div_rn(zero, scale))
    return tl.minimum(tl.maximum(level, 0.0), 15.0).to(tl.uint8)


@triton.jit
def store_int4(low, high, column, numbers_ptr, scale_ptr, zero_ptr, GROUPS: tl.constexpr):
    """One row, packed, with a scale and a zero for it or for each half, as `quantize.per_token` and `pack_int4`."""
    least, most = tl.min(low, 0), tl.max(low, 0)
    high_least, high_most = tl.min(high, 0), tl.max(high, 0)
    if GROUPS == 1:
        least, most = tl.minimum(least, high_least), tl.maximum(most, high_most)
        high_least, high_most = least, most
    scale, zero = grid_of(least, most)
    high_scale, high_zero = grid_of(high_least, high_most)
    tl.store(scale_ptr, scale)
    tl.store(zero_ptr, zero)
    if GROUPS == 2:
        tl.store(scale_ptr + 1, high_scale)
        tl.store(zero_ptr + 1, high_zero)
    packed = levels_of(low, scale, zero) | (levels_of(high, high_scale, high_zero) << 4)
    tl.store(numbers_ptr + column, packed)


@triton.jit
def to_fp8(x):
    """As `quantize.to_fp8`: to nearest, ties to even; what lies beyond the largest number becomes it.

    Rounded first, in float32, so that converting is exact: Triton's interpreter (3.7.1) drops a carry there.
    """
    x = tl.minimum(tl.maximum(x.to(tl.float32), -FP8_LARGEST), FP8_LARGEST)
    bits = x.to(tl.int32, bitcast=True)
    kept = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000  # 3 bits of mantissa
    steps = nearest(x * 512.0) / 512.0  # below 2^-6 all numbers are 2^-9 apart
    return tl.where(tl.abs(x) < 0.015625, steps, kept.to(tl.float32, bitcast=True)).to(tl.float8e4nv)


@triton.jit
def rotated(first, second, cos_ptr, sin_ptr, angle, HALF: tl.constexpr):
    """Both halves of rows, turned (`models.rope`), in float32."""
    first, second = first.to(tl.float32), second.to(tl.float32)
    low = first * tl.load(cos_ptr + angle) - second * tl.load(sin_ptr + angle)
    high = second * tl.load(cos_ptr + HALF + angle) + first * tl.load(sin_ptr + HALF + angle)
    return low, high


@triton.jit(do_not_specialize=["start"])
def append(
    k_ptr, v_ptr, cos_ptr, sin_ptr, starts_ptr, start, table_ptr, table_stride,
    keys_ptr, key_scales_ptr, key_zeros_ptr, values_ptr, value_scales_ptr, value_zeros_ptr,
    k_stride_batch, k_stride_head, k_stride_token, v_stride_batch, v_stride_head, v_stride_token,
    heads, tokens, capacity,
    HALF: tl.constexpr,    # half of head_dim, a power of two
    FORM: tl.constexpr,    # "plain", "fp8", "int8" or "int4"
    GROUPS: tl.constexpr,  # int4: scales of a row, 1 or 2
    RAGGED: tl.constexpr,  # True: each sequence's first new token stands at starts_ptr[sequence], not at `start`
    BLOCK: tl.constexpr,   # tokens of a block of a paged cache, in which table_ptr names each sequence's; 0: no blocks
    ROTATE: tl.constexpr,  # False: the key is stored as it came
):  # fmt: skip
    """One new token of one KV head: its key, rotated, and its value into rows [sequence, head, token] of a layer's
    contiguous cache, or [block, head, token] of a pool."""
    token = tl.program_id(0) % tokens
    head = tl.program_id(0) // tokens
    batch = tl.program_id(1).to(tl.int64)
    position = start
    if RAGGED:
        position = tl.load(starts_ptr + batch).to(tl.int32)
    position += token
    column = tl.arange(0, HALF)

    angle = position.to(tl.int64) * (2 * HALF) + column
    k_row = k_ptr + batch * k_stride_batch + head * k_stride_head + token * k_stride_token
    v_row = v_ptr + batch * v_stride_batch + head * v_stride_head + token * v_stride_token
    low, high = tl.load(k_row + column), tl.load(k_row + HALF + column)
    if ROTATE:
        low, high = rotated(low, high, cos_ptr, sin_ptr, angle, HALF)
        # A rotated key has the type it came in, as it has where nothing is fused.
        low, high = low.to(k_ptr.dtype.element_ty), high.to(k_ptr.dtype.element_ty)
    v_low, v_high = tl.load(v_row + column), tl.load(v_row + HALF + column)

    row = (batch * heads + head) * capacity + position
    if BLOCK > 0:
        block = tl.load(table_ptr + batch * table_stride + position // BLOCK).to(tl.int64)
        row = (block * heads + head) * BLOCK + position % BLOCK
    if FORM == "plain" or FORM == "fp8":
        if FORM == "fp8":
            low, high, v_low, v_high = to_fp8(low), to_fp8(high), to_fp8(v_low), to_fp8(v_high)
        row = row * (2 * HALF) + column
        tl.store(keys_ptr + row, low.to(keys_ptr.dtype.element_ty))
        tl.store(keys_ptr + HALF + row, high.to(keys_ptr.dtype.element_ty))
        tl.store(values_ptr + row, v_low.to(values_ptr.dtype.element_ty))
        tl.store(values_ptr + HALF + row, v_high.to(values_ptr.dtype.element_ty))
    elif FORM == "int8":
        start_of = row * (2 * HALF)
        store_int8(low.to(tl.float32), high.to(tl.float32), column, keys_ptr + start_of, key_scales_ptr + row, HALF)
        store_int8(
            v_low.to(tl.float32), v_high.to(tl.float32), column, values_ptr + start_of, value_scales_ptr + row, HALF
        )
    else:
        start_of, group = row * HALF, row * GROUPS
        store_int4(
            low.to(tl.float32), high.to(tl.float32), column,
            keys_ptr + start_of, key_scales_ptr + group, key_zeros_ptr + group, GROUPS,
        )  # fmt: skip
        store_int4(
            v_low.to(tl.float32), v_high.to(tl.float32), column,
            values_ptr + start_of, value_scales_ptr + group, value_zeros_ptr + group, GROUPS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["held", "oldest"])
def rotate_rows(
    keys_ptr, cos_ptr, sin_ptr, out_ptr, held, oldest, sinks, window, rows,
    HALF: tl.constexpr,  # half of head_dim, a power of two
    TILE: tl.constexpr,
):  # fmt: skip
    """A tile of the first `held` of `rows` rows of one sequence and KV head, rotated to their places in the cache: the
    sinks first, then the ring from its row `oldest` on (`caches.sink`)."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    place = tl.where(row < sinks, row, (row - sinks - oldest + window) % window + sinks)
    column = tl.arange(0, HALF)[None, :]
    inside = (row < held)[:, None] & (column < HALF)
    line = (tl.program_id(1).to(tl.int64) * rows + row)[:, None] * (2 * HALF) + column
    angle = tl.where(inside, place[:, None] * (2 * HALF) + column, 0)
    first = tl.load(keys_ptr + line, mask=inside, other=0.0)
    second = tl.load(keys_ptr + HALF + line, mask=inside, other=0.0)
    low, high = rotated(first, second, cos_ptr, sin_ptr, angle, HALF)
    tl.store(out_ptr + line, low.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(out_ptr + HALF + line, high.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_norm(
    x_ptr, more_ptr, weight_ptr, sum_ptr, out_ptr, eps,
    width,
    PADDED: tl.constexpr,  # width rounded up to a power of two
    ADD: tl.constexpr,     # False: only the norm of x
):  # fmt: skip
    """One row: sum = x + more, out = sum / rms(sum) · weight (Zhang and Sennrich, arXiv 1910.07467)."""
    column = tl.arange(0, PADDED)
    inside = column < width
    line = tl.program_id(0).to(tl.int64) * width + column
    x = tl.load(x_ptr + line, mask=inside, other=0.0)
    if ADD:
        x += tl.load(more_ptr + line, mask=inside, other=0.0)
        tl.store(sum_ptr + line, x, mask=inside)
    wide = x.to(tl.float32)
    rms = tl.sqrt_rn(tl.sum(wide * wide, 0) / width + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + line, (wide / rms * weight).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def silu_mul(gate_up_ptr, out_ptr, width, PIECE: tl.constexpr):
    """A piece of a row: silu(gate) · up, of rows [gate, up] of 2 · width numbers (Shazeer, arXiv 2002.05202)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    inside = column < width
    gate = tl.load(gate_up_ptr + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * width + column, (silu * up).to(out_ptr.dtype.element_ty), mask=inside)
