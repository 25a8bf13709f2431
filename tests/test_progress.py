"""The bar: there from the first moment, on stdout, gone at the end; a stop in between closes it."""

import importlib
import sys

import pytest

from helpers import loading
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


def test_what_takes_long_to_import_is_announced_the_first_time(capsys, monkeypatch, tmp_path):
    (tmp_path / "slow_to_load.py").write_text("there = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    loading.announce("slow_to_load", "loading it")
    loading.announce("slow_to_load", "loading it")
    assert len(sys.meta_path) == len(finders) + 1 and not capsys.readouterr().out
    module = importlib.import_module("slow_to_load")
    assert module.there == 1 and sys.meta_path == finders and "loading it:   0 %" in capsys.readouterr().out
    loading.announce("slow_to_load", "loading it")
    assert sys.meta_path == finders
    del sys.modules["slow_to_load"]


def test_what_is_not_installed_is_missed_as_ever():
    loading.announce("not_installed_anywhere", "loading it")
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_installed_anywhere'"):
        importlib.import_module("not_installed_anywhere")
