"""The compiled loops behind `helpers.kernels.cpu`: what a core does with the bytes that a decode step streams.

A loop can run as fast as memory delivers only if the core has enough independent work, and its prefetching a long run
to follow. Hence the habits here: several rows or tokens at a time (independent sums, so that one addition need not wait
for the one before), taken from long stretches side by side and not from next to each other; query heads that share a
KV head in one pass (a cached number is loaded and converted once for up to four heads); and an exponential made of
multiplications, which LLVM vectorises, where a call to `exp` would be one number at a time.

All of it lives in one file because numba's on-disk cache notices a change only in the file of the outermost function.
"""

import numba
import numpy as np
from numba import prange

f32 = np.float32
# Tokens of a tile where int4 numbers are expanded to float32 first: these have to stay in the first-level cache.
EXPANDED_TILE = 64
LOG2_E = f32(1.4426950408889634)
LN_2 = f32(0.6931471805599453)
LARGEST, TINY = np.finfo(np.float32).max, np.finfo(np.float32).tiny
LOWEST = f32(-1e30)  # a score below all others; finite, since `fastmath` may assume that no infinity occurs


# Only loops written as `prange` are handed to several cores; numba would do the same to each small array expression.
ONLY_PRANGE = dict.fromkeys(
    ("comprehension", "reduction", "inplace_binop", "setitem", "numpy", "stencil", "fusion"), False
) | {"prange": True}


def _compiled(**options):
    """`numba.njit` with the machine code cached on disk, or only in memory where no directory can be written."""
    options = {"fastmath": True, "error_model": "numpy"} | options

    def decorate(function):
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # numba found neither the checkout nor the user's cache directory writable
            return numba.njit(**options)(function)

    return decorate


@_compiled(inline="always")
def _exp2(x):
    """2^x for x ≤ 0 to float32 precision: 2^floor(x) is put into the exponent bits, the rest is a polynomial."""
    x = max(x, f32(-126.0))
    whole = np.floor(x)
    rest = x - whole
    p = f32(1.8775767e-3)
    p = p * rest + f32(8.9893397e-3)
    p = p * rest + f32(5.5826318e-2)
    p = p * rest + f32(2.4015361e-1)
    p = p * rest + f32(6.9315308e-1)
    p = p * rest + f32(9.9999994e-1)
    return p * np.int32((whole + f32(127.0)) * f32(8388608.0)).view(np.float32)


# ---------------------------------------------------------------------------------------------------------------
# Linear: every row of the matrix is read once and used for all sequences of the batch.


@_compiled(no_cpython_wrapper=True)
def _rows4(w, i, apart, x, b, y):
    """Four rows, `apart` from each other, against sequence b."""
    i1, i2, i3 = i + apart, i + 2 * apart, i + 3 * apart
    r0 = r1 = r2 = r3 = f32(0)
    for j in range(w.shape[1]):
        n = x[b, j]
        r0 += w[i, j] * n
        r1 += w[i1, j] * n
        r2 += w[i2, j] * n
        r3 += w[i3, j] * n
    y[b, i], y[b, i1], y[b, i2], y[b, i3] = r0, r1, r2, r3


@_compiled(no_cpython_wrapper=True)
def _rows2_batch2(w, i, i1, x, b, y):
    """Two rows against sequences b and b + 1."""
    r0 = r1 = s0 = s1 = f32(0)
    for j in range(w.shape[1]):
        r, s = w[i, j], w[i1, j]
        r0 += r * x[b, j]
        r1 += r * x[b + 1, j]
        s0 += s * x[b, j]
        s1 += s * x[b + 1, j]
    y[b, i], y[b + 1, i], y[b, i1], y[b + 1, i1] = r0, r1, s0, s1


@_compiled(no_cpython_wrapper=True)
def _rows4_batch4(w, i, apart, x, b, y):
    """Four rows, `apart` from each other, against sequences b … b + 3."""
    i1, i2, i3 = i + apart, i + 2 * apart, i + 3 * apart
    b1, b2, b3 = b + 1, b + 2, b + 3
    p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = f32(0)
    r0 = r1 = r2 = r3 = s0 = s1 = s2 = s3 = f32(0)
    for j in range(w.shape[1]):
        w0, w1, w2, w3 = w[i, j], w[i1, j], w[i2, j], w[i3, j]
        n = x[b, j]
        p0 += w0 * n
        p1 += w1 * n
        p2 += w2 * n
        p3 += w3 * n
        n = x[b1, j]
        q0 += w0 * n
        q1 += w1 * n
        q2 += w2 * n
        q3 += w3 * n
        n = x[b2, j]
        r0 += w0 * n
        r1 += w1 * n
        r2 += w2 * n
        r3 += w3 * n
        n = x[b3, j]
        s0 += w0 * n
        s1 += w1 * n
        s2 += w2 * n
        s3 += w3 * n
    y[b, i], y[b, i1], y[b, i2], y[b, i3] = p0, p1, p2, p3
    y[b1, i], y[b1, i1], y[b1, i2], y[b1, i3] = q0, q1, q2, q3
    y[b2, i], y[b2, i1], y[b2, i2], y[b2, i3] = r0, r1, r2, r3
    y[b3, i], y[b3, i1], y[b3, i2], y[b3, i3] = s0, s1, s2, s3


@_compiled(no_cpython_wrapper=True)
def _row1(w, i, x, b, y):
    total = f32(0)
    for j in range(w.shape[1]):
        total += w[i, j] * x[b, j]
    y[b, i] = total


@_compiled(no_cpython_wrapper=True)
def _rows(w, first, last, x, y):
    """Rows first … last-1 for the whole batch, in four stretches side by side.

    Each is read from one end to the other, which is what the hardware's prefetching knows how to run ahead of; four
    neighbouring rows at a time had 0.8× the speed.
    """
    batch, apart = x.shape[0], (last - first) // 4
    for i in range(first, first + apart):
        b = 0
        while b + 4 <= batch:
            _rows4_batch4(w, i, apart, x, b, y)
            b += 4
        if b + 2 <= batch:
            _rows2_batch2(w, i, i + apart, x, b, y)
            _rows2_batch2(w, i + 2 * apart, i + 3 * apart, x, b, y)
            b += 2
        if b < batch:
            _rows4(w, i, apart, x, b, y)
    for i in range(first + 4 * apart, last):
        for b in range(batch):
            _row1(w, i, x, b, y)


@_compiled(no_cpython_wrapper=True)
def _part(task, tasks, rows):
    """(first, last + 1) of the rows that a task gets: whole groups of four, as even as they come."""
    share = (-(-rows // tasks) + 3) // 4 * 4
    return min(task * share, rows), min(task * share + share, rows)


@_compiled(no_cpython_wrapper=True)
def _add(x, first, last, y):
    for b in range(x.shape[0]):
        for i in range(first, last):
            y[b, i] += x[b, i]


@_compiled(parallel=ONLY_PRANGE)
def linear(x, w, y, tasks):
    """y = x · wᵀ; x [batch, inputs], w [outputs, inputs], y [batch, outputs]; `tasks` cores share the rows."""
    for task in prange(tasks):
        first, last = _part(task, tasks, w.shape[0])
        _rows(w, first, last, x, y)


@_compiled(no_cpython_wrapper=True)
def _rms_norm(x, weight, eps, out):
    for b in range(x.shape[0]):
        total = f32(0)
        for j in range(x.shape[1]):
            total += x[b, j] * x[b, j]
        factor = f32(1.0) / np.sqrt(total / f32(x.shape[1]) + eps)
        for j in range(x.shape[1]):
            out[b, j] = x[b, j] * factor * weight[j]


@_compiled(parallel=ONLY_PRANGE)
def norm_linear(x, norm, eps, w, y, tasks):
    """y = rms_norm(x) · wᵀ."""
    normed = np.empty_like(x)
    _rms_norm(x, norm, eps, normed)
    for task in prange(tasks):
        first, last = _part(task, tasks, w.shape[0])
        _rows(w, first, last, normed, y)


@_compiled(no_cpython_wrapper=True)
def _gate(wide, first, last, gated):
    """gated = silu(gate) · up for columns first … last-1; wide [batch, 2 · width] holds gates, then ups."""
    width = gated.shape[1]
    for b in range(gated.shape[0]):
        for j in range(first, last):
            gate = wide[b, j]
            # silu(g) = g / (1 + e^-g); the power is taken of -|g| ≤ 0 and moved to the side where it belongs.
            e = _exp2(-abs(gate) * LOG2_E)
            gated[b, j] = wide[b, width + j] * gate * (f32(1.0) if gate >= 0 else e) / (f32(1.0) + e)


@_compiled(parallel=ONLY_PRANGE)
def finish_block(mixed, x, out, norm, eps, gate_up, down, y, tasks):
    """h = x + out · mixed; y = h + down · (silu(gate) · up), gate and up of rms_norm(h) (SwiGLU, arXiv 2002.05202)."""
    batch, width = x.shape[0], down.shape[1]
    h, normed = np.empty_like(x), np.empty_like(x)
    wide = np.empty((batch, 2 * width), np.float32)
    gated = np.empty((batch, width), np.float32)
    for task in prange(tasks):
        first, last = _part(task, tasks, out.shape[0])
        _rows(out, first, last, mixed, h)
        _add(x, first, last, h)
    _rms_norm(h, norm, eps, normed)
    for task in prange(tasks):
        # Gates and ups of the same columns, so that the core that has them also multiplies them.
        first, last = _part(task, tasks, width)
        _rows(gate_up, first, last, normed, wide)
        _rows(gate_up, width + first, width + last, normed, wide)
        _gate(wide, first, last, gated)
    for task in prange(tasks):
        first, last = _part(task, tasks, down.shape[0])
        _rows(down, first, last, gated, y)
        _add(h, first, last, y)


# ---------------------------------------------------------------------------------------------------------------
# The newest tokens on their way into a cache: rotated (half-split; cos and sin are [positions, head_dim]), quantised
# where the cache is, and written to their positions of a layer, from `position` on. Without `fastmath`, so that the
# bits are those that torch computes for a whole prompt. Each returns whether it stored the tokens: a quantised cache
# refuses what is not finite.


@_compiled(fastmath=False)
def rotate(x, cos, sin, position, out):
    """out = x rotated to `position` and on, both [batch, heads, t, head_dim]."""
    half = x.shape[3] // 2
    for b in range(x.shape[0]):
        for h in range(x.shape[1]):
            for i in range(x.shape[2]):
                p = position + i
                for d in range(half):
                    first, second = x[b, h, i, d], x[b, h, i, half + d]
                    out[b, h, i, d] = first * cos[p, d] - second * sin[p, d]
                    out[b, h, i, half + d] = second * cos[p, half + d] + first * sin[p, half + d]


@_compiled(fastmath=False)
def append_float32(k, v, cos, sin, position, keys, values):
    """k and v [batch, kv_heads, t, head_dim] into float32 [batch, kv_heads, capacity, head_dim]."""
    rotate(k, cos, sin, position, keys[:, :, position : position + k.shape[2]])
    for b in range(v.shape[0]):
        for h in range(v.shape[1]):
            for i in range(v.shape[2]):
                for d in range(v.shape[3]):
                    values[b, h, position + i, d] = v[b, h, i, d]
    return True


@_compiled(fastmath=False, no_cpython_wrapper=True)
def _finite(x):
    for b in range(x.shape[0]):
        for h in range(x.shape[1]):
            for i in range(x.shape[2]):
                for d in range(x.shape[3]):
                    if not abs(x[b, h, i, d]) <= LARGEST:
                        return False
    return True


@_compiled(fastmath=False, no_cpython_wrapper=True)
def _to_int8(x, position, numbers, scale):
    """As `helpers.kernels.quantize.int8_per_token`: x [batch, heads, t, head_dim] → int8 [batch, heads, capacity,
    head_dim], and scale [batch, heads, capacity]."""
    for b in range(x.shape[0]):
        for h in range(x.shape[1]):
            for i in range(x.shape[2]):
                largest = f32(0)
                for d in range(x.shape[3]):
                    largest = max(largest, abs(x[b, h, i, d]))
                step = max(largest / f32(127), TINY)
                for d in range(x.shape[3]):
                    numbers[b, h, position + i, d] = np.int8(np.rint(x[b, h, i, d] / step))
                scale[b, h, position + i] = step


@_compiled(fastmath=False)
def append_int8(k, v, cos, sin, position, k_q, k_scale, v_q, v_scale):
    """The same into int8 [batch, kv_heads, capacity, head_dim], scales [batch, kv_heads, capacity]."""
    if not (_finite(k) and _finite(v)):
        return False
    rotated = np.empty(k.shape, np.float32)
    rotate(k, cos, sin, position, rotated)
    _to_int8(rotated, position, k_q, k_scale)
    _to_int8(v, position, v_q, v_scale)
    return True


@_compiled(fastmath=False, no_cpython_wrapper=True)
def _to_int4(x, position, packed, scale, zero):
    """As `helpers.kernels.quantize.per_token` with 4 bits: x [batch, heads, t, head_dim] → packed [batch, heads,
    capacity, head_dim / 2], scale and zero [batch, heads, capacity, groups]."""
    half, groups = x.shape[3] // 2, scale.shape[3]
    width = x.shape[3] // groups
    levels = np.empty(x.shape[3], np.uint8)
    for b in range(x.shape[0]):
        for h in range(x.shape[1]):
            for i in range(x.shape[2]):
                p = position + i
                for c in range(groups):
                    low = high = x[b, h, i, c * width]
                    for d in range(c * width, c * width + width):
                        low, high = min(low, x[b, h, i, d]), max(high, x[b, h, i, d])
                    step = max(high / f32(15) - low / f32(15), TINY)
                    for d in range(c * width, c * width + width):
                        level = np.rint(x[b, h, i, d] / step - low / step)
                        levels[d] = np.uint8(min(max(level, f32(0)), f32(15)))
                    scale[b, h, p, c], zero[b, h, p, c] = step, low
                for d in range(half):
                    packed[b, h, p, d] = levels[d] | levels[half + d] << np.uint8(4)


@_compiled(fastmath=False)
def append_int4(k, v, cos, sin, position, k_q, k_scale, k_zero, v_q, v_scale, v_zero):
    """The same into packed [batch, kv_heads, capacity, head_dim / 2],
    scales and zeros [batch, kv_heads, capacity, groups]."""
    if not (_finite(k) and _finite(v)):
        return False
    rotated = np.empty(k.shape, np.float32)
    rotate(k, cos, sin, position, rotated)
    _to_int4(rotated, position, k_q, k_scale, k_zero)
    _to_int4(v, position, v_q, v_scale, v_zero)
    return True


# ---------------------------------------------------------------------------------------------------------------
# Attention over a tile, whose keys are read in two or four stretches side by side, then its values. `keys` and `values`
# are [tokens, head_dim], float32 or int8.


@_compiled(no_cpython_wrapper=True)
def _scores1(q, g, keys, first, s):
    """s[g, t] = q[g] · keys[t] for t ≥ first: one query head, four tokens at a time."""
    apart = (keys.shape[0] - first) // 4
    for t in range(first, first + apart):
        t1, t2, t3 = t + apart, t + 2 * apart, t + 3 * apart
        a = b = c = e = f32(0)
        for d in range(q.shape[1]):
            n = q[g, d]
            a += n * f32(keys[t, d])
            b += n * f32(keys[t1, d])
            c += n * f32(keys[t2, d])
            e += n * f32(keys[t3, d])
        s[g, t], s[g, t1], s[g, t2], s[g, t3] = a, b, c, e
    for t in range(first + 4 * apart, keys.shape[0]):
        a = f32(0)
        for d in range(q.shape[1]):
            a += q[g, d] * f32(keys[t, d])
        s[g, t] = a


@_compiled(no_cpython_wrapper=True)
def _scores2(q, g, keys, s):
    """Query heads g and g + 1, two tokens at a time."""
    apart = keys.shape[0] // 2
    for t in range(apart):
        t1 = t + apart
        a0 = a1 = b0 = b1 = f32(0)
        for d in range(q.shape[1]):
            k0, k1 = f32(keys[t, d]), f32(keys[t1, d])
            a0 += q[g, d] * k0
            a1 += q[g, d] * k1
            b0 += q[g + 1, d] * k0
            b1 += q[g + 1, d] * k1
        s[g, t], s[g, t1], s[g + 1, t], s[g + 1, t1] = a0, a1, b0, b1
    for head in range(g, g + 2):
        _scores1(q, head, keys, 2 * apart, s)


@_compiled(no_cpython_wrapper=True)
def _scores3(q, g, keys, s):
    """Query heads g … g + 2, two tokens at a time."""
    apart = keys.shape[0] // 2
    for t in range(apart):
        t1 = t + apart
        a0 = a1 = b0 = b1 = c0 = c1 = f32(0)
        for d in range(q.shape[1]):
            k0, k1 = f32(keys[t, d]), f32(keys[t1, d])
            a0 += q[g, d] * k0
            a1 += q[g, d] * k1
            b0 += q[g + 1, d] * k0
            b1 += q[g + 1, d] * k1
            c0 += q[g + 2, d] * k0
            c1 += q[g + 2, d] * k1
        s[g, t], s[g, t1], s[g + 1, t] = a0, a1, b0
        s[g + 1, t1], s[g + 2, t], s[g + 2, t1] = b1, c0, c1
    for head in range(g, g + 3):
        _scores1(q, head, keys, 2 * apart, s)


@_compiled(no_cpython_wrapper=True)
def _scores4(q, g, keys, s):
    """Query heads g … g + 3, two tokens at a time."""
    apart = keys.shape[0] // 2
    for t in range(apart):
        t1 = t + apart
        a0 = a1 = b0 = b1 = c0 = c1 = e0 = e1 = f32(0)
        for d in range(q.shape[1]):
            k0, k1 = f32(keys[t, d]), f32(keys[t1, d])
            a0 += q[g, d] * k0
            a1 += q[g, d] * k1
            b0 += q[g + 1, d] * k0
            b1 += q[g + 1, d] * k1
            c0 += q[g + 2, d] * k0
            c1 += q[g + 2, d] * k1
            e0 += q[g + 3, d] * k0
            e1 += q[g + 3, d] * k1
        s[g, t], s[g, t1], s[g + 1, t], s[g + 1, t1] = a0, a1, b0, b1
        s[g + 2, t], s[g + 2, t1], s[g + 3, t], s[g + 3, t1] = c0, c1, e0, e1
    for head in range(g, g + 4):
        _scores1(q, head, keys, 2 * apart, s)


@_compiled(no_cpython_wrapper=True)
def _values1(p, g, values, first, out):
    """out[g] += Σ p[g, t] · values[t] for t ≥ first: one query head, eight tokens each time `out` is touched."""
    apart = (values.shape[0] - first) // 8 * 2
    for t in range(first, first + apart, 2):
        t1, t2, t3 = t + apart, t + 2 * apart, t + 3 * apart
        p0, p1, p2, p3 = p[g, t], p[g, t + 1], p[g, t1], p[g, t1 + 1]
        p4, p5, p6, p7 = p[g, t2], p[g, t2 + 1], p[g, t3], p[g, t3 + 1]
        for d in range(out.shape[1]):
            a = p0 * f32(values[t, d]) + p1 * f32(values[t + 1, d])
            b = p2 * f32(values[t1, d]) + p3 * f32(values[t1 + 1, d])
            c = p4 * f32(values[t2, d]) + p5 * f32(values[t2 + 1, d])
            e = p6 * f32(values[t3, d]) + p7 * f32(values[t3 + 1, d])
            out[g, d] += (a + b) + (c + e)
    for t in range(first + 4 * apart, values.shape[0]):
        for d in range(out.shape[1]):
            out[g, d] += p[g, t] * f32(values[t, d])


@_compiled(no_cpython_wrapper=True)
def _values2(p, g, values, out):
    """Query heads g and g + 1, four tokens at a time."""
    apart = values.shape[0] // 4
    for t in range(apart):
        t1, t2, t3 = t + apart, t + 2 * apart, t + 3 * apart
        a0, a1, a2, a3 = p[g, t], p[g, t1], p[g, t2], p[g, t3]
        b0, b1, b2, b3 = p[g + 1, t], p[g + 1, t1], p[g + 1, t2], p[g + 1, t3]
        for d in range(out.shape[1]):
            v0, v1, v2, v3 = f32(values[t, d]), f32(values[t1, d]), f32(values[t2, d]), f32(values[t3, d])
            a = a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
            b = b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
            out[g, d] += a
            out[g + 1, d] += b
    for head in range(g, g + 2):
        _values1(p, head, values, 4 * apart, out)


@_compiled(no_cpython_wrapper=True)
def _values3(p, g, values, out):
    """Query heads g … g + 2, four tokens at a time."""
    apart = values.shape[0] // 4
    for t in range(apart):
        t1, t2, t3 = t + apart, t + 2 * apart, t + 3 * apart
        a0, a1, a2, a3 = p[g, t], p[g, t1], p[g, t2], p[g, t3]
        b0, b1, b2, b3 = p[g + 1, t], p[g + 1, t1], p[g + 1, t2], p[g + 1, t3]
        c0, c1, c2, c3 = p[g + 2, t], p[g + 2, t1], p[g + 2, t2], p[g + 2, t3]
        for d in range(out.shape[1]):
            v0, v1, v2, v3 = f32(values[t, d]), f32(values[t1, d]), f32(values[t2, d]), f32(values[t3, d])
            a = a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
            b = b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
            c = c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
            out[g, d] += a
            out[g + 1, d] += b
            out[g + 2, d] += c
    for head in range(g, g + 3):
        _values1(p, head, values, 4 * apart, out)


@_compiled(no_cpython_wrapper=True)
def _values4(p, g, values, out):
    """Query heads g … g + 3, four tokens at a time."""
    apart = values.shape[0] // 4
    for t in range(apart):
        t1, t2, t3 = t + apart, t + 2 * apart, t + 3 * apart
        a0, a1, a2, a3 = p[g, t], p[g, t1], p[g, t2], p[g, t3]
        b0, b1, b2, b3 = p[g + 1, t], p[g + 1, t1], p[g + 1, t2], p[g + 1, t3]
        c0, c1, c2, c3 = p[g + 2, t], p[g + 2, t1], p[g + 2, t2], p[g + 2, t3]
        e0, e1, e2, e3 = p[g + 3, t], p[g + 3, t1], p[g + 3, t2], p[g + 3, t3]
        for d in range(out.shape[1]):
            v0, v1, v2, v3 = f32(values[t, d]), f32(values[t1, d]), f32(values[t2, d]), f32(values[t3, d])
            a = a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
            b = b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
            c = c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
            e = e0 * v0 + e1 * v1 + e2 * v2 + e3 * v3
            out[g, d] += a
            out[g + 1, d] += b
            out[g + 2, d] += c
            out[g + 3, d] += e
    for head in range(g, g + 4):
        _values1(p, head, values, 4 * apart, out)


@_compiled(no_cpython_wrapper=True)
def _scores(q, keys, s):
    """s[g, t] = q[g] · keys[t] for all query heads of a group."""
    heads = q.shape[0]
    g = 0
    while heads - g >= 4:
        _scores4(q, g, keys, s)
        g += 4
    if heads - g == 3:
        _scores3(q, g, keys, s)
        g += 3
    if heads - g == 2:
        _scores2(q, g, keys, s)
        g += 2
    if g < heads:
        _scores1(q, g, keys, 0, s)


@_compiled(no_cpython_wrapper=True)
def _values(p, values, out):
    """out[g] += Σ p[g, t] · values[t] for all query heads of a group."""
    heads = p.shape[0]
    g = 0
    while heads - g >= 4:
        _values4(p, g, values, out)
        g += 4
    if heads - g == 3:
        _values3(p, g, values, out)
        g += 3
    if heads - g == 2:
        _values2(p, g, values, out)
        g += 2
    if g < heads:
        _values1(p, g, values, 0, out)


@_compiled(no_cpython_wrapper=True)
def _highest(s, g, tokens):
    """The largest of s[g, :tokens], in four strands: LLVM takes a maximum one number at a time, behind one another."""
    a = b = c = e = LOWEST
    whole = tokens - tokens % 4
    for t in range(0, whole, 4):
        a, b = max(a, s[g, t]), max(b, s[g, t + 1])
        c, e = max(c, s[g, t + 2]), max(e, s[g, t + 3])
    for t in range(whole, tokens):
        a = max(a, s[g, t])
    return max(max(a, b), max(c, e))


@_compiled(no_cpython_wrapper=True)
def _softmax(s, tokens, top, total, out):
    """Online softmax (arXiv 1805.02867): turn scores into exp2(score - running maximum), in place.

    When the maximum rises, what was summed under the old one is scaled down.
    """
    for g in range(s.shape[0]):
        highest = max(top[g], _highest(s, g, tokens))
        if highest > top[g]:
            shrink = _exp2(top[g] - highest)
            total[g] *= shrink
            for d in range(out.shape[1]):
                out[g, d] *= shrink
            top[g] = highest
        added = f32(0)
        for t in range(tokens):
            p = _exp2(s[g, t] - highest)
            s[g, t] = p
            added += p
        total[g] += added


@_compiled(no_cpython_wrapper=True)
def _multiply_tokens(s, factors):
    for g in range(s.shape[0]):
        for t in range(factors.shape[0]):
            s[g, t] *= factors[t]


@_compiled(no_cpython_wrapper=True)
def _unpack(packed, scale, zero, first, rows_per_scale, tile):
    """tile[t] = nibbles[first + t] · scale + zero, float32 [tokens, head_dim].

    A byte holds dims j (low nibble) and j + head_dim/2 (high). scale and zero are [rows, columns]: one for
    `rows_per_scale` tokens and head_dim / columns neighbouring dims.
    """
    tokens, half, columns = tile.shape[0], packed.shape[1], scale.shape[1]
    row, served = first // rows_per_scale, first % rows_per_scale
    # Reshaped so that the innermost index is the plain loop variable: an index like half + j may be negative for
    # all that numba knows, and the test for it would keep the loop from being vectorised.
    if columns == 2 * half:
        halves = tile.reshape((tokens, 2, half))
        scales, zeros = scale.reshape((scale.shape[0], 2, half)), zero.reshape((zero.shape[0], 2, half))
        for t in range(tokens):
            for j in range(half):
                halves[t, 0, j] = (
                    f32(np.int32(np.int32(packed[first + t, j]) & 15)) * scales[row, 0, j] + zeros[row, 0, j]
                )
            for j in range(half):
                halves[t, 1, j] = (
                    f32(np.int32(np.int32(packed[first + t, j]) >> 4)) * scales[row, 1, j] + zeros[row, 1, j]
                )
            served += 1
            if served == rows_per_scale:
                row, served = row + 1, 0
        return
    groups = max(columns // 2, 1)  # of each half
    halves = tile.reshape((tokens, 2, groups, half // groups))
    grouped = packed.reshape((packed.shape[0], groups, half // groups))
    for t in range(tokens):
        for c in range(groups):
            a, b = scale[row, c], zero[row, c]
            for j in range(grouped.shape[2]):
                halves[t, 0, c, j] = f32(np.int32(np.int32(grouped[first + t, c, j]) & 15)) * a + b
            a, b = scale[row, columns // 2 + c], zero[row, columns // 2 + c]
            for j in range(grouped.shape[2]):
                halves[t, 1, c, j] = f32(np.int32(np.int32(grouped[first + t, c, j]) >> 4)) * a + b
        served += 1
        if served == rows_per_scale:
            row, served = row + 1, 0


# ---------------------------------------------------------------------------------------------------------------
# int4 with scales per token, read packed: a nibble is converted once, in a register, for up to two query heads. `low`
# and `high` are the halves of q or of the output that belong to low and high nibbles, [heads, head_dim / 2] each, in
# arrays of their own: of two halves of one array LLVM cannot tell that they do not overlap, and takes one number at a
# time.
# `keys` and `values` are bytes [tokens, head_dim / 2]; scale and zero [tokens, 2] (one for each half), or [tokens, 1].


@_compiled(no_cpython_wrapper=True)
def _int4_scores1(low, high, sums, g, keys, scale, zero, first, s):
    """s[g, t] = q[g] · (nibbles[t] · scale + zero) for t ≥ first: one query head, two tokens at a time.

    `sums` [heads, 2] are those of low and high, since q · zero needs no more of q.
    """
    last = scale.shape[1] - 1
    apart = (keys.shape[0] - first) // 2
    for t in range(first, first + apart):
        t1 = t + apart
        a, b, a1, b1 = scale[t, 0], scale[t, last], scale[t1, 0], scale[t1, last]
        u = u1 = f32(0)
        for j in range(keys.shape[1]):
            n, n1 = np.int32(keys[t, j]), np.int32(keys[t1, j])
            u += low[g, j] * (f32(np.int32(n & 15)) * a) + high[g, j] * (f32(np.int32(n >> 4)) * b)
            u1 += low[g, j] * (f32(np.int32(n1 & 15)) * a1) + high[g, j] * (f32(np.int32(n1 >> 4)) * b1)
        s[g, t] = u + sums[g, 0] * zero[t, 0] + sums[g, 1] * zero[t, last]
        s[g, t1] = u1 + sums[g, 0] * zero[t1, 0] + sums[g, 1] * zero[t1, last]
    for t in range(first + 2 * apart, keys.shape[0]):
        u = sums[g, 0] * zero[t, 0] + sums[g, 1] * zero[t, last]
        for j in range(keys.shape[1]):
            n = np.int32(keys[t, j])
            u += low[g, j] * f32(np.int32(n & 15)) * scale[t, 0] + high[g, j] * f32(np.int32(n >> 4)) * scale[t, last]
        s[g, t] = u


@_compiled(no_cpython_wrapper=True)
def _int4_scores2(low, high, sums, g, keys, scale, zero, s):
    """Query heads g and g + 1, two tokens at a time."""
    last = scale.shape[1] - 1
    apart = keys.shape[0] // 2
    for t in range(apart):
        t1 = t + apart
        a, b, a1, b1 = scale[t, 0], scale[t, last], scale[t1, 0], scale[t1, last]
        u = u1 = v = v1 = f32(0)
        for j in range(keys.shape[1]):
            n, n1 = np.int32(keys[t, j]), np.int32(keys[t1, j])
            x, y = f32(np.int32(n & 15)) * a, f32(np.int32(n >> 4)) * b
            x1, y1 = f32(np.int32(n1 & 15)) * a1, f32(np.int32(n1 >> 4)) * b1
            u += low[g, j] * x + high[g, j] * y
            u1 += low[g, j] * x1 + high[g, j] * y1
            v += low[g + 1, j] * x + high[g + 1, j] * y
            v1 += low[g + 1, j] * x1 + high[g + 1, j] * y1
        a, b, a1, b1 = zero[t, 0], zero[t, last], zero[t1, 0], zero[t1, last]
        s[g, t], s[g, t1] = u + sums[g, 0] * a + sums[g, 1] * b, u1 + sums[g, 0] * a1 + sums[g, 1] * b1
        g1 = g + 1
        s[g1, t], s[g1, t1] = v + sums[g1, 0] * a + sums[g1, 1] * b, v1 + sums[g1, 0] * a1 + sums[g1, 1] * b1
    for head in range(g, g + 2):
        _int4_scores1(low, high, sums, head, keys, scale, zero, 2 * apart, s)


@_compiled(no_cpython_wrapper=True)
def _int4_values1(p, g, values, scale, zero, first, low, high):
    """(low, high)[g] += Σ p[g, t] · (nibbles[t] · scale + zero) for t ≥ first: one query head, four tokens at once."""
    last = scale.shape[1] - 1
    apart = (values.shape[0] - first) // 4
    x = y = f32(0)
    for t in range(first, values.shape[0]):
        x += p[g, t] * zero[t, 0]
        y += p[g, t] * zero[t, last]
    for t in range(first, first + apart):
        t1, t2, t3 = t + apart, t + 2 * apart, t + 3 * apart
        p0, p1, p2, p3 = p[g, t], p[g, t1], p[g, t2], p[g, t3]
        a0, a1, a2, a3 = p0 * scale[t, 0], p1 * scale[t1, 0], p2 * scale[t2, 0], p3 * scale[t3, 0]
        b0, b1, b2, b3 = p0 * scale[t, last], p1 * scale[t1, last], p2 * scale[t2, last], p3 * scale[t3, last]
        for j in range(values.shape[1]):
            n0, n1 = np.int32(values[t, j]), np.int32(values[t1, j])
            n2, n3 = np.int32(values[t2, j]), np.int32(values[t3, j])
            l0, l1 = f32(np.int32(n0 & 15)), f32(np.int32(n1 & 15))
            l2, l3 = f32(np.int32(n2 & 15)), f32(np.int32(n3 & 15))
            h0, h1 = f32(np.int32(n0 >> 4)), f32(np.int32(n1 >> 4))
            h2, h3 = f32(np.int32(n2 >> 4)), f32(np.int32(n3 >> 4))
            low[g, j] += (l0 * a0 + l1 * a1) + (l2 * a2 + l3 * a3)
            high[g, j] += (h0 * b0 + h1 * b1) + (h2 * b2 + h3 * b3)
    for t in range(first + 4 * apart, values.shape[0]):
        a, b = p[g, t] * scale[t, 0], p[g, t] * scale[t, last]
        for j in range(values.shape[1]):
            n = np.int32(values[t, j])
            low[g, j] += f32(np.int32(n & 15)) * a
            high[g, j] += f32(np.int32(n >> 4)) * b
    for j in range(values.shape[1]):
        low[g, j] += x
        high[g, j] += y


@_compiled(no_cpython_wrapper=True)
def _int4_values2(p, g, values, scale, zero, low, high):
    """Query heads g and g + 1."""
    last = scale.shape[1] - 1
    apart = values.shape[0] // 4
    g1 = g + 1
    x = y = x1 = y1 = f32(0)
    for t in range(4 * apart):
        x += p[g, t] * zero[t, 0]
        y += p[g, t] * zero[t, last]
        x1 += p[g1, t] * zero[t, 0]
        y1 += p[g1, t] * zero[t, last]
    for t in range(apart):
        t1, t2, t3 = t + apart, t + 2 * apart, t + 3 * apart
        s0, s1, s2, s3 = scale[t, 0], scale[t1, 0], scale[t2, 0], scale[t3, 0]
        z0, z1, z2, z3 = scale[t, last], scale[t1, last], scale[t2, last], scale[t3, last]
        a0, a1, a2, a3 = p[g, t] * s0, p[g, t1] * s1, p[g, t2] * s2, p[g, t3] * s3
        b0, b1, b2, b3 = p[g, t] * z0, p[g, t1] * z1, p[g, t2] * z2, p[g, t3] * z3
        c0, c1, c2, c3 = p[g1, t] * s0, p[g1, t1] * s1, p[g1, t2] * s2, p[g1, t3] * s3
        e0, e1, e2, e3 = p[g1, t] * z0, p[g1, t1] * z1, p[g1, t2] * z2, p[g1, t3] * z3
        for j in range(values.shape[1]):
            n0, n1 = np.int32(values[t, j]), np.int32(values[t1, j])
            n2, n3 = np.int32(values[t2, j]), np.int32(values[t3, j])
            l0, l1 = f32(np.int32(n0 & 15)), f32(np.int32(n1 & 15))
            l2, l3 = f32(np.int32(n2 & 15)), f32(np.int32(n3 & 15))
            h0, h1 = f32(np.int32(n0 >> 4)), f32(np.int32(n1 >> 4))
            h2, h3 = f32(np.int32(n2 >> 4)), f32(np.int32(n3 >> 4))
            low[g, j] += (l0 * a0 + l1 * a1) + (l2 * a2 + l3 * a3)
            high[g, j] += (h0 * b0 + h1 * b1) + (h2 * b2 + h3 * b3)
            low[g1, j] += (l0 * c0 + l1 * c1) + (l2 * c2 + l3 * c3)
            high[g1, j] += (h0 * e0 + h1 * e1) + (h2 * e2 + h3 * e3)
    for j in range(values.shape[1]):
        low[g, j] += x
        high[g, j] += y
        low[g1, j] += x1
        high[g1, j] += y1
    for head in range(g, g + 2):
        _int4_values1(p, head, values, scale, zero, 4 * apart, low, high)


@_compiled(no_cpython_wrapper=True)
def _halves(q):
    """q [heads, head_dim] → its two halves, and the sums of their rows [heads, 2]."""
    heads, half = q.shape[0], q.shape[1] // 2
    low, high = np.empty((heads, half), np.float32), np.empty((heads, half), np.float32)
    sums = np.zeros((heads, 2), np.float32)
    for g in range(heads):
        for j in range(half):
            low[g, j], high[g, j] = q[g, j], q[g, half + j]
            sums[g, 0] += low[g, j]
            sums[g, 1] += high[g, j]
    return low, high, sums


@_compiled(no_cpython_wrapper=True)
def _int4_scores(low, high, sums, keys, scale, zero, s):
    """Scores of all query heads of a group."""
    heads = low.shape[0]
    for g in range(0, heads - 1, 2):
        _int4_scores2(low, high, sums, g, keys, scale, zero, s)
    if heads % 2:
        _int4_scores1(low, high, sums, heads - 1, keys, scale, zero, 0, s)


@_compiled(no_cpython_wrapper=True)
def _int4_values(p, values, scale, zero, out):
    """out[g] += Σ p[g, t] · values[t] for all query heads of a group; out [heads, head_dim]."""
    heads, half = out.shape[0], values.shape[1]
    low, high = np.zeros((heads, half), np.float32), np.zeros((heads, half), np.float32)
    for g in range(0, heads - 1, 2):
        _int4_values2(p, g, values, scale, zero, low, high)
    if heads % 2:
        _int4_values1(p, heads - 1, values, scale, zero, 0, low, high)
    for g in range(heads):
        for j in range(half):
            out[g, j] += low[g, j]
            out[g, half + j] += high[g, j]


# ---------------------------------------------------------------------------------------------------------------
# Attention over a cache: one task per (sequence, KV head, split of the context), then the splits are merged.
# Shapes are those of `helpers.kernels`, but that the newest `queries` tokens of a sequence count as further heads: q is
# [batch, q_heads · queries, head_dim], so that all rows that read one KV head are neighbours, and the cache is read
# once for all of them. `lengths` is int64 [batch], `tile` the tokens of a tile, `factor` is scale · log2(e).


@_compiled(no_cpython_wrapper=True)
def _hide(s, queries, first, last, length):
    """Scores of the tokens first … last-1 that came after a row's own: the last query of a sequence sees all `length`
    tokens, each one before it one fewer."""
    for i in range(queries - 1):
        for t in range(max(length - queries + 1 + i, first), last):
            for row in range(i, s.shape[0], queries):
                s[row, t - first] = LOWEST


@_compiled(no_cpython_wrapper=True)
def _share(task, splits, kv_heads, lengths):
    """(sequence, KV head, first token, last token + 1) of a task."""
    b, h = task // (splits * kv_heads), task // splits % kv_heads
    share = ((lengths[b] + splits - 1) // splits + 7) // 8 * 8
    first = min(task % splits * share, lengths[b])
    return b, h, first, min(first + share, lengths[b])


@_compiled(no_cpython_wrapper=True)
def _group(q, b, first, heads, factor):
    """The query heads that share a KV head, times `factor`."""
    scaled = np.empty((heads, q.shape[2]), np.float32)
    for g in range(heads):
        for d in range(q.shape[2]):
            scaled[g, d] = q[b, first + g, d] * factor
    return scaled


@_compiled(no_cpython_wrapper=True)
def _merge(parts, tops, totals, splits, out, lse):
    """Flash-Decoding's second step (arXiv 2311.01282): weigh the splits by their share of the softmax's sum."""
    group = parts.shape[1]
    for row in range(lse.size):
        task, g = row // group * splits, row % group
        top = LOWEST
        for i in range(task, task + splits):
            top = max(top, tops[i, g])
        total = f32(0)
        mixed = np.zeros(out.shape[2], np.float32)
        for i in range(task, task + splits):
            weight = _exp2(tops[i, g] - top)
            total += weight * totals[i, g]
            for d in range(mixed.shape[0]):
                mixed[d] += weight * parts[i, g, d]
        b, head = row // lse.shape[1], row % lse.shape[1]
        for d in range(mixed.shape[0]):
            out[b, head, d] = mixed[d] / total
        lse[b, head] = (top + np.log2(total)) * LN_2


@_compiled(parallel=ONLY_PRANGE)
def attention(q, queries, tile, factor, k, v, lengths, splits, out, lse):
    """Keys and values float32 [batch, kv_heads, capacity, head_dim]."""
    kv_heads, head_dim = k.shape[1], k.shape[3]
    group = q.shape[1] // kv_heads
    tasks = k.shape[0] * kv_heads * splits
    parts = np.zeros((tasks, group, head_dim), np.float32)
    tops = np.full((tasks, group), LOWEST, np.float32)
    totals = np.zeros((tasks, group), np.float32)
    for task in prange(tasks):
        b, h, first, last = _share(task, splits, kv_heads, lengths)
        heads = _group(q, b, h * group, group, factor)
        s = np.empty((group, tile), np.float32)
        for t in range(first, last, tile):
            end = min(t + tile, last)
            _scores(heads, k[b, h, t:end], s)
            _hide(s, queries, t, end, lengths[b])
            _softmax(s, end - t, tops[task], totals[task], parts[task])
            _values(s, v[b, h, t:end], parts[task])
    _merge(parts, tops, totals, splits, out, lse)


@_compiled(parallel=ONLY_PRANGE)
def attention_paged(q, queries, tile, factor, k, v, table, lengths, splits, out, lse):
    """Keys and values float32 [blocks of the pool, kv_heads, block_size, head_dim], read where they lie: entry i of a
    row of `table` int32 [batch, blocks] names the block that holds the tokens from i · block_size on.

    Returns False, before anything is read, where it names one that is not there.
    """
    kv_heads, size, head_dim = k.shape[1], k.shape[2], k.shape[3]
    for b in range(q.shape[0]):
        for i in range((lengths[b] + size - 1) // size):
            if not 0 <= table[b, i] < k.shape[0]:
                return False
    group = q.shape[1] // kv_heads
    tasks = q.shape[0] * kv_heads * splits
    parts = np.zeros((tasks, group, head_dim), np.float32)
    tops = np.full((tasks, group), LOWEST, np.float32)
    totals = np.zeros((tasks, group), np.float32)
    for task in prange(tasks):
        b, h, first, last = _share(task, splits, kv_heads, lengths)
        heads = _group(q, b, h * group, group, factor)
        s = np.empty((group, tile), np.float32)
        for t in range(first, last, tile):
            end = min(t + tile, last)
            # A piece is what of the tile lies in one block.
            start = t
            while start < end:
                block, inside = table[b, start // size], start % size
                piece = min(size - inside, end - start)
                _scores(heads, k[block, h, inside : inside + piece], s[:, start - t : start - t + piece])
                start += piece
            _hide(s, queries, t, end, lengths[b])
            _softmax(s, end - t, tops[task], totals[task], parts[task])
            start = t
            while start < end:
                block, inside = table[b, start // size], start % size
                piece = min(size - inside, end - start)
                _values(s[:, start - t : start - t + piece], v[block, h, inside : inside + piece], parts[task])
                start += piece
    _merge(parts, tops, totals, splits, out, lse)
    return True


@_compiled(parallel=ONLY_PRANGE)
def attention_int8(q, queries, tile, factor, k, k_scale, v, v_scale, lengths, splits, out, lse):
    """Keys and values int8, scales float32 [batch, kv_heads, capacity].

    A token's scale multiplies its score and its probability: one number a head instead of head_dim.
    """
    kv_heads, head_dim = k.shape[1], k.shape[3]
    group = q.shape[1] // kv_heads
    tasks = k.shape[0] * kv_heads * splits
    parts = np.zeros((tasks, group, head_dim), np.float32)
    tops = np.full((tasks, group), LOWEST, np.float32)
    totals = np.zeros((tasks, group), np.float32)
    for task in prange(tasks):
        b, h, first, last = _share(task, splits, kv_heads, lengths)
        heads = _group(q, b, h * group, group, factor)
        s = np.empty((group, tile), np.float32)
        for t in range(first, last, tile):
            end = min(t + tile, last)
            _scores(heads, k[b, h, t:end], s)
            _multiply_tokens(s, k_scale[b, h, t:end])
            _hide(s, queries, t, end, lengths[b])
            _softmax(s, end - t, tops[task], totals[task], parts[task])
            _multiply_tokens(s, v_scale[b, h, t:end])
            _values(s, v[b, h, t:end], parts[task])
    _merge(parts, tops, totals, splits, out, lse)


@_compiled(parallel=ONLY_PRANGE)
def attention_int4(q, queries, tile, factor, k, k_scale, k_zero, v, v_scale, v_zero, lengths, splits, out, lse):
    """Keys and values packed two to a byte [batch, kv_heads, capacity, head_dim / 2].

    Scales and zeros are [batch, kv_heads, rows, columns]. Packed numbers are used as they are read where they have one
    row a token and one or two columns. Otherwise, as for keys per channel, a tile of them is expanded first, see
    `_unpack`.
    """
    kv_heads, head_dim = k.shape[1], 2 * k.shape[3]
    group = q.shape[1] // kv_heads
    k_rows, v_rows = k.shape[2] // k_scale.shape[2], v.shape[2] // v_scale.shape[2]
    k_packed = k_rows == 1 and k_scale.shape[3] <= 2
    v_packed = v_rows == 1 and v_scale.shape[3] <= 2
    if not (k_packed and v_packed):
        tile = EXPANDED_TILE
    tasks = k.shape[0] * kv_heads * splits
    parts = np.zeros((tasks, group, head_dim), np.float32)
    tops = np.full((tasks, group), LOWEST, np.float32)
    totals = np.zeros((tasks, group), np.float32)
    for task in prange(tasks):
        b, h, first, last = _share(task, splits, kv_heads, lengths)
        heads = _group(q, b, h * group, group, factor)
        low, high, sums = _halves(heads)
        s = np.empty((group, tile), np.float32)
        expanded = np.empty((EXPANDED_TILE, head_dim), np.float32)
        for t in range(first, last, tile):
            end = min(t + tile, last)
            if k_packed:
                _int4_scores(low, high, sums, k[b, h, t:end], k_scale[b, h, t:end], k_zero[b, h, t:end], s)
            else:
                _unpack(k[b, h], k_scale[b, h], k_zero[b, h], t, k_rows, expanded[: end - t])
                _scores(heads, expanded[: end - t], s)
            _hide(s, queries, t, end, lengths[b])
            _softmax(s, end - t, tops[task], totals[task], parts[task])
            if v_packed:
                _int4_values(s, v[b, h, t:end], v_scale[b, h, t:end], v_zero[b, h, t:end], parts[task])
            else:
                _unpack(v[b, h], v_scale[b, h], v_zero[b, h], t, v_rows, expanded[: end - t])
                _values(s, expanded[: end - t], parts[task])
    _merge(parts, tops, totals, splits, out, lse)


# The same, but paged, for a q [batch, q_heads, t, head_dim] that is still to be rotated to `position` and on, each over
# the tokens up to its own: one launch, and nothing to allocate, for what a decode step asks of a cache.


@_compiled(no_cpython_wrapper=True)
def _newest(q, cos, sin, position):
    """The rotated q as rows, lengths and room for the log-sum-exp."""
    batch, heads, queries, head_dim = q.shape
    rotated = np.empty(q.shape, np.float32)
    rotate(q, cos, sin, position, rotated)
    rows = rotated.reshape((batch, heads * queries, head_dim))
    return rows, np.full(batch, position + queries), np.empty((batch, heads * queries), np.float32)


@_compiled()
def attend_float32(q, cos, sin, position, tile, factor, k, v, splits, out):
    rows, lengths, lse = _newest(q, cos, sin, position)
    attention(rows, q.shape[2], tile, factor, k, v, lengths, splits, out, lse)


@_compiled()
def attend_int8(q, cos, sin, position, tile, factor, k, k_scale, v, v_scale, splits, out):
    rows, lengths, lse = _newest(q, cos, sin, position)
    attention_int8(rows, q.shape[2], tile, factor, k, k_scale, v, v_scale, lengths, splits, out, lse)


@_compiled()
def attend_int4(q, cos, sin, position, tile, factor, k, k_scale, k_zero, v, v_scale, v_zero, splits, out):
    rows, lengths, lse = _newest(q, cos, sin, position)
    attention_int4(rows, q.shape[2], tile, factor, k, k_scale, k_zero, v, v_scale, v_zero, lengths, splits, out, lse)
