"""`make score`: grade your own work/ as an instructor would, and say what each missing point wants."""

import argparse
import sys
import tempfile
from pathlib import Path

from tools.grading import Grader, Result
from tools.units import ROOT, CourseError, find


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
        indented = note.replace("\n", "\n" + " " * 18)
        points = "?" if exercise.points is None else f"{exercise.points:g}"
        lines.append(f"  {mark} {exercise.id:<6} {points:>2}/{exercise.max_points:<2g}   {indented}".rstrip())
    if result.problem:
        lines.append(f"  {result.problem}")
    return "\n".join(lines)


def score(root: Path, work: Path, selection: list[str], course: Path) -> list[Result]:
    """Grade the notebooks of `work` for the selected units in the empty folder `course`, as whoever runs it."""
    units = find(root, selection)
    notebooks = {u.name: work / u.name / f"{u.name}.ipynb" for u in units}
    started = [u for u in units if notebooks[u.name].exists()]
    absent = [u.name for u in units if u not in started]
    if selection and absent:
        raise CourseError(f"no notebook of yours for {', '.join(absent)} in {work}; `make lab` puts one there")
    if not started:
        raise CourseError(f"nothing to score: {work} holds no unit yet; `make lab` starts you off")
    graded = Grader(course / "course", started, sandboxed=False)
    results = []
    for unit in started:
        results.append(graded.grade("you", unit, notebooks[unit.name]))
        print(report(results[-1]), flush=True)
    return results


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
