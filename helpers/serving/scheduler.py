"""Continuous batching over a real decoder and a paged cache: who is computed in the next step, and who has to wait.

A step is one pass of the decoder: every running answer grows by one token, and of the prompts as much is read as fits a
budget of tokens (chunked prefill with piggybacked decodes: Agrawal et al., arXiv 2308.16369 and 2403.02310). Requests
start when the blocks of their prompt are free; when a running one cannot grow, the one that started last gives its
blocks back and is read again later (preemption by recomputation: Kwon et al., arXiv 2309.06180, section 4.5).
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral

import torch

from helpers.caches import BlockPool, PagedCache
from helpers.models.decoder import Decoder
from helpers.serving.blocks import BlockManager, OutOfBlocks, Session
from helpers.serving.traces import HashedRequest


@dataclass(frozen=True)
class Arrival:
    """A request that comes in at `time_seconds`: its prompt [token ids] and how many tokens are to be answered."""

    time_seconds: float
    prompt: tuple[int, ...]
    answer_tokens: int

    def __post_init__(self):
        if not self.prompt or self.answer_tokens < 1:
            raise ValueError("a request needs a prompt of at least one token, and an answer of at least one")


def poisson(
    count: int,
    per_second: float,
    vocabulary: int,
    prompt_tokens: tuple[int, int],
    answer_tokens: tuple[int, int],
    seed: int = 0,
) -> list[Arrival]:
    """`count` seeded arrivals at random times, `per_second` of them on average; lengths are drawn evenly.

    Args:
        prompt_tokens, answer_tokens: the least and the most of each, both included.
    """
    dice, now, arrivals = random.Random(seed), 0.0, []
    for _ in range(count):
        now += dice.expovariate(per_second)
        prompt = tuple(dice.randrange(vocabulary) for _ in range(dice.randint(*prompt_tokens)))
        arrivals.append(Arrival(now, prompt, dice.randint(*answer_tokens)))
    return arrivals


def from_trace(requests: Iterable[HashedRequest], block_size: int, vocabulary: int, seed: int = 0) -> list[Arrival]:
    """Arrivals in the times and lengths of a trace of hashed blocks (`helpers.serving.traces`).

    A trace does not tell what was said: each block's tokens are drawn, equal ones for equal names, so that what was
    shared is shared again.
    """
    arrivals = []
    for request in requests:
        tokens: list[int] = []
        for name in request.hash_ids:
            dice = random.Random(f"{seed}/{name}")
            tokens += [dice.randrange(vocabulary) for _ in range(block_size)]
        prompt = tuple(tokens[: request.input_length])
        arrivals.append(Arrival(request.time_seconds, prompt, max(1, request.output_length)))
    return arrivals


@dataclass(eq=False)
class Job:
    """A request on its way.

    answer          tokens so far
    token_seconds   when each of them came, on the scheduler's clock
    refused         why it can never run; empty where it can
    preemptions     how often its blocks were taken away
    """

    arrival: Arrival
    answer: list[int] = field(default_factory=list)
    token_seconds: list[float] = field(default_factory=list)
    refused: str = ""
    preemptions: int = 0
    session: Session | None = None

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer so far."""
        return [*self.arrival.prompt, *self.answer]

    @property
    def unread(self) -> int:
        """Tokens whose keys and values are not in the cache."""
        held = len(self.session.tokens) if self.session else 0
        return len(self.arrival.prompt) + len(self.answer) - held

    @property
    def decoding(self) -> bool:
        """Whether only the newest token of its answer is unread."""
        return bool(self.answer) and self.unread == 1

    @property
    def ttft_seconds(self) -> float:
        """From its arrival to its first token."""
        return self.token_seconds[0] - self.arrival.time_seconds

    @property
    def gaps_seconds(self) -> list[float]:
        """Inter-token latencies."""
        return [b - a for a, b in zip(self.token_seconds, self.token_seconds[1:], strict=False)]

    @property
    def tpot_seconds(self) -> float:
        """Mean of the gaps; 0 where there is none."""
        gaps = self.gaps_seconds
        return sum(gaps) / len(gaps) if gaps else 0.0


@dataclass(frozen=True)
class Step:
    """What one step did: answers that grew, tokens of prompts that were read, and how long it took."""

    decoded: int
    read: int
    seconds: float


class Scheduler:
    """Runs requests together, step by step. `plan` and `admit` are its decisions; a subclass may replace them.

    Args:
        decoder, pool: the model, and the blocks that its keys and values lie in.
        budget: tokens a step may compute, all answers together with all chunks; None reads each prompt in one piece.
        blocks: whose block is whose, of the pool's size; a new manager if None.
        now: time source, seconds. Waiting for the next arrival takes no time: the scheduler's clock skips it.

    Raises:
        ValueError: a budget that is not positive, or a manager that does not suit the pool.
    """

    def __init__(
        self,
        decoder: Decoder,
        pool: BlockPool,
        budget: int | None = None,
        blocks: BlockManager | None = None,
        now: Callable[[], float] = time.perf_counter,
    ):
        if budget is not None and budget < 1:
            raise ValueError(f"a step needs a budget of at least one token, not {budget}")
        count = pool.keys.shape[1]
        self.blocks = blocks or BlockManager(count, pool.block_size)
        if (self.blocks.blocks, self.blocks.block_size) != (count, pool.block_size):
            raise ValueError(f"the pool has {count} blocks of {pool.block_size} tokens; build the manager with these")
        self.decoder, self.pool, self.budget, self._now = decoder, pool, budget, now
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []  # in the order in which they started
        self.steps: list[Step] = []
        self.seconds = 0.0

    def plan(self, decoding: int, left: Sequence[int], budget: int | None) -> list[int]:
        """Tokens that each prompt gets in the next step.

        Args:
            decoding: answers that grow by one token each; they come first, and always.
            left: tokens that each unread prompt still has, in order of arrival.
        """
        room = sum(left) if budget is None else max(0, budget - decoding)
        chunks = []
        for tokens in left:
            chunks.append(min(tokens, room))
            room -= chunks[-1]
        return chunks

    def admit(self, waiting: Sequence[int], free: int, block_size: int) -> int:
        """How many of those that wait may start, from the front: nobody overtakes, so that nobody waits for ever.

        Args:
            waiting: tokens that each has to read.
            free: blocks that are nobody's.
        """
        for count, tokens in enumerate(waiting):
            free -= -(-tokens // block_size)
            if free < 0:
                return count
        return len(waiting)

    def submit(self, arrival: Arrival) -> Job:
        """Take a request in. One that can never run is refused: its job says why, and waits for nothing."""
        job = Job(arrival)
        # The last token of an answer is never read.
        needed = len(arrival.prompt) + arrival.answer_tokens - 1
        room, longest = self.blocks.blocks * self.blocks.block_size, self.pool.positions
        asked = f"{len(arrival.prompt)} tokens and an answer of {arrival.answer_tokens} need {needed} places"
        if needed > room:
            job.refused = f"{asked}, and all blocks together have {room}"
        elif needed > longest:
            job.refused = f"{asked}, and a session may have {longest} positions"
        else:
            self.waiting.append(job)
        return job

    def run(self, arrivals: Iterable[Arrival]) -> list[Job]:
        """Serve all of them; returns their jobs in order of arrival."""
        coming = deque(sorted(arrivals, key=lambda arrival: arrival.time_seconds))
        jobs = []
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                self.seconds = max(self.seconds, coming[0].time_seconds)
            while coming and coming[0].time_seconds <= self.seconds:
                jobs.append(self.submit(coming.popleft()))
            if self.waiting or self.running:
                self.step()
        return jobs

    def step(self) -> None:
        """One step: every answer grows by a token, and as much of the prompts is read as `plan` says, in one pass.

        Raises:
            ValueError: `plan` or `admit` decided what cannot be.
        """
        start = self._now()
        self._start_waiting()
        decoding = [job for job in self.running if job.decoding]
        reading = [job for job in self.running if not job.decoding]
        chunks = self._planned(len(decoding), [job.unread for job in reading])
        wanted = dict.fromkeys(decoding, 1) | dict(zip(reading, chunks, strict=True))
        # The oldest first: whoever has to go is younger, and has not been given its places in this step.
        jobs = [job for job in list(self.running) if wanted[job] and self._make_room(job, wanted[job])]
        told = self._pass([(job, wanted[job]) for job in jobs])
        seconds = self._now() - start
        self.seconds += seconds
        decoded = sum(job in jobs for job in decoding)
        self.steps.append(Step(decoded, sum(wanted[job] for job in jobs) - decoded, seconds))
        for job, token in told:
            job.answer.append(token)
            job.token_seconds.append(self.seconds)
            if len(job.answer) == job.arrival.answer_tokens:
                self._stop(job)

    def _start_waiting(self) -> None:
        """Start as many of those that wait as `admit` lets in."""
        if not self.waiting:
            return
        size = self.blocks.block_size
        promised = sum(-(-len(job.tokens) // size) - len(_table(job)) for job in self.running if not job.decoding)
        # What runs will grow: without a block kept for each, a newcomer would be thrown out at once.
        free = len(self.blocks.free) + len(self.blocks.cached) - promised - len(self.running)
        count = self.admit([len(job.tokens) for job in self.waiting], free, size)
        if isinstance(count, bool) or not isinstance(count, Integral) or not 0 <= count <= len(self.waiting):
            raise ValueError(f"admit must say how many of {len(self.waiting)} may start, not {count!r}")
        if not count and not self.running:
            raise ValueError("nothing runs and admit lets nobody in, although the first fits: all would wait for ever")
        for _ in range(int(count)):
            job = self.waiting.popleft()
            job.session = self.blocks.open(job.tokens)
            self.running.append(job)

    def _planned(self, decoding: int, left: list[int]) -> list[int]:
        chunks = list(self.plan(decoding, left, self.budget))
        if len(chunks) != len(left) or not all(0 <= n <= most for n, most in zip(chunks, left, strict=False)):
            raise ValueError(f"plan must give each of the prompts with {left} unread tokens its chunk, not {chunks}")
        if not decoding and not any(chunks):
            raise ValueError("plan lets nobody move: no answer grows and no prompt is read")
        return chunks

    def _pass(self, taken: list[tuple[Job, int]]) -> list[tuple[Job, int]]:
        """One pass of the decoder over the newest tokens of each job, as many as it was just given places for.

        Returns the next token of each whose prompt and answer are in the cache now.
        """
        singles = [job for job, tokens in taken if tokens == 1]
        batches = [(singles, 1)] if singles else []
        batches += [([job], tokens) for job, tokens in taken if tokens > 1]
        if not batches:
            return []
        logits = self.decoder.mixed([self._part(jobs, tokens) for jobs, tokens in batches])
        # .tolist() waits for the device, so that a step's time is its own.
        said = torch.cat(logits).argmax(dim=-1).tolist()
        jobs = [job for batch, _ in batches for job in batch]
        return [(job, token) for job, token in zip(jobs, said, strict=True) if not job.unread]

    def _part(self, jobs: list[Job], tokens: int) -> tuple[torch.Tensor, PagedCache]:
        """The newest `tokens` [jobs, tokens] of each, and their cache without these."""
        sessions = [job.session for job in jobs if job.session]
        newest = torch.tensor([session.tokens[-tokens:] for session in sessions], device=self.decoder.device)
        tables, lengths = zip(*((s.table, len(s.tokens) - tokens) for s in sessions), strict=True)
        return newest, PagedCache(self.pool, list(tables), lengths, self.decoder.backend)

    def _make_room(self, job: Job, tokens: int) -> bool:
        """Give the next `tokens` of `job` their places, if need be those of who started last; False if that is it."""
        while job.session:
            held = len(job.session.tokens)
            try:
                self.pool.copy(self.blocks.extend(job.session, job.tokens[held : held + tokens]))
                return True
            except OutOfBlocks:
                self._preempt(self.running[-1])
        return False

    def _preempt(self, job: Job) -> None:
        """Take the blocks of `job`; it goes to the front of the queue, and reads prompt and answer again."""
        self._stop(job)
        job.preemptions += 1
        self.waiting.appendleft(job)

    def _stop(self, job: Job) -> None:
        assert job.session is not None
        self.running.remove(job)
        self.blocks.close(job.session)
        job.session = None


def _table(job: Job) -> list[int]:
    return job.session.table if job.session else []
