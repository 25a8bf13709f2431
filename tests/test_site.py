"""What `make site` takes from a unit: outputs as a page can show them, and text cut into slides."""

import json

import pytest

from tools.site import pages, slides
from tools.units import find


def printed(text):
    return {"output_type": "stream", "name": "stdout", "text": text}


def test_bars_widgets_and_colours_do_not_reach_a_page():
    widget = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "FloatProgress()"}
    cell = {
        "outputs": [
            printed("before\n"),
            *map(printed, ["\rweights:  10 %|##   | 00:01", "\rweights: 100 %|#####| 00:09", "\r      "]),
            *map(printed, ["\rall:  20%|##   | 1/5", "\n\rone: 100 %|#####| 00:02", "\x1b[A\rall: 100%|#####| 5/5\n"]),
            printed(["\r\x1b[32mafter", "\x1b[0m\n"]),
            {"output_type": "display_data", "data": widget, "metadata": {}},
            {"output_type": "execute_result", "data": {"text/html": "<table>", "text/plain": "t"}, "metadata": {}},
        ]
    }
    first, second = pages.outputs(cell)
    assert first["text"] == "before\nafter\n"
    assert second["data"] == {"text/html": "<table>"}


def test_a_picture_has_its_own_words_and_several_their_heading():
    drawn = {"data": {"image/png": ""}, "metadata": {"image/png": {"alt": "TPOT (ms) over turn."}}}
    for shown, said in (([drawn], "TPOT (ms) over turn."), ([drawn, drawn], "Figure below “Explain”")):
        assert pages._look("measure", "Explain", [printed("1"), *shown])["mystnb"]["image"]["alt"] == said


@pytest.fixture(scope="module", params=find(), ids=lambda unit: unit.number)
def unit(request, tmp_path_factory):
    """A unit whose solution, as far as the files say, has run."""
    unit = request.param
    folder = tmp_path_factory.mktemp("course")
    for path in (unit.release, unit.solution):
        target = folder / path.relative_to(unit.root)
        target.parent.mkdir(parents=True)
        target.write_bytes(path.read_bytes())
    ran = folder / "build" / "executed" / unit.name / unit.solution.name
    ran.parent.mkdir(parents=True)
    ran.write_bytes(unit.solution.read_bytes())
    return type(unit)(folder, unit.name)


def test_a_page_shows_the_learners_cells_and_folds_every_answer(unit):
    release = json.loads(unit.release.read_text(encoding="utf-8"))["cells"]
    shown = pages.page(unit)["cells"]
    ids = [cell["id"] for cell in shown]
    # The cell that fetches the course has no business there.
    kept = [cell["id"] for cell in release if cell["id"] != f"{unit.name}-fetch"]
    assert len(kept) == len(release) - 1 and f"{unit.name}-fetch" not in ids
    assert kept == [identity for identity in ids if identity in kept]
    asked = [identity for identity in ids if identity.startswith("answer-")]
    assert asked
    for identity in asked:
        help_below = shown[ids.index(identity) + 1]
        assert help_below["id"] == identity.replace("answer", "help")
        assert help_below["source"].count("<details") == help_below["source"].count("</details>") >= 1
    for cell in shown:
        assert "HIDDEN TESTS" not in cell["source"] and "BEGIN SOLUTION" not in cell["source"]


def test_a_solution_that_changed_has_to_run_again(unit):
    assert pages.is_current(unit)
    changed = json.loads(unit.solution.read_text(encoding="utf-8"))
    changed["cells"][-1]["source"] = ["something else"]
    before = unit.solution.read_bytes()
    unit.solution.write_text(json.dumps(changed), encoding="utf-8")
    assert not pages.is_current(unit)
    unit.solution.write_bytes(before)


def test_slides_keep_every_heading_and_word_of_a_text_in_order():
    words, table = "Some words,\non two lines.", "| a | b |\n|---|---|\n| 1 | 2 |"
    code = "```python\n# no heading\n\nx = 1\n```"
    text = f"# A title\n{words}\n\n{table}\n\n## Next\n{code}"
    assert slides.sections(text) == [("A title", [words, table]), ("Next", [code])]
    long = [f"{number} " + "word " * 100 for number in range(9)]
    cut = slides.paged(long)
    assert [block for slide in cut for block in slide] == long
    assert all(sum(map(slides.height, slide)) <= slides.ROOM for slide in cut)
    assert slides.paged(["one\n" * 100]) == [["one\n" * 100]]
