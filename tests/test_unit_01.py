"""The numbers that unit 01 states in prose, computed again from the catalogue and the published tables."""

import pytest

from helpers import data
from helpers.models.counts import decode_flops, kv_bytes, prefill_flops, weight_bytes
from helpers.models.geometry import get
from tests.misconceptions.harness import load
from tests.prose import Prose
from tools.units import find

UNIT = find(selection=["01"])[0]
PROSE = Prose(UNIT.source)
says = PROSE.says
G = get("Llama-3.1-8B")
HEAD = G.vocab * G.hidden
BODY = weight_bytes(G) / 2 - HEAD  # norms included, far below the rounding of the prose
A100 = data.device("A100-80GB SXM")
PEAK, READ = A100["dense_bf16_TFLOPs"] * 1e12, A100["bandwidth_GBps"] * 1e9


@pytest.fixture(scope="module")
def phases():
    """The reference's `phases`, at the 60 % and 80 % of the unit."""
    space = {"__name__": "__main__"}
    for cell in load(UNIT.source).cells:
        if cell.setup or cell.answer == "01.7":
            exec(cell.source, space)
    return lambda prompt, outputs: space["phases"](G, prompt, outputs, 1, 0.6 * PEAK, 0.8 * READ)


def test_givens():
    assert BODY / 1e9 == pytest.approx(6.98, abs=0.005)
    assert HEAD / 1e9 == pytest.approx(0.53, abs=0.005)
    assert weight_bytes(G) / 1e9 == pytest.approx(15.0, abs=0.05)
    assert kv_bytes(G, 1024) / 1e9 == pytest.approx(0.13, abs=0.005)
    assert (A100["dense_bf16_TFLOPs"], A100["bandwidth_GBps"]) == (312, 2039)
    says("**6.98 billion**", "**0.53 billion**", "15.0 GB", "0.13 GB", "312 TFLOP/s", "2,039 GB/s")


@pytest.mark.parametrize("prompt, share", [(1024, "2 %"), (8192, "15 %")])
def test_attention_share_of_prefill(prompt, share):
    matrices = 2 * (BODY * prompt + HEAD)
    assert f"{100 * (prefill_flops(G, prompt) / matrices - 1):.0f} %" == share
    says(f"adds {share}")


def test_attention_share_of_a_step():
    assert f"{100 * (decode_flops(G, 1024) / weight_bytes(G) - 1):.0f} %" == "4 %"
    says("2 % to this prefill and 4 % to the step")


def test_ridge_and_rates():
    assert PEAK / READ == pytest.approx(153, abs=0.5)
    assert 0.6 * PEAK / 1e12 == pytest.approx(187, abs=0.5)
    assert 0.8 * READ / 1e9 == pytest.approx(1631, abs=0.5)
    assert 1e3 * weight_bytes(G) / (0.8 * READ) == pytest.approx(9.2, abs=0.05)
    assert 100 * (2 * weight_bytes(G) / 2 / (weight_bytes(G) / READ)) / PEAK == pytest.approx(0.65, abs=0.005)
    says("187 TFLOP/s", "1,631 GB/s = 9.2 ms")


@pytest.mark.parametrize("prompt, share", [(1024, "94 %"), (4096, "79 %"), (8192, "64 %"), (32768, "28 %")])
def test_decode_share_with_128_outputs(phases, prompt, share):
    prefill, decode = phases(prompt, 128)
    assert f"{100 * decode / (prefill + decode):.0f} %" == share
    says("94 % of the time at 1k, 79 % at 4k, 64 % at 8k and 28 % at 32k")


@pytest.mark.parametrize("prompt, outputs", [(1024, 10), (8192, 73)])
def test_crossover(phases, prompt, outputs):
    before, after = phases(prompt, outputs - 1), phases(prompt, outputs)
    assert before[1] < before[0] and after[1] >= after[0]
    says("after 10 output tokens at 1k, and after 73 at 8k")


def test_vllm_split():
    qwen = get("Qwen3-8B")
    rows = [row for row in data.measurement("vllm-a100-fp8-phase")["data"] if "prefill" in row]
    prefill = [8 * prefill_flops(qwen, row["prefill"]) / row["ttft_bf16"] / PEAK for row in rows]
    decode = [decode_flops(qwen, row["prefill"], 8) * row["dec_bf16"] / 8 / PEAK for row in rows]
    floors = [(weight_bytes(qwen) + 8 * kv_bytes(qwen, row["prefill"])) / READ * 1e3 for row in rows]
    steps = [8e3 / row["dec_bf16"] for row in rows]
    assert (round(100 * min(prefill)), round(100 * max(prefill))) == (67, 70)
    assert (round(100 * min(decode), 1), round(100 * max(decode), 1)) == (1.1, 1.7)
    assert (round(min(floors)), round(max(floors))) == (8, 17)
    assert 35 <= min(steps) and max(steps) < 37
    gaps = [step / floor for step, floor in zip(steps, floors, strict=True)]
    assert (round(min(gaps)), round(max(gaps))) == (2, 4)
    gains = [100 * (row["dec_fp8"] / row["dec_bf16"] - 1) for row in rows]
    assert (round(min(gains), 1), round(max(gains), 1)) == (0.4, 5.5)
    half = [weight_bytes(qwen) + 4 * kv_bytes(qwen, row["prefill"]) for row in rows]
    promised = [100 * (floor * READ / 1e3 / fewer - 1) for floor, fewer in zip(floors, half, strict=True)]
    assert (round(min(promised)), round(max(promised))) == (4, 39)
    assert "enforce_eager" in data.measurement("vllm-a100-fp8-phase")["conditions"]
    assert "CUDA graphs" in data.measurement("vllm-enforce-eager")["data"][0]["turns_off"]
    says("67 to 70 %", "1.1 % to 1.7 %", "35 to 37 ms at every context", "from 8 to 17 ms", "two to four times")
    says("gained 0.4 to 5.5 %", "promise 4 to 39 %")


def test_second_half_of_the_rule(phases):
    def percent(outputs):
        prefill, decode = phases(8192, outputs)
        return 100 * decode / (prefill + decode)

    assert percent(286) < 80 <= percent(287)
    growth = {b: step_bytes(32768, b) / step_bytes(8192, b) for b in (1, 27, 28)}
    assert round(growth[1], 2) == 1.20 and growth[27] < 3 <= growth[28]
    says("an answer of 287 tokens", "needs 28 sequences", "1.20 times as long")


def step_bytes(context: int, batch: int) -> int:
    """Of the first decode step after a prompt of `context` tokens."""
    return weight_bytes(G) + batch * kv_bytes(G, context + 1)


def test_what_clients_got_wrong():
    shown = {row["source"]: row for row in data.measurement("latency-metrics")["data"]}
    sglang = shown["sgl-project/sglang#12064"]
    assert (sglang["shown_ms"], round(sglang["tok_s"]), round(1e3 / sglang["tok_s"], 2)) == (8.72, 292, 3.42)
    assert "vllm-project/vllm#7242" in shown and "PaddlePaddle/FastDeploy#8113" in shown
    says("8.72 ms at 292 tokens a second, which are 3.42 ms each")


def test_gptfast_rows_follow_from_bytes():
    table = {(row["model"], row["prec"]): row["tok_s"] for row in data.measurement("gptfast-a100")["data"]}
    seven = get("Llama-2-7b-hf")
    step = weight_bytes(seven) + kv_bytes(seven, 208)
    rate = table["Llama-2-7B", "bf16"] * step
    assert step / 1e9 == pytest.approx(13.32, abs=0.01)
    other = rate / (weight_bytes(G) + kv_bytes(G, 208))
    assert other == pytest.approx(table["Llama-3.1-8B", "bf16"], rel=0.015)
    int8 = rate / (weight_bytes(seven) / 2 + kv_bytes(seven, 208))
    assert int8 / table["Llama-2-7B", "bf16"] == pytest.approx(1.98, abs=0.005)
    assert table["Llama-2-7B", "int8"] / table["Llama-2-7B", "bf16"] == pytest.approx(1.48, abs=0.005)
    assert f"{rate / 1e9:,.0f}" == "1,398" and round(100 * rate / READ) == 69
    assert "1700 GB/s" in A100["notes"]
    four_bits = next(
        row
        for row in data.measurement("gptfast-a100")["data"]
        if (row["model"], row["prec"]) == ("Llama-2-7B", "int4 g32")
    )
    packed = 1e9 * four_bits["GBps"] / four_bits["tok_s"]
    assert packed / step == pytest.approx(1 / 3, abs=0.01)
    assert step / packed == pytest.approx(3.04, abs=0.005)
    assert four_bits["tok_s"] / table["Llama-2-7B", "bf16"] == pytest.approx(1.88, abs=0.005)
    assert (seven.kv_heads / G.kv_heads, round(G.vocab / seven.vocab)) == (4, 4) and G.intermediate > seven.intermediate
    assert (seven.layers, seven.q_heads, seven.hidden) == (G.layers, G.q_heads, G.hidden)
    conditions = data.measurement("gptfast-a100")["conditions"]
    assert all(words in conditions for words in ("330 W", "5-token prompt, 200 new tokens", "incl. prefill"))
    says("limited to 330 W; 5 tokens of prompt and 200 of answer, prefill included")
    says("1 % off", "1.48 times as fast where bytes promise 1.98", "1.88 times as fast where bytes promise 3.04")
    says(
        "1,398 GB/s is 69 % of the data sheet", "near 1,700", "a quarter of the KV heads and four times the vocabulary"
    )
    says("wider MLP", "int4 with its scales has a third")


def test_without_a_cache():
    assert f"{prefill_flops(G, 8192):.1e}" == "1.3e+14"
    assert f"{decode_flops(G, 8192):.1e}" == "1.9e+10"
    assert prefill_flops(G, 8192) / decode_flops(G, 8192) == pytest.approx(6800, abs=50)
    assert kv_bytes(G, 1) == 131_072
    says("1.3e14 FLOPs instead of 1.9e10, about 6,800 times", "+131 kB a token")


def test_simulated_graph():
    """20 µs of launch hide 8 µs of kernel; 400 of them."""
    assert 400 * 8e-6 == pytest.approx(3.2e-3)
    says("400 kernels of 8 µs each, 20 µs to launch one")


def test_no_answer_stands_under_its_blank():
    PROSE.hides("14.3", "15.02", f"{PEAK / READ:.0f}", "0.65", "7.65")
