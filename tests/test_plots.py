"""Every figure says its units, draws what it was given, and reads without colour."""

import re
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from IPython.core.formatters import DisplayFormatter

from helpers import alt_text, plots
from helpers.estimates import Estimate

CARD = SimpleNamespace(
    name="a card", read_bytes_per_second=50e9, matmul_flops_per_second={"float32": 200e9, "bfloat16": 400e9}
)


@pytest.fixture(autouse=True)
def figure():
    with plt.rc_context():
        plots.use()
        yield
    plt.close("all")


def test_prediction_draws_points_over_the_line_and_names_the_residual():
    ax = plots.prediction(
        None,
        [1, 2, 4],
        [10, 20, 40],
        [11, 20, 52],
        [1, 1, 2],
        xlabel="context (tokens)",
        ylabel="TPOT (ms)",
        label="batch 1",
    )
    line = ax.get_lines()[0]
    assert line.get_ydata().tolist() == [10, 20, 40]
    assert [text.get_text() for text in ax.texts] == ["+30 %"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "predicted, batch 1",
        "measured, batch 1",
    ]
    assert ax.get_ylim()[0] == 0


@pytest.mark.parametrize("ylog", [False, True])
def test_an_error_bar_that_leaves_the_picture_is_cut_with_an_arrow(ylog):
    """The last point's bar would be twenty times as high as the curve."""
    ax = plots.prediction(
        None, [1, 2, 4], [10, 20, 40], [11, 21, 42], [1, 1, 800], xlabel="x (tokens)", ylabel="y (ms)", ylog=ylog
    )
    top = {False: 63, True: 168}[ylog]
    assert ax.get_ylim()[1] < 1.5 * top
    arrows = {line.get_marker(): line.get_data() for line in ax.get_lines() if line.get_marker() in ("^", "v")}
    assert [values.tolist() for values in arrows["^"]] == [[4], [top]]
    assert ("v" in arrows) is True and arrows["v"][0].tolist() == [4]
    bars = ax.containers[0].lines[2][0].get_segments()
    assert bars[0][:, 1].tolist() == [10, 12] and bars[2][1, 1] == top


def test_bars_that_stay_are_left_alone():
    ax = plots.curve(None, [1, 2], {"a": [10, 20]}, spread={"a": [1, np.nan]}, xlabel="x (tokens)", ylabel="y (ms)")
    assert not [line for line in ax.get_lines() if line.get_marker() in ("^", "v")]


def test_prediction_with_a_point_missing():
    ax = plots.prediction(None, [1, 2], [10, 20], [np.nan, 18], xlabel="x (tokens)", ylabel="y (ms)")
    assert [text.get_text() for text in ax.texts] == ["-10 %"]


def test_curve_series_differ_without_colour():
    ax = plots.curve(None, [1, 2, 4], {"a": [1, 2, 3], "b": [2, 3, 4]}, xlabel="x (tokens)", ylabel="y (ms)", xlog=True)
    styles = [(line.get_marker(), line.get_linestyle()) for line in ax.get_lines() if line.get_marker() in "os"]
    assert len(set(styles)) == 2
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "4"]


def test_roofline_bends_at_the_ridge():
    ax = plots.roofline(None, CARD, {"decode": (0.5, 20e9), "prefill": (100, 150e9)})
    x, y = ax.get_lines()[0].get_data()
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert y.max() == pytest.approx(200) and y[0] == pytest.approx(x[0] * 50)
    assert any("ridge 4 FLOP/byte" in text.get_text() for text in ax.texts)
    assert plots.roofline(None, CARD, {}, dtype="bfloat16").get_lines()[0].get_ydata().max() == pytest.approx(400)


def test_bars_beside_and_stacked():
    ax = plots.bars(None, ["1k", "8k"], {"prefill": [1, 2], "decode": [3, 4]}, ylabel="time (s)", stacked=True)
    assert [text.get_text() for text in ax.texts] == ["4", "6"]
    ax = plots.bars(None, ["1k", "8k"], [1, 2], ylabel="time (s)", spread=[0.1, 0.1])
    assert sorted(patch.get_height() for patch in ax.patches) == [1, 2]


def test_log_axes_have_plain_numbers():
    ax = plots.bars(None, ["1", "2"], [3_360, 9.5], ylabel="perplexity (1)", ylog=True)
    assert {"10", "1,000", "2,000"} < {label.get_text() for label in ax.get_yticklabels()}
    ax = plots.calibration([Estimate("02.a", "ms", 0.2, 0.3), Estimate("06.b", "tokens", 4e5, 3e5)])
    for axis in (ax.xaxis, ax.yaxis):
        said = [label.get_text() for label in axis.get_ticklabels()]
        assert {"1", "10,000"} < {*said} and len(said) < 9, said


def test_heat_writes_every_value():
    ax = plots.heat(
        None,
        [[1, 2], [3, 4]],
        ["1", "4"],
        ["16", "8k"],
        xlabel="context (tokens)",
        ylabel="batch (1)",
        unit="TPOT (ms)",
    )
    assert alt_text.text(ax.figure) == "batch over context (tokens). TPOT (ms): 1 to 4."
    assert [text.get_text() for text in ax.texts] == ["1", "2", "3", "4"]


def test_functions_draw_on_the_axes_they_are_given():
    _, ax = plt.subplots()
    assert plots.curve(ax, [1], {"a": [1]}, xlabel="x (s)", ylabel="y (s)") is ax


@pytest.mark.parametrize("labels", [{"xlabel": "context", "ylabel": "TPOT (ms)"}, {"xlabel": "x (s)", "ylabel": ""}])
def test_a_label_without_unit_is_refused(labels):
    with pytest.raises(ValueError, match="state its unit"):
        plots.curve(None, [1], {"a": [1]}, **labels)


def test_a_figure_that_is_shown_has_its_text():
    formatter = DisplayFormatter()
    alt_text.add_to(formatter)
    _, (left, right) = plt.subplots(1, 2)
    labels = dict(xlabel="turn (1)", ylabel="TPOT (ms)")
    plots.prediction(left, [1, 2], [10, 20], [11, np.nan], [1, 1], title="A day", label="batch 1", **labels)
    left.axhline(12)
    plots.bars(right, ["H100\n80 GB", "L4"], [1, 2], ylabel="time (s)", spread=[0.1, 0.1])
    said = formatter.format(left.figure)[1]["image/png"]["alt"]
    assert said.startswith("A day. TPOT (ms) over turn. ") and "predicted, batch 1: 10 to 20" in said
    assert "measured, batch 1: 11" in said and said.endswith(" time (s). H100 80 GB 1, L4 2.")


def test_colours_differ_in_grey():
    def lightness(colour):
        r, g, b = (int(part, 16) / 255 for part in re.findall("..", colour[1:]))
        return 0.2126 * r**2.2 + 0.7152 * g**2.2 + 0.0722 * b**2.2

    first = [lightness(colour) for colour in plots.COLOURS[:3]]
    assert min(abs(a - b) for i, a in enumerate(first) for b in first[:i]) > 0.09


def test_calibration_marks_what_lies_outside_and_what_was_busy():
    ax = plots.calibration(
        [
            Estimate("02.a", "ms", 10.0, 11.0),
            Estimate("02.b", "ms", 10.0, 30.0, verdict="busy"),
            Estimate("06.c", "%", None, 3.0),
            Estimate("07.d", "ms", 5.0, 5.0),
        ]
    )
    assert "2 of 3 predictions" in ax.get_title(loc="left")
    hollow = [line for line in ax.get_lines() if line.get_markerfacecolor() == "none" and len(line.get_xdata())]
    assert len(hollow) == 1 and list(hollow[0].get_ydata()) == [30.0]
    assert "Nothing to compare yet" in plots.calibration([]).get_title(loc="left")


def test_error_bars_may_differ_below_and_above():
    ax = plots.prediction(None, [1, 2], [5.0, 5], [5.0, 6], [[1.0, 1], [2.0, 3]], xlabel="x (tokens)", ylabel="y (ms)")
    (bars,) = [c for c in ax.containers if c.has_yerr]
    ends = [segment[:, 1].tolist() for segment in bars.lines[2][0].get_segments()]
    assert ends == [[4.0, 7.0], [5.0, 9.0]]
