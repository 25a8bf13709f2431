"""Notebooks that want points for nothing, and honest ones that look odd: each gets what its answers deserve."""

import json

import pytest

from tests.pipeline.attacks import ATTACKS, HONEST, SMALL, TOGETHER, WRONG
from tests.pipeline.miniature import UNIT, answered
from tools import grade_proof
from tools.grading import Grader
from tools.source import text
from tools.units import find

RIGHT = {"answer-77-1": "kv_bytes = 46_080", "answer-77-2": "def double(x):\n    return x + x"}


@pytest.fixture(scope="module")
def grade(built, tmp_path_factory):
    """grade(notebook) → Result, in one course directory for all of these tests."""
    unit = find(built)[0]
    folder = tmp_path_factory.mktemp("hostile")
    grader = Grader(folder / "course", [unit], sandboxed=False)
    grader.settings.Execute.timeout = grader.settings.Execute.iopub_timeout = 5
    taken = iter(range(1000))

    def graded(notebook):
        path = folder / f"{next(taken)}.ipynb"
        path.write_text(json.dumps(notebook), encoding="utf-8")
        return grader.grade(f"student-{path.stem}", unit, path)

    graded.grader, graded.unit = grader, unit
    return graded


@pytest.mark.parametrize("attack", [TOGETHER, *([name] for name in SMALL)], ids=lambda names: names[-1])
def test_an_attack_earns_nothing(grade, built, attack):
    source = "\n".join([*(ATTACKS[name] for name in attack), WRONG[attack[-1]]])
    result = grade(answered(built, {"answer-77-1": source}))
    assert result.points == 0 and (result.problem or len(result.exercises) == 2)


def test_tags_and_metadata_earn_nothing(grade, built):
    notebook = answered(built, {})
    for cell in notebook["cells"]:
        if cell["id"].startswith(("test-", "answer-")):
            cell["metadata"]["tags"] = ["measure", "skip-execution", "raises-exception"]
            cell["metadata"]["nbgrader"].update(points=100, grade=False, locked=False)
            cell |= {"execution_count": 7, "outputs": []}
    result = grade(notebook)
    assert (result.points, result.max_points) == (0, 5) and not any(e.answered for e in result.exercises)


SHADOWS = "shadows abs"  # for all functions of the notebook, so it stands alone
OTHERS = [odd for odd in HONEST if odd != SHADOWS]


@pytest.mark.parametrize("odd", [[SHADOWS], OTHERS], ids=["shadows", "others"])
def test_honest_work_keeps_its_points(grade, built, odd):
    """The double comes from each function in turn: whoever spoils it is found by trying them alone."""
    functions = "".join(f"{HONEST[name].replace('double', f'double_{i}')}\n" for i, name in enumerate(odd))
    names = ", ".join(f"double_{i}" for i in range(len(odd)))
    double = f"{functions}def double(x):\n    said = [f(x) for f in [{names}]]\n"
    double += f"    return said[x % {len(odd)}] if said == [x + x] * {len(odd)} else None"
    result = grade(answered(built, {"answer-77-1": "kv_bytes = 46_080\ninput()", "answer-77-2": double}))
    assert (result.points, result.problem) == (5, "")


def test_what_ends_the_kernel_last_costs_nothing_and_before_it_a_human(grade, built):
    notebook = answered(built, RIGHT)
    notebook["cells"].append({"cell_type": "code", "metadata": {}, "source": "import os\nos._exit(1)"})
    assert grade(notebook).points == 5
    result = grade(answered(built, RIGHT | {"answer-77-2": "import os\ndef double(x):\n    os._exit(1)"}))
    assert "killed the kernel" in result.problem and not result.exercises


def test_what_cannot_be_told_of_one_answer_costs_no_other(grade, built):
    untold = "import torch\nkv_bytes = torch.eye(2).to_sparse()"
    result = grade(answered(built, RIGHT | {"answer-77-1": untold}))
    assert [e.points for e in result.exercises] == [0, 3] and not result.problem
    assert "`kv_bytes` is nothing that can be graded" in result.exercises[0].message


def test_no_test_reaches_the_kernel_or_the_report(grade, built):
    """What a function can see of its caller, of the history and of its arguments does not come out."""
    spy = (
        "import sys, gc\ndef double(x):\n"
        "    frames, frame = [], sys._getframe(1)\n"
        "    while frame:\n        frames.append(str(frame.f_locals)[:2000])\n        frame = frame.f_back\n"
        "    raise AssertionError(' '.join([str(x), str(get_ipython().user_ns['In']), *frames]))"
    )
    result = grade(answered(built, RIGHT | {"answer-77-2": spy}))
    said = result.exercises[1].message
    assert result.points == 2 and "expect" not in said and "42" not in said and "assert double" not in said
    only_hidden = "def double(x):\n    if x == 3: return 6\n    raise ValueError(f'hidden input {x}')"
    stopped = "kv_bytes = None\nkv_bytes = 2 * rows"
    result = grade(answered(built, {"answer-77-1": stopped, "answer-77-2": only_hidden}))
    assert (
        result.exercises[0].answered and "NameError: name 'rows' is not defined: cells" in result.exercises[0].message
    )
    assert (
        result.exercises[1].message == "passes what is shown, but not a hidden test of the same exercise (ValueError)"
    )


def test_nbgrader_by_itself_gives_the_same_score(grade, built):
    """`nbgrader autograde` on an unrepaired notebook: the tests run outside of it all the same."""
    grader, unit = grade.grader, grade.unit
    notebook = answered(built, {"answer-77-1": f"{ATTACKS['a hook on run_cell']}\nkv_bytes = 1"})
    for cell in notebook["cells"]:
        if cell["id"].startswith("test-"):
            cell["metadata"]["tags"] = ["measure"]
    target = grader.folder / "submitted" / "alone" / UNIT / f"{UNIT}.ipynb"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(notebook), encoding="utf-8")
    assert grader.api.autograde(unit.name, "alone", force=True)["success"]
    assert [e.points for e in grader.exercises("alone", unit)] == [0, 0]


def test_no_line_of_a_solution_or_hidden_test_is_released():
    """By content, over all units: what `make grade-proof` also looks for in reports."""
    for unit in find():
        shown, secret = grade_proof.lines_of(grade_proof.read(unit.solution))
        assert secret
        released = {line for cell in grade_proof.read(unit.release)["cells"] for line in grade_proof.lines(text(cell))}
        assert not released & (secret - shown)
