"""Paged and shared-prefix caches against the dense one, in the real decoder."""

import pytest
import torch

from helpers.caches import BlockPool, FullCache, PagedCache, SharedPrefixCache
from helpers.models.counts import kv_bytes
from helpers.models.decoder import Decoder
from helpers.models.geometry import get
from helpers.serving.blocks import BlockManager

SMALL = get("SmolLM2-135M").replace(
    name="small", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=200
)


def run(decoder, pool, manager, tokens):
    """Prefill what is not cached of `tokens`; returns (session, cache, logits)."""
    session = manager.open(tokens)
    cache = PagedCache(pool, [session.table], length=session.hit_tokens)
    pool.copy(manager.extend(session, tokens[session.hit_tokens :]))
    logits = decoder.prefill(torch.tensor([tokens[session.hit_tokens :]]), cache)
    return session, cache, logits


def test_a_paged_decode_equals_the_dense_one_with_a_hit_and_without():
    decoder, pool, manager = Decoder(SMALL), BlockPool(SMALL, 24, 4, 64), BlockManager(24, 4)
    tokens = torch.randint(200, (23,), generator=torch.Generator().manual_seed(1)).tolist()
    dense = FullCache(SMALL, 64)
    expected = decoder.prefill(torch.tensor([tokens]), dense)
    for hit in (0, 20):
        session, cache, logits = run(decoder, pool, manager, tokens)
        assert session.hit_tokens == hit
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        for token in (3, 5, 8):
            pool.copy(manager.extend(session, [token]))
            cache_logits = decoder.decode(torch.tensor([token]), cache)
            torch.testing.assert_close(cache_logits, decoder.decode(torch.tensor([token]), dense), atol=1e-5, rtol=1e-5)
        dense.rewind(23)
        manager.close(session)


def test_forked_sessions_go_their_own_ways_without_touching_each_other():
    decoder, pool, manager = Decoder(SMALL), BlockPool(SMALL, 24, 4, 64), BlockManager(24, 4)
    parent, _, _ = run(decoder, pool, manager, [5, 6, 7, 8, 9, 10])
    children = [manager.fork(parent), manager.fork(parent)]
    for child, token in zip(children, (20, 30), strict=True):
        pool.copy(manager.extend(child, [token]))
    both = PagedCache(pool, [child.table for child in children], length=6)
    logits = decoder.decode(torch.tensor([20, 30]), both)
    for row, token in enumerate((20, 30)):
        dense = FullCache(SMALL, 16)
        expected = decoder.prefill(torch.tensor([[5, 6, 7, 8, 9, 10, token]]), dense)
        torch.testing.assert_close(logits[row], expected[0], atol=1e-5, rtol=1e-5)
    assert both.nbytes == 3 * pool.block_bytes  # one block shared, one each: four tokens a block, seven tokens


def test_bytes_of_the_pool_and_of_a_step():
    pool = BlockPool(SMALL, 10, 4, 64)
    assert pool.nbytes == kv_bytes(SMALL, 40, dtype=torch.float32)
    cache = PagedCache(pool, [[0, 1], [0, 2]], length=7)
    assert cache.step_bytes(7) == kv_bytes(SMALL, 7, batch=2, dtype=torch.float32)


def test_writing_beyond_the_table_says_what_was_forgotten():
    cache = PagedCache(BlockPool(SMALL, 4, 4, 64), [[0]])
    with pytest.raises(ValueError, match="5 tokens need 2 blocks and a table has 1: extend the session"):
        Decoder(SMALL).prefill(torch.zeros(1, 5, dtype=torch.long), cache)


def test_the_block_table_is_built_once_a_step_whatever_the_number_of_layers(monkeypatch):
    built, find = [], PagedCache._find
    monkeypatch.setattr(PagedCache, "_find", lambda self, *span: built.append(span) or find(self, *span))
    cache = PagedCache(BlockPool(SMALL, 4, 4, 64), [[0, 2], [3, 1]], length=[5, 2])
    decoder = Decoder(SMALL)
    for token in (1, 2):
        decoder.decode(torch.tensor([token, 3]), cache)
    assert built == [(5, 6), (6, 7)] and cache.lengths == [7, 4]


def test_lengths_that_the_tables_cannot_hold_are_refused():
    pool = BlockPool(SMALL, 4, 4, 64)
    for length in (9, [3, 9], [1, 2, 3], -1):
        with pytest.raises(ValueError, match="cannot hold 9 tokens|length must be"):
            PagedCache(pool, [[0, 2], [3, 1]], length=length)


def test_a_shared_prefix_equals_the_dense_cache_and_reads_it_once():
    decoder = Decoder(SMALL)
    generator = torch.Generator().manual_seed(2)
    prefix, own = torch.randint(200, (1, 19), generator=generator), torch.randint(200, (3, 4), generator=generator)
    shared = FullCache(SMALL, 19)
    decoder.prefill(prefix, shared)
    cascade, dense = SharedPrefixCache(shared, 32, batch=3), FullCache(SMALL, 32, batch=3)
    expected = decoder.prefill(torch.cat((prefix.expand(3, -1), own), dim=1), dense)
    torch.testing.assert_close(decoder.prefill(own, cascade), expected, atol=1e-5, rtol=1e-5)
    for token in (1, 2):
        step = torch.full((3,), token)
        torch.testing.assert_close(decoder.decode(step, cascade), decoder.decode(step, dense), atol=1e-5, rtol=1e-5)
    per_token = kv_bytes(SMALL, 1, dtype=torch.float32)
    assert cascade.step_bytes(25) == per_token * (19 + 3 * 6)
    assert dense.step_bytes(25) == per_token * 3 * 25


def test_a_prefix_must_be_one_sequence_and_fit():
    batched, long = FullCache(SMALL, 8, batch=2), FullCache(SMALL, 8)
    batched.fill(4)
    long.fill(8)
    for prefix in (batched, long, FullCache(SMALL, 8)):
        with pytest.raises(ValueError, match="a prefix is one sequence shorter than the capacity of 8"):
            SharedPrefixCache(prefix, 8, batch=2)
    ok = FullCache(SMALL, 8)
    ok.fill(4)
    with pytest.raises(ValueError, match="the first 4 are the shared prefix"):
        SharedPrefixCache(ok, 8, batch=2).rewind(3)
