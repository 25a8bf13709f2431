"""Points that a person gave in formgrader: read from the gradebook, and carried over when it has to be made anew."""

import json
from collections.abc import Iterable
from pathlib import Path

from nbgrader.api import Comment, Grade, Gradebook

from tools.units import write_whole

KEPT = "marks.json"  # of the gradebook that was here before

# {"student/unit": {cell: [points, what was said]}}
Marks = dict[str, dict[str, list]]


def all_of(database: str) -> Marks:
    """Every mark in a gradebook."""
    found: Marks = {}
    with Gradebook(database) as gradebook:
        for grade in gradebook.db.query(Grade).filter(Grade.manual_score.isnot(None)):
            said = _comment(grade)
            where = f"{grade.student.id}/{grade.assignment.name}"
            found.setdefault(where, {})[grade.cell.name] = [grade.manual_score, said.manual_comment if said else None]
    return found


def keep(folder: Path) -> dict[Path, bytes]:
    """The marks in all course directories under `folder`, also those that their last gradebooks were given."""
    found = {}
    for database in folder.rglob("gradebook.db"):
        kept = _kept(database.parent)
        for where, marks in all_of(f"sqlite:///{database.resolve()}").items():
            kept[where] = kept.get(where, {}) | marks
        if kept:
            found[database.parent.relative_to(folder)] = json.dumps(kept).encode()
    return found


def put_back(folder: Path, found: dict[Path, bytes]) -> None:
    for where, kept in found.items():
        write_whole(folder / where / KEPT, kept)


def give(folder: Path, grades: Iterable[Grade], student: str, unit: str, gradebook: Gradebook) -> None:
    """Give what was marked in an earlier gradebook to these grades, each still to be looked at again."""
    marks = _kept(folder).get(f"{student}/{unit}", {})
    for grade in grades:
        if grade.name in marks and grade.manual_score is None:
            grade.manual_score, said = marks[grade.name]
            grade.needs_manual_grade = True
            if said and (comment := _comment(grade)):
                comment.manual_comment = said
            gradebook.db.commit()


def comment_on(grade: Grade) -> str:
    """What the person who marked it wrote."""
    said = _comment(grade)
    return (said.manual_comment or "") if said else ""


def _comment(grade: Grade) -> Comment | None:
    return next((c for c in grade.notebook.comments if c.name == grade.name), None)


def _kept(folder: Path) -> Marks:
    try:
        return json.loads((folder / KEPT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
