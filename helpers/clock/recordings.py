"""Recordings: what the course's tools measured on a named machine, as JSON files in one format.

`python -m tools.record` and `tools.gpu_check` write times of steps, `python -m helpers.quality.sink_curve` losses. A
learner's own curve can be drawn beside any of them. A recording is a measurement, so none is written by hand: machines
that nobody ran the tools on have none.

A file holds the fields of `Recording`, and in them those of `Series`, `Point` and `Comparison`.
"""

import json
import math
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path

FORMAT = 2
DECODE = "amd-epyc-2-threads"  # of those that ship: SmolLM2-135M, float32, full cache, at growing context
FOLDER = Path(__file__).parents[1] / "data" / "recordings"


class BadRecording(ValueError):
    """Something in a recording is missing or cannot be; the message says what and where."""


@dataclass(frozen=True)
class Point:
    """One measured value.

    y        of what the series measures, in its unit: of times the median
    spread   half-width of a 95 % interval of the median, or what the series says
    samples  how many it was taken from
    bytes    what one step streams; None where nothing is streamed
    """

    x: float
    y: float
    spread: float
    samples: int
    bytes: int | None = None

    def __post_init__(self):
        for name in ("x", "y", "spread", "samples") + ("bytes",) * (self.bytes is not None):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                raise BadRecording(f"{name} must be a number, not {value!r}")
        if self.spread < 0 or self.samples < 1 or (self.bytes or 0) < 0:
            raise BadRecording(f"a spread or a count that cannot be: {self}")


@dataclass(frozen=True)
class Series:
    """One curve: `points` of `y` over `x`, and the conditions under which it was measured (model, batch, dtype, …)."""

    id: str
    title: str
    points: list[Point]
    conditions: dict
    x: str = "context"
    x_unit: str = "tokens"
    y: str = "time of a step"
    y_unit: str = "s"

    def __post_init__(self):
        if self.y_unit == "s" and any(point.y <= 0 for point in self.points):
            raise BadRecording(f"series {self.id!r}: a time that cannot be, in {[point.y for point in self.points]}")


@dataclass(frozen=True)
class Comparison:
    """A kernel against the reference: the largest relative error, and what is tolerated."""

    name: str
    error: float
    tolerance: float


@dataclass(frozen=True)
class Recording:
    """What was measured on one machine at one time.

    name         also its file's
    recorded_at  ISO date and time
    machine      "device" as its maker calls it, "type" ("cpu", "cuda", "mps") and more facts
    versions     of what the numbers depend on, by package
    card         the fields of a device card; empty where no time was taken
    notes        what went differently from what was planned
    """

    name: str
    recorded_at: str
    machine: dict
    versions: dict
    card: dict
    series: list[Series] = field(default_factory=list)
    checks: list[Comparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    format: int = FORMAT

    def __post_init__(self):
        if self.format != FORMAT:
            raise BadRecording(f"format {self.format} is not {FORMAT}: record again with this version of the course")
        try:
            datetime.fromisoformat(self.recorded_at)
        except (ValueError, TypeError):
            raise BadRecording(f"recorded_at is no date: {self.recorded_at!r}") from None
        for key in ("device", "type"):
            if not self.machine.get(key):
                raise BadRecording(f"machine needs {key!r}")
        timed = any(one.y_unit == "s" for one in self.series)
        if timed and not self.card.get("read_bytes_per_second", 0) > 0:
            raise BadRecording("card needs a positive 'read_bytes_per_second'")
        ids = [one.id for one in self.series]
        if len(set(ids)) != len(ids):
            raise BadRecording(f"two series have one id: {ids}")

    @property
    def device(self) -> str:
        """What the maker calls the machine."""
        return self.machine["device"]

    def find(self, id: str) -> Series:
        """One series. Raises LookupError with the ids there are."""
        for one in self.series:
            if one.id == id:
                return one
        raise LookupError(f"no series {id!r} in {self.name}; there are: {', '.join(one.id for one in self.series)}")


def slug(name: str) -> str:
    """A file name from what the maker calls a device."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def available() -> list[str]:
    """Names of the recordings that ship with the course."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str | os.PathLike) -> Recording:
    """A recording by its name in `available()`, or by the path of a JSON file.

    Raises:
        LookupError: no such recording; the message lists those there are.
        BadRecording: it is not one.
    """
    path = Path(name) if str(name).endswith(".json") else FOLDER / f"{name}.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = ", ".join(available()) or "none yet: `python -m tools.record` writes one"
        raise LookupError(f"no recording {str(name)!r}; there are: {known}") from None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRecording(f"{path.name} is not JSON: {error}") from None
    return read(content)


def read(content: dict) -> Recording:
    """A recording from what its JSON holds. Raises BadRecording."""
    if not isinstance(content, dict):
        raise BadRecording("a recording is a JSON object")
    if content.get("format") != FORMAT:
        raise BadRecording(
            f"format {content.get('format')} is not {FORMAT}: record again with this version of the course"
        )
    series = []
    for row in content.get("series", []):
        where = f"series {row.get('id')!r}"
        points = [_make(Point, point, f"{where}, point {i}") for i, point in enumerate(row.get("points", []))]
        series.append(_make(Series, row | {"points": points}, where))
    checks = [_make(Comparison, row, "a check") for row in content.get("checks", [])]
    return _make(Recording, content | {"series": series, "checks": checks}, "a recording")


def _make(kind: type, row: dict, where: str):
    """One dataclass from its fields, every one of them written out."""
    names = {f.name for f in fields(kind)}
    if missing := names - set(row):
        raise BadRecording(f"{where} lacks {', '.join(sorted(missing))}")
    if unknown := set(row) - names:
        raise BadRecording(f"{where} has {', '.join(sorted(unknown))}, which this version of the course does not know")
    try:
        return kind(**row)
    except BadRecording as error:
        raise BadRecording(f"{where}: {error}") from None


def new(
    name: str, device: str, kind: str, card: Mapping, versions: Mapping, machine: Mapping | None = None
) -> Recording:
    """An empty recording of this machine, now.

    Args:
        name: of the recording, used as its file name.
        device: what its maker calls it; `kind` is "cpu", "cuda" or "mps".
        card: the fields of a device card; empty where no time is taken.
        versions: of what the numbers depend on, by package.
        machine: more facts about it.
    """
    return Recording(
        name,
        recorded_at=datetime.now().astimezone().isoformat(" ", "minutes"),
        machine={"device": device, "type": kind, "system": platform.system(), **(machine or {})},
        versions={"python": platform.python_version(), **versions},
        card=dict(card),
    )


def point(x: float, timing, bytes_: int) -> Point:
    """One point of a series from a `helpers.clock.timing.Timing`."""
    return Point(x, timing.median, timing.spread, len(timing.samples), int(bytes_))


def series(
    id: str, title: str, points: Iterable[Point], x: str = "context", x_unit: str = "tokens", **conditions
) -> Series:
    """A curve of times over `x`."""
    return Series(id, title, list(points), conditions, x, x_unit)


def save(recording: Recording, folder: str | os.PathLike = FOLDER) -> Path:
    """Write `folder`/`name`.json; returns the path. Raises BadRecording for what could not be read again."""
    content = asdict(recording)
    path = Path(folder) / f"{read(content).name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return path


def curve(recording: Recording, id: str) -> tuple[list[float], list[float], list[float]]:
    """x, y and spread of one series: of times in seconds. Raises LookupError with the ids there are."""
    points = recording.find(id).points
    return [p.x for p in points], [p.y for p in points], [p.spread for p in points]


def beside(ax, batch: int, longest: int, kind: str) -> None:
    """Draw the shipped decode sweep, up to `longest` tokens, on axes that show TPOT (ms) over context; nothing where
    this batch was not recorded.

    Another `kind` of device ("cpu", "cuda", "mps") than the recording's gets a line of text: its times would leave the
    picture no room.
    """
    recording = load(DECODE)
    try:
        series = recording.find(f"decode-batch-{batch}")
    except LookupError:
        return
    points = [p for p in series.points if p.x <= longest]
    x, ms = [p.x for p in points], [1e3 * p.y for p in points]
    label = f"recorded, full cache: {recording.device}"
    if kind != recording.machine["type"]:
        print(f"{label}, batch {batch}, {ms[0]:.1f} → {ms[-1]:.1f} ms from {x[0]:,} to {x[-1]:,} tokens")
        return
    ax.plot(x, ms, color="0.4", linestyle=":", marker=".", label=label)
    ax.set_ylim(bottom=0, auto=True)
    ax.legend()
