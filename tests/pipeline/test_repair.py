"""What was handed in becomes a notebook that can be graded, or a reason why it needs a human."""

import json
from copy import deepcopy

import pytest

from tests.pipeline.miniature import UNIT, answered
from tools.repair import Unusable, bound, repair

RIGHT = {"answer-77-1": "kv_bytes = 46_080", "answer-77-2": "def double(x):\n    return x + x"}


@pytest.fixture(scope="module")
def release(built):
    return json.loads((built / "notebooks" / UNIT / f"{UNIT}.ipynb").read_text(encoding="utf-8"))


@pytest.fixture
def handed_in(built):
    return answered(built, RIGHT)


def text(cell):
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def mended(notebook, release):
    """(grade ids and own cells in order, {id: source}, notes) of a repaired notebook or its bytes."""
    content = notebook if isinstance(notebook, bytes) else json.dumps(notebook).encode()
    repaired, notes = repair(content, release)
    code = [c for c in repaired["cells"] if c["cell_type"] == "code"]
    return [c["id"] for c in code], {c["id"]: text(c) for c in code}, notes


ORDER = [f"{UNIT}-001", "setup-77-1", "answer-77-1", "test-77-1", "answer-77-2", "test-77-2"]


def test_a_plain_submission_keeps_its_answers_and_loses_what_is_not_run(handed_in, release):
    order, sources, notes = mended(handed_in, release)
    assert order == ORDER and notes == []
    assert sources["answer-77-1"] == RIGHT["answer-77-1"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_encodings(handed_in, release, encoding):
    handed_in["cells"][4]["source"] += "  # größer"
    content = json.dumps(handed_in, ensure_ascii=False).encode(encoding)
    assert mended(content, release)[1]["answer-77-1"].endswith("größer")


def test_windows_1252_is_said(handed_in, release):
    handed_in["cells"][4]["source"] += "  # größer"
    _, sources, notes = mended(json.dumps(handed_in, ensure_ascii=False).encode("cp1252"), release)
    assert sources["answer-77-1"].endswith("größer") and notes == ["read as Windows-1252"]


def test_notebook_format_3(handed_in, release):
    for cell in handed_in["cells"]:
        if cell["cell_type"] == "code":
            cell["input"] = cell.pop("source")
        del cell["id"]
    old = {"nbformat": 3, "worksheets": [{"cells": handed_in["cells"]}], "metadata": {}}
    order, sources, notes = mended(old, release)
    assert [i for i in order if not i.startswith("own-")] == ORDER
    assert sources["answer-77-2"] == RIGHT["answer-77-2"] and notes == ["converted from notebook format 3"]


def saved_by(service, notebook):
    """As Colab and Kaggle write a notebook: their own ids, notes and format number, and outputs of every cell."""
    notebook |= {"nbformat": 4, "nbformat_minor": 0 if service == "Colab" else 4}
    for number, cell in enumerate(notebook["cells"]):
        del cell["id"]
        if service == "Colab":
            cell["metadata"] |= {
                "id": f"Xy{number}",
                "outputId": "a0-b1",
                "colab": {"base_uri": "https://localhost:8080/"},
            }
        else:
            cell |= {"metadata": cell["metadata"] | {"trusted": True, "_uuid": f"{number:032d}", "execution": {}}}
        if cell["cell_type"] == "code":
            cell |= {
                "execution_count": number,
                "outputs": [{"output_type": "stream", "name": "stdout", "text": "Ready."}],
            }
    if service == "Colab":
        notebook["metadata"] |= {"colab": {"provenance": [], "gpuType": "T4"}, "accelerator": "GPU"}
    else:
        notebook["metadata"] |= {"kaggle": {"accelerator": "nvidiaTeslaT4", "isInternetEnabled": True}}
    return notebook


@pytest.mark.parametrize("service", ["Colab", "Kaggle"])
def test_saved_on_somebody_elses_machine(handed_in, release, service):
    """Nothing is in doubt, and the cell that fetches the course is not run again, whatever was written into it."""
    fetch = next(c for c in handed_in["cells"] if c["id"] == f"{UNIT}-fetch")
    fetch["source"] = text(fetch).replace('COURSE, RELEASE = "', 'COURSE, RELEASE = "https://github.com/a/fork')
    order, sources, notes = mended(saved_by(service, handed_in), release)
    assert [name for name in order if not name.startswith("own-")] == ORDER and notes == []
    assert sources["answer-77-2"] == RIGHT["answer-77-2"]
    repaired, _ = repair(json.dumps(handed_in).encode(), release)
    cells = [cell for cell in repaired["cells"] if "hosted.prepare" in text(cell)]
    assert all("measure" in cell["metadata"]["tags"] for cell in cells)


@pytest.mark.parametrize("lost", ["metadata", "ids", "both"])
def test_cells_are_known_by_either_name_and_last_by_what_they_define(handed_in, release, lost):
    for cell in handed_in["cells"]:
        if lost in ("metadata", "both"):
            cell["metadata"] = {}
        if lost in ("ids", "both"):
            cell.pop("id")
    order, sources, notes = mended(handed_in, release)
    assert [i for i in order if not i.startswith("own-")] == ORDER
    assert sources["answer-77-1"] == RIGHT["answer-77-1"]
    assert len(notes) == (2 if lost == "both" else 0)


def test_set_up_that_was_moved_or_deleted_stands_before_what_needs_it(handed_in, release):
    setup = next(c for c in handed_in["cells"] if c["id"] == "setup-77-1")
    handed_in["cells"].remove(setup)
    assert mended(handed_in, release)[0] == ORDER
    handed_in["cells"].append(setup)
    assert mended(handed_in, release)[0] == ORDER


def test_own_cells_run_where_they_stand_and_edited_tests_do_not_count(handed_in, release):
    own = {"cell_type": "code", "metadata": {}, "source": "half = 23_040", "outputs": [], "execution_count": 1}
    handed_in["cells"].insert(4, own)
    next(c for c in handed_in["cells"] if c.get("id") == "test-77-1")["source"] = "pass"
    order, sources, _ = mended(handed_in, release)
    assert order == [*ORDER[:2], "own-0004", *ORDER[2:]]
    assert "check.grade" in sources["test-77-1"]


def test_a_missing_answer_is_the_blank_that_was_handed_out(handed_in, release):
    handed_in["cells"] = [c for c in handed_in["cells"] if c["id"] != "answer-77-1"]
    order, sources, notes = mended(handed_in, release)
    assert order == ORDER and "None" in sources["answer-77-1"] and notes == ["answer-77-1 is missing"]


def copy_of(notebook, name, **changes):
    at = next(i for i, c in enumerate(notebook["cells"]) if c["id"] == name)
    notebook["cells"].insert(at + 1, deepcopy(notebook["cells"][at]) | {"id": "a-copy"} | changes)


@pytest.mark.parametrize("copied", [{}, {"source": "kv_bytes = None  # bytes\n# YOUR CODE HERE"}])
def test_a_cell_that_was_pasted_twice_counts_once(handed_in, release, copied):
    copy_of(handed_in, "answer-77-1", **copied)
    order, sources, notes = mended(handed_in, release)
    assert order == ORDER and sources["answer-77-1"] == RIGHT["answer-77-1"]
    assert notes == ["duplicated: answer-77-1 stands 2 times"]


def test_a_cell_that_was_split_runs_in_both_parts(handed_in, release):
    copy_of(handed_in, "answer-77-1")
    handed_in["cells"][4]["source"] = "half = 23_040"
    handed_in["cells"][5]["source"] = "kv_bytes = 2 * half"
    order, sources, _ = mended(handed_in, release)
    assert [sources[i] for i in order if i.startswith("own-")] == ["half = 23_040"]
    assert sources["answer-77-1"] == "kv_bytes = 2 * half"


def test_two_different_answers_need_a_human(handed_in, release):
    copy_of(handed_in, "answer-77-1", source="kv_bytes = 1")
    with pytest.raises(Unusable, match="duplicated: answer-77-1 stands 2 times, with 2 different answers"):
        mended(handed_in, release)


MALFORMED = [
    lambda n: n["cells"][4]["metadata"].update(nbgrader=None),
    lambda n: n["cells"][4].update(metadata=[]),
    lambda n: n["cells"][4]["metadata"]["nbgrader"].update(grade_id=["answer-77-1"]),
    lambda n: n["cells"][4].update(metadata=None, id="answer-77-1"),
    lambda n: n["cells"].extend([None, 3, "text", [], {}]),
    lambda n: n["cells"].append({"cell_type": "code", "source": "x = '\ud800'"}),
    lambda n: n["cells"].append({"cell_type": 7, "source": {"a": 1}, "metadata": {"tags": "measure"}}),
    lambda n: n["cells"].append({"cell_type": "code", "source": ["a = 1\n", None, 3]}),
    lambda n: n.update(metadata=[], nbformat="four"),
]


@pytest.mark.parametrize("change", MALFORMED)
def test_what_is_malformed_around_the_answers_does_not_matter(handed_in, release, change):
    change(handed_in)
    repaired, _ = repair(json.dumps(handed_in).encode(), release)
    json.dumps(repaired, ensure_ascii=False).encode()
    assert [c["id"] for c in repaired["cells"] if c["id"] in ORDER] == ORDER


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "cannot be read"),
        (b"{not json", "cannot be read"),
        (b"\xff\x00\x01", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[]", "JSON without a list of cells"),
        (b'{"cells": 7}', "JSON without a list of cells"),
        (b'{"cells": []}', "none of its cells"),
        (b'{"cells": [{"cell_type": "code", "source": "pass"}]}', "none of its cells"),
        (b'{"worksheets": [3]}', "none of its cells"),
    ],
)
def test_what_is_no_notebook_of_this_unit_needs_a_human(release, content, why):
    with pytest.raises(Unusable, match=why):
        repair(content, release)


def test_bound_names():
    assert bound("import a.b as c\n%time\nx, y = 1, 2\ndef f(): z = 1\n!ls") == {"c", "x", "y", "f"}
    assert bound("x = ") == set() and bound("\0") == set()
