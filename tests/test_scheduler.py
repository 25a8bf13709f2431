"""The scheduler over a real (tiny) decoder: whoever shares the machine gets the tokens that he would get alone."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.caches import BlockPool, FullCache
from helpers.models.decoder import Decoder
from helpers.models.generate import greedy
from helpers.models.geometry import get
from helpers.serving import traces
from helpers.serving.blocks import BlockManager
from helpers.serving.scheduler import Arrival, Scheduler, from_trace, poisson

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = get("SmolLM2-135M").replace(
    name="small", layers=2, hidden=32, q_heads=2, kv_heads=1, head_dim=16, intermediate=48, vocab=60
)
# float64: in float32 a batch and a single sequence may round a near tie differently.
DECODER = Decoder(SMALL, dtype=torch.float64, backend="reference")


def scheduler(blocks, block_size, budget=None, kind=Scheduler, positions=64):
    """One whose clock says that each step takes a second, and that stops after 10,000 of them."""
    pool = BlockPool(SMALL, blocks, block_size, positions, dtype=torch.float64)
    return kind(DECODER, pool, budget, now=iter(range(20_000)).__next__)


def alone(arrival):
    cache = FullCache(SMALL, 64, dtype=torch.float64, backend="reference")
    return greedy(DECODER, cache, torch.tensor(arrival.prompt), arrival.answer_tokens)


def is_what_it_gets_alone(job):
    """Whether each token of the answer is the likeliest after those before it: `alone`, in one pass."""
    text, before = [*job.arrival.prompt, *job.answer[:-1]], len(job.arrival.prompt) - 1
    cache = FullCache(SMALL, 64, dtype=torch.float64, backend="reference")
    said = DECODER.prefill(torch.tensor([text]), cache, all_positions=True)[0, before:].argmax(dim=-1).tolist()
    return len(job.answer) == job.arrival.answer_tokens and job.answer == said


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    block_size=st.sampled_from([1, 2, 4, 8]),
    places=st.integers(14, 60),
    budget=st.sampled_from([None, 1, 5, 16]),
    per_second=st.sampled_from([0.05, 0.5, 1e6]),
    words=st.sampled_from([2, 60]),  # with two words, prompts share prefixes
)
@example(seed=1, block_size=2, places=27, budget=5, per_second=1e6, words=60)
def test_everyone_gets_the_tokens_of_running_alone_or_a_reason(seed, block_size, places, budget, per_second, words):
    """51 times 20 arrivals, 1,020 in all: any budget, any pool, too small for some of them or not."""
    blocks = -(-places // block_size)
    served = scheduler(blocks, block_size, budget)
    arrivals = poisson(20, per_second, words, (1, 20), (1, 8), seed)
    jobs = served.run(arrivals)
    assert [job.arrival for job in jobs] == arrivals
    for job in jobs:
        needed = len(job.arrival.prompt) + job.arrival.answer_tokens - 1
        if needed > blocks * block_size:
            assert not job.answer and f"need {needed} places" in job.refused
            continue
        assert not job.refused and is_what_it_gets_alone(job)
        assert min([job.ttft_seconds, *job.gaps_seconds]) > 0.999  # a step of a second, or several
    assert not served.running and not served.waiting
    assert sorted([*served.blocks.free, *served.blocks.cached]) == list(range(blocks)), "blocks were lost"
    if budget:  # answers always grow, so they alone may exceed it
        assert all(step.read == 0 or step.decoded + step.read <= budget for step in served.steps)


def test_a_step_is_one_pass_over_the_weights(monkeypatch):
    """Two answers grow while two prompts are read: one call of the decoder, with the rows of all four."""
    passes, mixed = [], Decoder.mixed
    monkeypatch.setattr(Decoder, "mixed", lambda self, parts: passes.append(parts) or mixed(self, parts))
    served = scheduler(60, 1, budget=16)
    jobs = [served.submit(Arrival(0.0, (word,), 9)) for word in (3, 5)]
    served.step()
    jobs += [served.submit(Arrival(1.0, tuple(range(start, start + 10)), 2)) for start in (10, 30)]
    served.step()
    assert [tuple(tokens.shape) for tokens, _ in passes[1]] == [(2, 1), (1, 10), (1, 4)]
    assert [cache.lengths for _, cache in passes[1]] == [[2, 2], [10], [4]], "each with its own history"
    while served.running:
        served.step()
    assert len(passes) == len(served.steps) and [job.answer for job in jobs] == [alone(job.arrival) for job in jobs]


def test_a_tight_pool_takes_blocks_away_and_gives_the_same_tokens():
    """Four requests start together in a pool that holds three of them whole."""
    served = scheduler(blocks=30, block_size=1)
    arrivals = [Arrival(0.0, (word, word + 1, word + 2), 7) for word in (3, 13, 23, 33)]
    jobs = served.run(arrivals)
    assert [job.answer for job in jobs] == [alone(job.arrival) for job in jobs]
    assert [job.preemptions > 0 for job in jobs] == [False, False, False, True], "the one that started last goes"
    assert sum(step.read for step in served.steps) > 4 * 3, "its blocks are computed again"


def test_chunks_leave_room_for_answers_and_are_shorter_than_the_prompt():
    served = scheduler(60, 1, budget=8)
    chat, long = served.run([Arrival(0.0, (1, 2), 12), Arrival(0.5, tuple(range(30)), 2)])
    assert max(chat.gaps_seconds) == 1, "the chat grows in every step"
    beside = [step for step in served.steps if step.decoded and step.read]
    assert [step.read for step in beside] == [7, 7, 7, 7, 2]
    assert long.ttft_seconds == pytest.approx(len(beside) + 0.5)
    whole = scheduler(60, 1)
    whole.run([Arrival(0.0, (1, 2), 12), Arrival(0.5, tuple(range(30)), 2)])
    assert [step.read for step in whole.steps if step.read] == [2, 30]


def test_what_can_never_fit_is_refused_with_a_reason_and_delays_nobody():
    served = scheduler(blocks=10, block_size=2, positions=64)
    big, small = served.run([Arrival(0.0, (1,) * 19, 3), Arrival(0.0, (1,) * 18, 3)])
    assert big.refused == "19 tokens and an answer of 3 need 21 places, and all blocks together have 20"
    assert not big.answer and not small.refused and len(small.answer) == 3
    narrow = scheduler(blocks=10, block_size=2, positions=16)
    assert narrow.submit(Arrival(0.0, (1,) * 15, 3)).refused.endswith("and a session may have 16 positions")
    assert not narrow.waiting


def test_nobody_overtakes():
    """A long request at the front keeps its turn, though a short one behind it would fit at once."""
    served = scheduler(blocks=12, block_size=2)
    first, long, short = served.run(
        [Arrival(0.0, (1,) * 10, 6), Arrival(0.1, tuple(range(20)), 2), Arrival(0.2, (7, 8), 2)]
    )
    assert long.token_seconds[0] > first.token_seconds[-1] and short.token_seconds[0] >= long.token_seconds[0]


def test_a_shared_prompt_is_read_once():
    served = scheduler(blocks=30, block_size=4)
    prompt = tuple(range(21))
    one, two = served.run([Arrival(0.0, prompt, 3), Arrival(10.0, prompt, 3)])
    assert one.answer == two.answer == alone(one.arrival)
    assert [step.read for step in served.steps if step.read] == [21, 1]


def test_the_clock_skips_to_the_next_arrival():
    served = scheduler(blocks=30, block_size=4)
    [job] = served.run([Arrival(1_000.0, (1, 2), 3)])
    assert job.token_seconds == [1_001, 1_002, 1_003] and job.ttft_seconds == 1 and job.tpot_seconds == 1


def test_a_trace_becomes_arrivals_that_share_what_it_shares():
    requests = traces.hashed(traces.generate(3, seed=4), 16)
    arrivals = from_trace(requests, 16, vocabulary=60)
    assert [(a.time_seconds, len(a.prompt), a.answer_tokens) for a in arrivals] == [
        (r.time_seconds, r.input_length, r.output_length) for r in requests
    ]
    again = traces.hashed([traces.Request(0, 0, "turn", a.prompt, ()) for a in arrivals], 16, answers=False)
    known = [traces.HashedRequest(r.time_seconds, r.input_length, 0, r.hash_ids, r.hash_ids) for r in requests]
    assert traces.hit_tokens(again, 16) == traces.hit_tokens(known, 16)


class Wrong(Scheduler):
    planned: list = []
    admitted: object = 1

    def plan(self, decoding, left, budget):
        return self.planned

    def admit(self, waiting, free, block_size):
        return self.admitted


@pytest.mark.parametrize(
    ("planned", "admitted", "says"),
    [
        ([3], 1, "its chunk, not"),
        ([], 1, "its chunk, not"),
        ([0], 1, "nobody move"),
        ([1], 0, "would wait for ever"),
        ([1], 2, "how many of 1 may start, not 2"),
        ([1], None, "not None"),
    ],
)
def test_decisions_that_cannot_be_are_named(planned, admitted, says):
    served = scheduler(8, 2, kind=Wrong)
    served.planned, served.admitted = planned, admitted
    served.submit(Arrival(0.0, (1, 2), 2))
    with pytest.raises(ValueError, match=says):
        served.step()


def test_what_cannot_be_built_is_refused():
    pool = BlockPool(SMALL, 4, 2, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match="at least one token, not 0"):
        Scheduler(DECODER, pool, 0)
    with pytest.raises(ValueError, match="4 blocks of 2 tokens"):
        Scheduler(DECODER, pool, blocks=BlockManager(5, 2))
    for prompt, answer in (((), 1), ((1,), 0)):
        with pytest.raises(ValueError, match="at least one token"):
            Arrival(0.0, prompt, answer)
