"""What unit 04 measures and ships, on a small decoder and on the real model."""

import math
from dataclasses import replace

import pytest
import torch

from helpers.caches import FullCache, SinkCache
from helpers.clock import recordings
from helpers.models import pretrained, text
from helpers.models.decoder import Decoder
from helpers.models.geometry import Geometry
from helpers.quality import needle, sink_curve
from helpers.quality.perplexity import perplexity

TINY = Geometry("tiny", layers=2, hidden=32, q_heads=4, kv_heads=2, head_dim=8, intermediate=48, vocab=61)


@pytest.fixture(scope="module")
def real():
    return pretrained.load()


@pytest.fixture(scope="module")
def recorded():
    return sink_curve.recorded()[0]


def test_points_are_the_perplexities_of_these_caches():
    decoder = Decoder(TINY)
    tokens = torch.randint(0, 61, (60,), generator=torch.Generator().manual_seed(2))
    points = sink_curve.measure(decoder, tokens, [(0, 8), (4, 8)], skip=20)
    assert [(p.sinks, p.window) for p in points] == [(0, None), (0, 8), (4, 8)]
    caches = [FullCache(TINY, 60), SinkCache(TINY, 60, 0, 8), SinkCache(TINY, 60, 4, 8)]
    for point, cache in zip(points, caches, strict=True):
        assert point.perplexity == pytest.approx(perplexity(decoder, cache, tokens, skip=20), rel=1e-5)
        assert point.above_dense == pytest.approx(point.loss - points[0].loss, abs=1e-9)
    assert points[0].spread == 0 < points[1].spread
    assert sink_curve.by_window(points, 4) == {8: points[2].perplexity}


def test_too_short_a_text():
    with pytest.raises(ValueError, match="nothing to measure after the first 20"):
        sink_curve.measure(Decoder(TINY), torch.zeros(21, dtype=torch.long), [], skip=20)


def test_real_model_in_the_order_of_the_lesson(real):
    """dense < sinks + window ≪ window only, each gap many times its own standard error, on other text than recorded."""
    decoder, tokenizer = real
    tokens = text.tokens(1_640, tokenizer)[1_000:]
    _, without, with_sinks = sink_curve.measure(decoder, tokens, [(0, 128), (4, 128)], skip=256)
    assert with_sinks.above_dense > 3 * with_sinks.spread > 0
    assert without.above_dense - with_sinks.above_dense > 3 * math.hypot(without.spread, with_sinks.spread)
    assert without.above_dense > 1.5 * with_sinks.above_dense


def test_recording_in_the_order_of_the_lesson(recorded):
    dense, *points = recorded
    assert dense.window is None and dense.above_dense == 0
    at = {(p.sinks, p.window): p for p in points}
    assert set(at) == set(sink_curve.GRID)
    for window in (128, 256, 512, 1_024):
        none, one, four = (at[sinks, window] for sinks in (0, 1, 4))
        assert one.above_dense > 3 * one.spread
        assert none.above_dense - one.above_dense > 5 * math.hypot(none.spread, one.spread)
        assert abs(four.loss - one.loss) < 0.02  # more sinks add next to nothing in this model
    four = [at[4, w].loss for w in sorted(w for s, w in at if s == 4)]
    assert four == sorted(four, reverse=True), "a larger window should never be worse here"


def test_what_is_recorded_is_what_is_read(recorded, monkeypatch, tmp_path):
    series = sink_curve.to_series(recorded, model="m", dtype="float32", text="a text")
    new = recordings.new("sink-curve", "Pretend CPU", "cpu", {}, {"torch": "2.13.0"})
    recordings.save(replace(new, series=series), tmp_path)
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    again, conditions = sink_curve.recorded()
    assert sorted(again[1:], key=lambda p: (p.sinks, p.window)) == sorted(
        recorded[1:], key=lambda p: (p.sinks, p.window)
    )
    assert again[0] == recorded[0] and "a text" in conditions and "Pretend CPU" in conditions


def test_recording_is_of_the_whole_text():
    _, conditions = sink_curve.recorded()
    assert "positions 512 to 2,047" in conditions and "torch" in conditions


def test_eviction_forgets(real):
    decoder, tokenizer = real
    prompts = {where: needle.prompt(tokenizer, "7206", 400, where) for where in (0.2, 0.8)}
    assert needle.ask(decoder, tokenizer, FullCache(decoder.geometry, 500), prompts[0.2]) == "7206"
    for where, recalled in ((0.2, False), (0.8, True)):
        cache = SinkCache(decoder.geometry, 500, 4, 192)
        answer = needle.ask(decoder, tokenizer, cache, prompts[where])
        assert (answer == "7206") is recalled and answer, "it always answers something"


def test_where_the_fact_lies(real):
    _, tokenizer = real
    prompt = tokenizer.decode(needle.prompt(tokenizer, "4831", 100, 0.5).tolist())
    before, after = prompt.split("The secret access code is 4831.")
    assert len(tokenizer.encode(before).ids) == pytest.approx(51, abs=2)
    assert after.endswith("Answer: The secret access code is ")


@pytest.mark.parametrize(
    "tokens, place, message", [(100, 1.2, "from 0 to 1"), (100, -0.1, "from 0 to 1"), (1, 0.5, "two")]
)
def test_impossible_needle(tokens, place, message):
    with pytest.raises(ValueError, match=message):
        needle.prompt(None, "4831", tokens, place)
