"""Which submissions' code is alike once names are taken away: token shingles, compared by what they share.

Two answers are cut into runs of SHINGLE tokens, in which every name of the learner's own is one and the same; their
likeness is the share of runs that both have (Jaccard). Only functions and classes are compared, and none shorter than
SHORTEST tokens: of `return 2 * x` there is one form. THRESHOLD is above all but one of the other right answers that
tests/misconceptions holds against the reference: see docs/instructors.md. It says where to look, and nothing about why.
"""

import builtins
import io
import keyword
import tokenize
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

SHINGLE, SHORTEST, THRESHOLD = 6, 60, 0.85
KEPT = set(keyword.kwlist) | set(dir(builtins))
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER, tokenize.NEWLINE}


@dataclass(frozen=True)
class Pair:
    """Two students whose answers to an exercise share this much."""

    one: str
    other: str
    exercise: str
    share: float


def tokens(source: str) -> list[str]:
    """The cell as tokens: own names as `n`, attributes and keywords as they are, numbers and text as `0`."""
    found, before = [], ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in SKIPPED or (token.type == tokenize.STRING and before in ("", "indent", ":")):
                continue  # docstrings with the rest of the comments
            if token.type in (tokenize.INDENT, tokenize.DEDENT):
                text = "indent"
            elif token.type == tokenize.NAME:
                text = token.string if token.string in KEPT or before == "." else "n"
            else:
                text = "0" if token.type in (tokenize.NUMBER, tokenize.STRING) else token.string
            found.append(text)
            before = text
    except (tokenize.TokenError, SyntaxError):
        pass
    return found


def pairs(answers: dict[tuple[str, str], str], stubs: dict[str, str]) -> list[Pair]:
    """Pairs that are alike, most alike first.

    `answers` maps (student, exercise) to the cell's source, `stubs` an exercise to what was handed out.
    """
    by_exercise: dict[str, dict[str, frozenset]] = defaultdict(dict)
    for (student, exercise), source in answers.items():
        own, stub = tokens(source), tokens(stubs.get(exercise, ""))
        if len(own) >= SHORTEST and own != stub and {"def", "class"} & set(stub):
            by_exercise[exercise][student] = shingles(own)
    found = []
    for exercise, given in by_exercise.items():
        for (one, a), (other, b) in combinations(sorted(given.items()), 2):
            share = len(a & b) / len(a | b)
            if share >= THRESHOLD:
                found.append(Pair(one, other, exercise, share))
    return sorted(found, key=lambda p: (-p.share, p.exercise, p.one))


def shingles(found: Iterable[str]) -> frozenset:
    found = list(found)
    return frozenset(tuple(found[i : i + SHINGLE]) for i in range(max(1, len(found) - SHINGLE + 1)))
