"""Finds whose notebook of which unit is where, in a folder or zip as it comes from learners or a learning platform.

A notebook is known by what is in it (the ids of its cells), wherever it lies and whatever it is called; by its name
only when it cannot be read. What is found and not used is named: nothing is lost in silence.
"""

import json
import os
import re
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tools.late import STAMP, HandedIn, handed_in
from tools.units import CourseError, Unit

IGNORED = re.compile(r"(\.(?!course$)|__MACOSX$|__pycache__$|Thumbs\.db$|desktop\.ini$)", re.IGNORECASE)
NOTEBOOK = re.compile(r"\.ipynb(\.json|\.txt)?$|\.json$", re.IGNORECASE)
# Anna Smith_4711_assignsubmission_file_ (Moodle), smithanna_LATE_12_34_02-growing-cache.ipynb (Canvas)
MOODLE = re.compile(r"(?P<student>.+?)_(?P<id>\d+)_assignsubmission_[a-z]+_?(?P<file>.*)$")
CANVAS = re.compile(r"(?P<student>[^_]+)(_(?P<late>LATE))?_(?P<id>\d+)_\d+_(?P<file>.+)$")
LOG = re.compile(r"predictions[^/]*\.jsonl$")
DEEPEST, MOST_FILES, MOST_BYTES = 8, 2_000, 500 << 20  # folders in folders; of one zip


@dataclass
class Submission:
    """One learner's notebook of one unit: `path` is None when there is none, or `wrong` says why it is not graded."""

    student: str
    unit: Unit
    path: Path | None = None
    wrong: str = ""
    notes: list[str] = field(default_factory=list)
    lms_id: str = ""
    handed: HandedIn | None = None
    log: list[Path] = field(default_factory=list)  # what the learner predicted and measured, where it was handed in


@dataclass
class _File:
    """A file that may be a notebook; `label` is where it lay, below the learner's folder."""

    label: str
    path: Path
    linked: bool = False
    late: bool = False


@dataclass
class _Student:
    files: list[_File] = field(default_factory=list)
    lms_id: str = ""


def submissions(source: Path, units: list[Unit], unpacked: Path) -> list[Submission]:
    """Every (student, unit) of the folder or zip `source`; zips are unpacked below the folder `unpacked`.

    Raises `CourseError` when it holds no student at all.
    """
    students, strays = _students(source, unpacked)
    if not students and not strays:
        raise CourseError(f"{source} holds no student's folder; expected {source}/STUDENT/UNIT/UNIT.ipynb")
    ids = {unit.name: known_ids(unit) for unit in units}
    found = []
    for name, student in sorted(students.items()):
        by_unit: dict[str, list[_File]] = {unit.name: [] for unit in units}
        log = [file.path for file in student.files if LOG.search(file.label)]
        for file in student.files:
            unit = None if file.path in log else _unit_of(file, units, ids)
            if unit:
                by_unit[unit.name].append(file)
        for unit in units:
            submission = _choose(name, unit, by_unit[unit.name])
            submission.lms_id, submission.log = student.lms_id, log
            found.append(submission)
    for file in strays:
        unit = _unit_of(file, units, ids)
        if unit:
            wrong = f"{file.label} lies beside the students' folders: whose is it?"
            found.append(Submission(file.label, unit, wrong=wrong))
    return found


def _students(source: Path, unpacked: Path) -> tuple[dict[str, _Student], list[_File]]:
    students: dict[str, _Student] = {}
    strays: list[_File] = []

    def of(name: str, lms_id: str = "") -> _Student:
        taken = students.get(name)
        if taken and lms_id and taken.lms_id != lms_id:
            name = f"{name} ({lms_id})"
        student = students.setdefault(name, _Student())
        student.lms_id = student.lms_id or lms_id
        return student

    if source.is_file():
        if not zipfile.is_zipfile(source):
            raise CourseError(f"{source} is neither a folder nor a zip")
        source = _unzip(source, unpacked / "class")
    entries = [p for p in sorted(source.iterdir()) if not IGNORED.match(p.name)]
    if len(entries) == 1 and entries[0].is_dir() and _holds_students(entries[0]):
        entries = [p for p in sorted(entries[0].iterdir()) if not IGNORED.match(p.name)]
    for entry in entries:
        matched = MOODLE.match(entry.name) or (CANVAS.match(entry.name) if entry.is_file() else None)
        if entry.is_dir():
            student = of(matched["student"], matched["id"]) if matched else of(entry.name)
            student.files += _files(entry, "", unpacked, entry.is_symlink())
        elif matched:
            late = bool(matched.groupdict().get("late"))
            files = [replace(file, late=late) for file in _expanded(entry, matched["file"], unpacked)]
            of(matched["student"], matched["id"]).files += files
        else:
            strays += _expanded(entry, entry.name, unpacked)
    return students, strays


def _holds_students(folder: Path) -> bool:
    """Whether an only folder is the class and no student: what is in it is named as platforms name students' work."""
    inside = [p for p in folder.iterdir() if not IGNORED.match(p.name)]
    return any(MOODLE.match(p.name) or (p.is_file() and CANVAS.match(p.name)) for p in inside)


def _files(folder: Path, label: str, unpacked: Path, linked: bool = False, depth: int = 0) -> Iterator[_File]:
    for path in sorted(folder.iterdir()):
        here = f"{label}{path.name}"
        if IGNORED.match(path.name):
            continue
        if path.is_symlink() or linked:
            if NOTEBOOK.search(path.name) or path.is_dir():
                yield _File(here, path, linked=True)
        elif path.is_dir() and depth < DEEPEST:
            yield from _files(path, f"{here}/", unpacked, depth=depth + 1)
        elif path.is_file():
            yield from _expanded(path, here, unpacked)


def _expanded(path: Path, label: str, unpacked: Path) -> Iterator[_File]:
    """The notebook that `path` is, or those in it."""
    if path.suffix.lower() == ".zip":
        folder = unpacked / str(len(list(unpacked.glob("*"))) if unpacked.exists() else 0)
        try:
            _unzip(path, folder)
        except CourseError:
            yield _File(label, path)
            return
        yield from _files(folder, f"{label}/", unpacked)
    elif NOTEBOOK.search(path.name) or LOG.search(path.name):
        yield _File(label, path)


def _unzip(archive: Path, folder: Path) -> Path:
    """Unpack what may be notebooks of `archive`, with their times. Raises `CourseError` for a broken one or a bomb."""
    folder.mkdir(parents=True)
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [m for m in opened.infolist() if not m.is_dir()]
            if len(members) > MOST_FILES or sum(m.file_size for m in members) > MOST_BYTES:
                raise CourseError(f"{archive.name} is too large: {len(members):,} files")
            for member in members:
                parts = [p for p in Path(member.filename).parts if p not in ("/", "..", ".")]
                if any(IGNORED.match(part) for part in parts) or not parts:
                    continue
                if re.search(rf"{NOTEBOOK.pattern}|{LOG.pattern}|\.zip$|^{STAMP}$", parts[-1], re.IGNORECASE):
                    target = folder.joinpath(*parts)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with opened.open(member) as content, target.open("wb") as file:
                        file.write(content.read(MOST_BYTES))
                    os.utime(target, (time.mktime((*member.date_time, 0, 0, -1)),) * 2)
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, ValueError, OverflowError) as error:
        raise CourseError(f"{archive.name} cannot be unpacked ({error})") from None
    return folder


def known_ids(unit: Unit) -> set[str]:
    """The ids of a unit's graded and locked cells, by which its notebooks are known."""
    cells = json.loads(unit.release.read_text(encoding="utf-8"))["cells"]
    return {cell["id"] for cell in cells if cell["metadata"].get("nbgrader")}


def unit_of(path: Path, units: list[Unit], ids: dict[str, set[str]]) -> Unit | None:
    """Whose cells the notebook at `path` holds, most of all; `ids` of each unit from `known_ids`."""
    inside = _ids_in(path)
    best = max(units, key=lambda unit: len(ids[unit.name] & inside))
    return best if ids[best.name] & inside else None


def _unit_of(file: _File, units: list[Unit], ids: dict[str, set[str]]) -> Unit | None:
    if not file.linked and _ids_in(file.path):
        return unit_of(file.path, units, ids)  # None: a notebook, of a unit that is not graded now
    named = [u for u in units if u.name in file.label.lower() or re.search(rf"(?<!\d){u.number}[-_ .]", file.label)]
    return named[0] if len(named) == 1 else None


def _ids_in(path: Path) -> set[str]:
    """Ids of graded cells in a notebook; empty for what cannot be read."""
    return set(re.findall(r'"((?:answer|test|setup)-\d\d-\w+)"', content_of(path)))


def content_of(path: Path) -> str:
    """What is written in a file, whatever its encoding; "" for what cannot be read."""
    try:
        content = path.read_bytes()
        text = (
            content.decode("utf-16")
            if content[:2] in (b"\xff\xfe", b"\xfe\xff")
            else content.decode("utf-8", "replace")
        )
    except (OSError, UnicodeDecodeError):
        return ""
    return text.replace("\0", "")


def _choose(student: str, unit: Unit, files: list[_File]) -> Submission:
    if not files:
        return Submission(student, unit)
    if any(file.linked for file in files):
        return Submission(student, unit, wrong="a symbolic link, not a notebook")
    name = f"{unit.name}.ipynb"
    usual = [f for f in files if f.label in (f"{unit.name}/{name}", name)] or [
        f for f in files if f.label.split("/")[-1] == name
    ]
    if len(usual) != 1:
        contents = {f.path.read_bytes(): f for f in reversed(usual or files)}
        usual = list(contents.values())
    labels = ", ".join(sorted(f.label for f in usual))
    if len(usual) > 1:
        return Submission(student, unit, wrong=f"{len(usual)} different notebooks: {labels}")
    others = sorted(f.label for f in files if f is not usual[0])
    notes = [f"taken: {labels}"] if usual[0].label not in (f"{unit.name}/{name}", name) else []
    notes += [f"not taken: {', '.join(others)}"] if others else []
    handed = handed_in(usual[0].path, usual[0].late)
    return Submission(student, unit, usual[0].path, notes=notes, handed=handed)
