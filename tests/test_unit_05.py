"""Every number in the prose of unit 05, recomputed; and the reference answers under load and in a decoder."""

import re

import pytest
import torch

from helpers import data
from helpers.caches import BlockPool, FullCache, PagedCache
from helpers.exercises import block_trial
from helpers.models.counts import kv_bytes
from helpers.models.decoder import Decoder
from helpers.models.geometry import get
from helpers.serving import traces
from tests.misconceptions.harness import ROOT, load

SOURCE = ROOT / "solutions" / "05-prefix-caching" / "05-prefix-caching.py"
TEXT = re.sub(r"\s+", " ", re.sub(r"^# ?", "", SOURCE.read_text(encoding="utf-8"), flags=re.MULTILINE))
SMALL = get("SmolLM2-135M").replace(
    name="small", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=200
)


def says(text):
    assert text in TEXT, f"unit 05 no longer says {text!r}; correct the prose or this test"


@pytest.fixture(scope="module")
def reference():
    """The names that the setup cells and the reference answers define."""
    unit, space = load(SOURCE), {"__name__": "__main__"}
    for cell in unit.cells:
        if cell.setup or cell.answer:
            exec(compile(cell.source, "<unit 05>", "exec"), space)
    return space


def test_the_learners_manager_survives_ten_thousand_operations(reference):
    assert block_trial.convict(lambda: reference["YourBlocks"](7, 2), trials=100, steps=100) == 10_000
    says("the last three each ran through 1,800 random operations")
    assert block_trial.convict(lambda: reference["YourBlocks"](7, 2)) == 1_800


def test_hits_of_the_predict_exercise(reference):
    """Each of the six prompts through the learner's own manager."""
    system, question, answer = list(range(40)), list(range(100, 130)), list(range(200, 250))
    first, found = system + question, {}

    def after(kept, prompt):
        blocks = reference["YourBlocks"](100, 16)
        session = blocks.open(kept)
        blocks.extend(session, kept)
        blocks.close(session)
        return blocks.open(prompt).hit_tokens

    whole = first + answer
    found["same system prompt, other question"] = after(whole, system + list(range(300, 325)))
    found["next turn"] = after(whole, whole + [1] * 25)
    found["64 tokens, sent twice"] = after(list(range(64)), list(range(64)))
    found["first prompt, time in front"] = after(whole, [9, 9, 9, 9, 9, *first])
    found["15 tokens, sent twice"] = after(list(range(15)), list(range(15)))
    found["next turn, prompts kept only"] = after(first, whole + [1] * 25)
    assert found == reference["hits"]


def test_a_hit_gives_the_same_logits(reference):
    decoder, blocks = Decoder(SMALL), reference["YourBlocks"](24, 4)
    pool, tokens, logits = BlockPool(SMALL, 24, 4, 64), list(range(50, 73)), []
    for expected_hit in (0, 20):
        session = blocks.open(tokens)
        assert session.hit_tokens == expected_hit
        cache, new = PagedCache(pool, [session.table], length=session.hit_tokens), tokens[session.hit_tokens :]
        pool.copy(blocks.extend(session, new))
        logits.append(decoder.prefill(torch.tensor([new]), cache))
        blocks.close(session)
    dense = decoder.prefill(torch.tensor([tokens]), FullCache(SMALL, 64))
    for got in logits:
        torch.testing.assert_close(got, dense, atol=1e-5, rtol=1e-5)


def test_the_learners_cascade_decodes_like_the_dense_cache(reference):
    decoder, prefix, dense = Decoder(SMALL), FullCache(SMALL, 19), FullCache(SMALL, 32, batch=3)
    shared, own = torch.arange(19)[None], torch.tensor([[5, 6], [7, 8], [9, 10]])
    decoder.prefill(shared, prefix)
    yours = reference["YourPrefixCache"](prefix, 32, 3)
    decoder.prefill(torch.cat((shared.expand(3, -1), own), dim=1), dense)
    decoder.prefill(own, yours)
    step = torch.tensor([1, 2, 3])
    torch.testing.assert_close(decoder.decode(step, yours), decoder.decode(step, dense), atol=1e-5, rtol=1e-5)


def test_bytes_written_into_the_text():
    says("Llama-3.1-8B, 131,072 bytes a token")
    assert kv_bytes(get("Llama-3.1-8B"), 1) == 131_072
    assert kv_bytes(get("SmolLM2-135M"), 1, dtype=torch.float32) == 46_080
    assert "token_mb = 46_080 / 1e6" in TEXT and "c * 46_080" in TEXT


def test_where_exp_overflows():
    says("exp(12) is infinite in float16, exp(89) in float32")
    for dtype, first in ((torch.float16, 12), (torch.float32, 89)):
        exps = torch.tensor([first - 1, first], dtype=dtype).exp()
        assert torch.isfinite(exps).tolist() == [True, False]


def test_prices():
    row = data.price("anthropic-2026-early")
    says("A price list of early 2026 (Sonnet 4.6)")
    says("input 3.00; input that is **written** to the cache 3.75; input that is **found** there 0.30; output 15.00")
    assert "Sonnet 4.6 in 3, 5m write 3.75, 1h write 6, hit 0.30, out 15" in row["fact"] and "early 2026" in row["date"]
    assert row["sources"][0]["status"] == "seen"
    says("1.25 and 0.1 times the input, for a cache that lasts five minutes; one that lasts an hour costs 2 times")
    assert (3.75 / 3, 0.30 / 3, 6 / 3) == (1.25, pytest.approx(0.1), 2)
    later = data.price("anthropic-2026-mid")
    says("a list of later in 2026 asks 0.025 times the input for what is found, with Fable 5.1")
    assert "Fable 5.1 10/12.50/20/0.25/50 (hit 0.025x)" in later["fact"] and later["sources"][0]["status"] == "seen"


def test_the_bill(reference):
    money, prompts = reference["money"], [10_200 + 500 * turn for turn in range(10)]
    says("Turn 1 sends 10,200 tokens, turn 2 sends 10,700")
    read = sum(prompts[:-1])
    written = prompts[0] + 9 * 500
    assert money["cached"] == pytest.approx((0.30 * read + 3.75 * written + 15 * 3_000) / 1e6)
    says("it costs 22 % more than none")
    assert round(100 * (money["cached, time in front"] / money["no caching"] - 1)) == 22
    says("Prices of early 2026: caching pays from the second turn")
    assert 3.75 * 10_200 > 3 * 10_200 and 3.75 * 10_700 + 0.30 * 10_200 < 3 * (10_200 + 10_700)
    for name, write in (("reuses, write at 1.25", 1.25), ("reuses, write at 2", 2.0)):
        n = money[name]
        assert write + 0.1 * n < 1 + n and write + 0.1 * (n - 1) >= n
    book = data.measurement("anthropic-cache-latency")["data"][0]
    says("−90 % cost for a chat with a book of 100,000 tokens (as quoted by readers)")
    assert book["cost"] == -90 and "100k" in book["case"]


def test_published_cascade(reference):
    row = data.measurement("flashinfer-cascade")
    says(
        "the attention operation (H100, P = 32,768, u ≤ 256, B ≥ 128): up to 31 times faster than vLLM 0.2.6, and up "
        "to 26 times faster than its own kernel without cascade"
    )
    point = row["data"][0]
    assert (point["speedup_vs_vllm026"], point["speedup_vs_flashinfer_no_cascade"], point["prefix"]) == (31, 26, 32_768)
    bound = reference["times_fewer"]["P 32,768, u 256, B 128"]
    says("64.5 times. Two fifths of it arrive")
    assert bound == 64.5 and round(26 / bound, 1) == 0.4


def test_issue_595_from_two_points():
    told = " ".join(data.claim("d")["arithmetic"])
    assert "one KV head per GPU, P=4000, B=8: cascade 26 us vs 19 us" in told and "flashinfer#595" in told
    megabytes = [8 * 4_000 * heads * 2 * 128 * 2 / 1e6 for heads in (1, 8)]
    slope = (55 - 19) / (megabytes[1] - megabytes[0])
    says("a floor of 14 µs, and 3.2 TB/s above it")
    assert round(19 - slope * megabytes[0]) == 14 and round(1 / slope, 1) == 3.2
    says("an H100's data sheet says 3.35")
    assert data.device("H100 SXM")["bandwidth_GBps"] == 3_350
    says("(44397, open when read) found plain faster at a prefix of 512 for *every* batch")
    assert "#44397: at prefix 512 flash wins at every batch" in told
    assert "does not reduce the time of generating new tokens" in data.claim("d")["evidence"]


def test_compaction_published_and_replayed():
    row = data.measurement("compaction-breaks-cache")
    says("An SGLang discussion (46590) reports an agent whose compaction requests of about 80,000 tokens")
    says("found 10.1 % and stalled for over 200 s")
    says("token-identical to normal turns they found 99.6 %")
    assert (row["data"][0]["hit_rate_before"], row["data"][0]["hit_rate_after"]) == (10.1, 99.6)
    assert "80k" in row["conditions"] and "46590" in row["sources"][0]["source"]
    rates = []
    for same in (False, True):
        requests = traces.generate(60, seed=1, compact_at=6_000, same_prefix=same)
        found = traces.hit_tokens(traces.hashed(requests, 16), 16)
        pairs = [(hit, len(r.prompt)) for hit, r in zip(found, requests, strict=True) if r.kind == "compaction"]
        rates.append(sum(hit for hit, _ in pairs) / sum(n for _, n in pairs))
    assert rates[0] < 0.1 and rates[1] > 0.98


def test_the_generated_day():
    day = traces.generate(60, seed=1)
    says("60 chat sessions of four agents")
    assert len({r.session for r in day}) == 60
    named = traces.hashed(day, 16)
    assert traces.hit_rate(named, 16) > traces.hit_rate(traces.hashed(day, 16, answers=False), 16) > 0.5
    assert traces.hit_rate(traces.hashed(traces.generate(60, seed=1, timestamp=True), 16), 16) == 0
    coarser = [[traces.hit_rate(traces.hashed(day, b), b, n // b) for b in (16, 256, 1_024)] for n in (4_096, 32_768)]
    assert all(row == sorted(row, reverse=True) for row in coarser)  # "larger blocks cost"
    small, large = (traces.hit_rate(named, 16, tokens // 16) for tokens in (4_096, 131_072))
    assert small < large / 3


def test_answers_that_were_not_inserted(reference):
    says("100 of 150 tokens were found where 150 were expected (pull request 16521)")
    for kept, expected in ((100, 100), (150, 150)):
        blocks = reference["YourBlocks"](400, 1)
        session = blocks.open(range(100))
        blocks.extend(session, range(kept))
        blocks.close(session)
        assert blocks.open(range(160)).hit_tokens == expected


def test_learner_meets_the_first_blank_early():
    unit = load(SOURCE)
    first = next(i for i, cell in enumerate(unit.cells) if cell.answer)
    assert first <= 3
    assert sorted(len(cell.source.splitlines()) for cell in unit.cells)[len(unit.cells) // 2] <= 12
