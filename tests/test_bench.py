"""What `make bench` prints: rows, floors and ratios; engines that agree before they are compared."""

import pytest
import torch

from helpers.caches import FullCache
from helpers.clock.sweeps import DecodeStep
from helpers.clock.timing import Timing
from helpers.models.decoder import Decoder
from helpers.models.geometry import get
from tools import bench, bench_peers

SMALL = get("SmolLM2-135M").replace(
    name="small", layers=2, hidden=96, q_heads=6, kv_heads=2, head_dim=16, intermediate=160, vocab=500
)


def milliseconds(value):
    return Timing((value / 1e3,) * 3)


def test_a_row_has_the_ratio_to_each_floor_and_peer():
    made = bench.row("step", 12.0, "ms", {"byte floor": 8.0, "peer": 24.0, "absent": None})
    assert made["against"]["byte floor"] == {"value": 8.0, "ratio": 1.5}
    assert made["against"]["peer"]["ratio"] == 0.5
    assert made["against"]["absent"] == {"value": None, "ratio": None}


def test_decode_rows_compare_like_with_like():
    timed = {
        ("ours", 1, 16): milliseconds(10), ("ours", 4, 16): milliseconds(20),
        ("transformers", 1, 16): milliseconds(40), ("transformers", 4, 16): milliseconds(60),
    }  # fmt: skip
    rows = bench.decode_rows(timed, {(1, 16): 4e8, (4, 16): 5e8}, 50e9, ("transformers", "llama.cpp"))
    assert [r["value"] for r in rows] == pytest.approx([10, 20])
    assert [r["against"]["byte floor"]["value"] for r in rows] == pytest.approx([8, 10])
    assert [r["against"]["transformers"]["ratio"] for r in rows] == pytest.approx([1 / 4, 1 / 3])
    assert all(r["against"]["llama.cpp"]["value"] is None for r in rows)
    assert "llama.cpp: not installed" in bench.table(rows)


def test_a_peer_that_was_timed_at_one_batch_only_is_not_called_missing_at_the_other():
    timed = {(engine, 1, 16): milliseconds(10) for engine in ("ours", "llama.cpp")} | {
        ("ours", 4, 16): milliseconds(20)
    }
    one, four = bench.decode_rows(timed, {(1, 16): 4e8, (4, 16): 5e8}, 50e9, ("llama.cpp",))
    assert one["against"]["llama.cpp"]["ratio"] == pytest.approx(1.0)
    assert "llama.cpp" not in four["against"]


def test_a_step_of_several_tokens_stands_against_as_many_single_ones():
    timed = {("ours", 1, 16): milliseconds(10), ("ours", 4, 16): milliseconds(99)}
    timed |= {("tokens", 1, 16): milliseconds(11), ("tokens", 4, 16): milliseconds(12)}
    one, four = bench.tokens_rows(timed)
    assert one["name"] == "step of 1 token, batch 1, context 16" and four["value"] == pytest.approx(12)
    assert four["against"]["as many single steps"]["value"] == pytest.approx(40)
    assert [r["against"]["as many single steps"]["ratio"] for r in (one, four)] == pytest.approx([1.1, 0.3])


def test_steps_of_several_tokens_are_taken_at_their_context():
    steps = bench.tokens_steps(Decoder(SMALL), (20,))
    assert set(steps) == {("tokens", tokens, 20) for tokens in (1, 2, 4, 8)}
    for (_, tokens, context), step in steps.items():
        cache = FullCache(SMALL, 40)
        cache.fill(context)
        expected = Decoder(SMALL).decode(torch.zeros(1, tokens, dtype=torch.long), cache)
        for _ in range(2):
            torch.testing.assert_close(step(), expected, atol=1e-5, rtol=1e-5)


def test_answers_beside_a_chunk_stand_against_one_after_the_other():
    timed = {("mixed", 16): milliseconds(15), ("apart", 16): milliseconds(20), ("ours", 4, 16): milliseconds(9)}
    [made] = bench.mixed_rows(timed)
    assert made["name"] == "batch 4 beside a chunk of 16" and made["value"] == pytest.approx(15)
    assert made["against"]["one after the other"]["ratio"] == pytest.approx(0.75)


def test_both_ways_of_a_mixed_batch_say_the_same_each_time():
    steps = bench.mixed_steps(Decoder(SMALL), held=20, chunks=(4, 11))
    assert set(steps) == {(way, chunk) for way in ("mixed", "apart") for chunk in (4, 11)}
    for chunk in (4, 11):
        for _ in range(2):
            joint, apart = steps["mixed", chunk](), steps["apart", chunk]()
            for a, b in zip(joint, apart, strict=True):
                torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_quantised_attention_stands_against_the_float32_cache():
    timed = {("MHA", "float32"): milliseconds(9), ("MHA", "int8"): milliseconds(3)}
    plain, int8 = bench.attention_rows(timed, {("MHA", "float32"): 3e8, ("MHA", "int8"): 8e7}, 50e9)
    assert list(plain["against"]) == ["byte floor"]
    assert int8["against"]["float32 cache"]["ratio"] == pytest.approx(1 / 3)


def test_attention_bytes_are_those_of_the_tensors():
    steps, read = bench.attention_steps(tokens=64, layers=2)
    numbers = 2 * 2 * 8 * 64 * 64  # layers, keys and values, heads, tokens, head_dim
    assert read["MHA", "float32"] == 4 * numbers
    assert read["GQA-4", "int8"] == numbers + 4 * numbers // 64
    assert read["MHA", "int4"] == numbers // 2 + 2 * 4 * numbers // 32
    for step in steps.values():
        assert all(torch.isfinite(out).all() for out in step())


def test_transformers_step_computes_what_ours_does():
    pytest.importorskip("transformers")
    decoder, context = Decoder(SMALL), 21
    cache = FullCache(SMALL, 40, batch=2)
    step = DecodeStep(decoder, cache, 30)
    theirs = bench_peers.transformers_step(bench_peers.transformers_model(decoder), cache, context)
    expected = [theirs() for _ in range(2)]  # twice: the step must not remember the token that it added
    ours = step.at(context)()
    for logits in expected:
        torch.testing.assert_close(ours, logits, atol=2e-5, rtol=1e-4)


def test_a_package_that_is_missing_is_reported_not_invented(monkeypatch):
    monkeypatch.setattr(bench_peers, "installed", lambda package: False)
    decoder = Decoder(SMALL)
    assert bench_peers.transformers_model(decoder) is None
    assert bench_peers.llama_cpp_steps(decoder, [16]) is None
