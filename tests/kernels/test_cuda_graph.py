"""Whole decode steps over the Triton kernel, in the interpreter: fit to be captured, and equal to plain torch."""

import pytest
import torch

from helpers.caches import BlockPool, FullCache, Int8Cache, LatentCache, PagedCache, StaticCache
from helpers.clock import graphs
from helpers.kernels import cuda
from helpers.models.decoder import Decoder
from helpers.models.geometry import MLA, Geometry

TINY = Geometry("tiny", layers=2, hidden=32, q_heads=4, kv_heads=2, head_dim=16, intermediate=48, vocab=64)


def filled_cache():
    cache = StaticCache(TINY, 64, batch=2, backend="reference")
    cache.fill(7)
    return cache


def test_the_step_may_be_captured():
    decoder, cache = Decoder(TINY, backend="reference"), filled_cache()
    cache.kernels = cuda
    assert graphs.problems(lambda: decoder.decode(torch.tensor([1, 2]), cache), cache, decoder) == []


def test_the_step_gives_the_same_logits():
    decoder, cache, expected = Decoder(TINY, backend="reference"), filled_cache(), filled_cache()
    cache.kernels = cuda
    for tokens in torch.tensor([[1, 2], [3, 4]]):
        torch.testing.assert_close(
            decoder.decode(tokens, cache), decoder.decode(tokens, expected), rtol=1e-4, atol=1e-5
        )


def paged(geometry, capacity, batch, backend):
    blocks = capacity // 16
    pool = BlockPool(geometry, batch * blocks, 16, capacity)
    tables = torch.randperm(batch * blocks, generator=torch.Generator().manual_seed(0)).view(batch, blocks)
    return PagedCache(pool, tables.tolist(), backend=backend)


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
