"""What has been graded, on disk, one file a submission: an interrupted class goes on where it stopped."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

from tools import marks
from tools.grading import Exercise, Result
from tools.late import HandedIn
from tools.units import ROOT, Unit, write_whole

# What a score depends on besides the unit and the submission.
GRADING = ("nbgrader_config.py", "tools/answering.py", "tools/asking.py", "tools/judge.py", "tools/outside.py")
GRADING += ("tools/repair.py", "tools/grading.py")


class Ledger:
    """The results under `folder`, valid for the course as it is: a changed one begins anew.

    `forgotten` says that there were results of another state of the course.
    """

    def __init__(self, folder: Path, units: list[Unit], fresh: bool = False):
        self.folder, self.state = folder / "results", folder / "course.json"
        self.course = _course()
        before = _read(self.state)
        mine = {unit.name: _digest(unit.solution.read_bytes()) for unit in units}
        changed = {name for name, digest in before.get("units", {}).items() if mine.get(name, digest) != digest}
        self.forgotten = bool(before) and (bool(changed) or before.get("course") != self.course)
        if fresh or self.forgotten:
            before = {}
        if not before:
            # What a person marked outlives the gradebook; a new class begins with nothing.
            kept = {} if fresh else marks.keep(folder)
            shutil.rmtree(folder, ignore_errors=True)
            marks.put_back(folder, kept)
        self.units = {**before.get("units", {}), **mine}
        write_whole(self.state, json.dumps({"course": self.course, "units": self.units}).encode())

    def fingerprint(self, unit: Unit, notebook: bytes) -> str:
        """Changes whenever grading this notebook again might give something else."""
        return _digest(self.course.encode(), unit.solution.read_bytes(), notebook)

    def get(self, student: str, unit: str) -> tuple[Result | None, str]:
        """(result, fingerprint of what was graded) of a submission; (None, "") when there is none."""
        entry = _read(self._path(student, unit))
        return (_result(entry["result"]), entry["fingerprint"]) if entry else (None, "")

    def keep(self, result: Result, fingerprint: str) -> None:
        entry = {"fingerprint": fingerprint, "result": dataclasses.asdict(result)}
        write_whole(self._path(result.student, result.unit), json.dumps(entry).encode())

    def all(self) -> list[Result]:
        entries = [_read(path) for path in sorted(self.folder.glob("*.json"))]
        return [_result(entry["result"]) for entry in entries if entry]

    def _path(self, student: str, unit: str) -> Path:
        return self.folder / f"{_digest(student.encode())[:16]}-{unit}.json"


def _result(entry: dict) -> Result:
    handed = HandedIn(**entry["handed"]) if entry.get("handed") else None
    both = {name: [Exercise(**exercise) for exercise in entry.get(name, ())] for name in ("exercises", "marked")}
    return Result(**{**entry, **both, "handed": handed})


def _read(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _course() -> str:
    files = [ROOT / name for name in GRADING]
    files += sorted(p for p in (ROOT / "helpers").rglob("*") if p.suffix in (".py", ".json"))
    return _digest(*(path.read_bytes() for path in files))


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
