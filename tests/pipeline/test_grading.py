"""Real nbgrader over right, wrong, untouched and hostile submissions; `make score` and `make grade`."""

import csv
import json
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.pipeline.miniature import UNIT, answered, hand_in
from tools import autograde, sandbox, score
from tools.grading import Result
from tools.units import ROOT, find

RIGHT = {"answer-77-1": "kv_bytes = 46_080", "answer-77-2": "def double(x):\n    return x + x"}


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def course(built, tmp_path_factory):
    """A private copy of the built course: these tests write into its build/ and work/."""
    root = tmp_path_factory.mktemp("grading") / "course"
    shutil.copytree(built, root)
    return root


def test_submissions_to_csv_names_all_that_need_a_human(course, tmp_path, capsys):
    folder, out = tmp_path / "handed in", tmp_path / "grades.csv"
    unit = find(course)[0]

    def changed(change):
        notebook = answered(course, RIGHT)
        change(notebook)
        return notebook

    def rename(notebook):
        for cell in notebook["cells"]:
            if cell["id"].startswith(("answer-", "test-")):
                cell["metadata"]["nbgrader"]["grade_id"] = "my-" + cell["id"]

    hand_in(folder, "reference", unit.solution.read_text(encoding="utf-8"))
    hand_in(folder, "untouched", unit.release.read_text(encoding="utf-8"))
    hand_in(folder, "other style [1]", answered(course, RIGHT))
    hand_in(folder, "forgot-v", answered(course, RIGHT | {"answer-77-1": "kv_bytes = 23_040"}))
    hand_in(folder, "special-cased", answered(course, RIGHT | {"answer-77-2": "double = lambda x: 6"}))
    hand_in(
        folder,
        "noisy",
        answered(
            course,
            RIGHT | {"answer-77-2": "import sys\ndef double(x):\n    print(x, file=sys.stderr)\n    return 2 * x"},
        ),
    )
    hand_in(
        folder,
        "own-checker",
        answered(course, RIGHT | {"answer-77-1": "kv_bytes = 1\nimport helpers.check\nhelpers.check.grade = print"}),
    )
    hand_in(
        folder,
        "no-tests",
        changed(lambda n: n.update(cells=[c for c in n["cells"] if not c["id"].startswith("test-")])),
    )
    hand_in(folder, "killed", answered(course, {"answer-77-1": "import os\nos._exit(1)"}))
    hand_in(folder, "renamed", changed(rename))
    hand_in(folder, "stripped", changed(lambda n: [c.update(metadata={}) for c in n["cells"]]))
    hand_in(folder, "pasted twice", changed(lambda n: n["cells"].append({**n["cells"][4], "id": "of-the-copy"})))
    hand_in(folder, "broken", "{not json")
    (folder / "misnamed").mkdir()
    (folder / "misnamed" / "77-final (2).ipynb").write_text("{}")
    (folder / "linked" / UNIT).mkdir(parents=True)
    (folder / "linked" / UNIT / f"{UNIT}.ipynb").symlink_to(unit.solution)
    (folder / "absent").mkdir()

    assert autograde.main([str(folder), "--csv", str(out), "--unsandboxed"], course) == 1
    grades = rows(out)
    known = {s: r["score"] for s, r in grades.items() if r["status"] == "graded"}
    assert known == {
        "reference": "5", "untouched": "0", "other style [1]": "5", "forgot-v": "3", "special-cased": "2",
        "noisy": "5", "own-checker": "3", "no-tests": "5", "renamed": "5", "stripped": "5", "pasted twice": "5",
    }  # fmt: skip
    assert grades["forgot-v"]["77.1"] == "0" and grades["forgot-v"]["77.2"] == "3"
    human = {s: r["note"] for s, r in grades.items() if r["status"] == "needs a human"}
    assert set(human) == {"killed", "broken", "misnamed", "linked"}
    assert "killed the kernel" in human["killed"]
    assert grades["pasted twice"]["note"] == "duplicated: answer-77-1 stands 2 times"
    assert "not a notebook" in human["broken"]
    assert "not a notebook" in human["misnamed"] and "taken: 77-final (2).ipynb" in human["misnamed"]
    assert "symbolic link" in human["linked"]
    assert all(grades[s]["score"] == "" for s in human), "a score that is not known is never 0"
    assert grades["absent"]["status"] == "not submitted"
    said = capsys.readouterr().out
    assert "11 graded, 4 need a human, 1 not submitted" in said
    reports = course / "build" / "grading" / "reports"
    assert "You forgot V" in (reports / "forgot-v.txt").read_text(encoding="utf-8")
    special = (reports / "special-cased.txt").read_text(encoding="utf-8")
    assert "not a hidden test" in special and "42" not in special, "the hidden test itself must not be quoted"
    assert (reports / "untouched.txt").read_text(encoding="utf-8").count("not answered yet") == 2


SPY = """
import os, socket
def tried(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__
seen = {{
    "solutions": tried(lambda: os.listdir({solutions!r})),
    "others": tried(lambda: os.listdir({others!r})),
    "home": tried(lambda: os.listdir({home!r})),
    "network": tried(lambda: socket.create_connection(("127.0.0.1", {port}), 2)),
    "write": tried(lambda: open({written!r}, "w")),
    "streams": {{os.readlink(f"/proc/1/fd/{{n}}") for n in range(3)}},
    "etc": tried(lambda: os.listdir("/etc/ssl")),
    "opt": tried(lambda: os.listdir("/opt")),
    "answers": tried(lambda: open({answers!r}).read(1)),
    "secret": os.environ.get("A_SECRET_OF_THE_INSTRUCTOR", "none"),
}}
print(seen)
kv_bytes = 46_080
"""


def test_a_submission_sees_nothing_and_reaches_nothing_or_is_not_run(course, tmp_path, monkeypatch, capsys):
    """With bubblewrap the spy finds empty folders and no network; without it nothing runs and the reason is said."""
    monkeypatch.setenv("A_SECRET_OF_THE_INSTRUCTOR", "hunter2")
    home = tmp_path / "home"
    home.mkdir()
    (home / "private.txt").write_text("private")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    folder, out, written = tmp_path / "in", tmp_path / "grades.csv", Path(sys.prefix) / "written-by-a-submission"
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: [server.accept() for _ in range(9)], daemon=True).start()
    spy = SPY.format(
        solutions=str(course / "solutions"),
        answers=str(ROOT / "helpers" / "exercises" / "u02.json"),
        others=str(folder),
        home=str(home),
        port=server.getsockname()[1],
        written=str(written),
    )
    hand_in(folder, "spy", answered(course, RIGHT | {"answer-77-1": spy}))
    status = autograde.main([str(folder), "--csv", str(out), "--fresh"], course)
    reason = sandbox.problem()
    said = capsys.readouterr().out
    assert not written.exists()
    if reason:
        assert status == 2 and not out.exists()
        assert reason in said and "--unsandboxed" in said
        return
    assert status == 0, said
    assert rows(out)["spy"]["score"] == "5"
    graded = course / "build" / "grading" / "autograded" / "spy" / UNIT / f"{UNIT}.ipynb"
    cell = next(
        c for c in json.loads(graded.read_text())["cells"] if c.get("id") == "answer-77-1" or "SPY" in c["source"]
    )
    seen = "".join(cell["outputs"][0]["text"])
    for what in ("solutions", "others", "home"):
        assert f"'{what}': 'FileNotFoundError'" in seen, seen
    assert "'streams': {'/dev/null'}" in seen, "the grader's own log must not be open to it: " + seen
    assert "'etc': 'FileNotFoundError'" in seen and "'opt': 'FileNotFoundError'" in seen, seen
    assert "'network': 'ConnectionRefusedError'" in seen or "'network': 'OSError'" in seen, seen
    assert "'answers': ''" in seen or "'answers': 'PermissionError'" in seen, seen
    assert "'write': 'OSError'" in seen and "'secret': 'none'" in seen, seen


@pytest.mark.parametrize("kind", ["missing", "forbidden"])
def test_without_a_sandbox_nothing_is_run_and_both_ways_on_are_said(course, tmp_path, monkeypatch, capsys, kind):
    binaries = tmp_path / "bin"
    binaries.mkdir()
    if kind == "forbidden":
        fake = binaries / "bwrap"
        fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
        fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}:/usr/bin:/bin" if kind == "forbidden" else str(binaries))
    hand_in(tmp_path / "in", "anna", answered(course, RIGHT))
    assert autograde.main([str(tmp_path / "in"), "--csv", str(tmp_path / "g.csv")], course) == 2
    said = capsys.readouterr().out
    assert ("apt install bubblewrap" if kind == "missing" else "No permissions to create new namespace") in said
    assert "--unsandboxed" in said and not (tmp_path / "g.csv").exists()


def test_a_sandbox_that_cannot_start_python_blames_no_student(course, tmp_path, monkeypatch, capsys):
    """What the class would get is tried first: here bubblewrap works, and the reference's kernel dies in it."""
    monkeypatch.setattr(sandbox, "problem", lambda *_: "")
    monkeypatch.setattr(sandbox, "LAUNCH", "raise SystemExit('this machine cannot')")
    monkeypatch.setattr(sandbox, "_walls", lambda *_: [])
    hand_in(tmp_path / "in", "anna", answered(course, RIGHT))
    assert autograde.main([str(tmp_path / "in"), "--csv", str(tmp_path / "g.csv")], course) == 2
    said = capsys.readouterr().out
    assert "not even the reference solution" in said and "anna" not in said and not (tmp_path / "g.csv").exists()


@pytest.mark.skipif(bool(sandbox.problem()), reason="no sandbox on this machine")
def test_an_environment_that_is_a_symbolic_link_is_no_hindrance(course, tmp_path):
    """A `.venv` linked from elsewhere: Python starts in the sandbox under the link's name."""
    linked = tmp_path / "checkout" / ".venv"
    linked.parent.mkdir()
    linked.symlink_to(Path(sys.prefix).resolve())
    python = linked / "bin" / "python"
    program = "from tools import sandbox; print(repr(sandbox.problem()))"
    outcome = subprocess.run([python, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert outcome.stdout.strip() == "''", outcome.stdout + outcome.stderr


def test_score_tells_each_missing_point(course, capsys):
    unit = find(course)[0]
    mine = course / "work" / unit.name / f"{unit.name}.ipynb"
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text(json.dumps(answered(course, {"answer-77-1": "kv_bytes = 23_040"})), encoding="utf-8")
    assert score.main([], course) == 0
    said = capsys.readouterr().out
    assert f"{UNIT}   0 of 5 points" in said
    assert "✗ 77.1     0/2    " in said and "You forgot V" in said
    assert "· 77.2     0/3    not answered yet" in said
    mine.write_text("{", encoding="utf-8")
    assert score.main(["77"], course) == 1
    assert "cannot be graded: not a notebook" in capsys.readouterr().out
    shutil.rmtree(course / "work")
    assert score.main([], course) == 2
    assert "make lab" in capsys.readouterr().out


def test_score_runs_nothing_for_a_unit_in_which_nothing_was_written(course, tmp_path, capsys, monkeypatch):
    unit = find(course)[0]
    shutil.copytree(unit.release.parent, tmp_path / unit.name)
    monkeypatch.setattr(score, "Grader", None)  # whoever calls it fails
    assert score.main(["--work", str(tmp_path)], course) == 0
    assert f"{UNIT}   0 of 5 points, nothing answered yet" in capsys.readouterr().out


def test_score_knows_a_notebook_by_its_cells_and_names_what_stands_twice(course, tmp_path, capsys):
    unit = find(course)[0]
    shutil.copytree(unit.release.parent, tmp_path / unit.name)  # untouched, beside the one that was worked on
    notebook = answered(course, RIGHT)
    (double,) = [cell for cell in notebook["cells"] if cell["id"] == "answer-77-2"]
    notebook["cells"].append(json.loads(json.dumps(double)))
    mine = tmp_path / "my own copy.ipynb"
    mine.write_text(json.dumps(notebook), encoding="utf-8")
    assert score.main(["--work", str(tmp_path)], course) == 0
    said = capsys.readouterr().out
    assert f"{UNIT}   5 of 5 points" in said and "(taken: my own copy.ipynb)" in said
    assert "duplicated: answer-77-2 stands 2 times" in said and "Keep one of the cells" in said
    notebook["cells"][-1]["source"] = "def double(x):\n    return 3 * x"
    mine.write_text(json.dumps(notebook), encoding="utf-8")
    assert score.main(["--work", str(tmp_path)], course) == 1
    assert "with 2 different answers" in capsys.readouterr().out


def test_bad_arguments_are_explained(course, tmp_path, capsys):
    assert autograde.main([str(tmp_path / "nowhere"), "--unsandboxed"], course) == 2
    assert "is not a folder" in capsys.readouterr().out
    assert autograde.main([str(tmp_path), "--unsandboxed"], course) == 2
    assert "STUDENT/UNIT/UNIT.ipynb" in capsys.readouterr().out


def test_the_csv_runs_no_formula():
    result = Result("=cmd()", UNIT, problem="-1+1")
    assert "'=cmd()," in autograde.table([result], [("@x", UNIT)]) and ",'-1+1" in autograde.table([result], [])
