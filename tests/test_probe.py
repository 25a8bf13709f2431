"""AttentionProbe against attention weights computed whole, in float64."""

import pytest
import torch

from helpers.caches import AttentionProbe, FullCache
from helpers.models.geometry import Geometry

TINY = Geometry("tiny", layers=1, hidden=32, q_heads=6, kv_heads=2, head_dim=8, intermediate=48, vocab=61)


def made(kind, batch=1, **more):
    return kind(TINY, 40, batch, dtype=torch.float64, backend="reference", **more)


def drawn(n, batch=1):
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(batch, heads, n, TINY.head_dim, generator=generator, dtype=torch.float64) for heads in (6, 2, 2)
    ]


def weights(q, k):
    """[q_heads, n, n] of one sequence, rotation as multiplication of complex numbers."""
    n, half = q.shape[2], TINY.head_dim // 2
    speed = TINY.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    turn = torch.polar(torch.ones(n, half, dtype=torch.float64), torch.outer(torch.arange(n).double(), speed))
    q, k = (torch.complex(x[0, ..., :half], x[0, ..., half:]) * turn for x in (q, k.repeat_interleave(3, dim=1)))
    scores = (q @ k.conj().transpose(-1, -2)).real / TINY.head_dim**0.5
    return scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)


def test_share_and_answer():
    q, k, v = drawn(30)
    probe, full = made(AttentionProbe, first=5), made(FullCache)
    for start, stop in ((0, 12), (12, 29), (29, 30)):
        if start == 12:
            probe.reset()
        for cache in (probe, full):
            cache.append(0, k[:, :, start:stop], v[:, :, start:stop])
        assert torch.equal(probe.attend(0, q[:, :, start:stop]), full.attend(0, q[:, :, start:stop]))
    torch.testing.assert_close(probe.share[0], weights(q, k)[:, 12:, :5].mean(1), rtol=0, atol=1e-7)


def test_all_positions_share_all_attention():
    q, k, v = drawn(20, batch=2)
    probe = made(AttentionProbe, batch=2, first=20)
    probe.append(0, k, v)
    probe.attend(0, q)
    torch.testing.assert_close(probe.share.sum(-1), torch.ones(1, 6, dtype=torch.float64))


def test_nothing_noted():
    with pytest.raises(ValueError, match="prefill or decode with this cache first"):
        _ = made(AttentionProbe).share
