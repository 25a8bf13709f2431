"""From percent source to released notebook, and every trap that the build has to name."""

import json

import pytest

from tests.pipeline.miniature import SOURCE, UNIT, make
from tools import build
from tools.problems import source_problems
from tools.source import solution_notebook, text
from tools.units import CourseError, Unit, find

ANSWER, TEST = "answer-77-1", "test-77-1"


def cells(path):
    return {c["id"]: c for c in json.loads(path.read_text(encoding="utf-8"))["cells"]}


def test_release_has_stubs_and_no_hidden_tests(built):
    unit = find(built)[0]
    solution, release = cells(unit.solution), cells(unit.release)
    assert list(solution) == list(release)
    assert text(release[ANSWER]) == "kv_bytes = None  # bytes\n# YOUR CODE HERE"
    assert text(release["answer-77-2"]) == 'def double(x):\n    """Twice x."""\n    # YOUR CODE HERE'
    assert text(release[TEST]) == 'from helpers import check\n\ncheck.grade("77.1", kv_bytes)'
    assert "HIDDEN" in text(solution[TEST])
    assert sorted(p.name for p in (built / "notebooks").rglob("*") if p.is_file()) == [f"{UNIT}.ipynb"]


def test_metadata_is_complete_and_nothing_was_run(built):
    unit = find(built)[0]
    graded = cells(unit.release)
    assert graded[TEST]["metadata"]["nbgrader"].items() >= {
        "grade": True, "grade_id": TEST, "locked": True, "points": 2, "schema_version": 3, "solution": False
    }.items()  # fmt: skip
    assert graded[TEST]["metadata"]["editable"] is False
    assert graded[ANSWER]["metadata"]["nbgrader"]["solution"] is True
    assert graded[ANSWER]["metadata"]["nbgrader"]["locked"] is False
    assert graded["setup-77-1"]["metadata"]["nbgrader"]["locked"] is True
    assert graded[f"{UNIT}-005"]["metadata"]["tags"] == ["measure"]
    for path in (unit.solution, unit.release):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert notebook["metadata"]["kernelspec"]["name"] == "python3"
        assert all(c["outputs"] == [] and c["execution_count"] is None for c in notebook["cells"] if "outputs" in c)
        assert path.read_text(encoding="utf-8") == json.dumps(
            notebook, sort_keys=True, indent=1, ensure_ascii=False
        ) + "\n"  # fmt: skip


def test_a_second_build_changes_nothing_and_check_sees_what_differs(built, capsys):
    unit = find(built)[0]
    before = {p: p.read_bytes() for p in (unit.solution, unit.release)}
    assert build.main([], built) == 0
    assert {p: p.read_bytes() for p in before} == before
    unit.release.write_bytes(before[unit.release].replace(b"miniature", b"minature"))
    try:
        assert build.main(["--check"], built) == 1
        assert f"out of date: notebooks/{UNIT}/{UNIT}.ipynb" in capsys.readouterr().out
        assert b"minature" in unit.release.read_bytes()
    finally:
        unit.release.write_bytes(before[unit.release])


def test_a_broken_unit_does_not_stop_the_others_and_deleted_units_go(tmp_path, capsys):
    make(tmp_path)
    make(tmp_path, SOURCE.replace("77", "78").replace('test="78.1" points=2', 'test="78.1"'), "78-broken")
    gone = tmp_path / "notebooks" / "76-gone" / "76-gone.ipynb"
    gone.parent.mkdir(parents=True)
    gone.write_text("{}")
    orphan = tmp_path / "solutions" / "76-gone" / "76-gone.ipynb"
    orphan.parent.mkdir(parents=True)
    orphan.write_text("{}")
    kept = tmp_path / "notebooks" / "78-broken" / "78-broken.ipynb"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    assert build.main([], tmp_path) == 1
    out = capsys.readouterr().out
    assert 'test cell without points; write test="78.1" points=1' in out
    assert "1 of 2 units built; with errors: 78-broken" in out
    assert find(tmp_path, ["77"])[0].release.exists()
    assert not gone.parent.exists() and not orphan.parent.exists()
    assert kept.exists(), "an error in a source must not delete what was built from it before"


TRAPS = [
    ("### BEGIN HIDDEN TESTS\nassert abs", "### BEGIN HIDDEN\nassert abs", "BEGIN HIDDEN TESTS"),
    ("assert double(21) == 42", "double(21) == 42", "whose value nbgrader reads as the score"),
    ('check.grade("77.1", kv_bytes)\n', 'check.grade("77.1", kv_bytes)\nkv_bytes\n', "without its hidden tests is `kv_bytes`"),  # noqa: E501
    ('from helpers import check\n\ncheck.grade("77.1"', 'check.grade("77.1"', "must begin with `from helpers import check`"),  # noqa: E501
    ('check.grade("77.1"', 'check.grade("77.2"', 'no visible `check.grade("77.1", …)` (it grades 77.2)'),
    ('    """Twice x."""\n', "", "`double` holds a solution region and has no docstring"),
    ("### BEGIN SOLUTION\nkv_bytes", "kv_bytes", "answer 77.1: no `### BEGIN SOLUTION`"),
    ('# %% answer="77.1"', "# %%", "test 77.1 has no answer"),
    ('# %% test="77.1" points=2', '# %% tags=["x"]', "answer 77.1 has no test"),
    ('answer="77.2"', 'answer="77.1"', "duplicated id answer-77-1"),
    ('answer="77.2"', 'answer="76.2"', "exercises of this unit are named 77.1"),
    ("assert abs(float(kv_bytes) - 46_080) < 1", "assert float(kv_bytes) == 46_080", "compare floats with `==`"),
    ("assert abs(float(kv_bytes) - 46_080) < 1", "assert [1, -kv_bytes / 2] != [1, 2]", "compare floats with `==`"),
    ("assert abs(float(kv_bytes) - 46_080) < 1", "assert list({1: kv_bytes}.values()) == [46_080]", "go by the keys"),
    ("assert abs(float(kv_bytes) - 46_080) < 1", "assert set({1: kv_bytes}.values()) == {46_080}", None),
    ("print(budget, kv_bytes)", "print(1)\n### BEGIN SOLUTION", "in a cell that is neither answer= nor test="),
    ("print(budget, kv_bytes)", "factor = 2", None),
    ("return 2 * x", "return unknown * x", "`unknown` is defined nowhere"),
    ("kv_bytes = 46_080\n", "kv_bytes = = 1\n", "not plain Python"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), TRAPS, ids=[str(said)[:40] for _, _, said in TRAPS])
def test_traps_are_named(tmp_path, old, new, said):
    assert old in SOURCE
    make(tmp_path, SOURCE.replace(old, new, 1))
    problems = source_problems("77", solution_notebook(Unit(tmp_path, UNIT)))
    assert problems == [] if said is None else any(said in problem for problem in problems), problems


def test_graded_cells_must_not_need_measurement_cells(tmp_path):
    make(tmp_path, SOURCE.replace("print(budget", "factor = 2\nprint(budget").replace("return 2 *", "return factor *"))
    problems = source_problems("77", solution_notebook(Unit(tmp_path, UNIT)))
    assert problems == [
        'answer-77-2: `factor` is defined in a cell that grading does not run: move it to a cell with tags=["setup"]'
    ]


def test_a_name_that_the_release_loses_is_an_error(tmp_path, capsys):
    make(tmp_path, SOURCE.replace("kv_bytes = None  # bytes\n", ""))
    assert build.main([], tmp_path) == 1
    assert "its test uses kv_bytes, which the learner's notebook no longer defines" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('answer="77.1"', 'anwser="77.1"', "unknown cell metadata anwser"),
        ('answer="77.1"', "answer=77.1", 'an exercise is named like "02.1"'),
        ("points=2", "points=0", "points must be a whole number of at least 1, not 0"),
        ('test="77.1" points=2', 'test="77.1" answer="77.1"', "a cell is either"),
        ("# %% [markdown]", '# %% [markdown] answer="77.9"', "only code cells are graded"),
    ],
)
def test_metadata_that_is_not_the_shorthand(tmp_path, old, new, said):
    make(tmp_path, SOURCE.replace(old, new, 1))
    with pytest.raises(CourseError, match=said.replace("[", r"\[")):
        solution_notebook(Unit(tmp_path, UNIT))


def test_an_unknown_unit_is_named_with_those_there_are(built, capsys):
    assert build.main(["42"], built) == 2
    assert f"no unit 42 under {built / 'solutions'} (there: {UNIT})" in capsys.readouterr().out
