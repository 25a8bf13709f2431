"""Session policies against a check by hand, the replay of a day, and a chat in a small decoder."""

import itertools
import random

import pytest
import torch

from helpers import data
from helpers.caches import FullCache
from helpers.models.decoder import Decoder
from helpers.models.geometry import get
from helpers.serving import sessions, traces
from helpers.serving.chat import Chat
from helpers.serving.sessions import Compact, HardCap, Policy, Session, SessionFull, Truncate, Usage, shrink

SMALL = get("SmolLM2-135M").replace(
    name="small", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=200
)


def test_shrink_leaves_the_longest_tail_below_the_low_mark():
    dice = random.Random(0)
    for _ in range(500):
        turns = [dice.randint(1, 50) for _ in range(dice.randint(1, 12))]
        head, low = dice.randint(0, 40), dice.randint(1, 200)
        high = low + dice.randint(0, 200)
        fits = [n for n in range(len(turns)) if head + sum(turns[n:]) <= low]
        expect = 0 if head + sum(turns) <= high else min(fits, default=len(turns) - 1)
        assert shrink(head, turns, high, low) == expect


def test_marks_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="swap them"):
        shrink(0, [1], 10, 20)


def test_policies():
    turns = [30, 30, 30, 10]
    assert Policy().leave(0, turns) == 0
    assert HardCap(limit=100).leave(0, turns) == 0
    with pytest.raises(SessionFull, match="101 tokens"):
        HardCap(limit=100).leave(1, turns)
    assert HardCap(limit=100, refuse=False).leave(1, turns) == 3
    assert Truncate(limit=90).leave(0, turns) == 1
    assert Truncate(limit=90, low=45).leave(0, turns) == 2
    assert Compact(high=90, low=45).leave(0, turns) == 2
    assert Compact(high=90, low=45, rule=lambda head, turns, high, low: 1).leave(0, turns) == 1


def test_prompt_in_any_order():
    session = Session([1], [2], [3], [[4], [5]])
    assert session.prompt() == [1, 2, 3, 4, 5] and session.head == 2
    assert session.prompt(("summary", "tools", "system", "turns")) == [3, 2, 1, 4, 5]
    with pytest.raises(ValueError, match="each once"):
        session.prompt(("system", "turns"))


def test_prices_are_those_of_the_list():
    row = data.price("anthropic-2026-early")["fact"]
    assert "Sonnet 4.6 in 3, 5m write 3.75, 1h write 6, hit 0.30, out 15" in row
    assert Usage(10**6, 10**6, 10**6).dollars() == pytest.approx(3.75 + 0.30 + 15)
    assert (Usage(3, 1, 1) + Usage(1, 3, 2)) == Usage(4, 4, 3)
    assert Usage(3, 1).hit_rate == 0.75 and Usage().hit_rate == 0


@pytest.fixture(scope="module")
def day():
    return traces.generate(20, seed=1)


def test_replay_without_a_policy_is_the_day_itself(day):
    assert sessions.replay(day, Policy()) == day


@pytest.mark.parametrize("policy", [Truncate(limit=4_000), Compact(summary_tokens=200, high=4_000, low=2_500)])
def test_replayed_prompts_stay_below_the_mark_and_end_with_the_question(day, policy):
    sent = sessions.replay(day, policy)
    turns = [r for r in sent if r.kind != "compaction"]
    assert [(r.time_seconds, r.answer) for r in turns] == [(r.time_seconds, r.answer) for r in day]
    for before, after in zip(day, turns, strict=True):
        assert after.prompt[: after.system] == before.prompt[: before.system]
        assert after.prompt[-20:] == before.prompt[-20:]
        assert len(after.prompt) <= 4_000
    made = len(sent) - len(turns)
    assert (made > 0) == bool(policy.summary_tokens)


def rate(requests, kind=None):
    found = traces.hit_tokens(traces.hashed(requests, 16), 16)
    pairs = [(hit, len(r.prompt)) for hit, r in zip(found, requests, strict=True) if kind in (None, r.kind)]
    return sum(hit for hit, _ in pairs) / sum(n for _, n in pairs)


def test_hysteresis_keeps_the_prefix_cache(day):
    every_turn = sessions.replay(day, Truncate(limit=4_000))
    in_steps = sessions.replay(day, Truncate(limit=4_000, low=2_500))
    assert rate(every_turn) < rate(in_steps) < rate(day)


def test_a_compaction_finds_the_history_only_on_its_own_prefix(day):
    policy = Compact(summary_tokens=200, high=4_000, low=2_500)
    assert rate(sessions.replay(day, policy), "compaction") > 0.95
    assert rate(sessions.replay(day, policy, same_prefix=False), "compaction") < 0.1


def test_without_hysteresis_compactions_multiply(day):
    made = [
        sum(r.kind == "compaction" for r in sessions.replay(day, Compact(summary_tokens=200, high=4_000, low=low)))
        for low in (2_000, 3_000, 4_000)
    ]
    assert made == sorted(made) and made[0] < made[-1] / 2


def test_a_refused_session_ends(day):
    sent = sessions.replay(day, HardCap(limit=3_000))
    assert max(len(r.prompt) for r in sent) <= 3_000
    for number in {r.session for r in day}:
        whole, kept = ([r for r in rs if r.session == number] for rs in (day, sent))
        assert kept == whole[: len(kept)]


def test_a_trace_that_does_not_continue_itself_is_refused():
    with pytest.raises(ValueError, match="does not continue its history"):
        sessions.replay(traces.generate(5, seed=1, timestamp=True), Policy())


@pytest.fixture(scope="module")
def decoder():
    return Decoder(SMALL)


def talk(decoder, policy, turns=6, summarise=None):
    """A chat of `turns` turns of 8 + 4 tokens behind a head of 16; and what each turn reported."""
    chat = Chat(decoder, Session([7] * 10, [9] * 6), policy, summarise, tokens=256, block_size=4)
    fresh = itertools.count(20)
    said = [chat.say([next(fresh) for _ in range(8)], [3, 4, 5], [6]) for _ in range(turns)]
    return chat, said


def test_a_chat_answers_like_the_dense_cache(decoder):
    chat, _ = talk(decoder, Policy())
    prompt = [*chat.session.prompt(), 11, 12]
    got = chat.ask([11, 12], 5)
    cache, want = FullCache(SMALL, 128), []
    logits = decoder.prefill(torch.tensor([prompt]), cache)
    for _ in range(5):
        want.append(int(logits.argmax()))
        logits = decoder.decode(torch.tensor([want[-1]]), cache)
    assert got == want
    assert chat.session.prompt() == prompt[:-2]


def test_found_and_written_by_hand(decoder):
    """Everything kept: a turn finds the full blocks of 4 of all that the model has read before."""
    _, said = talk(decoder, Policy())
    assert said[0].usage == Usage(0, 24, 3)
    for n, turn in enumerate(said[1:], start=1):
        read = 16 + 12 * n - 2  # neither the answer's last token nor its end has been read
        assert turn.usage == Usage(read // 4 * 4, 16 + 12 * n + 8 - read // 4 * 4, 3)
        assert turn.context == 16 + 12 * n + 8 + 2
        assert turn.resident_bytes == -(-turn.context // 4) * 4 * 2 * 2 * 2 * 16 * 4
        assert turn.ttft_seconds > 0 and turn.tpot_seconds > 0


def test_truncating_every_turn_finds_the_head_alone(decoder):
    _, said = talk(decoder, Truncate(limit=50), turns=8)
    assert [turn.usage.found for turn in said if turn.left] == [16] * sum(turn.left > 0 for turn in said)
    assert sum(turn.left > 0 for turn in said) >= 4
    assert max(turn.context for turn in said) <= 52


def test_a_compaction_is_found_billed_and_put_in_front(decoder):
    seen = []

    def summarise(chat, turns):
        seen.append(sum(map(len, turns)))
        return chat.ask([13, 14, 15, 16], 5)

    chat, said = talk(decoder, Compact(summary_tokens=4, high=60, low=40), turns=8, summarise=summarise)
    assert len(chat.session.summary) == 4  # cut to its room
    acted = [turn for turn in said if turn.left]
    # Head 16, room 4, turns of 12 and a question of 8: the fourth prompt would be 64 long.
    assert [n for n, turn in enumerate(said, start=1) if turn.left] == [4, 6, 8]
    assert seen == [12 * turn.left for turn in acted] and acted[0].left == 2
    # The request finds 48 of its 16 + 36 + 4 tokens, the turn after it the head of its 40; both are in the bill.
    assert acted[0].usage == Usage(48 + 16, 8 + 24, 5 + 3)
    assert sum((turn.usage for turn in said), Usage()) == chat.usage


def test_a_summary_needs_a_maker(decoder):
    with pytest.raises(ValueError, match="summarise"):
        Chat(decoder, Session(), Compact(summary_tokens=4, high=60, low=40))


def test_a_refused_turn_changes_nothing(decoder):
    chat, _ = talk(decoder, HardCap(limit=100), turns=6)
    before = chat.session.prompt(), chat.usage
    with pytest.raises(SessionFull):
        chat.say([1] * 40, [2])
    assert (chat.session.prompt(), chat.usage) == before
