"""`make course`: every solution executed apart from its source, a table at the end, 1 on any error."""

import json
import shutil

import pytest

from tests.pipeline.miniature import UNIT
from tools import course
from tools.units import find


def test_runs_apart_from_the_source_with_the_budget_given(built, tmp_path, capsys):
    root = tmp_path / "course"
    shutil.copytree(built, root)
    unit = find(root)[0]
    before = unit.solution.read_bytes()
    assert course.main(["--budget", "full"], root) == 0
    assert unit.solution.read_bytes() == before
    executed = root / "build" / "executed" / UNIT / f"{UNIT}.ipynb"
    printed = [
        o["text"] for c in json.loads(executed.read_text())["cells"] for o in c.get("outputs", []) if "text" in o
    ]
    assert ["full 46080\n"] in printed or "full 46080\n" in printed
    said = capsys.readouterr().out.splitlines()
    assert said[-2].split()[0] == UNIT and said[-2].endswith("ok")
    assert 0.02 < float(said[-2].split()[2]) < 8, "peak memory in GB is the kernel's"


def test_the_table_names_the_slowest_cells(tmp_path):
    durations = (0.2, 7.0, 1.5, None, 3.0, 2.0)
    cells = [
        {"id": f"02-{i}", "metadata": {"papermill": {"duration": seconds}}, "source": [f"# why\n\nstep_{i}()\n"]}
        for i, seconds in enumerate(durations)
    ]
    output = tmp_path / "run.ipynb"
    output.write_text(json.dumps({"cells": cells}))
    slowest = course._slowest(output)
    assert slowest == [(7.0, "02-1: step_1()"), (3.0, "02-4: step_4()"), (2.0, "02-5: step_5()")]
    assert course._slowest(tmp_path / "none.ipynb") == []
    said = course.table([course.Run("02-growing-cache", 20, int(3e9), "", slowest)])
    assert "7.0           02-1: step_1()" in said and said.splitlines()[1].split()[-1] == "ok"


@pytest.mark.parametrize(
    ("right", "wrong", "what"),
    [
        ("print(budget, kv_bytes)", "1 / 0", "ZeroDivisionError: division by zero"),
        ("print(budget, kv_bytes)", "import os; os.kill(os.getppid(), 9)", "ended with -9; was memory short?"),
        ("{", "", "NotJSONError"),
    ],
)
def test_an_error_is_shown_and_exit_1(right, wrong, what, built, tmp_path, capsys):
    root = tmp_path / "course"
    shutil.copytree(built, root)
    unit = find(root)[0]
    unit.solution.write_text(unit.solution.read_text().replace(right, wrong))
    assert course.main([], root) == 1
    said = capsys.readouterr().out
    assert what in said and "FAILED" in said


def test_a_unit_that_is_not_there(built, capsys):
    assert course.main(["42"], built) == 2
    assert "no unit 42" in capsys.readouterr().out
