"""What the build puts around the units: START.ipynb, and the last two cells of each unit.

Both come from `helpers/data/course.json` and `glossary.json`, so that a time, a title or a word is said once.
"""

import json
import re
from pathlib import Path

import jupytext

from tools.units import CourseError, Unit

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
MARK = re.compile(r"<!-- (\w+) -->")


def notebook(cells: list[dict]) -> dict:
    """A notebook (nbformat 4.5, as plain JSON) of these cells."""
    return {
        "cells": cells,
        "metadata": {"kernelspec": dict(KERNELSPEC), "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def start(root: Path) -> dict | None:
    """START.ipynb from `solutions/START.py`; None for a course without one. `CourseError` for an unknown mark."""
    source = root / "solutions" / "START.py"
    if not source.exists():
        return None
    course, words = _data(root, "course.json"), _data(root, "glossary.json")
    parts = {
        "map": _map(course["units"]),
        "units": _units(course["units"]),
        "paths": _paths(course),
        "glossary": "\n".join(f"- **{w['term']}** ({w['unit']}). {w['text']}" for w in words),
    }

    def part(found: re.Match) -> str:
        if found[1] not in parts:
            raise CourseError(f"{source.name}: unknown mark {found[0]}; known: {', '.join(parts)}")
        return parts[found[1]]

    cells = []
    for number, cell in enumerate(jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent").cells):
        text = MARK.sub(part, cell.source) if cell.cell_type == "markdown" else cell.source
        cells.append(_cell(cell.cell_type, f"START-{number:02d}", text))
    return notebook(cells)


def ending(unit: Unit) -> list[dict]:
    """The last cells of a unit: where the learner stands, and the next unit; none for one that is not on the map."""
    course = _data(unit.root, "course.json")
    rows = course["units"] if course else []
    place = next((i for i, row in enumerate(rows) if row["name"] == unit.name), None)
    if place is None:
        return []
    onward = "[the map](../START.ipynb) shows what is still open"
    if place + 1 < len(rows):
        onward = f"**{_link(rows[place + 1], '../')}**, {rows[place + 1]['minutes']} minutes. [The map](../START.ipynb)"
    lines = f"## Where you stand\n\nThe points of this unit, as its tests last said. Next: {onward}."
    code = f'from helpers import course\n\ncourse.end("{unit.number}")'
    last = _cell("code", f"{unit.name}-end-2", code)
    last["metadata"]["tags"] = ["measure"]
    return [_cell("markdown", f"{unit.name}-end-1", lines), last]


def _data(root: Path, name: str):
    path = root / "helpers" / "data" / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _cell(kind: str, name: str, text: str) -> dict:
    cell = {"cell_type": kind, "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _link(row: dict, above: str = "") -> str:
    return f"[{row['name'][:2]} · {row['title']}]({above}{row['name']}/{row['name']}.ipynb)"


def _map(rows: list[dict]) -> str:
    lines = ["```mermaid", "graph LR"]
    for row in rows:
        number = row["name"][:2]
        lines.append(f'    u{number}["{number} {row["title"]}<br/>{row["minutes"]} min"]')
        lines += [f"    u{needed} --> u{number}" for needed in row["needs"]]
    return "\n".join([*lines, "```"])


def _units(rows: list[dict]) -> str:
    lines = ["| unit | you find out | minutes | after |", "|---|---|---|---|"]
    lines += [f"| {_link(r)} | {r['finds']} | {r['minutes']} | {', '.join(r['needs'])} |" for r in rows]
    return "\n".join(lines)


def _paths(course: dict) -> str:
    minutes = {row["name"][:2]: row["minutes"] for row in course["units"]}
    lines = ["| way | units | time | what for |", "|---|---|---|---|"]
    for path in course["paths"]:
        units = "all" if len(path["units"]) == len(minutes) else ", ".join(path["units"])
        lines.append(
            f"| **{path['name']}** | {units} | {hours(sum(map(minutes.get, path['units'])))} | {path['for']} |"
        )
    return "\n".join(lines)


def hours(minutes: int) -> str:
    """ "3 h 25 min" """
    return f"{minutes // 60} h {minutes % 60:02d} min"
