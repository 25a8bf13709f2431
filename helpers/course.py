"""The course as a whole: its units, the ways through it, its words, and how far this learner has come.

    course.progress()     every unit with what has been earned so far, and the next step
    course.guesses()      how well was guessed so far
    course.end("02")      what one unit has given, at its end

Points are those that the tests gave when they last ran in the notebook (`check.grade` notes them in the log);
`make score` grades what is saved.
"""

import functools
import html
import json
from dataclasses import dataclass
from pathlib import Path

from helpers import estimates, hints, plots

FOLDER = Path(__file__).parent / "data"
BAR = 10  # characters
LEFT = ' style="text-align: left"'


@dataclass(frozen=True)
class Unit:
    """One unit: `name` is its folder ("02-growing-cache"), `needs` the numbers of units whose words it uses."""

    name: str
    title: str
    minutes: int
    needs: tuple[str, ...]
    finds: str

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def link(self) -> str:
        """Where its notebook lies, seen from START.ipynb."""
        return f"{self.name}/{self.name}.ipynb"


@functools.cache
def _course() -> dict:
    return json.loads((FOLDER / "course.json").read_text(encoding="utf-8"))


@functools.cache
def units() -> tuple[Unit, ...]:
    """The units in their order."""
    return tuple(Unit(**{**row, "needs": tuple(row["needs"])}) for row in _course()["units"])


def paths() -> list[dict]:
    """Ways through the course: "name", "units" (numbers), "for" (what one gets out of it) and "minutes"."""
    minutes = {unit.number: unit.minutes for unit in units()}
    return [{**path, "minutes": sum(minutes[number] for number in path["units"])} for path in _course()["paths"]]


def glossary() -> list[dict]:
    """The words that the units explain: "term", "unit" (number) and "text", in the order of the units."""
    return json.loads((FOLDER / "glossary.json").read_text(encoding="utf-8"))


def earned(number: str) -> dict[str, tuple[float, float]]:
    """{exercise: (points, most)} of unit `number` ("02"), by what its tests said when they last ran."""
    shares = estimates.shares(number)
    exercises = hints.unit(number)["exercises"]
    return {name: (shares.get(name, 0.0) * entry["points"], entry["points"]) for name, entry in exercises.items()}


def progress() -> "Standing":
    """Every unit with its points so far, as a table in a notebook, with the next step below it."""
    rows, following = [], None
    for unit in units():
        points = earned(unit.number)
        got, most = sum(p for p, _ in points.values()), sum(m for _, m in points.values())
        guesses = sum(row.key.startswith(unit.number) for row in estimates.calibration())
        rows.append((unit, got, most, guesses))
        if following is None and got < most:
            following = unit, bool(got)
    return Standing(rows, following)


class Standing:
    """Rows of (unit, points, most, guesses), and the unit to go on with, with whether it was begun."""

    def __init__(self, rows: list[tuple[Unit, float, float, int]], following: tuple[Unit, bool] | None):
        self.rows, self.following = rows, following

    @property
    def total(self) -> str:
        got, most = sum(row[1] for row in self.rows), sum(row[2] for row in self.rows)
        return f"{got:g} of {most:g} points"

    @property
    def next_step(self) -> str:
        if self.following is None:
            return "Every exercise is right. What is left is the page of 08.9, and an incident of your own."
        unit, begun = self.following
        return f"{'Go on with' if begun else 'Next:'} unit {unit.number}, {unit.title} ({unit.minutes} minutes)."

    def __repr__(self) -> str:
        lines = [f"{u.number} {u.title:<24} {_bar(got, most)} {got:g} of {most:g}" for u, got, most, _ in self.rows]
        return "\n".join([*lines, "", f"{self.total}. {self.next_step}"])

    def _repr_html_(self) -> str:
        cells = [
            f'<tr><td{LEFT}><a href="{u.link}">{u.number} {html.escape(u.title)}</a></td>'
            f"<td><code>{_bar(got, most)}</code></td><td>{got:g} of {most:g}</td><td>{guesses or ''}</td></tr>"
            for u, got, most, guesses in self.rows
        ]
        head = f"<tr><th{LEFT}>unit</th><th></th><th>points</th><th>guesses that were measured</th></tr>"
        step = html.escape(self.next_step)
        if self.following:
            unit = self.following[0]
            step = step.replace(f"unit {unit.number}", f'<a href="{unit.link}">unit {unit.number}</a>', 1)
        return f"<table><thead>{head}</thead><tbody>{''.join(cells)}</tbody></table><p><b>{self.total}.</b> {step}</p>"


def guesses() -> None:
    """Draw how well was guessed so far: predictions against their measurements, over all units."""
    if not (pairs := estimates.calibration()):
        print("No prediction has been measured yet. The first is in unit 00.")
        return
    plots.use()
    plots.calibration(pairs)


def end(number: str) -> None:
    """Print what unit `number` ("02") has given so far, and which exercises are open."""
    points = earned(number)
    got, most = sum(p for p, _ in points.values()), sum(m for _, m in points.values())
    print(f"unit {number}  {_bar(got, most)}  {got:g} of {most:g} points")
    missing = [f"{name} ({m - p:g})" for name, (p, m) in points.items() if p < m]
    if missing:
        print(f"still to be had: {', '.join(missing)}")


def _bar(got: float, most: float) -> str:
    full = round(BAR * got / most) if most else 0
    return "█" * full + "░" * (BAR - full)
