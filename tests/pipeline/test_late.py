"""What is late, by whose clock; and that it is only said."""

import os
from datetime import UTC, datetime, timedelta

import pytest

from tools.autograde import table
from tools.grading import Exercise, Result
from tools.late import HandedIn, handed_in, moment, remark
from tools.units import CourseError

DEADLINE = moment("2026-12-01 23:59 Europe/Berlin")


def test_a_deadline_has_a_time_zone():
    assert DEADLINE == datetime(2026, 12, 1, 22, 59, tzinfo=UTC)
    assert moment("2026-12-01T23:59:30+01:00") - DEADLINE == timedelta(seconds=30)
    assert moment("2026-07-01 12:00").utcoffset() is not None, "that of this machine"
    for wrong in ("tomorrow", "2026-13-01 12:00", "2026-12-01 12:00 Atlantis/Center", ""):
        with pytest.raises(CourseError, match="is no moment"):
            moment(wrong)


def test_the_platforms_mark_goes_before_a_timestamp_and_that_before_the_files_time(tmp_path):
    path = tmp_path / "x.ipynb"
    path.write_text("{}")
    os.utime(path, (DEADLINE.timestamp() + 300,) * 2)
    assert remark(handed_in(path, False), DEADLINE).startswith(
        "5 min late (2026-12-02 00:04 CET), by the file's own time"
    )
    (tmp_path / "timestamp.txt").write_text("2026-12-01 22:00:00.123 UTC\n")
    assert remark(handed_in(path, False), DEADLINE) == ""
    assert remark(handed_in(path, True), DEADLINE) == "late, by the platform's mark LATE"
    assert remark(handed_in(path, True), None) == ""


def test_late_work_keeps_its_points():
    late = HandedIn(DEADLINE.timestamp() + 93_600, "timestamp.txt")
    result = Result("anna", "01-a", [Exercise("01.1", 2.0, 2.0)], handed=late)
    head, row = table([result], [], DEADLINE).splitlines()
    assert row == 'anna,01-a,2,2,graded,"1 d 2 h late (2026-12-03 01:59 CET), by timestamp.txt",,2'
    assert head.split(",")[5] == "late" and table([result], []).splitlines()[1] == "anna,01-a,2,2,graded,,,2"
