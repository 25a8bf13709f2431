"""A class on the hub, from login to feedback: two learners, an instructor, and nbgrader's exchange between them."""

import json

import pytest

from tests.hub.conftest import DEPLOYED, INSIDE, USERS
from tools.source import exercise_id, kind, text
from tools.units import ROOT, find

UNIT = find()[0]
NOTEBOOK = f"{UNIT.name}/{UNIT.name}.ipynb"


@pytest.fixture(scope="module")
def ada(hub):
    return hub.login("ada")


@pytest.fixture(scope="module")
def ben(hub):
    return hub.login("ben")


@pytest.fixture(scope="module")
def prof(hub):
    return hub.login("prof")


def test_who_has_no_place_in_the_class_does_not_come_in(hub):
    with pytest.raises((AssertionError, StopIteration)):
        hub.login("eve")


def test_each_learner_has_their_own_copy_and_a_kernel(ada, ben):
    for learner in (ada, ben):
        assert learner.files() >= {"START.ipynb", "AGENTS.md", *(unit.name for unit in find())}
        assert learner.run("import os; print(os.getuid(), os.getcwd())").split()[0] == str(USERS[learner.name])
    ada.api("PUT", "api/contents/mine.txt", json={"type": "file", "format": "text", "content": "a secret"})
    assert "mine.txt" not in ben.files()
    place = ada.run("import os; print(open('mine.txt').read(), os.path.abspath('mine.txt'))")
    secret, path = place.rsplit(maxsplit=1)
    assert secret == "a secret"
    assert "PermissionError" in ben.run(f"print(open({path!r}).read())")


def test_the_course_runs_in_a_learners_kernel(ada):
    said = ada.run("from helpers import check, course; course.end('00'); check.hint('00.1')")
    assert "0 of" in said and "Hint 1 of" in said


def test_from_release_to_feedback(hub, ada, ben, prof):
    python = str(hub.python)
    made = prof.shell(python, str(INSIDE / DEPLOYED.relative_to(ROOT) / "make_class.py"), UNIT.number)
    assert "exit 0" in made, made

    def nbgrader(*words: str) -> None:
        said = prof.shell(python, "-m", "nbgrader", *words)
        assert "exit 0" in said, f"nbgrader {' '.join(words)}:\n{said}"

    nbgrader("release_assignment", UNIT.name)

    ben.api("DELETE", f"api/contents/{NOTEBOOK}")
    ben.assignment("fetch", UNIT.name)
    assert f"{UNIT.name}.ipynb" in ben.files(UNIT.name)

    solution = json.loads(UNIT.solution.read_text(encoding="utf-8"))["cells"]
    answers = {exercise_id(cell): text(cell) for cell in solution if kind(cell) == "answer"}
    mine = ada.api("GET", f"api/contents/{NOTEBOOK}")["content"]
    for cell in mine["cells"]:
        if kind(cell) == "answer":
            cell["source"] = answers[exercise_id(cell)]
    ada.api("PUT", f"api/contents/{NOTEBOOK}", json={"type": "notebook", "content": mine})
    ada.assignment("submit", UNIT.name)
    ben.assignment("submit", UNIT.name)
    inbound = hub.state / "exchange" / "chat" / "inbound"
    assert "PermissionError" in ben.run(f"import os; print(os.listdir({str(inbound)!r}))")

    nbgrader("collect", UNIT.name)
    nbgrader("autograde", UNIT.name)
    nbgrader("generate_feedback", UNIT.name)
    nbgrader("release_feedback", UNIT.name)

    scores = {}
    for learner in (ada, ben):
        learner.assignment("fetch_feedback", UNIT.name)
        (page,) = (hub.homes / learner.name / "chat-course" / UNIT.name / "feedback").rglob("*.html")
        shown = page.read_text(encoding="utf-8")
        assert "HIDDEN TESTS" not in shown
        scores[learner.name] = shown.split("(Score: ")[1].split(")")[0]
    got, most = map(float, scores["ada"].split("/"))
    assert got == most > 0
    assert float(scores["ben"].split("/")[0]) == 0
