"""The numbers that unit 01 states in prose, computed again from the catalogue and the published tables."""

import pytest
import torch

from helpers import data
from helpers.models.counts import decode_flops, kv_bytes, prefill_flops, weight_bytes
from helpers.models.geometry import get
from tests.misconceptions.harness import load
from tools.units import find

UNIT = find(selection=["01"])[0]
PROSE = " ".join(UNIT.source.read_text(encoding="utf-8").replace("\n# ", " ").split())
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


def says(*phrases: str) -> None:
    for phrase in phrases:
        assert phrase in PROSE, f"the unit no longer says {phrase!r}: compute it again"


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


def test_ridge_and_rates():
    assert PEAK / READ == pytest.approx(153, abs=0.5)
    assert 0.6 * PEAK / 1e12 == pytest.approx(187, abs=0.5)
    assert 0.8 * READ / 1e9 == pytest.approx(1631, abs=0.5)
    assert 1e3 * weight_bytes(G) / (0.8 * READ) == pytest.approx(9.2, abs=0.05)
    assert 100 * (2 * weight_bytes(G) / 2 / (weight_bytes(G) / READ)) / PEAK == pytest.approx(0.65, abs=0.005)
    says("153 tokens on an A100", "187 TFLOP/s", "1,631 GB/s = 9.2 ms", "predicted 0.65 %")


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
    says("67 to 70 %", "1.1 % to 1.7 %", "35 to 37 ms at every context", "from 8 to 17 ms", "two to four times")


def test_gptfast_rows_follow_from_bytes():
    table = {(row["model"], row["prec"]): row["tok_s"] for row in data.measurement("gptfast-a100")["data"]}
    seven = get("Llama-2-7b-hf")
    step = weight_bytes(seven) + kv_bytes(seven, 208)
    rate = table["Llama-2-7B", "bf16"] * step
    assert step / 1e9 == pytest.approx(13.32, abs=0.01)
    other = rate / (weight_bytes(G) + kv_bytes(G, 208))
    assert other == pytest.approx(table["Llama-3.1-8B", "bf16"], rel=0.015)
    int8 = rate / (weight_bytes(seven, torch.int8) + kv_bytes(seven, 208))
    assert int8 / table["Llama-2-7B", "bf16"] == pytest.approx(1.98, abs=0.005)
    assert table["Llama-2-7B", "int8"] / table["Llama-2-7B", "bf16"] == pytest.approx(1.48, abs=0.005)
    conditions = data.measurement("gptfast-a100")["conditions"]
    assert all(words in conditions for words in ("330 W", "5-token prompt, 200 new tokens", "incl. prefill"))
    says("limited to 330 W; 5 tokens of prompt and 200 of answer, prefill included")
    says("1 % off", "1.48 times as fast where bytes promise 1.98")


def test_without_a_cache():
    assert f"{prefill_flops(G, 8192):.1e}" == "1.3e+14"
    assert f"{decode_flops(G, 8192):.1e}" == "1.9e+10"
    assert prefill_flops(G, 8192) / decode_flops(G, 8192) == pytest.approx(6800, abs=50)
    assert kv_bytes(G, 1) == 131_072
    says("1.3e14 FLOPs instead of 1.9e10, about 6,800 times", "+131 kB a token")
