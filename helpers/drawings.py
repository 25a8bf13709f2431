"""Mechanisms, drawn from the objects themselves: boxes in rows, and the bytes that a step reads.

Each function shows its picture at once, with a text in its place for those who do not see it, and returns the
axes. Styles are those of `helpers.plots`.
"""

import sys
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle

from helpers import plots
from helpers.friendly import shell
from helpers.numbers import prefixed

EMPTY = ""  # the kind of a box that holds nothing


def boxes(
    rows: Mapping[str, Sequence[tuple[str, object]]],
    kinds: Mapping[object, str] | None = None,
    *,
    title: str,
    columns: str = "",
) -> Axes:
    """Rows of boxes, the first row on top: what lies where, or when.

    Args:
        rows: {label: [(text, kind) for each box]}; a box of kind EMPTY is drawn without colour.
        kinds: {kind: what the legend says of it}, coloured in this order; None colours each kind, without a legend.
        columns: what the boxes of a row are, from left to right; their numbers stand below.

    Raises:
        ValueError: no row, or a box of a kind that is not in `kinds`.
    """
    if not rows:
        raise ValueError("no row to draw")
    seen = dict.fromkeys(kind for row in rows.values() for _, kind in row if kind != EMPTY)
    if kinds is not None and (unknown := set(seen) - set(kinds)):
        raise ValueError(f"boxes of a kind that `kinds` does not name: {sorted(map(str, unknown))}")
    colours = {kind: _pale(i) for i, kind in enumerate(seen if kinds is None else kinds)}
    most = max(map(len, rows.values()))
    wide = 2.2 + 0.07 * max(map(len, rows)) + 0.55 * most  # inches: legend, row labels, boxes
    _, ax = plt.subplots(figsize=(min(10.5, wide), 1.1 + 0.42 * len(rows)))
    for line, row in enumerate(rows.values()):
        for place, (text, kind) in enumerate(row):
            face = "white" if kind == EMPTY else colours[kind]
            ax.add_patch(Rectangle((place + 0.04, line + 0.08), 0.92, 0.84, facecolor=face, edgecolor=plots.GREY))
            ax.text(place + 0.5, line + 0.5, text, ha="center", va="center", fontsize=8.5, color="black")
    ax.set(xlim=(0, most), ylim=(len(rows), 0), xlabel=columns, title=title)
    ax.set_yticks([line + 0.5 for line in range(len(rows))], list(rows))
    step = max(1, most // 16)
    ax.set_xticks([place + 0.5 for place in range(0, most, step)], range(0, most, step) if columns else [])
    _bare(ax)
    if kinds:
        patches = [Patch(facecolor=colours[kind], edgecolor=plots.GREY, label=text) for kind, text in kinds.items()]
        ax.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9)
    named = {EMPTY: "empty"} | dict(kinds or {})
    lines = [
        f"{label}: " + ", ".join(f"{text} {named.get(kind, '')}".strip() for text, kind in row)
        for label, row in rows.items()
    ]
    return _shown(ax, f"{title}. " + "; ".join(lines))


def step_bytes(steps: Mapping[str, Mapping[str, float]], *, title: str) -> Axes:
    """What one decode step reads, a bar for each step and a piece for each part of it.

    Args:
        steps: {label: {part, such as "weights", "keys", "values" or "scales": bytes}}.

    Raises:
        ValueError: no step, or none that reads anything.
    """
    totals = [sum(parts.values()) for parts in steps.values()]
    if not totals or max(totals) <= 0:
        raise ValueError("no step that reads anything")
    names = list(dict.fromkeys(name for parts in steps.values() for name in parts))
    _, ax = plt.subplots(figsize=(8, 1.3 + 0.42 * len(steps)))
    places, left = range(len(steps)), [0.0] * len(steps)
    for i, name in enumerate(names):
        widths = [parts.get(name, 0.0) / max(totals) for parts in steps.values()]
        ax.barh(places, widths, 0.7, left=left, color=plots.COLOURS[i], hatch=plots.HATCHES[i], label=name,
                edgecolor="white")  # fmt: skip
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for place, end, total in zip(places, left, totals, strict=True):
        ax.annotate(prefixed(total, "B"), (end, place), xytext=(4, 0), textcoords="offset points", va="center",
                    fontsize=9)  # fmt: skip
    ax.set(xlim=(0, 1.18), ylim=(len(steps) - 0.4, -0.6), title=title)
    ax.set_yticks(places, list(steps))
    ax.set_xticks([])
    _bare(ax)
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9)
    lines = [
        f"{label}: " + ", ".join(f"{name} {prefixed(size, 'B')}" for name, size in parts.items())
        for label, parts in steps.items()
    ]
    return _shown(ax, f"{title}. " + "; ".join(lines))


def _pale(i: int) -> tuple[float, ...]:
    """A colour of the course, light enough for black text."""
    return tuple(1 - 0.45 * (1 - part) for part in to_rgb(plots.COLOURS[i % len(plots.COLOURS)]))


def _bare(ax: Axes) -> None:
    ax.grid(visible=False)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _shown(ax: Axes, text: str) -> Axes:
    """Show the figure with `text` as its alternative text, where there is a notebook to show it in."""
    ax.figure.set_label(text)
    if shell() is not None:
        sys.modules["IPython"].display.display(ax.figure, metadata={"image/png": {"alt": text}})
        plt.close(ax.figure)
    return ax
