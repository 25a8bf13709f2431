"""Whose notebook of which unit is where: folders and zips as learners and learning platforms make them."""

import json
import time
import zipfile

import pytest

from tests.pipeline.miniature import UNIT, answered
from tools.handed_in import submissions
from tools.units import CourseError, find

RIGHT = {"answer-77-1": "kv_bytes = 46_080"}


@pytest.fixture
def notebook(built):
    return json.dumps(answered(built, RIGHT))


@pytest.fixture
def found(built, tmp_path):
    """found({path: text}) → {student: Submission} of a folder that holds these files."""

    def search(files):
        folder = tmp_path / "in"
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return {s.student: s for s in submissions(folder, find(built), tmp_path / "unpacked")}

    return search


@pytest.mark.parametrize(
    "path",
    [
        f"{UNIT}/{UNIT}.ipynb",
        f"{UNIT}.ipynb",
        f"work/{UNIT}/{UNIT}.ipynb",
        f"Copy of {UNIT}.ipynb",
        f"{UNIT}-Copy1.ipynb",
        f"{UNIT}.ipynb.json",
        f"{UNIT}.json",
        "my answers/week 1/final FINAL.ipynb",
    ],
)
def test_a_notebook_is_found_wherever_it_lies(found, notebook, path):
    anna = found({f"anna/{path}": notebook, "anna/notes.txt": "x", "__MACOSX/anna/._x.ipynb": "x", ".DS_Store": "x"})
    assert list(anna) == ["anna"] and anna["anna"].path.read_text() == notebook
    plain = path in (f"{UNIT}/{UNIT}.ipynb", f"{UNIT}.ipynb")
    assert anna["anna"].notes == ([] if plain else [f"taken: {path}"])


def test_a_platforms_names_become_students(found, notebook):
    class_ = found(
        {
            f"Anna Smith_4711_assignsubmission_file_/{UNIT}.ipynb": notebook,
            "Anna Smith_4712_assignsubmission_file_/x.ipynb": notebook,
            f"smithben_LATE_55_66_{UNIT}-2.ipynb": notebook,
            "jonescarl_56_67_work.zip": b"",
        }
    )
    ids = {student: s.lms_id for student, s in class_.items()}
    assert ids == {"Anna Smith": "4711", "Anna Smith (4712)": "4712", "smithben": "55", "jonescarl": "56"}
    assert all(class_[s].path for s in ids if s != "jonescarl")
    assert [s for s in ids if class_[s].handed and class_[s].handed.at is None] == ["smithben"], "marked LATE"


def test_zips_are_looked_into_also_in_zips_and_the_class_may_be_one(built, notebook, tmp_path):
    with zipfile.ZipFile(tmp_path / "inner.zip", "w") as inner:
        inner.writestr(f"work/{UNIT}/{UNIT}.ipynb", notebook)
        inner.writestr(f"__MACOSX/work/._{UNIT}.ipynb", "x")
        inner.writestr("../../outside.ipynb", "{}")
    with zipfile.ZipFile(tmp_path / "class.zip", "w") as outer:
        outer.write(tmp_path / "inner.zip", "anna/all my work.zip")
        outer.writestr(zipfile.ZipInfo(f"ben/{UNIT}.ipynb", (2026, 1, 2, 3, 4, 6)), notebook)
        outer.writestr("anna/work/.course/predictions.jsonl", "{}")
    class_ = {s.student: s for s in submissions(tmp_path / "class.zip", find(built), tmp_path / "unpacked")}
    assert {s: c.path.read_text() for s, c in class_.items()} == {"anna": notebook, "ben": notebook}
    assert [path.read_text() for path in class_["anna"].log] == ["{}"] and not class_["ben"].log
    assert time.localtime(class_["ben"].handed.at)[:6] == (2026, 1, 2, 3, 4, 6), "a zip keeps its files' times"
    assert not (tmp_path / "outside.ipynb").exists() and not (tmp_path.parent / "outside.ipynb").exists()


def test_two_copies_are_one_if_equal_and_need_a_human_if_not(found, notebook):
    same = found({f"anna/a {UNIT}.ipynb": notebook, f"anna/b {UNIT}.ipynb": notebook})
    assert same["anna"].path and same["anna"].notes[1:] == [f"not taken: b {UNIT}.ipynb"]


def test_two_different_copies_need_a_human_unless_one_has_its_name(found, notebook):
    other = notebook.replace("46_080", "1")
    class_ = found(
        {
            f"anna/a {UNIT}.ipynb": notebook,
            f"anna/b {UNIT}.ipynb": other,
            f"ben/{UNIT}.ipynb": notebook,
            f"ben/{UNIT}-Copy1.ipynb": other,
            f"carl/{UNIT}.ipynb": notebook,
            f"carl/{UNIT}/{UNIT}.ipynb": other,
        }
    )
    assert class_["anna"].wrong == f"2 different notebooks: a {UNIT}.ipynb, b {UNIT}.ipynb"
    assert class_["ben"].path.read_text() == notebook and class_["ben"].notes == [f"not taken: {UNIT}-Copy1.ipynb"]
    assert class_["carl"].wrong.startswith("2 different notebooks")


def test_nothing_is_lost_in_silence(found, notebook):
    class_ = found(
        {
            f"{UNIT}.ipynb": notebook,
            f"anna/{UNIT}.ipynb": "{broken",
            "ben/readme.txt": "x",
            f"carl/{UNIT}.zip": b"no zip",
        }
    )
    assert class_[f"{UNIT}.ipynb"].wrong == f"{UNIT}.ipynb lies beside the students' folders: whose is it?"
    assert class_["anna"].path and not class_["ben"].path and not class_["ben"].wrong
    assert class_["carl"].path.name == f"{UNIT}.zip", "named like the unit: repair will say what it is"


def test_a_folder_without_students_is_an_error(found):
    with pytest.raises(CourseError, match="no student's folder"):
        found({".git/x.ipynb": "x"})
