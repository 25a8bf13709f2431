"""Unit 00: every number of its prose that can be computed is computed here, from the tables it names."""

import re
import statistics
from pathlib import Path

import jupytext
import pytest
import torch

from helpers import data
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.geometry import get

SOURCE = Path(__file__).parents[1] / "solutions" / "00-clock" / "00-clock.py"
CELLS = jupytext.read(SOURCE).cells
PROSE = " ".join(" ".join(c.source.split()) for c in CELLS if c.cell_type == "markdown")

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
FLOOR_MS = WEIGHTS / H100["bandwidth_GBps"] / 1e6
# At the rate at which it reads its cache: 131,072 bytes a token over the slope of the line.
READ_MS = WEIGHTS * FITS["H100"]["slope"] / kv_bytes(LLAMA, 1)

SAID = [
    ("**3,350 GB/s**", f"{H100['bandwidth_GBps']:,}"),
    ("**989.5 TFLOP/s**", f"{H100['dense_bf16_TFLOPs']}"),
    ("reads **15.01 GB** of weights", f"{WEIGHTS / 1e9:.2f}"),
    # 2 bytes and 2 FLOPs a weight: the same number.
    ("does **15.01 GFLOP**", f"{2 * (WEIGHTS / 2) / 1e9:.2f}"),
    ("it can use 1/295 of what this GPU multiplies", f"1/{RIDGE:.0f}"),
    ("| H100 SXM | Llama-3.1-8B, bf16 | 131,072 |", f"{kv_bytes(LLAMA, 1):,}"),
    ("| L4 | Qwen3-4B, bf16 | 147,456 |", f"{kv_bytes(get('Qwen3-4B'), 1):,}"),
    ("adds 4.37e-5 ms", f"{FITS['H100']['slope']:.2e}".replace("e-05", "e-5")),
    ("adds 1.80e-5 ms", f"{FITS['B200']['slope']:.2e}".replace("e-05", "e-5")),
    ("29.1 tokens/s at 2,048 tokens of context", f"{RATES[2048]}"),
    ("19.4 at 32,768", f"{RATES[32768]}"),
    ("The SXM board has 3.35", f"{H100['bandwidth_GBps'] / 1e3}"),
    ("the NVL 3.9", f"{data.device('H100 NVL')['bandwidth_GBps'] / 1e3}"),
    ("the PCIe 2.0", f"{data.device('H100 PCIe')['bandwidth_GBps'] / 1e3}"),
    ("the H100 needs 6.44 ms a step", f"{FITS['H100']['intercept']}"),
    ("a floor of 4.48", f"{FLOOR_MS:.2f}"),
    ("Of the other 2 ms", f"{FITS['H100']['intercept'] - FLOOR_MS:.0f} ms"),
    ("0.5 are still bytes", f"{READ_MS - FLOOR_MS:.1f}"),
    ("The 1.4 ms that are left", f"{FITS['H100']['intercept'] - READ_MS:.1f} ms"),
]


@pytest.mark.parametrize("sentence, number", SAID)
def test_number_in_the_text_is_the_computed_one(sentence, number):
    assert sentence in PROSE
    assert re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d])", sentence), f"{sentence!r} has to say {number}"


def test_words_for_ratios_hold():
    prompt = 1000 * WEIGHTS / H100["dense_bf16_TFLOPs"] / 1e9
    assert "little more than three times what one costs" in PROSE and 3 < prompt / FLOOR_MS < 3.5
    reached = {gpu: kv_bytes(LLAMA, 1) / FITS[gpu]["slope"] / 1e6 for gpu in FITS}
    reached["L4"] = 30_720 * 147_456 / (1 / RATES[32768] - 1 / RATES[2048]) / 1e9
    sheets = {"H100": H100, "B200": B200, "L4": L4}
    assert "About nine tenths of the sheet" in PROSE
    assert all(0.87 < reached[gpu] / sheet["bandwidth_GBps"] < 0.92 for gpu, sheet in sheets.items())
    assert "Three is what the SXM *reaches*" in PROSE and round(reached["H100"] / 1e3, 2) == 3.0
    assert "a third too short" in PROSE
    assert 1 - data.device("H100 PCIe")["bandwidth_GBps"] / 3000 == pytest.approx(1 / 3, abs=0.01)


def test_the_unit_reads_as_promised():
    headings = re.findall(r"^## (.+)$", SOURCE.read_text().replace("# ## ", "## "), re.MULTILINE)
    assert headings == ["The question", "Predict", "Build", "Measure", "Explain"]
    code = [c for c in CELLS if c.cell_type == "code"]
    assert statistics.median(len(c.source.splitlines()) for c in code) <= 10
    first_edit = next(i for i, c in enumerate(CELLS) if "answer" in c.metadata)
    assert first_edit < 6
