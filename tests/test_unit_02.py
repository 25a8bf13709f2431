"""Every number in the prose of unit 02, recomputed from tensors and published figures."""

import itertools
import re

import numpy as np
import pytest
import torch

from helpers import data
from helpers.clock import own_size, recordings
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.geometry import get
from tests.misconceptions.harness import ROOT, load
from tests.prose import Prose

SOURCE = ROOT / "solutions" / "02-growing-cache" / "02-growing-cache.py"
PROSE = Prose(SOURCE)
TEXT, says = PROSE.text, PROSE.says
BF16 = torch.bfloat16
SIX = ["Llama-2-7b-hf", "Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-4B", "Mixtral-8x7B-v0.1", "SmolLM2-135M"]


def tick(exercise):
    """What a right answer is told."""
    return load(SOURCE).run(exercise).stdout


@pytest.fixture(scope="module")
def reference():
    return PROSE.reference()


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


@pytest.mark.parametrize("name", SIX)
def test_the_table_of_six_is_the_catalogue(name):
    g = get(name)
    row = next(line for line in SOURCE.read_text(encoding="utf-8").splitlines() if line.startswith(f"# | {name} | "))
    *sizes, experts = (part.strip() for part in row.split("|")[2:-1])
    assert [int(n.replace(",", "")) for n in sizes] == [g.layers, g.hidden, g.q_heads, g.kv_heads, g.head_dim]
    assert experts == (f"{g.moe.experts}, a token runs {g.moe.per_token}" if g.moe else "")


def test_where_cache_equals_weights():
    llama2, llama3 = (weight_bytes(get(n), BF16) / kv_bytes(get(n), 1) for n in ("Llama-2-7b-hf", "Llama-3.1-8B"))
    assert "gets there at 25 thousand tokens" in tick("02.2")
    assert "with 8 KV heads in place of 32, at 115 thousand" in tick("02.2")
    assert round(llama2 / 1e3) == 25 and round(llama3 / 1e3) == 115
    assert get("Llama-3.1-8B").kv_heads * 4 == get("Llama-2-7b-hf").kv_heads


def test_pool_of_vllm_on_l4():
    g, card = get("Qwen3-4B"), 1e9 * data.device("L4")["capacity_GB"]
    room = card - weight_bytes(g, BF16)
    says("(24 − 8.04) GB is room for 108,200 tokens; vLLM reported a pool of 83,488")
    assert round(weight_bytes(g, BF16) / 1e9, 2) == 8.04 and round(room / kv_bytes(g, 1), -2) == 108_200
    pool = next(row for row in data.measurement("vllm-l4-fp8")["data"] if "pool_GiB" in row)
    assert pool["pool_tokens_bf16"] == 83_488
    says("A setting explains two thirds of the 3.6 GB between the two")
    missing = room - pool["pool_tokens_bf16"] * kv_bytes(g, 1)
    assert round(missing / 1e9, 1) == 3.6
    says("told to take 90 % of the GPU's memory, 21.6 of 24 GB")
    assert pool["gpu_memory_utilization"] == 0.90 and round(0.90 * 24, 1) == 21.6
    assert (1 - 0.90) * card / missing == pytest.approx(2 / 3, abs=0.02)


def test_ten_published_measurements():
    says("held against 10 published measurements")
    l4 = [row for row in data.measurement("vllm-l4-fp8")["data"] if "ctx" in row]
    gpt_fast = [row for row in data.measurement("gptfast-a100")["data"] if row["prec"] in ("bf16", "int8")]
    assert len(l4) + len(gpt_fast) == 10
    says("The 6 of gpt-fast come with a read rate that its authors computed from the same speed")
    assert len(gpt_fast) == 6 and "x tok/s" in data.measurement("gptfast-a100")["conditions"]
    says("The 4 of vLLM share one bandwidth, chosen to fit them")
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
    says("At batch 1 both machines follow the bytes to within 2 %")
    gaps = []
    for row in data.measurement("vllm-l4-fp8")["data"]:
        if "ctx" in row:
            gaps.append(tpot(8.0445e9, 147_456, row["ctx"], 1, 247e9) * row["bf16"] - 1)
    spark = {(row["batch"], row["pp"]): row["ms_per_step"] for row in data.measurement("llamacpp-gb10-batch")["data"]}
    predicted = {key: 1e3 * tpot(7.517e9, 57_344, key[1] + 16, key[0], 220e9) for key in spark}
    gaps += [predicted[key] / spark[key] - 1 for key in spark if key[0] == 1]
    assert max(map(abs, gaps)) < 0.02
    assert "Qwen2.5-Coder-7B" in data.measurement("llamacpp-gb10-batch")["conditions"]
    says("llama.cpp for Qwen2.5-Coder-7B (8-bit weights)")
    says("the Spark goes from 54 ms at 512 tokens to 119 ms at 8,192, a factor of 2.2")
    assert round(spark[32, 8_192] / spark[32, 512], 1) == 2.2
    says("Bytes alone say 39 to 103")
    says("about 16 ms that bytes do not explain come on top at every context")
    assert [round(spark[32, context]) for context in (512, 8_192)] == [54, 119]
    assert [round(predicted[32, context]) for context in (512, 8_192)] == [39, 103]
    others = [spark[32, context] - predicted[32, context] for context in (512, 4_096, 8_192)]
    assert max(others) - min(others) < 2 and round(np.mean(others)) == 16


def test_eager_a100_does_not_show_the_cache(reference):
    thread = data.measurement("vllm-a100-fp8-phase")
    rows = [row for row in thread["data"] if "prefill" in row]
    tpot = reference["tpot_seconds"]
    bytes_ms = [1e3 * tpot(15.136e9, 147_456, row["prefill"], 8, 2_039e9) for row in rows]
    says("The bytes double, from 8.0 to 16.9 ms. The clock stays at 35 to 37 ms")
    assert [round(bytes_ms[0], 1), round(bytes_ms[-1], 1)] == [8.0, 16.9]
    assert all(35 <= 8e3 / row["dec_bf16"] <= 37 for row in rows)
    assert "eager" in thread["conditions"]
    says("The bytes alone would let decode gain 4 to 39 %, more the longer the context. It gained 0.4 to 5.5 %.")
    bound = [
        100 * (tpot(15.136e9, 147_456, row["prefill"], 8, 1) / tpot(15.136e9, 73_728, row["prefill"], 8, 1) - 1)
        for row in rows
    ]
    assert bound == sorted(bound) and [round(bound[0]), round(bound[-1])] == [4, 39]
    gains = [100 * (row["dec_fp8"] / row["dec_bf16"] - 1) for row in rows]
    assert [round(min(gains), 1), round(max(gains), 1)] == [0.4, 5.5]


def test_experts_touched_by_a_batch():
    moe = get("Mixtral-8x7B-v0.1").moe
    says("a token runs 2 of the 8 experts")
    assert (moe.per_token, moe.experts) == (2, 8)
    says("they would touch 3.5 on average, and four sequences 5.5")
    pairs = list(itertools.combinations(range(8), 2))
    two = np.mean([len({*a, *b}) for a in pairs for b in pairs])
    assert two == pytest.approx(3.5)
    assert round(8 * (1 - (6 / 8) ** 4), 1) == 5.5 and 8 * (1 - (6 / 8) ** 2) == pytest.approx(two)
    says("a second sequence raises the total speed of a dense 7B by 86 %, and that of three")
    says("mixtures of experts by 5 to 17 % (llama.cpp, 512 tokens of context)")
    published = data.measurement("llamacpp-gb10-moe-batch")
    gain = {row["model"]: round(100 * (row["tok_s"][1] / row["tok_s"][0] - 1)) for row in published["data"]}
    dense = gain.pop("Qwen2.5-7B Q8 (dense)")
    assert dense == 86 and len(gain) == 3 and (min(gain.values()), max(gain.values())) == (5, 17)
    assert "512 prompt" in published["conditions"]


def test_the_claim(reference):
    g = get("Llama-3.1-70B")
    mha, gqa = kv_bytes(g.replace(kv_heads=g.q_heads), 1), kv_bytes(g, 1)
    says("2,621,440 bytes a token if all 64 heads")
    says("327,680 in the real model, whose 64 query heads share 8 KV heads")
    assert (mha, gqa, g.q_heads, g.kv_heads) == (2_621_440, 327_680, 64, 8)
    answer = reference["incident"]
    assert "40 ms become 61 ms with MHA and 43 ms with the real model" in tick("02.8")
    assert round(40 * answer["factor at batch 1, MHA"]) == 61
    assert round(40 * answer["factor at batch 1, GQA-8"]) == 43
    assert "near batch 4 (MHA) or batch 31 (GQA-8)" in tick("02.8")
    assert round(answer["batch for 3 times, MHA"]) == 4 and round(answer["batch for 3 times, GQA-8"]) == 31
    verdict = data.claim("a")["verdict"]
    assert "FALSE at batch 1" in verdict and "~4 (MHA)" in verdict and "~31 (GQA-8)" in verdict


def test_what_machine_the_incident_takes():
    g, h100 = get("Llama-3.1-70B"), data.device("H100 SXM")
    resident = weight_bytes(g, BF16) + g.vocab * g.hidden * 2
    says("141.1e9 bytes of weights, input embedding included")
    assert resident == pytest.approx(141.1e9, rel=1e-3)
    read = weight_bytes(g, BF16) + kv_bytes(g, 30_000, batch=31)
    said = tick("02.9")
    assert "3.7 TB/s from 446 GB" in said
    assert round(read / 0.120 / 1e12, 1) == 3.7
    assert round((resident + kv_bytes(g, 30_000, batch=31)) / 1e9) == 446
    assert "One H100 reads 3.35 TB/s by its data sheet, and holds 80 GB" in said
    assert (h100["bandwidth_GBps"], h100["capacity_GB"]) == (3_350, 80)
    assert "Eight of them read 26.8 TB/s, so on those the bytes account for 17 of the 120 ms" in said
    assert round(1e3 * read / (8 * 3_350e9)) == 17


def test_tensor_parallelism():
    says("two a layer, 160 a step for 80 layers")
    says("16 kB per sequence for a hidden size of 8,192")
    assert round(get("Llama-3.1-70B").hidden * 2 / 1e3) == 16
    assert data.measurement("tp-allreduces")["data"][0]["per_layer"] * get("Llama-3.1-70B").layers == 160
    rows = {row["gpus"]: row for row in data.measurement("gptfast-tp")["data"] if row["model"] == "Llama-2-7B"}
    says("goes from 104.9 to 328.4 tokens/s on 8 GPUs, 3.1 times, and each GPU reads 704 GB/s where one alone reads")
    says("alone reads 1,397")
    assert [rows[1]["tok_s"], round(rows[8]["tok_s"], 1), round(rows[8]["tok_s"] / 104.9, 1)] == [104.9, 328.4, 3.1]
    assert [round(rows[8]["GBps"]), round(rows[1]["GBps"])] == [704, 1_397]


def test_the_incident_at_its_own_size(reference):
    says("the largest Llama whose 16-bit weights fit beside the caches of 8 sessions of 32k tokens")
    says('(at `budget = "quick"`, with 7 GB, of 4 sessions of 30k)')
    full, quick = own_size.fitting(79e9, "full"), own_size.fitting(79e9, "quick")
    assert (full.batch, full.contexts[-1], quick.batch, quick.contexts[-1]) == (8, 32_768, 4, 30_000)
    says("by the data sheets alone, with 1.7 µs assumed for a launch and 8 sessions")
    says("Llama-3.1-8B goes from 5.3 ms at 1,000 tokens to 14.4 ms at 30,000 on an H100, × 2.7")
    says("Llama-3.2-1B from 8.8 to 32.6 ms on a T4, × 3.7")
    for name, gpu, expected in (("Llama-3.1-8B", "H100 SXM", [5.3, 14.4]), ("Llama-3.2-1B", "T4", [8.8, 32.6])):
        g, rate = get(name), 1e9 * data.device(gpu)["bandwidth_GBps"]
        launches = (10 * g.layers + 3) * 1.7e-6  # kernels counted in docs/gpu-kernels.md
        step = weight_bytes(g, BF16), kv_bytes(g, 1)
        ms = [1e3 * reference["tpot_seconds"](*step, n, 8, rate, launches) for n in own_size.REPORTED]
        assert [round(x, 1) for x in ms] == expected
        assert round(ms[1] / ms[0], 1) == (2.7 if gpu == "H100 SXM" else 3.7)
    assert TEXT.index("**Exercise 02.9**") < TEXT.index("The incident at its own size")


def test_the_opening_plot_has_its_recording():
    series = recordings.load("amd-epyc-2-threads").find("decode-batch-4")
    assert series.title.startswith("SmolLM2-135M") and series.conditions["batch"] == 4
    says("four chats side by side with a small model, recorded on two CPU cores")
