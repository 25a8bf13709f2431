"""Checks of unit 07, "Cap or compact": bytes and prices by arithmetic, the rule against every shorter tail."""

from __future__ import annotations

import itertools
from numbers import Integral

from helpers import data
from helpers.check import Wrong, call, entries, exercise, number, part, require
from helpers.models.counts import kv_bytes
from helpers.models.geometry import get
from helpers.serving.sessions import Usage, shrink

WEIGHTS, SESSIONS = 15.01e9, 8


def _token_bytes() -> int:
    return kv_bytes(get("Llama-3.1-8B"), 1)


@exercise("07.1")
def tpot_of_each_policy(tpot_ms, *, gpu="H100 SXM"):
    bandwidth = 1e9 * data.device(gpu)["bandwidth_GBps"]
    lengths = {
        "nothing done, at 30,000": 30_000,
        "truncated at 8,000": 8_000,
        "compacted, just before": 8_000,
        "compacted, just after": 3_000,
    }
    entries("tpot_ms", tpot_ms, lengths)
    for name, tokens in lengths.items():
        cache = SESSIONS * tokens * _token_bytes()
        expect = 1e3 * (WEIGHTS + cache) / bandwidth
        slips = {
            "You left the weights out: every step reads them once.": 1e3 * cache / bandwidth,
            "You left the cache out.": 1e3 * WEIGHTS / bandwidth,
            "That is one session; a step reads the caches of 8.": 1e3 * (WEIGHTS + cache / SESSIONS) / bandwidth,
            "The weights are read once for all 8 sessions.": 1e3 * (SESSIONS * WEIGHTS + cache) / bandwidth,
        }
        other = {3_000: 8_000, 8_000: 3_000}.get(tokens)
        if other:
            moment = "just after a compaction, a session has 3,000" if tokens == 3_000 else "here a session has 8,000"
            slips[f"The other mark: {moment} tokens."] = 1e3 * (WEIGHTS + SESSIONS * other * _token_bytes()) / bandwidth
        with part():
            number(tpot_ms[name], expect, unit="ms", rel=0.01, slips=slips, name=name)


@exercise("07.2")
def safe_window(window, *, gpu="H100 SXM", limit_ms=10):
    readable, token = limit_ms * 1e6 * data.device(gpu)["bandwidth_GBps"], _token_bytes()
    room = readable - WEIGHTS
    names = ["longest, 8 sessions", "longest, 24 sessions", "shortest", "most sessions"]
    entries("window", window, names)
    for name, sessions in zip(names, (8, 24), strict=False):
        expect = room / (sessions * token)
        slips = {
            f"You forgot the weights: they are read in the same {limit_ms:g} ms.": readable / (sessions * token),
            f"That is for one session; {sessions} share what is left.": room / token,
            "The weights are read once a step, not once a session.": (readable - sessions * WEIGHTS)
            / (sessions * token),
        }
        with part():
            number(window[name], expect, unit="tokens", rel=0.01, slips=slips, name=name)
    slips = {
        "93 % lies below the floor of 95 %.": 4_000,
        "6,000 keeps 97 % already; the shortest that keeps the floor is asked.": [8_000, 12_000],
        "81 % and 62 % lie below the floor of 95 %.": [1_000, 2_000],
        "Of the n in the table: what lies between 4,000 and 6,000 was not measured.": [5_000, 5_001],
    }
    with part():
        number(window["shortest"], 6_000, unit="tokens", rel=0, slips=slips, name="shortest")
    exact = room / (6_000 * token)
    slips = {
        "Sessions come whole: round down, or TPOT is above its limit.": [exact, int(exact) + 1],
        f"You forgot the weights: they are read in the same {limit_ms:g} ms.": [
            readable / (6_000 * token),
            readable // (6_000 * token),
        ],
        "At 24 sessions the longest lies below the shortest: no window is left.": 24,
        "With 4,000 tokens each the quality is below its floor.": room // (4_000 * token),
        "With 8,000 tokens each; 6,000 are enough.": room // (8_000 * token),
    }
    with part():
        number(window["most sessions"], int(exact), unit="sessions", rel=0, slips=slips, name="most sessions")


@exercise("07.3")
def found_tokens(found):
    again = "Walk from the front: turn 1 has gone, so every later turn stands behind other tokens than before."
    behind = "What stands behind the summary is written anew, whether it changed or not."
    cases = {
        "nothing done": (
            13_000,
            {
                "The question is new: it has to be computed.": 13_200,
                "The turns are found as well: nothing in front of them changed.": 3_000,
                "All 13,000 are in the cache, the last turn as well.": [12_500, 12_700, 12_800],
            },
        ),
        "oldest turn dropped": (
            3_000,
            {
                again: [12_500, 12_700, 13_000],
                "System prompt and tools still stand in front, unchanged.": 0,
                "The tools are found as well: they stand where they stood.": 1_000,
            },
        ),
        "oldest tokens dropped": (
            0,
            {
                "The first token is another one, so nothing matches from the very beginning.": [12_800, 3_000, 2_800],
                "The question is new, and so is everything in front of it.": 13_000,
            },
        ),
        "asks for a summary, instruction behind": (
            13_000,
            {
                "The instruction is new: it has to be computed.": 13_100,
                "The history is sent as it stands, and the model has read all of it.": [12_500, 12_700, 3_000, 0],
            },
        ),
        "asks for a summary, prompt of its own": (
            0,
            {
                "The turns are the same words behind another system prompt: none is found.": [10_000, 13_000],
                "System prompt and tools are not sent here: another one stands in front.": [3_000, 1_000],
            },
        ),
        "summary behind the tools": (
            3_000,
            {
                "Turns 13 to 20 stand behind a new summary: their keys and values are others.": [7_000, 7_500, 4_000],
                "The summary was the answer to a request; in this place, behind the tools, nobody has read it.": 3_500,
                "System prompt and tools still stand in front, unchanged.": [0, 1_000],
            },
        ),
        "summary before the tools": (
            1_000,
            {
                behind: [3_000, 7_000, 5_000],
                "The summary is new: it has to be computed.": 1_500,
                "The system prompt still stands in front, unchanged.": 0,
            },
        ),
    }
    entries("found", found, cases)
    for name, (expect, slips) in cases.items():
        number(found[name], expect, unit="tokens", rel=0, slips=slips, name=name)


def _per_thousand(*turns: tuple[int, int, int]) -> float:
    """Dollars for 1,000 turns of (prompt, found, output) tokens each, the mean where there are several."""
    return 1e3 * sum(Usage(hit, prompt - hit, out).dollars() for prompt, hit, out in turns) / len(turns)


@exercise("07.4")
def cost_of_a_turn(cost):
    ten = [(prompt, prompt - 200, 300) for prompt in range(8_200, 12_701, 500)]
    request, first = (13_100, 13_000, 500), (7_700, 3_000, 300)
    grown, cut = _per_thousand((32_700, 32_500, 300)), _per_thousand((12_700, 3_000, 300))
    whole = _per_thousand(request, first, *ten) * 12
    no_output = "You left the output out: 300 tokens at 15.00."
    cases = {
        "nothing done, turn 60": (
            grown,
            {
                no_output: grown - 4.5,
                "The last answer is found here; only the question, 200 tokens, is written.": grown + 1.035,
                "Everything but the question is found, at 0.30.": [
                    _per_thousand((32_700, 0, 300)),
                    _per_thousand((32_700, 3_000, 300)),
                ],
                "The question is written, at 3.75.": [grown - 0.75, _per_thousand((32_700, 32_700, 300))],
            },
        ),
        "truncated": (
            cut,
            {
                no_output: cut - 4.5,
                "System prompt and tools alone are found; the 19 turns are written anew.": _per_thousand(
                    (12_700, 12_500, 300)
                ),
                "System prompt and tools are found, at 0.30.": [_per_thousand((12_700, 0, 300)), cut - 0.9],
                "What is written costs 3.75, not 3.00.": cut - 9.7 * 0.75,
            },
        ),
        "compacted": (
            whole / 11,
            {
                "That is the sum of the cycle; the mean over its 11 turns is asked.": whole,
                "The cycle has 11 turns: the request for the summary is no turn of the user's.": whole / 12,
                "You left the request for the summary out: it is billed like any other.": (
                    whole - _per_thousand(request)
                )
                / 11,
                "The first turn after the compaction finds 3,000 tokens and writes the rest.": (
                    whole - _per_thousand(first) + _per_thousand((7_700, 7_500, 300))
                )
                / 11,
                "You left the first turn after the compaction out.": (whole - _per_thousand(first)) / 11,
                "The last answer is found here; each of the ten turns writes its question alone.": (whole + 10.35) / 11,
                no_output: (whole - 11 * 4.5) / 11,
            },
        ),
    }
    entries("cost", cost, [*cases, "equal at"])
    for name, (expect, slips) in cases.items():
        number(cost[name], expect, unit="$ for 1,000 turns", rel=0.01, slips=slips, name=name)
    hit = (cut - 0.75 - 4.5) * 1e3 / 0.30
    slips = {
        "You left output and question out: both turns pay them.": cut * 1e3 / 0.30,
        "Only what is found grows, at 0.30 a million.": [
            200 + (cut - 5.25) * 1e3 / 3.75,
            200 + (cut - 5.25) * 1e3 / 3.00,
        ],
        "That is where it equals the compacted session.": 200 + (whole / 11 - 5.25) * 1e3 / 0.30,
    }
    number(cost["equal at"], hit + 200, unit="tokens", rel=0.01, slips=slips, name="equal at")


@exercise("07.5")
def the_rule(function):
    def ask(head, turns, high, low):
        given = list(turns)
        gone = call(function, head, given, high, low)
        require(given == list(turns), "the list `turns` must stay as it was: the session still needs it.")
        require(
            isinstance(gone, Integral) and not isinstance(gone, bool),
            f"return how many turns leave, a whole number; you returned {gone!r}.",
        )
        return gone

    turns = [30, 30, 30, 20]
    shown = "head 10, turns [30, 30, 30, 20], 120 tokens in all"
    require(
        ask(10, turns, 200, 60) == 0,
        f"{shown}; the high mark is 200 and you let {ask(10, turns, 200, 60)} leave. Below it nothing happens, even "
        "above the low mark: that is the hysteresis.",
    )
    require(
        ask(10, turns, 120, 60) == 0,
        f"{shown}, and the high mark is 120: it is reached, not exceeded, so nothing leaves.",
    )
    got = ask(10, turns, 100, 60)
    require(
        got != 1,
        f"{shown}; high 100, low 60, and one turn left, which brings it to 90. Above the high mark, go down to the "
        "*low* mark.",
    )
    require(got == 2, f"{shown}; high 100, low 60: 2 turns have to leave, which brings it to 60; you let {got}.")
    require(
        ask(50, turns, 100, 90) == 3,
        f"head 50, turns {turns}: with high 100 and low 90 three turns leave (70 are left; two would leave 100); you "
        f"let {ask(50, turns, 100, 90)}. Does your rule count the head?",
    )
    require(
        ask(10, [30, 30, 200], 100, 60) == 2,
        "the newest turn alone is longer than the low mark: all others leave and it stays, for it holds the question.",
    )
    require(ask(0, [500], 100, 60) == 0, "one turn, above both marks: it is the question, and it never leaves.")
    cases = 0
    for head, high, low in itertools.product((0, 7, 40), (60, 100, 150), (20, 50, 60)):
        for turns in ([5, 60, 5, 20], [40, 1, 1, 1, 30], [25] * 6, [90, 10]):
            want, got = shrink(head, turns, high, low), ask(head, turns, high, low)
            require(
                got == want,
                f"head {head}, turns {turns}, high {high}, low {low}: {want} turns leave, you let {got}. Turns have "
                "different lengths: take them off one by one, the oldest first.",
            )
            cases += 1
    return f"{cases} sessions"


@exercise("07.6")
def two_prompts(function):
    system, tools, summary, instruction, new = [1, 2], [3, 4], [5], [90, 91], [6]
    turns = [[10, 11], [12], [13, 14]]
    given = [system, tools, summary, turns, instruction, new]
    before = repr(given)
    both = call(function, *given, 2)
    require(
        isinstance(both, (tuple, list)) and len(both) == 2,
        f"return two prompts: `return request, after`; you returned {both!r}.",
    )
    require(
        repr(given) == before,
        "the session's own lists were changed: `+=` and `extend` change a list in place; begin with a new one.",
    )
    request, after = (_flat(prompt) for prompt in both)
    want = [1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 90, 91]
    require(
        request[:2] != instruction,
        "the instruction stands in front: then the first token differs and nothing is found. Put it behind.",
    )
    require(
        request[:2] == system,
        "the request does not begin with the session's system prompt: nothing of what follows can be found.",
    )
    require(request[2:4] == tools, "the tools are missing, or not behind the system prompt: all the turns are missed.")
    require(
        5 in request,
        "the summary so far is missing: what it stands for would be in no later summary, and the turns behind it miss.",
    )
    require(90 in request, "the instruction is missing: nobody has asked for a summary.")
    require(request == want, f"the request has to be {want}; it is {request}. It asks about all that was said.")
    require(after[:1] != new, "the new summary stands in front: what is stable stands behind it and is written anew.")
    require(after[:2] == system and after[2:4] == tools, "system prompt and tools stand in front, as in every prompt.")
    require(6 in after, "the new summary is missing: what left is forgotten.")
    require(5 not in after, "the old summary is still there: the new one takes its place, and says what it said.")
    require(after[-1:] != new, "the summary stands behind the turns; the order is system, tools, summary, turns.")
    require(
        10 not in after and 12 not in after,
        "turns that left are still there: the two oldest are what the summary stands for.",
    )
    require(13 in after, "the turns that stay are missing; the two oldest of three leave, and the last one stays.")
    require(after == [1, 2, 3, 4, 6, 13, 14], f"the turn after has to be [1, 2, 3, 4, 6, 13, 14]; it is {after}.")
    _, after = call(function, *given, 1)
    require(
        _flat(after) == [1, 2, 3, 4, 6, 12, 13, 14],
        f"with gone = 1 the oldest turn alone leaves, and the turn after has to be [1, 2, 3, 4, 6, 12, 13, 14]; it is "
        f"{after}.",
    )
    return "two prompts"


def _flat(prompt) -> list:
    try:
        tokens = list(prompt)
    except TypeError:
        raise Wrong(f"each of the two prompts has to be a list of tokens; one is {prompt!r}.") from None
    require(
        not any(isinstance(token, (list, tuple)) for token in tokens),
        "there are lists inside the list: a prompt is one row of tokens, so join the turns.",
    )
    return tokens


@exercise("07.7")
def key_sentences(function):
    def ask(said, words):
        given = list(said)
        got = call(function, given, words)
        require(
            not isinstance(got, str),
            "return a list of sentences, not one string: they are joined elsewhere.",
        )
        try:
            got = list(got)
        except TypeError:
            raise Wrong(f"return a list of sentences; you returned {got!r}.") from None
        require(given == list(said), "the list `sentences` must stay as it was: sorted() makes a new one, sort() not.")
        return got

    dog, rain, room, port = "My dog is called Bruno.", "It rains today.", "We meet in room 5.", "Port 80."
    said = [dog, rain, room, port]
    got = ask(said, 99)
    require(rain not in got, f"{rain!r} holds no digit and none of the four words, and you kept it.")
    require(
        dog in got or not ask([dog.lower()], 99), f"{dog!r} begins with My: compare in any case, so lower() it first."
    )
    require(dog in got, f"{dog!r} holds one of the four words, and you left it out: a digit *or* a word is enough.")
    require(port in got, f"{port!r} holds a digit, and you left it out.")
    require(
        got == [dog, room, port] or sorted(got) != sorted([dog, room, port]),
        "right sentences, in the order in which you took them; return them as they were said.",
    )
    require(got == [dog, room, port], f"with room for 99 words, keep {[dog, room, port]}; you kept {got}.")
    require(
        ask(["Bring it along.", "Myriads of them."], 99) == [],
        "'Bring' holds an i and 'Myriads' begins with my: compare whole words, sentence.split(), not pieces of text.",
    )
    for word in ("I", "my", "we", "our"):
        line = f"There {word} is"
        require(ask([line], 99) == [line], f"{line!r} holds {word!r}, one of the four words, and you left it out.")
    noon = "We meet in room 5 at noon today."
    got = ask([noon, dog, rain, port], 9)
    require(
        got != [noon],
        "you took the sentences as they come, or the longest first. The shortest come first: with 9 words, those of 2 "
        "and of 5, and then the one of 8 does not fit any more.",
    )
    require(sum(len(s.split()) for s in got) <= 9, f"you kept {got}: that is more than 9 words.")
    require(got == [dog, port], f"with room for 9 words, keep {[dog, port]} of {[noon, dog, rain, port]}; not {got}.")
    require(
        ask([dog, noon, room, port], 9) == [dog, port],
        f"{dog!r} and {room!r} have 5 words each, and one of them fits beside {port!r}: the one that was said first. "
        "(Count words, not letters.)",
    )
    got = ask([dog, port], 7)
    require(got == [dog, port], "5 and 2 words fill 7 exactly, and both fit.")
    require(
        ask(["I like tea a lot.", "We won."], 5) == ["We won."],
        "of 'I like tea a lot.' and 'We won.', with room for 5 words, the shorter one is kept: sort by the number of "
        "words; the sentences themselves sort by the alphabet.",
    )
    same = ["I eat.", "a 1 b c", "I eat.", "2 b"]
    require(
        ask(same, 6) == ["I eat.", "I eat.", "2 b"],
        "a sentence that was said twice counts twice; remember positions and not the sentences themselves.",
    )
    require(ask([], 10) == [] and ask(said, 0) == [], "without sentences, or without room, the list is empty.")
    return "key sentences of 9 texts"


STABLE = ("system prompt", "tool schemas", "project files")
PARTS = {
    "system prompt": 1_000,
    "tool schemas": 20_000,
    "project files": 76_000,
    "summary": 2_000,
    "recent turns": 4_000,
    "time of day": 10,
}


def found_in(order) -> tuple[int, int]:
    """Tokens found from one turn to the next, and from a compaction to the turn after it, with the parts in `order`."""
    usual = after = 0
    for name in order:
        if name == "time of day":
            break
        usual += PARTS[name]
        if name == "recent turns":  # found as they were, then the new question: nothing behind it is where it was
            break
    for name in order:
        if name not in STABLE:
            break
        after += PARTS[name]
    return usual, after


@exercise("07.8")
def order_of_the_parts(order):
    require(
        isinstance(order, (list, tuple)) and all(isinstance(part, str) for part in order),
        "order has to be a list of the six names, in quotes.",
    )
    given = [part.strip().lower() for part in order]
    missing = [part for part in PARTS if part not in given]
    require(not missing, f"{missing[0] if missing else ''!r} is missing: list each of the six names once.")
    require(len(given) == len(PARTS), "list each of the six names once, and no other.")
    usual, after = found_in(given)
    best_usual, best_after = found_in(PARTS)
    told = f"from turn to turn {usual:,} tokens are found, after a compaction {after:,}."
    place = {part: given.index(part) for part in given}
    last_stable = max(place[part] for part in STABLE)
    require(
        place["time of day"] > last_stable,
        f"{told} The time of day changes with each turn, and something that never changes stands behind it.",
    )
    require(
        place["summary"] > last_stable,
        f"{told} The summary stands in front of something that never changes: that is written anew at each compaction.",
    )
    require(
        place["recent turns"] > last_stable,
        f"{told} The recent turns stand in front of something that never changes: a new question moves all of it.",
    )
    require(
        place["recent turns"] > place["summary"],
        f"{told} The summary stands behind the turns: it stays the same for many turns, and each of them moves it.",
    )
    require(
        place["time of day"] > place["recent turns"],
        f"{told} The time of day changes with each turn: all that stands behind it is written anew.",
    )
    require((usual, after) == (best_usual, best_after), f"{told} More can be had.")
    return f"{usual:,} tokens found from turn to turn, {after:,} after a compaction"
