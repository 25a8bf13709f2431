"""Whole decode steps over the Triton kernel, in the interpreter: fit to be captured, and equal to plain torch."""

import pytest
import torch

from helpers.caches import (
    BlockPool,
    FullCache,
    Int4TokenCache,
    Int8Cache,
    LatentCache,
    PagedCache,
    SinkCache,
    StaticCache,
)
from helpers.clock import graphs
from helpers.kernels import cuda
from helpers.models.decoder import Decoder
from helpers.models.geometry import MLA, Geometry
from tools import kernel_table

HEADS_OF_32 = Geometry("wider", layers=2, hidden=32, q_heads=4, kv_heads=2, head_dim=32, intermediate=48, vocab=64)
TINY = Geometry("tiny", layers=2, hidden=32, q_heads=4, kv_heads=2, head_dim=16, intermediate=48, vocab=64)


def filled_cache(backend):
    cache = StaticCache(TINY, 64, batch=2, backend=backend)
    cache.fill(7)
    return cache


def test_the_step_may_be_captured():
    decoder, cache = Decoder(TINY, backend="cuda"), filled_cache("cuda")
    assert graphs.problems(lambda: decoder.decode(torch.tensor([1, 2]), cache), cache, decoder) == []


def paged(geometry, capacity, batch, backend):
    blocks = capacity // 16
    pool = BlockPool(geometry, batch * blocks, 16, capacity)
    tables = torch.randperm(batch * blocks, generator=torch.Generator().manual_seed(0)).view(batch, blocks)
    return PagedCache(pool, tables.tolist(), backend=backend)


def ringed(geometry, capacity, batch, backend):
    """Which has dropped tokens of a prompt of 12."""
    return SinkCache(geometry, capacity, 2, 7, batch, backend=backend)


@pytest.mark.parametrize("kind", [FullCache, StaticCache, Int8Cache, Int4TokenCache, paged, ringed])
def test_the_step_gives_the_same_logits(kind, monkeypatch):
    monkeypatch.setattr(cuda, "_capability", lambda device: (7, 5))  # where all is computed in float32
    logits = []
    for backend in ("cuda", "reference"):
        decoder, cache = Decoder(HEADS_OF_32, backend=backend), kind(HEADS_OF_32, 64, batch=2, backend=backend)
        decoder.prefill(torch.arange(24).view(2, 12), cache)
        logits.append([decoder.decode(torch.tensor(tokens), cache) for tokens in ([1, 2], [3, 4], [[5, 6], [7, 8]])])
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)


LATENT = TINY.replace(name="tiny latent", kv_heads=4, head_dim=32, mla=MLA(16, 16, 16, 16))


@pytest.mark.parametrize("kind, geometry", [(paged, TINY), (FullCache, TINY), (Int8Cache, TINY), (LatentCache, LATENT)])
def test_sequences_of_unequal_length_decode_as_each_alone(kind, geometry, monkeypatch):
    monkeypatch.setattr(cuda, "_capability", lambda device: (7, 5))  # where int8 is computed in float32 too
    prompts = torch.randint(64, (2, 40), generator=torch.Generator().manual_seed(1))
    decoder = Decoder(geometry, backend="reference")
    together = kind(geometry, 64, batch=2, backend="cuda")
    decoder.prefill(prompts, together)
    together.truncate(1, 17)
    tokens = torch.tensor([1, 2])
    logits = decoder.decode(tokens, together)
    drafted = decoder.prefill(torch.tensor([[3, 4], [5, 6]]), together, all_positions=True)
    for row, length in enumerate((40, 17)):
        alone = kind(geometry, 64, batch=1, backend="reference")
        decoder.prefill(prompts[row : row + 1, :length], alone)
        expected = decoder.decode(tokens[row : row + 1], alone)
        torch.testing.assert_close(logits[row : row + 1], expected, rtol=1e-3, atol=1e-4)
        expected = decoder.prefill(torch.tensor([[3, 4], [5, 6]])[row : row + 1], alone, all_positions=True)
        torch.testing.assert_close(drafted[row : row + 1], expected, rtol=1e-3, atol=1e-4)


def test_the_kernel_reads_a_paged_cache_through_its_table():
    decoder = Decoder(TINY, backend="reference")
    prompt = torch.arange(40).view(2, 20)
    logits = []
    for backend in ("cuda", "reference"):
        pool = BlockPool(TINY, blocks=5, block_size=16, positions=64)
        cache = PagedCache(pool, [[4, 1], [0, 3]], backend=backend)
        decoder.prefill(prompt, cache)
        logits.append(decoder.decode(torch.tensor([1, 2]), cache))
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", kernel_table.COUNTED)
def test_a_step_launches_ten_kernels_a_layer(name):
    """Norm, product, append, two of attention, product, add and norm, product, gate, product; and three or five. A
    table's places take some more, once a step, and a ring one more a layer."""
    kernels = kernel_table.step_kernels()[name]
    assert kernels.total() - kernels["rotate_rows"] <= 10 * 30 + (12 if "blocks" in name else 5), kernels
    assert kernels["rotate_rows"] == (30 if "ring" in name else 0)
    assert kernels["append"] == kernels["split_attention"] == kernels["combine"] == 30
