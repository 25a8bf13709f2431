"""When something was handed in, and whether that was late. Only ever a remark: no point depends on it."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tools.units import CourseError

FORM = "such as '2026-12-01 23:59 Europe/Berlin' or '2026-12-01T23:59+01:00'"
STAMP = "timestamp.txt"  # nbgrader's own, beside what it collects


@dataclass(frozen=True)
class HandedIn:
    """A moment (seconds since 1970; None where only the platform's mark is known) and who says so."""

    at: float | None
    source: str


def moment(said: str) -> datetime:
    """The moment that `said` names, in this machine's time zone unless it says one. `CourseError` if it is none."""
    parts = re.fullmatch(r"\s*(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)\s*(\S*)\s*", said)
    try:
        plain, zone = datetime.fromisoformat(parts[1]), parts[2]
        if not zone:
            return plain.astimezone()
        if re.fullmatch(r"Z|[+-]\d\d:?\d\d", zone):
            return datetime.fromisoformat(parts[1] + zone)
        return plain.replace(tzinfo=ZoneInfo(zone))
    except (TypeError, ValueError, ZoneInfoNotFoundError):
        raise CourseError(f"{said!r} is no moment: write one {FORM}") from None


def handed_in(path: Path, marked_late: bool) -> HandedIn:
    """When the notebook `path` was handed in: by the platform's mark, a timestamp beside it, or the file's own time."""
    if marked_late:
        return HandedIn(None, "the platform's mark LATE")
    stamp = path.with_name(STAMP)
    try:
        return HandedIn(moment(stamp.read_text(encoding="utf-8")[:100]).timestamp(), STAMP)
    except (OSError, UnicodeDecodeError, CourseError):
        return HandedIn(path.stat().st_mtime, "the file's own time, which copying may change")


def remark(handed: HandedIn | None, deadline: datetime | None) -> str:
    """ "2 h 5 min late, by …", or "" for what is in time, or where nobody asked."""
    if handed is None or deadline is None:
        return ""
    if handed.at is None:
        return f"late, by {handed.source}"
    late = timedelta(seconds=int(handed.at - deadline.timestamp()))
    if late <= timedelta(0):
        return ""
    hours, minutes = late.seconds // 3600, late.seconds % 3600 // 60
    long = f"{late.days} d {hours} h" if late.days else f"{hours} h {minutes} min" if hours else f"{minutes} min"
    at = datetime.fromtimestamp(handed.at, deadline.tzinfo)
    return f"{long} late ({at:%Y-%m-%d %H:%M %Z}), by {handed.source}"
