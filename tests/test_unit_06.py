"""Every number in the prose of unit 06, recomputed from tensors and published figures."""

import numpy as np
import pytest
import torch

from helpers import data
from helpers.caches import FullCache, Int4ChannelCache, Int4TokenCache, RoundTripCache
from helpers.exercises.u06 import break_even_tokens, quantized_bytes
from helpers.kernels.quantize import int8_per_token, per_channel, per_token, to_fp8
from helpers.models import pretrained, text
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.geometry import get
from helpers.quality.perplexity import perplexity
from tests.misconceptions.harness import ROOT
from tests.prose import Prose

PROSE = Prose(ROOT / "solutions" / "06-kv-quantization" / "06-kv-quantization.py")
says = PROSE.says


def test_shares_of_int4():
    assert "you just counted 28 % and 31 %" in quantized_bytes(PROSE.reference()["quantized_bytes"])
    whole = kv_bytes(get("Llama-3.1-8B"), 1)
    says(f"in bfloat16 the cache takes {whole:,} bytes for each token")
    assert round(100 * 36_864 / whole) == 28 and round(100 * 40_960 / whole) == 31
    says("÷ 3.2 to 3.6 (int4) against bf16")
    assert round(whole / 40_960, 1) == 3.2 and round(whole / 36_864, 1) == 3.6


def test_table_of_slopes_is_the_published_one():
    rows = {(row["gpu"], row["kv"]): row for row in data.measurement("vllm-h100-b200-fit")["data"]
            if row["model"] == "Llama-3.1-8B"}  # fmt: skip
    says("| H100 | 4.37e-5 | 6.44 | 2.37e-5 | 6.58 |")
    says("| B200 | 1.80e-5 | 3.93 | 9.72e-6 | 3.96 |")
    for gpu, numbers in (("H100", (4.37e-5, 6.44, 2.37e-5, 6.58)), ("B200", (1.80e-5, 3.93, 9.72e-6, 3.96))):
        bf16, fp8 = rows[gpu, "bf16"], rows[gpu, "fp8"]
        assert (bf16["slope"], bf16["intercept"], fp8["slope"], fp8["intercept"]) == numbers
    h100 = [rows["H100", kv]["intercept"] + 2_000 * rows["H100", kv]["slope"] for kv in ("bf16", "fp8")]
    assert round(h100[1] - h100[0], 1) == 0.1


def test_break_even_within_the_rounding():
    told = break_even_tokens(PROSE.reference()["break_even_tokens"])
    assert 'own figures are 7,010 for the H100 and "roughly 4k" for the B200' in told and "by 0.1 ms a token" in told
    PROSE.hides("7,010", "2,400")
    own = {row["gpu"]: row["tokens"] for row in data.measurement("vllm-fp8-breakeven")["data"]
           if row["model"] == "Llama-3.1-8B"}  # fmt: skip
    assert own == {"H100": 7_010, "B200": "roughly 4k"}
    assert "it may be 2,400 or 4,800 as well" in told
    saved = 1.80e-5 - 9.72e-6
    assert [round(gap / saved, -2) for gap in (0.02, 0.04)] == [2_400, 4_800]


def test_the_stories_of_the_opening():
    says("half the memory, and 20 % more tokens per second at 32k")
    faster = data.measurement("vllm-l4-fp8")["data"][3]
    assert faster["ctx"] == 32_768 and int(100 * (faster["fp8"] / faster["bf16"] - 1)) == 20
    slower = data.measurement("fp8-kv-slower")["data"][1]
    assert slower["thread"] == "intel/llm-scaler#666" and slower["fp8_tok_s"] < slower["fp16_tok_s"]
    says("9.9 against 15.9 tokens per second at 32k (intel/llm-scaler#666, fixed in the next build)")
    assert (slower["fp8_tok_s"], slower["fp16_tok_s"], slower["context"]) == (9.9, 15.9, 32_768)
    says("(sgl-project/sglang#30815, open)")
    assert data.measurement("fp8-kv-slower")["data"][0]["thread"] == "sgl-project/sglang#30815"


def test_torch_does_not_compute_with_4_bits():
    says("torch names 4-bit types (`torch.uint4`) and computes with none of them")
    x = torch.empty(2, dtype=torch.uint8).view(torch.uint4)
    with pytest.raises((RuntimeError, NotImplementedError)):
        x + x


def test_fp8_as_the_prose_describes_it():
    says("It reaches ±448, and rounding is off by at most 1/16 of each number (from 2⁻⁶ up)")
    info = torch.finfo(torch.float8_e4m3fn)
    assert info.max == 448 and info.smallest_normal == 2**-6 and info.eps == 2**-3
    says("finer than fp8 for every number above about an eighth of the largest")
    x = torch.linspace(0.127, 1.0, 1_000)  # the largest is 1: half a step of int8 is 1 / 254
    worst = 2.0 ** (x.log2().floor() - 4)  # half the distance of two neighbours in fp8
    assert worst.min() > 1 / 254 > 2**-8 and round(1 / 254 * 32, 2) == 0.13
    x = torch.logspace(-6, torch.tensor(448.0).log2(), 20_001, base=2)
    assert 1 / 18 < ((to_fp8(x).float() - x) / x).abs().max() <= 1 / 16


def test_bits_of_the_caches_that_are_timed():
    says("int4 in groups of 64 takes 5 bits a number and not the 4.5 of exercise 06.1")
    g = get("SmolLM2-135M")
    numbers = kv_bytes(g, 4_160) / 2
    assert 8 * Int4TokenCache(g, 4_160, group=64).nbytes / numbers == 5
    channel = Int4ChannelCache(g, 4_160, group=64, block=64)
    assert 8 * (channel.nbytes - channel.stored["recent"].nbytes) / numbers == 5
    assert 8 * 36_864 / (kv_bytes(get("Llama-3.1-8B"), 1) / 2) == 4.5


def test_gain_of_fp8_on_the_l4():
    g = get("Qwen3-4B")
    assert weight_bytes(g, torch.bfloat16) == pytest.approx(8.0445e9, rel=1e-4)
    says("each token adds 147,456 bytes of cache in bf16")
    assert kv_bytes(g, 1) == 147_456
    rows = [row for row in data.measurement("vllm-l4-fp8")["data"] if "ctx" in row]
    gains = [100 * (row["fp8"] / row["bf16"] - 1) for row in rows]
    bytes_say = [100 * ((8.0445e9 + r["ctx"] * 147_456) / (8.0445e9 + r["ctx"] * 73_728) - 1) for r in rows]
    says("Bytes give the ceiling, your 06.8; vLLM measured 1.0 to 20.6 %.")
    PROSE.hides("23.1")
    assert [round(x, 1) for x in (bytes_say[0], bytes_say[-1], gains[0], gains[-1])] == [1.8, 23.1, 1.0, 20.6]
    lines = {kind: np.polyfit([r["ctx"] for r in rows], [1e3 / r[kind] for r in rows], 1) for kind in ("bf16", "fp8")}
    (slope, intercept), (fp8_slope, fp8_intercept) = lines["bf16"], lines["fp8"]
    says("half the slope with fp8 (50.7 % of bf16's)")
    assert round(100 * fp8_slope / slope, 1) == 50.7
    says("fp8 has 0.24 ms more of intercept")
    assert round(fp8_intercept - intercept, 2) == 0.24
    says("these arrive at 242 GB/s where the cache arrives at 264")
    assert round(8.0445e3 / intercept) == 242 and round(147_456 / slope / 1e6) == 264
    [pool] = [row for row in data.measurement("vllm-l4-fp8")["data"] if "pool_tokens_fp8" in row]
    says("from 83,488 to 166,992 tokens")
    assert (pool["pool_tokens_bf16"], pool["pool_tokens_fp8"]) == (83_488, 166_992)


def test_instructions_per_byte_of_an_h200():
    says("about 6.2 instructions of one thread (132 SMs × 128 lanes × 1.755 GHz ÷ 4.8 TB/s; the clock is an")
    says("its top of 1.98 GHz would make it 7.0")
    assert round(132 * 128 * 1.755e9 / 4.8e12, 1) == 6.2 and round(132 * 128 * 1.98e9 / 4.8e12, 1) == 7.0
    assert data.device("H200 SXM")["bandwidth_GBps"] == 4_800
    says("no more than the second of your numbers (at the top clock an eighth more), where bytes promise the first")
    assert round(1.98 / 1.755 - 1, 3) == 0.128 and 2 * 7.0 / 7.7 < 16 / 4.5


def test_instructions_of_int4_kernels():
    """The counts themselves are made again in tests/kernels/test_cuda_compiled.py."""
    straightforward, own, lanes = data.measurement("int4-instructions")["data"]
    says("A straightforward int4 kernel spends 7.7 on each number")
    says("a recount gave 6.7 to 9.7")
    assert [straightforward[k] for k in ("per_number", "recounted_low", "recounted_high")] == [7.7, 6.7, 9.7]
    says("needs 4.4 instructions a number")
    assert own["per_number"] == 4.4
    says("an SM of this GPU has 128 lanes for floating point and 64 for integers")
    assert (lanes["fp32_lanes_per_SM"], lanes["int32_lanes_per_SM"]) == (128, 64)


def test_which_processors_gain_from_int4():
    says("int4 took 0.79 of float32's time on the AMD EPYC of this course's recordings")
    says("and 1.22 times it on an Intel Xeon")
    says("last-level cache of 300 MB has room for the 67 MB of keys and values below")
    decisions = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    assert (
        "int4 takes 1.22 times float32's time with 4 heads, on the EPYC 0.79" in decisions
        and "300 MB of L3" in decisions
    )
    assert round(2 * 8 * 16_384 * 64 * 4 / 1e6) == 67


def test_layers_left_out_and_time_to_first_token():
    says("full fp8 paid off from 22,109 tokens on; with the windowed layers kept in bf16, from 7,659 (vLLM, H100)")
    rows = {
        row["model"]: row["tokens"] for row in data.measurement("vllm-fp8-breakeven")["data"] if row["gpu"] == "H100"
    }
    assert rows["gpt-oss-20b"] == 22_109 and rows["gpt-oss-20b, windowed layers kept in bf16"] == 7_659
    says("+2 to +5 % on an A100 (vllm-project/vllm#42058)")
    rows = [row for row in data.measurement("vllm-a100-fp8-phase")["data"] if "prefill" in row]
    slower = [100 * (row["ttft_fp8"] / row["ttft_bf16"] - 1) for row in rows]
    assert round(min(slower)) == 2 and round(max(slower)) == 5


def test_calibration():
    scales = data.measurement("vllm-fp8-calibration")["data"][0]
    says("vLLM's default is a scale of 1 too, and its documentation recommends to **calibrate** scales on sample text")
    assert scales["default_scale"] == 1 and "calibrated on a data set" in scales["recommended"]
    says("won back about half of what was lost on MATH-500, though within the noise of three runs")
    inkling = data.measurement("fp8-kv-scales")["data"][1]
    won = inkling["math500_calibrated"] - inkling["math500_scale_1"]
    assert 0.4 < won / inkling["math500_bf16_minus_scale_1"] < 0.6


def test_needles_and_quoted_savings():
    needles = data.measurement("vllm-fp8-accuracy")["data"][0]
    says("found 13 % of the needles where bf16 found 91 %, until its accumulation was mended (89 %)")
    assert (needles["fp8_before_fix"], needles["niah_128k_bf16"], needles["fp8_after"]) == (13, 91, 89)
    quoted = data.measurement("hf-kvquant")["data"][0]
    says(f'"{quoted["memory_saving_int4"]}" and of a speed that "starts to decrease with higher batch sizes"')
    assert quoted["speed"].startswith("starts to decrease with higher batch sizes")
    says("Hugging Face shared per token for both")
    assert "per token" in quoted["scheme"] and "up to 128 tokens" in quoted["newest_tokens"]


@pytest.fixture(scope="module")
def real():
    model, tokenizer = pretrained.load()
    return model, text.tokens(1_025, tokenizer)


def test_fp8_is_coarser_than_int8_and_a_scale_does_not_mend_it(real):
    model, tokens = real
    cache = FullCache(model.geometry, 1_024)
    model.prefill(tokens[None, :1_024], cache)
    for x in (cache.keys.flatten(0, 1), cache.values.flatten(0, 1)):

        def missed(back, x=x):
            return float((back - x).norm() / x.norm())

        numbers, scale = int8_per_token(x)
        in_int8 = missed(numbers * scale[..., None])
        largest = x.abs().amax(-1, keepdim=True) / 448
        plain, scaled = missed(to_fp8(x).float()), missed(to_fp8(x / largest).float() * largest)
        assert plain > 2 * in_int8 and scaled > 1.8 * in_int8
        assert scaled == pytest.approx(plain, rel=0.25)
        says("Nearly all numbers of this model lie within it")
        assert x.abs().max() < 448 and (x.abs() < 2**-6).float().mean() < 0.05


def test_keys_want_a_scale_per_channel_on_the_real_model(real):
    """The lesson of the unit, on 1,024 tokens: with 4 bits, sharing along the token costs keys several times more."""
    model, tokens = real

    def back(levels, scale, zero):
        rows, columns = levels.shape[2] // scale.shape[2], levels.shape[3] // scale.shape[3]
        return levels * scale.repeat_interleave(rows, 2).repeat_interleave(columns, 3) + zero.repeat_interleave(
            rows, 2
        ).repeat_interleave(columns, 3)

    schemes = {
        "per token": lambda k, v: (back(*per_token(k, 4, 64)), back(*per_token(v, 4, 64))),
        "per channel": lambda k, v: (back(*per_channel(k, 4, 64)), back(*per_token(v, 4, 64))),
    }
    exact = perplexity(model, FullCache(model.geometry, 1_025), tokens)
    rise = {
        name: perplexity(model, RoundTripCache(model.geometry, 1_025, restore), tokens) / exact - 1
        for name, restore in schemes.items()
    }
    # Measured 16 % and 3.6 %; the text differs a little between versions of Python.
    assert 0.005 < rise["per channel"] < 0.07
    assert rise["per token"] > 2.5 * rise["per channel"]
