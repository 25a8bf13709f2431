"""A chat with the real model under a policy: every turn goes through a prefix cache, and is timed and billed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from helpers.caches import BlockPool, PagedCache
from helpers.models.decoder import Decoder
from helpers.serving.blocks import BlockManager
from helpers.serving.sessions import ORDER, Policy, Session, Usage


@dataclass(frozen=True)
class Turn:
    """One turn as the user and the operator see it.

    ttft_seconds    from the question to the first token, a compaction that came before it included
    tpot_seconds    median of the later tokens' steps
    context         tokens in the cache after the answer
    resident_bytes  bytes of the blocks that hold them
    usage           tokens found, written and put out, those of the compaction included
    left            turns that left before this one
    """

    ttft_seconds: float
    tpot_seconds: float
    context: int
    resident_bytes: int
    usage: Usage
    left: int


class Chat:
    """One session in a pool of its own, with a prefix cache over its blocks.

    Args:
        model: the decoder that computes every token.
        session: its system prompt and tools; the turns are added here.
        policy: says before each turn how many of the oldest leave.
        summarise: (chat, turns that leave) → token ids that stand for them; needed by a policy with room for a summary.
        order: of the parts in the prompt.
        tokens: room in the pool, at least the longest prompt and its answer.
    """

    def __init__(
        self,
        model: Decoder,
        session: Session,
        policy: Policy,
        summarise: Callable[["Chat", list[list[int]]], Sequence[int]] | None = None,
        order: Sequence[str] = ORDER,
        tokens: int = 3_072,
        block_size: int = 16,
    ):
        if policy.summary_tokens and summarise is None:
            raise ValueError("this policy has room for a summary: say with `summarise` how one is made")
        self.model, self.session, self.policy = model, session, policy
        self.summarise, self.order = summarise, order
        blocks = -(-tokens // block_size)
        self.blocks = BlockManager(blocks, block_size)
        self.pool = BlockPool(model.geometry, blocks, block_size, blocks * block_size, model.dtype, model.device)
        self.usage = Usage()  # of all requests so far

    def say(self, question: Sequence[int], answer: Sequence[int], end: Sequence[int] = ()) -> Turn:
        """One turn with an answer that is given: every step is computed, whatever the model would have chosen.

        So the same session can be played under each policy. `end` closes the answer in the history.

        Raises:
            SessionFull: the policy refuses the turn; the session is as it was.
        """
        began, before = time.perf_counter(), self.usage
        session, policy = self.session, self.policy
        lengths = [*map(len, session.turns), len(question)]
        left = policy.leave(session.head + policy.summary_tokens, lengths)
        if left:
            if policy.summary_tokens:
                summary = self.summarise(self, session.turns[:left])
                session.summary = list(summary)[: policy.summary_tokens]
            del session.turns[:left]
        session.turns.append(list(question))
        _, times, cache = self._run(session.prompt(self.order), len(answer), answer)
        session.turns[-1] += [*answer, *end]
        steps = sorted(later - earlier for earlier, later in zip(times, times[1:], strict=False))
        return Turn(
            ttft_seconds=times[0] - began,
            tpot_seconds=steps[len(steps) // 2] if steps else float("nan"),
            context=cache.length,
            resident_bytes=cache.nbytes,
            usage=Usage(*(getattr(self.usage, f) - getattr(before, f) for f in ("found", "written", "output"))),
            left=left,
        )

    def ask(self, question: Sequence[int], count: int, stop: int | None = None) -> list[int]:
        """What the model answers, greedily, to the session with `question` at its end; neither stays in the session.

        Args:
            count: tokens of the answer at most.
            stop: a token id that ends the answer; it is not returned.
        """
        return self._run([*self.session.prompt(self.order), *question], count, stop=stop)[0]

    def _run(self, prompt: list[int], count: int, given: Sequence[int] | None = None, stop: int | None = None):
        """One request: (tokens of the answer, the time at which each was there, the cache as it stood then)."""
        held = self.blocks.open(prompt)
        new = prompt[held.hit_tokens :]
        cache = PagedCache(self.pool, [held.table], length=held.hit_tokens)
        found, answer, times = held.hit_tokens, [], []
        try:
            self.pool.copy(self.blocks.extend(held, new))
            logits = self.model.prefill(torch.tensor([new], device=self.model.device), cache)
            while True:
                token = int(logits.argmax(dim=-1))  # waits for the device
                times.append(time.perf_counter())
                token = token if given is None else given[len(answer)]
                if token == stop:
                    break
                answer.append(token)
                if len(answer) == count:
                    break
                self.pool.copy(self.blocks.extend(held, [token]))
                logits = self.model.decode(torch.tensor([token], device=self.model.device), cache)
            resident = PagedCache(self.pool, [list(held.table)], length=cache.length)
        finally:
            self.blocks.close(held)
        self.usage += Usage(found, len(prompt) - found, len(answer))
        return answer, times, resident
