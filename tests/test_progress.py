"""The bar: there from the first moment, on stdout, gone at the end; a stop in between closes it."""

import pytest

from helpers.progress import each


def test_a_loop_under_a_bar_is_the_loop_and_says_what_it_does(capsys):
    seen = []
    for thing in each({"a": 1, "b": 2}.items(), "two things"):
        seen.append(thing)
        assert "two things:   0 %" in capsys.readouterr().out or len(seen) > 1
    out = capsys.readouterr()
    assert seen == [("a", 1), ("b", 2)] and not out.err and out.out.endswith("\r")


def test_a_loop_that_fails_fails_as_it_would(capsys):
    with pytest.raises(ZeroDivisionError):
        for thing in each([0], "x"):
            1 / thing
    assert list(each([], "nothing")) == []
