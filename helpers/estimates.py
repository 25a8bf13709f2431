"""The learner's log: what was predicted, what was measured, and which lever did what.

One JSON object a line in `$COURSE_HOME/predictions.jsonl`, or else in `.course/` beside the units' folders;
lines are only ever appended. A log that cannot be written costs one printed line and no more: the entries of
this session stay in memory. Keys begin with the unit, as in "02.tpot_ms_at_8192".
"""

import html
import json
import math
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import filelock

from helpers.friendly import Friendly, say
from helpers.numbers import pretty

_unwritten: list[dict] = []  # entries that reached no disk, so that this session's tables are still complete
_told: set[str] = set()


@dataclass(frozen=True)
class Estimate:
    """One quantity: what the learner expected and what came out, in `unit`; None where it is missing."""

    key: str
    unit: str = ""
    predicted: float | None = None
    measured: float | None = None
    source: str = ""
    residual: str = ""
    hindsight: bool = False
    verdict: str = "ok"

    @property
    def ratio(self) -> float:
        """measured / predicted; NaN when one of them is missing or zero."""
        if not self.predicted or self.measured is None:
            return math.nan
        return self.measured / self.predicted


class Table:
    """Rows of text that show as a table in a notebook and as aligned columns in print."""

    def __init__(self, columns: list[str], rows: list[list[str]], note: str = ""):
        self.columns, self.rows, self.note = columns, rows, note

    def __repr__(self) -> str:
        widths = [max(map(len, cells)) for cells in zip(self.columns, *self.rows, strict=True)]
        lines = [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            for row in [self.columns, *self.rows]
        ]
        return "\n".join([*lines, *([self.note] if self.note else [])])

    def _repr_html_(self) -> str:
        # JupyterLab sets every cell to the right, which suits numbers and no sentence.
        sides = ["left" if _are_words(cells) else "right" for cells in zip(*self.rows, strict=True)]
        sides = sides or ["left"] * len(self.columns)

        def row(cells, tag):
            # A key is one long word, which may break at its underscores where the page is narrow.
            shown = [html.escape(cell).replace("_", "_<wbr>") for cell in cells]
            parts = [f'<{tag} style="text-align: {s}">{cell}</{tag}>' for cell, s in zip(shown, sides, strict=True)]
            return f"<tr>{''.join(parts)}</tr>"

        body = "".join(row(cells, "td") for cells in self.rows)
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return f"<table><thead>{row(self.columns, 'th')}</thead><tbody>{body}</tbody></table>{note}"


def _are_words(cells: tuple[str, ...]) -> bool:
    """Whether a column holds words: none of its cells begins as a number does, or one of them is a sentence."""
    return max(map(len, cells)) > 24 or not any(re.match(r"[-+−×÷≈]? ?\d[\d.,]*(\s|\D?$)", cell) for cell in cells)


class NoNumber(Friendly, ValueError):
    """A prediction or a measurement that is not one finite number; notebooks show its message alone."""


def predict(key: str, value: float, unit: str, default: float | None = None) -> None:
    """Log a prediction of `key` ("02.tpot_ms_at_8192") in `unit` ("ms"), made before anything is measured.

    `default` is the guess that the notebook came with: left as it is, it is nobody's, and not logged.

    Raises ValueError for a key without a unit number or a value that is not a finite number.
    """
    entry = {"kind": "predict", "key": _key(key), "value": _finite(key, value), "unit": unit}
    if default is not None and entry["value"] == default:
        _tell(f"{key}: {_show(default)} {unit} is the number that was there; change it to your guess and it is kept")
        return
    _append(entry)


def measured(key: str, value: float, source: str = "live", residual: str = "", verdict: str = "ok") -> None:
    """Log what was measured for `key`, in the unit of its prediction.

    `source` is "live", or the publication it comes from; `residual` names what the prediction left out; `verdict` is
    that of its `Timing`, shown in every table when it is not "ok".
    Raises ValueError as `predict` does.
    """
    _append(
        {
            "kind": "measured",
            "key": _key(key),
            "value": _finite(key, value),
            "source": source,
            "residual": residual,
            "verdict": verdict,
        }
    )


def helped(exercise: str, what: str, step: int) -> None:
    """Log that help was given with `exercise` ("04.8"): `what` is "hint" (and which step) or "solution"."""
    _append({"kind": "help", "key": exercise, "what": what, "step": step})


def help_taken(number: str = "") -> dict[str, dict]:
    """{exercise: {"hints": steps read, "solution": whether it was}} of unit `number` ("04"; empty: all)."""
    found: dict[str, dict] = {}
    for entry in _read():
        if entry["kind"] == "help" and entry["key"].startswith(number):
            row = found.setdefault(entry["key"], {"hints": 0, "solution": False})
            row["solution"] |= entry["what"] == "solution"
            if entry["what"] == "hint":
                row["hints"] = max(row["hints"], entry["step"])
    return found


def checked(exercise: str, share: float) -> None:
    """Log what the test of `exercise` ("04.8") gave: the share of its points, 0 to 1."""
    _append({"kind": "check", "key": exercise, "value": share})


def shares(number: str = "") -> dict[str, float]:
    """{exercise: share of its points} of unit `number` ("04"; empty: all), by the last run of each test."""
    return {e["key"]: e["value"] for e in _read() if e["kind"] == "check" and e["key"].startswith(number)}


def ledger(number: str, lever: str, tpot: str = "", ttft: str = "", memory: str = "", quality: str = "") -> Table:
    """Log the row of unit `number` ("02") in the lever ledger and return the ledger so far; effects in a few words."""
    _append(
        {
            "kind": "ledger",
            "key": f"{number}.ledger",
            "lever": lever,
            "tpot": tpot,
            "ttft": ttft,
            "memory": memory,
            "quality": quality,
        }
    )
    return ledger_table()


def ledger_rows() -> list[dict]:
    """The newest ledger row of each unit and lever, in the order of the units."""
    rows = {(entry["key"], entry["lever"]): entry for entry in _read() if entry["kind"] == "ledger"}
    return [rows[key] for key in sorted(rows)]


def ledger_table() -> Table:
    """The lever ledger so far."""
    effects = ["lever", "tpot", "ttft", "memory", "quality"]
    rows = [[row["key"].split(".")[0], *(str(row.get(effect, "")) for effect in effects)] for row in ledger_rows()]
    return Table(["unit", "lever", "TPOT", "TTFT", "memory", "quality"], rows)


def estimates(number: str = "", log: Path | None = None) -> list[Estimate]:
    """Every quantity logged in unit `number` ("02"; empty: all), newest value of each, in order of entry; of somebody
    else's `log` if one is given."""
    found: dict[str, dict] = {}
    for entry in _read(log):
        if entry["kind"] not in {"predict", "measured"} or not entry["key"].startswith(number):
            continue
        row = found.setdefault(entry["key"], {})
        if entry["kind"] == "predict":
            # Running a notebook again repeats its predictions; only a changed one is hindsight.
            changed = "measured" in row and not math.isclose(entry["value"], row.get("predicted", math.nan))
            hindsight = row.get("hindsight", False) or changed
            row.update(predicted=entry["value"], unit=entry.get("unit", ""), hindsight=hindsight)
        else:
            row.update({name: entry.get(name, "") for name in ("source", "residual")})
            row.update(measured=entry["value"], verdict=entry.get("verdict", "ok"))
    return [Estimate(key, **row) for key, row in found.items()]


def calibration(log: Path | None = None) -> list[Estimate]:
    """Pairs of an honest prediction and its measurement, over all units: the last prediction made before the
    quantity was first measured, and its newest measurement. A prediction made in hindsight is left out."""
    before: dict[str, dict] = {}
    seen: set[str] = set()
    for entry in _read(log):
        if entry["kind"] == "measured":
            seen.add(entry["key"])
        elif entry["kind"] == "predict" and entry["key"] not in seen:
            before[entry["key"]] = entry
    return [
        Estimate(
            row.key, row.unit, before[row.key]["value"], row.measured, row.source, row.residual, verdict=row.verdict
        )
        for row in estimates(log=log)
        if row.key in before and row.measured is not None
    ]


def report(number: str) -> Table:
    """The table of unit `number` ("02"): predicted, measured, how far apart, and the name of the residual.

    What was measured on a busy machine has no residual to explain.
    """
    rows, hindsight = [], False
    for row in estimates(number):
        gap = "" if math.isnan(row.ratio) else f"{100 * (row.ratio - 1):+.0f} %"
        mark = "*" if row.hindsight else ""
        hindsight |= row.hindsight
        rows.append(
            [
                row.key,
                _show(row.predicted) + mark,
                _show(row.measured) + (f" [{row.verdict}]" if row.verdict != "ok" else ""),
                row.unit,
                gap,
                row.source,
                row.residual if row.verdict == "ok" else f"{row.verdict}: measure again, then explain",
            ]
        )
    columns = ["quantity", "predicted", "measured", "unit", "off by", "source", "residual"]
    return Table(columns, rows, "* predicted after it was measured" if hindsight else "")


def path() -> Path:
    """Where the log lies. Without COURSE_HOME: `.course/` beside the folder of the unit that is running."""
    home = os.environ.get("COURSE_HOME")
    if home:
        return Path(home) / "predictions.jsonl"
    here = Path.cwd()
    return (here.parent if re.match(r"\d\d-", here.name) else here) / ".course" / "predictions.jsonl"


def _append(entry: dict) -> None:
    entry = {"time": round(time.time(), 3), **entry}
    log = path()
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{log}.lock", timeout=5), open(log, "ab+") as file:
            # A line that a full disk cut short must not swallow this one.
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
    except (OSError, NotImplementedError) as error:  # filelock.Timeout is an OSError
        _unwritten.append(entry)
        reason = getattr(error, "strerror", None) or str(error)
        _tell(f"predictions are not being saved ({reason}: {log}); the lesson goes on without the log")


def _read(log: Path | None = None) -> list[dict]:
    entries, broken = [], 0
    own = path() if log is None else log
    try:
        lines = own.read_bytes().splitlines()
    except FileNotFoundError:
        lines = []
    except OSError as error:
        _tell(f"predictions cannot be read ({error.strerror}: {own}); the lesson goes on without the log")
        lines = []
    for line in filter(None, lines):
        entry = _parse(line)
        if entry is None:
            broken += 1
        else:
            entries.append(entry)
    if broken:
        _tell(f"{broken} unreadable line{'s' * (broken > 1)} of {own} left out")
    return entries + (_unwritten if log is None else [])


def _parse(line: bytes) -> dict | None:
    """One log line, or None when it is not an entry of this log."""
    try:
        entry = json.loads(line)
        if entry["kind"] == "ledger":
            return entry if isinstance(entry["lever"], str) and isinstance(entry["key"], str) else None
        if entry["kind"] == "help":
            good = isinstance(entry["key"], str) and isinstance(entry["what"], str) and isinstance(entry["step"], int)
            return entry if good else None
        _finite(_key(entry["key"]), entry["value"])
    except (ValueError, KeyError, TypeError):
        return None
    return entry if entry["kind"] in {"predict", "measured", "check"} else None


def _tell(message: str) -> None:
    """Say it on stdout, once a session."""
    if message not in _told:
        _told.add(message)
        say(message)


def _key(key: str) -> str:
    if not re.match(r"\d\d\.\S", str(key)):
        raise ValueError(f"the key {key!r} has to begin with its unit, as in '02.tpot_ms_at_8192'")
    return key


def _finite(key: str, value) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, (str, bool)) or not math.isfinite(number):
        raise NoNumber(f"{key} has to be one finite number; it is {value!r}")
    return number


def _show(value: float | None) -> str:
    return "" if value is None else pretty(value, digits=3)
