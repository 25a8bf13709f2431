"""Checks of unit 06, "KV quantization": bytes from real caches, quantisers on inputs that kill near misses."""

from __future__ import annotations

import functools

import torch

from helpers.caches import Fp8Cache, Int4TokenCache, Int8Cache
from helpers.check import call, close, entries, exercise, number, part, require
from helpers.kernels import quantize
from helpers.models.counts import kv_bytes
from helpers.models.geometry import get

FORGOT_V = "You forgot V: your count is exactly half."
L4 = {"weights": 8.0445e9, "bf16": 147_456}  # Qwen3-4B: bytes a step reads, bytes a token leaves


@exercise("06.1")
def quantized_bytes(quantized_bytes, *, model="Llama-3.1-8B"):
    g = get(model)
    vectors = 2 * g.layers * g.kv_heads  # one key and one value of head_dim numbers each
    schemes = {
        "fp8, no scales": (g.head_dim, 0),
        "int8, a 2-byte scale per token and head": (g.head_dim, 2),
        "int4, groups of 64, 2-byte scale and 2-byte zero": (g.head_dim // 2, 2 * 4),
        "int4, groups of 32, 2-byte scale and 2-byte zero": (g.head_dim // 2, 4 * 4),
    }
    entries("quantized_bytes", quantized_bytes, schemes)
    for name, (levels, extra) in schemes.items():
        expect = vectors * (levels + extra)
        slips = {
            FORGOT_V: expect / 2,
            f"That is one layer: a token leaves keys and values in all {g.layers}.": expect / g.layers,
            f"You counted {g.q_heads} query heads; only the {g.kv_heads} KV heads are kept.": expect * g.group_size,
            "That is bits: divide by 8.": expect * 8,
            "That is the bf16 cache.": kv_bytes(g, 1),
        }
        if name.startswith("int8"):
            slips["You left out the scales: they are stored and read too."] = vectors * levels
            slips["You counted one scale for both; the key has one and the value has one."] = vectors * (levels + 1)
        elif extra:
            slips["You counted 4 bits as a byte: two levels share one."] = vectors * (g.head_dim + extra)
            slips["You left out the scales and zeros: they are stored and read too."] = vectors * levels
            slips["You counted one scale for the whole vector; each group has its own."] = vectors * (levels + 4)
            slips["You counted the scale and forgot the zero."] = vectors * (levels + extra // 2)
        else:
            slips["This scheme has no scales: one byte a number and nothing else."] = vectors * (levels + 2)
        with part():
            number(quantized_bytes[name], expect, unit="bytes", rel=1e-6, slips=slips, name=name)
    wide, narrow = (100 * vectors * (g.head_dim // 2 + extra) / kv_bytes(g, 1) for extra in (8, 16))
    return f'"INT4 quarters the cache" is what most articles say; you just counted {wide:.0f} % and {narrow:.0f} %'


@exercise("06.2")
def break_even_tokens(break_even_tokens):
    lines = {"H100": (4.37e-5, 6.44, 2.37e-5, 6.58), "B200": (1.80e-5, 3.93, 9.72e-6, 3.96)}
    entries("break_even_tokens", break_even_tokens, lines)
    last_digit = 0.01  # ms: both intercepts are rounded to it, so their difference may be off by as much
    for gpu, (slope, intercept, fp8_slope, fp8_intercept) in lines.items():
        extra, saved = fp8_intercept - intercept, slope - fp8_slope
        slips = {
            "You divided by the bf16 slope; what counts is how much slope fp8 saves.": extra / slope,
            "You divided by the fp8 slope; what counts is how much slope fp8 saves.": extra / fp8_slope,
            "You divided the wrong way round: tokens are ms divided by ms per token.": saved / extra,
            "You divided the whole intercept; only its difference has to be earned back.": [
                fp8_intercept / saved,
                intercept / saved,
            ],
            "You subtracted the intercepts the other way round.": -extra / saved,
            "You added the slopes; their difference is what fp8 saves.": extra / (slope + fp8_slope),
        }
        number(
            break_even_tokens[gpu],
            extra / saved,
            unit="tokens",
            absolute=1.001 * last_digit / saved,
            slips=slips,
            name=gpu,
        )
    return (
        'vLLM\'s own figures are 7,010 for the H100 and "roughly 4k" for the B200, where 0.03 ms is the difference of '
        "two rounded numbers: it may be 2,400 or 4,800 as well. On the H100 a chat of two thousand tokens is slower "
        "with the smaller cache, if only by 0.1 ms a token."
    )


@exercise("06.3")
def quantize_int8(function):
    function = _untouched(function)
    example = torch.tensor([[[[-1.27, 0.5, 1.0]]]])
    numbers, scale = _parts(call(function, example.clone()), "numbers", "scale")
    require(
        getattr(scale, "dtype", None) != torch.int8,
        "you returned the scale first: (numbers, scale), in this order.",
    )
    require(
        isinstance(numbers, torch.Tensor) and numbers.dtype == torch.int8,
        f"numbers has to be an int8 tensor (`.to(torch.int8)`); it is {getattr(numbers, 'dtype', type(numbers))}.",
    )
    scale_of = {
        "You divided by 128: the largest magnitude has to become 127, or +128 would not fit.": 1.27 / 128,
        "You divided by 255: there are 127 levels on each side of 0.": 1.27 / 255,
        "You took the range from minimum to maximum; a symmetric scale looks at the largest magnitude.": 2.27 / 255,
        "You took the maximum without abs(): the largest magnitude here is negative.": 1.0 / 127,
        "That is 127 / max; the scale is max / 127, to be multiplied with.": 127 / 1.27,
        "That is the largest magnitude itself: divide it by 127.": 1.27,
    }
    slips = {text: [[[value]]] for text, value in scale_of.items()}
    slips["That is one scale for all: each token and head has its own, so reduce over the last dimension only."] = 0.01
    close(scale, [[[0.01]]], slips=slips, name="scale of the example")
    close(
        numbers,
        [[[[-127, 50, 100]]]],
        name="numbers of the example",
    )
    between = torch.tensor([[[[127.0, 2.7, -2.7]]]])
    close(
        _parts(call(function, between), "numbers", "scale")[0],
        [[[[127, 3, -3]]]],
        name="numbers of [127, 2.7, -2.7]",
        slips={
            "You converted without rounding: `.to(torch.int8)` cuts off, so torch.round first.": [[[[127, 2, -2]]]],
            "You rounded down: the nearest is asked for, torch.round.": [[[[127, 2, -3]]]],
        },
    )
    # Scales a thousand times apart: one shared by all tokens, or all heads, ruins the small ones.
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(6))
    x = x * torch.logspace(-3, 2, 30).view(2, 3, 5, 1)
    numbers, scale = _parts(call(function, x.clone()), "numbers", "scale")
    dtype = getattr(scale, "dtype", type(scale))
    require(dtype in (torch.float32, torch.float64), f"keep the scale in float32 here; it is {dtype}.")
    close(
        scale,
        x.abs().amax(-1) / 127,
        rel=2e-3,  # many add a little to a scale, against a division by zero; / 128 is off by 8e-3
        absolute=1e-9,
        name="scale of many tokens",
        slips={
            "One scale for the whole tensor: each token and head needs its own.": (x.abs().amax() / 127).expand(
                2, 3, 5
            ),
            "One scale for all tokens of a head: each token needs its own.": _shared(x, (2, 3)),
            "One scale for all heads of a token: each head needs its own.": _shared(x, (1, 3)),
            "You kept the last dimension with size 1: scale is [batch, kv_heads, t].": x.abs().amax(-1, True) / 127,
        },
    )
    restored = numbers.float() * scale[..., None]
    half = scale[..., None] * 0.5001
    require(
        ((restored - x).abs() <= half).all(), "numbers * scale misses x by more than half a scale: round to nearest."
    )
    return "within half a scale for 30 tokens and heads"


def _shared(x, dims):
    return (x.abs().amax(dims, keepdim=True)[..., 0] / 127).expand(x.shape[:-1])


@exercise("06.4")
def quantize_levels(function):
    function = _untouched(function)
    example = torch.tensor([-1.0, 0.0, 0.4, 2.0])
    levels, scale, zero = _parts(call(function, example.clone(), 2, 0), "levels", "scale", "zero")
    close(
        scale,
        [1.0],
        name="scale of the example",
        slips={
            "You divided by 2**bits: 4 levels have 3 steps between them.": [0.75],
            "You took the largest magnitude; the range is maximum minus minimum.": [2 / 3],
            "Your levels go from minus the largest magnitude to plus; here the first is the minimum.": [4 / 3],
            "You kept a bit for the sign: there are 2**bits levels, and none is negative.": [3.0],
            "That is half of the steps: 2**bits levels have 2**bits - 1 steps.": [1.5],
            "That is the zero: levels, scale, zero is the order.": [-1.0],
            "scale has lost the dimension: use keepdim=True.": 1.0,
            "You ignored `bits`: 15 steps are those of 4 bits only.": [0.2],
        },
    )
    close(
        zero,
        [-1.0],
        name="zero of the example",
        slips={
            "zero is the number that level 0 stands for: the minimum, not minus the minimum.": [1.0],
            "That is the mean: level 0 stands for the minimum.": [0.35],
            "That is the middle of the range: level 0 stands for the minimum.": [0.5],
            "That is the zero point in levels; here it is the number itself, added after scaling.": [1.0],
        },
    )
    close(
        levels,
        [0, 1, 1, 3],
        name="levels of the example",
        slips={
            "You forgot to subtract the minimum before dividing.": [255, 0, 0, 2],
        },
    )
    between = _parts(call(function, torch.tensor([0.0, 0.7, 1.6, 3.0]), 2, 0), "levels", "scale", "zero")[0]
    close(
        between,
        [0, 1, 2, 3],
        name="levels of [0, 0.7, 1.6, 3]",
        slips={"You cut off without rounding: torch.round before `.to(torch.uint8)`.": [0, 0, 1, 3]},
    )
    require(levels.dtype == torch.uint8, f"levels has to be uint8; it is {levels.dtype}.")
    x = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(7)) * 3 + 10
    for bits in (2, 4, 8):
        for dim in (2, 3):
            levels, scale, zero = _parts(call(function, x.clone(), bits, dim), "levels", "scale", "zero")
            low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
            steps = 2**bits - 1
            where = f"with bits={bits}, dim={dim}"
            close(
                scale,
                (high - low) / steps,
                name=f"scale {where}",
                slips={
                    "You ignored `bits`: 15 steps are those of 4 bits only.": (high - low) / 15,
                    "You ignored `dim`: it is not always the last one.": _last(x, steps),
                    "One scale for the whole tensor: reduce along `dim` only.": _whole(x, steps, low.shape),
                    "You divided by 2**bits: that many levels have one step less between them.": (high - low) / 2**bits,
                },
            )
            miss = (levels.float() * scale + zero - x).abs()
            require(
                (miss <= scale * 0.5 + 1e-4).all(),
                f"levels * scale + zero misses x by more than half a scale {where}: round to nearest, "
                "and subtract the minimum first.",
            )
    return "within half a scale for 2, 4 and 8 bits, along both dimensions"


def _last(x, steps):
    return (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)) / steps


def _whole(x, steps, shape):
    return ((x.amax() - x.amin()) / steps).expand(shape)


@exercise("06.5")
def pack_int4(pack):
    pack = _untouched(pack)
    levels = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    close(
        call(pack, levels.clone()),
        [49, 66],
        name="pack_int4([1, 2, 3, 4])",
        slips={
            "The halves are swapped: the first half of the dims goes into the low nibbles.": [19, 36],
            "You paired neighbours; a byte holds dim j and dim j + head_dim/2.": [33, 67],
            "You paired neighbours, the first of them high; a byte holds dim j low, dim j + head_dim/2 high.": [18, 52],
            "You added the halves without moving one: shift the second by 4 bits (`<< 4`).": [4, 6],
            "You or-ed the halves without moving one: shift the second by 4 bits (`<< 4`).": [3, 6],
            "You shifted both halves: + comes before <<, so write low + (high << 4).": [64, 96],
            "You shifted both halves; the first stays in the low nibble.": [48, 96],
            "You shifted by 8 bits, and the high half fell out of the byte: a nibble is 4.": [1, 2],
            "That is one level a byte: nothing is packed.": [1, 2, 3, 4],
        },
    )
    every = torch.arange(256)
    both = torch.stack((every % 16, every // 16), dim=1).to(torch.uint8)
    packed = call(pack, both.clone())
    require(
        isinstance(packed, torch.Tensor) and packed.dtype == torch.uint8,
        f"pack_int4 has to return uint8; it returns {getattr(packed, 'dtype', type(packed))}.",
    )
    require(packed.shape != (128, 2), "you split the first dimension: a head's dims are the last, chunk(2, dim=-1).")
    close(packed, every[:, None], name="pack_int4 of all 256 pairs")
    shaped = torch.randint(16, (2, 3, 5, 8), generator=torch.Generator().manual_seed(8)).to(torch.uint8)
    close(call(pack, shaped.clone()), quantize.pack_int4(shaped), name="pack_int4 of a cache [2, 3, 5, 8]")
    return "all 256 bytes"


@exercise("06.6")
def restore_kv(function):
    generator = torch.Generator().manual_seed(9)
    k, v = torch.randn(2, 1, 2, 16, 16, generator=generator)
    # One loud key channel and one loud value token: whoever shares a scale with them is ruined.
    k[..., 5] += 200
    v[:, :, 3] *= 200
    got_k, got_v = _parts(call(function, k.clone(), v.clone(), bits=4, size=4), "k", "v")
    per_token = _groups(k, 4, 4, tokens=False)
    _check_restored(
        got_k,
        (k, 4, 4, True),
        name="k",
        slips={
            "Your keys share a scale along the token's dims, where the loud channel spoils its neighbours: share it "
            "along the tokens of a block.": per_token,
            "Your keys share one scale over all tokens: only `size` tokens make a block.": _groups(
                k, 4, 16, tokens=True
            ),
            "Your keys share one scale over all dims of a token: share it along the tokens of a block.": _groups(
                k, 4, 16, tokens=False
            ),
            "You left the zero out on the way back: levels * scale + zero.": _groups(k, 4, 4, tokens=True, zero=False),
            "You returned k as it was: nothing has been quantised.": k,
            "You used 8 bits (or ignored `bits`).": _groups(k, 8, 4, tokens=True),
            "Your keys share one scale over blocks of tokens and all dims.": _block(k, 4, 4),
            "You returned the values first: keys, then values.": _groups(v, 4, 4, tokens=False),
            "Every so-many-th token shares a scale: a block is `size` in a row, dimension 3 once split.": _across(
                k, 4, 4, dim=2
            ),
        },
    )
    _check_restored(
        got_v,
        (v, 4, 4, False),
        name="v",
        slips={
            "Your values share a scale along the tokens: one loud token spoils the block. Share it along the token's "
            "dims.": _groups(v, 4, 4, tokens=True),
            "Your values share one scale over all dims of the head: only `size` dims make a group.": _groups(
                v, 4, 16, tokens=False
            ),
            "You returned v as it was: nothing has been quantised.": v,
            "Every so-many-th dim shares a scale: a group is `size` dims in a row, dimension 4 once split.": _across(
                v, 4, 4, dim=3
            ),
            "You left the zero out on the way back: levels * scale + zero.": _groups(v, 4, 4, tokens=False, zero=False),
        },
    )
    # 16 tokens and 32 dims, so that neither size is the whole of either.
    k, v = torch.randn(2, 1, 2, 16, 32, generator=generator)
    got_k, got_v = _parts(call(function, k.clone(), v.clone(), bits=2, size=8), "k", "v")
    for name, got, x, tokens in (("k", got_k, k, True), ("v", got_v, v, False)):
        _check_restored(
            got,
            (x, 2, 8, tokens),
            name=f"{name} with bits=2, size=8",
            slips={
                "You ignored `bits`: these are 4 bits.": _groups(x, 4, 8, tokens),
                "You ignored `size`: these are groups of 4.": _groups(x, 2, 4, tokens),
            },
        )
    return "keys per channel, values per token"


def _check_restored(got, scheme, name, slips):
    """`close` to what `scheme`, the arguments of `_groups`, gives back, with scales of 4 bytes or of 2 as in 06.1."""
    if isinstance(got, torch.Tensor) and got.shape == scheme[0].shape:
        for stored in (torch.float16, torch.bfloat16):
            # Its arithmetic may be that of its scales: off by the last bits of the largest number of a group.
            off = (got.double() - _groups(*scheme, stored=stored)).abs()
            if (off <= 2 * torch.finfo(stored).eps * _largest(*scheme) + 1e-3).all():
                return
    close(got, _groups(*scheme), rel=1e-3, absolute=1e-3, name=name, slips=slips)


def _groups(x, bits, size, tokens, stored=None, zero=True):
    """What asymmetric quantisation gives back, groups of `size` along tokens or along dims, in float64.

    `stored` is the type in which scale and zero wait between the two, float64 when None; without `zero` it is not
    added.
    """
    dim = 2 if tokens else 3
    parts = x.double().unflatten(dim, (-1, size))
    return _round(parts, bits, (dim + 1,), stored, zero).flatten(dim, dim + 1)


def _across(x, bits, size, dim):
    """As `_groups`, where the scale is shared by what stands in the same place of every group."""
    return _round(x.double().unflatten(dim, (-1, size)), bits, (dim,)).flatten(dim, dim + 1)


def _largest(x, bits, size, tokens):
    """The largest magnitude of the group that each number belongs to."""
    dim = 2 if tokens else 3
    parts = x.double().abs().unflatten(dim, (-1, size))
    return parts.amax(dim + 1, keepdim=True).expand_as(parts).flatten(dim, dim + 1)


def _block(x, bits, size):
    return _round(x.double().unflatten(2, (-1, size)), bits, (3, 4)).flatten(2, 3)


def _round(parts, bits, dims, stored=None, zero=True):
    low, high = parts.amin(dims, keepdim=True), parts.amax(dims, keepdim=True)
    scale = (high - low) / (2**bits - 1)
    levels = torch.round((parts - low) / scale)
    if stored:
        scale, low = scale.to(stored).double(), low.to(stored).double()
    return levels * scale + low * zero


@exercise("06.7")
def quantized_bytes_per_token(function):
    llama = get("Llama-3.1-8B")
    number(
        call(function, llama, 4, 64, 4),
        36_864,
        unit="bytes",
        rel=1e-9,
        name="Llama-3.1-8B, 4 bits, groups of 64, 4 extra bytes",
        slips={
            FORGOT_V: 18_432,
            "You left out the extra bytes of every group.": 32_768,
            "You multiplied by 4 bits as if they were bytes: divide by 8.": [266_240, 262_144],
            "You counted the extra bytes once, not for every group.": [32_772, 32_768 + 4 * 512],
            "You counted query heads; only the KV heads are kept.": 147_456,
            "You counted one layer.": 1_152,
            "You took extra_bytes twice; it is scale and zero together.": 40_960,
            "You divided the extra bytes by 8 too: they are bytes already.": 33_280,
            "You rounded the half byte of int4 away: 4 // 8 is 0.": [4_096, 36_864 - 32_768],
            "You multiplied the extra bytes by the group; each number carries extra_bytes ÷ group.": 33_587_200,
        },
    )
    narrow = "You took head_dim to be hidden / query heads; in this model it is a number of its own."
    name = "Qwen3-4B, 8 bits, groups of 128, 2 extra bytes"
    number(
        call(function, get("Qwen3-4B"), 8, 128, 2), 74_880, unit="bytes", rel=1e-9, name=name, slips={narrow: 46_800}
    )
    small = get("SmolLM2-135M")
    caches = {
        "Int8Cache": (Int8Cache, 8, small.head_dim, 4),
        "Int4TokenCache": (Int4TokenCache, 4, 32, 8),
        "Fp8Cache": (Fp8Cache, 8, small.head_dim, 0),
    }
    for label, (kind, bits, group, extra) in caches.items():
        expect = kind(small, 64).nbytes / 64
        name = f"{label} of SmolLM2-135M ({bits} bits, groups of {group}, {extra} extra bytes)"
        slips = (
            {"You rounded the half byte of int4 away: do not use // on bits.": expect - expect // 2} if bits < 8 else {}
        )
        number(call(function, small, bits, group, extra), expect, unit="bytes", rel=1e-9, slips=slips, name=name)
    return f"right for {len(caches)} real caches"


@exercise("06.8")
def fp8_gain(fp8_gain):
    entries("fp8_gain", fp8_gain, [2_048, 32_768])
    weights, bf16 = L4["weights"], L4["bf16"]
    for context in (2_048, 32_768):
        cache = context * bf16
        expect = 100 * ((weights + cache) / (weights + cache / 2) - 1)
        slips = {
            "You left the weights out: they are read in every step and do not shrink.": 100.0,
            "Rounded too far: give two decimals.": round(expect, 1),
            "That is the factor, not the gain: subtract 1 and take per cent.": expect / 100 + 1,
            "That is a fraction; per cent is asked for.": expect / 100,
            "That is how much shorter a step gets; tokens per second rise by more.": 100
            * (1 - (weights + cache / 2) / (weights + cache)),
            "You halved the weights too; only the cache is in fp8.": 100
            * ((weights + cache) / (weights / 2 + cache / 2) - 1),
            "You took a quarter of the bf16 cache: fp8 is half of it.": 100
            * ((weights + cache) / (weights + cache / 4) - 1),
        }
        number(fp8_gain[context], expect, unit="%", rel=5e-3, slips=slips, name=f"fp8_gain[{context}]")


@exercise("06.9")
def int4_speedup(int4_speedup):
    entries("int4_speedup", int4_speedup, ["by bytes", "by instructions"])
    number(
        int4_speedup["by bytes"],
        16 / 4.5,
        unit="times",
        rel=1.5e-2,
        name="by bytes",
        slips={
            "You left out the scale and zero: it is 4.5 bits, not 4.": 4.0,
            "That is the share of bytes left; the speed-up is its inverse.": 4.5 / 16,
            "You compared with 8 bits; bf16 has 16.": 8 / 4.5,
            "You compared with float32; the question is about bf16.": 32 / 4.5,
        },
    )
    number(
        int4_speedup["by instructions"],
        2 * 6.2 / 7.7,
        unit="times",
        rel=1.5e-2,
        name="by instructions",
        slips={
            "A bf16 number is 2 bytes, and you let it arrive in the time of one.": 6.2 / 7.7,
            "That is the inverse: bf16 is the slower one.": 7.7 / (2 * 6.2),
            "You let int4's own bytes set the pace: its instructions take longer than they do.": [
                2 / (4.5 / 8),
                7.7 / (6.2 * 4.5 / 8),
            ],
            "You multiplied the two; the slower of bytes and instructions sets the pace, alone.": 16 / 4.5 * 12.4 / 7.7,
            "You counted 7.7 instructions per byte; they are per number.": 2 * 6.2 / 7.7 * 16 / 4.5 / 2,
        },
    )


def _untouched(function):
    """`function`, refused when it writes into the tensor it is given: in a decoder, that is the cache itself."""

    @functools.wraps(function)
    def checked(x, *options):
        before = x.clone()
        result = function(x, *options)
        require(torch.equal(x, before), "your function changes the tensor that it was given; work on a copy.")
        return result

    return checked


def _parts(result, *names):
    require(
        isinstance(result, (tuple, list)) and len(result) == len(names),
        f"return {len(names)} things, in this order: {', '.join(names)}.",
    )
    return result
