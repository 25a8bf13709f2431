"""Grade notebooks with nbgrader, unpatched, in a course directory made for the purpose, and say what came out."""

import json
import re
import secrets
import shutil
import warnings
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock
from nbformat.warnings import MissingIDFieldWarning
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps.api import NbGraderAPI
from sqlalchemy.exc import SAWarning
from traitlets.config import Config

from tools import marks
from tools.gradebook import begin_gradebook
from tools.late import HandedIn
from tools.repair import Unusable, repair
from tools.units import ROOT, CourseError, Unit, nbgrader_config, nbgrader_config_file, notebook_text, write_whole

# Harmless, and nothing an instructor can mend: how nbgrader 0.9.6 reads its tables, and a deleted cell it restores.
warnings.filterwarnings("ignore", category=SAWarning)
warnings.filterwarnings("ignore", category=MissingIDFieldWarning)

REPORT = "report-"  # begins the id of a page that a person marks, in formgrader
REFERENCE = "the-reference-solution"  # graded first, under this name
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Exercise:
    """One graded cell: `points` is None when nbgrader stored no score for it."""

    id: str
    points: float | None
    max_points: float
    message: str = ""
    answered: bool = True
    timed_out: bool = False
    old: bool = False  # a person's mark that is older than the last grading

    @property
    def full(self) -> bool:
        return self.points == self.max_points


@dataclass
class Result:
    """What grading one student's notebook of one unit gave; `problem` names what needs a human, if anything."""

    student: str
    unit: str
    exercises: list[Exercise] = field(default_factory=list)
    problem: str = ""
    notes: list[str] = field(default_factory=list)  # what was repaired; the score stands all the same
    handed: HandedIn | None = None
    marked: list[Exercise] = field(default_factory=list)  # what a person marks; it counts once it has points

    @property
    def points(self) -> float:
        return sum(e.points or 0 for e in self.counted)

    @property
    def max_points(self) -> float:
        return sum(e.max_points for e in self.counted)

    @property
    def counted(self) -> list[Exercise]:
        return [*self.exercises, *(e for e in self.marked if e.points is not None)]

    @property
    def remarks(self) -> list[str]:
        """What is to be said beside the score."""
        waiting = [e.id for e in self.marked if e.points is None]
        again = [e.id for e in self.marked if e.points is not None and e.old]
        said = [f"{', '.join(waiting)} waits for a person's mark"] if waiting else []
        said += [f"{', '.join(again)} was marked before the last grading"] if again else []
        return [*self.notes, *said]


class Grader:
    """An nbgrader course directory at `folder` holding the solutions of `units`.

    Submissions run in a sandbox unless told otherwise; neither `folder` nor any of `hidden` is seen from there.
    """

    def __init__(self, folder: Path, units: list[Unit], sandboxed: bool = True, hidden: Iterable[Path] = ()):
        self.made_of = folder, units, sandboxed, list(hidden)  # for another process to make the same
        self.folder = folder.resolve()
        self.lock = FileLock(self.folder.with_suffix(".gradebook"), is_singleton=True)
        self.units = {u.name: u for u in units}
        self.settings = deepcopy(nbgrader_config(units[0].root)) if units else Config()
        self.database = f"sqlite:///{self.folder}/gradebook.db"
        self.settings.CourseDirectory.root = str(self.folder)
        self.settings.CourseDirectory.db_url = self.database
        self.settings.Outside.sandboxed = sandboxed
        self.settings.Outside.hidden = [str(path.resolve()) for path in (self.folder, *hidden)]
        self.settings.Outside.lock = self.lock.lock_file
        self.settings.Outside.trial_secret = self._secret()
        begin_gradebook(self.folder / "gradebook.db")
        self.api = NbGraderAPI(config=self.settings)
        config = (nbgrader_config_file(units[0].root) if units else ROOT / "nbgrader_config.py").read_text("utf-8")
        write_whole(self.folder / "nbgrader_config.py", config.encode())  # for formgrader, opened in this folder
        for unit in units:
            self._add(unit)

    def _secret(self) -> str:
        """Where the seeds of trials come from: drawn once for a class, so that grading again gives the same."""
        path = self.folder / "trial-secret"
        if not path.exists():
            write_whole(path, secrets.token_hex().encode())
        return path.read_text()

    def _add(self, unit: Unit) -> None:
        """Have nbgrader read the unit's solution, unless it has (an earlier run's folder is used again)."""
        if not unit.solution.exists():
            raise CourseError(f"{unit.solution} is missing; run `make notebooks`")
        target = self.folder / "solutions" / unit.name
        copied = target / unit.solution.name
        if self._release(unit).exists() and copied.exists() and copied.read_bytes() == unit.solution.read_bytes():
            return
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(unit.solution.parent, target, ignore=shutil.ignore_patterns("*.py", ".ipynb_checkpoints"))
        result = self.api.generate_assignment(unit.name, force=True)
        if not result["success"]:
            raise CourseError(f"{unit.name}: nbgrader could not read its solution:\n{result.get('log')}")

    def prove(self, unit: Unit) -> None:
        """Grade the reference solution of `unit` as every submission will be; `CourseError` unless it is full."""
        result = self.grade(REFERENCE, unit, unit.solution)
        with Gradebook(self.database) as gradebook:
            if any(s.id == REFERENCE for s in gradebook.students):
                gradebook.remove_student(REFERENCE)
        for step in ("submitted", "autograded"):
            shutil.rmtree(self.folder / step / REFERENCE, ignore_errors=True)
        lost = [f"{e.id}: {e.message or e.points}" for e in result.exercises if not e.full]
        if result.problem or lost or not result.exercises:
            raise CourseError(
                f"{unit.name}: on this machine not even the reference solution scores full marks, so nobody's would; "
                f"nothing was graded. {result.problem or '; '.join(lost) or 'It has no graded cell.'}"
            )

    def grade(self, student: str, unit: Unit, notebook: Path) -> Result:
        """Grade `notebook` as `student`'s submission of `unit`; never raises for what the notebook holds."""
        submitted = self.folder / "submitted" / student / unit.name
        submitted.mkdir(parents=True, exist_ok=True)
        result = Result(student, unit.name)
        try:
            repaired, result.notes = repair(notebook.read_bytes(), json.loads(self._release(unit).read_text("utf-8")))
        except OSError as error:
            result.problem = f"not a notebook: {notebook.name} cannot be read ({error})"
            return result
        except Unusable as error:
            result.problem = str(error)
            return result
        write_whole(submitted / f"{unit.name}.ipynb", notebook_text(repaired).encode())
        with self.lock:
            outcome = self.api.autograde(unit.name, student, force=True)
            if not outcome["success"]:
                result.problem = _why(outcome.get("log") or outcome.get("error") or "")
                return result
            result.exercises = self.exercises(student, unit)
            result.marked = self.marked(student, unit)
        slow = [e.id for e in result.exercises if e.timed_out]
        result.notes += [f"stopped because it took too long: {', '.join(slow)}"] if slow else []
        missing = [e.id for e in result.exercises if e.points is None]
        if missing or not result.exercises:
            result.problem = f"no score for {', '.join(missing) or 'any exercise'}: nbgrader stored none"
        return result

    def marked(self, student: str, unit: Unit) -> list[Exercise]:
        """What a person marks of `student`'s notebook, and how: points are None until somebody has."""
        found = []
        with Gradebook(self.database) as gradebook:
            try:
                grades = gradebook.find_submission_notebook(unit.name, unit.name, student).grades
            except MissingEntry:
                return []
            grades = [grade for grade in grades if grade.name.startswith(REPORT)]
            marks.give(self.folder, grades, student, unit.name, gradebook)
            for grade in grades:
                # A page that was left as it was handed out is worth 0 without anyone reading it.
                points = grade.manual_score if grade.manual_score is not None else grade.auto_score
                name = grade.name.removeprefix(REPORT).replace("-", ".")
                said, given = marks.comment_on(grade), grade.manual_score is not None
                found.append(
                    Exercise(name, points, grade.max_score, said, given or points is None, old=grade.needs_manual_grade)
                )
        return found

    def _release(self, unit: Unit) -> Path:
        return self.folder / self.settings.CourseDirectory.release_directory / unit.name / f"{unit.name}.ipynb"

    def exercises(self, student: str, unit: Unit) -> list[Exercise]:
        """What the gradebook and the graded notebook say about `student`'s exercises of `unit`."""
        graded = self.folder / "autograded" / student / unit.name / f"{unit.name}.ipynb"
        cells = json.loads(graded.read_text(encoding="utf-8"))["cells"]
        by_id = {c["metadata"].get("nbgrader", {}).get("grade_id"): c for c in cells}
        exercises = []
        with Gradebook(self.database) as gradebook:
            order = [c.name for c in gradebook.find_notebook(unit.name, unit.name).source_cells]
            try:
                grades = gradebook.find_submission_notebook(unit.name, unit.name, student).grades
            except MissingEntry:
                return []
            for grade in sorted(grades, key=lambda g: order.index(g.name)):
                if grade.name.startswith(REPORT):
                    continue
                name = grade.name.removeprefix("test-")
                exercise = Exercise(name.replace("-", "."), grade.auto_score, grade.max_score)
                answer = _error(by_id.get(f"answer-{name}"))
                if not exercise.full:
                    kind, message = _error(by_id.get(grade.name)) or ("", "")
                    exercise.answered = kind != "NotAnswered" or answer is not None
                    message = message or _printed(by_id.get(grade.name))
                    exercise.message = _stopped(*answer) if answer else message
                    exercise.timed_out = kind == "TookTooLong"
                exercise.timed_out |= bool(answer) and answer[0] in ("CellTimeoutError", "KeyboardInterrupt")
                exercises.append(exercise)
        return exercises


def _error(cell: dict | None) -> tuple[str, str] | None:
    """(type, message) of the error that a cell ended with, if any."""
    for output in (cell or {}).get("outputs", []):
        if output["output_type"] == "error":
            return output["ename"], output["evalue"].strip() or output["ename"]
    return None


def _stopped(kind: str, message: str) -> str:
    """What is said of an answer whose cell ended with an error."""
    unknown = ": cells that measure are not run when grading, and an answer must need no name of theirs"
    return f"your answer's cell stops with {kind}: {message}{unknown if kind == 'NameError' else ''}"


def _printed(cell: dict | None) -> str:
    """What a test cell printed: of one that gives part of its points, what the rest wants."""
    return "".join("".join(o["text"]) for o in (cell or {}).get("outputs", []) if o["output_type"] == "stream").strip()


def _why(log: str) -> str:
    """What a human has to know about a submission that nbgrader could not grade."""
    log = ANSI.sub("", log)
    stopped = re.findall(r"^\s*tools\.outside\.Stopped: (.*)$", log, re.MULTILINE)
    if stopped:
        return stopped[-1]
    if "kernel became unresponsive" in log or "UnresponsiveKernel" in log:
        return "its code hung and could not be interrupted"
    errors = [line.strip() for line in log.splitlines() if re.match(r"\s*[\w.]*(Error|Exception|Invalid\w*)\b.*", line)]
    return "nbgrader could not grade it: " + (errors[-1] if errors else log.strip()[-300:] or "no reason given")
