"""Where the course's files lie, and which units there are."""

import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

ROOT = Path(__file__).resolve().parent.parent
UNIT_NAME = re.compile(r"(?P<number>\d\d)-[a-z0-9]+(-[a-z0-9]+)*\Z")


class CourseError(Exception):
    """Something the author, learner or instructor has to mend; the message says what and how."""


@dataclass(frozen=True)
class Unit:
    """One unit of a course: `root` is the course's directory, `name` e.g. "02-growing-cache"."""

    root: Path
    name: str

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def source(self) -> Path:
        return self.root / "solutions" / self.name / f"{self.name}.py"

    @property
    def solution(self) -> Path:
        return self.source.with_suffix(".ipynb")

    @property
    def release(self) -> Path:
        return self.root / "notebooks" / self.name / f"{self.name}.ipynb"

    @property
    def hints(self) -> Path:
        return self.root / "helpers" / "exercises" / f"u{self.number}.json"


def find(root: Path = ROOT, selection: list[str] | None = None) -> list[Unit]:
    """The units of the course at `root`, in order; `selection` keeps those named by number or name.

    Raises `CourseError` when a selected unit does not exist.
    """
    units = [
        Unit(root, path.parent.name)
        for path in sorted((root / "solutions").glob("*/*.py"))
        if UNIT_NAME.match(path.parent.name) and path.stem == path.parent.name
    ]
    if not selection:
        return units
    unknown = [wanted for wanted in selection if not any(wanted in (u.number, u.name) for u in units)]
    if unknown:
        have = ", ".join(u.name for u in units) or "none"
        raise CourseError(f"no unit {', '.join(unknown)} under {root / 'solutions'} (there: {have})")
    return [u for u in units if u.number in selection or u.name in selection]


def nbgrader_config(root: Path = ROOT) -> Config:
    """The settings of `nbgrader_config.py`, those of the course at `root` or else this project's own."""
    scripts = str(Path(sys.executable).parent)
    if scripts not in os.environ.get("PATH", "").split(os.pathsep):
        # nbgrader starts `alembic` by its bare name, also when nobody activated the environment.
        os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    path = nbgrader_config_file(root)
    return PyFileConfigLoader(path.name, path=str(path.parent)).load_config()


def nbgrader_config_file(root: Path) -> Path:
    """`nbgrader_config.py` of the course at `root`, or else this project's own."""
    return next(p for p in (root / "nbgrader_config.py", ROOT / "nbgrader_config.py") if p.exists())


def notebook_text(notebook: dict) -> str:
    """One spelling for a notebook: keys in alphabetical order, one space of indent, so that diffs are the change."""
    return json.dumps(notebook, sort_keys=True, indent=1, ensure_ascii=False, separators=(",", ": ")) + "\n"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a full disk or an interrupt leaves the old one in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
