"""The form of a unit: an early first blank, short or folded cells, and cells that can be run again."""

import itertools
import re

import pytest

from tests.rerun import folded, names_by_cell
from tools import exercises
from tools.source import kind, solution_notebook, text
from tools.units import CourseError, find

UNITS = {unit.number: unit for unit in find()}
OLDER = {"00", "01", "02", "03", "04", "06", "08"}  # they set some names twice, and say otherwise what is drawn
IN_A_ROW = {"04", "06", "08"}  # folded cells follow others


@pytest.fixture(params=UNITS)
def number(request):
    return request.param


@pytest.fixture
def cells(number):
    return solution_notebook(UNITS[number])["cells"]


@pytest.fixture
def code(cells):
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_movements_come_in_their_order(cells):
    headings = re.findall(r"(?m)^## (.+)$", "\n".join(text(c) for c in cells if c["cell_type"] == "markdown"))
    assert headings[:4] == ["The question", "Predict", "Build", "Measure"]


def test_learner_meets_the_first_blank_early(cells, code):
    assert [kind(cell) for cell in cells].index("answer") <= 6
    lengths = sorted(len(text(cell).splitlines()) for cell in code)
    assert lengths[len(lengths) // 2] <= 16


def test_what_measures_is_short_or_folded_under_a_line_that_says_what_it_draws(number, cells):
    for before, cell in itertools.pairwise(cells):
        if folded(cell):
            assert number in IN_A_ROW or before["cell_type"] == "markdown", text(cell)
            assert number in OLDER or text(before).splitlines()[-1].startswith("The folded cell draws"), text(before)
        elif kind(cell) == "measure" and not text(cell).startswith("cases = {"):  # a table, in 08
            lines = text(cell).splitlines()
            assert len(lines) <= 22 and len([*filter(str.strip, lines)]) <= 15, text(cell)


def test_cells_can_be_run_again_in_any_order(number, code):
    """A name that one cell reads and does not itself set first is set by one cell only."""
    set_by, read_by = names_by_cell(code)
    twice = {name for name in read_by if len(set_by.get(name, [])) > 1}
    assert number in OLDER or not twice - {"check"}, twice  # each test cell imports the checker anew
    assert set(read_by) <= set(set_by), set(read_by) - set(set_by)


def test_an_exercise_whose_text_does_not_name_it_and_its_minutes_is_told_so(cells):
    name = next(iter(exercises.graded(cells)))
    silent = [cell for cell in cells if kind(cell) != "text"]
    with pytest.raises(CourseError, match=rf"{name}: a text above its answer has to say"):
        exercises.question(silent, name)
