"""Grades in a platform's own list: matched by number or name, nobody lost in silence."""

import csv
import io

import pytest

from tools.grading import Exercise, Result
from tools.lms import table

CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section
    Points Possible,,,,
"Smith, Anna",55,a1,anna@x,One
"Jones, Ben",56,b1,ben@x,Two
"Nobody, Ned",57,n1,ned@x,Two
"""
MOODLE = "\ufeffIdentifier,Full name,Email address,Status,Grade\nParticipant 4711,Anna Smith,a@x,Submitted,\n"


def result(student, unit, points, problem=""):
    return Result(student, unit, [Exercise("1", points, 5.0)], problem)


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_canvas_keeps_its_columns_and_gets_one_for_each_unit():
    results = [result("smithanna", "01-a", 4), result("smithanna", "02-b", 0), result("Ben Jones", "01-a", 3, "killed")]
    text, absent, unknown = table(CANVAS, [*results, result("stranger", "01-a", 1)], {"smithanna": "55"})
    most, anna, ben, ned = rows(text)
    assert (most["01-a"], most["02-b"]) == ("5", "5")
    assert (anna["Student"], anna["Section"], anna["01-a"], anna["02-b"]) == ("Smith, Anna", "One", "4", "0")
    assert ben["01-a"] == "", "a score that is not known stays empty"
    assert ned["01-a"] == "" and absent == ["Nobody, Ned"] and unknown == ["stranger"]
    again, *_ = table(text, results, {"smithanna": "55"})
    assert rows(again)[1]["01-a"] == "4" and again.splitlines()[0].count("01-a") == 1


def test_moodle_is_matched_by_its_participant_numbers():
    text, absent, unknown = table(MOODLE, [result("A. Smith", "01-a", 2.5)], {"A. Smith": "4711"})
    assert rows(text)[0]["01-a"] == "2.5" and rows(text)[0]["Full name"] == "Anna Smith" and not absent and not unknown


def test_a_list_without_a_header_is_refused():
    with pytest.raises(ValueError, match="header row"):
        table("", [], {})
