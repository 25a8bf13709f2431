"""Recordings: what `python -m tools.record` and `tools.gpu_check` measured on a named machine, as JSON.

A learner's own curve can be drawn beside any of them. A recording is a measurement, so none is written by hand:
machines that nobody ran the tools on have none.

    {"format": 1, "name": "…", "recorded_at": "2026-01-31 12:00+00:00",
     "machine": {"device": "…", "type": "cpu", …}, "versions": {"torch": "…", …},
     "card": {"read_bytes_per_second": …, …},
     "series": [{"id": "decode-batch-1", "title": "…", "x": "context", "x_unit": "tokens", "conditions": {…},
                 "points": [{"x": 16, "median_seconds": …, "spread_seconds": …, "samples": 20, "bytes": …}, …]}, …],
     "checks": [{"name": "…", "error": …, "tolerance": …}, …],
     "notes": ["…", …]}

`spread_seconds` is the half-width of a 95 % interval of the median, `bytes` what one step streams.
"""

import json
import math
import os
import platform
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

FORMAT = 1
FOLDER = Path(__file__).parents[1] / "data" / "recordings"
REQUIRED = {
    "format": int, "name": str, "recorded_at": str, "machine": dict, "versions": dict, "card": dict, "series": list,
    "checks": list, "notes": list,
}  # fmt: skip
POINT = ("x", "median_seconds", "spread_seconds", "samples", "bytes")


class BadRecording(ValueError):
    """Something in a recording is missing or cannot be; the message says what and where."""


def slug(name: str) -> str:
    """A file name from what the maker calls a device."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def available() -> list[str]:
    """Names of the recordings that ship with the course."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str | os.PathLike) -> dict:
    """A recording by its name in `available()`, or by the path of a JSON file; validated.

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
        recording = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRecording(f"{path.name} is not JSON: {error}") from None
    return validate(recording)


def new(name: str, device: str, kind: str, card: Mapping, versions: Mapping, machine: Mapping | None = None) -> dict:
    """An empty recording of this machine, now.

    Args:
        name: of the recording, used as its file name.
        device: what its maker calls it; `kind` is "cpu", "cuda" or "mps".
        card: the fields of a device card.
        versions: of what the numbers depend on, by package.
        machine: more facts about it.
    """
    return {
        "format": FORMAT,
        "name": name,
        "recorded_at": datetime.now().astimezone().isoformat(" ", "minutes"),
        "machine": {"device": device, "type": kind, "system": platform.system(), **(machine or {})},
        "versions": {"python": platform.python_version(), **versions},
        "card": dict(card),
        "series": [],
        "checks": [],
        "notes": [],
    }


def point(x: float, timing, bytes_: int) -> dict:
    """One point of a series from a `helpers.clock.timing.Timing`."""
    return {
        "x": x,
        "median_seconds": timing.median,
        "spread_seconds": timing.spread,
        "samples": len(timing.samples),
        "bytes": int(bytes_),
    }


def series(
    id: str, title: str, points: Iterable[dict], x: str = "context", x_unit: str = "tokens", **conditions
) -> dict:
    """One curve: points over `x`, and the conditions under which it was measured (model, batch, dtype, …)."""
    return {
        "id": id, "title": title, "x": x, "x_unit": x_unit, "conditions": conditions, "points": list(points),
    }  # fmt: skip


def validate(recording: dict) -> dict:
    """The recording itself, if it is one. Raises BadRecording."""
    if not isinstance(recording, dict):
        raise BadRecording("a recording is a JSON object")
    for key, kind in REQUIRED.items():
        if not isinstance(recording.get(key), kind):
            raise BadRecording(f"a recording needs {key!r}, a {kind.__name__}; it has {recording.get(key)!r}")
    if recording["format"] != FORMAT:
        raise BadRecording(
            f"format {recording['format']} is not {FORMAT}: record again with this version of the course"
        )
    try:
        datetime.fromisoformat(recording["recorded_at"])
    except ValueError:
        raise BadRecording(f"recorded_at is no date: {recording['recorded_at']!r}") from None
    for key in ("device", "type"):
        if not recording["machine"].get(key):
            raise BadRecording(f"machine needs {key!r}")
    if not _positive(recording["card"].get("read_bytes_per_second")):
        raise BadRecording("card needs a positive 'read_bytes_per_second'")
    ids = [one.get("id") for one in recording["series"]]
    if len(set(ids)) != len(ids):
        raise BadRecording(f"two series have one id: {ids}")
    for one in recording["series"]:
        _validate_series(one)
    for check in recording["checks"]:
        if not {"name", "error", "tolerance"} <= set(check):
            raise BadRecording(f"a check needs a name, an error and a tolerance, not {check}")
    return recording


def _validate_series(one: dict) -> None:
    missing = {"id", "title", "x", "x_unit", "conditions", "points"} - set(one)
    if missing:
        raise BadRecording(f"series {one.get('id')!r} lacks {', '.join(sorted(missing))}")
    for number, each in enumerate(one["points"]):
        where = f"series {one['id']!r}, point {number}"
        for key in POINT:
            if (
                not isinstance(each.get(key), int | float)
                or isinstance(each[key], bool)
                or not math.isfinite(each[key])
            ):
                raise BadRecording(f"{where}: {key} must be a number, not {each.get(key)!r}")
        if (
            not _positive(each["median_seconds"])
            or each["spread_seconds"] < 0
            or each["samples"] < 1
            or each["bytes"] < 0
        ):
            raise BadRecording(f"{where}: a time or a count that cannot be: {each}")


def _positive(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def save(recording: dict, folder: str | os.PathLike = FOLDER) -> Path:
    """Validate and write `folder`/`name`.json; returns the path."""
    path = Path(folder) / f"{validate(recording)['name']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(recording, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return path


def curve(recording: dict, id: str) -> tuple[list[float], list[float], list[float]]:
    """x, median seconds and spread seconds of one series. Raises LookupError with the ids there are."""
    for one in recording["series"]:
        if one["id"] == id:
            return tuple([each[key] for each in one["points"]] for key in ("x", "median_seconds", "spread_seconds"))
    raise LookupError(
        f"no series {id!r} in {recording['name']}; there are: {', '.join(s['id'] for s in recording['series'])}"
    )


def draw(ax, recording: dict, id: str, **style):
    """Add one series to `ax`, in milliseconds, in grey and behind what is there: another machine's curve.

    Returns the Axes.
    """
    x, median, spread = curve(recording, id)
    look = {"color": "#666666", "marker": ".", "linestyle": ":", "capsize": 2, "zorder": 1}
    ax.errorbar(
        x, [1e3 * s for s in median], yerr=[1e3 * s for s in spread],
        label=f"recorded: {recording['machine']['device']}", **(look | style),
    )  # fmt: skip
    ax.legend()
    return ax
