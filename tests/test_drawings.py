"""Pictures of mechanisms hold what they were given, and say it in words."""

import matplotlib
import pytest

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

from helpers import drawings


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_boxes_stand_in_rows_with_their_text_and_colour():
    rows = {"before": [("0", "sink"), ("4", "window"), ("", drawings.EMPTY)], "after": [("0", "sink")]}
    ax = drawings.boxes(rows, {"sink": "stays", "window": "the newest"}, title="Rows", columns="row")
    assert [text.get_text() for text in ax.texts] == ["0", "4", "", "0"]
    faces = [patch.get_facecolor() for patch in ax.patches if isinstance(patch, Rectangle)]
    assert faces[0] == faces[3] != faces[1] and faces[2][:3] == (1, 1, 1)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["stays", "the newest"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["before", "after"]
    assert ax.figure.get_label() == "Rows. before: 0 stays, 4 the newest, empty; after: 0 stays"


def test_bars_are_as_long_as_their_bytes():
    ax = drawings.step_bytes({"short": {"weights": 3e9}, "long": {"weights": 3e9, "keys": 1e9}}, title="A step")
    assert [round(bar.get_width(), 3) for bar in ax.patches] == [0.75, 0.75, 0, 0.25]
    assert [text.get_text() for text in ax.texts] == ["3 GB", "4 GB"]
    assert ax.figure.get_label() == "A step. short: weights 3 GB; long: weights 3 GB, keys 1 GB"


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="no row"):
        drawings.boxes({}, title="x")
    with pytest.raises(ValueError, match="does not name: \\['odd'\\]"):
        drawings.boxes({"a": [("1", "odd")]}, {"even": "even"}, title="x")
    with pytest.raises(ValueError, match="reads anything"):
        drawings.step_bytes({"none": {"weights": 0}}, title="x")
