"""The grading calls: what is accepted, what each wrong answer is told, and that nothing reaches stderr."""

import concurrent.futures
import json
import linecache
import math
import random
import signal
import sys
import time
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import check, hints
from helpers.check import NotAnswered, Wrong, choice, close, grade, number, require

SLIPS = {"You forgot V.": 23_040, "You counted query heads.": (138_240, 69_120)}


@pytest.fixture
def exercise():
    """Registers a check as exercise 99.1 for one test."""
    yield check.exercise("99.1")
    check._EXERCISES.pop("99.1", None)


def learner(source: str) -> dict:
    """Names defined by `source`, executed as a notebook would."""
    space = {"__name__": "__main__"}
    linecache.cache["<cell 1>"] = (len(source), None, source.splitlines(keepends=True), "<cell 1>")
    exec(compile(source, "<cell 1>", "exec"), space)
    return space


def told(answer, expect=46_080, **options) -> str:
    with pytest.raises(Wrong) as caught:
        number(answer, expect, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        46_080,
        46_080.0,
        np.float32(46_080),
        np.int64(46_080),
        torch.tensor(46_080),
        np.array(46_080),
        Decimal(46_080),
        46_081,
    ],
)
def test_scalars_of_every_library_are_numbers(answer):
    value = number(answer, 46_080)
    assert type(value) is float


@pytest.mark.parametrize(
    "answer, phrase",
    [
        (float("nan"), "NaN"),
        (float("inf"), "infinite"),
        ("46080", "without quotes and without commas"),
        ("46,080", "the text '46,080': write a number without quotes and without commas"),
        ((46, 80), "2 numbers, (46, 80), which is what Python makes of a comma: write a number without quotes"),
        ("many", "the text 'many'"),
        (True, "truth value"),
        ([46_080], "a list"),
        (np.array([46_080.0]), "array of shape [1]"),
        (torch.ones(2, 3), "array of shape [2, 3]"),
        (len, "function"),
        (1j, "complex"),
        (10**400, "one number"),
        (-46_080, "sign"),
        (-3, "sign is wrong"),
        (0, "zero is too low"),
        ({}, "a dict"),
    ],
)
def test_bad_input_is_told_what_it_is(answer, phrase):
    assert phrase in told(answer)


@pytest.mark.parametrize(
    "answer, expect, options, digits",
    [
        (16, 15.7234, {}, 4),
        (15.7, 15.7234, {}, 4),
        (0.015, 0.01501, {"rel": 1e-4}, 4),
        (2.0, 2.0472, {"unit": "GB"}, 4),
        (130_000, 131_072, {"rel": 0.004}, 3),
    ],
)
def test_the_truth_rounded_too_far_is_told_how_many_digits(answer, expect, options, digits):
    assert f"right as far as it goes; give {digits} digits" in told(answer, expect, **options)


@pytest.mark.parametrize("answer, expect", [(15, 15.7234), (15.6, 15.7234), (20, 15.7234), (10, 15.7), (2, 1)])
def test_what_is_not_the_truth_rounded_is_not_called_right(answer, expect):
    assert "right as far" not in told(answer, expect)


def test_a_slip_that_is_also_the_truth_rounded_is_told_both():
    said = told(2.0, 2.0472, slips={"You counted GiB.": 2.0})
    assert "that is right as far as it goes; give 4 digits. Or: You counted GiB." in said


@pytest.mark.parametrize("blank", [None, ...])
def test_blank_is_not_answered(blank):
    with pytest.raises(NotAnswered):
        number(blank, 1.0)
    with pytest.raises(NotAnswered):
        choice(blank, "a", {"b": "no"})


def test_slip_wins_over_general_diagnosis():
    assert "You forgot V." in told(23_040, slips=SLIPS)
    assert "You counted query heads." in told(69_120, slips=SLIPS)


def test_two_slips_with_one_value_are_both_said():
    assert "Forgot V. Or: Forgot K." in told(5, 10, slips={"Forgot V.": 5, "Forgot K.": 5.0, "Else.": 5.001})
    assert "Or:" not in told(5, 10, slips={"Rounded.": [5, 5.0]})


def test_slip_beside_the_truth_shadows_nothing():
    near = {"nearly": 46_080 * 1.004}
    assert number(46_080 * 1.0005, 46_080, rel=1e-3, slips=near)
    assert "nearly" in told(46_080 * 1.004, rel=1e-3, slips=near)
    assert "nearly" not in told(46_080 * 0.996, rel=1e-3, slips=near)
    assert "second" in told(102, 100, rel=1e-2, slips={"first": 103, "second": 102.1})


@pytest.mark.parametrize(
    "factor, phrase",
    [
        (2, "twice"),
        (0.5, "half"),
        (8, "bits"),
        (1 / 8, "bytes where bits"),
        (1000, "1,000 times too large"),
        (1e-3, "1,000 times too small"),
        (1e9, "1,000,000,000"),
        (1.024**3, "7.4 % too large: perhaps a power of 1,024"),
        (1.024**-3, "a power of 1,024"),
        (1.024, "a power of 1,024"),
        (1024, "1,024 times"),
        (4, "bytes per element"),
        (100, "per cent"),
        (-1, "sign is not"),
        (-7, "sign is wrong"),
        (1.1, "too high, by less than a quarter"),
        (1.7, "too high, by less than a factor of 2"),
        (0.2, "too low, by a factor between 2 and 10"),
        (55, "more than 10"),
        (54_321, "units first"),
    ],
)
def test_general_diagnosis(factor, phrase):
    assert phrase in told(46_080 * factor)


@pytest.mark.parametrize(
    "unit, phrase, thousand",
    [
        ("GB", "GiB = 2**30", "GB and MB"),
        ("bytes", "GiB = 2**30", "that is kB, and bytes"),
        ("GiB/s", "GiB = 2**30", "GB and MB"),
        ("ms", "in what this time is computed from", "s and ms"),
        ("s/token", "in what this time is computed from", "s and ms"),
        ("seconds", "in what this time is computed from", "s and ms"),
        ("TFLOP", "1e9 FLOPs", "TFLOP and GFLOP"),
        ("tokens", "32,768", "thousands of tokens"),
        ("sequences", "somewhere on the way", "somewhere on the way"),
        ("×", "somewhere on the way", "somewhere on the way"),
        ("", "somewhere on the way", "somewhere on the way"),
    ],
)
def test_a_mistaken_unit_is_one_that_fits(unit, phrase, thousand):
    binary, prefix = told(46_080 * 1.024, unit=unit), told(46_080 / 1000, unit=unit)
    assert "2.4 % too large" in binary and phrase in binary
    assert "1,000 times too small" in prefix and thousand in prefix
    for other in {"GiB", "s and ms"} - {phrase.split()[0], thousand}:
        assert other not in binary + prefix


@pytest.mark.parametrize("off", [1.02, 1.026, 1.028, 1.0505, 1.055, 0.975, 0.95, 0.94, 1.08])
def test_a_near_miss_is_no_power_of_1024(off):
    assert "1,024" not in told(780 * off, 780, rel=1e-2, unit="ms")


def test_a_power_of_1024_is_met_as_far_as_the_digits_of_an_answer_go():
    assert "1,024" in told(14.7, 15.02, unit="GB") and "1,024" not in told(14.7001, 15.02, unit="GB")
    assert "1,024" not in told(15, 15.39, unit="GB")  # two digits are no more than a size


def test_dollars_are_neither_bytes_nor_fractions():
    assert "cents" in told(4_608_000, unit="$") and "1,000" in told(46.08, unit="$ for 1,000 turns")
    assert "1,024" not in told(46_080 * 1.024, unit="$") and "bits" not in told(46_080 * 8, unit="$")


def test_a_thousand_is_not_called_1024_where_the_answer_may_be_rough():
    assert "1,000 times too small" in told(0.01502, 15.28, rel=0.03, unit="GFLOP")


@pytest.mark.parametrize("unit", ["times", "rows", "GPUs", "%"])
def test_a_count_is_no_mistaken_unit(unit):
    for factor in (4, 8, 1 / 8, 1.024, 1000):
        message = told(46_080 * factor, unit=unit)
        assert "byte" not in message and "1,024" not in message and "unit is off" not in message


def test_a_smaller_unit_is_named_where_bytes_are_asked_for():
    assert "1,024 times too small: that is KiB, and bytes" in told(45, unit="bytes")
    assert "that is MiB, and bytes" in told(46_080 / 2**20, unit="bytes")


def test_general_diagnosis_does_not_reveal_the_answer():
    message = told(46_080 * 3.3)
    assert "46,080" not in message and "46080" not in message and "3.3" not in message


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(min_value=-1e12, max_value=1e12))
def test_any_float_gets_a_verdict(answer, expect):
    try:
        value = number(answer, expect)
    except Wrong as wrong:
        assert str(wrong)
    else:
        assert math.isclose(value, expect, rel_tol=1e-3)


def test_choice_tells_why():
    options = {"prefill": "prefill is over after one forward."}
    assert choice(" Decode ", "decode", options) == "decode"
    with pytest.raises(Wrong, match="over after one forward"):
        choice("prefill", "decode", options)
    with pytest.raises(Wrong, match="choose one of 'decode', 'prefill'"):
        choice("both", "decode", options)
    with pytest.raises(Wrong, match="in quotes"):
        choice(3, "decode", options)


def test_choice_reads_the_word_and_not_what_it_says_of_itself():
    class Agrees(str):
        def strip(self, *characters):
            return self

        lower = strip

        def __eq__(self, other):
            return True

        __hash__ = str.__hash__

    with pytest.raises(Wrong, match="choose one of"):
        choice(Agrees("anything"), "decode", {"prefill": "no"})


@pytest.mark.parametrize(
    "actual, phrase",
    [
        (None, "return"),
        (torch.ones(3, 2), "transpose"),
        (torch.ones(6), "reshape"),
        (torch.ones(4, 4), "shape [4, 4]"),
        (torch.full((2, 3), math.nan), "NaN"),
        ("abc", "array of numbers"),
        ([["0", "1", "2"], ["3", "4", "5"]], "array of numbers"),
        (np.arange(6).reshape(2, 3) + 1j, "array of numbers"),
        (torch.arange(6.0).reshape(2, 3) + 1j, "array of numbers"),
        (torch.arange(6.0).reshape(2, 3) * 2, "twice"),
        (torch.arange(6.0).reshape(2, 3) + torch.eye(3)[:2], "2 of 6 elements; the first is at index [0, 0]"),
        (torch.arange(6.0).reshape(2, 3) ** 2, "forgot the square root"),
    ],
)
def test_close_names_the_difference(actual, phrase):
    expect = torch.arange(6.0).reshape(2, 3)
    with pytest.raises(Wrong) as caught:
        close(actual, expect, slips={"You forgot the square root.": expect**2})
    assert phrase in str(caught.value)


def test_close_says_every_slip_that_fits():
    with pytest.raises(Wrong, match="Forgot V. Or: Forgot K."):
        close([1.0, 2.0], [2.0, 4.0], slips={"Forgot V.": [1, 2], "Forgot K.": [1, 2], "Else.": [5, 5]})


def test_close_accepts_lists_and_half_precision():
    close([[0, 1, 2], [3, 4, 5]], torch.arange(6.0).reshape(2, 3))
    close(torch.arange(6, dtype=torch.bfloat16), np.arange(6))


def test_grade_prints_one_line(exercise, capsys):
    exercise(lambda answer: number(answer, 46_080, unit="bytes", slips=SLIPS) and None)
    assert grade("99.1", 46_080) is None
    assert capsys.readouterr() == ("✓ 99.1  46,080 bytes\n", "")
    with pytest.raises(Wrong) as caught:
        grade("99.1", 23_040)
    assert caught.value._render_traceback_() == ["✗ 99.1  your answer is 23,040 bytes. You forgot V."]


@pytest.mark.parametrize("answer", [None, ..., (1, None), [None], {"a": None}])
def test_grade_knows_a_blank(exercise, answer):
    exercise(lambda kv_bytes: None)
    with pytest.raises(NotAnswered, match="exercise 99.1 is not answered yet"):
        grade("99.1", answer)


@pytest.mark.parametrize(
    "source",
    [
        'def f(x):\n    """Doc."""\n    # YOUR CODE HERE',
        "def f(x): pass",
        "def f(x): ...",
        'class f:\n    def __init__(self): self.a = 1\n    def g(self):\n        """Doc."""',
        'def f(x):\n    """Doc."""\n    given = x + 1\n    # YOUR CODE HERE',
    ],
)
def test_grade_knows_a_stub(exercise, source):
    exercise(lambda f: check.call(f, 1) and None)
    with pytest.raises(NotAnswered, match="exercise 99.1 is not answered yet"):
        grade("99.1", learner(source)["f"])


def test_forgotten_return(exercise):
    exercise(lambda f: check.call(f, 1) and None)
    with pytest.raises(Wrong, match="f returns None: a `return` line is missing"):
        grade("99.1", learner("def f(x):\n    y = x + 1")["f"])


@pytest.mark.parametrize(
    "body, phrase",
    [
        ("return x / 0", "f() raised ZeroDivisionError: division by zero, at your line:  return x / 0"),
        ("return g(x)", "g() raised KeyError: 'a', at your line:  return {}['a']"),
        ("return torch.ones(2) @ torch.ones(3)", "at your line:  return torch.ones(2) @ torch.ones(3)"),
        ("assert x > 5", "f() raised AssertionError, at your line:  assert x > 5"),
        ("exit()", "SystemExit"),
    ],
)
def test_exception_of_the_learner_names_their_line(exercise, body, phrase):
    exercise(lambda f: check.call(f, 1) and None)
    f = learner(f"import torch\ndef g(x):\n    return {{}}['a']\ndef f(x):\n    {body}\n")["f"]
    with pytest.raises(Wrong) as caught:
        grade("99.1", f)
    assert phrase in str(caught.value)


LOOPS = {
    "plain": "while True:\n        x += 1",
    "swallows": "while True:\n        try:\n            x += 1\n        except Exception:\n            pass",
    "swallows all, once": "try:\n        while True:\n            x += 1\n    except:\n        pass\n"
    "    while True:\n        x += 1",
}


@pytest.mark.parametrize("body", LOOPS.values(), ids=LOOPS)
def test_an_endless_loop_is_stopped_and_named(exercise, monkeypatch, body):
    monkeypatch.setattr(check, "CALL_SECONDS", 0.2)
    handler = signal.getsignal(signal.SIGALRM)
    exercise(lambda f: check.call(f, 1) and None)
    with pytest.raises(Wrong, match=r"f\(\) did not come back; it was stopped after 0 s.* It was at your line:  "):
        grade("99.1", learner(f"def f(x):\n    {body}\n")["f"])
    assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_an_endless_method_is_stopped_by_the_limit_of_the_whole_check(exercise, monkeypatch):
    monkeypatch.setattr(check, "CHECK_SECONDS", 0.2)
    exercise(lambda kind: check.call(lambda: 1) and kind().go())
    with pytest.raises(Wrong, match=r"go\(\) did not come back"):
        grade("99.1", learner("class C:\n    def go(self):\n        while True:\n            self.x = 1\n")["C"])


def test_an_inner_limit_leaves_the_outer_one_running():
    with pytest.raises(check._Endless), check._limit(0.3):
        with check._limit(5):
            pass
        while True:
            pass


def test_what_waits_is_given_more_time_than_what_computes(monkeypatch):
    with check._limit(0.2):
        time.sleep(0.6)
    monkeypatch.setattr(check, "PATIENCE", 2)
    with pytest.raises(check._Endless), check._limit(0.2):
        while True:
            time.sleep(0.05)


def test_there_is_no_limit_in_another_thread():
    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert pool.submit(check.call, lambda: 7).result() == 7


def test_result_of_the_wrong_type_is_not_a_crash(exercise):
    exercise(lambda f: require(check.call(f, 1) + 1 == 2, "no"))
    with pytest.raises(Wrong, match="cannot be used .TypeError"):
        grade("99.1", learner("def f(x): return 'one'")["f"])


def test_stderr_and_warnings_stay_off_stderr(exercise, capsys):
    exercise(lambda f: require(check.call(f, 1), "no"))
    f = learner(
        "import sys, warnings\ndef f(x):\n    warnings.warn('careful')\n    print('oops', file=sys.stderr)\n"
        "    return 1"
    )["f"]
    before = sys.stderr
    grade("99.1", f)
    assert sys.stderr is before
    out, err = capsys.readouterr()
    assert err == "" and "oops" in out and "✓ 99.1" in out


def test_help_is_offered_from_the_second_miss(exercise, monkeypatch, tmp_path):
    monkeypatch.setattr(check, "_misses", {})
    monkeypatch.setattr(hints, "FOLDER", tmp_path)
    hints.unit.cache_clear()
    entry = {"hints": ["Count V."], "solution": "x = 1", "why": ""}
    (tmp_path / "u99.json").write_text(json.dumps({"exercises": {"99.1": entry}, "answers": {}, "names": []}))
    exercise(lambda answer: number(answer, 46_080) and None)
    said = []
    for answer in (1, None, 2):
        with pytest.raises(check.CheckFailed) as caught:
            grade("99.1", answer)
        said.append(caught.value.message())
    assert 'Stuck? check.hint("99.1") gives a first step' in said[2]
    assert not any("Stuck" in message for message in said[:2])
    hints.unit.cache_clear()


def test_interrupt_passes_through(exercise):
    exercise(lambda f: f())
    with pytest.raises(KeyboardInterrupt):
        grade("99.1", learner("def f(): raise KeyboardInterrupt")["f"])


def test_a_second_check_of_one_name_is_refused(exercise):
    def first(answer):
        return None

    exercise(first)
    exercise(first)  # as a module that is reloaded does
    with pytest.raises(ValueError, match="exercise 99.1 has two checks: .*test_check.py:.*test_check.py:"):
        exercise(lambda answer: None)


def test_mistakes_of_the_author_are_loud(exercise):
    exercise(lambda a, b: None)
    with pytest.raises(TypeError):
        grade("99.1", 1)
    with pytest.raises(ValueError, match="no exercise '98.7'"):
        grade("98.7", 1)


def test_a_long_message_is_wrapped_between_words():
    long = check.Wrong("every word of this message has to stay whole " * 6)
    long.exercise = "02.1"
    lines = "\n".join(long._render_traceback_()).splitlines()
    assert max(map(len, lines)) <= 88 and len(lines) > 2
    assert " ".join(lines).split() == long.message().split()


@pytest.fixture
def parted():
    @check.exercise("99.77")
    def checked(answer):
        for name, expect in (("a", 1), ("b", 2), ("c", 3)):
            with check.part():
                check.number(answer[name], expect, name=name)

    yield
    del check._EXERCISES["99.77"]


def test_parts_count_singly_and_say_what_each_wants(parted, capsys):
    assert check.grade("99.77", {"a": 1, "b": 5, "c": None}, points=3) == 1.0
    said = capsys.readouterr().out
    assert said.startswith("✗ 99.77  1 of 3 right, 1 of 3 points\n✗ b is 5: ")
    assert said.endswith("\n… c is not answered yet\n")
    assert check.grade("99.77", {"a": 1, "b": 2, "c": 3}, points=3) == 3.0
    with pytest.raises(check.Wrong) as caught:
        check.grade("99.77", {"a": None, "b": 0, "c": 7}, points=3)
    b, c, a = str(caught.value).splitlines()
    assert b.startswith("b is 0: ") and c.startswith("✗ c is 7: ") and a == "… a is not answered yet"
    with pytest.raises(check.NotAnswered):
        check.grade("99.77", {"a": None, "b": None, "c": None}, points=3)
    check.grade("99.77", {"a": 1, "b": 4, "c": 6}, points=3)
    assert "points\n✗ 2 of them (b; c): it is twice what it should be" in capsys.readouterr().out
    check.grade("99.77", {"a": None, "b": None, "c": 3}, points=3)
    assert "points\n… 2 of them (a; b): not answered yet" in capsys.readouterr().out
    with pytest.raises(check.Wrong, match="^all 3: it is twice"):
        check.grade("99.77", {"a": 2, "b": 4, "c": 6}, points=3)
    with pytest.raises(check.Wrong, match="may be chance"):
        check.grade("99.77", {"a": 1, "b": np.int64(1), "c": 1.001}, points=3)
    with pytest.raises(check.Wrong, match="b is 5"):
        check.grade("99.77", {"a": 1, "b": 5, "c": 3})
    assert check.grade("99.77", {"a": 1, "b": 2, "c": 3}) is None


def test_help_is_offered_after_the_second_miss_of_a_part_and_never_by_a_grader(parted, capsys, monkeypatch):
    monkeypatch.setattr(check, "offer", lambda name: f"Stuck with {name}?")
    monkeypatch.setattr(check, "_misses", {})
    for trial_seeds, offered in ((None, False), (None, True), (random.Random(0), False)):
        monkeypatch.setattr(check, "trial_seeds", trial_seeds)
        check.grade("99.77", {"a": 1, "b": 5, "c": 3}, points=3)
        assert ("Stuck with 99.77?" in capsys.readouterr().out) == offered


def test_what_is_near_enough_is_a_number():
    assert check.near(np.float32(11), 10, rel=0.1) and check.near("7", 7) is False and check.near(7.5, 7, absolute=0.5)
    assert not any(check.near(nothing, 0, absolute=1) for nothing in (None, ..., "0", [0], math.nan, True))


def test_a_share_of_points_is_a_plain_number_within_bounds():
    assert [check.share(x, 3) for x in (2, np.float32(1.5), -1, 7)] == [2.0, 1.5, 0.0, 3.0]
    assert type(check.share(np.float64(1), 3)) is float
    for nonsense in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="no number of points"):
            check.share(nonsense, 3)
