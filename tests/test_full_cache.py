"""The full cache: bytes of real tensors, lengths, and attention against float64."""

import pytest
import torch

from helpers.caches import FullCache
from helpers.models import rope
from helpers.models.attention import causal
from helpers.models.counts import kv_bytes
from helpers.models.geometry import get

SMALL = get("SmolLM2-135M").replace(name="small", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16)


def random_heads(heads, t, seed):
    return torch.randn(2, heads, t, 16, generator=torch.Generator().manual_seed(seed))


def test_bytes_are_those_of_the_tensors():
    cache = FullCache(SMALL, 100, batch=2, dtype=torch.float16)
    assert cache.nbytes == kv_bytes(SMALL, 100, batch=2, dtype=torch.float16)
    assert cache.step_bytes(30) == kv_bytes(SMALL, 30, batch=2, dtype=torch.float16)


def test_attention_equals_float64_computed_from_the_definition():
    cache = FullCache(SMALL, 50, batch=2)
    q, k, v = random_heads(4, 20, 1), random_heads(2, 20, 2), random_heads(2, 20, 3)
    cache.append(0, k, v)
    cos, sin = (table.double() for table in rope.tables(20, 16, SMALL.rope_theta))
    qd, kd = rope.rotate(q.double(), cos, sin), rope.rotate(k.double(), cos, sin)
    kd, vd = (x.repeat_interleave(2, dim=1) for x in (kd, v.double()))
    scores = (qd @ kd.mT / 4).masked_fill(~torch.ones(20, 20, dtype=torch.bool).tril(), -torch.inf)
    expected = (scores.softmax(-1) @ vd).float()
    torch.testing.assert_close(cache.attend(0, q), expected, atol=1e-5, rtol=1e-5)


def test_a_history_is_masked_the_same_in_blocks():
    q, k, v = random_heads(4, 11, 1), random_heads(2, 33, 2), random_heads(2, 33, 3)
    whole = causal(torch.cat((torch.zeros(2, 4, 22, 16), q), dim=2), k, v)[:, :, 22:]
    torch.testing.assert_close(causal(q, k, v, tile=4), whole, atol=1e-5, rtol=1e-5)


def test_rotation_depends_on_distance_only():
    cos, sin = rope.tables(9000, 64, 100_000.0)
    q, k = torch.randn(2, 1, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def score(i, j):
        return float((rope.rotate(q, cos[i], sin[i]) * rope.rotate(k, cos[j], sin[j])).sum())

    assert score(100, 40) == pytest.approx(score(8100, 8040), abs=1e-4)
    assert score(100, 40) != pytest.approx(score(100, 41), abs=1e-2)


def test_rewind_forgets_and_goes_forward_again_over_what_was_filled():
    cache = FullCache(SMALL, 50, batch=2)
    cache.fill(40)
    held = cache.keys.clone()
    cache.rewind(10)
    assert cache.length == 10
    cache.rewind(40)
    assert cache.length == 40 and torch.equal(cache.keys, held)
    for wrong in (-1, 51):
        with pytest.raises(ValueError, match="the cache holds from 0 to 50"):
            cache.rewind(wrong)


def test_filled_values_do_not_depend_on_when_they_were_asked_for():
    first, second = FullCache(SMALL, 50, batch=2), FullCache(SMALL, 50, batch=2)
    first.fill(40)
    second.fill(20)
    second.fill(40)
    assert torch.equal(first.keys, second.keys)


@pytest.mark.parametrize("wrong", [0, -3, 2.5, True, "8"])
def test_sizes_must_be_positive_whole_numbers(wrong):
    with pytest.raises(ValueError, match="capacity must be a whole number"):
        FullCache(SMALL, wrong)
    with pytest.raises(ValueError, match="batch must be a whole number"):
        FullCache(SMALL, 8, batch=wrong)


def test_a_cache_over_the_memory_of_a_larger_one_takes_none_and_reads_what_its_steps_wrote():
    large = FullCache(SMALL, 64, batch=3)
    small = FullCache(SMALL, 50, batch=2, over=large)
    assert small.nbytes == FullCache(SMALL, 50, batch=2).nbytes
    assert small.keys.data_ptr() == large.keys.data_ptr() and small.values.data_ptr() == large.values.data_ptr()
    large.fill(64)
    alone = FullCache(SMALL, 50, batch=2)
    for cache in (small, alone):
        cache.fill(20)
    q, k, v = random_heads(4, 1, 1), random_heads(2, 1, 2), random_heads(2, 1, 3)
    answers = [(cache.append(1, k, v), cache.attend(1, q))[1] for cache in (small, alone)]
    torch.testing.assert_close(*answers)
    for wrong in (dict(batch=4), dict(batch=2, dtype=torch.float16)):
        with pytest.raises(ValueError, match="does not fit the memory"):
            FullCache(SMALL, 64, over=large, **wrong)
