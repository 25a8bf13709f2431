"""Unit 03: every number in its prose, recomputed; its exercises' reference forms against independent ones."""

from pathlib import Path

import jupytext
import pytest
import torch
import torch.nn.functional as F

from helpers import data
from helpers.exercises.u03 import SIX, expanded_mla, expanded_row, repeat_kv_decode
from helpers.models import rope
from helpers.models.counts import kv_bytes
from helpers.models.geometry import Geometry, catalogue, get
from tests.misconceptions.harness import load
from tests.prose import Prose

SOURCE = Path(__file__).parents[1] / "solutions" / "03-gqa-mla" / "03-gqa-mla.py"
CELLS = jupytext.read(SOURCE).cells
says = Prose(SOURCE).says
V3, LITE = get("DeepSeek-V3"), get("DeepSeek-V2-Lite")


def tells(exercise, *phrases):
    """What a right answer is told."""
    said = load(SOURCE).run(exercise).stdout
    for phrase in phrases:
        assert phrase in said, f"{exercise} no longer tells {phrase!r}: {said}"


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
    own = V3.q_heads * (V3.mla.qk_nope_head_dim + V3.mla.qk_rope_head_dim + V3.mla.v_head_dim)
    llama = get("Llama-2-7b-hf")
    assert round(own / row) == 71 and round(2 * llama.kv_heads * llama.head_dim / row) == 14
    tells("03.2", "71 times against the 128 of V3 itself, and 14 against a layer of Llama-2-7B")
    tells("03.2", "Against GQA-8, which is what many models ship today, it is 3.6", "2.25 groups")
    says("12.5 % more")
    ten = [get(name) for name in (*SIX, "Llama-3.1-8B", "Llama-3.1-70B", "Qwen2.5-7B", "Kimi-K2")]
    factors = [round(_own(g) / kv_bytes(g, 1), 1) for g in ten]
    says('How many of them are "8 times"?')
    assert factors.count(8.0) == 2 and min(factors) == 1 and round(max(factors)) == 71
    groups = {g.group_size for g in catalogue().values() if g.kv_heads == 8}
    assert {2, 5, 16} <= groups
    assert get("Qwen3-0.6B").group_size == 2 and get("Llama-3.1-405B").group_size == 16
    assert get("Llama-4-Maverick-17B-128E").group_size == 5
    says("from 2 (Qwen3-0.6B) over 5 (Maverick) to 16 (Llama-3.1-405B)")


def _own(g):
    """Bytes of a token if every query head kept a key and a value of its own."""
    return 2 * g.layers * (expanded_row(g.mla, g.q_heads) if g.mla else g.q_heads * 2 * g.head_dim)


def test_deepseek_v2_saving():
    before, after = kv_bytes(get("DeepSeek-LLM-67B"), 1), kv_bytes(get("DeepSeek-V2"), 1)
    assert before == 389_120 and after == 69_120
    assert round(100 * (1 - after / before), 1) == 82.2
    published = data.measurement("deepseek-v2-kv")["data"][0]["reduction_pct"]
    assert round(100 * (1 - after * 6 / 16 / before), 1) == published == 93.3
    assert get("DeepSeek-LLM-67B").layers == 95 and get("DeepSeek-V2").layers == 60
    says("**93.3 % smaller**", "section 3.2.3")
    tells("03.3", "82.2 % is what the architecture saves")


def test_repeat_kv_moves_more_than_mha():
    tells("03.5", "17: the cache is read once, the copies are written, 8, and read, 8", "moves 2.1 times the bytes")
    assert 1 + 8 + 8 == 17 and round(17 / 8, 1) == 2.1
    says("bytes *stored* fell 8 times, bytes *moved* went up")


def test_the_example_by_hand():
    """Exercise 03.6a with symbols: every latent, not only the two that are given."""
    says("W_K = \\begin{pmatrix} 1 & 0 & 2 \\\\ 0 & 1 & -1 \\end{pmatrix}", "q = \\begin{pmatrix} 3 \\\\ 1")
    says("c_1 = \\begin{pmatrix} 1 \\\\ 2 \\\\ 0", "c_2 = \\begin{pmatrix} 0 \\\\ 1 \\\\ 1")
    w_k, q, a = [[1, 0, 2], [0, 1, -1]], [3, 1], [3, 1, 5]
    for unit in ([1, 0, 0], [0, 1, 0], [0, 0, 1]):  # a linear function is known by its values on a basis
        key = [sum(w * c for w, c in zip(row, unit, strict=True)) for row in w_k]
        assert sum(x * y for x, y in zip(q, key, strict=True)) == sum(x * c for x, c in zip(a, unit, strict=True))


def test_why_prefill_expands():
    m = V3.mla
    absorbed, expanded = m.kv_lora_rank + m.qk_rope_head_dim + m.kv_lora_rank, expanded_row(m, 1)
    says("512 + 64 multiplications for the score and 512 for the value", "it costs 128 + 64 and 128: 3.4 times fewer")
    assert (absorbed, expanded, round(absorbed / expanded, 1)) == (1_088, 320, 3.4)
    forms = data.measurement("vllm-mla-two-forms")["data"][0]
    says(f'the "{forms["prefill"]}" and the "{forms["decode"]}" approach')


def test_rotation_keeps_a_key_from_being_absorbed():
    """q · (R_t W c) asks for another vector at every position t."""
    generator = torch.Generator().manual_seed(0)
    q, w = (torch.randn(shape, generator=generator) for shape in ((8,), (8, 16)))
    cos, sin = rope.tables(2, 8, 10_000.0, "cpu")
    absorbed = [rope.rotate(w.T, cos[t : t + 1], -sin[t : t + 1]) for t in (0, 1)]
    assert not torch.allclose(absorbed[0] @ q, absorbed[1] @ q, atol=1e-3)


def test_intensity_and_the_ridges():
    heads, rank, row = V3.q_heads, V3.mla.kv_lora_rank, 576
    intensity = 2 * heads * (row + rank) / (2 * row)
    assert round(intensity, 1) == 241.8
    tells("03.8", "V3 242 FLOP/byte", "it would be 30")
    assert round(intensity * 16 / 128) == 30
    rates = data.measurement("flashmla")["data"][0]
    assert (rates["mem_bound_GBps"], rates["compute_bound_TFLOPs"]) == (3000, 660)
    ridge = rates["compute_bound_TFLOPs"] / rates["mem_bound_GBps"] * 1e3
    assert ridge == 220 and round(intensity / ridge, 1) == 1.1
    says("That ridge lies at 220 FLOP/byte, with V3 close by")
    h200, h100 = data.device("H200 SXM"), data.device("H100 SXM")
    sheets = [round(d["dense_bf16_TFLOPs"] / d["bandwidth_GBps"] * 1e3) for d in (h200, h100)]
    assert sheets == [206, 295] and sheets[0] < intensity < sheets[1]
    says("an H200's ridge lies at 206 and an H100's at 295. On which side of each is your V3?", "206 bfloat16 FLOPs")
    sheet = data.device("H800 SXM5")
    assert (sheet["bandwidth_GBps"], sheet["dense_bf16_TFLOPs"]) == (3350, 989)
    says("3,000 GB/s", "660 TFLOP/s", "3,350 and 989")
    assert data.measurement("trtllm-mla-fp8")["data"][0]["arithmetic"] == "fp8"
    says("as TensorRT-LLM's does")


def test_published_figures():
    measured = data.measurement("vllm-v2lite-mla")["data"][0]
    assert measured["blocks"] * measured["block_size"] == 85_968
    padded, latent = 2 * LITE.layers * LITE.q_heads * 256 * 2, kv_bytes(LITE, 1)
    assert (padded, latent, round(padded / latent, 1)) == (442_368, 31_104, 14.2)
    assert abs(measured["kv_GiB"] * 2**30 / padded / 85_968 - 1) < 1e-3
    assert round(measured["req_s_after"] / measured["req_s_before"], 1) == 1.8
    assert 2 * LITE.layers * expanded_row(LITE.mla, LITE.q_heads) == 276_480
    says("35.42 GiB", "in float16 (2 bytes)", "from 10.47 to 18.5 requests a second, 1.8 times")
    tells("03.9", "5,373 blocks of 16, that is 85,968", "14.2 times")
    assert "float16" in data.measurement("vllm-v2lite-mla")["conditions"]
    tokens = measured["prompts"] * (measured["input_len"] + measured["output_len"])
    says("200 requests of 1,000 + 100 tokens are 220,000 tokens in all, 2.6 times what the padded pool held")
    assert tokens == 220_000 and round(tokens / 85_968, 1) == 2.6

    mlx = {row["geom"]: row["GBps"][-1] for row in data.measurement("mlx-gqa")["data"]}
    assert (mlx["32q/32kv"], mlx["64q/8kv hd64"]) == (281, 119) and round(100 * 119 / 266) == 45
    says("281 GB/s at 32k tokens", "119 GB/s, 45 % of the 266 GB/s")
    says("at 0.42 of the pace: 3.4 times less time and not 8")
    assert round(119 / 281, 2) == 0.42 and round(8 * 119 / 281, 1) == 3.4

    naive = {row["attn"]: (row["tok_s"], row["mem_GB"]) for row in data.measurement("rasbt-naive")["data"]}
    assert naive == {"MHA": (72, 1.54), "GQA 4 groups": (63, 0.63), "MLA latent 192": (67, 0.68)}
    says("MHA 72 tok/s with a peak of 1.54 GiB", "63 tok/s with 0.63", "MLA 67 tok/s with 0.68")
    gpt = Geometry(
        "rasbt", layers=12, hidden=768, q_heads=24, kv_heads=24, head_dim=32, intermediate=3_072, vocab=50_257
    )
    caches = [kv_bytes(gpt.replace(kv_heads=heads), 32_768) / 2**30 for heads in (24, 4)]
    says("are 1.13 GiB and 0.19 GiB with MHA and GQA: 6 times fewer bytes, and decoding got *slower*")
    assert f"{caches[0]:.3f}, {caches[1]:.3f}" == "1.125, 0.188" and caches[0] / caches[1] == 6


def test_tensor_parallel_and_the_last_claims():
    llama = get("Llama-3.1-405B")
    per_head = kv_bytes(llama.replace(kv_heads=1), 1)
    assert per_head == kv_bytes(llama, 1) / 8 == 64_512
    assert kv_bytes(V3, 1) == 70_272 > per_head
    tells("03.10", "70,272 against 64,512 bytes a token")
    row, rank = 576, V3.mla.kv_lora_rank
    intensity = {heads: heads * (row + rank) / row for heads in (V3.q_heads, V3.q_heads // 8)}
    assert [round(x) for x in intensity.values()] == [242, 30]
    tells("03.10", "each GPU has 16 of the heads", "30 FLOP/byte, limited by memory")
    room = data.measurement("vllm-dp-attention")["data"][0]
    says("got 7.7 times the room for its cache that way")
    assert round(room["dp8"] / room["tp8"], 1) == 7.7
    says("each GPU keeps every eighth token of every session")
    assert data.measurement("sglang-dcp")["data"][0]["rank_of_position"] == "p mod c"
    assert kv_bytes(llama, 128_000) / 2**30 == pytest.approx(61.5, abs=0.05)
    assert 16 * per_head * 128_000 / 2**30 == pytest.approx(123, abs=0.1)
    assert 2 * V3.layers * expanded_row(V3.mla, 16) / 1024 == 610
    assert 2 * V3.layers * expanded_row(V3.mla, 128) / 1024 == 4880
    says("610 kB a token", "4,880 KiB", "61.5 GiB at 128,000 tokens", "123 is what 16 GPUs keep")


def test_quality():
    rows = data.measurement("deepseek-v2-quality")
    scores = {row["attn"]: row["MMLU"] for row in rows["data"] if "attn" in row}
    assert scores == {"MHA": 45.2, "GQA, 8 KV heads": 41.2, "MQA": 37.9}
    says("45.2 (MHA), 41.2 (GQA with 8 KV heads) and 37.9 (MQA) on MMLU", "with 14 % and 4 % of its cached elements")
    shares = [row["MLA_elements"] / row["MHA_elements"] for row in rows["data"] if "moe" in row]
    assert [round(100 * share) for share in shares] == [14, 4]


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
