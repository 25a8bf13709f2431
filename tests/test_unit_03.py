"""Unit 03: every number in its prose, recomputed; its exercises' reference forms against independent ones."""

import re
from pathlib import Path

import jupytext
import pytest
import torch
import torch.nn.functional as F

from helpers import data
from helpers.exercises.u03 import SIX, expanded_mla, expanded_row, repeat_kv_decode
from helpers.models.counts import kv_bytes
from helpers.models.geometry import catalogue, get

SOURCE = Path(__file__).parents[1] / "solutions" / "03-gqa-mla" / "03-gqa-mla.py"
CELLS = jupytext.read(SOURCE).cells
PROSE = re.sub(r"\s+", " ", " ".join(cell.source for cell in CELLS if cell.cell_type == "markdown"))
V3, LITE = get("DeepSeek-V3"), get("DeepSeek-V2-Lite")


def says(*phrases):
    for phrase in phrases:
        assert phrase in PROSE, f"the unit no longer says {phrase!r}"


def test_five_movements_in_order_and_an_early_first_edit():
    headings = re.findall(r"^## (.+)$", "\n".join(c.source for c in CELLS if c.cell_type == "markdown"), re.M)
    assert headings == ["The question", "Predict", "Build", "Measure", "Explain"]
    cells = [cell for cell in CELLS if cell.cell_type in ("code", "markdown")]
    assert next(i for i, cell in enumerate(cells, 1) if "answer" in cell.metadata) <= 6


@pytest.mark.parametrize("name", SIX)
def test_the_table_of_configs_is_the_catalogue(name):
    g = get(name)
    row = next(line for line in CELLS_TEXT.splitlines() if line.startswith(f"| {name} "))
    kind, layers, hidden, q_heads, kv_heads, head_dim, latent = (part.strip() for part in row.split("|")[2:-1])
    assert kind.lower() == g.attention
    assert [int(n.replace(",", "")) for n in (layers, hidden, q_heads)] == [g.layers, g.hidden, g.q_heads]
    if g.mla:
        assert latent == f"{g.mla.kv_lora_rank} + {g.mla.qk_rope_head_dim}" and not kv_heads
    else:
        assert [int(kv_heads), int(head_dim)] == [g.kv_heads, g.head_dim] and not latent


CELLS_TEXT = "\n".join(cell.source for cell in CELLS if cell.cell_type == "markdown")


def test_factors_in_the_prose():
    row = V3.mla.kv_lora_rank + V3.mla.qk_rope_head_dim
    assert row == 576 and round(100 * V3.mla.qk_rope_head_dim / V3.mla.kv_lora_rank, 1) == 12.5
    assert round(2 * 8 * 128 / row, 1) == 3.6
    assert 2 * 2.25 * 128 == row, "the paper's 'GQA with 2.25 groups'"
    assert 2 * 128 < row
    says("Against GQA-8, which is what the competition ships, it is 3.6", "2.25 groups", "12.5 % more")
    groups = {g.group_size for g in catalogue().values() if g.kv_heads == 8}
    assert {2, 5, 16} <= groups
    assert get("Qwen3-0.6B").group_size == 2 and get("Llama-3.1-405B").group_size == 16
    assert get("Llama-4-Maverick-17B-128E").group_size == 5
    says("from 2 (Qwen3-0.6B) over 5 (Maverick) to 16 (Llama-3.1-405B)")


def test_deepseek_v2_saving():
    before, after = kv_bytes(get("DeepSeek-LLM-67B"), 1), kv_bytes(get("DeepSeek-V2"), 1)
    assert before == 389_120 and after == 69_120
    assert round(100 * (1 - after / before), 1) == 82.2
    published = data.measurement("deepseek-v2-kv")["data"][0]["reduction_pct"]
    assert round(100 * (1 - after * 6 / 16 / before), 1) == published == 93.3
    assert get("DeepSeek-LLM-67B").layers == 95 and get("DeepSeek-V2").layers == 60
    says("**93.3 % smaller**", "82.2 % is what the architecture saves", "section 3.2.3")


def test_intensity_and_the_ridges():
    heads, rank, row = V3.q_heads, V3.mla.kv_lora_rank, 576
    intensity = 2 * heads * (row + rank) / (2 * row)
    assert round(intensity, 1) == 241.8
    assert round(intensity * 16 / 128, 1) == 30.2 and round(intensity * 64 / 128, 1) == 120.9
    rates = data.measurement("flashmla")["data"][0]
    assert (rates["mem_bound_GBps"], rates["compute_bound_TFLOPs"]) == (3000, 660)
    assert rates["compute_bound_TFLOPs"] / rates["mem_bound_GBps"] * 1e3 == 220 < intensity
    assert round(data.device("H200 SXM")["dense_bf16_TFLOPs"] / data.device("H200 SXM")["bandwidth_GBps"] * 1e3) == 206
    sheet = data.device("H800 SXM5")
    assert (sheet["bandwidth_GBps"], sheet["dense_bf16_TFLOPs"]) == (3350, 989)
    says("206 FLOPs", "3,000 GB/s", "660 TFLOP/s", "3,350 and 989", "220 FLOP/byte, and V3 with 242")


def test_published_figures():
    measured = data.measurement("vllm-v2lite-mla")["data"][0]
    assert measured["blocks"] * measured["block_size"] == 85_968
    padded, latent = 2 * LITE.layers * LITE.q_heads * 256 * 2, kv_bytes(LITE, 1)
    assert (padded, latent, round(padded / latent, 1)) == (442_368, 31_104, 14.2)
    assert abs(measured["kv_GiB"] * 2**30 / padded / 85_968 - 1) < 1e-3
    assert round(measured["req_s_after"] / measured["req_s_before"], 1) == 1.8
    assert 2 * LITE.layers * expanded_row(LITE.mla, LITE.q_heads) == 276_480
    says("35.42 GiB", "5,373 blocks of 16, that is 85,968 tokens", "14.2 times", "10.47 to 18.5 requests", "1.8 times")

    mlx = {row["geom"]: row["GBps"][-1] for row in data.measurement("mlx-gqa")["data"]}
    assert (mlx["32q/32kv"], mlx["64q/8kv hd64"]) == (281, 119) and round(100 * 119 / 266) == 45
    says("281 GB/s at 32k tokens", "119 GB/s, 45 % of the 266 GB/s")

    naive = {row["attn"]: (row["tok_s"], row["mem_GB"]) for row in data.measurement("rasbt-naive")["data"]}
    assert naive == {"MHA": (72, 1.54), "GQA 4 groups": (63, 0.63), "MLA latent 192": (67, 0.68)}
    assert round(1.54 / 0.63, 1) == 2.4
    says("MHA 72 tok/s with 1.54 GB", "GQA 63 tok/s with 0.63 GB", "MLA 67 tok/s with 0.68 GB", "fell 2.4 times")


def test_tensor_parallel_and_the_last_claims():
    llama = get("Llama-3.1-405B")
    per_head = kv_bytes(llama.replace(kv_heads=1), 1)
    assert per_head == kv_bytes(llama, 1) / 8 == 64_512
    assert kv_bytes(V3, 1) == 70_272 > per_head
    says("70,272 against 64,512 bytes a token")
    row, rank = 576, V3.mla.kv_lora_rank
    intensity = {heads: heads * (row + rank) / row for heads in (V3.q_heads, V3.q_heads // 8)}
    assert [round(x) for x in intensity.values()] == [242, 30]
    says("each GPU now has 16 of the heads", "30 FLOP/byte instead of 242")
    assert kv_bytes(llama, 128_000) / 2**30 == pytest.approx(61.5, abs=0.05)
    assert 16 * per_head * 128_000 / 2**30 == pytest.approx(123, abs=0.1)
    assert 2 * V3.layers * expanded_row(V3.mla, 16) / 1024 == 610
    assert 2 * V3.layers * expanded_row(V3.mla, 128) / 1024 == 4880
    says("610 kB a token", "4,880 KiB", "61.5 GiB", "123 is what 16 GPUs keep")


def test_repeat_kv_form_is_torch_grouped_attention():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, n, 16, generator=generator) for heads, n in ((8, 1), (2, 50), (2, 50)))
    expect = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)[:, :, 0]
    assert torch.allclose(repeat_kv_decode(q[:, :, 0], k, v), expect, atol=1e-6)


def test_expanded_form_is_the_decoders_layer():
    """The form that answers are held against, itself held against the layer that equals transformers'."""
    from helpers.caches import LatentCache
    from helpers.models.decoder import Decoder
    from tests.test_latent import tiny

    g = tiny()
    layer, cache = Decoder(g).blocks[0].attention, LatentCache(g, capacity=30)
    cache.fill(30)
    q_nope, q_rope = torch.randn(1, g.q_heads, 1, 16), torch.randn(1, g.q_heads, 1, 8)
    got = layer.mix(q_nope, q_rope, cache)[:, :, 0]
    rotated = cache.rotate(0, q_rope)[:, :, 0]
    expect = expanded_mla(q_nope[:, :, 0], rotated, *cache.held(0), layer.w_uk, layer.w_uv)
    assert torch.allclose(got, expect, atol=1e-5)
