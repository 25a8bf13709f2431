"""`make course`: run every solution from top to bottom with papermill, results in build/executed/.

python -m tools.course --budget quick 01 02
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tools.units import ROOT, CourseError, Unit, find

ERROR_LINES = 12
SLOWEST = 3  # cells of a unit that the table names
MOST_BYTES = 4e9  # a quick run's peak: what README.md promises


@dataclass(frozen=True)
class Run:
    """How one unit's solution ran; `error` is empty when every cell did. `slowest`: (seconds, first line) of cells."""

    unit: str
    seconds: float
    peak_bytes: int
    error: str = ""
    slowest: list[tuple[float, str]] = field(default_factory=list)


def run(unit: Unit, budget: str = "quick", device: str = "auto") -> Run:
    """Execute `unit`'s solution notebook into build/executed/, never in place."""
    folder = unit.root / "build" / "executed" / unit.name
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"{unit.name}.ipynb"
    output.unlink(missing_ok=True)
    home = unit.root / "build" / "executed" / ".course"
    environment = os.environ | {"COURSE_HOME": str(home), "COURSE_UNATTENDED": "1"}
    parameters = {"budget": budget, "device": device}
    here, there = _READY.Pipe(duplex=False)
    # No pool: where this process is killed, a worker of one would wait for its next task for ever.
    process = _READY.Process(target=_execute, args=(there, unit.solution, output, parameters, environment))
    start = time.monotonic()
    process.start()
    process.join()
    lost = 0, f"the process that ran it ended with {process.exitcode}; was memory short?"
    peak, error = here.recv() if here.poll() else lost
    return Run(unit.name, time.monotonic() - start, peak, error and (_first_error(output) or error), _slowest(output))


# A fresh process for each unit, forked from one that has imported papermill, which takes longer than starting does.
_READY = multiprocessing.get_context("forkserver")
_READY.set_forkserver_preload(["papermill"])


def _execute(told: Connection, solution: Path, output: Path, parameters: dict, environment: dict) -> None:
    """In a process of its own; tells (peak memory in bytes, of this process or its kernel, what went wrong)."""
    import papermill

    os.environ.clear()
    os.environ.update(environment)
    error = ""
    with open(output.parent / "papermill.log", "wb", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            # Nothing of the course waits for its kernel to end by itself, which takes a second.
            ends = {"execution_timeout": 1800, "shutdown_kernel": "immediate"}
            papermill.execute_notebook(solution, output, parameters, cwd=output.parent, progress_bar=False, **ends)
        except Exception as failed:  # whatever it is, the table has to name it
            error = f"{type(failed).__name__}: {failed}"[-2000:]
    used = max(resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    told.send((used * (1 if sys.platform == "darwin" else 1024), error))


def table(runs: list[Run]) -> str:
    """Unit, seconds, peak memory and status, a line each, and below it the cells that took longest."""
    lines = [f"{'unit':<24} {'seconds':>8} {'peak GB':>8}  status"]
    for r in runs:
        lines.append(f"{r.unit:<24} {r.seconds:>8.1f} {r.peak_bytes / 1e9:>8.2f}  {'FAILED' if r.error else 'ok'}")
        lines += [f"  {seconds:>30.1f}           {line}" for seconds, line in r.slowest]
    lines.append(f"{'all':<24} {sum(r.seconds for r in runs):>8.1f} {max(r.peak_bytes for r in runs) / 1e9:>8.2f}")
    return "\n".join(lines)


def _cells(output: Path) -> list[dict]:
    try:
        return json.loads(output.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError):
        return []


def _slowest(output: Path) -> list[tuple[float, str]]:
    """Of the executed cells, by the seconds that papermill noted; those of a second or more."""
    took = []
    for cell in _cells(output):
        seconds = cell["metadata"].get("papermill", {}).get("duration") or 0.0
        code = [line for line in "".join(cell["source"]).splitlines() if line and not line.startswith(("#", "from "))]
        took.append((seconds, f"{cell.get('id')}: {code[0][:60] if code else ''}"))
    return sorted((one for one in took if one[0] >= 1), reverse=True)[:SLOWEST]


def _first_error(output: Path) -> str:
    for cell in _cells(output):
        for result in cell.get("outputs", []):
            if result["output_type"] == "error":
                lines = "\n".join(result["traceback"]).splitlines()[-ERROR_LINES:]
                return f"cell {cell.get('id')}: {result['ename']}: {result['evalue']}\n" + "\n".join(lines)
    return ""


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.course", description="run the solutions")
    parser.add_argument("units", nargs="*", help="numbers or names, e.g. 02; all when none is given")
    parser.add_argument("--budget", choices=("quick", "full"), default="quick")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    try:
        units = find(root, options.units)
    except CourseError as error:
        print(error)
        return 2
    missing = [u.solution for u in units if not u.solution.exists()]
    if missing or not units:
        print(f"{missing[0] if missing else 'no unit'} is missing; run `make notebooks`")
        return 2
    runs = []
    for unit in units:
        print(f"{unit.name} …", flush=True)
        runs.append(run(unit, options.budget, options.device))
        if runs[-1].error:
            print(runs[-1].error)
    print(table(runs))
    return 1 if any(r.error for r in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
