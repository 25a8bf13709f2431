"""From whatever was handed in to a notebook that can be graded: repaired where that is certain, refused where not.

The graded notebook is built anew: locked cells come from the release, and what a learner wrote is put where it stood.
"""

import json
import re
import symtable
from dataclasses import dataclass, field

from tools.source import kind

MOST_BYTES = 100 << 20  # a notebook of this course with all its pictures has some 2 MB
MOST_CELLS = 2_000


class Unusable(Exception):
    """A file that needs a human; the message says why."""


@dataclass(eq=False)
class Written:
    """One cell as it was handed in: `name` is the cell of the release that it is, if known."""

    source: str
    code: bool
    name: str | None
    tags: list[str] = field(default_factory=list)


def repair(content: bytes, release: dict) -> tuple[dict, list[str]]:
    """(notebook, notes) from the bytes of a submission; `release` is the notebook that was handed out.

    Raises `Unusable` when it is no notebook, another notebook, or it is not certain which cell is the answer.
    """
    notes: list[str] = []
    known = {cell["id"]: cell for cell in release["cells"]}
    written = _cells(_parsed(content, notes), set(known))
    answers = [name for name, cell in known.items() if _is_answer(cell)]
    _recognise(written, known, answers, notes)
    if not any(cell.name for cell in written):
        raise Unusable("none of its cells is one of this unit's: is it another notebook?")
    for name in answers:
        _settle_duplicates(written, known[name], notes)
    cells = _in_order(written, release["cells"], notes)
    return {**{k: release[k] for k in ("metadata", "nbformat", "nbformat_minor")}, "cells": cells}, notes


def bound(source: str) -> set[str]:
    """The names that a cell binds at its top level; none when it is not Python."""
    plain = re.sub(r"(?m)^\s*[%!].*$", "", source)
    try:
        table = symtable.symtable(plain, "cell", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}


def _parsed(content: bytes, notes: list[str]) -> dict:
    if len(content) > MOST_BYTES:
        raise Unusable(f"not a notebook: it has {len(content) >> 20} MB")
    try:
        try:
            notebook = json.loads(content)  # finds UTF-8, UTF-16 and UTF-32 by itself, with and without a mark
        except UnicodeDecodeError:
            notebook = json.loads(content.decode("cp1252"))
            notes.append("read as Windows-1252")
    except (ValueError, RecursionError) as error:
        raise Unusable(f"not a notebook: it cannot be read ({type(error).__name__}: {str(error)[:200]})") from None
    if isinstance(notebook, dict) and isinstance(notebook.get("worksheets"), list):
        notes.append("converted from notebook format 3")
        sheets = [
            s["cells"] for s in notebook["worksheets"] if isinstance(s, dict) and isinstance(s.get("cells"), list)
        ]
        return {"cells": [cell for sheet in sheets for cell in sheet]}
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise Unusable("not a notebook: it is JSON without a list of cells")
    return notebook


def _cells(notebook: dict, known: set[str]) -> list[Written]:
    if len(notebook["cells"]) > MOST_CELLS:
        raise Unusable(f"it has {len(notebook['cells']):,} cells")
    written = []
    for cell in notebook["cells"]:
        if not isinstance(cell, dict):
            continue
        metadata = cell.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        grading = metadata.get("nbgrader")
        tags = metadata.get("tags")
        names = (grading.get("grade_id") if isinstance(grading, dict) else None, cell.get("id"))
        name = next((n for n in names if isinstance(n, str) and n in known), None)
        tags = [t for t in tags if isinstance(t, str)] if isinstance(tags, list) else []
        written.append(Written(_source(cell), cell.get("cell_type") == "code", name, tags))
    return written


def _source(cell: dict) -> str:
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    # Half of a surrogate pair is no character, and cannot be written to a file.
    return source.encode("utf-8", "replace").decode() if isinstance(source, str) else ""


def _is_answer(cell: dict) -> bool:
    return bool(cell["metadata"].get("nbgrader", {}).get("solution"))


def _text(cell: dict) -> str:
    return _source(cell).strip()


def _recognise(written: list[Written], known: dict[str, dict], answers: list[str], notes: list[str]) -> None:
    """Give answers whose metadata was lost their names, by what they define."""
    for name in answers:
        if any(cell.name == name for cell in written):
            continue
        wanted = bound(_text(known[name]))
        found = [c for c in written if c.code and c.name is None and wanted and wanted <= bound(c.source)]
        if len(found) > 1:
            raise Unusable(
                f"its graded cells were renamed or removed: {name} is missing, and {len(found)} other cells define "
                f"{', '.join(sorted(wanted))}"
            )
        for cell in found:
            cell.name = name
            notes.append(f"{name} recognised by what it defines")


def _settle_duplicates(written: list[Written], stub: dict, notes: list[str]) -> None:
    """Of several cells with one name keep the answer; parts of a cell that was split stay, in their order."""
    name = stub["id"]
    copies = [cell for cell in written if cell.name == name]
    if len(copies) < 2:
        return
    answered = [c for c in copies if c.source.strip() != _text(stub)] or copies[:1]
    unlike = {c.source.strip(): c for c in reversed(answered)}
    wanted = bound(_text(stub))
    rivals = [c for c in unlike.values() if wanted <= bound(c.source)]
    if len(rivals) > 1 or (len(unlike) > 1 and not wanted):
        raise Unusable(f"duplicated: {name} stands {len(copies)} times, with {len(unlike)} different answers")
    kept = [c for c in copies if any(c is u for u in unlike.values())]
    notes.append(f"duplicated: {name} stands {len(copies)} times" + (", in parts" if len(kept) > 1 else ""))
    for cell in copies:
        if not any(cell is k for k in kept):
            written.remove(cell)
    for part in kept[:-1]:
        part.name = None


def _in_order(written: list[Written], released: list[dict], notes: list[str]) -> list[dict]:
    """The cells to grade: what was written where it stood, locked cells where the release has them."""
    kinds = {cell["id"]: kind(cell) for cell in released}
    own = [(i, c) for i, c in enumerate(written) if c.name is None and c.source.strip() and "parameters" not in c.tags]
    extras = [(float(i), -1, _extra(c, i)) for i, c in own]
    place = {c.name: float(i) for i, c in enumerate(written) if c.name}
    answered = {c.name: c.source for c in written if c.name}
    graded: list[tuple[float, int, dict]] = []
    here = last = -1.0  # where the cell before stands in the release's order, and the last of the answers so far
    for index, cell in enumerate(released):
        name = cell["id"]
        if _is_answer(cell):
            if name not in answered:
                notes.append(f"{name} is missing")
            here = place.get(name, here)
            last = max(last, here)
            graded.append((here, index, cell | {"source": answered.get(name, cell["source"])}))
        elif kinds[name] in ("setup", "parameters"):
            later = [place[c["id"]] for c in released[index:] if _is_answer(c) and c["id"] in place]
            before = min(later, default=float(len(written)))
            here = next((at for at in (place.get(name), here) if at is not None and at < before), before - 0.5)
            graded.append((here, index, dict(cell)))
        elif cell["metadata"].get("nbgrader"):
            here = last + 0.5
            graded.append((here, index, dict(cell)))
    cells = [cell for *_, cell in sorted(extras + graded, key=lambda entry: entry[:2])]
    for cell in cells:
        if cell["cell_type"] == "code":
            cell |= {"execution_count": None, "outputs": []}
    return cells


def _extra(cell: Written, index: int) -> dict:
    """A cell of the learner's own; it runs where it stands unless it only measures."""
    return {
        "cell_type": "code" if cell.code else "markdown",
        "id": f"own-{index:04d}",
        "metadata": {"tags": ["measure"]} if "measure" in cell.tags else {},
        "source": cell.source,
    }
