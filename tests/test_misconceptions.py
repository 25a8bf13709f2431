"""Every exercise of every unit: the reference passes, the stub is known, each wrong answer is told why."""

import ast

import pytest

from helpers.check import NotAnswered
from tests.misconceptions.harness import known, units

UNITS = units()
EXERCISES = [pytest.param(unit, exercise, id=exercise) for unit in UNITS for exercise in unit.exercises]
WRONG = [
    pytest.param(unit, exercise, snippet, phrase, id=f"{exercise}-{i}")
    for unit in UNITS
    for exercise, cases in known(unit)[0].items()
    for i, (snippet, phrase) in enumerate(cases)
]
RIGHT = [
    pytest.param(unit, exercise, snippet, id=f"{exercise}-{i}")
    for unit in UNITS
    for exercise, cases in known(unit)[1].items()
    for i, snippet in enumerate(cases)
]


@pytest.mark.parametrize("unit", [pytest.param(unit, id=unit.name) for unit in UNITS])
def test_unit_is_complete(unit):
    """Each test has its answer and points; each exercise has four wrong answers and another right one."""
    wrong, right = known(unit)
    assert unit.exercises, "the unit has no exercise"
    assert len(set(unit.exercises)) == len(unit.exercises)
    assert set(wrong) == set(right) == set(unit.exercises)
    for cell in unit.cells:
        if cell.test:
            assert unit.answer(cell.test).source.count("### BEGIN SOLUTION") == 1
            assert cell.source.startswith("from helpers import check"), f"{cell.test}: re-import the checker"
            assert f'check.grade("{cell.test}"' in cell.source
            assert "### BEGIN HIDDEN TESTS" in cell.source and "### END HIDDEN TESTS" in cell.source
            assert not _ends_in_value(cell.source), f"{cell.test}: its last value is read as a score"
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


@pytest.mark.parametrize("unit, exercise, snippet, phrase", WRONG)
def test_wrong_answer_is_told_why(unit, exercise, snippet, phrase):
    outcome = unit.run(exercise, snippet)
    assert isinstance(outcome.error, AssertionError), f"accepted, or crashed: {outcome.error!r}"
    assert phrase.lower() in str(outcome.error).lower(), str(outcome.error)
    assert outcome.stderr == ""


@pytest.mark.parametrize("unit, exercise, snippet", RIGHT)
def test_other_right_answer_passes(unit, exercise, snippet):
    outcome = unit.run(exercise, snippet)
    assert outcome.error is None, outcome.error
    assert outcome.stderr == ""


@pytest.mark.parametrize("unit, exercise", EXERCISES)
def test_hidden_tests_hold_without_the_checker(unit, exercise, monkeypatch):
    """A learner who replaces check.grade in the kernel still fails the hidden literals."""
    monkeypatch.setattr("helpers.check.grade", lambda *args: None)
    assert unit.run(exercise).error is None
    assert unit.run(exercise, untouched=True).error is not None
    caught = [unit.run(exercise, snippet).error is not None for snippet, _ in known(unit)[0][exercise]]
    assert sum(caught) >= len(caught) / 2, "the hidden tests let most known wrong answers through"


def _ends_in_value(source: str) -> bool:
    last = ast.parse(source).body[-1]
    return isinstance(last, ast.Expr) and not (
        isinstance(last.value, ast.Call) and getattr(last.value.func, "attr", "") in {"grade", "print"}
    )
