"""Every exercise of every unit: the reference passes, the stub is known, each wrong answer is told why."""

import re

import numpy as np
import pytest
import torch

from helpers.check import NotAnswered
from tests.misconceptions.harness import known, near, units
from tools import exercises
from tools.source import solution_notebook, text
from tools.units import find

UNITS = units()
PAGE = exercises.PAGE.read_text(encoding="utf-8")
TOLD = exercises.read(PAGE)
# Other machines and versions count to other last digits, and say the same.
NUMBERS = re.compile(r"\d[\d.,e+-]*")
UNNAMED = re.compile(r"too (high|low), by|: the sign is wrong|wrong in [\d,]+ of [\d,]+ elements")
EXERCISES = [pytest.param(unit, exercise, id=exercise) for unit in UNITS for exercise in unit.exercises]
WRONG = [
    pytest.param(unit, exercise, i, id=f"{exercise}-{i}")
    for unit in UNITS
    for exercise, cases in known(unit)[0].items()
    for i in range(len(cases))
]
NEAR = [
    pytest.param(unit, exercise, snippet, id=f"{exercise}-{i}")
    for unit in UNITS
    for exercise, cases in near(unit).items()
    for i, snippet in enumerate(cases)
]
RIGHT = [
    pytest.param(unit, exercise, snippet, id=f"{exercise}-{i}")
    for unit in UNITS
    for exercise, cases in known(unit)[1].items()
    for i, snippet in enumerate(cases)
]


@pytest.mark.parametrize("unit", [pytest.param(unit, id=unit.name) for unit in UNITS])
def test_unit_is_complete(unit):
    """Each test has its answer; each exercise has four wrong answers and another right one."""
    wrong, right = known(unit)
    assert unit.exercises, "the unit has no exercise"
    assert len(set(unit.exercises)) == len(unit.exercises)
    for name, cases in (("WRONG", wrong), ("RIGHT", right)):
        assert set(cases) == set(unit.exercises), f"tests/misconceptions/u{unit.number}.py: {name} needs each exercise"
    for cell in unit.cells:
        if cell.test:
            assert unit.answer(cell.test).source.count("### BEGIN SOLUTION") == 1
    for exercise in unit.exercises:
        assert len({snippet for snippet, _ in wrong[exercise]}) >= 4, f"{exercise}: too few wrong answers"
        assert right[exercise], f"{exercise} has no other right answer"


@pytest.mark.parametrize("unit, exercise", EXERCISES)
def test_reference_passes(unit, exercise):
    outcome = unit.run(exercise)
    assert outcome.error is None, outcome.error
    assert outcome.stderr == ""
    assert f"✓ {exercise}" in outcome.stdout


@pytest.mark.parametrize("unit, exercise", EXERCISES)
def test_untouched_is_not_answered(unit, exercise):
    outcome = unit.run(exercise, untouched=True)
    assert isinstance(outcome.error, NotAnswered), repr(outcome.error)
    assert f"exercise {exercise} is not answered yet" in str(outcome.error)
    assert outcome.stderr == ""


@pytest.mark.parametrize("unit, exercise, index", WRONG)
def test_wrong_answer_is_told_why(unit, exercise, index):
    snippet, phrase = known(unit)[0][exercise][index]
    outcome = unit.run(exercise, snippet)
    assert isinstance(outcome.error, AssertionError), f"accepted, or crashed: {outcome.error!r}"
    assert phrase.lower() in str(outcome.error).lower(), str(outcome.error)
    assert outcome.stderr == ""
    _loses_its_part(unit, exercise, snippet, outcome)
    said = exercises.line(outcome.error)
    assert not UNNAMED.search(said), f"{exercise}: no slip is named for {snippet}: {said}"
    page = TOLD.get((exercise, index), "nothing")
    assert NUMBERS.sub("#", said) == NUMBERS.sub("#", page), "docs/exercises.md is old: run `make exercises`"


def _loses_its_part(unit, exercise, snippet, outcome):
    """The points of each part that is told to be wrong and no others; a hidden test takes no more from it."""
    points = next(cell.points for cell in unit.cells if cell.test == exercise)
    counted = re.match(r"(\d+) of (\d+) right, ", str(outcome.error))
    if counted is None:
        assert outcome.score == 0
        return
    right, parts = map(int, counted.groups())
    told = [line for line in str(outcome.error).splitlines()[1:] if line.startswith(("✗ ", "… "))]
    wrong = sum(int(several[1]) if (several := re.match(r". (\d+) of them \(", line)) else 1 for line in told)
    assert 0 < right < parts == right + wrong and outcome.score == points * right / parts
    assert unit.run(exercise, snippet, visible=True).score == outcome.score


@pytest.mark.parametrize("unit, exercise, snippet", NEAR)
def test_a_near_miss_is_refused_and_told_the_direction(unit, exercise, snippet):
    assert re.search("too (high|low)", str(unit.run(exercise, snippet).error))


def test_the_page_of_exercises_is_what_would_be_built():
    """But for what wrong answers are told, which the test of each holds to it."""
    assert exercises.page(lambda unit, *which: TOLD.get(which)) == PAGE, "run `make exercises`"


@pytest.mark.parametrize("unit", [pytest.param(unit, id=unit.name) for unit in UNITS])
def test_the_exercises_take_less_than_their_unit(unit):
    cells = solution_notebook(next(u for u in find() if u.name == unit.name))["cells"]
    whole = next(int(m[1]) for c in cells if (m := re.search(r"About (\d+)\s+minutes", text(c))))
    told = [exercises.minutes(exercises.question(cells, name), name) for name in exercises.graded(cells)]
    assert sum(told) < whole - 5, "besides the exercises there is something to read and to measure"


@pytest.mark.parametrize("unit, exercise, snippet", RIGHT)
def test_other_right_answer_passes(unit, exercise, snippet):
    outcome = unit.run(exercise, snippet)
    assert outcome.error is None, outcome.error
    assert outcome.stderr == ""


def other_forms(value):
    """The same answer as other learners would write it: another order, type or rounding."""
    if isinstance(value, dict):
        yield {key: value[key] for key in reversed(value)}
        for form in FORMS:
            yield {key: form(part) for key, part in value.items()}
    elif isinstance(value, list | tuple):
        yield (list if isinstance(value, tuple) else tuple)(value)
        for form in FORMS:
            yield type(value)(form(part) for part in value)
    elif isinstance(value, str):
        yield f" {value.upper()} "
    else:
        for form in FORMS:
            yield form(value)


def _scaled(factor):
    return lambda value: float(value) * factor if _is_number(value) else value


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


FORMS = [_scaled(1 + off) for size in (1e-9, 9e-4, 4e-3, 9e-3, 0.045, 0.09) for off in (size, -size)]
FORMS += [
    lambda value: np.float32(value) if _is_number(value) else value,
    lambda value: torch.tensor(value) if _is_number(value) else value,
    lambda value: float(f"{value:.3g}") if _is_number(value) else value,
    lambda value: f" {value.upper()} " if isinstance(value, str) else value,
]


@pytest.mark.parametrize("unit, exercise", EXERCISES)
def test_what_the_check_accepts_the_hidden_tests_accept(unit, exercise):
    """Over the reference and every other right answer, in the forms that other learners would write."""
    tried = 0
    for snippet in (None, *known(unit)[1].get(exercise, ())):
        start = {}
        unit.run(exercise, snippet, change=lambda space, s=start: s.update(space), visible=True)
        for name in unit.graded_names(exercise):
            if name not in start or callable(start[name]):
                continue
            for form in other_forms(start[name]):
                change = {name: form}
                if unit.run(exercise, snippet, change=lambda space, c=change: space.update(c), visible=True).error:
                    continue
                tried += 1
                outcome = unit.run(exercise, snippet, change=lambda space, c=change: space.update(c))
                assert outcome.error is None, f"the check accepts {name} = {form!r}; hidden: {outcome.error}"
    assert tried or all(callable(start.get(name)) for name in unit.graded_names(exercise))


@pytest.mark.parametrize("unit, exercise", EXERCISES)
def test_hidden_tests_hold_without_the_checker(unit, exercise, monkeypatch):
    """A learner who replaces check.grade in the kernel still fails the hidden literals."""
    monkeypatch.setattr("helpers.check.grade", lambda *answers, points=None: points)
    assert unit.run(exercise).error is None
    assert unit.run(exercise, untouched=True).error is not None
    caught = [unit.run(exercise, snippet).error is not None for snippet, _ in known(unit)[0][exercise]]
    assert sum(caught) >= len(caught) / 2, "the hidden tests let most known wrong answers through"
