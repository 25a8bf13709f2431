"""What every cache promises, whatever it stores: one test for each promise, run over all caches that are exported.

The judge is a recomputation: a new cache of the same kind, one sequence in it, fed the same tokens in the same pieces.
"""

import functools
import inspect

import pytest
import torch

from helpers import caches
from helpers.caches import (
    AttentionProbe,
    BlockPool,
    CacheFull,
    Fp8Cache,
    FullCache,
    Int4ChannelCache,
    Int4TokenCache,
    Int8Cache,
    KVCache,
    LatentCache,
    PagedCache,
    RoundTripCache,
    SharedPrefixCache,
    SinkCache,
    StaticCache,
)
from helpers.models.counts import kv_bytes
from helpers.models.decoder import Decoder
from helpers.models.geometry import MLA, Geometry

pytestmark = pytest.mark.usefixtures("one_thread")
CAPACITY, PROMPT = 96, 7
KEYS = Geometry("keys", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=32, intermediate=96, vocab=101)
LATENTS = KEYS.replace(name="latents", kv_heads=4, head_dim=48, mla=MLA(32, 16, 32, 24))
PREFIX = [11, 5, 80, 41, 7]
BACKENDS = ("cpu", "reference")


def paged(geometry, capacity, batch=1, **options):
    size = 8
    blocks = -(-capacity // size)
    pool = BlockPool(geometry, batch * blocks, size, capacity)
    order = torch.randperm(batch * blocks, generator=torch.Generator().manual_seed(0)).view(batch, blocks)
    return PagedCache(pool, order.tolist(), **options)


def shared_prefix(geometry, capacity, batch=1, **options):
    prefix = FullCache(geometry, len(PREFIX), **options)
    decoder(geometry, options["backend"]).prefill(torch.tensor([PREFIX]), prefix)
    return SharedPrefixCache(prefix, capacity, batch, **options)


def halved(k, v):
    return k * 0.5, v


MAKE = {
    "FullCache": FullCache,
    "StaticCache": StaticCache,
    "AttentionProbe": AttentionProbe,
    "RoundTripCache": functools.partial(RoundTripCache, restore=halved),
    "PagedCache": paged,
    "SharedPrefixCache": shared_prefix,
    "LatentCache": LatentCache,
    "SinkCache": functools.partial(SinkCache, sinks=2, window=12),
    "SinkCache, roomy": functools.partial(SinkCache, sinks=2, window=CAPACITY),
    "Int8Cache": Int8Cache,
    "Int8Cache, naive": functools.partial(Int8Cache, fused=False),
    "Int4TokenCache": Int4TokenCache,
    "Int4ChannelCache": Int4ChannelCache,
    "Fp8Cache": Fp8Cache,
}
ONE_LENGTH = ("SinkCache", "SinkCache, roomy", "Int4ChannelCache")  # all their sequences together
# Answer otherwise than a full cache, on purpose: they drop, round, or begin with a prefix.
OTHERWISE = ("RoundTripCache", "SharedPrefixCache", "SinkCache", "Int8Cache", "Int8Cache, naive")
OTHERWISE += ("Int4TokenCache", "Int4ChannelCache", "Fp8Cache")


@functools.cache
def decoder(geometry, backend):
    return Decoder(geometry, backend=backend)


@functools.cache
def recomputed_once(kind, backend, tokens):
    return feed(kind, backend, make(kind, backend), [list(tokens)])[0]


@pytest.fixture(params=MAKE)
def kind(request):
    return request.param


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def geometry_of(kind):
    return LATENTS if kind == "LatentCache" else KEYS


def make(kind, backend, capacity=CAPACITY, batch=1):
    return MAKE[kind](geometry_of(kind), capacity, batch=batch, backend=backend)


def text(n, seed=0):
    return torch.randint(KEYS.vocab, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def feed(kind, backend, cache, texts):
    """Every sequence its text: a prompt, then one token after the other. Returns the last logits [batch, vocab]."""
    model, tokens = decoder(geometry_of(kind), backend), torch.tensor(texts)
    logits = model.prefill(tokens[:, :PROMPT], cache)
    for i in range(PROMPT, tokens.shape[1]):
        logits = model.decode(tokens[:, i], cache)
    return logits


def step(kind, backend, cache, tokens):
    return decoder(geometry_of(kind), backend).decode(torch.tensor(tokens), cache)


def recomputed(kind, backend, tokens):
    return recomputed_once(kind, backend, tuple(tokens))


def agree(kind, got, expected):
    """Equal but for the order of sums; a quantiser may turn such a difference into one of its steps."""
    rounds = kind.startswith(("Int", "Fp8"))
    assert (got - expected).norm() <= (2e-2 if rounds else 1e-5) * expected.norm()


def tensors(cache):
    """Copies of everything that a cache holds, whichever object it lies in."""
    found = {}
    for owner in (cache, getattr(cache, "pool", None), getattr(cache, "prefix", None)):
        for name, value in vars(owner).items() if owner else ():
            for key, each in value.items() if isinstance(value, dict) else ((name, value),):
                if isinstance(each, torch.Tensor):
                    found[type(owner).__name__, key] = each.clone()
    return found


def unchanged(cache, before):
    after = tensors(cache)
    return after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


def start_of(kind):
    return len(PREFIX) if kind == "SharedPrefixCache" else 0


def entries(cache, t, **changes):
    """k and v of t tokens in the shape that this cache takes."""
    g = cache.geometry
    heads, *widths = (1, g.mla.qk_rope_head_dim, g.mla.kv_lora_rank) if g.mla else (g.kv_heads, *[g.head_dim] * 2)
    dtype = changes.get("dtype", torch.float32)
    return [torch.ones(cache.batch, heads, t, width).to(dtype) for width in widths]


def queries(cache, t):
    g = cache.geometry
    width = g.mla.kv_lora_rank + g.mla.qk_rope_head_dim if g.mla else g.head_dim
    return torch.ones(cache.batch, g.q_heads, t, width)


def test_every_exported_cache_is_held_to_the_contract():
    exported = {
        name
        for name in caches.__all__
        if inspect.isclass(getattr(caches, name)) and issubclass(getattr(caches, name), KVCache)
    }
    concrete = {name for name in exported if not inspect.isabstract(getattr(caches, name))}
    assert concrete == {name.partition(",")[0] for name in MAKE}, "each needs a line in MAKE, above"


@torch.inference_mode()
def test_logits_are_those_of_a_full_cache_where_nothing_is_dropped_or_rounded(kind, backend):
    if kind in OTHERWISE:
        pytest.skip("answers otherwise, on purpose")
    tokens = text(60)
    whole = decoder(geometry_of(kind), "reference").prefill(
        torch.tensor([tokens]), make("LatentCache" if kind == "LatentCache" else "FullCache", "reference")
    )
    agree(kind, feed(kind, backend, make(kind, backend), [tokens]), whole)


@pytest.mark.parametrize("came, back", [(40, 20), (34, 30), (40, 32), (90, 85), (90, 20), (90, 33), (14, 9), (30, 29)])
@torch.inference_mode()
def test_rewind_forgets_what_came_after_or_refuses(kind, backend, came, back):
    """(40, 20) and (34, 30) once gave int4 keys of a block to logits that should have seen its first tokens exact."""
    tokens, cache = text(came), make(kind, backend)
    feed(kind, backend, cache, [tokens])
    try:
        cache.rewind(start_of(kind) + back)
    except ValueError as error:
        assert "cannot continue at" in str(error) and kind in ("SinkCache", "Int4ChannelCache")
        back = came
    assert cache.length == start_of(kind) + back
    for i, token in enumerate((3, 99)):
        expected = recomputed(kind, backend, [*tokens[:back], *(3, 99)[: i + 1]])
        agree(kind, step(kind, backend, cache, [token])[0], expected)


@pytest.mark.parametrize("kind, came, back", [("SinkCache", 90, 2), ("Int4ChannelCache", 90, 64)])
@torch.inference_mode()
def test_those_that_refuse_go_back_where_they_can(backend, kind, came, back):
    tokens, cache = text(came), make(kind, backend)
    feed(kind, backend, cache, [tokens])
    cache.rewind(back)
    cache.rewind(back)
    logits = decoder(KEYS, backend).prefill(torch.tensor([[4, 5]]), cache)
    fresh = make(kind, backend)
    model = decoder(KEYS, backend)
    if back < PROMPT:
        model.prefill(torch.tensor([tokens[:back]]), fresh)
    else:
        feed(kind, backend, fresh, [tokens[:back]])
    agree(kind, logits, model.prefill(torch.tensor([[4, 5]]), fresh))


@torch.inference_mode()
def test_a_cache_can_be_used_again(kind, backend):
    cache = make(kind, backend, batch=2)
    for seed in (1, 2):
        cache.rewind(start_of(kind))
        texts = [text(33, seed), text(33, seed + 10)]
        logits = feed(kind, backend, cache, texts)
        for row in range(2):
            agree(kind, logits[row], recomputed(kind, backend, texts[row]))


@torch.inference_mode()
def test_one_sequence_is_cut_and_unequal_ones_go_on_together(kind, backend):
    texts = [text(30, seed) for seed in range(3)]
    cache = make(kind, backend, batch=3)
    feed(kind, backend, cache, texts)
    first = start_of(kind)
    if kind in ONE_LENGTH:
        before = tensors(cache)
        with pytest.raises(ValueError, match=f"{kind.partition(',')[0]} keeps all its sequences at one length"):
            cache.truncate(1, 20)
        assert cache.lengths == [30] * 3 and unchanged(cache, before)
        return
    cache.truncate(1, first + 20)
    cache.truncate(2, first + 29)
    cache.truncate(0, first + 30)  # where it is
    assert cache.lengths == [first + 30, first + 20, first + 29]
    with pytest.raises(ValueError, match="no common length: ask for lengths"):
        _ = cache.length
    histories = [texts[0], texts[1][:20], texts[2][:29]]
    for tokens in ([1, 2, 3], [7, 8, 9]):
        logits = step(kind, backend, cache, tokens)
        for history, token in zip(histories, tokens, strict=True):
            history.append(token)
        for row, history in enumerate(histories):
            agree(kind, logits[row], recomputed(kind, backend, history))
    # What speculation does: several tokens in one pass, some of them taken back.
    drafted = [[4, 5, 6], [40, 50, 60], [44, 55, 66]]
    model = decoder(geometry_of(kind), backend)
    logits = model.prefill(torch.tensor(drafted), cache, all_positions=True)
    for row, history in enumerate(histories):
        for i in range(3):
            agree(kind, logits[row, i], recomputed(kind, backend, [*history, *drafted[row][: i + 1]]))
    kept = [3, 0, 1]
    for row, history in enumerate(histories):
        cache.truncate(row, cache.lengths[row] - 3 + kept[row])
        history += drafted[row][: kept[row]]
    logits = step(kind, backend, cache, [2, 2, 2])
    for row, history in enumerate(histories):
        agree(kind, logits[row], recomputed(kind, backend, [*history, 2]))
    # And back to one length.
    for row in range(3):
        cache.truncate(row, first + 12)
    assert cache.length == first + 12
    logits = step(kind, backend, cache, [2, 2, 2])
    for row in range(3):
        agree(kind, logits[row], recomputed(kind, backend, [*histories[row][:12], 2]))


@pytest.mark.parametrize("t", [2, 5, 8, 9])
@torch.inference_mode()
def test_several_tokens_in_one_step_say_what_single_steps_say(kind, backend, t):
    texts, drafted = [text(40, seed) for seed in (1, 2)], [text(t, seed) for seed in (3, 4)]
    cache = make(kind, backend, batch=2)
    feed(kind, backend, cache, texts)
    logits = step(kind, backend, cache, drafted)
    assert logits.shape == (2, t, KEYS.vocab) and cache.lengths == [start_of(kind) + 40 + t] * 2
    for row, history in enumerate(texts):
        for i in range(t):
            agree(kind, logits[row, i], recomputed(kind, backend, [*history, *drafted[row][: i + 1]]))


@torch.inference_mode()
def test_a_single_sequence_is_cut_as_it_is_rewound(kind, backend):
    tokens, cache = text(14), make(kind, backend)
    feed(kind, backend, cache, [tokens])
    cache.truncate(0, start_of(kind) + 9)
    agree(kind, step(kind, backend, cache, [3])[0], recomputed(kind, backend, [*tokens[:9], 3]))


def test_cuts_that_make_no_sense_are_refused(kind):
    cache = make(kind, "cpu", batch=2)
    feed(kind, "cpu", cache, [text(10)] * 2)
    lengths = cache.lengths
    for sequence, length in ((0, lengths[0] + 1), (0, -1), (0, 2.0), (2, 5), (-1, 5), (True, 5), (0, True)):
        with pytest.raises(ValueError, match="cannot cut sequence|there is no sequence"):
            cache.truncate(sequence, length)
    for length in (-1, CAPACITY + 33, 2.0, True):
        with pytest.raises(ValueError, match="cannot continue at"):
            cache.rewind(length)
    assert cache.lengths == lengths


def test_a_filled_cache_is_timed_anywhere(kind):
    """A sweep over the contexts 0 and 32 once failed at the second: back at 0, a ring forgot that it was filled."""
    cache, first = make(kind, "cpu", batch=2), start_of(kind)
    cache.fill(60)
    assert cache.lengths == [60, 60]
    for context in (first, 32, first, 59, 9, 60):
        cache.rewind(context)
        assert cache.lengths == [context] * 2
        assert torch.isfinite(step(kind, "cpu", cache, [1, 2])).all()
        assert cache.lengths == [context + 1] * 2


def test_a_text_fed_after_a_fill_counts_again():
    """In a ring that a text has filled once over, what it overwrote is gone, whatever was drawn there before."""
    cache = make("SinkCache", "cpu")
    cache.fill(60)
    cache.rewind(0)
    feed("SinkCache", "cpu", cache, [text(20)])
    for length in (19, 21):
        with pytest.raises(ValueError, match="overwritten|only 20 tokens ever came"):
            cache.rewind(length)


def test_a_fill_that_cannot_be_is_refused_before_it_writes(kind):
    cache = make(kind, "cpu")
    feed(kind, "cpu", cache, [text(10)])
    before, lengths = tensors(cache), cache.lengths
    for length in (-1, CAPACITY + 33, 3.5, *([2] if start_of(kind) else [])):
        with pytest.raises(ValueError, match="cannot continue at"):
            cache.fill(length)
    assert unchanged(cache, before) and cache.lengths == lengths


@pytest.mark.parametrize("t", [1, 3])
def test_a_full_cache_says_so_and_stores_nothing(kind, backend, t):
    cache = make(kind, backend)
    cache.fill(cache.capacity - t + 1)
    before = tensors(cache)
    with pytest.raises(CacheFull, match=f"capacity={cache.capacity + 1} or more"):
        cache.append(0, *entries(cache, t))
    assert unchanged(cache, before)
    assert cache.length == cache.seen(0) == cache.capacity - t + 1


@pytest.mark.parametrize("t", [1, 3])
def test_other_shapes_and_types_are_refused_by_name(kind, backend, t):
    cache = make(kind, backend, batch=2)
    cache.fill(10)
    before = tensors(cache)
    good = entries(cache, t)
    wrong = {
        "batch": [x[:1] for x in good],
        "heads": [torch.cat((x, x), dim=1) for x in good],
        "width": [torch.cat((x, x), dim=3) for x in good],
        "dimensions": [x[..., 0] for x in good],
        "v alone": [good[0], good[1][..., :-1]],
        "type": entries(cache, t, dtype=torch.int64),
    }
    if not kind.startswith(("Int", "Fp8")):
        wrong["precision"] = entries(cache, t, dtype=torch.float64)
    for what, (k, v) in wrong.items():
        with pytest.raises(ValueError, match="k must be|v must be|is torch|of this cache are"):
            cache.append(0, k, v)
        assert unchanged(cache, before) and cache.seen(0) == 10, what
    cache.append(0, *good)
    q = queries(cache, t)
    for bad in (q[:1], q[:, :3], torch.cat((q, q), dim=3), q[..., 0]):
        with pytest.raises(ValueError, match="q must be|of this cache are"):
            cache.attend(0, bad)
    assert cache.attend(0, q).shape[:3] == q.shape[:3]


@pytest.mark.parametrize("t", [1, 2])
def test_queries_without_tokens_are_refused(kind, backend, t):
    if kind == "SharedPrefixCache":
        pytest.skip("there are always the tokens of the prefix")
    cache = make(kind, backend)
    with pytest.raises(ValueError, match="append, then attend"):
        cache.attend(0, queries(cache, t))


def test_the_other_kind_of_geometry_is_refused_in_words(kind):
    if kind == "LatentCache":
        with pytest.raises(ValueError, match="no latent: use FullCache"):
            LatentCache(KEYS, CAPACITY)
    elif kind == "SharedPrefixCache":
        pytest.skip("a prefix is a FullCache")
    else:
        with pytest.raises(ValueError, match="keeps latents, not keys and values: use LatentCache"):
            MAKE[kind](LATENTS, CAPACITY)


def used_bytes(kind, cache, n):
    """Bytes of the rows that n tokens use, from the tensors of a cache made for one sequence."""
    if kind == "PagedCache":
        return cache.nbytes * n // CAPACITY
    if kind == "SharedPrefixCache":
        return cache.prefix.nbytes + cache.keys[:, 0, :, : n - len(PREFIX)].nbytes * 2
    if kind == "LatentCache":
        return cache.rows[:, 0, :n].nbytes
    if hasattr(cache, "stored"):
        block = getattr(cache, "block", 1)
        rows = {"k": n - n % block, "k_scale": n // block, "k_zero": n // block, "recent": n % block}
        return sum(x[:, 0, :, : rows.get(name, n)].nbytes for name, x in cache.stored.items())
    assert hasattr(cache, "keys"), f"say here which rows of its tensors {kind} reads at n tokens"
    return sum(x[:, 0, :, : min(n, getattr(cache, "rows", n))].nbytes for x in (cache.keys, cache.values))


def test_bytes_of_a_step_are_those_of_the_rows_it_reads(kind):
    cache = make(kind, "cpu", batch=1)
    for n in (start_of(kind) + 1, 10, 64, 90):
        assert cache.step_bytes(n) == used_bytes(kind, cache, n)
    batch = make(kind, "cpu", batch=3)
    once = cache.step_bytes(start_of(kind)) if start_of(kind) else 0  # what all read together
    each = [cache.step_bytes(n) - once for n in (10, 64, 31)]
    assert batch.step_bytes([10, 64, 31]) == once + sum(each)
    assert batch.step_bytes(64) == once + 3 * each[1]
    if kind in ("FullCache", "StaticCache", "PagedCache", "LatentCache"):
        assert batch.step_bytes(64) == kv_bytes(geometry_of(kind), 64, batch=3, dtype=torch.float32)
    for wrong in ([10, 64], -1, [1, 2, -3]):
        with pytest.raises(ValueError, match="length must be"):
            batch.step_bytes(wrong)


def test_asking_for_bytes_moves_nothing(kind):
    cache = make(kind, "cpu", batch=2)
    feed(kind, "cpu", cache, [text(20), text(20, 1)])
    before, lengths = tensors(cache), cache.lengths
    asked = {n: cache.step_bytes(n) for n in (90, 10, 50)}
    assert unchanged(cache, before) and cache.lengths == lengths
    cache.rewind(start_of(kind))
    assert asked == {n: cache.step_bytes(n) for n in asked}
