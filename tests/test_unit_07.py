"""Every number in the prose of unit 07, recomputed; the learner's code in the engine; the chat's facts."""

import itertools
import re

import pytest
import torch

from helpers import data
from helpers.exercises.u07 import PARTS, STABLE
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.geometry import get
from helpers.models.pretrained import load as load_model
from helpers.quality import recall
from helpers.serving import sessions, traces
from helpers.serving.blocks import BlockManager
from helpers.serving.sessions import Compact, HardCap, Policy, Truncate, Usage, shrink
from tests.misconceptions.harness import ROOT
from tests.prose import Prose

SOURCE = ROOT / "solutions" / "07-cap-or-compact" / "07-cap-or-compact.py"
PROSE = Prose(SOURCE)
says = PROSE.says


@pytest.fixture(scope="module")
def reference():
    return PROSE.reference()


@pytest.fixture(scope="module")
def tokenizer():
    return load_model()[1]


@pytest.fixture(scope="module")
def day():
    return traces.generate(60, seed=1)


def test_bytes_written_into_the_text(reference):
    says("A step of Llama-3.1-8B in bfloat16 reads 15.01 GB of weights; a token keeps 131,072 bytes.")
    geometry = get("Llama-3.1-8B")
    assert kv_bytes(geometry, 1) == 131_072
    assert round(weight_bytes(geometry) / 1e9, 2) == 15.01
    says("An H100 SXM reads 3.35 TB a second at best")
    assert data.device("H100 SXM")["bandwidth_GBps"] == 3_350
    assert kv_bytes(get("SmolLM2-135M"), 1, dtype=torch.float32) == 46_080


def test_the_window_by_trial(reference):
    """The longest whole number of tokens at which a step stays within 10 ms, by counting down."""

    def step_ms(sessions, tokens):
        return 1e3 * (15.01e9 + sessions * tokens * 131_072) / 3.35e12

    window = reference["window"]
    for sessions_ in (8, 24):
        tokens = next(n for n in range(20_000, 0, -1) if step_ms(sessions_, n) <= 10)
        assert int(window[f"longest, {sessions_} sessions"]) == tokens
    assert max(n for n in range(1, 100) if step_ms(n, 6_000) <= 10) == window["most sessions"]
    row = next(re.finditer(r"\| questions whose answer lay there \|([^\n]+)\|", SOURCE.read_text(encoding="utf-8")))
    shares = [int(share) for share in re.findall(r"(\d+) %", row[1])]
    lengths = [1_000, 2_000, 4_000, 6_000, 8_000, 12_000]
    assert next(n for n, share in zip(lengths, shares, strict=True) if share >= 95) == window["shortest"]


def test_found_tokens_in_the_block_manager(reference):
    """Each of the seven requests through the engine, with blocks of one token."""
    system, tools = list(range(1_000)), list(range(1_000, 3_000))
    turns = [list(range(5_000 + 500 * n, 5_500 + 500 * n)) for n in range(20)]
    question, instruction, summary = list(range(200)), list(range(100)), list(range(40_000, 40_500))
    whole, rest = [*system, *tools, *sum(turns, [])], [*sum(turns[12:], []), *question]
    prompts = {
        "nothing done": whole + question,
        "oldest turn dropped": [*system, *tools, *sum(turns[1:], []), *question],
        "oldest tokens dropped": whole[-12_800:] + question,
        "asks for a summary, instruction behind": whole + instruction,
        "asks for a summary, prompt of its own": [*range(60_000, 60_100), *sum(turns, []), *instruction],
        "summary behind the tools": [*system, *tools, *summary, *rest],
        "summary before the tools": [*system, *summary, *tools, *rest],
    }
    blocks = BlockManager(30_000, 1)
    session = blocks.open(whole)
    blocks.extend(session, whole)
    blocks.close(session)
    assert {name: len(blocks.match(prompt)) for name, prompt in prompts.items()} == reference["found"]


def test_the_cycle_is_what_the_rule_does(reference):
    """The marks of 07.4 played turn by turn: its prompts, its 11 turns, and the cost of a turn."""
    turns, prompts, acted = [500] * 19, [], []
    for number in range(40):
        gone = shrink(3_000 + 500, [*turns, 200], 13_000, 8_000)
        acted += [number] if gone else []
        turns = turns[gone:]
        prompts.append(3_500 + sum(turns) + 200)
        turns.append(500)
    assert acted[1] - acted[0] == acted[2] - acted[1] == 11
    assert prompts[acted[0] : acted[1]] == [7_700, *range(8_200, 12_701, 500)]
    says("ten turns with prompts of 8,200, 8,700, … 12,700")
    bill = Usage(13_000, 100, 500) + Usage(3_000, 4_700, 300)
    for prompt in prompts[acted[0] + 1 : acted[1]]:
        bill += Usage(prompt - 200, 200, 300)
    assert bill.dollars() * 1e3 / 11 == pytest.approx(reference["cost"]["compacted"])


def test_where_truncation_and_nothing_cost_the_same(reference):
    cost = reference["cost"]
    assert Usage(3_000, 9_700, 300).dollars() * 1e3 == pytest.approx(cost["truncated"])
    assert Usage(32_500, 200, 300).dollars() * 1e3 == pytest.approx(cost["nothing done, turn 60"])
    long = int(cost["equal at"])
    assert Usage(long - 200, 200, 300).dollars() * 1e3 == pytest.approx(cost["truncated"], rel=1e-3)
    PROSE.hides("122,000", "13,000 found")
    says("at twelve and a half times the price")
    assert sessions.EARLY_2026.written / sessions.EARLY_2026.found == pytest.approx(12.5)
    says("What is found costs a twelfth of what is written.")
    says("dearer than one two and a half times as long")
    assert 2.5 < 32_700 / 12_700 < 2.6 and cost["truncated"] > cost["nothing done, turn 60"]


def test_prices():
    says("found 0.30, written 3.75, output 15.00")
    prices = sessions.EARLY_2026
    assert (prices.found, prices.written, prices.output) == (0.30, 3.75, 15.00)


def test_your_rule_is_the_engines(reference, day):
    for policy, engine in (
        (Truncate(limit=4_000, rule=reference["leave"]), Truncate(limit=4_000)),
        (Compact(300, 4_000, 2_500, reference["leave"]), Compact(300, 4_000, 2_500)),
    ):
        assert sessions.replay(day[:200], policy) == sessions.replay(day[:200], engine)


def test_your_prompts_are_the_engines(reference):
    session = sessions.Session([1], [2, 3], [4], [[5, 6], [7]])
    request, after = reference["compaction"]([1], [2, 3], [4], [[5, 6], [7]], [9], [8], 1)
    assert list(request) == [*session.prompt(), 9]
    session.summary = [8]
    del session.turns[:1]
    assert list(after) == session.prompt()


def bill(day, policy, same_prefix=True):
    sent = sessions.replay(day, policy, same_prefix)
    hits = traces.hit_tokens(traces.hashed(sent, 16), 16)
    return Usage(sum(hits), sum(len(r.prompt) for r in sent) - sum(hits), sum(len(r.answer) for r in sent))


def test_a_day_under_each_policy(day):
    steps = Compact(300, 4_000, 2_500)
    nothing, every, in_steps, compacted, broken = (
        bill(day, *case)
        for case in (
            (Policy(),),
            (Truncate(limit=4_000),),
            (Truncate(limit=4_000, low=2_500),),
            (steps,),
            (steps, False),
        )
    )
    says("93 % of its prompt tokens are found, and they make up a quarter of its bill")
    assert round(100 * nothing.hit_rate) == 93
    assert 0.22 < Usage(nothing.found).dollars() / nothing.dollars() < 0.27
    says("**Truncating at each turn** costs over a third more than doing nothing")
    assert 1 + 1 / 3 < every.dollars() / nothing.dollars() < 1.4
    says("Truncating in steps costs 4 % less, compaction 12 % more")
    assert round(100 * in_steps.dollars() / nothing.dollars()) == 96
    assert round(100 * compacted.dollars() / nothing.dollars()) == 112
    says("With a system prompt of its own it brings the day to the cost of truncation at each turn")
    assert broken.dollars() == pytest.approx(every.dollars(), rel=0.02)
    assert nothing.hit_rate > compacted.hit_rate > broken.hit_rate > every.hit_rate
    says("refuses nearly half of the day's turns")
    assert 0.4 < 1 - len(sessions.replay(day, HardCap(limit=4_000))) / len(day) < 0.5
    assert len({r.session for r in day}) == 60


def test_too_little_hysteresis(day):
    made = []
    for low in (2_000, 3_000, 4_000):
        sent = sessions.replay(day, Compact(300, 4_000, low))
        made.append(sum(r.kind == "compaction" for r in sent))
    assert made == sorted(made) and made[-1] > 2 * made[0]
    says("more than twice as many compactions")
    says("the day costs 60 % more")
    close, far = (bill(day, Compact(300, 4_000, low)).dollars() for low in (4_000, 2_000))
    assert close / far == pytest.approx(1.6, abs=0.02)


def test_published_compactions():
    before, during, after, _ = data.measurement("compaction-drops-prefix")["data"]
    says("So 124,000 tokens were not found.")
    assert round(before["found"] - during["found"], -3) == 124_000
    says("A quarter still was")
    assert 0.25 < during["found"] / before["found"] < 0.28
    says("The next turn found the same 44,672")
    assert after["found"] == during["found"] == 44_672
    rides = data.measurement("compaction-rides-prefix")["data"]
    says("0 → 99.6 % of a compaction's input found")
    assert (rides[0]["hit_rate_before"], rides[0]["hit_rate_after"]) == (0, 99.6)
    says("in production 89.9 % (129,792 of 144,410 tokens")
    assert round(100 * rides[1]["cached_tokens"] / rides[1]["input_tokens"], 1) == 89.9
    for part in data.measurement("compaction-cost-opencode")["data"]:
        assert part["tokens"] * 3 / 1e6 == pytest.approx(part["without_usd"])
        assert part["tokens"] * 0.3 / 1e6 == pytest.approx(part.get("with_usd", part["without_usd"] / 10))
    says("the same input costs a tenth")
    assert data.measurement("compaction-order")["data"] == [{"tokens_rewritten_each_compaction": 97_000}]
    for id in ("compaction-drops-prefix", "compaction-cost-opencode", "compaction-order", "compaction-rides-prefix"):
        assert all(source["status"] == "seen" for source in data.measurement(id)["sources"])


def test_the_parts_of_the_order_add_up_to_what_was_published():
    assert sum(PARTS[part] for part in STABLE) == 97_000
    source = SOURCE.read_text(encoding="utf-8")
    for part, tokens in PARTS.items():
        assert f'| `"{part}"` | {tokens:,} |' in source


def test_no_other_order_of_the_parts_is_as_good(reference):
    """By brute force over real prompts: tokens found at the next turn, and at the turn after a compaction."""
    unit = {part: max(tokens // 500, 1) for part, tokens in PARTS.items()}

    def prompt(order, turn, compaction):
        made = []
        for part in order:
            salt = {"summary": compaction, "recent turns": compaction, "time of day": 100 * compaction + turn}
            made += [(part, salt.get(part), i) for i in range(unit[part])]
            if part == "recent turns":
                made += [("question", compaction, n) for n in range(turn)]
        return made

    def common(a, b):
        return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

    def score(order):
        now = prompt(order, 3, 0)
        return common(now, prompt(order, 4, 0)), common(now, prompt(order, 1, 1))

    scores = {order: score(order) for order in itertools.permutations(PARTS)}
    best = [order for order, found in scores.items() if found == score(tuple(reference["order"]))]
    assert not any(a >= b and c >= d and (a, c) != (b, d) for (a, c) in scores.values() for (b, d) in [score(best[0])])
    assert all(order[3:] == ("summary", "recent turns", "time of day") for order in best) and len(best) == 6


def test_the_chat_fits_its_marks(tokenizer):
    """What the prose says of the session, and that both marks do what the pictures show."""
    script, head = recall.turns(9, tokenizer), recall.session(tokenizer).head
    says("Each turn brings some 190 tokens")
    lengths = [len(question) + len(answer) + len(recall.end(tokenizer)) for question, answer in script]
    assert all(180 <= n <= 215 for n in lengths) and 150 < head < 250
    assert head + sum(lengths) > 1.5 * 1_100
    left = {"every turn": [], "in steps": []}
    for case, low in (("every turn", 1_100), ("in steps", 600)):
        kept = []
        for question, _ in script:
            gone = shrink(head, [*kept, len(question)], 1_100, low)
            left[case].append(gone)
            kept = [*kept[gone:], lengths[0]]
    assert sum(n > 0 for n in left["every turn"]) >= 4 > sum(n > 0 for n in left["in steps"]) >= 1


def test_facts_are_said_once_and_found_again(tokenizer):
    script = recall.turns(9, tokenizer)
    for turn, (question, _) in enumerate(script):
        said = recall.sentences([question], tokenizer)[0]
        for fact in recall.FACTS:
            assert (fact.says in said) == (fact.turn == turn)
            if fact.turn == turn:
                assert said.index(fact.says) == (len(said) - 1 if fact.last else 0)


def test_what_each_extraction_loses(reference, tokenizer):
    script = recall.turns(5, tokenizer)
    messages = recall.sentences([question for question, _ in script], tokenizer)
    chosen = reference["extract"]([s for message in messages for s in message], 60)
    says("lose a fact without a digit or a first person")
    assert {fact.name for fact in recall.FACTS if fact.turn < 5 and fact.says not in chosen} == {"day"}
    says("lose what was said at the end of a message")
    firsts = {message[0] for message in messages}
    assert {fact.name for fact in recall.FACTS if fact.turn < 5 and fact.says not in firsts} == {"dog"}
    summary = recall.as_summary(chosen, tokenizer)
    assert len(summary) <= 120  # its room
    again = recall.sentences([summary], tokenizer)[0]
    assert all(fact.says in again for fact in recall.FACTS if fact.says in chosen)
