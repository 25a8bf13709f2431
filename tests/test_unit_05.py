"""Every number in the prose of unit 05, recomputed; and the reference answers under load and in a decoder."""

import pytest
import torch

from helpers import data
from helpers.caches import BlockPool, FullCache, PagedCache
from helpers.exercises import block_trial
from helpers.models.counts import kv_bytes
from helpers.models.decoder import Decoder
from helpers.models.geometry import get
from helpers.models.pretrained import load as load_model
from helpers.serving import traces
from tests.misconceptions.harness import ROOT
from tests.prose import Prose

SOURCE = ROOT / "solutions" / "05-prefix-caching" / "05-prefix-caching.py"
PROSE = Prose(SOURCE)
TEXT, says = PROSE.text, PROSE.says
SMALL = get("SmolLM2-135M").replace(
    name="small", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=200
)


@pytest.fixture(scope="module")
def reference():
    return PROSE.reference()


def test_the_learners_manager_survives_ten_thousand_operations(reference):
    assert block_trial.convict(lambda: reference["YourBlocks"](7, 2), trials=100, steps=100) == 10_000
    says("The checks of the last three each ran 1,800 random operations")
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
    says("writing costs 1.25 times the input price and finding 0.1 times, in a cache that lasts five minutes")
    says("in one that lasts an hour, writing costs 2 times.")
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
    says("Your 05.3 gives the bound from bytes: how much of it arrives?")
    assert bound == 64.5 and 26 / bound < 0.41


def test_issue_595():
    """What the cell prints, and why no bandwidth may be read off the plain times: the prefix fits an H100's L2."""
    row = data.measurement("flashinfer-595")
    assert [(p["kv_heads"], p["plain_us"], p["cascade_us"]) for p in row["data"]] == [(1, 19, 26), (8, 55, 26)]
    assert "4,000 shared tokens" in row["conditions"] and "3 kernels" in row["check"]
    says("one operation at P = 4,000 and B = 8")
    megabytes = [4_000 * heads * 2 * 128 * 2 / 1e6 for heads in (1, 8)]
    says("the whole prefix is 2 or 16 MB (head_dim 128 and bfloat16 assumed), an H100 has 50 MB of second-level cache")
    assert [round(size) for size in megabytes] == [2, 16] and max(megabytes) < 50
    assert "50 MB of L2 on an H100" in data.claim("h100-l2")["verdict"]
    assert "chipsandcheese" in data.claim("h100-l2")["evidence"]


def test_short_prefixes_published():
    rows = {row["prefix"]: row for row in data.measurement("tensorrt-llm-14396")["data"]}
    says("84 µs against 43 at a prefix of 128 tokens, 90 against 199 at 256, and 93 against 2,965 at 4,096")
    told = [(rows[p]["cascade_us"], rows[p]["plain_us"]) for p in (128, 256, 4_096)]
    assert told == [(84, 43), (90, 199), (93, 2_965)]
    says("(44397, open when read) found plain faster at a prefix of 512 for *every* batch it lists")
    assert all(row["plain"] < row["cascade"] for row in data.measurement("vllm-44397")["data"])
    assert "#44397: at prefix 512 flash wins at every batch" in " ".join(data.claim("d")["arithmetic"])


def test_tpot_claim_both_ways():
    assert "does not reduce the time of generating new tokens" in data.claim("d")["evidence"]
    without, with_cache = data.measurement("sglang-decode-radix")["data"]
    says(
        "requests per second + 29 %, median TTFT from 71.9 to 7.0 s, and the time between tokens from 65 to **135** ms"
    )
    assert round(100 * (with_cache["req_s"] / without["req_s"] - 1)) == 29
    assert [round(row["ttft_p50_ms"] / 1e3, 1) for row in (without, with_cache)] == [71.9, 7.0]
    assert [round(row["itl_avg_ms"]) for row in (without, with_cache)] == [65, 135]


def test_how_vllm_names_and_frees():
    row = data.claim("prefix-blocks")
    assert "freed in reverse order" in row["verdict"] and "first block only" in row["verdict"]
    assert any("predictable" in line for line in row["arithmetic"])
    says("vLLM's design notes give for freeing a request's blocks in reverse order")


def test_which_block_goes_first(reference):
    """The cell of the break: 48 tokens survive when the tail is let go first, none when the front is."""
    managed = reference["YourBlocks"]

    class FrontFirst(managed):
        def close(self, session):
            session.table.reverse()
            super().close(session)

    found = []
    for manager in (managed, FrontFirst):
        tight = manager(5, 16)
        for prompt in (list(range(65)), [99] * 32):
            session = tight.open(prompt)
            tight.extend(session, prompt[session.hit_tokens :])
            tight.close(session)
        found.append(tight.open(list(range(65))).hit_tokens)
    assert found == [48, 0]


def test_compaction_published_and_replayed():
    test_run, production = data.measurement("compaction-rides-prefix")["data"]
    says("An agent's compaction requests found 0 %")
    says("one found 99.6 % in a test, and one of 144,000 tokens 89.9 % in production")
    assert (test_run["hit_rate_before"], test_run["hit_rate_after"], production["hit_rate_after"]) == (0, 99.6, 89.9)
    assert round(100 * production["cached_tokens"] / production["input_tokens"], 1) == 89.9
    assert round(production["input_tokens"], -3) == 144_000
    assert data.measurement("compaction-rides-prefix")["sources"][0]["source"] == "iterate/iterate#1888"
    rates = []
    for same in (False, True):
        requests = traces.generate(60, seed=1, compact_at=6_000, same_prefix=same)
        found = traces.hit_tokens(traces.hashed(requests, 16), 16)
        pairs = [(hit, len(r.prompt)) for hit, r in zip(found, requests, strict=True) if r.kind == "compaction"]
        rates.append(sum(hit for hit, _ in pairs) / sum(n for _, n in pairs))
    assert rates[0] < 0.1 and rates[1] > 0.98


def test_replicas():
    day = traces.generate(60, seed=1)

    def rate(choose):
        found = 0
        for replica in range(4):
            mine = [r for i, r in enumerate(day) if choose(i, r) % 4 == replica]
            found += sum(traces.hit_tokens(traces.hashed(mine, 16), 16))
        return found / sum(len(r.prompt) for r in day)

    in_turn, by_session = rate(lambda i, r: i), rate(lambda i, r: r.session)
    assert in_turn < 0.75 < 0.9 < by_session  # the cell prints both
    row = data.measurement("sglang-router")["data"][0]
    says("SGLang reports up to 1.9 times the throughput of round robin and 3.8 times its hit rate (v0.4)")
    assert (row["throughput_up_to"], row["hit_rate_ratio_up_to"]) == (1.9, 3.8)


def test_the_same_text_as_other_tokens():
    tokenizer = load_model()[1]
    pieces = [tokenizer.token_to_id(piece) for piece in ("ĠLu", "x", "ell")]
    encoded = tokenizer.encode(tokenizer.decode(pieces)).ids
    assert tokenizer.decode(encoded) == tokenizer.decode(pieces) and encoded != pieces
    row = data.measurement("retokenised-answer")["data"][0]
    says("found 4,992 of 5,753 tokens, which is every full block of the prompt and not one of the answer")
    assert (row["found"], row["queried"], row["found_in_the_answer"]) == (4_992, 5_753, 0) and row["found"] % 64 == 0
    says("found 26 to 31 % of about 150,000 tokens and waited 11 s for each first token")
    row = data.measurement("tool-json-order")
    assert row["data"][0] == {"hit_rate": "26-31 %", "ttft_s": 11} and "150k" in row["conditions"]


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
    row = data.measurement("sglang-16521")["data"][0]
    assert (row["found_before_fix"], row["found_after_fix"]) == (100, 150)
    for held in (100, 149):  # the token sampled last has no key and no value
        blocks = reference["YourBlocks"](400, 1)
        session = blocks.open(range(held))
        blocks.extend(session, range(held))
        blocks.close(session)
        assert blocks.open(range(160)).hit_tokens == held
    says("119 and 120 tokens fill the same seven blocks")
    assert 119 // 16 == 120 // 16 == 7
