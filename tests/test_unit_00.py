"""Unit 00: every number of its prose that can be computed is computed here, from the tables it names."""

import re

import jupytext
import pytest
import torch

from helpers import check, data
from helpers.models.counts import kv_bytes, prefill_flops, resident_bytes, weight_bytes
from helpers.models.geometry import get
from tests.misconceptions.harness import ROOT
from tests.prose import Prose

SOURCE = ROOT / "solutions" / "00-clock" / "00-clock.py"
CELLS = jupytext.read(SOURCE).cells
PROSE = Prose(SOURCE)
says = PROSE.says

LLAMA = get("Llama-3.1-8B")
H100, B200, L4 = data.device("H100 SXM"), data.device("B200 SXM"), data.device("L4")
WEIGHTS = weight_bytes(LLAMA, torch.bfloat16)
RIDGE = H100["dense_bf16_TFLOPs"] * 1e3 / H100["bandwidth_GBps"]
FITS = {
    row["gpu"]: row
    for row in data.measurement("vllm-h100-b200-fit")["data"]
    if row["model"] == "Llama-3.1-8B" and row["kv"] == "bf16"
}
RATES = {row["ctx"]: row["bf16"] for row in data.measurement("vllm-l4-fp8")["data"] if "ctx" in row}
# Two FLOPs a weight: the layers once a token, the output head once for the prompt. The same rule as in 01.1.
HEAD = LLAMA.vocab * LLAMA.hidden
PROMPT_FLOPS = 2 * (1000 * (WEIGHTS / 2 - HEAD) + HEAD)
RNNT, MATMUL, WARM_UP, HOT, NUMBERS = (
    data.measurement(f"timing-{name}")["data"]
    for name in (
        "no-synchronize-rnnt",
        "no-synchronize-mlx-benchmark",
        "short-warm-up-thunder",
        "throttled-b200",
        "zeros-and-random-a100",
    )
)
FLOOR_MS = WEIGHTS / H100["bandwidth_GBps"] / 1e6
# At the rate at which it reads its cache: 131,072 bytes a token over the slope of the line.
READ_MS = WEIGHTS * FITS["H100"]["slope"] / kv_bytes(LLAMA, 1)

SAID = [
    ("**3,350 GB/s**", f"{H100['bandwidth_GBps']:,}"),
    ("**989.5 TFLOP/s**", f"{H100['dense_bf16_TFLOPs']}"),
    ("weights once, **15.01 GB**", f"{WEIGHTS / 1e9:.2f}"),
    # 2 bytes and 2 FLOPs a weight: the same number.
    ("whole model has 16.06 GB", f"{resident_bytes(LLAMA, torch.bfloat16) / 1e9:.2f}"),
    ("**15.01 GFLOP** for a decode step", f"{2 * (WEIGHTS / 2) / 1e9:.2f}"),
    ("**13.96 TFLOP** for a prompt of 1,000 tokens", f"{PROMPT_FLOPS / 1e12:.2f}"),
    ("would add 2 %; leave it out", f"{100 * (prefill_flops(LLAMA, 1000) / PROMPT_FLOPS - 1):.0f} %"),
    ("| H100 SXM | Llama-3.1-8B, bf16 | 131,072 |", f"{kv_bytes(LLAMA, 1):,}"),
    ("| L4 | Qwen3-4B, bf16 | 147,456 |", f"{kv_bytes(get('Qwen3-4B'), 1):,}"),
    ("adds 4.37e-5 ms", f"{FITS['H100']['slope']:.2e}".replace("e-05", "e-5")),
    ("adds 1.80e-5 ms", f"{FITS['B200']['slope']:.2e}".replace("e-05", "e-5")),
    ("29.1 tokens/s at 2k tokens of context", f"{RATES[2048]}"),
    ("19.4 at 32k", f"{RATES[32768]}"),
    ("The SXM board has 3.35", f"{H100['bandwidth_GBps'] / 1e3}"),
    ("the NVL 3.9", f"{data.device('H100 NVL')['bandwidth_GBps'] / 1e3}"),
    ("the PCIe 2.0", f"{data.device('H100 PCIe')['bandwidth_GBps'] / 1e3}"),
    ("4.37e-5 ms for each token of context", f"{FITS['H100']['slope']:.2e}".replace("e-05", "e-5")),
    ("plus 6.44 ms", f"{FITS['H100']['intercept']}"),
    ("It lies 2 ms above your floor", f"{FITS['H100']['intercept'] - FLOOR_MS:.0f} ms"),
    ("0.5 would still be bytes", f"{READ_MS - FLOOR_MS:.1f}"),
    ("the other 1.4 ms", f"{FITS['H100']['intercept'] - READ_MS:.1f} ms"),
    ("first one said 8,000 GB/s", f"{B200['bandwidth_GBps']:,}"),
    ("7,672 GB/s", f"{B200['driver_GBps']:,}"),
    ("timed a kernel at 1.76 ms", f"{RNNT[0]['new_ms']}"),
    ("it took 15.8 ms", f"{RNNT[1]['new_ms']:.1f}"),
    ('had "beaten" took 6.1', f"{RNNT[1]['baseline_ms']:.1f}"),
    ("reported 509.8 ms per token", f"{WARM_UP[0]['ms_per_token']:.1f}"),
    ("needs 31.4", f"{WARM_UP[1]['ms_per_token']:.1f}"),
    ('"took" 0.03 ms', f"{MATMUL[0]['matmul_ms']}"),
    ("and 1.36 ms once the clock waited", f"{MATMUL[1]['matmul_ms']}"),
    ("1,965 to 1,580 MHz", f"{HOT[0]['clock_MHz']:,} to {HOT[1]['clock_MHz']:,}"),
    ("took 15 % off the rate", f"{100 * (1 - HOT[1]['tflops'] / HOT[0]['tflops']):.0f} %"),
    ("multiplied zeros at 295 TFLOP/s", f"{NUMBERS[0]['tflops']}"),
    ("random numbers at 257", f"{NUMBERS[1]['tflops']}"),
]


@pytest.mark.parametrize("sentence, number", SAID)
def test_number_in_the_text_is_the_computed_one(sentence, number):
    says(sentence)
    assert re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d])", sentence), f"{sentence!r} has to say {number}"


def test_words_for_ratios_hold(capsys):
    prompt_ms = PROMPT_FLOPS / H100["dense_bf16_TFLOPs"] / 1e9
    check.grade("00.1", {"decode": FLOOR_MS, "prompt": prompt_ms})
    assert f"cost {prompt_ms / FLOOR_MS:.1f} times what one costs" in capsys.readouterr().out
    check.grade("00.2", RIDGE, RIDGE)
    assert "1/295 of the arithmetic" in capsys.readouterr().out
    reached = {gpu: kv_bytes(LLAMA, 1) / FITS[gpu]["slope"] / 1e6 for gpu in FITS}
    reached["L4"] = 30_720 * 147_456 / (1 / RATES[32768] - 1 / RATES[2048]) / 1e9
    check.grade("00.7", reached)
    sheets = {"H100": H100, "B200": B200, "L4": L4}
    told = capsys.readouterr().out
    assert "about nine tenths of the data sheet" in told and "some 10 % too fast" in told
    assert "3 TB/s for an H100 SXM has, by luck, already taken the 10 % off" in told
    assert all(0.87 < reached[gpu] / sheet["bandwidth_GBps"] < 0.92 for gpu, sheet in sheets.items())
    assert round(reached["H100"] / 1e3, 2) == 3.0
    says("a third too short")
    assert 1 - data.device("H100 PCIe")["bandwidth_GBps"] / 3000 == pytest.approx(1 / 3, abs=0.01)
    # "unless told otherwise": the flag that tells it so.
    assert "CUDA graphs" in data.measurement("vllm-enforce-eager")["data"][0]["turns_off"]


def test_no_answer_stands_under_its_blank():
    prompt_ms = PROMPT_FLOPS / H100["dense_bf16_TFLOPs"] / 1e9
    PROSE.hides(f"{FLOOR_MS:.2f}", f"{prompt_ms:.1f}", f"1/{RIDGE:.0f}", "2,999")
