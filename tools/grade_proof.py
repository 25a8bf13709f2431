"""`make grade-proof`: grading proven on a class that is made for it, sandboxed, over all units.

    class    references, blanks, known wrong answers, hostile, broken and oddly handed-in notebooks in one run
    killed   the same class, killed at random moments and gone on with: the same CSV
    busy     the reference again and again while every core is loaded: full marks each time
    leaks    no line of a hidden test or a solution in reports, or in what is released
    variants three variants: reference, blank and known wrong answers graded against their keys, and no leaks

`python -m tools.grade_proof class --units 00 02` proves less in less time.
"""

import argparse
import copy
import csv
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.misconceptions import harness
from tests.pipeline.attacks import ATTACKS, HONEST
from tools import sandbox, variant
from tools.handed_out import HandedOut
from tools.problems import BEGIN_HIDDEN, BEGIN_SOLUTION, END_HIDDEN, END_SOLUTION
from tools.source import exercise_id, kind, text
from tools.units import ROOT, CourseError, Unit, find

Outcome = tuple[str, list[str]]  # a figure, and what was not as it has to be
FULL, ZERO, LESS, HUMAN, NOTHING = "full marks", "0", "less than full marks", "needs a human", "0 or a human"
WRONG_A_UNIT, KILLS, BUSY_RUNS = 3, 10, 200
SEEDS = ("2027", "spring", "north-3")


@dataclass
class Case:
    """A submission under `student`: what is in it, and what has to come out."""

    student: str
    unit: Unit
    content: bytes
    expect: str
    path: str = ""
    lost: tuple[str, float] | None = None  # an exercise, and what the learner was told that it earns


def cases(units: list[Unit], given: dict | None = None) -> list[Case]:
    """The class: at most sixty submissions, spread over `units`; with the givens of a variant, by unit, in it."""
    dice, made = random.Random(7), []
    known = {unit.name: harness.known(unit, given and given.get(unit.number)) for unit in harness.units()}
    for unit in units:
        made += [Case(f"reference-{unit.number}", unit, _bytes(read(unit.solution)), FULL)]
        made += [Case(f"blank-{unit.number}", unit, _bytes(read(unit.release)), ZERO)]
        wrong = [(e, snippet) for e, found in known.get(unit.name, ({}, {}))[0].items() for snippet, _ in found]
        runs = harness.of(unit.name, read(unit.solution))
        for i, (exercise, snippet) in enumerate(dice.sample(wrong, min(WRONG_A_UNIT, len(wrong)))):
            notebook, earns = _appended(read(unit.solution), exercise, snippet), runs.run(exercise, snippet).score
            made.append(Case(f"wrong-{unit.number}-{i}", unit, _bytes(notebook), LESS, lost=(exercise, earns)))
    for i, (name, attack) in enumerate(ATTACKS.items()):
        unit = units[i % len(units)]
        made.append(Case(f"hostile {name}", unit, _bytes(_attacked(read(unit.release), attack)), NOTHING))
    # Beside right answers; what is shadowed there, the learner's own functions would miss.
    for i, (name, odd) in enumerate((n, o) for n, o in HONEST.items() if n != "shadows abs"):
        unit = units[i % len(units)]
        made.append(Case(f"honest {name}", unit, _bytes(_noisy(read(unit.solution), odd)), FULL))
    made.append(Case("hostile tags", units[0], _bytes(_tagged(read(units[0].release))), ZERO))
    return made + _odd(units[0]) + _odd(units[-1])


def _odd(unit: Unit) -> list[Case]:
    """Right notebooks as editors and platforms leave them, and some that are none."""
    right, name, number = read(unit.solution), f"{unit.name}.ipynb", unit.number
    plain = json.dumps(right, ensure_ascii=False)
    setup = [c for c in right["cells"] if kind(c) == "setup"]
    moved = {**right, "cells": [c for c in right["cells"] if c not in setup] + setup}
    stripped = {**right, "cells": [{**c, "metadata": {}} for c in right["cells"]]}
    answers = [i for i, c in enumerate(right["cells"]) if kind(c) == "answer"]
    twice = {**right, "cells": [*right["cells"], {**right["cells"][answers[0]], "id": "copied"}]}
    dead = _attacked(right, "import os\nos._exit(1)")
    return [
        Case(f"mark-{number}", unit, plain.encode("utf-8-sig"), FULL),
        Case(f"utf16-{number}", unit, plain.encode("utf-16"), FULL),
        Case(f"moved-{number}", unit, _bytes(moved), FULL),
        Case(f"stripped-{number}", unit, _bytes(stripped), FULL),
        Case(f"twice-{number}", unit, _bytes(twice), FULL),
        Case(f"copy-{number}", unit, _bytes(right), FULL, path=f"work/{unit.name}/Copy of {name}"),
        Case(f"json-{number}", unit, _bytes(right), FULL, path=f"{name}.json"),
        Case(f"half-{number}", unit, _bytes(right)[:5_000], HUMAN),
        Case(f"dead-{number}", unit, _bytes(dead), HUMAN),
        Case(f"empty-{number}", unit, b'{"cells": []}', HUMAN),
    ]


def the_class(units: list[Unit], work: Path) -> Outcome:
    made = cases(units)
    _hand_in(made, work / "in")
    start = time.monotonic()
    outcome = _grade(work / "in", work / "class.csv", units, "--fresh", "--jobs", "2")
    seconds = (time.monotonic() - start) / len(made)
    rows = {row["student"]: row for row in _rows(work / "class.csv") if row["status"] != "not submitted"}
    wrong = [f"{c.student}: {why}" for c in made if (why := _unlike(c, rows.get(c.student)))]
    wrong += [] if outcome in (0, 1) else [f"exit status {outcome}"]
    return f"{len(made)} submissions, {len(wrong)} not as listed, {seconds:.1f} s a submission", wrong


def killed(units: list[Unit], work: Path) -> Outcome:
    """Kill the run of the first dozen submissions again and again; the last run's CSV is that of one whole run."""
    made = cases(units)[:12]
    _hand_in(made, work / "in")
    _grade(work / "in", work / "whole.csv", units, "--fresh")
    whole, dice, stopped = _rows(work / "whole.csv"), random.Random(11), 0
    shutil.rmtree(ROOT / "build" / "grading", ignore_errors=True)
    for _ in range(KILLS):
        process = _started(work / "in", work / "parts.csv", units, "--jobs", "2")
        try:
            process.wait(timeout=dice.uniform(1, 25))
        except subprocess.TimeoutExpired:
            process.send_signal(dice.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            process.wait()
            stopped += 1
    _grade(work / "in", work / "parts.csv", units)
    same = _rows(work / "parts.csv") == whole
    return f"killed {stopped} times", [] if same else ["the resumed run gave another CSV"]


def busy(units: list[Unit], work: Path, runs: int) -> Outcome:
    load = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(os.cpu_count() or 2)]
    for process in load:
        process.start()
    try:
        made = [
            Case(f"again-{i:03d}", unit, _bytes(read(unit.solution)), FULL)
            for i, unit in zip(range(runs), units * runs, strict=False)
        ]
        _hand_in(made, work / "in")
        _grade(work / "in", work / "busy.csv", units, "--fresh", "--jobs", "2")
    finally:
        for process in load:
            process.kill()
    rows = {row["student"]: row for row in _rows(work / "busy.csv") if row["status"] != "not submitted"}
    lost = [f"{c.student}: {why}" for c in made if (why := _unlike(c, rows.get(c.student)))]
    return f"{len(made) - len(lost)} of {len(made)} references full on a busy machine", lost


def leaks(units: list[Unit], work: Path) -> Outcome:
    """After `class`: what students and learners get holds no line that only a solution or a hidden test has."""
    found = []
    reports = [p.read_text(encoding="utf-8") for p in (ROOT / "build" / "grading" / "reports").glob("*.txt")]
    known = {unit.name: harness.known(unit)[0] for unit in harness.units()}
    for unit in units:
        shown, secret = lines_of(read(unit.solution))
        released = {line for cell in read(unit.release)["cells"] for line in lines(text(cell))}
        found += [f"{unit.name} releases: {line}" for line in sorted(released & (secret - shown))]
        # Whoever hands in a known wrong answer may be quoted a line of it, which may be one of the solution's too.
        theirs = {x for wrong in known.get(unit.name, {}).values() for snippet, _ in wrong for x in lines(snippet)}
        hidden = sorted(secret - shown - theirs)
        found += [f"a report quotes {unit.name}: {x}" for x in hidden if any(x in report for report in reports)]
    return f"{len(found)} leaks in {len(reports)} reports and {len(units)} units", found


def variants(units: list[Unit], work: Path) -> Outcome:
    """Three seeds; `make variant` itself proves that each known wrong answer of every varied exercise is named."""
    wrong, graded = [], 0
    for seed in SEEDS:
        folder = work / f"variant-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        variant.make(ROOT, folder, seed, units)
        out = HandedOut(folder)
        mine = out.units(units, chosen=True)
        made = cases(mine, out.given())
        made = [case for case in made if case.student.split("-")[0] in ("reference", "blank", "wrong")]
        _hand_in(made, work / "in")
        _grade(work / "in", work / "variant.csv", units, "--fresh", "--variant", str(folder))
        rows = {row["student"]: row for row in _rows(work / "variant.csv") if row["status"] != "not submitted"}
        lost = [f"{seed}, {c.student}: {why}" for c in made if (why := _unlike(c, rows.get(c.student)))]
        print(f"variant {seed}: {len(made)} submissions, {len(lost)} not as listed", flush=True)
        graded += len(made)
        wrong += lost + leaks(mine, work)[1]
    return f"{len(SEEDS)} variants, {graded} submissions, {len(wrong)} not as listed", wrong


STAGES: dict[str, Callable] = {
    "class": the_class,
    "killed": killed,
    "busy": busy,
    "leaks": leaks,
    "variants": variants,
}


def lines_of(solution: dict) -> tuple[set[str], set[str]]:
    """(lines that learners see, lines of solutions and hidden tests); short ones, such as `out = []`, are anybody's."""
    shown, secret = set(), set()
    for cell in solution["cells"]:
        inside = False
        for line in map(str.strip, text(cell).splitlines()):
            inside = (inside or line in (BEGIN_SOLUTION, BEGIN_HIDDEN)) and line not in (END_SOLUTION, END_HIDDEN)
            if len(line) > 25:
                (secret if inside else shown).add(line)
    return shown, secret


def lines(source: str) -> set[str]:
    return {line.strip() for line in source.splitlines() if line.strip()}


def _unlike(case: Case, row: dict | None) -> str:
    """What is not as `case` expects; "" when all is."""
    if row is None:
        return "not in the CSV"
    human, score = row["status"] == "needs a human", float(row["score"] or 0)
    held = {
        FULL: not human and row["score"] == row["max_score"],
        ZERO: not human and score == 0,
        LESS: not human and score < float(row["max_score"] or 0) and _earns(row, case.lost),
        HUMAN: human,
        NOTHING: human or score == 0,
    }[case.expect]
    said = f"{row['score']}/{row['max_score']} {row['status']} {row['note']}"
    return "" if held else f"expected {case.expect}, got {said}"


def _earns(row: dict, told: tuple[str, float] | None) -> bool:
    return told is None or row.get(told[0]) == f"{told[1]:g}"


def _hand_in(made: list[Case], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for case in made:
        path = folder / case.student / (case.path or f"{case.unit.name}.ipynb")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(case.content)


def _started(folder: Path, table: Path, units: list[Unit], *more: str) -> subprocess.Popen:
    names = [unit.name for unit in units]
    command = [sys.executable, "-m", "tools.autograde", str(folder), "--csv", str(table), "--units", *names, *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


def _grade(folder: Path, table: Path, units: list[Unit], *more: str) -> int:
    return _started(folder, table, units, *more).wait()


def _rows(table: Path) -> list[dict]:
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def _bytes(notebook: dict) -> bytes:
    return json.dumps(notebook).encode()


def _appended(notebook: dict, exercise: str, snippet: str) -> dict:
    for cell in notebook["cells"]:
        if kind(cell) == "answer" and exercise_id(cell) == exercise:
            cell["source"] = f"{text(cell)}\n{snippet}"
    return notebook


def _attacked(notebook: dict, attack: str) -> dict:
    notebook = copy.deepcopy(notebook)
    first = next(cell for cell in notebook["cells"] if kind(cell) == "answer")
    first["source"] = f"{attack}\n{text(first)}"
    return notebook


def _noisy(notebook: dict, odd: str) -> dict:
    notebook = copy.deepcopy(notebook)
    last = [cell for cell in notebook["cells"] if kind(cell) == "answer"][-1]
    last["source"] = f"{text(last)}\n{odd}\ntry:\n    double(3)\nexcept Exception:\n    pass"
    return notebook


def _tagged(notebook: dict) -> dict:
    for cell in notebook["cells"]:
        if kind(cell) in ("answer", "test"):
            cell["metadata"]["tags"] = ["measure", "skip-execution"]
    return notebook


def _burn() -> None:
    while True:
        sum(range(10_000))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.grade_proof", description="prove grading on a made class")
    parser.add_argument("stages", nargs="*", choices=[[], *STAGES], help=f"any of: {', '.join(STAGES)}; all by default")
    parser.add_argument("--units", nargs="+", help="numbers or names; all when not given")
    parser.add_argument("--runs", type=int, default=BUSY_RUNS, help="of the stage busy")
    options = parser.parse_args(arguments)
    work = ROOT / "build" / "grade-proof"
    work.mkdir(parents=True, exist_ok=True)
    try:
        units = find(ROOT, options.units)
        if reason := sandbox.problem():
            raise CourseError(reason)
        figures, failed, start = [], [], time.monotonic()
        for name in options.stages or STAGES:
            print(f"\n== {name}", flush=True)
            more = (options.runs,) if name == "busy" else ()
            figure, wrong = STAGES[name](units, work, *more)
            print("\n".join([figure, *wrong]), flush=True)
            figures.append(figure)
            failed += wrong
    except CourseError as error:
        print(error)
        return 2
    load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    print(f"\n{'; '.join(figures)}; {len(units)} units, {(time.monotonic() - start) / 60:.0f} min, {load}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
