"""The compiled CPU kernels against plain float64 arithmetic, with everything beyond the length poisoned."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numba
import pytest
import torch

from helpers import kernels
from helpers.kernels import quantize
from helpers.models import rope

cpu = kernels.select("cpu")

# (batch, kv_heads, group, head_dim, capacity, length)
SHAPES = [
    (1, 3, 3, 64, 300, 257),  # SmolLM2's heads, an odd length
    (1, 3, 3, 64, 4096, 4095),
    (2, 2, 4, 128, 130, 129),
    (1, 2, 1, 64, 70, 1),
    (4, 1, 8, 64, 129, 128),
    (1, 4, 1, 64, 64, 64),
    (1, 1, 5, 80, 100, 77),  # neither a head size nor a group that has a loop of its own
    (3, 2, 2, 64, 64, 0),
]


def exact(q, k, v, length, scale=None):
    """Attention in float64, one head at a time, straight from the definition; (out, log-sum-exp)."""
    q, k, v = q.double(), k[:, :, :length].double(), v[:, :, :length].double()
    batch, q_heads, head_dim = q.shape
    group = q_heads // k.shape[1]
    out, lse = torch.zeros(batch, q_heads, v.shape[3]).double(), torch.full((batch, q_heads), -torch.inf).double()
    for b, h in itertools.product(range(batch), range(q_heads)):
        scores = k[b, h // group] @ q[b, h] * (head_dim**-0.5 if scale is None else scale)
        if length:
            out[b, h] = scores.softmax(0) @ v[b, h // group]
            lse[b, h] = scores.logsumexp(0)
    return out, lse


def inputs(batch, kv_heads, group, head_dim, capacity, length):
    torch.manual_seed(length)
    q = torch.randn(batch, kv_heads * group, head_dim)
    # Scores of some tens, so that the softmax is far from uniform and its maximum moves between tiles.
    k = torch.randn(batch, kv_heads, capacity, head_dim) * 3
    return q, k, torch.randn(batch, kv_heads, capacity, head_dim)


def poison(tensor, length):
    """NaN, or the largest number there is, in everything that a kernel must not read."""
    filler = torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
    tensor = tensor.clone()
    tensor[:, :, length:] = filler
    return tensor


def int8(x):
    scale = x.abs().amax(-1) / 127
    return (x / scale[..., None]).round().to(torch.int8), scale


def int4(x, tokens, dims):
    """4 bits, one scale and zero for a block of tokens × dims; (packed, scale, zero, values it stands for)."""
    batch, heads, capacity, head_dim = x.shape
    blocks = x.double().view(batch, heads, capacity // tokens, tokens, head_dim // dims, dims)
    low, high = blocks.amin((3, 5), keepdim=True), blocks.amax((3, 5), keepdim=True)
    scale, zero = ((high - low) / 15).float(), low.float()
    nibbles = ((blocks - zero) / scale).round().clamp(0, 15)
    values = (nibbles * scale.double() + zero.double()).view(x.shape)
    nibbles = nibbles.view(x.shape).to(torch.uint8)
    packed = nibbles[..., : head_dim // 2] | nibbles[..., head_dim // 2 :] << 4
    return packed, scale[:, :, :, 0, :, 0].contiguous(), zero[:, :, :, 0, :, 0].contiguous(), values


def assert_same(result, expected):
    for got, want in zip(result, expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_is_that_of_float64(shape):
    q, k, v = inputs(*shape)
    length = shape[-1]
    result = cpu.decode_attention(q, poison(k, length), poison(v, length), length, return_lse=True)
    assert_same(result, exact(q, k, v, length))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_attention_is_that_of_the_dequantised_cache(shape):
    q, k, v = inputs(*shape)
    length = shape[-1]
    (k_q, k_scale), (v_q, v_scale) = int8(k), int8(v)
    stored = (poison(t, length) for t in (k_q, k_scale, v_q, v_scale))
    result = cpu.decode_attention_int8(q, *stored, length, return_lse=True)
    assert_same(result, exact(q, k_q * k_scale[..., None].double(), v_q * v_scale[..., None].double(), length))


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[3] != 80], ids=str)
def test_int4_attention_per_token_is_that_of_the_dequantised_cache(shape, groups):
    q, k, v = inputs(*shape)
    head_dim, length = shape[3], shape[-1]
    k_q, k_scale, k_zero, k_values = int4(k, 1, head_dim // groups)
    v_q, v_scale, v_zero, v_values = int4(v, 1, head_dim // groups)
    k_q, k_scale, k_zero, v_q, v_scale, v_zero = (
        poison(t, length) for t in (k_q, k_scale, k_zero, v_q, v_scale, v_zero)
    )
    result = cpu.decode_attention_int4(q, k_q, k_scale, v_q, v_scale, length, k_zero, v_zero, return_lse=True)
    assert_same(result, exact(q, k_values, v_values, length))


@pytest.mark.parametrize("block", [32, 64])
@pytest.mark.parametrize("group", [1, 3, 4])
def test_int4_keys_per_channel_values_per_token(block, group):
    q, k, v = inputs(2, 2, group, 64, 256, 193)
    k_q, k_scale, k_zero, k_values = int4(k, block, 1)
    v_q, v_scale, v_zero, v_values = int4(v, 1, 32)
    result = cpu.decode_attention_int4(q, k_q, k_scale, v_q, v_scale, 193, k_zero, v_zero, return_lse=True)
    assert_same(result, exact(q, k_values, v_values, 193))


def test_int4_without_zeros_is_symmetric_about_eight():
    q, k, v = inputs(1, 1, 2, 64, 32, 31)
    k_q, k_scale, *_ = int4(k, 1, 64)
    v_q, v_scale, *_ = int4(v, 1, 64)
    without = cpu.decode_attention_int4(q, k_q, k_scale, v_q, v_scale, 31)
    given = cpu.decode_attention_int4(
        q, k_q, k_scale[..., 0], v_q, v_scale[..., 0], 31, -8 * k_scale[..., 0], -8 * v_scale[..., 0]
    )
    torch.testing.assert_close(without, given)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_halves_merged_are_the_whole(name):
    backend = kernels.select("cpu", name)
    q, k, v = inputs(2, 3, 3, 64, 512, 500)
    cut = 123
    halves = [
        backend.decode_attention(q, k[:, :, :cut].contiguous(), v[:, :, :cut].contiguous(), cut, return_lse=True),
        backend.decode_attention(q, k[:, :, cut:].contiguous(), v[:, :, cut:].contiguous(), 500 - cut, return_lse=True),
        backend.decode_attention(q, k, v, 0, return_lse=True),  # an empty stretch adds nothing
    ]
    assert_same(backend.merge(*zip(*halves, strict=True)), exact(q, k, v, 500))


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_cascade_is_attention_over_prefix_and_own_tokens(name):
    backend = kernels.select("cpu", name)
    q, k, v = inputs(3, 2, 4, 64, 40, 33)
    _, prefix_k, prefix_v = inputs(1, 2, 4, 64, 96, 90)
    whole_k = torch.cat((prefix_k[:, :, :90].expand(3, -1, -1, -1), k), dim=2)
    whole_v = torch.cat((prefix_v[:, :, :90].expand(3, -1, -1, -1), v), dim=2)
    out = backend.cascade_attention(q, prefix_k, prefix_v, 90, k, v, 33)
    assert_same([out], [exact(q, whole_k, whole_v, 123)[0]])


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_sequences_of_unequal_length(name):
    backend = kernels.select("cpu", name)
    q, k, v = inputs(3, 2, 2, 64, 300, 1)
    lengths = torch.tensor([300, 0, 7])
    out, lse = backend.decode_attention(q, k, v, lengths, return_lse=True)
    for b, length in enumerate(lengths.tolist()):
        assert_same((out[b : b + 1], lse[b : b + 1]), exact(q[b : b + 1], k[b : b + 1], v[b : b + 1], length))


def exact_newest(q, k, v, length):
    """The same for the newest tokens, q [batch, q_heads, t, head_dim], each over one token more than the one before."""
    tokens = q.shape[2]
    each = [exact(q[:, :, i], k, v, max(0, length - tokens + 1 + i)) for i in range(tokens)]
    return tuple(torch.stack(parts, dim=2) for parts in zip(*each, strict=True))


# As SHAPES: rows of queries for one pass and for many, and a length below the tokens asked for.
NEWEST = [(1, 3, 3, 64, 600, 577), (2, 2, 4, 64, 128, 127), (1, 2, 1, 64, 4096, 4095), (2, 1, 5, 64, 64, 6)]


def several(shape, tokens):
    q, k, v = inputs(*shape)
    return torch.randn(shape[0], tokens, *q.shape[1:]).transpose(1, 2), k, v  # laid out as a decoder has them


@pytest.mark.parametrize("tokens", [1, 2, 3, 8])
@pytest.mark.parametrize("shape", NEWEST, ids=str)
@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_the_newest_tokens_attend_each_up_to_its_own(name, shape, tokens):
    backend, length = kernels.select("cpu", name), shape[-1]
    q, k, v = several(shape, tokens)
    stored = [poison(x, length) for x in (k, v)]
    assert_same(backend.decode_attention(q, *stored, length, return_lse=True), exact_newest(q, k, v, length))
    (k_q, k_scale), (v_q, v_scale) = int8(k), int8(v)
    stored = [poison(x, length) for x in (k_q, k_scale, v_q, v_scale)]
    expected = exact_newest(q, k_q * k_scale[..., None].double(), v_q * v_scale[..., None].double(), length)
    assert_same(backend.decode_attention_int8(q, *stored, length, return_lse=True), expected)


@pytest.mark.parametrize("tokens", [2, 5])
@pytest.mark.parametrize("block, dims", [(1, 32), (1, 16), (32, 1)])
def test_the_newest_tokens_over_int4(block, dims, tokens):
    shape = (2, 2, 3, 64, 256, 193)
    q, k, v = several(shape, tokens)
    k_q, k_scale, k_zero, k_values = int4(k, block, dims)
    v_q, v_scale, v_zero, v_values = int4(v, 1, 32)
    for backend in (cpu, kernels.select("cpu", "reference")):
        result = backend.decode_attention_int4(q, k_q, k_scale, v_q, v_scale, 193, k_zero, v_zero, return_lse=True)
        assert_same(result, exact_newest(q, k_values, v_values, 193))


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_newest_tokens_behind_a_shared_prefix(name):
    q, k, v = several((3, 2, 4, 64, 40, 33), 3)
    _, prefix_k, prefix_v = inputs(1, 2, 4, 64, 96, 90)
    whole = [torch.cat((p[:, :, :90].expand(3, -1, -1, -1), x), dim=2) for p, x in ((prefix_k, k), (prefix_v, v))]
    out = kernels.select("cpu", name).cascade_attention(q, prefix_k, prefix_v, 90, k, v, 33)
    assert_same([out], [exact_newest(q, *whole, 123)[0]])


def in_blocks(tensors, size, lengths):
    """[batch, kv_heads, capacity, ·] as shuffled blocks of a pool, and their table; what no token uses is NaN, and the
    table's unused entries name no block."""
    batch, _, capacity, _ = tensors[0].shape
    count = capacity // size
    order = torch.randperm(batch * count).view(batch, count)
    pools = []
    for tensor in tensors:
        pool = torch.full((batch * count, tensor.shape[1], size, tensor.shape[3]), torch.nan)
        for b, i in itertools.product(range(batch), range(count)):
            pool[order[b, i]] = poison(tensor[b : b + 1], lengths[b])[0, :, i * size : (i + 1) * size]
        pools.append(pool)
    for b, length in enumerate(lengths):
        order[b, -(-length // size) :] = 10**6
    return *pools, order.to(torch.int32)


@pytest.mark.parametrize("size", [1, 8, 48])
@pytest.mark.parametrize("tokens", [None, 1, 4])
def test_a_paged_cache_is_read_through_its_table(size, tokens):
    lengths = [239, 0, 48, 5]
    q, k, v = inputs(4, 2, 3, 64, 240, 240) if tokens is None else several((4, 2, 3, 64, 240, 240), tokens)
    *pools, table = in_blocks((k, v), size, lengths)
    out, lse = cpu.decode_attention(q, *pools, torch.tensor(lengths), return_lse=True, block_table=table)
    for b, length in enumerate(lengths):
        one = slice(b, b + 1)
        expected = (exact if tokens is None else exact_newest)(q[one], k[one], v[one], length)
        assert_same((out[one], lse[one]), expected)


def test_a_table_that_names_no_block_of_the_pool_is_refused():
    q, pool = torch.zeros(1, 2, 64), torch.zeros(3, 2, 8, 64)
    for blocks in ([0, 3], [-1, 0]):
        with pytest.raises(ValueError, match="a block that is not there: the pool holds 3"):
            cpu.decode_attention(q, pool, pool, 9, block_table=torch.tensor([blocks], dtype=torch.int32))
    with pytest.raises(ValueError, match="capacity of 16"):
        cpu.decode_attention(q, pool, pool, 17, block_table=torch.tensor([[0, 1]], dtype=torch.int32))
    with pytest.raises(ValueError, match="block_table must be int32"):
        cpu.decode_attention(q, pool, pool, 9, block_table=torch.tensor([[0, 1]]))


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("outputs, inputs", [(960, 576), (7, 33)])
def test_linear_and_its_fused_forms(batch, outputs, inputs):
    torch.manual_seed(batch)
    x, w, bias, norm = (torch.randn(*s) for s in ((batch, inputs), (outputs, inputs), (outputs,), (inputs,)))
    mixed, out = torch.randn(batch, outputs), torch.randn(inputs, outputs) / outputs**0.5
    gate_up, down = torch.randn(2 * outputs, inputs) / inputs**0.5, torch.randn(inputs, outputs) / outputs**0.5

    def normed(x):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.double()

    def close(got, want):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)

    product = x.double() @ w.double().T
    close(cpu.linear(x, w), product)
    close(cpu.linear(x, w, bias), product + bias.double())
    close(cpu.bind_norm_linear(norm, 1e-5, w)(x), normed(x.double()) @ w.double().T)
    h = x.double() + mixed.double() @ out.double().T
    gate, up = (normed(h) @ gate_up.double().T).chunk(2, dim=-1)
    want = h + (gate * gate.sigmoid() * up) @ down.double().T
    close(cpu.bind_finish_block(out, norm, 1e-5, gate_up, down)(mixed, x), want)


@pytest.mark.parametrize("batch, length", [(1, 1), (1, 200), (3, 77)])
def test_a_token_appended_and_attended_with_rotation(batch, length):
    q, k, v = inputs(batch, 3, 2, 64, 200, length)
    cos, sin = rope.tables(200, 64, 10_000.0)
    place = slice(length - 1, length)
    turned_q, turned_k = (
        rope.rotate(x.double()[:, :, None], cos[place].double(), sin[place].double())[:, :, 0]
        for x in (q, k[:, :, length - 1])
    )
    store = cpu.BoundCache("float32", [torch.stack((x, poison(x, length - 1))) for x in (k, v)], cos, sin)
    store.append(1, length - 1, k[:, :, place], v[:, :, place])
    k[:, :, length - 1] = turned_k.float()
    assert_same([store.attend(1, length - 1, q[:, :, None])[:, :, 0]], exact(turned_q, k, v, length)[:1])


def stored_by_torch(kind, k, v):
    if kind == "int8":
        return [part for x in (k, v) for part in quantize.int8_per_token(x)]
    parts = []
    for x in (k, v):
        levels, scale, zero = quantize.per_token(x, 4, 32)
        parts += [quantize.pack_int4(levels), scale, zero]
    return parts


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_quantised_token_has_the_bits_that_torch_gives_it(kind, batch):
    _, k, v = inputs(batch, 3, 2, 64, 40, 40)
    k[0, 0, 5], v[0, 0, 6] = 0.0, 1e-42  # nothing to scale by, and too small to divide by
    cos, sin = rope.tables(40, 64, 10_000.0)
    expected = stored_by_torch(kind, rope.rotate(k, cos, sin), v)
    stored = [torch.zeros_like(part)[None] for part in expected]
    bound = cpu.BoundCache(kind, stored, cos, sin)
    for t in (*range(30), slice(30, 37), slice(37, 40)):
        t = t if isinstance(t, slice) else slice(t, t + 1)
        bound.append(0, t.start, k[:, :, t], v[:, :, t])
    for got, want in zip(stored, expected, strict=True):
        assert torch.equal(got[0], want)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("kind", ["float32", "int8", "int4"])
def test_a_cache_answers_queries_that_it_rotates(kind, tokens, group):
    q, k, v = several((2, 2, group, 64, 90, 77), tokens)
    cos, sin = rope.tables(90, 64, 10_000.0)
    stored = (k, v) if kind == "float32" else stored_by_torch(kind, k, v)
    read = {
        "float32": cpu.decode_attention,
        "int8": cpu.decode_attention_int8,
        "int4": lambda q, k, ks, kz, v, vs, vz, n: cpu.decode_attention_int4(q, k, ks, v, vs, n, kz, vz),
    }[kind]
    first = 77 - tokens
    want = read(rope.rotate(q, cos[first:77], sin[first:77]), *stored, 77)
    got = cpu.BoundCache(kind, [part[None] for part in stored], cos, sin).attend(0, first, q)
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_what_is_not_finite_is_refused_and_nothing_written(kind, bad):
    k = torch.ones(1, 2, 1, 64)
    stored = [torch.zeros_like(part)[None] for part in stored_by_torch(kind, k, k)]
    bound = cpu.BoundCache(kind, stored, *rope.tables(1, 64, 10_000.0))
    for place in (0, 1):
        pair = [k.clone(), k.clone()]
        pair[place][0, 1, 0, 63] = bad
        with pytest.raises(ValueError, match="1 of 256 numbers are NaN or infinite"):
            bound.append(0, 0, *pair)
    assert not any(part.any() for part in stored)


@pytest.mark.parametrize("x", [torch.zeros(1, 15), torch.zeros(1, 16).double(), torch.zeros(1, 1, 16)])
def test_a_bound_loop_refuses_what_does_not_fit_its_weights(x):
    w, norm = torch.zeros(16, 16), torch.ones(16)
    with pytest.raises(ValueError, match=r"float32 \[batch, 16\]"):
        cpu.bind_norm_linear(norm, 1e-5, w)(x)
    with pytest.raises(ValueError, match=r"float32 \[batch, 16\]"):
        cpu.bind_finish_block(w, norm, 1e-5, torch.zeros(32, 16), w)(x, torch.zeros(1, 16))


@pytest.mark.parametrize("shape", [(1, 5, 1, 64), (1, 6, 2, 32), (2, 6, 1, 64), (1, 6, 1, 32)])
def test_a_bound_cache_refuses_what_are_not_tokens_of_its_own(shape):
    store = cpu.BoundCache("float32", [cache(1, 1, 2, 8, 64)] * 2, cache(8, 64), cache(8, 64))
    with pytest.raises(ValueError, match="of this cache are float32"):
        store.attend(0, 0, torch.zeros(shape))
    with pytest.raises(ValueError, match="of this cache are float32"):
        store.append(0, 0, torch.zeros(shape), torch.zeros(1, 2, 1, 64))


@pytest.mark.parametrize("size", [1e-3, 1.0, 80.0])
def test_softmax_of_any_spread(size):
    """Scores that hardly differ, and scores of which one takes all."""
    q, k, v = inputs(1, 1, 1, 64, 200, 199)
    assert_same(cpu.decode_attention(q * size, k, v, 199, return_lse=True), exact(q * size, k, v, 199))


def cache(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: cpu.linear(torch.zeros(1, 4), torch.zeros(2, 5)), "must be"),
        (lambda: cpu.linear(torch.zeros(1, 4), torch.zeros(2, 4).bfloat16()), "reference"),
        (lambda: cpu.linear(torch.zeros(1, 4).bfloat16(), torch.zeros(2, 4)), "float32"),
        (lambda: cpu.linear(torch.zeros(1, 4), torch.zeros(4, 2).T), "not contiguous"),
        (lambda: cpu.decode_attention(cache(1, 4, 64), cache(1, 3, 8, 64), cache(1, 3, 8, 64), 8), "share 3 KV heads"),
        (lambda: cpu.decode_attention(cache(1, 4, 64), cache(1, 2, 8, 64), cache(1, 2, 8, 64), 9), "capacity of 8"),
        (lambda: cpu.decode_attention(cache(1, 4, 64), cache(1, 2, 8, 64), cache(1, 2, 8, 64), -1), "capacity of 8"),
        (lambda: cpu.decode_attention(cache(2, 4, 64), cache(1, 2, 8, 64), cache(1, 2, 8, 64), 8), "does not fit"),
        (lambda: cpu.decode_attention(cache(1, 4, 32), cache(1, 2, 8, 64), cache(1, 2, 8, 64), 8), "does not fit"),
        (lambda: cpu.decode_attention(cache(1, 4, 64), cache(1, 2, 8, 64), cache(1, 2, 9, 64), 8), "must be"),
        (lambda: cpu.decode_attention(cache(1, 4, 8), cache(1, 2, 8, 8)[:, :, :4], cache(1, 2, 4, 8), 3), "whole"),
        (lambda: cpu.decode_attention(cache(1, 4, 64).half(), cache(1, 2, 8, 64), cache(1, 2, 8, 64), 8), "reference"),
        (
            lambda: cpu.decode_attention(
                cache(1, 4, 64), cache(1, 2, 8, 64), cache(1, 2, 8, 64), torch.tensor([1, 2])
            ),
            "2 lengths",
        ),
        (
            lambda: cpu.decode_attention_int8(
                cache(1, 4, 64), *(cache(1, 2, 8, 64, dtype=torch.int8), cache(1, 2, 7)) * 2, 8
            ),
            r"k_scale must be \[batch, kv_heads, capacity\]",
        ),
        (
            lambda: cpu.decode_attention_int4(
                cache(1, 4, 64), *(cache(1, 2, 8, 32, dtype=torch.uint8), cache(1, 2, 8, 3)) * 2, 8
            ),
            "does not tile",
        ),
    ],
)  # fmt: skip
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_select_by_device_and_by_name(capsys, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert kernels.select("cpu").__name__ == "helpers.kernels.cpu"
    assert kernels.select("cpu", "reference").__name__ == "helpers.kernels.reference"
    assert kernels.select("meta").__name__ == "helpers.kernels.reference"
    with pytest.raises(ValueError, match="no kernel backend 'fast'"):
        kernels.select("cpu", "fast")
    with pytest.raises(ValueError, match="does not run on device 'cpu'"):
        kernels.select("cpu", "cuda")
    with pytest.raises(ValueError, match="'cpu' backend does not compute in torch.bfloat16"):
        kernels.select("cpu", "cpu", torch.bfloat16)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("device, reason", [("mps", "no tuned kernels for 'mps'"), ("cuda", "compute capability 7.0")])
def test_without_tuned_kernels_reference_serves_and_says_so_once(device, reason, capsys, monkeypatch):
    monkeypatch.setattr(kernels, "_said", set())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    assert [kernels.select(device).__name__ for _ in range(2)] == ["helpers.kernels.reference"] * 2
    assert capsys.readouterr().out.count(reason) == 1


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one core")
def test_loops_run_on_as_many_threads_as_torch_uses_now(monkeypatch):
    at_first = torch.get_num_threads()
    q, k, v = inputs(1, 3, 3, 64, 1024, 1024)
    x, norm, w = torch.randn(1, 192), torch.ones(192), torch.randn(192, 192)
    gate_up, table = torch.randn(384, 192), torch.zeros(1024, 64)
    norm_linear, finish = cpu.bind_norm_linear(norm, 1e-5, w), cpu.bind_finish_block(w, norm, 1e-5, gate_up, w)
    bound = cpu.BoundCache("float32", [k[None], v[None]], table, table)
    calls = [
        lambda: cpu.linear(x, w),
        lambda: norm_linear(x),
        lambda: finish(x, x),
        lambda: bound.attend(0, 1000, q[:, :, None]),
        lambda: cpu.decode_attention(q, k, v, 1000),
    ]
    tasks = []
    for name in ("linear", "norm_linear", "finish_block"):
        loop = getattr(cpu.cpu_kernels, name)
        monkeypatch.setattr(
            cpu.cpu_kernels, name, lambda *arrays, loop=loop: (tasks.append(arrays[-1]), loop(*arrays)) and None
        )
    try:
        for count in (1, 2, 1):
            for call in calls:  # each alone is told, whichever comes first
                torch.set_num_threads(3 - count)
                cpu.linear(x, w)
                torch.set_num_threads(count)
                tasks.clear()
                call()
                assert numba.get_num_threads() == count and set(tasks) <= {count}
            with ThreadPoolExecutor(1) as elsewhere:  # numba counts for each of Python's threads
                assert elsewhere.submit(lambda: (cpu.linear(x, w), numba.get_num_threads())[1]).result() == count
        torch.set_num_threads(numba.config.NUMBA_NUM_THREADS + 3)
        torch.testing.assert_close(cpu.linear(x, w), x @ w.T, atol=1e-4, rtol=1e-4)
    finally:
        torch.set_num_threads(at_first)
