"""The learner's copy: what is new arrives, what they wrote stays, whatever goes wrong on the way."""

import errno
import json
import os
import platform
import sys

import pytest

from tools import lab
from tools.units import CourseError


@pytest.fixture
def course(tmp_path):
    release, work = tmp_path / "notebooks", tmp_path / "work"
    for name in ("00-clock", "01-decode"):
        (release / name).mkdir(parents=True)
        (release / name / f"{name}.ipynb").write_text(f"{name}, first edition")
    lab.refresh(release, work)
    return release, work


def test_a_second_run_says_and_does_nothing(course):
    release, work = course
    assert (work / "01-decode" / "01-decode.ipynb").read_text() == "01-decode, first edition"
    assert lab.refresh(release, work) == []


def test_new_units_arrive_and_untouched_ones_follow_the_release(course):
    release, work = course
    (release / "02-cache").mkdir()
    (release / "02-cache" / "02-cache.ipynb").write_text("new unit")
    (release / "00-clock" / "00-clock.ipynb").write_text("second edition")
    assert lab.refresh(release, work) == [
        "refreshed  work/00-clock/00-clock.ipynb",
        "added      work/02-cache/02-cache.ipynb",
    ]
    assert (work / "00-clock" / "00-clock.ipynb").read_text() == "second edition"


def test_what_the_learner_changed_stays_and_a_new_edition_is_put_beside_it_once(course):
    release, work = course
    mine = work / "00-clock" / "00-clock.ipynb"
    mine.write_text("my answers")
    assert lab.refresh(release, work) == []
    (release / "00-clock" / "00-clock.ipynb").write_text("second edition")
    (said,) = lab.refresh(release, work)
    assert said.startswith("kept yours") and said.endswith("00-clock.new.ipynb")
    assert mine.read_text() == "my answers"
    assert (work / "00-clock" / "00-clock.new.ipynb").read_text() == "second edition"
    assert lab.refresh(release, work) == []


def test_a_lost_manifest_costs_no_work(course):
    release, work = course
    mine = work / "00-clock" / "00-clock.ipynb"
    mine.write_text("my answers")
    for broken in (None, "{", "[]"):
        (work / lab.MANIFEST).unlink(missing_ok=True) if broken is None else (work / lab.MANIFEST).write_text(broken)
        lab.refresh(release, work)
        assert mine.read_text() == "my answers"


def test_a_deleted_notebook_comes_back(course):
    release, work = course
    (work / "01-decode" / "01-decode.ipynb").unlink()
    assert lab.refresh(release, work) == ["added      work/01-decode/01-decode.ipynb"]


def test_a_full_disk_leaves_every_file_whole_and_says_so(course, monkeypatch):
    release, work = course
    (release / "00-clock" / "00-clock.ipynb").write_text("second edition")
    real = os.fdopen

    class Full:
        def __init__(self, handle, mode):
            self.file = real(handle, mode)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, data):
            self.file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", Full)
        with pytest.raises(CourseError, match="No space left on device. Nothing of yours was changed"):
            lab.refresh(release, work)
    assert (work / "00-clock" / "00-clock.ipynb").read_text() == "00-clock, first edition"
    assert not list(work.rglob("*.part"))
    assert lab.refresh(release, work) == ["refreshed  work/00-clock/00-clock.ipynb"]


def test_what_an_interrupted_copy_left_is_cleared(course):
    release, work = course
    left = work / "00-clock" / ".00-clock.ipynb.abc.part"
    left.write_text("half")
    lab.refresh(release, work)
    assert not left.exists()


def test_jupyterlab_opens_on_the_copy_with_the_learners_options(course, monkeypatch):
    release, work = course
    started = {}
    monkeypatch.setattr(os, "execve", lambda path, command, env: started.update(command=command, env=env))
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    monkeypatch.setattr(sys, "prefix", str(work.parent / "environment"))
    lab.main(["--no-browser", "--port", "8899"], release.parent)
    assert started["command"][-3:] == ["--no-browser", "--port", "8899"]
    assert f"--ServerApp.root_dir={work}" in started["command"]
    assert "--LabApp.default_url=/lab/tree/00-clock/00-clock.ipynb" in started["command"]
    assert "--allow-root" in started["command"]
    assert started["env"]["COURSE_HOME"] == str(work / ".course")
    config = work.parent / "environment" / "etc" / "ipython" / "ipython_kernel_config.py"
    assert "helpers.blanks" in config.read_text()


def test_without_notebooks_it_says_what_to_do(tmp_path, capsys):
    assert lab.main(["--copy-only"], tmp_path) == 1
    assert "make notebooks" in capsys.readouterr().out


def test_a_notebook_arrives_as_jupyterlab_would_save_it(course):
    """Otherwise JupyterLab marks it as changed before anybody has touched it: it writes in which language it runs."""
    release, work = course
    notebook = {"cells": [], "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
    (release / "02-new").mkdir()
    (release / "02-new" / "02-new.ipynb").write_text(json.dumps(notebook))
    lab.refresh(release, work)
    info = json.loads((work / "02-new" / "02-new.ipynb").read_text())["metadata"]["language_info"]
    assert info["version"] == platform.python_version() and info["codemirror_mode"]
    assert lab.refresh(release, work) == []


def test_the_page_that_everybody_runs_follows_the_release(course):
    release, work = course
    page = {"cells": [{"source": ["one"], "outputs": []}], "metadata": {}}
    (release / lab.FIRST).write_text(json.dumps(page))
    lab.refresh(release, work)
    page["cells"][0]["outputs"] = ["drawn"]
    (work / lab.FIRST).write_text(json.dumps(page))
    assert lab.refresh(release, work) == []
    page["cells"][0]["source"] = ["two"]
    (release / lab.FIRST).write_text(json.dumps(page))
    assert lab.refresh(release, work) == ["refreshed  work/START.ipynb"]


def test_the_rules_for_tutors_lie_beside_the_notebooks(course):
    _, work = course
    assert "do not solve" in (work / "AGENTS.md").read_text(encoding="utf-8")
