"""The map of the units as a picture: JupyterLab draws START.ipynb's Mermaid itself, a page in a folder cannot."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

from helpers import course, plots

MERMAID = re.compile(r"```mermaid\n.*?```", re.DOTALL)


def drawn(markdown: str, folder: Path) -> str:
    """`markdown` with its map as a picture, which is written into `folder`."""
    if not MERMAID.search(markdown):
        return markdown
    draw(folder / "map.svg")
    uses = "; ".join(f"{unit.number} uses {', '.join(unit.needs)}" for unit in course.units() if unit.needs)
    return MERMAID.sub(f"![The units and what each builds on: {uses}](map.svg)", markdown)


def draw(path: Path) -> None:
    """Units from left to right, each in the column after the last that it needs, with arrows between them."""
    columns: dict[str, int] = {}
    for unit in course.units():
        columns[unit.number] = 1 + max((columns[needed] for needed in unit.needs), default=-1)
    members = {column: [n for n, c in columns.items() if c == column] for column in sorted(set(columns.values()))}
    places = {n: (c, (len(members[c]) - 1) / 2 - members[c].index(n)) for n, c in columns.items()}
    across, high = len(members), max(map(len, members.values()))
    figure, ax = plt.subplots(figsize=(2.4 * across, 0.75 * high + 0.4))
    for unit in course.units():
        x, y = places[unit.number]
        label = f"{unit.number} {unit.title}\n{unit.minutes} min"
        box = FancyBboxPatch((x - 0.36, y - 0.24), 0.72, 0.48, "round,pad=0.03", fc="white", ec=plots.BLUE, zorder=2)
        ax.add_patch(box)
        ax.text(x, y, label, ha="center", va="center", fontsize=8, zorder=3)
        for needed in unit.needs:
            begin = places[needed][0] + 0.4, places[needed][1]
            arrow = {"arrowstyle": "->", "color": plots.GREY, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", (x - 0.4, y), begin, arrowprops=arrow, zorder=1)
    ax.set(xlim=(-0.5, across - 0.5), ylim=(-high / 2, high / 2))
    ax.axis("off")
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)
