"""Figures of the outside world, each with its source.

A source's status says how the figure was obtained: "seen" (read there), "seen-secondary" (read in a third
party that quotes it), "derived" (computed from seen values).
"""

from __future__ import annotations

import copy
import difflib
import functools
import json
import pathlib

FILES = ("models", "devices", "measurements", "claims", "prices")


def load(name: str) -> list[dict]:
    """All rows of one of FILES, as fresh copies. Raises LookupError for an unknown name."""
    if name not in FILES:
        raise LookupError(f"no data file named {name!r}; there are: {', '.join(FILES)}")
    return copy.deepcopy(_rows(name))


@functools.cache
def _rows(name: str) -> list[dict]:
    path = pathlib.Path(__file__).with_name(f"{name}.json")
    return json.loads(path.read_text(encoding="utf-8"))


def _row(file: str, id: str) -> dict:
    rows = {row["id"]: row for row in load(file)}
    if id in rows:
        return rows[id]
    close = difflib.get_close_matches(str(id), rows, n=3, cutoff=0.4) or list(rows)
    raise LookupError(f"no row {id!r} in {file}; close to it: {', '.join(close)}")


def device(id: str) -> dict:
    """A device's data sheet: bandwidth_GBps (1e9 bytes a second), capacity_GB (1e9), dense_bf16_TFLOPs."""
    return _row("devices", id)


def measurement(id: str) -> dict:
    """A published measurement: conditions, data (a list of rows), sources."""
    return _row("measurements", id)


def claim(id: str) -> dict:
    """A popular claim that the course tests: claim, verdict, arithmetic."""
    return _row("claims", id)


def price(id: str) -> dict:
    """A price list on a date: provider, fact (dollars per million tokens), source."""
    return _row("prices", id)
