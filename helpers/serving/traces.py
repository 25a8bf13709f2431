"""What a day of requests looks like to a prefix cache: traces made here, traces from elsewhere, and their hit rate.

A *request* is a prompt and its answer, in tokens; `generate` makes them. A *hashed request* knows only the names of
its blocks: equal names mean equal histories. Public traces come in that form, one JSON object a line

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, …]}

(milliseconds; tokens; one id for each block of the prompt, the partly filled last one included), because it tells what
was shared and nothing of what was said. Mooncake's is one, with blocks of 512 tokens. The Bailian traces
(https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon) are others, with blocks of 16: their rows also have
`chat_id`, `parent_chat_id` and `turn`, and their timestamps are seconds. `load` reads both, `hashed` makes them.
"""

import gzip
import io
import json
import os
import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.numbers import check_int

VOCABULARY = 49_152


class BadTrace(ValueError):
    """A line of a trace file is not what it has to be; the message names file and line."""


@dataclass(frozen=True)
class Request:
    """One prompt [token ids] with the answer [token ids] to it; `kind` is "turn", "tool", "edit" or "compaction".

    `system` says how many tokens of the prompt are the system prompt in front.
    """

    time_seconds: float
    session: int
    kind: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    system: int = 0


@dataclass(frozen=True)
class HashedRequest:
    """A request as names of blocks.

    hash_ids     of the blocks of the prompt, a partly filled last one included
    stored_ids   of the full blocks that can be found afterwards: the prompt's, and the answer's where it is known
    """

    time_seconds: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    stored_ids: tuple[int, ...]


def generate(
    sessions: int = 40,
    seed: int = 0,
    *,
    turns: int = 8,
    agents: int = 4,
    timestamp: bool = False,
    compact_at: int | None = None,
    same_prefix: bool = True,
) -> list[Request]:
    """A seeded trace of chat sessions, in order of time.

    Every session belongs to one of a few agents and begins with that agent's system prompt (500 to 1,500 tokens).
    A turn is a question (20 to 120 tokens) and an answer (50 to 300); in four turns of ten the answer calls a tool,
    whose output (200 to 1,500 tokens) comes back as a further request; in one of twenty the user edits the question.

    Args:
        sessions: how many; they begin at random within an hour and last for minutes.
        turns: mean number of turns of a session.
        agents: different system prompts.
        timestamp: write the time, a token that is never the same, in front of every prompt.
        compact_at: a history longer than this many tokens is summarised by a request of its own, and replaced.
        same_prefix: that request begins with the session's history as it stands and asks at the end; otherwise it
            begins with a system prompt of its own.

    Raises:
        ValueError: a count is not positive.
    """
    for name, value in (("sessions", sessions), ("turns", turns), ("agents", agents)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    dice = random.Random(seed)
    systems = [_words(dice, 500, 1_500) for _ in range(agents)]
    summariser = _words(dice, 150, 150)
    requests = []
    for session in range(sessions):
        requests += _session(dice, session, dice.choice(systems), turns, compact_at, summariser, same_prefix)
    requests.sort(key=lambda request: request.time_seconds)
    if timestamp:
        # Ids beyond the vocabulary: no two prompts share this token.
        requests = [replace(r, prompt=(VOCABULARY + i, *r.prompt)) for i, r in enumerate(requests)]
    return requests


def _words(dice: random.Random, low: int, high: int) -> list[int]:
    return [dice.randrange(VOCABULARY) for _ in range(dice.randint(low, high))]


def _session(dice, session, system, turns, compact_at, summariser, same_prefix) -> list[Request]:
    requests, history, time = [], list(system), dice.uniform(0, 3_600)

    def ask(kind: str, prompt: list[int], low: int = 50, high: int = 300) -> list[int]:
        nonlocal time
        answer = _words(dice, low, high)
        requests.append(Request(time, session, kind, tuple(prompt), tuple(answer), len(system)))
        time += dice.uniform(2, 5) if kind == "tool" else dice.expovariate(1 / 45)
        return answer

    for _ in range(dice.randint(1, 2 * turns - 1)):
        before = list(history)
        history += _words(dice, 20, 120)
        history += ask("turn", history)
        if dice.random() < 0.4:
            history += _words(dice, 200, 1_500)
            history += ask("tool", history)
        elif dice.random() < 1 / 12:  # of the other six in ten: one turn in twenty
            history = before + _words(dice, 20, 120)
            history += ask("edit", history)
        if compact_at is not None and len(history) > compact_at:
            instruction = _words(dice, 40, 40)
            prompt = history + instruction if same_prefix else summariser + history[len(system) :] + instruction
            history = list(system) + ask("compaction", prompt, 300, 300)
    return requests


def hashed(requests: Iterable[Request], block_size: int, answers: bool = True) -> list[HashedRequest]:
    """The same trace as names of blocks, each chained to the one before it.

    Args:
        block_size: tokens a block holds.
        answers: keep the blocks that an answer fills, too. The newest token of an answer has not been read yet, so its
            key and value do not exist.
    """
    check_int("hashed", "block_size", block_size, minimum=1)
    numbers: dict[tuple, int] = {}

    def names(tokens: Sequence[int], begin: Sequence[int] = ()) -> tuple[int, ...]:
        """Of all blocks of `tokens`, of which the first are named `begin`."""
        found, parent = list(begin), begin[-1] if begin else -1
        for start in range(len(found) * block_size, len(tokens), block_size):
            # Two different blocks never get one number: the key is the whole block and its parent, not a hash.
            parent = numbers.setdefault((parent, tuple(tokens[start : start + block_size])), len(numbers))
            found.append(parent)
        return tuple(found)

    result = []
    for r in requests:
        stored = (*r.prompt, *r.answer[:-1]) if answers else r.prompt
        kept = names(stored[: len(stored) // block_size * block_size])
        asked = names(r.prompt, kept[: len(r.prompt) // block_size])
        result.append(HashedRequest(r.time_seconds, len(r.prompt), len(r.answer), asked, kept))
    return result


FORM = (
    'a trace is one JSON object a line, {"timestamp": 27482, "input_length": 6955, "output_length": 52, '
    '"hash_ids": [46, 47, …]}'
)
# Public traces as CSV, by columns that only they have: times and lengths, and no names of blocks.
WITHOUT_BLOCKS = {"ContextTokens": "Azure's LLM inference trace", "Request tokens": "BurstGPT"}
BAILIAN = {"chat_id", "parent_chat_id", "turn"}


def load(path: str | os.PathLike, block_size: int = 512) -> list[HashedRequest]:
    """A trace of hashed blocks from a file of JSON lines (see the top of this module), as it is or gzipped.

    Empty lines are left out. Answers are not in such a file: what a later prompt repeats of them is found in the ids of
    that prompt.

    Args:
        block_size: tokens a block, as the publisher of the trace states it: 512 for Mooncake's, 16 for the Bailian's.

    Raises:
        FileNotFoundError: no such file.
        BadTrace: a line is not JSON, lacks a field, or holds what cannot be; the message names file and line. A CSV,
            such as Azure's or BurstGPT's: it does not say which prompts shared anything.
    """
    path = Path(path)
    requests: list[HashedRequest] = []
    with _lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{path.name}, line {number}"
                before = requests[-1].time_seconds if requests else float("-inf")
                requests.append(_parse(line, where, block_size, before))
    if not requests:
        raise BadTrace(f"{path.name} holds no request: {FORM}")
    return requests


def _lines(path: Path) -> io.TextIOBase:
    """The text of a file, unpacked where it is gzipped; a byte-order mark is left out."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return (gzip.open if packed else open)(path, "rt", encoding="utf-8-sig", errors="replace")


def _parse(line: str, where: str, block_size: int, before: float) -> HashedRequest:
    try:
        row = json.loads(line)
    except ValueError as error:
        for column, trace in WITHOUT_BLOCKS.items():
            if column in line:
                raise BadTrace(
                    f"{where}: these are the columns of {trace}, which has times and lengths and no hash_ids: what "
                    f"its prompts share cannot be told. What can be read: {FORM}"
                ) from None
        raise BadTrace(f"{where}: not JSON ({error}); {FORM}") from None
    if not isinstance(row, dict):
        raise BadTrace(f"{where}: a request is a JSON object, not a {type(row).__name__}")
    missing = [name for name in ("timestamp", "input_length", "output_length", "hash_ids") if name not in row]
    if missing:
        raise BadTrace(f"{where}: {missing[0]} is missing")
    time, ids, bailian = row["timestamp"], row["hash_ids"], set(row) >= BAILIAN
    unit, ticks = ("seconds", 1) if bailian else ("milliseconds", 1e3)
    if not (_is_whole(time) or isinstance(time, float)) or not before <= time / ticks < float("inf"):
        raise BadTrace(f"{where}: timestamp has to be a number of {unit}, not before the line above; it is {time!r}")
    for name, least in (("input_length", 1), ("output_length", 0)):
        if not _is_whole(row[name]) or row[name] < least:
            raise BadTrace(f"{where}: {name} has to be a whole number of at least {least}; it is {row[name]!r}")
    if not isinstance(ids, list) or not all(map(_is_whole, ids)):
        raise BadTrace(f"{where}: hash_ids has to be a list of whole numbers")
    needed = -(-row["input_length"] // block_size)
    if len(ids) != needed:
        raise BadTrace(
            f"{where}: {row['input_length']} tokens are {needed} blocks of {block_size}, and there are {len(ids)} "
            f"hash_ids; is block_size what the trace was made with?{' The Bailian traces have 16.' * bailian}"
        )
    full = tuple(ids[: row["input_length"] // block_size])
    return HashedRequest(time / ticks, row["input_length"], row["output_length"], tuple(ids), full)


def _is_whole(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def hit_tokens(requests: Iterable[HashedRequest], block_size: int, blocks: int | None = None) -> list[int]:
    """Tokens of each prompt that were found in the cache when it came, one request at a time.

    Full blocks only, the longest prefix, never the last token of a prompt; the block used least recently is evicted
    first, and of one request its last.

    Args:
        blocks: size of the cache; None never evicts.

    Raises:
        ValueError: a size is not positive.
    """
    check_int("hit_tokens", "block_size", block_size, minimum=1)
    if blocks is not None:
        check_int("hit_tokens", "blocks", blocks, minimum=1)
    cached: OrderedDict[int, None] = OrderedDict()  # oldest first
    hits = []
    for request in requests:
        found = 0
        for block in request.hash_ids[: (request.input_length - 1) // block_size]:
            if block not in cached:
                break
            found += 1
        hits.append(found * block_size)
        for block in reversed(request.stored_ids[:blocks]):
            cached[block] = None
            cached.move_to_end(block)
        while blocks is not None and len(cached) > blocks:
            cached.popitem(last=False)
    return hits


def hit_rate(requests: Sequence[HashedRequest], block_size: int, blocks: int | None = None) -> float:
    """Share of all prompt tokens that were found in the cache, 0 to 1; arguments as for `hit_tokens`."""
    return sum(hit_tokens(requests, block_size, blocks)) / sum(request.input_length for request in requests)
