"""A learner's first half hour in JupyterLab: their own curve, a wrong answer, a hint, the right one, and points."""

import time

from tests.browser.lab import Notebook
from tools import score
from tools.units import ROOT, find

UNIT = find()[0]


def test_from_the_first_page_to_points(lab, open_tab, tmp_path, shots):
    tab = open_tab(viewport={"width": 1280, "height": 900})
    first = Notebook(tab.page, lab, "START.ipynb")
    assert not tab.page.locator(".jp-Dialog").count(), "a question stands before the first page"
    progress = next(name for name in first.index if "course.progress" in first.source(name))
    assert "0 of" in first.run(progress)

    begin = time.monotonic()
    unit = Notebook(tab.page, lab, f"{UNIT.name}/{UNIT.name}.ipynb")
    assert not tab.page.locator(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty").count(), "opening it has changed it"
    curve = next(name for name in unit.index if "decode_sweep" in unit.source(name))
    for name, place in unit.index.items():
        if place <= unit.index[curve] and unit.shows_code(name):
            unit.run(name, seconds=300)
    drawn = unit.cell(curve).locator("img").first
    drawn.wait_for()
    print(f"\nfrom opening the unit to a curve of this machine: {time.monotonic() - begin:.0f} s")
    drawn.scroll_into_view_if_needed()
    shots(tab.page, "lab-curve")

    unit.write("answer-00-1", "floor_ms = {'decode': 15.01 / 3350 * 1e3 + 0.015, 'prompt': 18.6}")
    unit.run("answer-00-1")
    said = unit.run("test-00-1")
    assert "✗ 00.1" in said and "You added the two" in said
    assert "Traceback" not in said
    shots(tab.page, "lab-wrong-answer")
    unit.insert_below("test-00-1", "help", "check.hint('00.1')")
    assert "Hint 1 of" in unit.run("help")

    unit.write("answer-00-1", "floor_ms = {'decode': 15.01 / 3350 * 1e3, 'prompt': 13.96e12 / 989.5e12 * 1e3}")
    unit.run("answer-00-1")
    assert "✓ 00.1" in unit.run("test-00-1")
    unit.save()
    (graded,) = score.score(ROOT, lab.work, [UNIT.number], tmp_path)
    points = {exercise.id: exercise.points for exercise in graded.exercises}
    assert points.pop("00.1") == 2
    assert set(points.values()) == {0}
    assert not tab.problems
