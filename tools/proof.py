"""`make test`, and what CI runs: the whole proof that the course holds together, with the time of each stage.

lint and committed notebooks as built · pytest · every solution runs · nbgrader gives every reference
solution full marks on each graded cell and every untouched notebook 0. With --all (`make test-all`) also: the site,
made of what has just run · its pages in a browser · a class on a hub.
"""

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tools import course
from tools.grading import Grader, Result
from tools.units import ROOT, CourseError, Unit, find

PYTEST_WORKERS = "2"


def static() -> list[tuple[str, bool]]:
    """What needs no model, side by side: ruff, mypy, and notebooks that are byte for byte as built."""
    commands = {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "mypy": ["mypy"],
        "notebooks are up to date": ["tools.build", "--check"],
    }
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for name, words in commands.items()
    }
    checks = []
    for name, process in running.items():
        said, _ = process.communicate()
        print(f"{name}: {said.strip()}", flush=True)
        checks.append((name, process.returncode == 0))
    return checks


def tests() -> list[tuple[str, bool]]:
    """pytest: the tests that time this machine run alone, the others side by side."""
    command = [sys.executable, "-m", "pytest"]
    beside = ["-n", PYTEST_WORKERS, "--dist", "loadfile", "--no-loadscope-reorder"]  # see tests/conftest.py
    parallel = subprocess.run([*command, "-m", "not clock", *beside], cwd=ROOT)
    alone = subprocess.run([*command, "-m", "clock"], cwd=ROOT)
    # 5: no test carries the mark, which is no failure.
    return [("pytest", parallel.returncode == 0), ("pytest, alone on the machine", alone.returncode in (0, 5))]


def executed(device: str = "auto") -> list[tuple[str, bool]]:
    """Every solution runs from top to bottom at the quick budget, in the memory that the course promises."""
    runs = []
    for unit in find():
        runs.append(course.run(unit, "quick", device))
        print(f"{unit.name}: {runs[-1].seconds:.0f} s" + (f"\n{runs[-1].error}" if runs[-1].error else ""), flush=True)
    if runs:
        print(course.table(runs))
    return [
        (f"{r.unit} runs in {course.MOST_BYTES / 1e9:.0f} GB", not r.error and r.peak_bytes < course.MOST_BYTES)
        for r in runs
    ]


def graded() -> list[tuple[str, bool]]:
    """nbgrader: the reference solution scores full marks on each graded cell, the untouched release 0 on each."""
    units = find()
    halves = [half for half in (units[::2], units[1::2]) if half]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        return [check for checks in pool.map(_graded, halves) for check in checks]


def _graded(units: list[Unit]) -> list[tuple[str, bool]]:
    """The same for some units, in a course directory of their own."""
    checks = []
    with tempfile.TemporaryDirectory(prefix="p-") as folder:
        grading = Grader(Path(folder) / "course", units, sandboxed=False)
        for unit in units:
            reference = grading.grade("reference", unit, unit.solution)
            untouched = grading.grade("untouched", unit, unit.release)
            full = bool(reference.exercises) and not reference.problem and all(e.full for e in reference.exercises)
            zero = (
                bool(untouched.exercises) and not untouched.problem and all(e.points == 0 for e in untouched.exercises)
            )
            asked = all(not e.answered for e in untouched.exercises)
            print(f"{unit.name}: reference {_score(reference)}, untouched {_score(untouched)}", flush=True)
            for result, held in ((reference, full), (untouched, zero and asked)):
                wrong = [f"{e.id} {e.points}/{e.max_points:g} {e.message}" for e in result.exercises]
                if not held:
                    print(
                        "\n".join(
                            f"  {result.student} {line}" for line in ([result.problem] if result.problem else wrong)
                        )
                    )
            checks += [(f"{unit.name}: reference scores full marks", full)]
            checks += [(f"{unit.name}: untouched scores 0 and is told it is unanswered", zero and asked)]
    return checks


def site() -> list[tuple[str, bool]]:
    """The static pages are built, without a warning, from what `executed` left."""
    return [("the site is built", subprocess.run([sys.executable, "-m", "tools.site"], cwd=ROOT).returncode == 0)]


def browser() -> list[tuple[str, bool]]:
    """Every page in a real browser; skipped, with the reason, where there is none."""
    return [("in a browser", _pytest("tests/browser"))]


def hub() -> list[tuple[str, bool]]:
    """A class on a real JupyterHub; skipped, with the reason, where a piece is missing."""
    return [("on a hub", _pytest("tests/hub"))]


def _pytest(folder: str) -> bool:
    return subprocess.run([sys.executable, "-m", "pytest", "-rs", folder], cwd=ROOT).returncode == 0


def _score(result: Result) -> str:
    return f"{result.points:g}/{result.max_points:g}" if result.exercises else "not graded"


STAGES: dict[str, Callable[[], list[tuple[str, bool]]]] = {
    "static": static,
    "tests": tests,
    "executed": executed,
    "graded": graded,
}
BEYOND: dict[str, Callable[[], list[tuple[str, bool]]]] = {"site": site, "browser": browser, "hub": hub}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.proof", description="the whole proof, or some of its stages")
    known = STAGES | BEYOND
    usual = f"any of: {', '.join(known)}; without --all the first {len(STAGES)} by default"
    parser.add_argument("stages", nargs="*", choices=[[], *known], help=usual)
    parser.add_argument("--device", default="auto", help="what the solutions run on: auto, cpu, cuda or mps")
    parser.add_argument("--all", action="store_true", help="also the site in a browser, and a hub")
    options = parser.parse_args(arguments)
    checks, times = [], []
    for name in options.stages or (known if options.all else STAGES):
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        try:
            checks += executed(options.device) if name == "executed" else known[name]()
        except CourseError as error:
            print(error)
            checks.append((name, False))
        times.append((name, time.monotonic() - start))
    print("\n== times")
    for name, seconds in [*times, ("all", sum(seconds for _, seconds in times))]:
        print(f"{name:<12} {seconds:>6.0f} s")
    failed = [name for name, held in checks if not held]
    if failed:
        print("\n== failed\n" + "\n".join(failed))
    print(f"\n{len(checks) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
