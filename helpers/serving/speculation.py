"""Speculative decoding: guess the next tokens, check all guesses in one forward pass, keep those that hold.

The tokens that come out are the ones that plain decoding gives, greedily (one by one the most likely) or in
distribution (sampling; Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). Only the number of steps
changes. The guesses come from the text itself, by prompt lookup, so there is no second model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from helpers.caches import KVCache
from helpers.models.decoder import Decoder
from helpers.numbers import check_int

Drafter = Callable[[Sequence[int], int], list[int]]


@dataclass
class Answer:
    """What one sequence got, and what it took.

    tokens      the new token ids
    guesses     how many were checked in each step in which this sequence still wanted tokens
    accepted    guesses that held
    examined    guesses up to the first wrong one of each step, that one included
    done        it has all its tokens
    """

    tokens: list[int] = field(default_factory=list)
    guesses: list[int] = field(default_factory=list)
    accepted: int = 0
    examined: int = 0
    done: bool = False

    @property
    def steps(self) -> int:
        return len(self.guesses)

    @property
    def drafted(self) -> int:
        return sum(self.guesses)

    @property
    def tokens_per_step(self) -> float:
        """Each step yields one token and the guesses that held; a stop token counts as one."""
        return 1 + self.accepted / self.steps if self.steps else 0.0

    @property
    def alpha(self) -> float:
        """How often a guess held when all guesses before it had: accepted / examined; 0.0 where none was checked."""
        return self.accepted / self.examined if self.examined else 0.0


def tokens_per_step(alpha: float, k: int) -> float:
    """Tokens that a step with k drafted tokens yields on average, if each holds with probability alpha, whatever the
    others did: 1 + alpha + … + alpha^k (Leviathan et al., equation 1).

    Raises:
        ValueError: alpha is no probability, or k is negative.
    """
    check_int("tokens_per_step", "k", k, minimum=0)
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is a probability, from 0 to 1; got {alpha}")
    return sum(alpha**i for i in range(k + 1))


def prompt_lookup(history: Sequence[int], k: int, longest: int = 3) -> list[int]:
    """Up to k tokens that followed the end of `history` when it last occurred before (Saxena, prompt lookup decoding).

    The last `longest` tokens are looked for first, then one fewer, down to one; [] where even the last token is new.
    """
    history = list(history)
    for n in range(min(longest, len(history) - 1), 0, -1):
        end = history[-n:]
        for start in range(len(history) - n - 1, -1, -1):
            if history[start + n - 1] == end[-1] and history[start : start + n] == end:
                return history[start + n : start + n + k]
    return []


def accept_greedy(drafted: Sequence[int], best: Sequence[int]) -> list[int]:
    """The new tokens of one step.

    Args:
        drafted: k guesses.
        best: k + 1 tokens: the most likely one after the newest token, and after each guess.

    Returns:
        The guesses up to the first wrong one, and the model's own token in its place, or after all of them.
    """
    held = 0
    while held < len(drafted) and drafted[held] == best[held]:
        held += 1
    return [*drafted[:held], best[held]]


def rejection_rule(token: int, p: torch.Tensor, q: torch.Tensor) -> tuple[float, torch.Tensor]:
    """How to treat `token`, drawn from q, so that what comes out is distributed as p.

    Args:
        p, q: [vocab], probabilities of the model and of the drafter.

    Returns:
        The probability of keeping it, min(1, p / q); and the distribution [vocab] to draw another from where it is not
        kept, max(0, p − q), scaled to 1.

    Raises:
        ValueError: q gives the token no chance, so it cannot have been drawn from it.
    """
    if q[token] <= 0:
        raise ValueError(f"token {token} has probability 0 in q: it was not drawn from it")
    rest = (p - q).clamp(min=0)
    total = rest.sum()
    # p and q are equal where nothing is left: then every token is kept, and nobody asks.
    return min(1.0, float(p[token] / q[token])), rest / total if total > 0 else p


def accept_sampled(drafted: Sequence[int], p: torch.Tensor, generator: torch.Generator | None = None) -> list[int]:
    """The new tokens of one step, distributed as if each were drawn from the model.

    A guess of prompt lookup is certain of itself: q is 1 at that token. So it is kept with its probability p, and where
    it is not, p without it decides.

    Args:
        drafted: k guesses.
        p: [k + 1, vocab], the model's probabilities after the newest token, and after each guess.
    """
    new: list[int] = []
    for token, row in zip(drafted, p, strict=False):
        q = torch.zeros_like(row)
        q[token] = 1.0
        keep, rest = rejection_rule(token, row, q)
        if float(torch.rand((), generator=generator)) >= keep:
            return [*new, _draw(rest, generator)]
        new.append(token)
    return [*new, _draw(p[len(drafted)], generator)]


def _draw(p: torch.Tensor, generator: torch.Generator | None) -> int:
    return int(torch.multinomial(p, 1, generator=generator))


def chi_square_p(seen: torch.Tensor, expected: torch.Tensor) -> float:
    """How often counts drawn from a distribution lie at least this far off what is expected of it (Pearson's test).

    Args:
        seen, expected: counts of each outcome, with the same sum; of each expected, five or more.

    Returns:
        A p-value: under 0.01, say, the draws hardly come from that distribution.
    """
    seen, expected = seen.double(), expected.double()
    statistic = ((seen - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def generate(
    decoder: Decoder,
    cache: KVCache,
    prompts: Sequence[Sequence[int]],
    count: int,
    k: int = 4,
    draft: Drafter = prompt_lookup,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    stop: int | None = None,
    cached: bool = False,
) -> list[Answer]:
    """`count` new tokens for each prompt, up to k of them drafted and checked in each step.

    Each sequence has guesses of its own and keeps as many as hold, so their lengths differ from the first step on. A
    sequence with fewer guesses than another is padded, and one that is done waits: a step has one shape.

    Args:
        cache: the prompts are appended to what it holds; it needs room for the longest of them, `count` and k tokens.
        prompts: token ids, one list a sequence; their lengths may differ.
        draft: (history, k) → up to k guesses.
        temperature: 0 takes the most likely token; above it, tokens are drawn from softmax(logits / temperature).
        generator: on the CPU, for drawing.
        stop: a token id that ends an answer early; it is not returned.
        cached: the cache holds the prompts already, all but the last token of each: nothing is left to read.

    Raises:
        ValueError: an empty prompt, another number of prompts than the cache has sequences, a negative temperature, a
            cache that cannot take tokens back, or one that is said to be `cached` and holds other lengths.
        CacheFull: a sequence does not fit.
    """
    check_int("generate", "count", count, minimum=1)
    check_int("generate", "k", k, minimum=0)
    if len(prompts) != cache.batch or not all(prompts):
        raise ValueError(f"give {cache.batch} prompts of one token or more, one for each sequence of the cache")
    if not temperature >= 0:
        raise ValueError(f"temperature must be 0 or more, not {temperature}")
    histories = [list(prompt) for prompt in prompts]
    answers = [Answer() for _ in prompts]
    if not cached:
        _read(decoder, cache, histories)
    elif cache.lengths != [len(prompt) - 1 for prompt in prompts]:
        raise ValueError(
            f"cached: the cache holds {cache.lengths} tokens; it has to hold each prompt but its last token"
        )
    while not all(answer.done for answer in answers):
        guesses = []
        for history, answer in zip(histories, answers, strict=True):
            # The last token of an answer needs no guess after it.
            room = 0 if answer.done else min(k, count - len(answer.tokens) - 1)
            guesses.append(list(draft(history, room))[:room] if room > 0 else [])
        lengths = cache.lengths
        logits = _forward(decoder, cache, [[h[-1], *g] for h, g in zip(histories, guesses, strict=True)])
        for i, (history, answer, guess) in enumerate(zip(histories, answers, guesses, strict=True)):
            if answer.done:
                cache.truncate(i, lengths[i])
                continue
            rows = logits[i, : len(guess) + 1]
            if temperature:
                new = accept_sampled(guess, torch.softmax(rows.double().cpu() / temperature, dim=-1), generator)
            else:
                new = accept_greedy(guess, rows.argmax(dim=-1).tolist())
            # The newest token and the guesses that held are in the cache; the last of `new` is not yet.
            cache.truncate(i, lengths[i] + len(new))
            answer.guesses.append(len(guess))
            answer.accepted += len(new) - 1
            answer.examined += min(len(new), len(guess))
            wanted = new[: new.index(stop)] if stop in new else new
            history += wanted
            answer.tokens += wanted
            answer.done = wanted is not new or len(answer.tokens) == count
    return answers


def _read(decoder: Decoder, cache: KVCache, prompts: list[list[int]]) -> None:
    """Put all but the last token of every prompt into the cache; that one is the newest token of the first step."""
    held, width = cache.lengths, max(map(len, prompts)) - 1
    if width:
        # What stands behind the end of a shorter prompt is taken back at once: nobody looks at what comes later.
        rows = [[*prompt[:-1], *prompt[-1:] * (width + 1 - len(prompt))] for prompt in prompts]
        decoder.prefill(torch.tensor(rows, device=decoder.device), cache)
        for i, prompt in enumerate(prompts):
            cache.truncate(i, held[i] + len(prompt) - 1)


def _forward(decoder: Decoder, cache: KVCache, rows: list[list[int]]) -> torch.Tensor:
    """Logits [batch, t, vocab] after every token of `rows`, shorter ones padded with their last token."""
    width = max(map(len, rows))
    tokens = torch.tensor([row + row[-1:] * (width - len(row)) for row in rows], device=decoder.device)
    return decoder.decode(tokens, cache)
