"""Speculation changes the number of steps and nothing else: greedy to the token, sampled in distribution."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.caches import BlockPool, CacheFull, FullCache, PagedCache, SharedPrefixCache, SinkCache
from helpers.models import pretrained, text
from helpers.models.decoder import Decoder
from helpers.models.generate import greedy
from helpers.serving import speculation
from helpers.serving.speculation import (
    accept_greedy,
    accept_sampled,
    chi_square_p,
    generate,
    prompt_lookup,
    rejection_rule,
)
from tests.test_cache_contract import CAPACITY, KEYS, MAKE, ONE_LENGTH, PREFIX, geometry_of

pytestmark = pytest.mark.usefixtures("one_thread")
QUANTIZED = ("Int", "Fp8")  # they compute in float32
TINY = KEYS.replace(name="tiny", vocab=5)


@functools.cache
def exact(geometry, dtype=torch.float64):
    """In float64, so that two orders of summation do not pick different tokens."""
    return Decoder(geometry, dtype=dtype, backend="reference")


def decoder_of(kind):
    return exact(geometry_of(kind), torch.float32 if kind.startswith(QUANTIZED) else torch.float64)


def cache_of(kind, batch):
    g, options = geometry_of(kind), {"dtype": torch.float64, "backend": "reference"}
    if kind == "PagedCache":
        pool = BlockPool(g, 12 * batch, 8, CAPACITY, torch.float64)
        return PagedCache(pool, torch.arange(12 * batch).view(batch, 12).flip(1).tolist(), backend="reference")
    if kind == "SharedPrefixCache":
        prefix = FullCache(g, len(PREFIX), **options)
        exact(g).prefill(torch.tensor([PREFIX]), prefix)
        return SharedPrefixCache(prefix, CAPACITY, batch, backend="reference")
    if kind.startswith(QUANTIZED):
        del options["dtype"]
    return MAKE[kind](g, CAPACITY, batch=batch, **options)


def alternating(history, k):
    """A drafter that is often wrong: it guesses that the text counts on."""
    return [(history[-1] + i) % KEYS.vocab for i in range(1, k + 1)]


def guessing_nothing(history, k):
    """Plain decoding, one token a step."""
    return []


def test_lookup_copies_what_followed_the_last_occurrence():
    assert prompt_lookup([1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
    assert prompt_lookup([7, 5, 8, 5, 9, 5], 3) == [9, 5]
    assert prompt_lookup([1, 2, 8, 3, 2, 9, 1, 2], 1) == [8], "two tokens that match say more than the latest one"
    assert prompt_lookup([1, 2, 8, 3, 2, 9, 1, 2], 1, longest=1) == [9]
    assert prompt_lookup([4, 4], 3) == [4]
    assert prompt_lookup([1, 2, 3], 3) == prompt_lookup([1], 3) == []


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6))
def test_lookup_is_a_piece_of_the_history_behind_an_equal_end(history, k):
    drafted = prompt_lookup(history, k)
    n = next((n for n in (3, 2, 1) if any(history[s : s + n] == history[-n:] for s in range(len(history) - n))), 0)
    places = [s + n for s in range(len(history) - n) if n and history[s : s + n] == history[-n:]]
    assert drafted == (history[places[-1] : places[-1] + k] if places else [])


def test_greedy_acceptance():
    assert accept_greedy([5, 6, 7], [5, 6, 7, 8]) == [5, 6, 7, 8]
    assert accept_greedy([5, 6, 7], [5, 9, 7, 8]) == [5, 9]
    assert accept_greedy([5], [4, 8]) == [4]
    assert accept_greedy([], [3]) == [3]


@pytest.mark.parametrize("alpha, k", [(0.0, 4), (0.3, 0), (0.3, 3), (0.8, 4), (1.0, 4)])
def test_tokens_per_step_by_simulation(alpha, k):
    """Against steps played out with coins."""
    coins = torch.rand(40_000, k, generator=torch.Generator().manual_seed(1)) < alpha
    held = coins.long().cumprod(dim=1).sum(dim=1) if k else torch.zeros(40_000)
    assert speculation.tokens_per_step(alpha, k) == pytest.approx(1 + float(held.double().mean()), rel=0.02)


def test_tokens_per_step_refuses_what_is_no_probability():
    with pytest.raises(ValueError, match="from 0 to 1"):
        speculation.tokens_per_step(80, 4)


@settings(deadline=None)
@given(st.data())
def test_the_rule_gives_the_distribution_of_the_model(data):
    """Summed over every token that q may propose: what is kept, and what replaces the rest, is exactly p."""
    weights = st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any)
    p, q = (torch.tensor(data.draw(weights), dtype=torch.float64) for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    out = torch.zeros(4, dtype=torch.float64)
    for token in q.nonzero().flatten().tolist():
        keep, rest = rejection_rule(token, p, q)
        out[token] += q[token] * keep
        out += q[token] * (1 - keep) * rest
    torch.testing.assert_close(out, p)


def test_the_rule_refuses_a_token_that_q_cannot_draw():
    with pytest.raises(ValueError, match="probability 0 in q"):
        rejection_rule(1, torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("kind", MAKE)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_greedy_to_the_token_in_every_cache(kind, data):
    """Any prompts, any k, guesses good and bad: the tokens of plain decoding, one sequence at a time."""
    decoder, batch = decoder_of(kind), 1 if kind in ONE_LENGTH else data.draw(st.integers(1, 3))
    prompts = data.draw(
        st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=9), min_size=batch, max_size=batch), label="prompts"
    )
    k, draft = data.draw(st.integers(0, 5)), data.draw(st.sampled_from([prompt_lookup, alternating, guessing_nothing]))
    count = data.draw(st.integers(1, 12))
    if kind == "SinkCache":  # its window must not have let go of anything yet
        prompts, count = [prompt[:3] for prompt in prompts], min(count, 5)
    got = generate(decoder, cache_of(kind, batch), prompts, count, k, draft)
    for prompt, answer in zip(prompts, got, strict=True):
        assert answer.tokens == greedy(decoder, cache_of(kind, 1), torch.tensor(prompt), count)
        assert answer.accepted <= answer.examined <= answer.drafted
        assert answer.steps + answer.accepted == count


def test_a_good_drafter_saves_steps_and_a_bad_one_costs_none():
    decoder, prompt = exact(KEYS), [3, 1, 4]
    plain = greedy(decoder, FullCache(KEYS, 60, dtype=torch.float64, backend="reference"), torch.tensor(prompt), 20)

    def clairvoyant(history, k):
        return plain[len(history) - 3 :][:k]

    def run(draft):
        cache = FullCache(KEYS, 60, dtype=torch.float64, backend="reference")
        [answer] = generate(decoder, cache, [prompt], 20, 4, draft)
        assert answer.tokens == plain
        return answer

    assert (run(clairvoyant).steps, run(clairvoyant).alpha) == (4, 1.0)
    wrong = run(lambda history, k: [(t + 1) % KEYS.vocab for t in clairvoyant(history, k)])
    assert (wrong.steps, wrong.alpha, wrong.tokens_per_step) == (20, 0.0, 1.0)


def test_a_stop_token_ends_an_answer_and_the_others_go_on():
    decoder, prompts = exact(KEYS), [[1, 2, 3], [4, 5, 6]]

    def run(**options):
        cache = FullCache(KEYS, CAPACITY, batch=2, dtype=torch.float64, backend="reference")
        return [answer.tokens for answer in generate(decoder, cache, prompts, 12, 4, **options)]

    first, second = run()
    stop = next(token for token in first if token not in second)
    assert run(stop=stop) == [first[: first.index(stop)], second]


def test_prompts_that_the_cache_holds_are_not_read_again():
    """Cut back to its prompts, less their last tokens, a cache answers as before."""
    decoder, prompts = exact(KEYS), [[1, 2, 3, 1, 2], [4, 5, 4]]
    cache = FullCache(KEYS, CAPACITY, batch=2, dtype=torch.float64, backend="reference")
    first = generate(decoder, cache, prompts, 10, 4)
    for i, prompt in enumerate(prompts):
        cache.truncate(i, len(prompt) - 1)
    assert generate(decoder, cache, prompts, 10, 4, cached=True) == first
    with pytest.raises(ValueError, match="each prompt but its last token"):
        generate(decoder, cache, prompts, 10, 4, cached=True)


def test_what_the_cache_holds_afterwards_is_the_answer():
    """Rolled back: another question to it is answered as if nothing had ever been drafted."""
    decoder, prompts = exact(KEYS), [[1, 2, 3], [4, 5, 6, 7, 8]]
    cache = FullCache(KEYS, CAPACITY, batch=2, dtype=torch.float64, backend="reference")
    answers = generate(decoder, cache, prompts, 10, 4, alternating)
    assert cache.lengths == [12, 14]  # the last token of an answer was never read
    logits = decoder.decode(torch.tensor([11, 12]), cache)
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        alone = FullCache(KEYS, CAPACITY, dtype=torch.float64, backend="reference")
        told = torch.tensor([[*prompt, *answer.tokens[:-1], 11 + i]])
        torch.testing.assert_close(logits[i], decoder.prefill(told, alone)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("statistic, outcomes", [(3.841, 2), (18.307, 11), (36.415, 25)])
def test_chi_square_against_the_printed_table(statistic, outcomes):
    """The 5 % points of 1, 10 and 24 degrees of freedom; one cell alone is off here."""
    expected = torch.full((outcomes,), 1e9, dtype=torch.float64)
    seen = expected.clone()
    seen[0] += (statistic * 1e9) ** 0.5
    assert chi_square_p(seen, expected) == pytest.approx(0.05, abs=2e-4)


@pytest.mark.parametrize("draft", [prompt_lookup, alternating])
def test_sampled_continuations_have_the_distribution_of_the_model(draft):
    """A vocabulary of five: all 25 answers of two tokens, 3,000 times, against their exact probabilities."""
    decoder, prompt, times = exact(TINY), [1, 2, 3, 1, 2], 3_000

    def fresh(batch=1):
        return FullCache(TINY, 12, batch=batch, dtype=torch.float64, backend="reference")

    first = decoder.prefill(torch.tensor([prompt]), fresh())[0].softmax(dim=-1)
    rows = torch.tensor([[*prompt, token] for token in range(5)])
    second = decoder.prefill(rows, fresh(5)).softmax(dim=-1)
    expected = (first[:, None] * second).flatten() * times

    generator, seen = torch.Generator().manual_seed(2), torch.zeros(25)
    batch = 100
    for _ in range(times // batch):
        for answer in generate(decoder, fresh(batch), [prompt] * batch, 2, 2, _within(draft), 1.0, generator):
            seen[answer.tokens[0] * 5 + answer.tokens[1]] += 1
    assert chi_square_p(seen, expected) > 0.01


def _within(draft):
    return lambda history, k: [token % 5 for token in draft(history, k)]


def test_a_biased_rule_would_be_caught():
    """The same test on the usual mistake: draw from p itself after a rejection, not from what is left of it."""
    p, generator = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.Generator().manual_seed(3)
    counts = {"right": torch.zeros(3), "wrong": torch.zeros(3)}
    for _ in range(2_000):
        counts["right"][accept_sampled([1], p.expand(2, -1), generator)[0]] += 1
        kept = float(torch.rand((), generator=generator)) < p[1]
        counts["wrong"][1 if kept else int(torch.multinomial(p, 1, generator=generator))] += 1
    assert chi_square_p(counts["right"], 2_000 * p) > 0.01
    assert chi_square_p(counts["wrong"], 2_000 * p) < 1e-6


@pytest.fixture(scope="module")
def real():
    return pretrained.load()


def test_real_model_greedy_to_the_token(real):
    model, tokenizer = real
    prompt = tokenizer.encode(text.chat("Repeat: the cat sat on the mat, the cat sat on the mat.")).ids
    plain = greedy(model, FullCache(model.geometry, 128), torch.tensor(prompt), 32)
    [answer] = generate(model, FullCache(model.geometry, 128), [prompt], 32, 4)
    assert answer.tokens == plain and answer.steps < 32


def test_real_model_top_tokens_have_its_distribution(real):
    """The ten likeliest tokens and all others together, for the likeliest guess and for an unlikely one."""
    model, tokenizer = real
    prompt = tokenizer.encode("The best season of the year is").ids
    p = model.prefill(torch.tensor([prompt]), FullCache(model.geometry, 32))[0].double().softmax(dim=-1)
    top = p.topk(10).indices
    expected = torch.cat((p[top], 1 - p[top].sum(dim=0, keepdim=True))) * 1_000
    for guess in (int(top[0]), int(top[7])):
        generator, seen = torch.Generator().manual_seed(4), torch.zeros(11)
        for _ in range(1_000):
            token = accept_sampled([guess], p.expand(2, -1), generator)[0]
            where = (top == token).nonzero()
            seen[int(where) if len(where) else 10] += 1
        assert chi_square_p(seen, expected) > 0.01


def test_bad_input_is_refused():
    decoder = exact(KEYS)
    cache = FullCache(KEYS, 8, dtype=torch.float64, backend="reference")
    for prompts in ([], [[]], [[1], [2]]):
        with pytest.raises(ValueError, match="one for each sequence"):
            generate(decoder, cache, prompts, 3)
    with pytest.raises(ValueError, match="temperature"):
        generate(decoder, cache, [[1]], 3, temperature=-1.0)
    with pytest.raises(ValueError, match="count"):
        generate(decoder, cache, [[1]], 0)
    with pytest.raises(CacheFull):
        generate(decoder, cache, [[1, 2, 3, 4]], 9)


def test_a_cache_that_has_let_go_refuses_to_roll_back():
    decoder = exact(KEYS)
    cache = SinkCache(KEYS, CAPACITY, sinks=2, window=12, dtype=torch.float64, backend="reference")
    with pytest.raises(ValueError, match="cannot continue"):
        generate(decoder, cache, [list(range(20))], 5, 3, alternating)
