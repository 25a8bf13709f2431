"""Whole decode steps over the Triton kernel, in the interpreter: fit to be captured, and equal to plain torch."""

import torch

from helpers.caches import BlockPool, PagedCache, StaticCache
from helpers.clock import graphs
from helpers.kernels import cuda
from helpers.models.decoder import Decoder
from helpers.models.geometry import Geometry

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


def test_the_kernel_reads_a_paged_cache_through_its_table():
    decoder = Decoder(TINY, backend="reference")
    prompt = torch.arange(40).view(2, 20)
    logits = []
    for kernels in (cuda, None):
        pool = BlockPool(TINY, blocks=5, block_size=16, positions=64)
        cache = PagedCache(pool, [[4, 1], [0, 3]], backend="reference")
        cache.kernels = kernels or cache.kernels
        decoder.prefill(prompt, cache)
        logits.append(decoder.decode(torch.tensor([1, 2]), cache))
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
