"""Steps on the way to an answer, and the reference answer itself, for who is stuck.

    check.hint("04.8")        the first step; called again, the next
    check.solution("04.8")    the reference code, and why it is so

Both come from the unit's source by way of `make notebooks`, which writes `helpers/exercises/uNN.json`; both are noted
in the learner's log. `COURSE_HINTS=off`, or a file named `no-hints` beside those, switches them off for a class.
"""

import functools
import json
import os
from pathlib import Path

from helpers import estimates
from helpers.friendly import Friendly, say

FOLDER = Path(__file__).parent / "exercises"
USUAL = "(With the usual numbers of this exercise; yours are others.)"
varied: set[str] = set()  # exercises that this session's notebook asks with other numbers
_given: dict[str, int] = {}  # steps that were shown in this session, by exercise


class Unknown(Friendly, ValueError):
    """An exercise that does not exist; notebooks show the message alone."""


def hint(exercise: str) -> None:
    """Print the next step towards the answer of `exercise` ("04.8"). ValueError for an exercise that does not exist."""
    steps = _entry(exercise)["hints"]
    if not allowed():
        print("Hints are switched off in this class.")
        return
    number = _given.get(exercise, 0) + 1
    if number > len(steps):
        print(f'That was all: check.solution("{exercise}") shows the answer.' if steps else _no_steps(exercise))
        return
    _given[exercise] = number
    estimates.helped(exercise, "hint", number)
    say(f"Hint {number} of {len(steps)} for {exercise}:  {steps[number - 1]}", *_usual(exercise))


def solution(exercise: str) -> None:
    """Print the reference answer of `exercise` ("04.8"). ValueError for an exercise that does not exist."""
    entry = _entry(exercise)
    if not allowed():
        print("Solutions are switched off in this class.")
        return
    estimates.helped(exercise, "solution", 1)
    print("\n\n".join([f"{exercise}, the course's own answer:", *_usual(exercise), entry["solution"]]))
    if entry["why"]:
        say("", entry["why"])


def allowed() -> bool:
    """Whether this copy of the course gives hints and solutions."""
    return os.environ.get("COURSE_HINTS", "") != "off" and not (FOLDER / "no-hints").exists()


def offer(exercise: str) -> str:
    """What a failing test may say about help, or "" where there is none."""
    entry = unit(exercise.split(".")[0])["exercises"].get(exercise)
    if entry is None or not allowed():
        return ""
    answer = f'check.solution("{exercise}") shows the answer'
    return f'Stuck? check.hint("{exercise}") gives a first step, {answer}.' if entry["hints"] else f"Stuck? {answer}."


@functools.cache
def unit(number: str) -> dict:
    """What the build took from the source of unit `number` ("04"): "exercises", "answers" and "names".

    exercises   {"04.8": {"hints": […], "solution": code, "why": text, "points": of its test}}
    answers     {name: the exercise whose answer cell defines it}
    names       what the other cells define
    """
    try:
        return json.loads((FOLDER / f"u{number}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # without this file there is no help, and everything else works
        return {"exercises": {}, "answers": {}, "names": []}


def _usual(exercise: str) -> list[str]:
    return [USUAL] if exercise in varied else []


def _entry(exercise: str) -> dict:
    exercises = unit(str(exercise).split(".")[0])["exercises"]
    if exercise not in exercises:
        known = f"; this unit has {', '.join(exercises)}" if exercises else ""
        raise Unknown(f'there is no exercise {exercise!r}, write it as "04.8"{known}')
    return exercises[exercise]


def _no_steps(exercise: str) -> str:
    return f'There are no hints for {exercise}; check.solution("{exercise}") shows the answer.'
