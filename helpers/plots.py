"""Every figure of the course, in one style.

Colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), told apart by the colour-blind; each series
also has its own marker and line style, so that a grey print still reads. Every axis label states its unit in
parentheses, "context (tokens)"; a label without one is a ValueError. What has no unit, a count or a ratio, is
given as "turn (1)", and drawn as "turn". Each function draws on `ax` (a new figure when None) and returns it.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from helpers import alt_text
from helpers.numbers import prefixed

BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#666666",
)  # fmt: skip
# Ordered so that neighbours also differ in lightness.
COLOURS = [BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, GREY]
_MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]  # one more than colours: a long cycle still differs
_LINES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1))]
HATCHES = ["", "///", "...", "xx", "\\\\\\", "++"]


def use() -> None:
    """Set the course's style for every figure that follows, and give each its text for those who do not see it."""
    alt_text.use()
    plt.rcParams.update(
        {
            "figure.figsize": (7.2, 4.2),
            "figure.dpi": 110,
            "figure.constrained_layout.use": True,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 11.5,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.7,
            "font.size": 10.5,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
            "lines.markersize": 5.5,
            "hatch.linewidth": 0.6,
        }
    )


def curve(
    ax: Axes | None,
    x,
    series,
    *,
    xlabel: str,
    ylabel: str,
    spread: Mapping | None = None,
    title: str = "",
    xlog: bool = False,
    ylog: bool = False,
    zero: bool = True,
) -> Axes:
    """Lines with markers, one for each entry of `series` ({label: y values over x}).

    `spread` holds half-widths of the error bars under the same labels. `zero` starts a linear y axis at 0, so
    that a small change does not look large. A bar far beyond all points is cut, with an arrow.
    """
    ax = _axes(ax, xlabel, ylabel, title)
    room = _room(list(series.values()), ylog)
    for i, (label, y) in enumerate(series.items()):
        _errorbar(
            ax,
            x,
            y,
            (spread or {}).get(label),
            room,
            color=_pick(COLOURS, i),
            marker=_pick(_MARKERS, i),
            linestyle=_pick(_LINES, i),
            capsize=3,
            label=label,
        )
    _scales(ax, x, xlog, ylog, zero)
    _legend(ax)
    return ax


def prediction(
    ax: Axes | None,
    x,
    predicted,
    measured,
    spread=None,
    *,
    xlabel: str,
    ylabel: str,
    label: str = "",
    title: str = "",
    xlog: bool = False,
    ylog: bool = False,
    series: int = 0,
) -> Axes:
    """A predicted line, the measured points over it, and the residual between them shaded.

    `x`, `predicted`, `measured` and `spread` (half-width of the error bars, or two rows: below and above) have one
    entry a point; a point that was not measured is NaN. An error bar far beyond all points is cut, with an arrow. The
    largest residual is written beside its point, in % of the prediction. `series` picks colour and marker where several
    pairs share one Axes.
    """
    ax = _axes(ax, xlabel, ylabel, title)
    x, predicted, measured = (np.asarray(values, dtype=float) for values in (x, predicted, measured))
    colour, name = _pick(COLOURS, series), f", {label}" if label else ""
    ax.plot(x, predicted, color=colour, linestyle="--", label=f"predicted{name}")
    _errorbar(
        ax,
        x,
        measured,
        spread,
        _room([predicted, measured], ylog),
        color=colour,
        marker=_pick(_MARKERS, series),
        linestyle="none",
        capsize=3,
        label=f"measured{name}",
    )
    ax.fill_between(x, predicted, measured, color=colour, alpha=0.15, linewidth=0)
    gap = measured / predicted - 1
    if np.isfinite(gap).any():
        worst = int(np.nanargmax(np.abs(gap)))
        right = x[worst] > np.median(x)
        ax.annotate(
            f"{round(100 * float(gap[worst])):+d} %",  # an int: a float would print "-0"
            (x[worst], measured[worst]),
            textcoords="offset points",
            xytext=(-7 if right else 7, 7),
            ha="right" if right else "left",
            color=colour,
        )
    _scales(ax, x, xlog, ylog, zero=True)
    _legend(ax)
    return ax


def roofline(
    ax: Axes | None,
    card,
    points: Mapping[str, tuple[float, float]],
    *,
    dtype: str = "float32",
    title: str = "",
) -> Axes:
    """The device's roof, log-log, and `points` under it: {label: (intensity in FLOP/byte, rate in FLOP/s)}.

    `card` is a device card: `.read_bytes_per_second`, `.matmul_flops_per_second[dtype]`, `.name`. Left of the
    ridge bytes set the pace, right of it arithmetic does.
    """
    ax = _axes(ax, "arithmetic intensity (FLOP/byte)", "rate (GFLOP/s)", title or f"Roofline of {card.name}")
    bandwidth, peak = card.read_bytes_per_second, card.matmul_flops_per_second[dtype]
    ridge = peak / bandwidth
    xs = [x for x, _ in points.values()] + [ridge]
    x = np.geomspace(min(xs) / 4, max(xs) * 4, 200)
    ax.plot(x, np.minimum(x * bandwidth, peak) / 1e9, color="black", label=None)
    ax.axvline(ridge, color=GREY, linestyle=":", linewidth=1)
    bottom = min([y for _, y in points.values()] + [x[0] * bandwidth]) / 1e9 / 2
    ax.annotate(f" ridge {ridge:.3g} FLOP/byte", (ridge, bottom), color=GREY, va="bottom", fontsize=9)
    ax.annotate(
        prefixed(peak, "FLOP/s"),
        (x[-1], peak / 1e9),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    ax.annotate(
        prefixed(bandwidth, "B/s"),
        (np.sqrt(x[0] * ridge), np.sqrt(x[0] * ridge) * bandwidth / 1e9),
        xytext=(-6, 2),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    for i, (label, (intensity, rate)) in enumerate(points.items()):
        ax.plot(
            [intensity],
            [rate / 1e9],
            color=_pick(COLOURS, i),
            marker=_pick(_MARKERS, i),
            linestyle="none",
            markersize=8,
            label=label,
        )
    _log(ax, "x")
    _log(ax, "y")
    ax.set_ylim(bottom=bottom, top=peak / 1e9 * 3)
    if points:
        # Beside the axes: a point may lie anywhere under the roof.
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def bars(
    ax: Axes | None,
    labels: Sequence[str],
    series,
    *,
    ylabel: str,
    xlabel: str = "",
    spread=None,
    stacked: bool = False,
    title: str = "",
    form: str = "{:,.3g}",
    ylog: bool = False,
) -> Axes:
    """Bars over `labels`, beside or on top of each other, with their values written (`form`).

    `series` is a list of heights or {label: heights}; `spread` has half-widths of error bars likewise.
    """
    series = series if isinstance(series, Mapping) else {"": series}
    spread = spread if isinstance(spread, Mapping) else {"": spread}
    ax = _axes(ax, None, ylabel, title)
    ax.set_xlabel(xlabel)
    ax.grid(axis="x", visible=False)
    places, base = np.arange(len(labels)), np.zeros(len(labels))
    width = 0.65 if stacked else 0.8 / len(series)
    for i, (label, heights) in enumerate(series.items()):
        heights = np.asarray(heights, dtype=float)
        shift = 0 if stacked else (i - (len(series) - 1) / 2) * width
        drawn = ax.bar(
            places + shift,
            heights,
            width * 0.94,
            bottom=base if stacked else None,
            label=label or None,
            color=_pick(COLOURS, i),
            hatch=_pick(HATCHES, i),
            edgecolor="white",
            yerr=spread.get(label),
            capsize=3,
        )
        if stacked:
            base = base + heights
        else:
            ax.bar_label(drawn, [form.format(value) for value in heights], padding=2, fontsize=8.5)
    if stacked:
        for place, top in zip(places, base, strict=True):
            ax.annotate(
                form.format(top),
                (place, top),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
            )
    ax.set_xticks(places, labels)
    ax.margins(y=0.12 if len(series) == 1 else 0.25)  # room for the values, and for a legend
    ax.yaxis.set_major_formatter(FuncFormatter(_plain))
    if ylog:
        _log(ax, "y")
    _legend(ax)
    return ax


def calibration(estimates, ax: Axes | None = None, band: float = 1.5) -> Axes:
    """Predicted against measured, a point each of `helpers.estimates.calibration()`, both axes logarithmic.

    The line is "right", the shade a factor of `band` either way; what was measured on a busy machine is hollow. Units
    of measurement are left aside: only how far a point lies from the line means anything.
    """
    ax = _axes(ax, "predicted (in its own unit)", "measured (in the same)", "")
    points = [e for e in estimates if e.predicted and e.measured and e.predicted > 0 and e.measured > 0]
    if not points:
        ax.set_title("Nothing to compare yet: predictions made before their measurement appear here")
        return ax
    units = sorted({e.key.split(".")[0] for e in points})
    for i, unit in enumerate(units):
        for quiet in (True, False):
            chosen = [e for e in points if e.key.startswith(unit) and (e.verdict == "ok") is quiet]
            colour = _pick(COLOURS, i)
            ax.plot(
                [e.predicted for e in chosen],
                [e.measured for e in chosen],
                linestyle="none",
                marker=_pick(_MARKERS, i),
                color=colour,
                markerfacecolor=colour if quiet else "none",
                label=f"unit {unit}" if quiet else None,
            )
    ends = np.array(
        [min(min(e.predicted, e.measured) for e in points), max(max(e.predicted, e.measured) for e in points)]
    )
    ends = ends * [0.7, 1.4]
    ax.plot(ends, ends, color=GREY, linewidth=1)
    ax.fill_between(ends, ends / band, ends * band, color=GREY, alpha=0.15, linewidth=0)
    _log(ax, "x")
    _log(ax, "y")
    within = sum(1 / band <= e.ratio <= band for e in points)
    ax.set_title(f"{within} of {len(points)} predictions within a factor of {band:g}")
    _legend(ax)
    return ax


def heat(
    ax: Axes | None,
    values,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    xlabel: str,
    ylabel: str,
    unit: str,
    title: str = "",
    form: str = "{:.3g}",
) -> Axes:
    """A heat map of `values` [rows, columns], each written in its cell; `unit` labels the colour bar."""
    ax = _axes(ax, xlabel, ylabel, title)
    values = np.asarray(values, dtype=float)
    image = ax.imshow(values, cmap="cividis", aspect="auto")
    ax.grid(visible=False)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    for (row, column), value in np.ndenumerate(values):
        dark = image.norm(value) < 0.5
        ax.text(
            column,
            row,
            form.format(value),
            ha="center",
            va="center",
            fontsize=9,
            color="white" if dark else "black",
        )
    ax.figure.colorbar(image, ax=ax, label=unit)
    return ax


def _axes(ax: Axes | None, xlabel: str | None, ylabel: str, title: str) -> Axes:
    for label in (xlabel, ylabel):
        if label is not None and not ("(" in label and label.rstrip().endswith(")")):
            raise ValueError(f"the axis label {label!r} has to state its unit, as in 'context (tokens)' or 'turn (1)'")
    ax = ax if ax is not None else plt.subplots()[1]
    if xlabel is not None:
        ax.set_xlabel(xlabel.removesuffix(" (1)"))
    ax.set_ylabel(ylabel.removesuffix(" (1)"))
    if title:
        ax.set_title(title)
    return ax


def _room(series, ylog: bool) -> tuple[float, float]:
    """How far error bars may reach below and above all points before they would flatten the curves."""
    values = np.concatenate([np.ravel(np.asarray(y, dtype=float)) for y in series])
    values = values[np.isfinite(values)]
    if not values.size:
        return -np.inf, np.inf
    if ylog:
        return values.min() / 4, values.max() * 4
    return min(0.0, values.min() * 1.5), max(0.0, values.max() * 1.5)


def _errorbar(ax: Axes, x, y, spread, room: tuple[float, float], **style) -> None:
    """Points with error bars; what leaves `room` is cut there, and an arrow says so."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if spread is None:
        ax.errorbar(x, y, **style)
        return
    below, above = np.broadcast_to(np.abs(np.asarray(spread, dtype=float)), (2, *y.shape))
    cut_below, cut_above = y - below < room[0], y + above > room[1]
    below, above = np.where(cut_below, y - room[0], below), np.where(cut_above, room[1] - y, above)
    ax.errorbar(x, y, yerr=(below, above), **style)
    for cut, end, marker in ((cut_below, room[0], "v"), (cut_above, room[1], "^")):
        if cut.any():
            ax.plot(x[cut], np.full(cut.sum(), end), color=style.get("color"), marker=marker, linestyle="none")


def _scales(ax: Axes, x, xlog: bool, ylog: bool, zero: bool) -> None:
    """Log axes are marked at the points themselves, as plain numbers."""
    if xlog:
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(x))
        ax.xaxis.set_major_formatter(FuncFormatter(_plain))
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.xaxis.set_major_formatter(FuncFormatter(_plain))
    if ylog:
        _log(ax, "y")
        return
    ax.yaxis.set_major_formatter(FuncFormatter(_plain))
    if zero:
        ax.autoscale(axis="y")
        ax.set_ylim(bottom=0, auto=True)  # the next series on these axes may still raise the top


def _plain(value: float, _) -> str:
    """A tick as a plain number, 12,000."""
    return f"{value:,.6g}"


def _log(ax: Axes, which: str) -> None:
    """A log axis labelled with plain numbers, at 1, 2 and 5 where it spans four decades at most."""
    ax.set(**{f"{which}scale": "log"})
    axis = getattr(ax, f"{which}axis")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high <= 1e4 * low else LogLocator(numticks=6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def _legend(ax: Axes) -> None:
    if ax.get_legend_handles_labels()[1]:
        ax.legend()


def _pick(cycle: list, i: int):
    return cycle[i % len(cycle)]
