"""Every number in the prose of unit 02, recomputed from tensors and published figures."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import data
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.geometry import get
from tests.misconceptions.harness import ROOT, load

SOURCE = ROOT / "solutions" / "02-growing-cache" / "02-growing-cache.py"
TEXT = re.sub(r"\s+", " ", re.sub(r"^# ?", "", SOURCE.read_text(encoding="utf-8"), flags=re.MULTILINE))
BF16 = torch.bfloat16


def says(text):
    assert text in TEXT, f"unit 02 no longer says {text!r}; correct the prose or this test"


@pytest.fixture(scope="module")
def reference():
    """The names that the setup cells and the reference answers define."""
    unit, space = load(SOURCE), {"__name__": "__main__"}
    for cell in unit.cells:
        if cell.setup or cell.answer:
            exec(compile(cell.source, "<unit 02>", "exec"), space)
    return space


def test_parameter_table():
    for name, total, embedding in (
        ("Llama-2-7b-hf", "6.738e9", "0.131e9"),
        ("Llama-3.1-8B", "8.030e9", "0.525e9"),
    ):
        g = get(name)
        table = g.vocab * g.hidden
        says(f"| {name} | {total} | {embedding} |")
        assert float(embedding) == pytest.approx(table, rel=0.002)
        assert float(total) == pytest.approx(weight_bytes(g, BF16) / 2 + table, rel=0.001)


def test_where_cache_equals_weights():
    llama2, llama3 = (weight_bytes(get(n), BF16) / kv_bytes(get(n), 1) for n in ("Llama-2-7b-hf", "Llama-3.1-8B"))
    says("The older model gets there at 25 thousand tokens")
    says("with a quarter of the KV heads, at 115 thousand")
    assert round(llama2 / 1e3) == 25 and round(llama3 / 1e3) == 115
    assert get("Llama-3.1-8B").kv_heads * 4 == get("Llama-2-7b-hf").kv_heads


def test_pool_of_vllm_on_l4():
    g = get("Qwen3-4B")
    room = (24e9 - weight_bytes(g, BF16)) / kv_bytes(g, 1)
    says("(24 − 8.04) GB is room for 108,200 tokens; vLLM reports a pool of 83,488")
    assert round(weight_bytes(g, BF16) / 1e9, 2) == 8.04 and round(room, -2) == 108_200
    pools = [row["pool_tokens_bf16"] for row in data.measurement("vllm-l4-fp8")["data"] if "pool_GiB" in row]
    assert pools == [83_488]


def test_ten_published_measurements():
    says("held against 10 published measurements")
    l4 = [row for row in data.measurement("vllm-l4-fp8")["data"] if "ctx" in row]
    gpt_fast = [row for row in data.measurement("gptfast-a100")["data"] if row["prec"] in ("bf16", "int8")]
    assert len(l4) + len(gpt_fast) == 10
    says("The 6 of gpt-fast come with a rate of reading that its authors computed from the same speed")
    assert len(gpt_fast) == 6 and "x tok/s" in data.measurement("gptfast-a100")["conditions"]
    says("The 4 of vLLM have one bandwidth for all contexts")
    assert len(l4) == 4


def test_bandwidths_of_two_machines():
    says("247 GB/s (82 % of the L4's data sheet)")
    says("220 GB/s (81 % of the Spark's 273)")
    assert round(100 * 247 / data.device("L4")["bandwidth_GBps"]) == 82
    assert data.device("GB10 (DGX Spark)")["bandwidth_GBps"] == 273 and round(100 * 220 / 273) == 81


def test_weights_written_into_the_cells():
    spark = get("Qwen2.5-7B")
    q8_bytes = 8.5 / 8  # Q8_0: 32 one-byte elements and a half-precision scale
    file_bytes = float(re.search(r"([\d.]+) GiB", data.measurement("llamacpp-gb10-batch")["conditions"])[1]) * 2**30
    streamed = file_bytes - spark.vocab * spark.hidden * q8_bytes
    assert streamed == pytest.approx(7.517e9, rel=1e-3) and "tpot_seconds(7.517e9, 57_344" in TEXT
    assert kv_bytes(spark, 1) == 57_344
    for name, weights in (("Qwen3-4B", 8.0445e9), ("Qwen3-8B", 15.136e9), ("Llama-3.1-70B", 139.0e9)):
        assert weight_bytes(get(name), BF16) == pytest.approx(weights, rel=1e-3)
        assert f"tpot_seconds({weights / 1e9:g}e9" in TEXT.replace("139.0e9", "139e9")
    assert kv_bytes(get("Qwen3-4B"), 1) == kv_bytes(get("Qwen3-8B"), 1) == 147_456
    assert data.device("A100-80GB SXM")["bandwidth_GBps"] == 2_039


def test_l4_and_spark_against_the_bytes(reference):
    tpot = reference["tpot_seconds"]
    says("At batch 1 both machines obey the bytes to within 2 %")
    gaps = []
    for row in data.measurement("vllm-l4-fp8")["data"]:
        if "ctx" in row:
            gaps.append(tpot(8.0445e9, 147_456, row["ctx"], 1, 247e9) * row["bf16"] - 1)
    spark = {(row["batch"], row["pp"]): row["ms_per_step"] for row in data.measurement("llamacpp-gb10-batch")["data"]}
    predicted = {key: 1e3 * tpot(7.517e9, 57_344, key[1] + 16, key[0], 220e9) for key in spark}
    gaps += [predicted[key] / spark[key] - 1 for key in spark if key[0] == 1]
    assert max(map(abs, gaps)) < 0.02
    says("the Spark goes from 54 to 119 ms")
    says("bytes alone say 39 to 103")
    says("16 ms of other work lie under it")
    assert [round(spark[32, context]) for context in (512, 8_192)] == [54, 119]
    assert [round(predicted[32, context]) for context in (512, 8_192)] == [39, 103]
    others = [spark[32, context] - predicted[32, context] for context in (512, 4_096, 8_192)]
    assert max(others) - min(others) < 2 and round(np.mean(others)) == 16


def test_eager_a100_does_not_show_the_cache(reference):
    rows = [row for row in data.measurement("vllm-a100-fp8-phase")["data"] if "prefill" in row]
    tpot = reference["tpot_seconds"]
    bytes_ms = [1e3 * tpot(15.136e9, 147_456, row["prefill"], 8, 2_039e9) for row in rows]
    says("The bytes double, from 8.0 to 16.9 ms. The clock stays at 35 to 36 ms")
    assert [round(bytes_ms[0], 1), round(bytes_ms[-1], 1)] == [8.0, 16.9]
    assert {round(8e3 / row["dec_bf16"]) for row in rows} == {35, 36}
    assert "eager" in data.measurement("vllm-a100-fp8-phase")["conditions"]


def test_the_claim(reference):
    g = get("Llama-3.1-70B")
    mha, gqa = kv_bytes(g.replace(kv_heads=g.q_heads), 1), kv_bytes(g, 1)
    says("2,621,440 bytes a token if all 64 heads")
    says("327,680 in the real model, which has 8 KV heads")
    assert (mha, gqa, g.q_heads, g.kv_heads) == (2_621_440, 327_680, 64, 8)
    answer = reference["incident"]
    says("40 ms become 61 ms with MHA and 43 ms with the real model")
    assert round(40 * answer["factor at batch 1, MHA"]) == 61
    assert round(40 * answer["factor at batch 1, GQA-8"]) == 43
    says("near batch 4 (MHA) or batch 31 (GQA-8)")
    assert round(answer["batch for 3 times, MHA"]) == 4 and round(answer["batch for 3 times, GQA-8"]) == 31
    verdict = data.claim("a")["verdict"]
    assert "FALSE at batch 1" in verdict and "~4 (MHA)" in verdict and "~31 (GQA-8)" in verdict


def test_learner_meets_the_first_blank_early():
    """The first edit comes by the sixth code or text cell of the Predict movement, and cells stay short."""
    unit = load(SOURCE)
    first = next(i for i, cell in enumerate(unit.cells) if cell.answer)
    assert first <= 3  # parameters, setup, the table, then the first answer
    assert Path(SOURCE).stem == unit.name
    assert np.median([len(cell.source.splitlines()) for cell in unit.cells]) <= 10
