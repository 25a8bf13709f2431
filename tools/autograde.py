"""`make grade`: from a folder of submissions to a CSV, naming each submission that needs a human.

    python -m tools.autograde SUBMISSIONS --csv grades.csv --units 01 02

SUBMISSIONS is a folder (or the zip of a learning platform) with a folder per student, which holds their notebooks
anywhere. What was graded before and has not changed is not graded again, so an interrupted run is simply run again.
"""

import argparse
import contextlib
import csv
import io
import json
import os
import re
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from tools import alike, class_report, handed_in, late, lms, predictions, sandbox, workers
from tools.grading import Grader, Result
from tools.handed_in import Submission
from tools.handed_out import HandedOut, of_the_course
from tools.ledger import Ledger
from tools.score import report
from tools.source import exercise_id, kind, text
from tools.units import ROOT, CourseError, Unit, find, write_whole

# Each may use two cores, and as much memory as nbgrader_config.py lets a submission have.
JOBS = max(1, min(4, (os.cpu_count() or 1) // 2))
GRADED, HUMAN, ABSENT = "graded", "needs a human", "not submitted"


class Class:
    """One run over a class: what was found, and the results so far."""

    def __init__(
        self,
        options: argparse.Namespace,
        found: list[Submission],
        units: list[Unit],
        output: Path,
        out: HandedOut | None = None,
    ):
        self.options, self.output, self.out = options, output, out
        self.handed = [s for s in found if s.path or s.wrong]
        units = [u for u in units if any(s.unit.name == u.name for s in self.handed)]
        names = {unit.name for unit in units}
        self.absent = [(s.student, s.unit.name) for s in found if s.unit.name in names and not (s.path or s.wrong)]
        self.ledger = Ledger(output, units, options.fresh)
        self.results = {(r.student, r.unit): r for r in self.ledger.all()}
        self.ids = _ids({s.student for s in self.handed} | {student for student, _ in self.results})
        self.courses: dict[Path, Grader] = {}

    def grade(self) -> None:
        """Grade what is not yet known, writing CSV and report after each."""
        todo = [s for s in self.handed if self._wanted(s)]
        known = len(self.handed) - len(todo)
        if self.ledger.forgotten:
            print("the course has changed since the last run: everything is graded again")
        elsewhere = {student for student, _ in self.results} - {s.student for s in self.handed}
        if elsewhere:
            print(f"{len(elsewhere)} students of earlier runs keep their grades and reports; --fresh forgets them")
        if known:
            print(f"{known} of {len(self.handed)} were graded before and have not changed")
        first = {s.unit.name: s for s in reversed(todo) if s.path and not s.wrong}
        for submission in first.values():
            self._course(submission).prove(submission.unit)
        for submission in (s for s in todo if s.wrong):
            self._keep(submission, Result(submission.student, submission.unit.name, problem=submission.wrong))
        jobs = [
            (i, partial(self._course, s), self.ids[s.student], s.unit, s.path)
            for i, s in enumerate(todo)
            if s.path and not s.wrong
        ]
        took, bar = [], tqdm(total=len(jobs), unit="submission", disable=None)
        with bar, contextlib.closing(workers.graded(jobs, self.options.jobs)) as running:
            for index, result, seconds in running:
                Stop.raise_if_asked()  # nbgrader swallows it, and would blame the student
                took.append(seconds)
                self._keep(todo[index], result, f"  ({seconds:.1f} s)")
                bar.update()
        self._take_marks()
        if took:
            print(f"{len(took)} graded in this run, median {statistics.median(took):.1f} s a submission")

    def _wanted(self, submission: Submission) -> bool:
        if self.options.only and submission.student not in self.options.only:
            return False
        result, before = self.ledger.get(submission.student, submission.unit.name)
        return self.options.again or result is None or before != self._fingerprint(submission)

    def _fingerprint(self, submission: Submission) -> str:
        content = submission.wrong.encode() if submission.wrong else submission.path.read_bytes()
        return self.ledger.fingerprint(submission.unit, content)

    def _folder(self, student: str) -> Path:
        """The course directory for `student`: of all, or of their own where each has another variant."""
        return self.output / "learners" / self.ids[student] if self.out and self.out.personal else self.output

    def _course(self, submission: Submission) -> Grader:
        folder = self._folder(submission.student)
        if folder not in self.courses:
            mine = [s for s in self.handed if s.path and not s.wrong and self._folder(s.student) == folder]
            hidden = [self.options.submissions, *([self.out.folder] if self.out else [])]
            units = {s.unit.name: s.unit for s in mine}
            self.courses[folder] = Grader(folder, list(units.values()), not self.options.unsandboxed, hidden)
        return self.courses[folder]

    def _keep(self, submission: Submission, result: Result, took: str = "") -> None:
        """Note a result, in the ledger and in the CSV, and say it."""
        result.student, result.handed = submission.student, submission.handed
        result.notes = submission.notes + result.notes
        self.ledger.keep(result, self._fingerprint(submission))
        self.results[result.student, result.unit] = result
        self.write()
        said = f"NEEDS A HUMAN: {result.problem}" if result.problem else f"{result.points:g} of {result.max_points:g}"
        tqdm.write(f"{result.student}  {result.unit}  {said}{took}")
        sys.stdout.flush()

    def _take_marks(self) -> None:
        """Put into the results what a person has marked since, in formgrader."""
        for submission in self.handed:
            key = submission.student, submission.unit.name
            result = self.results.get(key)
            if result and result.marked and submission.path and not submission.wrong:
                marked = self._course(submission).marked(self.ids[submission.student], submission.unit)
                if marked != result.marked:
                    result.marked = marked
                    self.ledger.keep(result, self.ledger.get(*key)[1])

    def write(self) -> None:
        """The CSV, whole, and the reports of all who have results."""
        results = list(self.results.values())
        write_whole(self.options.csv, table(results, self.absent, self.options.deadline).encode())
        for student in {r.student for r in results}:
            said = "\n\n".join(report(r) for r in sorted(results, key=lambda r: r.unit) if r.student == student)
            path = self.output / "reports" / f"{student.replace('/', '_')}.txt"
            content = f"{said}\n".encode()
            if not path.exists() or path.read_bytes() != content:
                write_whole(path, content)

    def write_class_report(self) -> None:
        """One page about all of them."""
        answers, stubs = {}, {}
        for student, unit in self.results:
            folder = self._folder(student)
            graded = folder / "submitted" / self.ids[student] / unit / f"{unit}.ipynb"
            released = folder / "notebooks" / unit / f"{unit}.ipynb"
            answers |= {(student, name): source for name, source in _answers(graded).items()}
            stubs |= _answers(released)
        pairs = alike.pairs(answers, stubs)
        predicted = predictions.of_class({s.student: s.log for s in self.handed if s.log})
        page = class_report.page(list(self.results.values()), self.absent, pairs, predicted)
        write_whole(self.output / "report.html", page.encode())

    def write_for_platform(self) -> None:
        """The grades in the roster's form, beside the CSV; whoever is on one side only is named."""
        ids = {s.student: s.lms_id for s in self.handed}
        try:
            roster = self.options.roster.read_text(encoding="utf-8-sig")
            text, absent, unknown = lms.table(roster, list(self.results.values()), ids)
        except (OSError, ValueError) as error:
            raise CourseError(f"{self.options.roster}: {error}") from None
        path = self.options.csv.with_name(f"{self.options.csv.stem}-platform.csv")
        write_whole(path, text.encode())
        print(f"for the platform: {path}")
        for what, names in (("handed in nothing", absent), ("are not on its list", unknown)):
            if names:
                print(f"  {what}: {', '.join(names)}")


class Stop(BaseException):
    """Ctrl-C or a request to end; what was graded stays, and the student at hand is not blamed."""

    asked = 0

    @classmethod
    def raise_if_asked(cls) -> None:
        if cls.asked:
            raise cls

    @classmethod
    @contextlib.contextmanager
    def on_signals(cls) -> Iterator[None]:
        def asked(number, frame):
            cls.asked = number
            raise KeyboardInterrupt

        cls.asked = 0
        before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def table(results: list[Result], absent: list[tuple[str, str]], deadline: datetime | None = None) -> str:
    """The CSV: a row per student and unit; a score that is not known is empty, never 0."""
    names = {e.id for r in results for e in [*r.exercises, *r.marked]}
    exercises = sorted(names, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["student", "unit", "score", "max_score", "status", "late", "note", *exercises])
    rows = []
    for r in results:
        points = {e.id: "" if e.points is None else f"{e.points:g}" for e in [*r.exercises, *r.marked]}
        score = ["", ""] if r.problem else [f"{r.points:g}", f"{r.max_points:g}"]
        status = HUMAN if r.problem else GRADED
        note = "; ".join([r.problem, *r.remarks] if r.problem else r.remarks)
        when = late.remark(r.handed, deadline)
        rows.append([r.student, r.unit, *score, status, when, note, *(points.get(e, "") for e in exercises)])
    rows += [[student, unit, "", "", ABSENT, "", "", *("" for _ in exercises)] for student, unit in absent]
    # A spreadsheet would run a cell that begins with one of these as a formula.
    writer.writerows([["'" + c if c[:1] in ("=", "+", "-", "@") else c for c in row] for row in sorted(rows)])
    return out.getvalue()


def _answers(notebook: Path) -> dict[str, str]:
    """{exercise: source} of a notebook's answer cells; nothing for one that never became a notebook."""
    if not notebook.exists():
        return {}
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return {exercise_id(cell): text(cell) for cell in cells if kind(cell) == "answer"}


def _ids(students: set[str]) -> dict[str, str]:
    """A folder name that nbgrader's patterns cannot misread for each student; the same in every run."""
    ids: dict[str, str] = {}
    for student in sorted(students):
        plain = re.sub(r"[^A-Za-z0-9_@-]", "_", student)
        # What was changed is told apart by what it was, whoever else is in the class.
        ids[student] = plain if plain == student else f"{plain}-{student.encode().hex()[-12:]}"
    return ids


def _options(arguments: list[str] | None, root: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.autograde", description="grade a folder of submissions")
    parser.add_argument("submissions", type=Path, help="folder or zip with a folder per student")
    parser.add_argument("--csv", type=Path, default=root / "build" / "grades.csv", help="default: build/grades.csv")
    parser.add_argument("--units", nargs="+", help="numbers or names, e.g. 01 02; all when not given")
    parser.add_argument(
        "--only", nargs="+", metavar="STUDENT", help="grade these alone; the others keep what they have"
    )
    parser.add_argument("--again", action="store_true", help="also what was graded before and has not changed")
    parser.add_argument("--fresh", action="store_true", help="forget all earlier results, as for another class")
    parser.add_argument("--roster", type=Path, help="the platform's list of learners (CSV): grades also in its form")
    parser.add_argument("--variant", type=Path, metavar="FOLDER", help="what `make variant` made for this class")
    parser.add_argument("--deadline", metavar="MOMENT", help=f"mark what was handed in later; {late.FORM}")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"submissions at a time; here {JOBS} unless said")
    parser.add_argument(
        "--unsandboxed", action="store_true", help="run submissions as you, with all you can read and do"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    options = _options(arguments, root)
    options.submissions = options.submissions.absolute()
    output = root / "build" / "grading"
    output.parent.mkdir(exist_ok=True)
    run = None
    try:
        if options.deadline:
            options.deadline = late.moment(options.deadline)
            print(
                f"deadline: {options.deadline:%Y-%m-%d %H:%M:%S %Z (UTC%z)}; late work is marked, and keeps its points"
            )
        if not options.submissions.exists():
            raise CourseError(f"{options.submissions} is not a folder")
        reason = "" if options.unsandboxed else sandbox.problem()
        if reason:
            raise CourseError(
                f"{reason}\nA submission is a stranger's program: without a sandbox it can read your files and use "
                "your network. Grade on a machine that has bubblewrap, or, if you trust every submission, say so with "
                "--unsandboxed."
            )
        units = find(root, options.units)
        with FileLock(output.with_suffix(".lock"), timeout=0), tempfile.TemporaryDirectory(prefix="unpacked-") as zips:
            sandbox.remove_leftovers()
            found = handed_in.submissions(options.submissions, units, Path(zips))
            unknown = sorted(set(options.only or ()) - {s.student for s in found})
            if unknown:
                raise CourseError(f"{options.submissions} has no student {', '.join(unknown)}")
            if not any(s.path or s.wrong for s in found):
                raise CourseError(f"{options.submissions} holds no notebook of {', '.join(u.name for u in units)}")
            out = HandedOut(options.variant) if options.variant else HandedOut.search(root / "variants", found)
            if out:
                print(f"variant {out.seed}, {out.folder}")
                units = out.units(units, bool(options.units))
                found = [s for s in found if s.unit.name in {u.name for u in units}]
            for submission in found:
                (out.settle if out else of_the_course)(submission)
            run = Class(options, found, units, output, out)
            with Stop.on_signals():
                run.grade()
            run.write()
            run.write_class_report()
            if options.roster:
                run.write_for_platform()
    except Timeout:
        print(f"another grading is running here ({output}); wait for it, two at a time would corrupt its gradebook")
        return 2
    except CourseError as error:
        print(error)
        return 2
    except (Stop, KeyboardInterrupt):
        if run:
            run.write()
        print("\nstopped; what was graded is kept. Run the same command again to go on.")
        return 130
    return _summary(run)


def _summary(run: Class) -> int:
    results = sorted(run.results.values(), key=lambda r: (r.student, r.unit))
    human = [f"  {r.student}  {r.unit}: {r.problem}" for r in results if r.problem]
    tardy = [(r, said) for r in results if (said := late.remark(r.handed, run.options.deadline))]
    print(
        f"\n{len(results) - len(human)} graded, {len(human)} need a human, {len(run.absent)} not submitted; "
        f"{run.options.csv}"
    )
    print(f"what to tell each student: {run.output / 'reports'}; about the class: {run.output / 'report.html'}")
    if tardy:
        print("late:\n" + "\n".join(f"  {r.student}  {r.unit}: {said}" for r, said in tardy))
    if human:
        print("need a human:\n" + "\n".join(human))
    return 1 if human else 0


if __name__ == "__main__":
    sys.exit(main())
