"""The shared measurements: what is run at each context, what is counted, what is refused."""

import re
from types import SimpleNamespace

import pytest
import torch

from helpers import data
from helpers.caches import FullCache
from helpers.clock import devices, sweeps
from helpers.clock.sweeps import BESIDE, DecodeStep, decode_sweep
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.decoder import Decoder
from helpers.models.geometry import get
from tools.units import ROOT

SMALL = get("SmolLM2-135M").replace(
    name="small", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=200
)


def test_a_step_at_a_context_is_the_decode_step_after_that_many_tokens():
    decoder = Decoder(SMALL)
    point = DecodeStep(decoder, FullCache(SMALL, 65))
    fresh = FullCache(SMALL, 65)
    fresh.fill(64)
    for context in (64, 5, 40):
        fresh.rewind(context)
        expected = decoder.decode(torch.zeros(1, dtype=torch.long), fresh)
        torch.testing.assert_close(point.at(context)(), expected)
        assert point.cache.length == context + 1
        fresh.fill(64)
        point.cache.fill(64)


def test_bytes_of_a_step_are_weights_and_the_cache_it_reads():
    decoder = Decoder(SMALL)
    point = DecodeStep(decoder, FullCache(SMALL, 65, batch=3))
    assert point.bytes_at(31) == decoder.weight_bytes + kv_bytes(SMALL, 32, batch=3, dtype=torch.float32)


def test_a_sweep_measures_every_engine_at_every_context():
    decoder = Decoder(SMALL)
    engines = {f"batch {batch}": (decoder, FullCache(SMALL, 33, batch=batch)) for batch in (1, 2)}
    calls = []
    result = decode_sweep(engines, (32, 4), read_bytes_per_second=1e15, beside={"other": lambda: calls.append(1)})
    assert list(result) == ["batch 1", "batch 2", BESIDE]
    assert len(result.pop(BESIDE)["other"].samples) >= 20 and len(calls) >= 20
    for timings in result.values():
        assert list(timings) == [4, 32]
        assert all(len(t.samples) >= 20 and t.median > t.floor_seconds for t in timings.values())


def test_a_sweep_from_an_empty_cache_keeps_its_point_apart_from_the_read_and_frees_its_buffer():
    read, read_bytes = devices.read_step(torch.device("cpu"), torch.ones(2**20), parts=2)
    engines = {"read": (Decoder(SMALL), FullCache(SMALL, 9))}
    result = decode_sweep(engines, (0, 4), beside={"read": read})
    assert list(result["read"]) == [0, 4] and read_bytes == 2 * 4 * 2**20
    assert result["beside"]["read"].median > 0
    with pytest.raises(RuntimeError, match="freed after its sweep"):
        read()


def test_what_cannot_be_measured_is_refused():
    decoder = Decoder(SMALL)
    with pytest.raises(ValueError, match="budget must be one of quick, full"):
        decode_sweep({"x": (decoder, FullCache(SMALL, 9))}, contexts=(4,), budget="long")
    for engines, contexts in (({}, (4,)), ({"x": (decoder, FullCache(SMALL, 9))}, ())):
        with pytest.raises(ValueError, match="at least one engine and one context"):
            decode_sweep(engines, contexts)
    with pytest.raises(ValueError, match="no engine may be called 'beside'"):
        decode_sweep({BESIDE: (decoder, FullCache(SMALL, 9))}, (4,))
    with pytest.raises(ValueError, match="cannot continue at 9 tokens: the cache holds from 0 to 8"):
        decode_sweep({"x": (decoder, FullCache(SMALL, 8))}, contexts=(9,))
    with pytest.raises(ValueError, match="cannot time a step at 9"):
        DecodeStep(decoder, FullCache(SMALL, 9)).at(9)


def a_decoder(device):
    """What `sizes` asks of SmolLM2-135M in float32 on a device that is not here."""
    g = get("SmolLM2-135M")
    weights = weight_bytes(g, torch.float32)
    return SimpleNamespace(geometry=g, dtype=torch.float32, device=torch.device(device), weight_bytes=weights)


def a_card(gpu):
    return SimpleNamespace(read_bytes_per_second=1e9 * data.device(gpu)["bandwidth_GBps"])


# Seconds of launches in a captured step: as many kernels as were counted, at 1.7 µs each (assumed, not measured).
KERNELS = re.search(r"^\| float32 \| (\d+) \|", (ROOT / "docs" / "gpu-kernels.md").read_text("utf-8"), re.MULTILINE)[1]
LAUNCHES = int(KERNELS) * 1.7e-6


@pytest.mark.parametrize(("gpu", "times"), [("T4", 9.4), ("RTX 4090", 6.6), ("H100 SXM", 3.6), ("B200 SXM", 2.3)])
def test_the_faster_the_memory_the_less_a_step_grows_to_8192(gpu, times):
    rate = a_card(gpu).read_bytes_per_second
    assert sweeps.growth(a_decoder("cuda"), 16, 8_192, rate, LAUNCHES) == pytest.approx(times, rel=0.03)
    # Two ways to the bytes: 46,080 a token and sequence, 538 MB of weights.
    by_hand = [(538e6 + 16 * n * 46_080) / rate + LAUNCHES for n in (16, 8_192)]
    assert by_hand[1] / by_hand[0] == pytest.approx(times, rel=0.03)


@pytest.mark.parametrize(
    ("device", "gpu", "free", "batches", "longest"),
    [
        ("cuda", "T4", 14.4e9, (4, 16), 8_192),  # has grown nine times by then
        ("cuda", "RTX 4090", 23e9, (4, 16), 8_192),
        ("cuda", "H100 SXM", 78e9, (4, 16), 16_384),
        ("cuda", "B200 SXM", 170e9, (4, 16), 32_768),
        ("cuda", "B200 SXM", 30e9, (4, 16), 16_384),  # on a card that others use
        ("cuda", "RTX 4090", 6.9e9, (2, 8), 8_192),
        ("cuda", "RTX 4090", 1.5e9, (1, 4), 4_096),
        ("mps", "T4", 12e9, (1, 4), 16_384),
        ("cpu", "T4", 400e9, (1, 4), 8_192),
        ("cpu", "T4", None, (1, 4), 8_192),
    ],
)
def test_sizes_follow_the_memory_and_the_speed(device, gpu, free, batches, longest, monkeypatch):
    monkeypatch.setattr(sweeps, "launches_seconds", lambda decoder, batch: LAUNCHES)
    monkeypatch.setattr(devices, "free_bytes", lambda device: free)
    found, contexts = sweeps.sizes(a_decoder(device), a_card(gpu), "full")
    assert found == batches and contexts[0] == 16 and contexts[-1] == longest and len(contexts) > 3
    assert free is None or found[1] * longest * 46_080 < 0.7 * free
    # At quick 7 GB are enough on any accelerator, and no card shows less than at 8,192 tokens.
    found, contexts = sweeps.sizes(a_decoder(device), a_card(gpu))
    assert found == batches and contexts[-1] == (min(longest, 8_192) if device == "cuda" else longest)
    assert 538e6 + found[1] * contexts[-1] * 46_080 < 6.7e9


@pytest.mark.parametrize(
    ("device", "free", "most", "budget", "batch"),
    [
        ("cuda", 78e9, 16, "quick", 12),
        ("cuda", 78e9, 16, "full", 16),
        ("cuda", 6.9e9, 16, "quick", 8),
        ("cuda", 1e9, 16, "quick", 1),
        ("cuda", 0.1e9, 16, "full", 1),  # what has no room is for the allocator to refuse
        ("mps", 40e9, 16, "quick", 12),
        ("cpu", 400e9, 16, "quick", 16),
        ("cpu", None, 4, "quick", 4),
    ],
)
def test_a_batch_is_as_large_as_there_is_room_for_its_caches(device, free, most, budget, batch, monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda device: free)
    assert sweeps.largest_batch(a_decoder(device), 0.48e9, most, budget) == batch


def test_launches_are_what_is_left_of_a_step_without_bytes():
    assert 0 < sweeps.launches_seconds(Decoder(SMALL), 2) < 1
