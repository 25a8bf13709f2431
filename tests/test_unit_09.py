"""Every number in the prose of unit 09, recomputed; and the reference answers in the real decoding loop."""

import pytest
import torch

from helpers import data
from helpers.caches import FullCache
from helpers.models.counts import decode_flops, kv_bytes, weight_bytes
from helpers.models.decoder import Decoder
from helpers.models.generate import greedy
from helpers.models.geometry import Geometry, get
from helpers.serving import speculation
from tests.misconceptions.harness import ROOT, load
from tests.prose import Prose

SOURCE = ROOT / "solutions" / "09-speculative-decoding" / "09-speculative-decoding.py"
PROSE = Prose(SOURCE)
says = PROSE.says
SMALL = Geometry("small", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=30)


@pytest.fixture(scope="module")
def reference():
    return PROSE.reference()


def test_the_learners_functions_are_the_engines(reference):
    """On texts of four letters, where everything repeats."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(300):
        history = torch.randint(4, (int(torch.randint(1, 30, (), generator=generator)),), generator=generator).tolist()
        assert reference["draft"](history, 4) == speculation.prompt_lookup(history, 4)
        drafted, best = torch.randint(3, (2, 5), generator=generator).tolist()
        assert reference["accept"](drafted[:4], best) == speculation.accept_greedy(drafted[:4], best)
        p, q = torch.rand(2, 5, generator=generator, dtype=torch.float64).softmax(dim=-1)
        kept, other = reference["rule"](2, p.tolist(), q.tolist())
        right, rest = speculation.rejection_rule(2, p, q)
        assert kept == pytest.approx(right) and other == pytest.approx(rest.tolist())


def test_the_loop_of_the_notebook_decodes_like_greedy(reference):
    """The cell of `speculate`, on a small model: the tokens of plain decoding, in fewer steps."""
    [cell] = [cell for cell in load(SOURCE).cells if "def speculate(" in cell.source]
    model, prompt = Decoder(SMALL, dtype=torch.float64, backend="reference"), [1, 2, 3, 1, 2, 3, 1, 2]

    def make(geometry, capacity, device):
        return FullCache(geometry, capacity, dtype=torch.float64, device=device, backend="reference")

    space = {**reference, "model": model, "g": SMALL, "spot": torch.device("cpu"), "FullCache": make}
    exec(compile(cell.source, "<unit 09>", "exec"), space)
    answer, steps = space["speculate"](prompt, 40, 4)
    assert answer == greedy(model, make(SMALL, 60, "cpu"), torch.tensor(prompt), 40) and steps < 40


def test_tokens_a_step(reference):
    for (alpha, k), tokens in zip(
        [(0.8, 4), (0.3, 4), (0.8, 16), (1.0, 4)], reference["tokens_a_step"].values(), strict=True
    ):
        assert tokens == pytest.approx(speculation.tokens_per_step(alpha, k))
    says("the twelve guesses from 4 to 16 bring 1.5 tokens together")
    more = reference["tokens_a_step"]["α 0.8, 16 guesses"] - reference["tokens_a_step"]["α 0.8, 4 guesses"]
    assert round(more, 1) == 1.5


def test_free_tokens_are_where_both_times_are_equal(reference):
    says("| a laptop, float32 | 60 GB/s | 360 GFLOP/s |")
    says("| H100, bfloat16 (data sheet) | 3,350 GB/s | 989.5 TFLOP/s |")
    sheet = data.device("H100 SXM")
    assert (sheet["bandwidth_GBps"], sheet["dense_bf16_TFLOPs"]) == (3_350, 989.5)
    weights = 7e9
    for (read, rate, width, sessions), n in zip(
        [(60e9, 360e9, 4, 1), (60e9, 360e9, 0.5, 1), (60e9, 360e9, 4, 4), (3_350e9, 989.5e12, 2, 1)],
        reference["free_tokens"].values(),
        strict=True,
    ):
        assert 2 * weights * n * sessions / rate == pytest.approx(weights * width / read)


def test_break_even(reference):
    for (k, cost), alpha in zip([(1, 1.25), (2, 1.75), (4, 5)], reference["breaks_even"].values(), strict=True):
        assert speculation.tokens_per_step(alpha, k) == pytest.approx(cost)


def test_the_worked_examples(reference):
    says("history 7 1 2 3 9 8 1 2 3, k 2: the last three tokens, 1 2 3, occurred before; 9 8 followed them")
    says("history 5 2 6 4 2, k 2: no three and no two of the end occurred before, but 2 did; 6 4 followed it")
    assert reference["draft"]([7, 1, 2, 3, 9, 8, 1, 2, 3], 2) == [9, 8]
    assert reference["draft"]([5, 2, 6, 4, 2], 2) == [6, 4]
    says("drafted 4 5 6, best 4 9 6 2 → [4, 9]")
    assert reference["accept"]([4, 5, 6], [4, 9, 6, 2]) == [4, 9]
    says("lengths 10 and 7, drafted [4, 5] and [], best [4, 9, 1] and [3, 8, 8] → [12, 8]")
    assert reference["keep"]([10, 7], [[4, 5], []], [[4, 9, 1], [3, 8, 8]]) == [12, 8]
    says("one of the other two is drawn, with probabilities 5/7 and 2/7")
    kept, other = reference["rule"](1, [0.5, 0.3, 0.2], [0, 1, 0])
    assert kept == 0.3 and other == pytest.approx([5 / 7, 0, 2 / 7])
    says("the second comes out in 0.3 of the cases, the first in 0.7 · 5/7 = 0.5")
    assert 0.7 * 5 / 7 == pytest.approx(0.5)


def test_published_losses_and_gains():
    [lost] = data.measurement("vllm-8439-ngram")["data"]
    says("one request, an answer of about 1,000 tokens, Qwen2-7B, 5 guesses a step")
    assert lost["ngram_tok_s"] < lost["plain_tok_s"]
    assert lost["plain_tokens"] / lost["plain_s"] == pytest.approx(lost["plain_tok_s"], rel=1e-3)
    assert lost["ngram_tokens"] / lost["ngram_s"] == pytest.approx(lost["ngram_tok_s"], rel=1e-3)
    rows = {row["batch"]: row for row in data.measurement("trtllm-ngram-batch")["data"]}
    says("from batch 33 on its automatic mode does not guess at all, and already from batch 5 on it guesses 3 tokens")
    assert rows[33]["drafted"] == 0 and (rows[4]["drafted"], rows[32]["drafted"]) == (5, 3)
    gains = [rows[batch]["speedup_percent"] for batch in (1, 4, 32)]
    assert gains == sorted(gains, reverse=True)
    says("The same page counts 1.66 tokens a step in such turns, with the 5 guesses of batch 1.")
    assert (rows[1]["tokens_per_step"], rows[1]["drafted"]) == (1.66, 5)
    assert 100 * (rows[1]["tokens_per_step"] - 1) < gains[0]


def test_what_an_engine_calls_acceptance_rate():
    [log] = data.measurement("vllm-19254-acceptance")["data"]
    says("*acceptance rate 38.8 %, mean acceptance length 2.16*, and for the three places 0.543, 0.357, 0.264")
    assert (log["rate"], log["mean_length"], log["per_position"]) == (0.388, 2.16, [0.543, 0.357, 0.264])
    says("(Qwen3-32B, 3 guesses, 129 steps)")
    assert log["drafted"] == 3 * 129
    says("1 + 3 · 0.388 = 2.16")
    assert round(1 + 3 * log["rate"], 2) == log["mean_length"] == round(1 + sum(log["per_position"]), 2)
    says("Even then the formula stays below the count: a guess behind one that held is better than the first")
    first, *_ = places = log["per_position"]
    assert speculation.tokens_per_step(first, 3) < log["mean_length"]
    assert all(later / earlier > first for earlier, later in zip(places, places[1:], strict=False))


def test_the_draft_model_by_bytes():
    [row] = data.measurement("gptfast-spec")["data"]
    says("25.25 tokens/s without, 48.4 with")
    assert (row["baseline_tok_s"], row["tok_s"]) == (25.25, 48.4)
    says('label="gpt-fast, 1.92"')
    target = row["tok_s"] / row["baseline_tok_s"]
    assert round(target, 2) == 1.92
    share = weight_bytes(get("Llama-2-7b-hf")) / weight_bytes(get("Llama-2-70b-hf"))

    def gain(alpha, k):
        return speculation.tokens_per_step(alpha, k) / (1 + k * share)

    says("between α = 0.6 and α = 0.7 with the best number of guesses")
    best = [max(gain(alpha, k) for k in range(1, 9)) for alpha in (0.6, 0.7)]
    assert best[0] < target < best[1]
    says("all curves but the highest fall on the right")
    assert all(gain(alpha, 8) < max(gain(alpha, k) for k in range(1, 8)) for alpha in (0.5, 0.6, 0.7, 0.8))


def test_a_long_history_gives_room_back():
    """Five tokens of 64 sessions on the H100 of 09.2, by Llama-3.1-8B: arithmetic, and behind long histories bytes."""
    says("so where caches are most of a step's bytes, reading sets the pace again even in a large batch")
    sheet, llama, sessions = data.device("H100 SXM"), get("Llama-3.1-8B"), 64
    arithmetic, longer = [], []
    for context in (100, 4_000):
        arithmetic.append(5 * decode_flops(llama, context, sessions) / sheet["dense_bf16_TFLOPs"] / 1e12)
        read = weight_bytes(llama) + sessions * kv_bytes(llama, context)
        longer.append(arithmetic[-1] > read / sheet["bandwidth_GBps"] / 1e9)
    assert longer == [True, False]
    says("batches of 32 to 256 and moderate to long histories on 8 A100, Llama-3.1-8B up to 1.84 times as fast")
    assert data.measurement("magicdec")["data"][1] == {"model": "Llama-3.1-8B", "speedup_up_to": 1.84}
