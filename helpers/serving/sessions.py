"""How long may a chat grow? A session in parts, and the policies that decide which of its turns are sent again.

A policy answers one question before each turn: how many of the oldest turns *leave*. `shrink` is the rule behind all of
them: above a high mark, leave until a low mark is reached. With both marks equal it is sliding truncation, which drops
something at every turn; with room between them (hysteresis) it acts once in a while.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from helpers.serving.traces import Request

ORDER = ("system", "tools", "summary", "turns")


class SessionFull(ValueError):
    """The next turn does not fit the session's cap, and the policy is to refuse it."""


@dataclass
class Session:
    """What is sent with every turn, as token ids; `turns` holds the oldest first, each a question with its answer."""

    system: list[int] = field(default_factory=list)
    tools: list[int] = field(default_factory=list)
    summary: list[int] = field(default_factory=list)
    turns: list[list[int]] = field(default_factory=list)

    @property
    def head(self) -> int:
        """Tokens that every prompt carries, whatever the policy: system prompt and tools."""
        return len(self.system) + len(self.tools)

    def prompt(self, order: Sequence[str] = ORDER) -> list[int]:
        """All parts in one list, in the given order.

        Raises:
            ValueError: `order` does not name each of the four parts once.
        """
        if sorted(order) != sorted(ORDER):
            raise ValueError(f"order has to name {', '.join(ORDER)}, each once; it is {list(order)}")
        parts = {
            "system": self.system,
            "tools": self.tools,
            "summary": self.summary,
            "turns": [token for turn in self.turns for token in turn],
        }
        return [token for name in order for token in parts[name]]


def shrink(head: int, turns: Sequence[int], high: int, low: int) -> int:
    """How many of the oldest turns leave: none up to the high mark; above it, as few as bring the prompt to the low.

    The newest turn, which holds the question, never leaves, even where it alone is too long.

    Args:
        head: tokens in front that stay: system prompt, tools, the room for a summary.
        turns: tokens of each turn, oldest first, the new question last.

    Raises:
        ValueError: low exceeds high.
    """
    if low > high:
        raise ValueError(f"the low mark ({low}) lies above the high mark ({high}): swap them")
    total, gone = head + sum(turns), 0
    if total <= high:
        return 0
    while total > low and gone < len(turns) - 1:
        total -= turns[gone]
        gone += 1
    return gone


@dataclass(frozen=True)
class Policy:
    """Keeps everything; the base of the others.

    `summary_tokens` is the room for a summary of what left; 0 means that it is dropped without one.
    """

    summary_tokens: int = 0

    def leave(self, head: int, turns: Sequence[int]) -> int:
        """How many of the oldest turns are not sent again; arguments as for `shrink`."""
        return 0


@dataclass(frozen=True)
class HardCap(Policy):
    """Nothing happens up to `limit` tokens. Then the turn is refused, or the session starts over with that question."""

    limit: int = 0
    refuse: bool = True

    def leave(self, head: int, turns: Sequence[int]) -> int:
        """As in `Policy`.

        Raises:
            SessionFull: the turn exceeds the limit and `refuse` is set.
        """
        total = head + sum(turns)
        if total <= self.limit:
            return 0
        if self.refuse:
            raise SessionFull(f"{total} tokens, and the session may have {self.limit}: begin a new one")
        return len(turns) - 1


@dataclass(frozen=True)
class Truncate(Policy):
    """The oldest turns are dropped: above `limit` tokens, down to `low` (None: the limit itself, so at every turn)."""

    limit: int = 0
    low: int | None = None
    rule: Callable[[int, Sequence[int], int, int], int] = shrink

    def leave(self, head: int, turns: Sequence[int]) -> int:
        return self.rule(head, turns, self.limit, self.limit if self.low is None else self.low)


@dataclass(frozen=True)
class Compact(Policy):
    """Above `high` tokens the oldest turns become a summary, as many as bring the prompt down to `low`."""

    high: int = 0
    low: int = 0
    rule: Callable[[int, Sequence[int], int, int], int] = shrink

    def leave(self, head: int, turns: Sequence[int]) -> int:
        return self.rule(head, turns, self.high, self.low)


@dataclass(frozen=True)
class Prices:
    """Dollars per million tokens: input that is written to the cache, input found there, output."""

    written: float
    found: float
    output: float


EARLY_2026 = Prices(written=3.75, found=0.30, output=15.00)  # Sonnet 4.6: `data.price("anthropic-2026-early")`


@dataclass(frozen=True)
class Usage:
    """Tokens of one or several requests as a provider bills them: prompt found, prompt written, output."""

    found: int = 0
    written: int = 0
    output: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.found + other.found, self.written + other.written, self.output + other.output)

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that was found, 0 to 1; 0 without a prompt."""
        return self.found / max(self.found + self.written, 1)

    def dollars(self, prices: Prices = EARLY_2026) -> float:
        return (self.found * prices.found + self.written * prices.written + self.output * prices.output) / 1e6


def replay(requests: Iterable[Request], policy: Policy, same_prefix: bool = True) -> list[Request]:
    """The same traffic as it would have been sent under `policy`, in the same order.

    Args:
        requests: as `traces.generate` makes them, without its own compaction: each prompt carries the whole history.
        same_prefix: the request that asks for a summary begins with the session's history as it stands, the
            instruction at the end; otherwise it begins with a system prompt of its own.

    Returns:
        The requests with shorter prompts, and one of kind "compaction" before each turn that made a summary. A refused
        turn is left out, and so are those that follow in its session.

    Raises:
        ValueError: a prompt does not continue the history of its session.
    """
    sent, open_sessions = [], {}
    for request in requests:
        state = open_sessions.setdefault(request.session, _Replayed(list(request.prompt[: request.system])))
        if not state.full:
            sent += state.next(request, policy, same_prefix)
    return sent


INSTRUCTION = tuple(range(-40, 0))  # ids that no vocabulary has: what matters is where they stand
SUMMARISER = tuple(range(-190, -40))


class _Replayed:
    """One session of a trace: all its turns as they were said, and what the policy still sends of them."""

    def __init__(self, system: list[int]):
        self.said: list[list[int]] = []
        self.left = 0  # of `said`, how many are not sent any more
        self.session, self.full, self.compactions = Session(system), False, 0

    def next(self, request: Request, policy: Policy, same_prefix: bool) -> list[Request]:
        question = self._new_in(request)
        self.session.turns = self.said[self.left :]
        lengths = [*map(len, self.session.turns), len(question)]
        try:
            gone = policy.leave(self.session.head + policy.summary_tokens, lengths)
        except SessionFull:
            self.full = True
            return []
        before = []
        if gone and policy.summary_tokens:
            before = [self._compaction(request, policy, same_prefix)]
        self.left += gone
        self.session.turns = [*self.said[self.left :], question]
        self.said.append([*question, *request.answer])
        return [*before, replace(request, prompt=tuple(self.session.prompt()))]

    def _new_in(self, request: Request) -> list[int]:
        """What the prompt says beyond the turns before it; an edited question takes the place of the last one."""
        rest = list(request.prompt[request.system :])
        for kept in (len(self.said), len(self.said) - 1):
            history = [token for turn in self.said[: max(kept, 0)] for token in turn]
            if rest[: len(history)] == history and list(request.prompt[: request.system]) == self.session.system:
                del self.said[max(kept, 0) :]
                return rest[len(history) :]
        raise ValueError(
            f"a prompt of session {request.session} does not continue its history: replay what traces.generate makes "
            "without timestamp and without compact_at"
        )

    def _compaction(self, request: Request, policy: Policy, same_prefix: bool) -> Request:
        history = self.session.prompt()
        if not same_prefix:
            history = [*SUMMARISER, *history[self.session.head :]]
        self.compactions += 1
        # A summary that nobody else has: session and number make its ids unlike all others.
        start = 10**6 * (1 + request.session) + 1_000 * self.compactions
        self.session.summary = list(range(start, start + policy.summary_tokens))
        return replace(request, kind="compaction", prompt=(*history, *INSTRUCTION), answer=tuple(self.session.summary))
