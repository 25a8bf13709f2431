"""The form of a unit: an early first blank, short or folded cells, and cells that can be run again."""

import pytest

from tests.rerun import folded, names_by_cell
from tools import exercises
from tools.source import kind, solution_notebook, text
from tools.units import CourseError, find

OWN = {"00", "01", "02", "03", "04", "06", "08"}  # which are held to a form of their own in tests/test_unit_NN.py
UNITS = {unit.number: unit for unit in find() if unit.number not in OWN}


@pytest.fixture(params=UNITS)
def cells(request):
    return solution_notebook(UNITS[request.param])["cells"]


@pytest.fixture
def code(cells):
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_learner_meets_the_first_blank_early(cells, code):
    assert [kind(cell) for cell in cells].index("answer") <= 6
    lengths = sorted(len(text(cell).splitlines()) for cell in code)
    assert lengths[len(lengths) // 2] <= 16


def test_what_measures_is_short_or_folded_under_a_line_that_says_what_it_draws(cells):
    for before, cell in zip(cells, cells[1:], strict=False):
        if folded(cell):
            assert text(before).splitlines()[-1].startswith("The folded cell draws"), text(before)
        elif kind(cell) == "measure":
            lines = text(cell).splitlines()
            assert len(lines) <= 22 and len([*filter(str.strip, lines)]) <= 15, text(cell)


def test_cells_can_be_run_again_in_any_order(code):
    """A name that one cell reads and does not itself set first is set by one cell only."""
    set_by, read_by = names_by_cell(code)
    twice = {name: set_by[name] for name in read_by if len(set_by.get(name, [])) > 1}
    assert not set(twice) - {"check"}, twice  # each test cell imports the checker anew
    assert set(read_by) <= set(set_by), set(read_by) - set(set_by)


def test_an_exercise_whose_text_does_not_name_it_and_its_minutes_is_told_so(cells):
    name = next(iter(exercises.graded(cells)))
    silent = [cell for cell in cells if kind(cell) != "text"]
    with pytest.raises(CourseError, match=rf"{name}: a text above its answer has to say"):
        exercises.question(silent, name)
