"""Hints and reference answers: extracted from the source, shown step by step, logged, and switched off for a class."""

import pytest

from helpers import check, estimates, hints
from tools.hints import extract
from tools.source import solution_notebook
from tools.units import Unit

SOURCE = '''\
# %% tags=["setup"]
import math

# %% answer="98.1"
kv_bytes = None  # bytes
### BEGIN SOLUTION
# HINT: What does one token leave in each layer?
# HINT: A key and a value,
#       for each KV head.
# WHY: K and V are there once a KV head.
kv_bytes = 2 * 3 * 64  # K and V
### END SOLUTION

# %% answer="98.2"
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    # HINT: Once is not enough.
    # a comment that stays
    return 2 * x
    ### END SOLUTION

# %%
y = math.pi
'''


@pytest.fixture
def made(tmp_path):
    unit = Unit(tmp_path, "98-mini")
    unit.source.parent.mkdir(parents=True)
    unit.source.write_text(SOURCE)
    return extract(solution_notebook(unit))


@pytest.fixture
def course(made, monkeypatch, tmp_path):
    """The course with unit 98, a log of its own, and no hint read yet."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COURSE_HINTS", raising=False)
    monkeypatch.setattr(hints, "_given", {})
    monkeypatch.setattr(hints, "FOLDER", tmp_path)
    monkeypatch.setattr(hints, "unit", lambda number: made if number == "98" else {"exercises": {}})
    return tmp_path


def test_what_the_source_says_is_extracted_and_said_once(made):
    first, second = made["exercises"]["98.1"], made["exercises"]["98.2"]
    assert first["hints"] == ["What does one token leave in each layer?", "A key and a value, for each KV head."]
    assert first["why"] == "K and V are there once a KV head."
    assert first["solution"] == "kv_bytes = 2 * 3 * 64  # K and V"
    assert second["hints"] == ["Once is not enough."]
    assert second["solution"] == 'def double(x):\n    """Twice x."""\n    # a comment that stays\n    return 2 * x'
    assert made["answers"] == {"kv_bytes": "98.1", "double": "98.2"} and made["names"] == ["math", "y"]


def test_hints_come_one_after_the_other_and_are_logged(course, capsys):
    for said in (
        "Hint 1 of 2 for 98.1:  What does",
        "Hint 2 of 2 for 98.1:  A key",
        'That was all: check.solution("98.1")',
    ):
        check.hint("98.1")
        assert said in capsys.readouterr().out
    check.solution("98.2")
    assert "return 2 * x" in capsys.readouterr().out
    check.solution("98.1")
    assert "K and V are there once" in capsys.readouterr().out
    assert estimates.help_taken("98") == {
        "98.1": {"hints": 2, "solution": True},
        "98.2": {"hints": 0, "solution": True},
    }


def test_a_class_can_do_without(course, monkeypatch, capsys):
    assert "check.hint" in hints.offer("98.1")
    monkeypatch.setenv("COURSE_HINTS", "off")
    check.hint("98.1")
    check.solution("98.1")
    out = capsys.readouterr().out
    assert "Hints are switched off" in out and "Solutions are switched off" in out and "2 * 3" not in out
    assert hints.offer("98.1") == ""
    monkeypatch.delenv("COURSE_HINTS")
    (course / "no-hints").touch()
    assert not hints.allowed()
    assert estimates.help_taken() == {}


@pytest.mark.parametrize("name", ["98.7", "97.1", 98.1, ""])
def test_an_exercise_that_does_not_exist(course, name):
    with pytest.raises(ValueError, match="there is no exercise"):
        check.hint(name)
    with pytest.raises(ValueError, match="there is no exercise"):
        check.solution(name)
    assert hints.offer("97.1") == ""


def test_without_steps_the_answer_is_offered_alone(course, made, capsys):
    made["exercises"]["98.2"]["hints"] = []
    check.hint("98.2")
    assert 'There are no hints for 98.2; check.solution("98.2")' in capsys.readouterr().out
    assert hints.offer("98.2") == 'Stuck? check.solution("98.2") shows the answer.'


def test_a_broken_file_costs_the_help_and_nothing_else(monkeypatch, tmp_path):
    monkeypatch.setattr(hints, "FOLDER", tmp_path)
    hints.unit.cache_clear()
    (tmp_path / "u98.json").write_text("<<<<")
    assert hints.offer("98.1") == ""
    hints.unit.cache_clear()
