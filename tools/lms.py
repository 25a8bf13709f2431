"""Grades in the form that a learning platform imports: its own list of learners, and a column for each unit.

The list is what the platform exports (Canvas: Student, ID, SIS Login ID, Section …; Moodle: Identifier, Full name, …).
Its columns and rows are kept as they are; learners are found by number or by name.
"""

import csv
import io
import re

from tools.grading import Result


def table(roster: str, results: list[Result], lms_ids: dict[str, str]) -> tuple[str, list[str], list[str]]:
    """(CSV, learners of the list without any result, students whom the list does not have).

    `lms_ids` gives a student's number on the platform, where the download had it. A score that is not known stays
    empty. Raises ValueError for a list that has no header row.
    """
    rows = list(csv.reader(io.StringIO(roster.removeprefix("\ufeff"))))
    if not rows or len(rows[0]) < 2:
        raise ValueError("the list of learners has no header row: export it from the platform as CSV")
    header, units = rows[0], sorted({r.unit for r in results})
    kept = [i for i, name in enumerate(header) if name not in units]
    scores: dict[str, dict[str, Result]] = {}
    for result in results:
        scores.setdefault(result.student, {})[result.unit] = result
    known = {key: student for student in scores for key in _keys(student, lms_ids.get(student, ""))}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*(header[i] for i in kept), *units])
    most = {r.unit: f"{r.max_points:g}" for r in sorted(results, key=lambda r: r.max_points) if r.exercises}
    absent, found = [], set()
    for row in rows[1:]:
        cells = [row[i] if i < len(row) else "" for i in kept]
        if any(cell.strip() == "Points Possible" for cell in cells):
            writer.writerow([*cells, *(most.get(unit, "") for unit in units)])
            continue
        student = next((known[key] for cell in cells for key in _of_cell(cell) if key in known), None)
        found |= {student} - {None}
        if student is None and any(cells):
            absent.append(next(cell for cell in cells if cell))
        writer.writerow([*cells, *(_score(scores.get(student, {}).get(unit)) for unit in units)])
    return out.getvalue(), absent, sorted(set(scores) - found)


def _score(result: Result | None) -> str:
    return "" if result is None or result.problem else f"{result.points:g}"


def _keys(student: str, lms_id: str) -> list[str]:
    return [lms_id, _letters(student)] if lms_id else [_letters(student)]


def _of_cell(cell: str) -> list[str]:
    """What a cell of the list may be called elsewhere: a number; "Smith, Anna" is smithanna and annasmith."""
    numbers = re.findall(r"\A(?:Participant )?(\d+)\Z", cell.strip())
    parts = [part for part in re.split(r"[\s,]+", cell.strip()) if part]
    names = {
        _letters("".join(parts)),
        _letters("".join(parts[1:] + parts[:1])),
        _letters("".join(parts[-1:] + parts[:-1])),
    }
    return [*numbers, *(name for name in names if name)]


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()
