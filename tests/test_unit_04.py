"""Every number in the prose of unit 04, recomputed from tensors, the recording and published figures."""

import re

import pytest
import torch

from helpers import data
from helpers.caches import AttentionProbe, FullCache, SinkCache
from helpers.exercises.u04 import check_times_faster
from helpers.models import pretrained, text
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.decoder import Decoder
from helpers.models.geometry import get
from helpers.quality import sink_curve
from helpers.quality.perplexity import losses
from tests.misconceptions.harness import ROOT
from tests.prose import Prose

SOURCE = ROOT / "solutions" / "04-streaming-llm" / "04-streaming-llm.py"
PROSE = Prose(SOURCE)
TEXT, says = PROSE.text, PROSE.says
BF16 = torch.bfloat16
TWO = ("Llama-2-7b-hf", "Llama-3.1-8B")


@pytest.fixture(scope="module")
def reference():
    return PROSE.reference()


@pytest.fixture(scope="module")
def at():
    """The recorded points by (sinks, window)."""
    return {(p.sinks, p.window): p for p in sink_curve.recorded()[0]}


def test_tables_of_models():
    for name in TWO:
        g = get(name)
        says(f"| {name} | {g.layers} | {g.kv_heads} | {g.head_dim} | {weight_bytes(g, BF16) / 1e9:.2f} GB |")
    for name in ("gpt-oss-20b", "Gemma-3-4b-it"):
        g = get(name)
        window = f"{g.sliding_window:,}"
        says(f"| {name} | {g.layers} | {g.sliding_layers} | {window} | {g.kv_heads} | {g.head_dim} |")
    says("the full cache of the two models holds 17.18 and 4.29 GB")
    assert [round(kv_bytes(get(name), 32_768) / 1e9, 2) for name in TWO] == [17.18, 4.29]


def test_sixteen_times_smaller_and_a_quarter_faster(reference):
    told = check_times_faster(reference["times_faster"])
    assert "16 times smaller, and the newer model gains 26 %" in told and round(32_768 / 2_052) == 16
    PROSE.hides("2.1", "2.13", "1.26")
    assert "2.1x" in str(data.claim("e")) and "1.26x" in str(data.claim("e"))
    for name, factor in zip(TWO, (2.1, 1.26), strict=True):
        weights, full, capped = weight_bytes(get(name), BF16), kv_bytes(get(name), 32_768), kv_bytes(get(name), 2_052)
        assert (weights + full) / (weights + capped) == pytest.approx(factor, rel=0.015)
        assert reference["times_faster"][name] == pytest.approx((weights + full) / (weights + capped), rel=2e-3)
    says("With 8 sessions in a batch, which share the weights and not the caches, the same cap gives Llama-3.1-8B 2.9")
    assert round((weights + 8 * full) / (weights + 8 * capped), 1) == 2.9
    assert get("Llama-2-7b-hf").max_positions == 4_096


def test_layers_that_still_grow(reference):
    for name in ("gpt-oss-20b", "Gemma-3-4b-it"):
        assert get(name).layers - get(name).sliding_layers == reference["still_growing"][f"{name}, layers"]
    assert "learned logits (no KV rows)" in str(data.claim("e"))


def test_ring_of_the_text(reference):
    row_of, kept, places = (reference[name] for name in ("row_of", "kept", "places"))
    for newest, cells in (
        (4, "token 0 | 1 | 2 | 3 | 4 |"),
        (5, "token 0 | 1 | **5** | 3 | 4 |"),
        (6, "token 0 | 1 | 5 | **6** | 4 |"),
    ):
        says(f"| {newest} | {cells}")
        in_row = {row_of(token, 2, 3): token for token in range(newest + 1)}
        assert [in_row[row] for row in range(5)] == [int(n) for n in re.findall(r"\d+", cells)]
    says("after token 6 the five tokens 0, 1, 4, 5, 6 stand at the places 0, 1, 2, 3, 4")
    assert kept(6, 2, 3) == [0, 1, 4, 5, 6] and places(7, 2, 3) == [0, 1, 3, 4, 2]


def test_the_learners_class_is_the_engine(reference):
    """The reference answers run in a decoder and give what SinkCache gives, prompt and all."""
    tiny = get("SmolLM2-135M").replace(name="tiny", layers=2, hidden=48, head_dim=16, intermediate=64, vocab=97)
    decoder = Decoder(tiny)
    tokens = torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(0))
    yours = reference["StreamingCache"](tiny, 40, sinks=4, window=9, batch=2)
    for i in range(40):
        logits = decoder.decode(tokens[:, i], yours)
    torch.testing.assert_close(logits, decoder.prefill(tokens, SinkCache(tiny, 40, 4, 9, batch=2)), rtol=0, atol=1e-4)


def test_perplexities_of_the_text(at):
    says("In the recording, at a window of 256, perplexity goes from 10.4 to 23.3")
    says("and one single token brings it back to 13.0.")
    found = [at[key].perplexity for key in ((0, None), (0, 256), (1, 256))]
    assert [round(value, 1) for value in found] == [10.4, 23.3, 13.0]
    says("In this model more than one adds next to nothing")
    assert all(abs(at[s, w].loss - at[1, w].loss) < 0.01 for s in (2, 4, 8) for w in (128, 256, 512, 1_024))
    says("What remains above the full cache shrinks as the window grows")
    left = [at[4, w].above_dense for w in sorted(w for s, w in at if s == 4)]
    assert left == sorted(left, reverse=True)


def test_windows_that_the_recording_allows(reference, at):
    curve = sink_curve.by_window(at.values(), 4)
    dense = at[0, None].perplexity
    windows = [reference["smallest_safe_window"](curve, dense, allowed) for allowed in (0.05, 0.10, 0.25)]
    assert windows == [1_536, 512, 256], "the three budgets of the notebook no longer have three different answers"


@pytest.mark.parametrize("word", ["", " banana"])
def test_attention_rests_on_whatever_stands_first(word):
    says("In these 18 layers more than a third of all attention rests on whatever stands first")
    decoder, tokenizer = pretrained.load()
    tokens = torch.cat((torch.tensor(tokenizer.encode(word).ids, dtype=torch.long), text.tokens(400, tokenizer)))
    probe = AttentionProbe(decoder.geometry, 400, first=2)
    decoder.prefill(tokens[None, :300], probe)
    probe.reset()
    decoder.prefill(tokens[None, 300:400], probe)
    first, second = probe.share[12:].mean((0, 1))
    assert first > 1 / 3 and second < 0.01 and len(probe.share[12:]) == 18
    says("the output of nearly every head changes")
    assert (probe.share[12:, :, 0] > 0.1).double().mean() > 0.9
    says("an even share would be 0.3 %")
    assert round(100 * sum(1 / (query + 1) for query in range(256, 512)) / 256, 1) == 0.3


def test_only_a_window_computed_anew_has_a_new_sink():
    says("Only a window that is *computed anew* at every token makes itself a new sink")
    decoder, tokenizer = pretrained.load()
    tokens, window, step = text.tokens(385, tokenizer), 64, 32
    kept = losses(decoder, SinkCache(decoder.geometry, 385, 0, window), tokens)[256:]
    anew = []
    for start in range(256, 384, step):  # each token sees a window, or up to 31 tokens more
        piece = tokens[start + 1 - window : start + 1 + step]
        anew.append(losses(decoder, FullCache(decoder.geometry, len(piece)), piece)[-step:])
    gap = kept - torch.cat(anew)
    assert gap.mean() > 5 * gap.std() / len(gap) ** 0.5


def test_published_figures():
    says("*StreamingLLM makes decoding 22.2 times faster.*")
    assert data.measurement("streamingllm-speed")["data"] == [{"up_to": 22.2}]
    says("Up to that, say its authors (README of mit-han-lab/streaming-llm)")
    assert "re-computation" in data.measurement("streamingllm-speed")["conditions"]
    quoted = data.measurement("streamingllm-sinks")
    says("Llama-2-7B, a cache of 4,096 rows, 400,000 tokens")
    assert quoted["conditions"] == "Llama-2-7B, cache 4096, 400K tokens"
    assert [row["sinks"] for row in quoted["data"]] == [0, 1, 2, 4, 8]
    says("as quoted by readers of the paper")
    assert quoted["sources"][0]["status"] == "seen-secondary"
    says("without a sink the model fails, and the first sink mends most. In Llama-2-7B four are better than one")
    none, one, _, four, _ = (row["ppl"] for row in quoted["data"])
    assert four < one < none / 100
    assert data.measurement("streamingllm-faq")["data"][0]["answer"] == "No"
    says("It is not a longer context.")


def test_the_opening_does_not_answer_its_question():
    opening = TEXT[: TEXT.index("## Predict")]
    assert "first" not in opening.replace("StreamingLLM: a session without end", "")
    published = data.measurement("streamingllm-sinks")["data"]
    assert (published[0]["sinks"], published[3]["sinks"]) == (0, 4)


def test_reach_of_stacked_windows():
    g, reach = get("SmolLM2-135M"), data.measurement("window-reach")["data"][0]
    says(f"here {g.layers} × 256 = {g.layers * 256:,} tokens, and the fact lay some 420 back")
    assert 600 - int(0.3 * 600) == 420
    says("where 100 layers with a window of 1,000 words should see 100,000, models make use of about 1,500")
    assert reach["in_practice_words"] == 1_500 and reach["example"] == "100 layers, window 1,000"


def test_what_others_say_of_capped_caches():
    reuse = data.measurement("window-prefix-reuse")
    says('logs "forcing full prompt re-processing due to lack of cache data" (ggml-org/llama.cpp#14157)')
    assert reuse["data"][0]["log"].startswith("forcing full prompt re-processing due to lack of cache data")
    says("since May 2026 the option is marked as deprecated and ignored there (NVIDIA/TensorRT-LLM#14275)")
    assert data.measurement("trtllm-sinks")["data"][0]["since_2026_05"].startswith("deprecated")
    says("its authors report generation 3.6 times faster at 16k tokens of input")
    snap = data.measurement("content-eviction")["data"][1]
    assert (snap["speed"], snap["prompt"]) == (3.6, 16_000)


def test_memory_does_not_grow():
    g = get("SmolLM2-135M")
    assert SinkCache(g, 32_768, 4, 256).nbytes == kv_bytes(g, 260, dtype=torch.float32) < FullCache(g, 512).nbytes
