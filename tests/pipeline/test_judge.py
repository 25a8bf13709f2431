"""What a test cell's outcome is to nbgrader: the points, and a message without a word of the hidden test."""

import pytest
from nbformat.v4 import new_code_cell
from nbgrader.utils import determine_grade

from helpers import check
from tests.misconceptions.harness import units
from tools.asking import TookTooLong
from tools.judge import Judge


class Given:
    """Stands for a conversation: a notebook's names, as a dictionary."""

    def __init__(self, **names):
        self.names = names

    def value(self, name):
        if name not in self.names:
            raise NameError(f"your notebook does not define {name}")
        if isinstance(self.names[name], BaseException):
            raise self.names[name]
        return self.names[name]


def judged(source, set_up="", **names):
    """(points of 3, message) of a test cell whose answers are `names`."""
    judge = Judge()
    judge.set_up(set_up)
    outputs = judge.test("test-77-1", source, ["x", "f"], Given(**names), 3.0)
    cell = new_code_cell(source, outputs=outputs, metadata={"nbgrader": {"grade": True, "points": 3}})
    return determine_grade(cell)[0], next((o["evalue"] for o in outputs if o["output_type"] == "error"), "")


def test_trials_start_from_seeds_that_only_the_grader_knows():
    drawn = []
    for secret in ("one", "one", "other", ""):
        source = "from helpers import check\nx.append(check.seed(900))"
        Judge(secret).test("test-77-1", source, ["x"], Given(x=drawn), 3.0)
    assert drawn[0] == drawn[1] and len({*drawn, 900}) == 4
    assert check.seed(900) == 900, "a learner's are the usual ones"


SCORES = ["2.0", "0", "3", "1 + 1"]
NONSENSE = ["float('nan')", "float('inf')", "-1", "3.5", "'3'", "[3]", "True", "__import__('numpy').float64(9)"]


@pytest.mark.parametrize("score", SCORES)
def test_a_last_value_is_the_score(score):
    assert judged(score) == (float(eval(score)), "")


@pytest.mark.parametrize("score", NONSENSE)
def test_what_nbgrader_would_take_for_full_marks_is_none(score):
    points, message = judged(score)
    assert points == 0 and "for a score of at most 3" in message


GUESS = dict.fromkeys(["Llama-2-7b-hf", "Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-4B", "Mixtral-8x7B-v0.1"], 131_072)
GUESS["SmolLM2-135M"] = "?"  # a text does not hide that the rest is one number
MEANT = dict.fromkeys(GUESS) | {"Llama-3.1-8B": 131_072, "Mixtral-8x7B-v0.1": 131_072}


def test_an_exercise_of_parts_gives_outside_what_the_learner_was_told():
    unit = next(unit for unit in units() if unit.number == "02")
    test = next(cell for cell in unit.cells if cell.test == "02.1")
    judge = Judge()
    judge.set_up("\n".join(cell.source for cell in unit.cells if cell.setup and cell.kind == "setup"))
    given: dict = {}
    unit.run("02.1", change=given.update)
    earned = []
    for changed in (
        {},
        {"Qwen3-4B": 92_160, "SmolLM2-135M": None},
        {"Qwen3-4B": "?"},
        dict.fromkeys(given["SIX"], 1),
        GUESS,
        MEANT,
    ):
        answer = given["kv_bytes_of"] | changed
        outside = judge.test("test-02-1", test.source, ["kv_bytes_of"], Given(kv_bytes_of=answer), 3.0)
        told = unit.run("02.1", change=lambda space, a=answer: space.update(kv_bytes_of=a), visible=True)
        cell = new_code_cell(test.source, outputs=outside, metadata={"nbgrader": {"grade": True, "points": 3}})
        earned.append(determine_grade(cell)[0])
        said = "".join(o.get("text", o.get("evalue", "")) for o in outside if o["output_type"] != "execute_result")
        assert earned[-1] == told.score and str(told.error or "✓ 02.1") in said
    assert earned == [3, 2, 2.5, 0, 0, 1]


def test_set_up_names_come_from_the_release_and_answers_from_inside():
    assert judged("assert twice(x) == 4", "def twice(x): return 2 * x", x=2) == (3, "")
    assert judged("assert f(x) == 4", f=lambda x: 2 * x, x=2) == (3, "")
    assert judged("%time\nassert x", "%matplotlib inline\n!ls", x=1)[0] == 0, "a test cell is plain Python"


def test_an_undefined_answer_is_named():
    assert judged("assert x") == (0, "`x` is not defined: the cell above the test has to define it under this name")


def test_an_answer_that_cannot_be_told_costs_its_own_exercise_alone():
    sparse = RuntimeError("reshape is not implemented for sparse tensors")
    assert judged("assert f == 1", x=sparse, f=1) == (3, "")
    assert judged("assert indirect() == 1", "def indirect(): return f", x=sparse, f=1) == (3, "")
    points, message = judged("assert x == 1", x=sparse, f=1)
    assert points == 0 and message.startswith("`x` is nothing that can be graded (RuntimeError: reshape")


def test_an_answer_that_does_not_come_back_while_it_is_told_is_asked_for_by_its_own_test_alone():
    assert judged("assert f == 1", x=TookTooLong("late"), f=1) == (3, "")


HIDDEN = "pass\n### BEGIN HIDDEN TESTS\n{}\n### END HIDDEN TESTS\n"


def test_of_a_hidden_test_only_its_authors_words_are_told():
    assert judged(HIDDEN.format("assert x == 42, 'the sum is off'"), x=1) == (0, "the sum is off")
    plain = "passes what is shown, but not a hidden test of the same exercise"
    assert judged(HIDDEN.format("assert x == 42"), x=1) == (0, plain)
    assert judged(HIDDEN.format("[(a, b)] = x"), x=[]) == (0, f"{plain} (ValueError)")

    def theirs(*_):
        error = AssertionError("was given 42")
        error.place = "f", ""
        raise error

    assert judged(HIDDEN.format("f(42)"), f=theirs) == (0, plain)
    assert judged("assert x == 42, 'shown'", x=1) == (0, "shown")


def test_a_kernel_that_is_gone_is_no_wrong_answer():
    with pytest.raises(TookTooLong):
        judged("assert x", x=TookTooLong("late"))
