"""`make score`: grade your own work/ as an instructor would, and say what each missing point wants.

A notebook is known by the ids of its cells, whatever it is called; a unit in which nothing was written is not run.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tools.grading import Exercise, Grader, Result
from tools.handed_in import known_ids, unit_of
from tools.repair import Unusable, repair
from tools.source import exercise_id, kind, text
from tools.units import ROOT, CourseError, Unit, find


def report(result: Result) -> str:
    """The lines printed for one unit."""
    if result.problem and not result.exercises:
        return f"{result.unit}\n  cannot be graded: {result.problem}"
    lines = [f"{result.unit}   {result.points:g} of {result.max_points:g} points"]
    for exercise in result.exercises:
        mark = "✓" if exercise.full else "✗" if exercise.answered else "·"
        note = (
            ("" if exercise.full else "not answered yet")
            if exercise.full or not exercise.answered
            else exercise.message
        )
        indented = note.replace("\n", "\n" + " " * 20)
        points = "?" if exercise.points is None else f"{exercise.points:g}"
        lines.append(f"  {mark} {exercise.id:<6} {points:>3}/{exercise.max_points:<2g}   {indented}".rstrip())
    for page in result.marked:
        points = "?" if page.points is None else f"{page.points:g}"
        note = page.message or ("a person marks this page" if page.points is None else "")
        lines.append(f"  – {page.id:<6} {points:>3}/{page.max_points:<2g}   {note}".rstrip())
    if result.problem:
        lines.append(f"  {result.problem}")
    return "\n".join(lines)


def own_report(result: Result) -> str:
    """What is printed to a learner about one unit: the same, and which notebook and which cells were taken."""
    if result.exercises and not any(exercise.answered for exercise in result.exercises):
        return f"{result.unit}   0 of {result.max_points:g} points, nothing answered yet"
    lines = [report(result), *(f"  ({note})" for note in result.notes)]
    if "duplicated" in "".join([result.problem, *result.notes]):
        lines.append("  Keep one of the cells that stand twice, and delete the others.")
    return "\n".join(lines)


def score(root: Path, work: Path, selection: list[str], course: Path) -> list[Result]:
    """Grade the notebooks of `work` for the selected units in the empty folder `course`, as whoever runs it."""
    units = find(root, selection)
    found = notebooks(work, units)
    absent = [unit.name for unit in units if not found[unit.name]]
    if selection and absent:
        raise CourseError(f"no notebook of yours for {', '.join(absent)} in {work}; `make lab` puts one there")
    units = [unit for unit in units if found[unit.name]]
    if not units:
        raise CourseError(f"nothing to score: {work} holds no unit yet; `make lab` starts you off")
    chosen = {unit.name: _choose(unit, found[unit.name], work) for unit in units}
    begun = [unit for unit in units if chosen[unit.name][0] is not None]
    grader = Grader(course / "course", begun, sandboxed=False) if begun else None
    results = []
    for unit in units:
        notebook, notes = chosen[unit.name]
        result = _blank(unit) if notebook is None else grader.grade("you", unit, notebook)
        result.notes[:0] = notes
        results.append(result)
        print(own_report(result), flush=True)
    return results


def notebooks(work: Path, units: list[Unit]) -> dict[str, list[Path]]:
    """The notebooks of each unit below `work`, known by their cells; what `make lab` put beside yours is none."""
    ids = {unit.name: known_ids(unit) for unit in units}
    found: dict[str, list[Path]] = {unit.name: [] for unit in units}
    for path in sorted(work.rglob("*.ipynb")):
        hidden = any(part.startswith(".") for part in path.relative_to(work).parts)
        if hidden or path.name.endswith(".new.ipynb"):
            continue
        unit = next((u for u in units if path == _usual(work, u)), None) or unit_of(path, units, ids)
        if unit is not None:
            found[unit.name].append(path)
    return found


def _usual(work: Path, unit: Unit) -> Path:
    """Where `make lab` puts a unit's notebook."""
    return work / unit.name / f"{unit.name}.ipynb"


def _choose(unit: Unit, paths: list[Path], work: Path) -> tuple[Path | None, list[str]]:
    """The notebook to grade, None where nothing was answered, and what to say about the choice."""
    usual = _usual(work, unit)
    written = sorted((path for path in paths if not _untouched(unit, path)), key=lambda path: (path != usual, path))
    if not written:
        return None, []
    taken, *others = written
    names = [path.relative_to(work).as_posix() for path in others]
    notes = [] if taken == usual else [f"taken: {taken.relative_to(work).as_posix()}"]
    return taken, notes + ([f"not taken, and not empty either: {', '.join(names)}"] if names else [])


def _untouched(unit: Unit, path: Path) -> bool:
    """Whether every answer cell of a notebook is as it was released; what cannot be read is for the grader to name."""
    release = json.loads(unit.release.read_text(encoding="utf-8"))
    try:
        repaired, _ = repair(path.read_bytes(), release)
    except (Unusable, OSError):
        return False
    stubs = {cell["id"]: text(cell).strip() for cell in release["cells"] if kind(cell) == "answer"}
    own = [cell for cell in repaired["cells"] if cell["cell_type"] == "code" and cell["id"].startswith("own-")]
    return not own and all(text(c).strip() == stubs[c["id"]] for c in repaired["cells"] if c["id"] in stubs)


def _blank(unit: Unit) -> Result:
    """The result of a notebook in which nothing was written, without running it."""
    cells = json.loads(unit.release.read_text(encoding="utf-8"))["cells"]
    tests = [cell for cell in cells if kind(cell) == "test"]
    points = [(exercise_id(cell), cell["metadata"]["nbgrader"]["points"]) for cell in tests]
    return Result("you", unit.name, [Exercise(name, 0, most, answered=False) for name, most in points])


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.score", description="grade your own work")
    parser.add_argument("units", nargs="*", help="numbers or names, e.g. 02; all when none is given")
    parser.add_argument("--work", type=Path, default=root / "work", help="where your notebooks are (default: work/)")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="score-") as folder:
            results = score(root, options.work, options.units, Path(folder))
    except CourseError as error:
        print(error)
        return 2
    total, most = sum(r.points for r in results), sum(r.max_points for r in results)
    print(f"\n{total:g} of {most:g} points")
    broken = [r.unit for r in results if r.problem]
    if broken:
        print(f"not graded: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
