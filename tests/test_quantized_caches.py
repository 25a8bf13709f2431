"""Quantised caches: bytes of their tensors, fused against naive, and the real decoder's logits near the exact ones."""

import pytest
import torch

from helpers.caches import Fp8Cache, FullCache, Int4ChannelCache, Int4TokenCache, Int8Cache
from helpers.models.decoder import Decoder
from helpers.models.geometry import get

SMALL = get("SmolLM2-135M").replace(
    name="small", layers=2, hidden=64, q_heads=8, kv_heads=2, head_dim=64, intermediate=96, vocab=200
)
CACHES = [Int8Cache, Int4TokenCache, Int4ChannelCache, Fp8Cache]
TOKENS = torch.randint(200, (2, 75), generator=torch.Generator().manual_seed(1))


def logits(cache):
    """A prompt in two parts that straddle blocks, then single steps."""
    decoder = Decoder(SMALL)
    parts = [decoder.prefill(TOKENS[:, :20], cache, all_positions=True)]
    parts.append(decoder.prefill(TOKENS[:, 20:66], cache, all_positions=True))
    parts += [decoder.decode(TOKENS[:, i], cache)[:, None] for i in range(66, 75)]
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("kind, tolerance", list(zip(CACHES, [0.02, 0.35, 0.35, 0.12], strict=True)))
def test_logits_stay_near_the_exact_ones(kind, tolerance):
    exact, actual = logits(FullCache(SMALL, 80, batch=2)), logits(kind(SMALL, 80, batch=2))
    error = (actual - exact).norm() / exact.norm()
    assert 0 < error < tolerance


@pytest.mark.parametrize("kind", [Int8Cache, Int4TokenCache, Int4ChannelCache])
def test_fused_equals_dequantise_then_attend(kind):
    torch.testing.assert_close(
        logits(kind(SMALL, 80, batch=2)), logits(kind(SMALL, 80, batch=2, fused=False)), atol=1e-4, rtol=1e-4
    )


def test_single_steps_and_one_prompt_store_the_same_bytes():
    for kind in CACHES:
        at_once, one_by_one = kind(SMALL, 80), kind(SMALL, 80)
        k, v = torch.randn(2, 1, 2, 70, 64, generator=torch.Generator().manual_seed(3))
        at_once.append(0, k, v)
        for t in range(70):
            one_by_one.append(0, k[:, :, t : t + 1], v[:, :, t : t + 1])
        for a, b in zip(at_once.dequantize(0, 70), one_by_one.dequantize(0, 70), strict=True):
            torch.testing.assert_close(a, b)


def test_bytes_per_token_and_head():
    """Counted by hand for head_dim 64: numbers, scales and zero points, keys and values."""
    per_token = {
        Int8Cache: 2 * (64 + 4),
        Int4TokenCache: 2 * (32 + 2 * 8),
        Int4ChannelCache: 32 + 2 * 4 * 64 / 32 + 32 + 2 * 8,
        Fp8Cache: 2 * 64,
    }
    for kind, expected in per_token.items():
        small, large = kind(SMALL, 64), kind(SMALL, 128)
        assert (large.nbytes - small.nbytes) / 64 == expected * SMALL.kv_heads * SMALL.layers
        assert large.step_bytes(64) == 64 * expected * SMALL.kv_heads * SMALL.layers


def test_nan_is_refused_before_anything_is_stored():
    for kind in CACHES:
        for tokens in (1, 3):
            cache = kind(SMALL, 8)
            k = torch.zeros(1, 2, tokens, 64)
            with pytest.raises(ValueError, match="NaN or infinite"):
                cache.append(0, k * torch.nan, k)
            assert cache.seen(0) == 0
