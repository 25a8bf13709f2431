"""Runs one exercise of a unit without a kernel: setup cells, answers, the test cell, and nothing else.

Reads the percent source of a unit through the build, so that what is tested here is what learners get.
"""

import ast
import contextlib
import copy
import importlib
import io
import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import numpy as np
import torch

import tools.units
from helpers import check
from tools import givens
from tools.source import exercise_id, gives_shares, kind, solution_notebook, text
from tools.units import ROOT, find

STUB = "# YOUR CODE HERE"
HIDDEN = re.compile(r"^### BEGIN HIDDEN TESTS.*?### END HIDDEN TESTS\s*$", re.DOTALL | re.MULTILINE)
_SHARED = (list, dict, set, np.ndarray, torch.Tensor)


@dataclass(frozen=True)
class Cell:
    """A code cell; `kind` is "parameters", "setup", "answer", "test" or "measure", `exercise` e.g. "02.1"."""

    source: str
    kind: str
    exercise: str | None = None
    points: int = 0

    @property
    def setup(self) -> bool:
        return self.kind in {"parameters", "setup"}

    @property
    def answer(self) -> str | None:
        """The exercise that this cell answers."""
        return self.exercise if self.kind == "answer" else None

    @property
    def test(self) -> str | None:
        """The exercise that this cell tests."""
        return self.exercise if self.kind == "test" else None


@dataclass
class Outcome:
    """What the test cell gave: `score` of its points; `error` is also what was said about points lost in part."""

    error: BaseException | None
    stdout: str
    stderr: str
    score: float


@dataclass
class Unit:
    """A unit's code cells in order."""

    name: str
    cells: list[Cell]
    _prepared: dict = field(default_factory=dict, repr=False)

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def exercises(self) -> list[str]:
        return [cell.test for cell in self.cells if cell.test]

    def answer(self, exercise: str) -> Cell:
        return next(cell for cell in self.cells if cell.answer == exercise)

    def graded_names(self, exercise: str) -> list[str]:
        """The names that the test cell gives to `check.grade`."""
        source = next(cell.source for cell in self.cells if cell.test == exercise)
        calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
        given = [a for n in calls if getattr(n.func, "attr", "") == "grade" for a in n.args]
        return list(dict.fromkeys(n.id for a in given for n in ast.walk(a) if isinstance(n, ast.Name)))

    def run(
        self,
        exercise: str,
        snippet: str | None = None,
        untouched: bool = False,
        change: Callable[[dict], None] = lambda space: None,
        visible: bool = False,
    ) -> Outcome:
        """Run the test cell of `exercise` with the reference answers before it.

        `snippet` is executed after the exercise's own reference answer, so it may replace one name of
        several; it must assign a name that the reference assigns. `untouched` clears the solution instead.
        `change` may then alter the names; `visible` leaves out the hidden tests.
        Raises ValueError for a snippet that touches none of the names the answer cell defines.
        """
        if snippet is not None and not _names(snippet) & _names(self.answer(exercise).source):
            raise ValueError(f"{self.name} {exercise}: the snippet defines no name of its answer cell")
        end = next(i for i, cell in enumerate(self.cells) if cell.test == exercise)
        out, err, error = io.StringIO(), io.StringIO(), None
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            space = self._setup(end)
            for i, cell in enumerate(self.cells[:end]):
                if cell.answer:
                    blank = untouched and cell.answer == exercise
                    _execute(cleared(cell.source) if blank else cell.source, space, f"<{self.name} cell {i}>")
                    if snippet is not None and cell.answer == exercise:
                        _execute(snippet, space, f"<{self.name} snippet>")
            out.truncate(out.seek(0))
            change(space)
            check._misses.pop(exercise, None)
            source, score, most = self.cells[end].source, 0.0, float(self.cells[end].points)
            try:
                source = HIDDEN.sub("", source) if visible else source
                last = _execute(source, space, f"<{self.name} test {exercise}>")
                score = most if last is None else last
            except BaseException as raised:
                error = raised
        if error is None and score != most:
            error = check.Wrong(out.getvalue().strip().removeprefix(f"✗ {exercise}  "))
            error.exercise = exercise
        return Outcome(error, out.getvalue(), err.getvalue(), score)

    def _setup(self, end: int) -> dict:
        """The namespace after the setup cells before `end`; executed once, handed out as a copy."""
        count = sum(cell.setup for cell in self.cells[:end])
        if count not in self._prepared:
            space = {"__name__": "__main__"}
            for i, cell in enumerate(self.cells[:end]):
                if cell.setup:
                    _execute(cell.source, space, f"<{self.name} cell {i}>")
            self._prepared[count] = space
        return {
            key: copy.deepcopy(value) if isinstance(value, _SHARED) and key != "__builtins__" else value
            for key, value in self._prepared[count].items()
        }


def units() -> list[Unit]:
    """Every unit under solutions/, in order."""
    return [load(unit.source) for unit in find(ROOT)]


def load(source: Path) -> Unit:
    """The code cells of the unit whose percent file `source` is, as the build expands them."""
    return of(source.stem, solution_notebook(tools.units.Unit(source.parents[2], source.stem)))


def of(name: str, notebook: dict) -> Unit:
    """The code cells of the solution notebook of unit `name`."""
    matplotlib.use("Agg")
    cells = []
    for cell in notebook["cells"]:
        role = kind(cell)
        if role != "text":
            exercise = exercise_id(cell) if role in {"answer", "test"} else None
            points = cell["metadata"].get("nbgrader", {}).get("points", 0)
            cells.append(Cell(text(cell), role, exercise, points))
    return Unit(name, cells)


def known(unit: Unit, given: dict | None = None) -> tuple[dict, dict]:
    """WRONG and RIGHT of tests/misconceptions/uNN.py; both empty when there is no such file.

    `G.name` in them is the given of that name, of `given` or else the usual one (see tools/givens.py).
    """
    if not (ROOT / "tests" / "misconceptions" / f"u{unit.number}.py").exists():
        return {}, {}
    module = importlib.import_module(f"tests.misconceptions.u{unit.number}")
    given = givens.usual(tools.units.Unit(ROOT, unit.name)) if given is None else given
    wrong = {
        exercise: [tuple(givens.written(part, given) for part in case) for case in cases]
        for exercise, cases in module.WRONG.items()
    }
    return wrong, {e: [givens.written(snippet, given) for snippet in cases] for e, cases in module.RIGHT.items()}


def near(unit: Unit) -> dict:
    """NEAR of tests/misconceptions/uNN.py: snippets that are refused although no known slip leads there."""
    return getattr(importlib.import_module(f"tests.misconceptions.u{unit.number}"), "NEAR", {})


def cleared(source: str) -> str:
    """`source` as a learner gets it: the solution region is one comment line."""
    return re.sub(
        r"^([ \t]*)### BEGIN SOLUTION.*?### END SOLUTION[ \t]*$",
        rf"\1{STUB}",
        source,
        flags=re.DOTALL | re.MULTILINE,
    )


def _names(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
    return names


def _execute(source: str, space: dict, filename: str) -> float | None:
    """Run a cell; returns the value of its last line if that is a call of `check.share`."""
    # Registered, so that a message can quote the line of the learner's code.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    tree, last = ast.parse(source), None
    if gives_shares(source):
        share = tree.body.pop()
        assert isinstance(share, ast.Expr)
        last = compile(ast.Expression(share.value), filename, "eval")
    exec(compile(tree, filename, "exec"), space)
    return None if last is None else eval(last, space)
