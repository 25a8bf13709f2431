"""`make grade`: from a folder of submissions to a CSV, naming each submission that needs a human.

    python -m tools.autograde SUBMISSIONS --csv grades.csv --units 01 02

SUBMISSIONS holds one folder per student, with STUDENT/UNIT/UNIT.ipynb or STUDENT/UNIT.ipynb in it.
"""

import argparse
import csv
import io
import re
import shutil
import sys
import time
from pathlib import Path

from filelock import FileLock, Timeout

from tools import sandbox
from tools.grading import Grader, Result
from tools.score import report
from tools.units import ROOT, CourseError, Unit, find, write_whole

GRADED, HUMAN, ABSENT = "graded", "needs a human", "not submitted"


def submissions(folder: Path, units: list[Unit]) -> list[tuple[str, Unit, Path | None, str]]:
    """(student, unit, notebook or None, what is wrong with how it was handed in) for each student and unit."""
    students = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not students:
        raise CourseError(f"{folder} holds no student's folder; expected {folder}/STUDENT/UNIT/UNIT.ipynb")
    found = []
    for student in students:
        for unit in units:
            notebook, wrong = _notebook(student, unit)
            found.append((student.name, unit, notebook, wrong))
    return found


def _notebook(student: Path, unit: Unit) -> tuple[Path | None, str]:
    name = f"{unit.name}.ipynb"
    here = [p for p in (student / unit.name / name, student / name) if p.exists() or p.is_symlink()]
    if len(here) == 2:
        return None, f"two notebooks: {here[0].relative_to(student)} and {here[1].relative_to(student)}"
    if here:
        linked = any(p.is_symlink() for p in (here[0], here[0].parent, student))
        return (None, "a symbolic link, not a notebook") if linked else (here[0], "")
    others = sorted(
        p.name for p in [*student.glob(f"{unit.name}/*"), *student.glob(f"{unit.number}*.ipynb")] if p.is_file()
    )
    return None, f"no {name}, but {', '.join(others)}" if others else ""


def table(results: list[Result], absent: list[tuple[str, str]]) -> str:
    """The CSV: a row per student and unit; a score that is not known is empty, never 0."""
    exercises = sorted(
        {e.id for r in results for e in r.exercises}, key=lambda i: [int(n) for n in re.findall(r"\d+", i)]
    )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["student", "unit", "score", "max_score", "status", "note", *exercises])
    rows = []
    for r in results:
        points = {e.id: "" if e.points is None else f"{e.points:g}" for e in r.exercises}
        score = ["", ""] if r.problem else [f"{r.points:g}", f"{r.max_points:g}"]
        status = HUMAN if r.problem else GRADED
        note = r.problem or "; ".join(r.notes)
        rows.append([r.student, r.unit, *score, status, note, *(points.get(e, "") for e in exercises)])
    rows += [[student, unit, "", "", ABSENT, "", *("" for _ in exercises)] for student, unit in absent]
    # A spreadsheet would run a cell that begins with one of these as a formula.
    writer.writerows([["'" + c if c[:1] in ("=", "+", "-", "@") else c for c in row] for row in sorted(rows)])
    return out.getvalue()


def grade(folder: Path, units: list[Unit], output: Path, sandboxed: bool) -> tuple[list, list]:
    """Grade every submission of `folder`; returns (results, [(student, unit) not submitted])."""
    handed_in = submissions(folder, units)
    used = [u for u in units if any(unit == u and (notebook or wrong) for _, unit, notebook, wrong in handed_in)]
    if not used:
        raise CourseError(f"{folder} holds no notebook of {', '.join(u.name for u in units)}")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    course = Grader(output, used, sandboxed, [folder])
    for unit in used:
        course.prove(unit)
    results, absent, ids = [], [], _ids({student for student, *_ in handed_in})
    for student, unit, notebook, wrong in handed_in:
        if unit not in used:
            continue
        if not notebook and not wrong:
            absent.append((student, unit.name))
            continue
        start = time.monotonic()
        result = course.grade(ids[student], unit, notebook) if notebook else Result(student, unit.name, problem=wrong)
        result.student = student
        results.append(result)
        said = f"NEEDS A HUMAN: {result.problem}" if result.problem else f"{result.points:g} of {result.max_points:g}"
        print(f"{student}  {unit.name}  {said}  ({time.monotonic() - start:.0f} s)", flush=True)
    return results, absent


def _ids(students: set[str]) -> dict[str, str]:
    """A folder name that nbgrader's patterns cannot misread for each student."""
    ids: dict[str, str] = {}
    for student in sorted(students):
        plain = re.sub(r"[^A-Za-z0-9_@-]", "_", student)
        ids[student] = plain if plain not in ids.values() else f"{plain}-{len(ids)}"
    return ids


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.autograde", description="grade a folder of submissions")
    parser.add_argument("submissions", type=Path, help="folder with STUDENT/UNIT/UNIT.ipynb or STUDENT/UNIT.ipynb")
    parser.add_argument("--csv", type=Path, default=root / "build" / "grades.csv", help="default: build/grades.csv")
    parser.add_argument("--units", nargs="+", help="numbers or names, e.g. 01 02; all when not given")
    parser.add_argument(
        "--unsandboxed", action="store_true", help="run submissions as you, with all you can read and do"
    )
    options = parser.parse_args(arguments)
    output = root / "build" / "grading"
    output.parent.mkdir(exist_ok=True)
    try:
        if not options.submissions.is_dir():
            raise CourseError(f"{options.submissions} is not a folder")
        reason = "" if options.unsandboxed else sandbox.problem()
        if reason:
            raise CourseError(
                f"{reason}\nA submission is a stranger's program: without a sandbox it can read your files and use "
                "your network. Grade on a machine that has bubblewrap, or, if you trust every submission, say so with "
                "--unsandboxed."
            )
        units = find(root, options.units)
        with FileLock(output.with_suffix(".lock"), timeout=0):
            results, absent = grade(options.submissions.resolve(), units, output, not options.unsandboxed)
            for student in sorted({r.student for r in results}):
                said = "\n\n".join(report(r) for r in results if r.student == student)
                write_whole(output / "reports" / f"{student}.txt", (said + "\n").encode())
            write_whole(options.csv, table(results, absent).encode())
    except Timeout:
        print(f"another grading is running here ({output}); wait for it, two at a time would corrupt its gradebook")
        return 2
    except CourseError as error:
        print(error)
        return 2
    human = [f"  {r.student}  {r.unit}: {r.problem}" for r in results if r.problem]
    print(
        f"\n{len(results) - len(human)} graded, {len(human)} need a human, {len(absent)} not submitted; {options.csv}"
    )
    print(f"what to tell each student: {output / 'reports'}")
    if human:
        print("need a human:\n" + "\n".join(human))
    return 1 if human else 0


if __name__ == "__main__":
    sys.exit(main())
