"""Every cache layout that the GPU kernel serves, each with inputs made to catch mistakes and its answer in float64.

The tests run these through Triton's interpreter, `tools.gpu_check` on a GPU. Needs torch and triton only.
"""

import contextlib
import dataclasses
from collections.abc import Callable

import torch

from helpers.kernels import cuda, quantize
from helpers.models import rope

CAPACITY = 128  # tokens: two tiles of 64
LENGTHS = (101, 0, 1, 128)  # in one batch: odd, empty, a single token, full
BEYOND = 300.0  # stale values past the end of a sequence: finite, as the kernel asks, and large enough to be noticed
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@dataclasses.dataclass
class Case:
    """One call of the kernel: `run` returns (output, log-sum-exp), `expected` holds the same in float64."""

    name: str
    run: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    expected: tuple[torch.Tensor, torch.Tensor]
    tolerance: float

    def error(self) -> float:
        """Largest error of output and log-sum-exp over the largest expected number; infinite where one is missing."""
        with poisoned():
            results = self.run()
        worst = 0.0
        for got, want in zip(results, self.expected, strict=True):
            got, want = got.double().cpu(), want.cpu()
            finite = torch.isfinite(want)
            if not torch.equal(torch.isfinite(got), finite) or not torch.equal(got[~finite], want[~finite]):
                return float("inf")
            worst = max(worst, ((got - want)[finite].abs().max() / want[finite].abs().max()).item())
        return worst


@contextlib.contextmanager
def poisoned():
    """Fill what torch.empty returns with NaN, so that a number that nobody wrote cannot pass for a result."""
    plain = torch.empty

    def empty(*args, **kwargs):
        tensor = plain(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    torch.empty = empty
    try:
        yield
    finally:
        torch.empty = plain


def attention(q, k, v, lengths, scale, least=0) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64, one KV head after the other: q [batch, q_heads, d], k and v [batch, kv_heads, capacity, ·].

    The queries of the newest t tokens, q [batch, q_heads, t, d], come one after the other, each over one token more,
    but over `least` at least.
    """
    if q.dim() == 4:
        shorter = [[max(least, length - fewer) for length in lengths] for fewer in range(q.shape[2] - 1, -1, -1)]
        each = [attention(q[:, :, i], k, v, seen, scale) for i, seen in enumerate(shorter)]
        return tuple(torch.stack(parts, dim=2) for parts in zip(*each, strict=True))
    q, k, v = q.double().cpu(), k.double().cpu(), v.double().cpu()
    batch, q_heads, _ = q.shape
    group = q_heads // k.shape[1]
    out = torch.zeros(batch, q_heads, v.shape[-1], dtype=torch.float64)
    lse = torch.full((batch, q_heads), -torch.inf, dtype=torch.float64)
    for b, length in enumerate(lengths):
        for kv_head in range(k.shape[1] if length else 0):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            scores = q[b, heads] @ k[b, kv_head, :length].T * scale
            lse[b, heads] = torch.logsumexp(scores, -1)
            out[b, heads] = torch.softmax(scores, -1) @ v[b, kv_head, :length]
    return out, lse


def cases(dtype: torch.dtype, device="cpu", fp8: bool = True) -> dict[str, Callable[[], Case]]:
    """Makers of all cases by name; `dtype` is that of the queries and of the caches that are not quantised."""
    made = {
        "mha": lambda: _wide(dtype, device, kv_heads=3, group=1),
        "gqa": lambda: _wide(dtype, device, kv_heads=2, group=3),
        "mqa with more heads than a program holds": lambda: _wide(dtype, device, kv_heads=1, group=40),
        "paged, 16 tokens a block": lambda: _paged(dtype, device, block_size=16),
        "paged, 128 tokens a block": lambda: _paged(dtype, device, block_size=128),
        "int8": lambda: _int8(dtype, device, columns=False),
        "int8, V transposed": lambda: _int8(dtype, device, columns=True),
        "int8, paged": lambda: _int8(dtype, device, columns=False, block_size=64),
        "int4, one scale a token": lambda: _int4(dtype, device, groups=1, columns=True, zeros=False),
        "int4, groups": lambda: _int4(dtype, device, groups=2, columns=True, zeros=False),
        "int4, groups and zero points": lambda: _int4(dtype, device, groups=2, columns=False, zeros=True),
        "latent": lambda: _latent(dtype, device),
        "shared prefix": lambda: _cascade(dtype, device),
        "3 tokens": lambda: _wide(dtype, device, kv_heads=2, group=3, tokens=3),
        "8 tokens, paged": lambda: _paged(dtype, device, block_size=16, tokens=8),
        "5 tokens, int8": lambda: _int8(dtype, device, columns=True, tokens=5),
        "2 tokens, int4": lambda: _int4(dtype, device, groups=2, columns=False, zeros=True, tokens=2),
        "4 tokens, latent": lambda: _latent(dtype, device, tokens=4),
        "3 tokens, shared prefix": lambda: _cascade(dtype, device, tokens=3),
        "newest token": lambda: _newest("float32", dtype, device),
        "newest token of unequal sequences": lambda: _newest("float32", dtype, device, ragged=True),
        "3 newest tokens": lambda: _newest("float32", dtype, device, tokens=3),
        "newest token, int8": lambda: _newest("int8", dtype, device),
        "2 newest tokens, int8": lambda: _newest("int8", dtype, device, tokens=2),
        "newest token, int4, groups": lambda: _newest("int4", dtype, device, groups=2),
        "2 newest tokens, int4, one scale": lambda: _newest("int4", dtype, device, groups=1, tokens=2),
        "first token, int8": lambda: _newest("int8", dtype, device, length=1),
        "first token, int4": lambda: _newest("int4", dtype, device, length=1),
        "newest token, paged": lambda: _newest("float32", dtype, device, block_size=16),
        "2 newest tokens of unequal sequences, paged": lambda: _newest(
            "float32", dtype, device, tokens=2, ragged=True, block_size=16
        ),
        "newest token, ring": lambda: _ring(dtype, device, end=71),
        "newest token, ring not yet full": lambda: _ring(dtype, device, end=20),
        "around attention": lambda: _block(dtype, device),
    }
    if fp8:
        made["newest token, fp8"] = lambda: _newest("fp8", dtype, device)
        made["fp8"] = lambda: _fp8(dtype, device, scales=False)
        made["fp8, scales"] = lambda: _fp8(dtype, device, scales=True)
    return made


def _random(*shape, dtype, device, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device, dtype)


def _lengths(device):
    return torch.tensor(LENGTHS, dtype=torch.int32, device=device)


def _keys_values(dtype, device, kv_heads, dim):
    """Keys and values [batch, kv_heads, CAPACITY, dim] with stale numbers beyond each length."""
    shape = (len(LENGTHS), kv_heads, CAPACITY, dim)
    k, v = (_random(*shape, dtype=dtype, device=device, seed=seed) for seed in (1, 2))
    for b, length in enumerate(LENGTHS):
        k[b, :, length:] = BEYOND
        v[b, :, length:] = -BEYOND
    return k, v


def _queries(dtype, device, heads, dim, tokens):
    """[batch, heads, dim], or for several newest tokens [batch, heads, tokens, dim], laid out as a decoder has them."""
    q = _random(len(LENGTHS), tokens, heads, dim, dtype=dtype, device=device, seed=3)
    return q.transpose(1, 2) if tokens > 1 else q[:, 0]


def _wide(dtype, device, kv_heads, group, dim=32, tokens=1):
    q, (k, v) = _queries(dtype, device, kv_heads * group, dim, tokens), _keys_values(dtype, device, kv_heads, dim)
    return Case(
        "wide",
        lambda: cuda.decode_attention(q, k, v, _lengths(device), return_lse=True),
        attention(q, k, v, LENGTHS, dim**-0.5),
        TOLERANCE[dtype],
    )


def _into_blocks(tensors, block_size, seed=4):
    """Scatter [batch, kv_heads, CAPACITY, ·] tensors over shuffled blocks; returns them and the block table.

    Block 0 belongs to nobody. The table has a spare column that names it, and so a wrong look-up reads wrong numbers
    rather than memory that is not there.
    """
    batch, heads, capacity = tensors[0].shape[:3]
    count = capacity // block_size
    order = torch.randperm(batch * count, generator=torch.Generator().manual_seed(seed)).view(batch, count) + 1
    pools = []
    for tensor in tensors:
        shape = (batch * count + 1, heads, block_size, *tensor.shape[3:])
        pool = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
        for b in range(batch):
            for i in range(count):
                pool[order[b, i]] = tensor[b, :, i * block_size : (i + 1) * block_size]
        pools.append(pool)
    table = torch.zeros(batch, count + 1, dtype=torch.int32)
    table[:, :count] = order
    return pools, table.to(tensors[0].device)


def _paged(dtype, device, block_size, kv_heads=2, group=2, dim=32, tokens=1):
    q, (k, v) = _queries(dtype, device, kv_heads * group, dim, tokens), _keys_values(dtype, device, kv_heads, dim)
    (k_blocks, v_blocks), table = _into_blocks((k, v), block_size)
    return Case(
        "paged",
        lambda: cuda.decode_attention(q, k_blocks, v_blocks, _lengths(device), return_lse=True, block_table=table),
        attention(q, k, v, LENGTHS, dim**-0.5),
        TOLERANCE[dtype],
    )


def _scales(device, *more, seed):
    """Scales that differ tenfold between tokens, heads and groups."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), 2, CAPACITY, *more)
    return (0.1 + torch.rand(shape, generator=generator)).to(device)


def _as_columns(v):
    """The same [.., capacity, dim] tensor, stored [.., dim, capacity]."""
    return v.transpose(-1, -2).contiguous().transpose(-1, -2)


def _int8(dtype, device, columns, block_size=0, dim=32, tokens=1):
    q = _queries(dtype, device, 6, dim, tokens)
    generator = torch.Generator().manual_seed(5)
    shape = (len(LENGTHS), 2, CAPACITY, dim)
    k, v = (torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator).to(device) for _ in range(2))
    k_scale, v_scale = (_scales(device, seed=seed) / 64 for seed in (6, 7))
    expected = attention(q, k * k_scale[..., None].double(), v * v_scale[..., None].double(), LENGTHS, dim**-0.5)
    table = None
    if block_size:
        (k, v, k_scale, v_scale), table = _into_blocks((k, v, k_scale, v_scale), block_size)
    v = _as_columns(v) if columns else v
    return Case(
        "int8",
        lambda: cuda.decode_attention_int8(
            q, k, k_scale, v, v_scale, _lengths(device), return_lse=True, block_table=table
        ),
        expected,
        max(TOLERANCE[dtype], TOLERANCE[torch.float16]),
    )


def _unpack(packed):
    return torch.cat([packed & 15, packed >> 4], dim=-1).double()


def _int4(dtype, device, groups, columns, zeros, dim=32, tokens=1):
    q = _queries(dtype, device, 6, dim, tokens)
    generator = torch.Generator().manual_seed(8)
    shape = (len(LENGTHS), 2, CAPACITY, dim // 2)
    k, v = (torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(device) for _ in range(2))
    k_scale, v_scale = (_scales(device, groups, seed=seed) / 4 for seed in (9, 10))
    k_zero, v_zero = (_scales(device, groups, seed=seed) - 3 if zeros else None for seed in (11, 12))

    def dequantise(packed, scale, zero):
        wide = scale.double().repeat_interleave(dim // groups, dim=-1)
        offset = zero.double().repeat_interleave(dim // groups, dim=-1) if zeros else -8 * wide
        return _unpack(packed) * wide + offset

    expected = attention(q, dequantise(k, k_scale, k_zero), dequantise(v, v_scale, v_zero), LENGTHS, dim**-0.5)
    stored_v = _as_columns(v) if columns else v
    return Case(
        "int4",
        lambda: cuda.decode_attention_int4(
            q, k, k_scale, stored_v, v_scale, _lengths(device), k_zero=k_zero, v_zero=v_zero, return_lse=True
        ),
        expected,
        max(TOLERANCE[dtype], TOLERANCE[torch.float16]),
    )


def _fp8(dtype, device, scales, dim=32):
    q = _queries(dtype, device, 6, dim, 1)
    k, v = (x.to(torch.float8_e4m3fn) for x in _keys_values(torch.float32, device, 2, dim))
    k_scale, v_scale = (_scales(device, seed=seed) if scales else None for seed in (6, 7))
    wide_k, wide_v = (x.double() * (1 if s is None else s.double()[..., None]) for x, s in ((k, k_scale), (v, v_scale)))
    stored_v = _as_columns(v)
    return Case(
        "fp8",
        lambda: cuda.decode_attention_fp8(q, k, stored_v, _lengths(device), k_scale, v_scale, return_lse=True),
        attention(q, wide_k, wide_v, LENGTHS, dim**-0.5),
        max(TOLERANCE[dtype], TOLERANCE[torch.float16]),
    )


def _latent(dtype, device, heads=20, rank=64, rope=16, tokens=1):
    q = _queries(dtype, device, heads, rank + rope, tokens)
    latent, _ = _keys_values(dtype, device, 1, rank + rope)
    latent = latent[:, 0]
    return Case(
        "latent",
        lambda: cuda.decode_attention_latent(q, latent, rank, _lengths(device), 0.1, return_lse=True),
        attention(q, latent[:, None], latent[:, None, :, :rank], LENGTHS, 0.1),
        TOLERANCE[dtype],
    )


def _cascade(dtype, device, kv_heads=2, group=2, dim=32, prefix=77, tokens=1):
    q, (k, v) = _queries(dtype, device, kv_heads * group, dim, tokens), _keys_values(dtype, device, kv_heads, dim)
    prefix_k, prefix_v = (_random(1, kv_heads, 128, dim, dtype=dtype, device=device, seed=seed) for seed in (13, 14))
    prefix_k[:, :, prefix:] = BEYOND
    batch = len(LENGTHS)
    whole_k, whole_v = (
        torch.cat([shared[:, :, :prefix].expand(batch, -1, -1, -1), own], dim=2)
        for shared, own in ((prefix_k, k), (prefix_v, v))
    )
    return Case(
        "shared prefix",
        lambda: (cuda.cascade_attention(q, prefix_k, prefix_v, prefix, k, v, _lengths(device)),),
        attention(q, whole_k, whole_v, [prefix + length for length in LENGTHS], dim**-0.5, least=prefix)[:1],
        TOLERANCE[dtype],
    )


def _newest(
    kind, dtype, device, tokens=1, length=101, ragged=False, groups=1, heads=6, kv_heads=2, dim=32, block_size=0
):
    """The newest tokens' way into a cache and their queries' answer, as a decode step asks for them.

    What came before them was put there by torch; behind them, and in another layer, lies what must not count.
    """
    lengths = (length, 3) if ragged else (length, length)
    batch, starts = len(lengths), [length - tokens for length in lengths]
    cos, sin = rope.tables(CAPACITY, dim, 10_000.0, device)
    made = _random(batch, CAPACITY, heads + 2 * kv_heads, dim, dtype=dtype, device=device, seed=15).transpose(1, 2)
    _, k, v = made.split((heads, kv_heads, kv_heads), dim=1)
    if kind == "fp8":
        v *= 200  # some of which lie beyond what fp8 holds
    rows = {"k": rope.rotate(k, cos, sin), "v": v}
    stored, restored = [], []
    for x in rows.values():
        if kind == "float32":
            parts, values = (x,), x.double()
        elif kind == "fp8":
            parts = (quantize.to_fp8(x),)
            values = parts[0].double()
        elif kind == "int8":
            parts = quantize.int8_per_token(x)
            values = parts[0].double() * parts[1].double()[..., None]
        else:
            levels, scale, zero = quantize.per_token(x, 4, dim // groups)
            parts = quantize.pack_int4(levels), scale, zero
            wide, offset = (part.double().repeat_interleave(dim // groups, dim=-1) for part in (scale, zero))
            values = levels.double() * wide + offset
        restored.append(values)
        for part in parts:
            layer = part.clone()
            for b, start in enumerate(starts):
                layer[b, :, start:] = 99
            stored.append(layer)
    table = None
    if block_size:
        stored, table = _into_blocks(stored, block_size)
    stored = [torch.stack((torch.full_like(layer, 99), layer)) for layer in stored]
    newest = torch.stack([made[b, :, start : start + tokens] for b, start in enumerate(starts)])
    newest = newest.transpose(1, 2).contiguous().transpose(1, 2)  # laid out as a decoder has them
    new_q, new_k, new_v = newest.split((heads, kv_heads, kv_heads), dim=1)
    ends = list(zip(starts, lengths, strict=True))
    angles = (torch.stack([table[start:end] for start, end in ends])[:, None] for table in (cos, sin))
    turned = rope.rotate(new_q, *angles)
    places, counts = (torch.tensor(x, device=device) for x in (starts, lengths))

    def run():
        bound = cuda.BoundCache(kind, stored, cos, sin)
        bound.append(1, places if ragged else starts[0], new_k, new_v, table)
        if ragged:
            return (bound.attend(1, None, new_q, counts.int(), table),)
        return (bound.attend(1, starts[0], new_q, None, table),)

    return Case(
        f"newest token, {kind}",
        run,
        attention(turned, *restored, lengths, dim**-0.5)[:1],
        TOLERANCE[dtype] if kind == "float32" else max(TOLERANCE[dtype], TOLERANCE[torch.float16]),
    )


def _ring(dtype, device, end, sinks=3, window=29, heads=6, kv_heads=2, dim=32, batch=2):
    """The newest of `end` tokens: its way into sinks and a ring that hold those before it, and its query's answer."""
    cos, sin = rope.tables(sinks + window, dim, 10_000.0, device)
    made = _random(batch, end, heads + 2 * kv_heads, dim, dtype=dtype, device=device, seed=22).transpose(1, 2)
    q, k, v = made.split((heads, kv_heads, kv_heads), dim=1)
    kept = [p for p in range(end) if p < sinks or p >= end - window]  # in the order of their places
    row = [p if p < sinks else sinks + (p - sinks) % window for p in kept]
    held = len(kept)
    keys, values = (torch.full((2, batch, kv_heads, CAPACITY, dim), 99.0, dtype=dtype, device=device) for _ in range(2))
    keys[1][:, :, row[:-1]], values[1][:, :, row[:-1]] = k[:, :, kept[:-1]], v[:, :, kept[:-1]]
    new_q, new_k, new_v = (x[:, :, end - 1 :] for x in (q, k, v))

    def run():
        ring = cuda.BoundRing(keys, values, cos, sin, sinks, window)
        ring.append(1, row[-1], new_k, new_v)
        return (ring.attend(1, held, max(0, end - sinks - window) % window, new_q),)

    turned = rope.rotate(new_q, cos[held - 1 : held], sin[held - 1 : held])
    expected = attention(
        turned, rope.rotate(k[:, :, kept], cos[:held], sin[:held]), v[:, :, kept], [held] * batch, dim**-0.5
    )
    return Case("newest token, ring", run, expected[:1], TOLERANCE[dtype])


def _block(dtype, device, batch=3, hidden=48, heads=64, intermediate=1040, eps=1e-5):
    """A layer but for its attention: norm and product before it; products, sums, norm and gate behind it."""
    shapes = {
        "qkv": (96, hidden),
        "out": (hidden, heads),
        "gate_up": (2 * intermediate, hidden),
        "down": (hidden, intermediate),
    }
    weights = {
        name: (_random(*shape, dtype=torch.float32, device=device, seed=16 + i) * shape[1] ** -0.5).to(dtype)
        for i, (name, shape) in enumerate(shapes.items())
    }
    norm = 1 + _random(hidden, dtype=dtype, device=device, seed=20) / 4
    x, mixed = (_random(batch, width, dtype=dtype, device=device, seed=21) for width in (hidden, heads))

    def normed(x):
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * norm.double()

    w = {name: weight.double() for name, weight in weights.items()}
    h = x.double() + mixed.double() @ w["out"].T
    gate, up = (normed(h) @ w["gate_up"].T).chunk(2, dim=-1)
    expected = normed(x.double()) @ w["qkv"].T, h + (gate * torch.sigmoid(gate) * up) @ w["down"].T
    return Case(
        "around attention",
        lambda: (
            cuda.bind_norm_linear(norm, eps, weights["qkv"])(x),
            cuda.bind_finish_block(weights["out"], norm, eps, weights["gate_up"], weights["down"])(mixed, x),
        ),
        expected,
        TOLERANCE[dtype],
    )
