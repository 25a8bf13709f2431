"""What a figure shows, in words, for those who do not see it: told from what is drawn when it is shown."""

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from helpers.friendly import shell
from helpers.numbers import pretty


def use() -> None:
    """Every figure that this notebook shows from now on has its text; no effect outside of a notebook."""
    if (notebook := shell()) is not None:
        add_to(notebook.display_formatter)


def add_to(formatter) -> None:
    """Have IPython's `formatter` (a DisplayFormatter) put the text of a figure beside its picture."""
    formatter.mimebundle_formatter.for_type(Figure, lambda figure: ({}, {"image/png": {"alt": text(figure)}}))


def text(figure: Figure) -> str:
    """The figure's own label, as `helpers.drawings` gives it; else of each of its axes title, labels and series."""
    return figure.get_label() or " ".join(_told(ax) for ax in figure.axes if ax.get_label() != "<colorbar>")


def _told(ax: Axes) -> str:
    title = ax.get_title(loc="left") or ax.get_title()
    scales = " over ".join(filter(None, (ax.get_ylabel(), ax.get_xlabel())))
    series = "; ".join(f"{label}: {values}" if label else values for label, values in _series(ax))
    return ". ".join(part.rstrip(".") for part in (title, scales, series) if part) + "."


def _series(ax: Axes) -> Iterator[tuple[str, str]]:
    """(label, or "", and values) of the lines, bars and maps that hold data; guide lines have no label."""
    for drawn in ax.containers:
        if isinstance(drawn, BarContainer):
            axis = ax.yaxis if drawn.orientation == "horizontal" else ax.xaxis
            names = [name.get_text().replace("\n", " ") for name in axis.get_ticklabels()]
            named = len(names) == len(drawn.datavalues)
            bars = zip(names, drawn.datavalues, strict=True) if named else ()
            yield _name(drawn), ", ".join(f"{name} {pretty(v, 3)}" for name, v in bars) or _range(drawn.datavalues)
        elif isinstance(drawn, ErrorbarContainer) and drawn.lines[0] is not None:
            yield _name(drawn), _range(drawn.lines[0].get_ydata())
    for line in ax.get_lines():
        if _name(line):
            yield _name(line), _range(line.get_ydata())
    for image in ax.images:
        yield image.colorbar.ax.get_ylabel() if image.colorbar else "", _range(image.get_array())


def _name(drawn) -> str:
    label = str(drawn.get_label())
    return "" if label.startswith("_") else label


def _range(values) -> str:
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    if not values.size:
        return "nothing"
    low, high = pretty(float(values.min()), 3), pretty(float(values.max()), 3)
    return low if low == high else f"{low} to {high}"
