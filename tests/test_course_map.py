"""START.ipynb and what stands around the units: times, titles, words and points agree with the units themselves."""

import json
import re

import matplotlib.pyplot as plt
import pytest

from helpers import check, course, estimates
from tools import frame
from tools.units import ROOT, find

SOURCES = {unit.number: unit.source.read_text(encoding="utf-8") for unit in find()}
START = json.loads((ROOT / "notebooks" / "START.ipynb").read_text(encoding="utf-8"))
SAID = "".join("".join(cell["source"]) + "\n" for cell in START["cells"])


@pytest.fixture
def notebook(monkeypatch, tmp_path):
    """A notebook of a learner with an empty log."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setattr(check, "shell", object)
    return tmp_path


def test_the_map_holds_every_unit_with_its_own_title_and_minutes():
    assert [unit.name for unit in course.units()] == [unit.name for unit in find()]
    for unit in course.units():
        source = SOURCES[unit.number]
        assert re.search(r"^# # (.+)", source, re.MULTILINE)[1].startswith(f"{unit.number} · {unit.title}")
        assert re.search(r"About (\d+)[\s#]+minutes", source)[1] == str(unit.minutes)
        assert all(needed < unit.number for needed in unit.needs)


def test_the_ways_take_what_their_units_take_and_the_readme_says_so():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in course.paths():
        assert path["units"] == sorted(set(path["units"]))
        time = frame.hours(path["minutes"])
        assert f"| **{path['name']}** |" in SAID and f"| {time} |" in SAID
        assert re.search(rf"{path['name']}.*\| {time} \|", readme), f"README: {path['name']}, {time}"


@pytest.mark.parametrize("word", course.glossary(), ids=lambda word: word["term"])
def test_a_word_is_used_where_it_is_said_to_be_explained(word):
    assert word["term"].lower() in SOURCES[word["unit"]].lower()
    assert word["text"].endswith((".", ")")) and f"**{word['term']}** ({word['unit']})" in SAID


def test_no_word_is_explained_twice():
    terms = [word["term"].lower() for word in course.glossary()]
    assert len(terms) == len(set(terms))


def test_start_reads_as_a_page_and_runs_as_one(notebook, capsys):
    for target in re.findall(r"\]\(([^)]+)\)", SAID):
        assert (ROOT / "notebooks" / target).exists(), target
    estimates.predict("02.tpot_ms", 10, "ms")
    estimates.measured("02.tpot_ms", 11)
    names = {}
    for cell in START["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    plt.close("all")
    assert "0 of" in repr(course.progress())


def test_points_come_from_the_last_run_of_each_test(notebook, capsys):
    right = {"decode": 4.4806, "prompt": 14.108}
    with pytest.raises(check.Wrong):
        check.grade("00.1", {**right, "decode": 1.0})
    assert course.earned("00")["00.1"] == (0, 2)
    check.grade("00.1", right)
    assert course.earned("00")["00.1"] == (2, 2)
    course.end("00")
    said = capsys.readouterr().out
    assert "2 of 17 points" in said and "00.2 (2)" in said and "00.1" not in said.split("still")[1]
    page = course.progress()
    assert "Go on with unit 00" in repr(page) and 'href="00-clock/00-clock.ipynb"' in page._repr_html_()


def test_when_all_is_done_it_says_so(notebook):
    for unit in course.units():
        for name in course.earned(unit.number):
            estimates.checked(name, 1.0)
    page = course.progress()
    assert "Every exercise is right" in page._repr_html_() and page.total.split(" of ")[0] + " points" in page.total


def test_a_grader_writes_no_log(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    check.grade("00.1", {"decode": 4.4806, "prompt": 14.108})
    assert not list(tmp_path.iterdir())


def test_every_unit_ends_with_its_points_and_the_way_on():
    units = find()
    for unit, onward in zip(units, [*units[1:], None], strict=True):
        text, code = json.loads(unit.release.read_text(encoding="utf-8"))["cells"][-2:]
        assert f'course.end("{unit.number}")' in "".join(code["source"])
        targets = re.findall(r"\]\(([^)]+)\)", "".join(text["source"]))
        assert targets == ([f"../{onward.name}/{onward.name}.ipynb"] if onward else []) + ["../START.ipynb"]
        assert all((unit.release.parent / target).exists() for target in targets)


def test_a_mark_that_nobody_fills_is_named(tmp_path):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "helpers" / "data").mkdir(parents=True)
    for name in ("course.json", "glossary.json"):
        (tmp_path / "helpers" / "data" / name).write_bytes((course.FOLDER / name).read_bytes())
    (tmp_path / "solutions" / "START.py").write_text("# %% [markdown]\n# <!-- mapp -->\n")
    with pytest.raises(frame.CourseError, match="unknown mark <!-- mapp -->"):
        frame.start(tmp_path)


def test_code_fits_a_notebook_at_half_a_screen():
    """88 columns; the cell that fetches the course on a hosted notebook is folded."""
    for unit in find():
        for cell in json.loads(unit.release.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                long = [line for line in "".join(cell["source"]).splitlines() if len(line) > 88]
                assert not long, (cell["id"], long)
