"""A class that is graded in several runs: interrupted, resumed, one student again; and notebooks without measure."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.pipeline.miniature import UNIT, answered, hand_in
from tests.pipeline.test_grading import rows
from tools import autograde
from tools.grading import Grader
from tools.units import ROOT, find
from tools.watch import Watch

RIGHT = {"answer-77-1": "kv_bytes = 46_080", "answer-77-2": "def double(x):\n    return x + x"}
SLOW = RIGHT | {"answer-77-2": "import time\ntime.sleep(50)\ndef double(x):\n    return 2 * x"}


@pytest.fixture
def course(built, tmp_path):
    root = tmp_path / "course"
    shutil.copytree(built, root)
    return root


def run(course, folder, *options):
    return autograde.main([str(folder), "--csv", str(course / "grades.csv"), "--unsandboxed", *options], course)


@pytest.fixture
def begun(course, tmp_path):
    """begun(*options) → a grading of `in/` in a process of its own, of which two students have results."""

    def start(students, *options):
        arguments = [str(tmp_path / "in"), "--csv", str(course / "grades.csv"), "--unsandboxed", *options]
        program = "import sys, pathlib; from tools import autograde as a\n"
        program += f"sys.exit(a.main({arguments!r}, pathlib.Path({str(course)!r})))"
        process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        until = time.monotonic() + 120
        while time.monotonic() < until:
            time.sleep(0.2)
            if (course / "grades.csv").exists() and set(rows(course / "grades.csv")) == students:
                time.sleep(2)  # into the next one
                return process
        raise AssertionError(process.communicate(timeout=1))

    return start


def test_an_interrupted_run_leaves_what_it_has_and_goes_on_where_it_stopped(course, tmp_path, begun, capsys):
    folder, out = tmp_path / "in", course / "grades.csv"
    slow = hand_in(folder, "ben", answered(course, SLOW))
    anna, _ = (hand_in(folder, name, answered(course, RIGHT)) for name in ("anna", "carl"))
    process = begun({"anna"})
    os.kill(process.pid, signal.SIGINT)
    assert "Run the same command again" in process.communicate(timeout=60)[0] and process.returncode == 130
    assert {s: (r["score"], r["status"]) for s, r in rows(out).items()} == {"anna": ("5", "graded")}

    process = begun({"anna", "carl"}, "--jobs", "2")  # one worker is at the slow one
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=60)
    assert len(family) >= 2 and not psutil.wait_procs(family, timeout=30)[1], "workers end with what started them"
    assert {s: r["score"] for s, r in rows(out).items()} == {"anna": "5", "carl": "5"}

    slow.write_text(json.dumps(answered(course, RIGHT)))
    assert run(course, folder, "--jobs", "2") == 0
    said = capsys.readouterr().out
    assert "2 of 3 were graded before" in said and "ben  77-mini" in said and "anna  77-mini" not in said
    assert re.search(r"1 graded in this run, median [\d.]+ s", said)
    assert {s: r["score"] for s, r in rows(out).items()} == {"anna": "5", "ben": "5", "carl": "5"}

    # What has not changed is not graded again, and nobody is lost.
    first = out.read_text()
    assert run(course, folder) == 0
    said = capsys.readouterr().out
    assert "3 of 3 were graded before" in said and "ben  77-mini" not in said and out.read_text() == first
    for path in (anna, slow):
        path.write_text(json.dumps(answered(course, {})))
    assert run(course, folder, "--only", "ben") == 0
    assert {s: r["score"] for s, r in rows(out).items()} == {"anna": "5", "ben": "0", "carl": "5"}
    shutil.rmtree(folder / "anna")
    shutil.rmtree(folder / "carl")
    assert run(course, folder) == 0 and "2 students of earlier runs" in capsys.readouterr().out
    assert rows(out)["anna"]["score"] == "5", "who was graded stays in the class"
    assert (course / "build" / "grading" / "reports" / "anna.txt").exists()
    assert run(course, folder, "--only", "dora") == 2 and "no student dora" in capsys.readouterr().out
    assert run(course, folder, "--fresh") == 0 and list(rows(out)) == ["ben"]


@pytest.fixture(scope="module")
def grader(built, tmp_path_factory):
    return Grader(tmp_path_factory.mktemp("limits") / "course", find(built), sandboxed=False)


BOUNDLESS = {
    "used more than 100 MB of memory": "x = b'1' * 200_000_000\nimport time\ntime.sleep(9)",
    "started more than 3 processes": "import subprocess as s\n[s.Popen(['sleep', '9']) for i in 'abc'][0].wait()",
    "wrote more than 1 MB of files": "open('x', 'w').write('x' * 3_000_000)\nimport time\ntime.sleep(9)",
    "take longer than 4 s together": "while True:\n    pass",
}


@pytest.mark.parametrize("limit", BOUNDLESS)
def test_each_limit_is_named_and_ends_all_that_was_started(tmp_path, limit):
    process = subprocess.Popen([sys.executable, "-c", BOUNDLESS[limit]], cwd=tmp_path)
    watch = Watch(process.pid, tmp_path, seconds=4, memory_mb=100, processes=3, folder_mb=1)
    process.wait(timeout=60)
    watch.join(timeout=10)
    assert limit in watch.reason and process.returncode == -signal.SIGKILL


def test_what_passes_a_limit_needs_a_human(built, grader, tmp_path):
    grader.settings.Outside.most_output_mb = 1
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps(answered(built, RIGHT | {"answer-77-1": "kv_bytes = 46_080\nprint('x' * 3_000_000)"})))
    result = grader.grade("boundless", find(built)[0], path)
    assert "wrote more than 1 MB of output" in result.problem and not result.exercises


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
