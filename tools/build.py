"""`make notebooks`: percent source → solution notebook → what nbgrader releases from it → notebooks/; hints → helpers/;
badges → README.md.

    python -m tools.build            all units, written where they differ
    python -m tools.build 02         one unit
    python -m tools.build --check    write nothing; exit 1 when a committed file is not what would be built

Needs jupytext and nbgrader only, so that an author can run it without installing torch.
"""

import argparse
import json
import shutil
import sys
import tempfile
from copy import deepcopy
from pathlib import Path

from nbgrader.apps.api import NbGraderAPI

from tools import frame, hints
from tools.fetching import fetching, with_badges
from tools.gradebook import begin_gradebook
from tools.problems import release_problems, source_problems
from tools.source import solution_notebook
from tools.units import ROOT, CourseError, Unit, find, nbgrader_config, notebook_text, write_whole

NOT_SUPPLEMENTARY = {".py", ".ipynb", ".pyc", ".toml"}


def build(unit: Unit) -> dict[Path, bytes]:
    """Every file that `unit` is built into, with its content; nothing is written to solutions/ or notebooks/.

    Raises `CourseError` with one line per problem of the source.
    """
    return built(unit, solution_notebook(unit))


def built(unit: Unit, written: dict) -> dict[Path, bytes]:
    """The same from a solution notebook: the unit's own, or a variant of it."""
    _raise(unit, source_problems(unit.number, written))
    solution = fetching(written, unit.root, unit.release.relative_to(unit.root).as_posix(), unit.number)
    files = {unit.solution: notebook_text(solution).encode()}
    (unit.root / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=unit.root / "build", prefix="release-") as workshop:
        course = Path(workshop)
        source = course / "solutions" / unit.name
        source.mkdir(parents=True)
        (source / unit.solution.name).write_bytes(files[unit.solution])
        for extra in _supplementary(unit.source.parent):
            target = source / extra.relative_to(unit.source.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(extra, target)
        released = release(course, unit.name, nbgrader_config(unit.root))
        for path in sorted(p for p in released.rglob("*") if p.is_file()):
            files[unit.release.parent / path.relative_to(released)] = path.read_bytes()
    if unit.release not in files:
        raise CourseError(f"{unit.name}: nbgrader released no {unit.release.name}")
    notebook = json.loads(files[unit.release])
    _raise(unit, release_problems(solution, notebook))
    files[unit.release] = notebook_text(notebook).encode()
    files[unit.hints] = hints.to_text(hints.extract(written)).encode()
    return files


def release(course: Path, name: str, config) -> Path:
    """Let nbgrader release assignment `name` of the course directory `course`; returns the released folder."""
    config = deepcopy(config)
    config.CourseDirectory.root = str(course)
    begin_gradebook(course / "gradebook.db")
    result = NbGraderAPI(config=config).generate_assignment(name, force=True)
    if not result["success"]:
        raise CourseError(f"{name}: nbgrader could not release it:\n{result.get('log') or result.get('error')}")
    return course / config.CourseDirectory.release_directory / name


def leftovers(root: Path, units: list[Unit], built: dict[Path, bytes]) -> list[Path]:
    """Files under notebooks/, built notebooks under solutions/ and hints that no unit makes (any more)."""
    keep = set(built) | {u.solution for u in units} | {u.hints for u in units}
    kept_folders = {u.release.parent for u in units if u.release not in built}
    found = [
        path
        for path in sorted((root / "notebooks").rglob("*"))
        if path.is_file()
        and path not in keep
        and ".ipynb_checkpoints" not in path.parts
        and not any(folder in path.parents for folder in kept_folders)
    ]
    elsewhere = [*(root / "solutions").glob("*/*.ipynb"), *(root / "helpers" / "exercises").glob("u[0-9][0-9].json")]
    return found + [path for path in sorted(elsewhere) if path not in keep]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.build", description="build the notebooks from their sources")
    parser.add_argument("units", nargs="*", help="numbers or names, e.g. 02; all when none is given")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a committed file differs")
    options = parser.parse_args(arguments)
    try:
        units = find(root, options.units)
    except CourseError as error:
        print(error)
        return 2
    built: dict[Path, bytes] = {}
    broken = []
    try:
        start = frame.start(root)
    except CourseError as error:
        print(error)
        return 1
    if start is not None:
        place = "notebooks/START.ipynb"
        built[root / place] = notebook_text(fetching(start, root, place)).encode()
    for unit in units:
        try:
            built |= build(unit)
        except (CourseError, UnicodeDecodeError) as error:
            broken.append(unit.name)
            print(f"error: {error}")
    readme = root / "README.md"
    if readme.exists():
        built[readme] = with_badges(readme.read_text(encoding="utf-8"), find(root)).encode()
    differing = [p for p, content in built.items() if not p.exists() or p.read_bytes() != content]
    stale = [] if options.units else leftovers(root, units, built)
    for path in differing + stale:
        relative = path.relative_to(root)
        if options.check:
            print(f"{'left over' if path in stale else 'out of date'}: {relative}")
        elif path in stale:
            path.unlink()
            _remove_empty(path.parent, root)
            print(f"removed {relative}")
        else:
            write_whole(path, built[path])
            print(f"wrote {relative}")
    if options.check and (differing or stale):
        print("run `make notebooks` and commit what it writes")
    made = len(units) - len(broken)
    print(f"{made} of {len(units)} units built" + (f"; with errors: {', '.join(broken)}" if broken else ""))
    return 1 if broken or (options.check and (differing or stale)) else 0


def _supplementary(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in NOT_SUPPLEMENTARY and ".ipynb_checkpoints" not in path.parts
    ]


def _raise(unit: Unit, problems: list[str]) -> None:
    if problems:
        raise CourseError("\n".join(f"{unit.name}: {problem}" for problem in problems))


def _remove_empty(folder: Path, root: Path) -> None:
    while folder not in (root, root / "notebooks", root / "solutions") and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


if __name__ == "__main__":
    sys.exit(main())
