"""A cell that fails for want of another one says which, in one line; a mistake of its own keeps its traceback."""

import nbformat
import pytest
from nbclient import NotebookClient

from helpers import blanks, hints

KNOWN = {
    "exercises": {},
    "answers": {"kv_bytes": "04.1", "attend": "04.8", "Cache": "04.9"},
    "names": ["np", "model"],
}


@pytest.fixture(autouse=True)
def unit(monkeypatch):
    monkeypatch.setattr(hints, "unit", lambda number: KNOWN)


def stub(q):
    """Attention."""


class Stubs:
    def append(self, k):
        """Keep k."""


@pytest.mark.parametrize(
    "source, space, said",
    [
        ("attend(kv_bytes)", {"attend": stub, "kv_bytes": 1}, "needs exercise 04.8, which is still blank (stub())"),
        ("kv_bytes + 1", {"kv_bytes": None}, "needs exercise 04.1, which is still blank (kv_bytes)"),
        ("f(kv_bytes)", {"kv_bytes": {"8k": None}}, "(kv_bytes['8k'])"),
        ("%matplotlib inline\nCache().append(1)", {"Cache": Stubs}, "04.9, which is still blank (Stubs.append)"),
        ("attend(1)", {"attend": lambda q: q + None}, None),
        ("other(1)", {"other": None, "kv_bytes": None}, None),
    ],
)
def test_a_blank_answer_is_named(source, space, said):
    why = blanks.reason(TypeError("unsupported"), source, space, "04")
    assert said in why if said else why is None


@pytest.mark.parametrize("source", ["serve(1)", "[Loop().run() for _ in 'ab']", "loop.run()", "attend(1) + serve(1)"])
def test_a_blank_is_found_behind_what_the_notebook_defines(source):
    space = {"attend": stub}
    exec("def serve(q):\n    return [attend(q) + 1 for _ in 'a']", space)
    exec("class Loop:\n    def run(self):\n        return serve(1)\nloop = Loop()", space)
    assert "exercise 04.8" in blanks.reason(TypeError("unsupported"), source, space, "04")
    space["attend"] = abs
    assert blanks.reason(TypeError("unsupported"), source, space, "04") is None


@pytest.mark.parametrize(
    "name, source, explained",
    [
        ("model", "model.decode()", True),
        ("attend", "attend(1)", True),
        ("modle", "modle.decode()", False),
        ("np", "print(np)\nnp = 1", False),
    ],
)
def test_a_name_of_a_cell_above_is_told_from_a_typing_mistake(name, source, explained):
    why = blanks.reason(NameError(f"name {name!r} is not defined", name=name), source, {}, "04")
    assert ("Run All Above" in why and f"`{name}`" in why) if explained else why is None


def test_a_mistyped_answer_is_not_called_a_restart():
    missing = NameError("name 'kv_bytes' is not defined", name="kv_bytes")
    assert "`kv_byte` is" in blanks.reason(missing, "grade(kv_bytes)", {"kv_byte": 1, "kb": 2}, "04")
    assert "Run All Above" in blanks.reason(missing, "grade(kv_bytes)", {"kb": 2, "attend": 3}, "04")


def test_in_a_test_what_earlier_exercises_ask_for_counts_alone():
    missing = NameError("name 'attend' is not defined", name="attend")
    assert "Run All Above" in blanks.absent(missing, {}, "04", "04.10")
    assert blanks.absent(missing, {}, "04", "04.8") is None


def test_a_blank_is_found_behind_a_name_that_failing_cells_did_not_set():
    error, ran = NameError("name 'model' is not defined", name="model"), ["np = attend(1)", "model = np + 1"]
    why = blanks.reason(error, "model.decode()", {"attend": stub}, "04", ran)
    assert "exercise 04.8" in why
    why = blanks.reason(error, "model.decode()", {"attend": abs}, "04", ran)
    assert "Run All Above" in why


def test_what_a_notebook_shows(tmp_path):
    """In a real kernel, in a unit's folder: the blank of 00.2, what it kept from being set, a name of the set-up,
    two mistakes of one's own, a function whose cells above were not run, and one that forgot to set a name."""
    cells = [
        "from helpers import check",
        "ridge_flop_per_byte = None",
        "share = ridge_flop_per_byte / 2",
        "print(share)",
        "time_step",
        "1 / 0",
        "answer = {'a': 1 'b': 2}",
        "check.grade('00.2', ridge_flop_per_byte, 1)",
        "check.grade('00.5', lambda times: time_step(times))",
        "check.grade('00.5', lambda times: spread)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    folder = tmp_path / "00-clock"
    folder.mkdir()
    NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, allow_errors=True, timeout=120).execute()
    # What is no error may be the bar for PyTorch, where `make lab` has had every kernel show it.
    shown = ["\n".join(e.traceback) for cell in notebook.cells for e in cell.outputs if e.output_type == "error"]
    blank, behind, missing, own, unread, graded, unmet, forgotten = shown
    assert blank.startswith("This cell needs exercise 00.2, which is still blank") and "Traceback" not in blank
    assert behind == blank
    assert "`time_step` is not there yet" in missing and "Run All Above" in missing
    assert "ZeroDivisionError" in own and "Traceback" in own
    assert "SyntaxError" in unread and "IPython" not in unread
    assert graded.startswith("… exercise 00.2 is not answered yet") and "Traceback" not in graded
    assert unmet.startswith("✗ 00.5  `time_step` is not there yet") and "Run All Above" in unmet
    assert "name 'spread' is not defined" in forgotten and "Run All Above" not in forgotten
