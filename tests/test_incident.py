"""Each cause is found from bytes, published sweeps give the cause that their authors measured, and doubt is said."""

import math
import random

import pytest

from helpers import data
from helpers.models import geometry
from helpers.serving import incident
from helpers.serving.benchmarks import Point
from helpers.serving.incident import CannotTell, Model, bytes_per_number, diagnose, fit

LLAMA = Model(geometry.get("Llama-3.1-70B"))
GEMMA = Model(geometry.get("Gemma-3-27b-it"))
GPT_OSS = Model(geometry.get("gpt-oss-120b"), weights="mxfp4")
RATE = 8 * 3.35e12 * 0.6
SHEET = 8 * 3.35e12
CONTEXTS = (1_000, 4_000, 8_000, 16_000, 32_000)


def sweep(seconds, contexts=CONTEXTS, batches=(8,), noise=0.02, **more):
    dice = random.Random(0)
    return [
        Point(c, b, seconds(c, b) * math.exp(dice.gauss(0, noise)), **{k: f(c, b) for k, f in more.items()})
        for c in contexts
        for b in batches
    ]


def streamed(model):
    return lambda c, b: 0.002 + model.step_bytes(c, b) / RATE


def test_a_growing_cache_with_its_bandwidth_and_levers():
    found = diagnose(sweep(streamed(LLAMA)), LLAMA, SHEET)
    assert found.cause == incident.CACHE_GROWS
    assert found.line.slope_seconds == pytest.approx(LLAMA.kv_bytes_per_token / RATE, rel=0.1)
    fp8 = next(lever for lever in found.levers if "fp8" in lever.name)
    half = LLAMA.weight_bytes(8) + 8 * LLAMA.kv_bytes(32_000) / 2
    assert fp8.tpot_seconds == pytest.approx(0.002 + half / RATE, rel=0.05)
    assert "GB/s" in str(found) and "fp8" in str(found)


@pytest.mark.parametrize(
    ("points", "model", "cause"),
    [
        (sweep(streamed(LLAMA), (8_000,), (1, 8, 16, 32)), LLAMA, incident.BATCH_GROWS),
        (sweep(lambda c, b: 0.005 + c * 2e-6, batches=(1, 4, 16)), LLAMA, incident.UNSPLIT),
        (sweep(lambda c, b: LLAMA.weight_bytes() / RATE + c * LLAMA.kv_bytes_per_token / RATE * 8, batches=(1,)),
         LLAMA, incident.UNSPLIT),
        (sweep(lambda c, b: (GEMMA.weight_bytes() + b * GEMMA.kv_bytes(c, windowed=False)) / RATE), GEMMA,
         incident.WINDOWS_IGNORED),
        (sweep(streamed(GEMMA)), GEMMA, incident.CACHE_GROWS),
        (sweep(lambda c, b: GPT_OSS.step_bytes(c, b) / RATE), GPT_OSS, incident.CACHE_GROWS),
        (sweep(lambda c, b: (GPT_OSS.weight_bytes(b) + b * GPT_OSS.kv_bytes(c, windowed=False)) / RATE), GPT_OSS,
         incident.WINDOWS_IGNORED),
        (sweep(lambda c, b: 0.035, noise=0.01), Model(geometry.get("Qwen3-8B")), incident.LAUNCHES),
        (sweep(lambda c, b: 0.030 + 2.0 * c / 32_000 / 200, ttft_seconds=lambda c, b: 2.0 * c / 32_000,
               hit_rate=lambda c, b: 0.95 - 0.9 * c / 32_000, output_tokens=lambda c, b: 200, noise=0.002),
         LLAMA, incident.PREFIX_MISSES),
    ],
    ids=["batch", "unsplit, batches", "unsplit, one batch", "windows ignored", "windows used", "every second layer",
         "every second layer ignored", "launches", "misses"],
)  # fmt: skip
def test_each_cause_is_told_from_the_others(points, model, cause):
    assert diagnose(points, model, SHEET).cause == cause


def test_published_l4_sweep():
    """vLLM, Qwen3-4B on an L4: bf16 and fp8 caches both stream what the sheet's 300 GB/s allow."""
    rows = [row for row in data.measurement("vllm-l4-fp8")["data"] if "ctx" in row]
    for form in ("bf16", "fp8"):
        points = [Point(row["ctx"], 1, 1 / row[form]) for row in rows]
        found = diagnose(points, Model(geometry.get("Qwen3-4B"), cache=form), 300e9)
        assert found.cause == incident.CACHE_GROWS and found.line.misfit < 0.01


def test_published_eager_steps_are_a_fixed_cost():
    """vllm#42058: Qwen3-8B on an A100, 35 to 37 ms a step from 1k to 16k where bytes take 8 to 17."""
    rows = [row for row in data.measurement("vllm-a100-fp8-phase")["data"] if "prefill" in row]
    points = [Point(row["prefill"], 8, 8 / row["dec_bf16"]) for row in rows]
    assert diagnose(points, Model(geometry.get("Qwen3-8B")), 2.039e12).cause == incident.LAUNCHES


@pytest.mark.parametrize(
    ("points", "model", "rate", "said"),
    [
        ([Point(1, 1, 1)] * 2, None, None, "2 points"),
        ([Point(1000, 1, 0.04)] * 4, None, None, "vary one of them"),
        (sweep(lambda c, b: 0.03, noise=0.0), None, None, "give both"),
        (sweep(streamed(LLAMA), batches=(1,), contexts=(10, 20, 100)), LLAMA, SHEET, "whatever the history"),
        (sweep(streamed(LLAMA), noise=0.9), None, None, "no line fits"),
        (sweep(lambda c, b: 0.1 - c / 1e6), LLAMA, SHEET, "the time falls"),
        (sweep(lambda c, b: 1e-6 * (c - 500)), None, None, "less than nothing"),
        (sweep(lambda c, b: streamed(LLAMA)(c, b) / 2.5), LLAMA, SHEET, "speculative decoding"),
        (sweep(lambda c, b: streamed(LLAMA)(c, b) - 0.8 * LLAMA.weight_bytes() / RATE), LLAMA, SHEET, "at 1,000"),
        (
            sweep(streamed(LLAMA)),
            Model(LLAMA.geometry.replace(kv_heads=64)),
            SHEET,
            "not what was said",
        ),
    ],
)
def test_doubt_is_said_and_says_what_to_measure(points, model, rate, said):
    with pytest.raises(CannotTell, match=said):
        diagnose(points, model, rate)


def test_a_batch_that_was_not_said_and_a_latent_on_every_gpu_are_evidence():
    """The report of the course, taken for one session; DeepSeek-V3 whose latent each of eight GPUs reads whole."""
    report = [Point(c, 1, 40e-3 + (c - 1_000) * 80e-3 / 29_000) for c in (1_000, 15_000, 30_000)]
    assert "a batch of 31 would cost the same: is 1 right?" in str(diagnose(report, LLAMA, SHEET))
    latent = Model(geometry.get("DeepSeek-V3"), weights="fp8")
    found = diagnose(sweep(lambda c, b: (latent.weight_bytes(b) + 8 * b * latent.kv_bytes(c)) / RATE), latent, SHEET)
    assert found.cause == incident.UNSPLIT and "each GPU reads the whole latent" in str(found)


def test_a_batch_of_experts_is_not_charged_to_the_cache():
    """llama.cpp on a GB10, Qwen3-30B-A3B at 512 tokens, batch 1 to 32: an fp8 cache would not halve its growth."""
    rates = next(r["tok_s"] for r in data.measurement("llamacpp-gb10-moe-batch")["data"] if "Qwen3" in r["model"])
    points = [Point(528, b, b / rate) for b, rate in zip((1, 2, 4, 8, 16, 32), rates, strict=True)]
    found = diagnose(points, Model(geometry.get("Qwen3-30B-A3B"), weights="q8_0", cache="float16"), 273e9)
    assert found.cause == incident.BATCH_GROWS and found.levers == ()
    assert "94% of what grows are experts" in str(found)


def test_formats_count_their_scales():
    assert bytes_per_number("bf16") == bytes_per_number("bfloat16") == 2 and bytes_per_number("fp8_e4m3") == 1
    # llama.cpp's blocks of 32 numbers: a half-precision scale beside them, or one byte of exponent.
    assert bytes_per_number("Q8_0") == 34 / 32 and bytes_per_number("q4_0") == 18 / 32
    assert bytes_per_number("MXFP4") == 17 / 32
    with pytest.raises(ValueError, match="no number format 'int3'"):
        bytes_per_number("int3")


def test_a_batch_touches_more_experts():
    mixtral = Model(geometry.get("Mixtral-8x7B-v0.1"))
    assert mixtral.weight_bytes(1) < mixtral.weight_bytes(2) < mixtral.weight_bytes(64)
    everything = mixtral.geometry.replace(moe=None, intermediate=8 * mixtral.geometry.intermediate)
    assert mixtral.weight_bytes(64) == pytest.approx(Model(everything).weight_bytes(), rel=0.01)


def test_windows_are_followed_unless_told():
    assert GEMMA.kv_bytes(100_000) < GEMMA.kv_bytes(100_000, windowed=False) / 4
    assert GEMMA.kv_bytes(500) == GEMMA.kv_bytes(500, windowed=False)


def test_the_line_is_exact_where_the_points_are():
    line = fit([Point(c, 2, 0.01 + 1e-7 * 2 * c) for c in CONTEXTS])
    assert (line.intercept_seconds, line.slope_seconds) == pytest.approx((0.01, 1e-7)) and line.misfit < 1e-9
