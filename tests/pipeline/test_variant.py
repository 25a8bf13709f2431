"""Variants: givens are those of the checks, one variant is proven whole, each learner is graded on their own."""

import inspect
import json
import shutil

import pytest

from helpers import check
from tests.pipeline.miniature import UNIT, answered, hand_in
from tests.pipeline.test_grading import rows
from tools import autograde, givens, variant
from tools.source import exercise_id, kind, solution_notebook, text
from tools.units import ROOT, CourseError, find

VARYING = [pytest.param(unit, id=unit.name) for unit in find() if givens.module(unit)]


@pytest.mark.parametrize("unit", VARYING)
def test_givens_stand_in_text_and_check_as_variants_say(unit):
    usual, made = givens.usual(unit), solution_notebook(unit)
    before = [text(cell).split() for cell in made["cells"]]
    assert givens.vary(made, unit, usual) == []
    after = [text(cell).split() for cell in made["cells"]]
    tests = [i for i, cell in enumerate(made["cells"]) if kind(cell) == "test"]
    assert [x for i, x in enumerate(before) if i not in tests] == [x for i, x in enumerate(after) if i not in tests]
    assert variant.varied(unit)
    for exercise in variant.varied(unit):
        for name, parameter in inspect.signature(check.find(exercise)).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                assert parameter.default == usual[name], f"{exercise}: {name}"
    given, drawn = givens.drawn(unit, "5"), solution_notebook(unit)
    assert given == givens.drawn(unit, "5") and givens.vary(drawn, unit, given) == []
    for i in tests:
        asked = before[: i + 1] != [text(cell).split() for cell in drawn["cells"][: i + 1]]
        assert asked or exercise_id(drawn["cells"][i]) not in variant.varied(unit)


def test_a_variant_is_sound_and_names_the_known_wrong_answers():
    unit = find(selection=["00"])[0]
    made, given = variant.draw(unit, "7")
    assert variant.draw(unit, "7")[1] == given != givens.usual(unit)
    told = {**given, "launch_us": 2 * given["launch_us"]}
    assert any("has to be told" in problem for problem in variant.problems_of(unit, made, told))
    source = "".join(text(cell) for cell in made["cells"])
    assert "4.481" not in source and f"given={{'launch_us': {given['launch_us']}, " in source


def test_the_start_page_of_a_variant_links_to_what_is_in_it():
    units = find(selection=["00", "02"])
    made = "".join(text(cell) for cell in json.loads(variant.start_page(ROOT, units))["cells"])
    linked = {link["unit"] for link in variant.LINK.finditer(made)}
    assert linked == {unit.name for unit in units} and "03 · " in made
    whole = (ROOT / "notebooks" / "START.ipynb").read_bytes()
    assert variant.start_page(ROOT, find()) == whole


def test_what_is_not_sound_is_found():
    def asked(**slips):
        return [variant.Asked(10.0, 10.0, {"rel": 0.01, "slips": slips})]

    assert variant.collisions(asked(far=20, two=[30, 40])) == []
    assert "which is right" in variant.collisions(asked(near=10.05))[0]
    assert "two slips" in variant.collisions(asked(one=20, other=20.01))[0]
    with pytest.raises(CourseError, match="does not ask about b"):
        variant.hidden_tests("77.1", asked(), {"b": 3.5}, None)
    answer = {"a": 2.5, "b": 3.5}
    parts = [variant.Asked(value, value, {}) for value in answer.values()]
    space = {"answer": {"a": 2.5, "b": "?"}, "earned": 4, "check": check}
    exec(variant.hidden_tests("77.1", parts, {"answer": answer}, 4), space)
    assert space["earned"] == 2


def test_each_learner_is_graded_on_their_own_and_who_hands_in_anothers_is_named(built, tmp_path, capsys):
    root = tmp_path / "course"
    shutil.copytree(built, root)
    (tmp_path / "roster.txt").write_text("anna\nben\n")
    folder, given_in = root / "variants" / "3", tmp_path / "in"
    assert variant.main(["3", "--learners", str(tmp_path / "roster.txt")], root) == 0
    assert not any("HIDDEN" in path.read_text() for path in (folder / "release").rglob("*.ipynb"))
    mine = json.loads((folder / "release" / "anna" / UNIT / f"{UNIT}.ipynb").read_text())
    for cell in mine["cells"]:
        if cell["id"] == "answer-77-1":
            cell["source"] = "kv_bytes = 46_080"
    for student, notebook in {"anna": mine, "ben": mine, "carl": mine, "dora": answered(root, {})}.items():
        hand_in(given_in, student, notebook)
    assert autograde.main([str(given_in), "--csv", str(tmp_path / "grades.csv"), "--unsandboxed"], root) == 1
    grades = rows(tmp_path / "grades.csv")
    assert (grades["anna"]["score"], grades["anna"]["status"]) == ("2", "graded")
    assert grades["ben"]["note"] == "its notebook is of another variant: that of anna"
    assert grades["carl"]["note"] == "no variant was made for carl: that of anna"
    assert grades["dora"]["note"] == "no variant was made for dora"
    for student in ("ben", "carl"):  # one mark among two notebooks makes no class of a variant
        shutil.rmtree(given_in / student)
    assert autograde.main([str(given_in), "--csv", str(tmp_path / "grades.csv"), "--unsandboxed"], root) == 1
    grades = rows(tmp_path / "grades.csv")
    assert "grade with --variant" in grades["anna"]["note"]
    assert grades["dora"]["status"] == "graded"
