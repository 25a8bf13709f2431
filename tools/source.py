"""From a unit's percent source to its solution notebook: shorthand expanded, ids fixed, nothing executed."""

import json
import re

import jupytext

from tools import frame
from tools.units import CourseError, Unit

SHORTHAND = {"answer", "test", "points", "report"}
ALLOWED = SHORTHAND | {"tags", "jupyter", "slideshow", "scrolled"}
EXERCISE = re.compile(r"\d\d\.\d+[a-z]?\Z")


def kind(cell: dict) -> str:
    """What a cell is for: "answer", "test", "setup", "parameters", "measure" (any other code), "report" (text that a
    person marks) or "text"."""
    grade_id = cell["metadata"].get("nbgrader", {}).get("grade_id", "")
    if cell["cell_type"] != "code":
        return "report" if grade_id.startswith("report-") else "text"
    if grade_id.startswith(("answer-", "test-")):
        return grade_id.split("-")[0]
    tags = cell["metadata"].get("tags", [])
    return next((tag for tag in ("setup", "parameters") if tag in tags), "measure")


def exercise_id(cell: dict) -> str:
    """ "02.1" of an answer or test cell."""
    return cell["metadata"]["nbgrader"]["grade_id"].split("-", 1)[1].replace("-", ".")


def gives_shares(test: str) -> bool:
    """Whether a test cell gives points for each right part, and not all or none: its last line says how many."""
    return test.rstrip().rpartition("\n")[2].startswith("check.share(")


def solution_notebook(unit: Unit) -> dict:
    """The notebook (nbformat 4.5, as plain JSON) that `unit.source` describes.

    Raises `CourseError` for metadata that is not the shorthand `answer=`, `test=` or `report=` with `points=`, or
    `tags=`.
    """
    parsed = jupytext.reads(unit.source.read_text(encoding="utf-8"), fmt="py:percent")
    cells, setups = [], 0
    for index, cell in enumerate(parsed.cells):
        metadata = {key: value for key, value in cell.metadata.items() if key != "lines_to_next_cell"}
        first_line = (cell.source.strip().splitlines() or ["empty"])[0][:60]
        where = f"{unit.name}, cell {index} ({first_line})"
        if cell.cell_type == "raw" and not cells and cell.source.startswith("---"):
            continue
        unknown = sorted(set(metadata) - ALLOWED)
        if unknown:
            raise CourseError(
                f"{where}: unknown cell metadata {', '.join(unknown)}; known: {', '.join(sorted(ALLOWED))}"
            )
        grading = _grading(metadata, where, cell.cell_type)
        if grading is None and "setup" in metadata.get("tags", []):
            setups += 1
            grading = _nbgrader(f"setup-{unit.number}-{setups}", locked=True)
        metadata = {key: value for key, value in metadata.items() if key not in SHORTHAND}
        if grading:
            metadata["nbgrader"] = grading
        built = {
            "cell_type": cell.cell_type,
            "id": grading["grade_id"] if grading else f"{unit.name}-{len(cells):03d}",
            "metadata": metadata,
            "source": cell.source,
        }
        if cell.cell_type == "code":
            built |= {"execution_count": None, "outputs": []}
            if kind(built) == "measure":
                metadata["tags"] = [*metadata.get("tags", []), "measure"]
        built["source"] = cell.source.splitlines(keepends=True)
        cells.append(built)
    return frame.notebook([*cells, *frame.ending(unit)])


def text(cell: dict) -> str:
    """A cell's source as one string, whether the notebook stores it so or as lines."""
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def _grading(metadata: dict, where: str, cell_type: str) -> dict | None:
    given = SHORTHAND & set(metadata)
    if not given:
        return None
    if "report" in given:
        if cell_type != "markdown" or given != {"report", "points"}:
            raise CourseError(f'{where}: a page that a person marks is a markdown cell, report="08.9" points=5')
        identity = "report-" + _dashed(metadata["report"], where)
        return _nbgrader(identity, grade=True, solution=True) | {"points": _points(metadata, where)}
    if cell_type != "code":
        raise CourseError(f"{where}: only code cells are graded, this one is {cell_type}")
    if given == {"answer"}:
        return _nbgrader("answer-" + _dashed(metadata["answer"], where), solution=True)
    if given == {"test"}:
        raise CourseError(f'{where}: test cell without points; write test="{metadata["test"]}" points=1')
    if given != {"test", "points"}:
        raise CourseError(f'{where}: a cell is either answer="02.1" or test="02.1" points=2, not {sorted(given)}')
    identity = "test-" + _dashed(metadata["test"], where)
    return _nbgrader(identity, grade=True, locked=True) | {"points": _points(metadata, where)}


def _points(metadata: dict, where: str) -> int:
    points = metadata["points"]
    if isinstance(points, bool) or not isinstance(points, int) or points < 1:
        raise CourseError(f"{where}: points must be a whole number of at least 1, not {json.dumps(points)}")
    return points


def _dashed(exercise: object, where: str) -> str:
    if not isinstance(exercise, str) or not EXERCISE.match(exercise):
        raise CourseError(f'{where}: an exercise is named like "02.1" (in quotes), not {exercise!r}')
    return exercise.replace(".", "-")


def _nbgrader(grade_id: str, grade: bool = False, locked: bool = False, solution: bool = False) -> dict:
    return {
        "grade": grade,
        "grade_id": grade_id,
        "locked": locked,
        "schema_version": 3,
        "solution": solution,
        "task": False,
    }
