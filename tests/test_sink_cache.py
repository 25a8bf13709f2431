"""SinkCache against dense attention in float64 under the mask and the distances that the paper describes."""

import itertools

import pytest
import torch

from helpers.caches import CacheFull, FullCache, SinkCache
from helpers.clock import graphs
from helpers.models.decoder import Decoder
from helpers.models.geometry import Geometry

TINY = Geometry(
    "tiny", layers=2, hidden=32, q_heads=6, kv_heads=2, head_dim=8, intermediate=48, vocab=61, rope_theta=1e4
)


def dense(q, k, v, sinks, window, theta):
    """All tokens at once, float64: which key a query sees, and how far apart the two stand in the cache.

    Keys and queries are complex numbers here, and rotating is multiplying by exp(i · angle · distance):
    no code and no tables shared with the cache.
    """
    n, width, group = q.shape[2], q.shape[3], q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    query, key = torch.arange(n)[:, None], torch.arange(n)[None]
    seen = (key <= query) & ((key < sinks) | (key > query - window))
    # In the cache the window follows the sinks without a gap, and the newest token is the last of all rows.
    distance = torch.where(key < sinks, query.clamp(max=sinks + window - 1) - key, query - key).double()
    speed = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    turn = torch.polar(torch.ones(n, n, width // 2, dtype=torch.float64), distance[..., None] * speed)
    pairs = [torch.complex(x[..., : width // 2], x[..., width // 2 :]) for x in (q, k)]
    scores = torch.einsum("bhid,bhjd,ijd->bhij", pairs[0], pairs[1].conj(), turn).real / width**0.5
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v


def tiny_cache(capacity, sinks, window, batch=1):
    return SinkCache(TINY, capacity, sinks, window, batch, dtype=torch.float64, backend="reference")


def drawn(n, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    g = TINY
    return [
        torch.randn(batch, heads, n, g.head_dim, generator=generator, dtype=torch.float64)
        for heads in (g.q_heads, g.kv_heads, g.kv_heads)
    ]


def fed(cache, q, k, v, sizes):
    """What the cache answers when the tokens come in pieces of these sizes, the last size repeated."""
    parts = []
    start = 0
    for size in itertools.chain(sizes, itertools.repeat(sizes[-1])):
        if start >= q.shape[2]:
            break
        piece = slice(start, start + size)
        for layer in range(TINY.layers):
            cache.append(layer, k[:, :, piece], v[:, :, piece])
            answer = cache.attend(layer, q[:, :, piece])
        parts.append(answer)
        start += size
    return torch.cat(parts, dim=2)


@pytest.mark.parametrize("sinks, window", [(0, 1), (0, 7), (1, 1), (1, 5), (4, 4), (4, 9), (8, 64), (3, 200)])
@pytest.mark.parametrize("sizes", [(1,), (100,), (2,), (3, 1, 17, 5), (60, 1)])
def test_every_token_sees_its_own_window(sinks, window, sizes):
    q, k, v = drawn(100)
    cache = tiny_cache(100, sinks, window, batch=2)
    got = fed(cache, q, k, v, sizes)
    # Tables of cosines are float32, hence 1e-6 and not 1e-12.
    torch.testing.assert_close(got, dense(q, k, v, sinks, window, TINY.rope_theta), rtol=0, atol=2e-6)
    assert cache.length == 100


@pytest.mark.parametrize("sinks, window", [(4, 40), (300, 300)])
def test_prompt_longer_than_a_block(sinks, window):
    q, k, v = drawn(700, batch=1)
    cache = tiny_cache(700, sinks, window)
    got = fed(cache, q, k, v, (690, 1))
    torch.testing.assert_close(got, dense(q, k, v, sinks, window, TINY.rope_theta), rtol=0, atol=2e-6)


def test_positions_in_the_text_would_be_another_answer():
    """The reference above can tell what this cache is about: text positions and cache positions differ."""
    q, k, v = drawn(100)
    text = dense(q, k, v, 100, 100, TINY.rope_theta)  # all are sinks: nothing is dropped
    cache = tiny_cache(100, 4, 9, batch=2)
    assert (fed(cache, q, k, v, (1,)) - text)[:, :, 50:].abs().max() > 0.1


def test_window_over_everything_is_the_full_cache():
    q, k, v = drawn(50)
    full = FullCache(TINY, 50, batch=2, dtype=torch.float64, backend="reference")
    sink = tiny_cache(50, 4, 46, batch=2)
    torch.testing.assert_close(fed(sink, q, k, v, (20, 1)), fed(full, q, k, v, (20, 1)), rtol=0, atol=1e-6)


def test_sequences_of_a_batch_do_not_meet():
    q, k, v = drawn(60, batch=3)
    together = fed(tiny_cache(60, 2, 9, batch=3), q, k, v, (31, 1))
    for i in range(3):
        alone = tiny_cache(60, 2, 9)
        torch.testing.assert_close(fed(alone, *(x[i : i + 1] for x in (q, k, v)), (31, 1)), together[i : i + 1])


def test_decoder_gives_the_same_logits_in_chunks_and_one_by_one():
    decoder = Decoder(TINY, dtype=torch.float64, backend="reference")
    tokens = torch.randint(0, TINY.vocab, (2, 80), generator=torch.Generator().manual_seed(1))
    chunked, single = (tiny_cache(80, 4, 12, batch=2) for _ in range(2))
    whole = torch.cat([decoder.prefill(tokens[:, i : i + 32], chunked, all_positions=True) for i in (0, 32, 64)], dim=1)
    steps = torch.stack([decoder.decode(tokens[:, i], single) for i in range(80)], dim=1)
    torch.testing.assert_close(whole, steps, rtol=0, atol=1e-6)


def test_memory_is_constant_and_counted_from_the_tensors():
    short, long = (SinkCache(TINY, capacity, 4, 28) for capacity in (100, 100_000))
    assert short.nbytes == long.nbytes == 2 * TINY.layers * TINY.kv_heads * 32 * TINY.head_dim * 4
    before = {name for name, x in vars(long).items() if isinstance(x, torch.Tensor)}
    for length in (0, 10, 32, 33, 90_000):
        long.fill(length)
        assert long.length == length
        assert long.step_bytes(length) == long.nbytes * min(length, 32) // 32
    assert {name for name, x in vars(long).items() if isinstance(x, torch.Tensor)} == before
    assert not long._passing


def test_reset_forgets_everything():
    q, k, v = drawn(60)
    cache = tiny_cache(60, 4, 9, batch=2)
    first = fed(cache, q, k, v, (13, 1))
    cache.rewind(0)
    fed(cache, *drawn(37, seed=5), (37,))
    cache.rewind(0)
    assert torch.equal(fed(cache, q, k, v, (13, 1)), first)


def test_rewind_within_what_is_still_there():
    q, k, v = drawn(60)
    cache = tiny_cache(60, 4, 40, batch=2)
    fed(cache, *(x[:, :, :30] for x in (q, k, v)), (30,))
    fed(cache, *drawn(10, seed=5), (1,))
    cache.rewind(30)
    tail = fed(cache, *(x[:, :, 30:] for x in (q, k, v)), (1,))
    torch.testing.assert_close(tail, dense(q, k, v, 4, 40, TINY.rope_theta)[:, :, 30:], rtol=0, atol=2e-6)
    cache.rewind(3)  # sinks are never overwritten
    fed(cache, *(x[:, :, 3:20] for x in (q, k, v)), (17,))
    cache.rewind(11)  # and what came since fits the rows again
    tail = fed(cache, *(x[:, :, 11:] for x in (q, k, v)), (1,))
    torch.testing.assert_close(tail, dense(q, k, v, 4, 40, TINY.rope_theta)[:, :, 11:], rtol=0, atol=2e-6)


def test_rewind_to_what_was_overwritten_is_refused():
    cache = tiny_cache(200, 4, 9, batch=2)
    fed(cache, *drawn(60), (60,))
    cache.rewind(60)
    with pytest.raises(ValueError, match="overwritten; rewind\\(0\\)"):
        cache.rewind(59)
    with pytest.raises(ValueError, match="only 60 tokens ever came"):
        cache.rewind(61)
    with pytest.raises(ValueError, match="from 0 to 200"):
        cache.rewind(201)
    assert cache.length == 60
    cache.fill(150)
    for length in (149, 20, 200):
        cache.rewind(length)
        assert cache.length == length


@pytest.mark.parametrize("length, tokens", [(0, 11), (5, 6), (10, 1)])
def test_prompt_beyond_the_capacity_stores_nothing(length, tokens):
    cache = tiny_cache(10, 2, 5, batch=2)
    if length:
        fed(cache, *drawn(length), (length,))
    keys = cache.keys.clone()
    _, k, v = drawn(tokens)
    with pytest.raises(CacheFull, match=f"capacity={length + tokens} or more"):
        cache.append(0, k, v)
    assert torch.equal(cache.keys, keys) and cache.length == length


@pytest.mark.parametrize(
    "sinks, window, capacity, message",
    [
        (4, 0, 100, "window must be a whole number of at least 1, not 0"),
        (4, -8, 100, "window must be a whole number of at least 1, not -8"),
        (-1, 8, 100, "sinks must be a whole number of at least 0, not -1"),
        (4, 2.5, 100, "window must be a whole number"),
        (True, 8, 100, "sinks must be a whole number"),
        (8, 4, 100, "are the two swapped"),
        (4, 8, 4, "leaves no token beside 4 sinks: .* give 5 or more"),
        (4, 8, 0, "capacity must be a whole number of at least 1"),
    ],
)
def test_impossible_sizes(sinks, window, capacity, message):
    with pytest.raises(ValueError, match=message):
        tiny_cache(capacity, sinks, window)


def test_queries_without_their_append():
    cache = tiny_cache(100, 4, 9, batch=2)
    q, k, v = drawn(12)
    cache.append(0, k, v)
    cache.attend(0, q)
    with pytest.raises(ValueError, match="append, then attend"):
        cache.attend(0, q)
    cache.append(1, k, v)
    cache.rewind(0)
    with pytest.raises(ValueError, match="append, then attend"):
        cache.attend(1, q)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(1,), (37, 1)])
def test_half_precision(dtype, sizes):
    q, k, v = drawn(60)
    cache = SinkCache(TINY, 60, 4, 9, batch=2, dtype=dtype, backend="reference")
    got = fed(cache, *(x.to(dtype) for x in (q, k, v)), sizes)
    assert got.dtype == dtype
    expect = dense(*(x.to(dtype).double() for x in (q, k, v)), 4, 9, TINY.rope_theta)
    torch.testing.assert_close(got.double(), expect, rtol=0, atol=0.04 if dtype == torch.bfloat16 else 0.006)


@pytest.mark.parametrize("context", [5, 13, 40])
def test_a_step_at_a_fixed_context_can_be_captured(context):
    """As a CUDA graph: nothing asks the device, nothing moves, and each call launches the same work."""
    decoder, cache = Decoder(TINY, backend="reference"), SinkCache(TINY, 60, 4, 9, backend="reference")
    cache.fill(50)
    token = torch.zeros(1, dtype=torch.long)

    def step():
        cache.rewind(context)
        return decoder.decode(token, cache)

    step()  # the warm-up that every capture begins with
    assert graphs.problems(step, cache) == []
