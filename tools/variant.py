"""`make variant`: the course with other numbers for a class, or for each of its learners.

    python -m tools.variant 2027 --units 00 01                     one variant for all
    python -m tools.variant 2027 --learners roster.txt             one for each learner of the list, a line each

makes `variants/2027/release/`, to hand out, and `variants/2027/keys/`, to keep: reference solutions with their hidden
tests, and `record.json`, which says who got what. Each variant is proven as it is made; what is not sound is redrawn.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from helpers import check
from tests.misconceptions import harness
from tools import build, givens
from tools.source import exercise_id, gives_shares, kind, solution_notebook, text
from tools.units import ROOT, CourseError, Unit, find, notebook_text, write_whole

TRIES = 60
START, LINK = "START.ipynb", re.compile(r"\[(?P<words>[^\]\[]+)\]\((?P<unit>[\w-]+)/(?P=unit)\.ipynb\)")
CLASS = "class"  # the folder of a variant that is for everybody
NEAR = 2e-3  # two slips nearer than that, and not equal, could be taken for each other


@dataclass
class Asked:
    """One call of `number` or `choice` in a check: the answer it was given and what it wanted."""

    answer: object
    expect: object
    options: dict

    @property
    def tolerance(self) -> float:
        return max(self.options.get("rel", 1e-3) * abs(self.expect), self.options.get("absolute", 0.0))

    def slips(self) -> Iterator[tuple[str, float]]:
        for message, values in (self.options.get("slips") or {}).items():
            for value in values if isinstance(values, (list, tuple)) else [values]:
                yield message, float(value)


def varied(unit: Unit) -> list[str]:
    """The exercises of `unit` that have other numbers in a variant."""
    usual = givens.usual(unit)
    cells = solution_notebook(unit)["cells"] if usual else []
    return [exercise_id(c) for c in cells if kind(c) == "test" and givens.of_check(exercise_id(c), usual)]


def notebook(unit: Unit, given: dict) -> dict:
    """The solution notebook of `unit` with `given` in place of the usual givens, hidden tests computed from them.

    Raises `CourseError` with a line for each thing that is not sound.
    """
    made = solution_notebook(unit)
    problems = givens.vary(made, unit, given)
    if problems:
        raise CourseError("\n".join(problems))
    lines: dict[str, str] = {}
    for exercise in varied(unit):
        asked, answers = record(harness.of(unit.name, made), exercise)
        problems += [f"{exercise}: {problem}" for problem in collisions(asked)]
        own = getattr(givens.module(unit), "HIDDEN", {}).get(exercise)
        points = _points(made, exercise)
        lines[exercise] = own.format(**given) if own else hidden_tests(exercise, asked, answers, points)
    if problems:
        raise CourseError("\n".join(problems))
    givens.hide(made, lines.get)
    return made


def record(unit: harness.Unit, exercise: str) -> tuple[list[Asked], dict]:
    """(what the check of `exercise` asked of the reference answer, the names that it was given)."""
    asked: list[Asked] = []
    module = importlib.import_module(f"helpers.exercises.u{unit.number}")

    def noted(function):
        def call(answer, expect, *more, **options):
            asked.append(Asked(answer, expect, options))
            return function(answer, expect, *more, **options)

        return call

    names = unit.graded_names(exercise)
    answers: dict = {}
    with contextlib.ExitStack() as stack:
        for name in ("number", "choice"):
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, noted(getattr(check, name))))
        keep = lambda space: answers.update({name: space[name] for name in names})  # noqa: E731
        outcome = unit.run(exercise, change=keep, visible=True)
    if outcome.error:
        raise CourseError(f"{exercise}: its reference answer is told: {outcome.error}")
    return asked, answers


def collisions(asked: list[Asked]) -> list[str]:
    """Slips that would be taken for the truth, or for one another."""
    problems = []
    for one in asked:
        if isinstance(one.expect, str):
            continue
        name = one.options.get("name", "its answer")
        slips = list(one.slips())
        for message, value in slips:
            if abs(value - one.expect) <= one.tolerance:
                problems.append(f"{name}: the slip {message!r} gives {value:g}, which is right")
        for i, (message, value) in enumerate(slips):
            for other, another in slips[:i]:
                apart = abs(value - another) / max(abs(value), abs(another), 1e-12)
                if message != other and 1e-9 < apart < NEAR:
                    problems.append(f"{name}: {value:g} and {another:g} are two slips")
    return problems


def hidden_tests(exercise: str, asked: list[Asked], answers: dict, points: float | None) -> str:
    """Assertions with literal values, as loose as the check; or, for an exercise of several parts, a share."""
    tests = []
    for where, value in _leaves(answers):
        about = [one for one in asked if one.answer is value]
        if not about:
            raise CourseError(f"{exercise}: its check does not ask about {where}: write HIDDEN[{exercise!r}]")
        if isinstance(value, str):
            tests.append((where, f"str({where}).strip().lower() == {str(about[0].expect).lower()!r}"))
        else:
            one = max(about, key=lambda one: one.tolerance)
            off = 1.02 * one.tolerance + 1e-9  # so that rounding costs nobody a point
            tests.append((where, f"check.near({where}, {float(one.expect):.8g}, absolute={off:.3g})"))
    if points is None:
        return "\n".join(f"assert {test}, {where + ' is off'!r}" for where, test in tests)
    held = "".join(f"    {test},\n" for _, test in tests)
    return f"agree = [\n{held}]\nearned = min(earned, {points:g} * sum(agree) / {len(tests)})"


def problems_of(unit: Unit, made: dict, given: dict) -> list[str]:
    """What the variant does not do as the course does: full marks, none, and each known wrong answer by its name."""
    runs, found = harness.of(unit.name, made), []
    wrong, right = harness.known(runs, given)
    for exercise in varied(unit):
        if error := runs.run(exercise).error:
            found.append(f"{exercise}: the reference is told: {error}")
            continue
        if not isinstance(runs.run(exercise, untouched=True).error, check.NotAnswered):
            found.append(f"{exercise}: an untouched cell is not told that it is not answered")
        for snippet in right[exercise]:
            if error := runs.run(exercise, snippet).error:
                found.append(f"{exercise}: {snippet!r} is right, and is told: {error}")
        for snippet, phrase in wrong[exercise]:
            error = runs.run(exercise, snippet).error
            if not isinstance(error, AssertionError) or phrase.lower() not in str(error).lower():
                found.append(f"{exercise}: {snippet!r} has to be told {phrase!r}, and is told: {error!r}")
    return found


def draw(unit: Unit, seed: str) -> tuple[dict, dict]:
    """(solution notebook, givens) of `unit` for `seed`, sound; the same for the same seed.

    Raises `CourseError` when none of many draws is.
    """
    if not givens.module(unit):
        return solution_notebook(unit), {}
    said: list[str] = []
    for attempt in range(TRIES):
        given = givens.drawn(unit, f"{seed} {attempt}")
        try:
            made = notebook(unit, given)
            said = problems_of(unit, made, given)
        except CourseError as error:
            said = [str(error)]
        if not said:
            return made, given
    raise CourseError(f"{unit.name}: none of {TRIES} draws is sound; the last one:\n" + "\n".join(said))


def mark(seed: str, learner: str | None) -> str:
    """What a notebook of this variant is known by."""
    return "variant-" + hashlib.sha256(json.dumps([seed, learner]).encode()).hexdigest()[:12]


def make(root: Path, folder: Path, seed: str, units: list[Unit], learners: list[str] | None = None) -> None:
    """Make `folder`/release and `folder`/keys, for the class or for each of `learners`."""
    file = folder / "keys" / "record.json"
    course = hashlib.sha256(b"".join(unit.source.read_bytes() for unit in find(root))).hexdigest()
    record = {"seed": seed, "course": course, "variants": {}}
    for learner in learners or [None]:
        name = mark(seed, learner)
        part = _folder_of(learner)
        entry = {"learner": learner, "folder": part, "given": {}}
        for unit in units:
            made, given = draw(unit, f"{seed} {learner}" if learner else seed)
            _sign(made, name)
            for path, content in build.built(unit, made).items():
                if path.suffix == ".json":
                    continue
                inside = path.relative_to(root)
                write_whole(folder / "keys" / part / inside, content)
                if inside.parts[0] == "notebooks":
                    inside = Path(*inside.parts[1:])
                    write_whole(folder / "release" / ("" if learner is None else part) / inside, content)
            entry["given"][unit.number] = given
            print(f"{learner or 'class'}  {unit.name}  {len(varied(unit))} exercises with other numbers", flush=True)
        if (start := start_page(root, units)) is not None:
            write_whole(folder / "release" / ("" if learner is None else part) / START, start)
        record["variants"][name] = entry
    write_whole(file, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def start_page(root: Path, units: list[Unit]) -> bytes | None:
    """START.ipynb of the course, with links to `units` alone; None for a course without one."""
    path = root / "notebooks" / START
    if not path.exists():
        return None
    made, here = json.loads(path.read_text(encoding="utf-8")), {unit.name for unit in units}
    for cell in made["cells"]:
        if cell["cell_type"] == "markdown":
            linked = LINK.sub(lambda m: m[0] if m["unit"] in here else m["words"], text(cell))
            cell["source"] = linked.splitlines(keepends=True)
    return notebook_text(made).encode()


def _sign(made: dict, name: str) -> None:
    made["metadata"]["course_variant"] = name
    first = next(c for c in made["cells"] if c["cell_type"] == "markdown")
    first["source"] = [*first["source"], f"\n\n<small>{name}</small>"]


def _folder_of(learner: str | None) -> str:
    return CLASS if learner is None else re.sub(r"[^\w.@-]", "_", learner).lstrip(".") or "_"


def _points(made: dict, exercise: str) -> float | None:
    """The points of an exercise whose test cell ends with a share of them; None for one that gives all or none."""
    cell = next(c for c in made["cells"] if kind(c) == "test" and exercise_id(c) == exercise)
    return cell["metadata"]["nbgrader"]["points"] if gives_shares(text(cell)) else None


def _leaves(answers: dict) -> Iterator[tuple[str, object]]:
    def inside(where, value):
        if isinstance(value, dict):
            for key, part in value.items():
                yield from inside(f"{where}[{key!r}]", part)
        elif isinstance(value, (list, tuple)):
            for i, part in enumerate(value):
                yield from inside(f"{where}[{i}]", part)
        else:
            yield where, value

    for name, value in answers.items():
        yield from inside(name, value)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.variant", description="the course with other numbers")
    parser.add_argument("seed", help="any word or number; the same one gives the same numbers")
    parser.add_argument("--units", nargs="+", help="numbers or names; all when not given")
    parser.add_argument("--learners", type=Path, help="a file with a learner a line: a variant for each")
    parser.add_argument("--to", type=Path, help="folder to make; default: variants/SEED")
    options = parser.parse_args(arguments)
    folder = options.to or root / "variants" / re.sub(r"[^\w-]", "_", options.seed)
    try:
        units = find(root, options.units)
        learners = None
        if options.learners:
            learners = [x.strip() for x in options.learners.read_text(encoding="utf-8-sig").splitlines() if x.strip()]
            same = [x for x in learners if sum(_folder_of(x) == _folder_of(y) for y in learners) > 1]
            if same or not learners:
                raise CourseError(f"{options.learners}: " + (f"{same[0]} stands there twice" if same else "is empty"))
        if folder.exists():
            raise CourseError(f"{folder} is there already: remove it, or choose another place with --to")
        make(root, folder, options.seed, units, learners)
    except (CourseError, OSError) as error:
        print(error)
        return 2
    print(f"hand out {folder / 'release'}; keep {folder / 'keys'} to yourself, grading needs it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
