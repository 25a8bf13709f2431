"""A class that is graded in several runs: interrupted, resumed, one student again; and notebooks without measure."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.pipeline.miniature import UNIT, answered, hand_in
from tests.pipeline.test_grading import rows
from tools import autograde
from tools.grading import Grader
from tools.units import ROOT, find

RIGHT = {"answer-77-1": "kv_bytes = 46_080", "answer-77-2": "def double(x):\n    return x + x"}
SLOW = RIGHT | {"answer-77-2": "import time\ntime.sleep(50)\ndef double(x):\n    return 2 * x"}


@pytest.fixture
def course(built, tmp_path):
    root = tmp_path / "course"
    shutil.copytree(built, root)
    return root


def run(course, folder, *options):
    return autograde.main([str(folder), "--csv", str(course / "grades.csv"), "--unsandboxed", *options], course)


def test_what_has_not_changed_is_not_graded_again_and_nobody_is_lost(course, tmp_path, capsys):
    folder = tmp_path / "in"
    paths = {name: hand_in(folder, name, answered(course, RIGHT)) for name in ("anna", "ben")}
    assert run(course, folder) == 0
    first = (course / "grades.csv").read_text()
    capsys.readouterr()
    assert run(course, folder) == 0
    said = capsys.readouterr().out
    assert "2 of 2 were graded before" in said and "[1/" not in said and (course / "grades.csv").read_text() == first

    for path in paths.values():
        path.write_text(json.dumps(answered(course, {})))
    assert run(course, folder, "--only", "ben") == 0
    grades = rows(course / "grades.csv")
    assert (grades["anna"]["score"], grades["ben"]["score"]) == ("5", "0")
    shutil.rmtree(folder / "anna")
    assert run(course, folder) == 0 and "1 students of earlier runs" in capsys.readouterr().out
    assert rows(course / "grades.csv")["anna"]["score"] == "5", "who was graded stays in the class"
    assert (course / "build" / "grading" / "reports" / "anna.txt").exists()
    assert run(course, folder, "--only", "carl") == 2 and "no student carl" in capsys.readouterr().out
    assert run(course, folder, "--fresh") == 0
    assert list(rows(course / "grades.csv")) == ["ben"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_what_it_has_and_goes_on_where_it_stopped(course, tmp_path, how, capsys):
    folder, out = tmp_path / "in", course / "grades.csv"
    hand_in(folder, "anna", answered(course, RIGHT))
    slow = hand_in(folder, "ben", answered(course, SLOW))
    arguments = [str(folder), "--csv", str(out), "--unsandboxed"]
    program = "import sys, pathlib; from tools import autograde as a\n"
    program += f"sys.exit(a.main({arguments!r}, pathlib.Path({str(course)!r})))"
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not out.exists() and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(2)  # into the second one
    os.kill(process.pid, how)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == (-9 if how == signal.SIGKILL else 130)
    assert {s: (r["score"], r["status"]) for s, r in rows(out).items()} == {"anna": ("5", "graded")}
    assert how == signal.SIGKILL or "Run the same command again" in said
    slow.write_text(json.dumps(answered(course, RIGHT)))
    assert run(course, folder) == 0
    said = capsys.readouterr().out
    assert "1 of 2 were graded before" in said and "[1/1] ben" in said
    assert {s: r["score"] for s, r in rows(out).items()} == {"anna": "5", "ben": "5"}


BOUNDLESS = {
    "used more than 400 MB of memory": "x = b'1' * 600_000_000\nimport time\ntime.sleep(9)",
    "started more than 20 processes": "import subprocess as s, time\n"
    "x = [s.Popen(['sleep', '9']) for _ in range(30)]\ntime.sleep(9)",
    "wrote more than 1 MB of output": "print('x' * 3_000_000)",
    "take longer than 8 s together": "while True:\n    pass",
}


@pytest.fixture(scope="module")
def grader(built, tmp_path_factory):
    return Grader(tmp_path_factory.mktemp("limits") / "course", find(built), sandboxed=False)


@pytest.mark.parametrize("limit", BOUNDLESS)
def test_each_limit_is_named(built, grader, tmp_path, limit):
    unit = find(built)[0]
    settings = grader.settings.Outside
    settings.most_memory_mb, settings.most_processes, settings.most_output_mb, settings.most_seconds = 400, 20, 1, 8
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps(answered(built, RIGHT | {"answer-77-1": f"kv_bytes = 46_080\n{BOUNDLESS[limit]}"})))
    result = grader.grade(f"boundless-{len(limit)}", unit, path)
    assert limit in result.problem and not result.exercises


def test_a_cell_that_took_too_long_is_flagged_although_it_is_graded(built, grader, tmp_path):
    unit = find(built)[0]
    grader.settings.Execute.timeout = 2
    grader.settings.Outside.most_seconds, grader.settings.Outside.question_seconds = 60, 3
    path = tmp_path / "x.ipynb"
    endless = {
        "answer-77-1": "kv_bytes = 46_080\nwhile True: pass",
        "answer-77-2": "def double(x):\n    while True: pass",
    }
    path.write_text(json.dumps(answered(built, endless)))
    result = grader.grade("endless", unit, path)
    assert [e.points for e in result.exercises] == [2, 0] and not result.problem
    assert result.notes == ["stopped because it took too long: 77.1, 77.2"]
    assert UNIT == result.unit
