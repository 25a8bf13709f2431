"""The prediction log: append-only, honest about hindsight, and never in the way of the lesson."""

import errno
import json
import math
import multiprocessing
import os

import numpy as np
import pytest

from helpers import estimates


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(estimates, "_unwritten", [])
    monkeypatch.setattr(estimates, "_told", set())
    return tmp_path / "home"


def test_report_names_the_residual(capsys):
    estimates.predict("02.tpot_ms_at_8192", 60, "ms")
    estimates.measured("02.tpot_ms_at_8192", np.float32(78), residual="the kernel, not memory, sets the pace")
    estimates.predict("03.other", 1, "GB")
    text = repr(estimates.report("02"))
    assert "+30 %" in text and "the kernel, not memory" in text and "03.other" not in text and "live" in text
    page = estimates.report("02")._repr_html_()
    assert 'right">+30 %</td>' in page and 'left">02.tpot_<wbr>ms_<wbr>at_<wbr>8192</td>' in page
    assert 'right">measured</th>' in page and 'left">the kernel, not memory' in page
    estimates.measured("02.tpot_ms_at_8192", 78, residual="the kernel, not memory", verdict="busy")
    assert "busy: measure again" in repr(estimates.report("02")) and "the kernel" not in repr(estimates.report("02"))
    assert capsys.readouterr() == ("", "")


def test_log_is_append_only(home):
    estimates.predict("02.x", 1, "ms")
    first = (home / "predictions.jsonl").read_bytes()
    estimates.predict("02.x", 2, "ms")
    assert (home / "predictions.jsonl").read_bytes().startswith(first)
    assert [row.predicted for row in estimates.estimates("02")] == [2]


def test_hindsight_does_not_count():
    estimates.predict("02.x", 10, "ms")
    estimates.predict("02.x", 12, "ms")
    estimates.measured("02.x", 24)
    estimates.predict("02.x", 24, "ms")
    estimates.measured("02.y", 5)
    estimates.predict("02.y", 5, "ms")
    pairs = estimates.calibration()
    assert [(pair.key, pair.predicted, pair.measured, pair.ratio) for pair in pairs] == [("02.x", 12, 24, 2)]
    assert "predicted after it was measured" in repr(estimates.report("02"))
    assert "24*" in repr(estimates.report("02"))


def test_running_a_notebook_again_is_not_hindsight():
    for _ in range(2):
        estimates.predict("02.x", 10, "ms")
        estimates.measured("02.x", 24)
    assert "*" not in repr(estimates.report("02"))


def test_a_guess_that_was_left_as_it_came_is_nobodys(capsys):
    estimates.predict("00.read", 10, "GB/s", default=10)
    assert estimates.estimates() == [] and "10 GB/s is the number that was there" in capsys.readouterr().out
    estimates.predict("00.read", 12, "GB/s", default=10)
    assert [row.predicted for row in estimates.estimates()] == [12]


def test_a_busy_measurement_says_so_in_the_table():
    estimates.predict("02.x", 10, "ms")
    estimates.measured("02.x", 20, verdict="busy")
    assert "20 [busy]" in repr(estimates.report("02"))
    assert estimates.calibration()[0].verdict == "busy"
    estimates.measured("02.x", 11)
    assert "busy" not in repr(estimates.report("02"))


def test_help_is_logged_and_can_be_reported():
    estimates.helped("04.8", "hint", 1)
    estimates.helped("04.8", "hint", 2)
    estimates.helped("04.8", "solution", 1)
    estimates.helped("05.1", "hint", 1)
    assert estimates.help_taken("04") == {"04.8": {"hints": 2, "solution": True}}
    assert estimates.help_taken()["05.1"] == {"hints": 1, "solution": False}
    assert estimates.estimates() == [] == estimates.ledger_rows()


def test_missing_half_is_shown_and_not_divided():
    estimates.predict("02.x", 10, "ms")
    (row,) = estimates.estimates("02")
    assert row.measured is None and math.isnan(row.ratio)
    assert "02.x" in repr(estimates.report("02"))
    assert estimates.calibration() == []


def test_ledger_keeps_the_newest_row_of_each_lever():
    estimates.ledger("03", "GQA", tpot="smaller slope")
    estimates.ledger("02", "smaller batch", tpot="old")
    table = estimates.ledger("02", "smaller batch", tpot="−40 %", memory="less")
    assert [row[:3] for row in table.rows] == [
        ["02", "smaller batch", "−40 %"],
        ["03", "GQA", "smaller slope"],
    ]
    assert len(estimates.ledger_rows()) == 2


@pytest.mark.parametrize("value", [None, "12", True, math.nan, math.inf, [1, 2]])
def test_bad_value_is_refused(value):
    with pytest.raises(ValueError, match="02.x has to be one finite number"):
        estimates.predict("02.x", value, "ms")


def test_key_needs_its_unit():
    with pytest.raises(ValueError, match="begin with its unit"):
        estimates.predict("tpot", 1, "ms")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_unwritable_disk_costs_one_line(monkeypatch, capsys, code):
    def refuse(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(estimates.filelock, "FileLock", refuse)
    estimates.predict("02.x", 10, "ms")
    estimates.measured("02.x", 11)
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 and os.strerror(code) in out and "lesson goes on" in out and err == ""
    assert "+10 %" in repr(estimates.report("02"))


def test_full_device_costs_one_line(capsys, home):
    home.mkdir()
    (home / "predictions.jsonl").symlink_to("/dev/full")
    estimates.predict("02.x", 10, "ms")
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 and "No space left" in out and err == ""


def test_home_that_is_a_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "file"))
    estimates.predict("02.x", 10, "ms")
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert [row.predicted for row in estimates.estimates("02")] == [10]


def test_corrupt_lines_are_left_out(home, capsys):
    estimates.predict("02.x", 10, "ms")
    with open(home / "predictions.jsonl", "ab") as log:
        log.write(b'\xff\xfe\n[1]\n{"kind": "predict", "key": "02.y", "value": "12"}\n{"kind": "pred')
    estimates.predict("02.z", 3, "ms")
    assert [row.key for row in estimates.estimates()] == ["02.x", "02.z"]
    out, err = capsys.readouterr()
    assert "4 unreadable lines" in out and err == ""
    estimates.estimates()
    assert capsys.readouterr().out == ""


def _write(start):
    for i in range(50):
        estimates.predict(f"02.{start}_{i}", i, "ms")


def test_two_notebooks_may_write_at_once(home):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(name,)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    lines = (home / "predictions.jsonl").read_text().splitlines()
    assert len(lines) == 100 and all(json.loads(line) for line in lines)


def test_default_place_is_beside_the_units(tmp_path, monkeypatch):
    monkeypatch.delenv("COURSE_HOME")
    unit = tmp_path / "02-growing-cache"
    unit.mkdir()
    monkeypatch.chdir(unit)
    assert estimates.path() == tmp_path / ".course" / "predictions.jsonl"
    monkeypatch.chdir(tmp_path)
    assert estimates.path() == tmp_path / ".course" / "predictions.jsonl"
