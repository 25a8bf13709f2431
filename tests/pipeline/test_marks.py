"""A page that a person marks: in nbgrader's own formgrader, merged into the CSV, kept when all is graded anew."""

import json
import re
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.pipeline import miniature
from tests.pipeline.miniature import UNIT, answered, hand_in
from tests.pipeline.test_grading import rows
from tools import autograde, build

PAGE = """
# %% [markdown] report="77.3" points=4
# ### BEGIN SOLUTION
# A model answer.
# ### END SOLUTION
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    root = tmp_path_factory.mktemp("marked")
    miniature.make(root, miniature.SOURCE + PAGE)
    assert build.main([], root) == 0
    return root


@pytest.fixture(scope="module")
def grade(course, tmp_path_factory):
    """grade(*options) → rows of the CSV; Anna wrote a report, Ben left the page as it was."""
    folder, out = tmp_path_factory.mktemp("in"), course / "grades.csv"
    right = {"answer-77-1": "kv_bytes = 46_080", "report-77-3": "TPOT grows with the cache."}
    hand_in(folder, "anna", answered(course, right))
    hand_in(folder, "ben", answered(course, {}))

    def run(*options):
        assert autograde.main([str(folder), "--csv", str(out), "--unsandboxed", *options], course) == 0
        return rows(out)

    return run


@pytest.fixture
def formgrader(course, grade, tmp_path):
    """ask(path, data) → text of a page of formgrader, as `make mark` opens it on what grading left."""
    grade()
    port = 18_000 + int(time.time()) % 10_000
    command = [sys.executable, "-m", "jupyter_server", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    command += ["--ServerApp.token=", "--ServerApp.password=", "--ServerApp.disable_check_xsrf=True", "--no-browser"]
    command += ["--ServerApp.jpserver_extensions={'nbgrader.server_extensions.formgrader': True}", "--allow-root"]
    folder = course / "build" / "grading"
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def ask(path, data=None):
        body = json.dumps(data).encode() if data is not None else None
        request = Request(f"http://127.0.0.1:{port}/formgrader/{path}", body, method="PUT" if data else "GET")
        return urlopen(request, timeout=60).read().decode()

    until = time.monotonic() + 120
    while True:
        try:
            ask("api/assignments")
            break
        except URLError:
            assert server.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.2)
    yield ask
    server.kill()
    server.wait()


def test_a_page_is_marked_in_formgrader_and_the_points_come_into_the_csv(course, grade, formgrader):
    before = grade()
    assert (before["anna"]["score"], before["anna"]["max_score"], before["anna"]["77.3"]) == ("2", "5", "")
    assert before["anna"]["note"] == "77.3 waits for a person's mark"
    assert (before["ben"]["score"], before["ben"]["max_score"], before["ben"]["77.3"]) == ("0", "9", "0")

    [submitted] = [s for s in json.loads(formgrader(f"api/submissions/{UNIT}")) if s["student"] == "anna"]
    assert submitted["needs_manual_grade"]
    [notebook] = [n for n in json.loads(formgrader(f"api/submitted_notebooks/{UNIT}/{UNIT}")) if n["student"] == "anna"]
    assert "TPOT grows with the cache." in formgrader(f"submissions/{notebook['id']}/")
    [grading] = [
        g for g in json.loads(formgrader(f"api/grades?submission_id={notebook['id']}")) if g["name"] == "report-77-3"
    ]
    formgrader(f"api/grade/{grading['id']}", {"manual_score": 3})

    marked = grade()
    assert (marked["anna"]["score"], marked["anna"]["max_score"], marked["anna"]["77.3"]) == ("5", "9", "3")
    assert marked["anna"]["note"] == ""
    report = (course / "build" / "grading" / "reports" / "anna.txt").read_text(encoding="utf-8")
    assert re.search(r"– 77\.3 +3/4", report) and "5 of 9 points" in report


def test_marks_outlive_the_gradebook_and_say_that_they_are_old(course, grade, monkeypatch):
    monkeypatch.setattr("tools.ledger._course", lambda: "another state of the course")
    again = grade("--only", "anna")
    assert (again["anna"]["score"], again["anna"]["77.3"]) == ("5", "3")
    assert again["anna"]["note"] == "77.3 was marked before the last grading"
