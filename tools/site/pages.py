"""A unit as one page: the learner's notebook with the outputs of its solution; help, answers and verdicts folded."""

import json
import re
from copy import deepcopy

from helpers import hints
from tools.frame import notebook
from tools.source import exercise_id, kind, text
from tools.units import Unit

SHOWN = ("image/png", "image/svg+xml", "text/html", "text/markdown", "text/plain")  # the first that there is
FOLD = '<details class="{kind}"><summary>{summary}</summary>\n\n{content}\n\n</details>\n'
FOLDED = {
    "parameters": ("hide-input", "Device and budget"),
    "setup": ("hide-input", "Set-up"),
    "test": ("hide-output", "What the test says to a right answer"),
}
OWN = re.compile(r"(?m)^course\.(end|progress|guesses)\(")  # tells how far a learner is, and on a page there is none
BAR = re.compile(r"\d ?%\|.*\|")  # tqdm's
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def joined(unit: Unit) -> list[dict]:
    """The cells of the learner's notebook, each with what the solution's cell of the same id printed and drew.

    The solution has to have run: `is_current`. Cells tagged "remove-cell", as Jupyter Book calls it, are left out.
    """
    ran = {cell.get("id"): cell for cell in _executed(unit)}
    cells = json.loads(unit.release.read_text(encoding="utf-8"))["cells"]
    cells = [cell for cell in cells if "remove-cell" not in cell["metadata"].get("tags", [])]
    for cell in cells:
        if cell["cell_type"] == "code":
            cell["outputs"] = [] if OWN.search(text(cell)) else ran[cell["id"]]["outputs"]
    return cells


def page(unit: Unit) -> dict:
    """The notebook that Sphinx turns into the page of `unit`."""
    cells, heading = [], unit.name
    for cell in joined(unit):
        role, source = kind(cell), text(cell)
        shown = {"cell_type": cell["cell_type"], "id": cell["id"], "metadata": {}, "source": source}
        cells.append(shown)
        if cell["cell_type"] == "code":
            said = [] if role == "answer" else outputs(cell)
            shown |= {"execution_count": None, "outputs": said, "metadata": _look(role, heading, said)}
        else:
            heading = last_heading(source) or heading
        if role == "answer":
            cells.append(_help(unit, exercise_id(cell)))
    cells.insert(1, _markdown(f"{unit.name}-links", _links(unit)))
    return notebook(cells)


def is_current(unit: Unit) -> bool:
    """Whether build/executed/ holds the solution of `unit` as it stands, run to its end."""
    try:
        ran = _executed(unit)
    except (OSError, ValueError, KeyError):
        return False
    solution = json.loads(unit.solution.read_text(encoding="utf-8"))["cells"]
    wanted = {cell["id"]: text(cell) for cell in solution}
    there = {
        cell.get("id"): text(cell) for cell in ran if "injected-parameters" not in cell["metadata"].get("tags", [])
    }
    failed = any(output["output_type"] == "error" for cell in ran for output in cell.get("outputs", []))
    return there == wanted and not failed


def outputs(cell: dict) -> list[dict]:
    """What a cell printed and drew, as a page can show it: no progress bars, no widgets, no colour codes."""
    kept = []
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream":
            if not kept or kept[-1]["output_type"] != "stream":
                kept.append({"output_type": "stream", "name": "stdout", "text": ""})
            kept[-1]["text"] += "".join(output["text"])
        elif output["output_type"] in ("display_data", "execute_result"):
            best = next((form for form in SHOWN if form in output["data"]), None)
            if best and not any("widget" in form for form in output["data"]):
                kept.append(
                    {
                        "output_type": "display_data",
                        "data": {best: deepcopy(output["data"][best])},
                        "metadata": output.get("metadata", {}),
                    }
                )
    for output in kept:
        if output["output_type"] == "stream":
            output["text"] = without_bars(output["text"])
    return [output for output in kept if output["output_type"] != "stream" or output["text"].strip()]


def alt_text(output: dict, heading: str) -> str:
    """What a picture shows: its own description, or the heading that it stands under."""
    own = output.get("metadata", {}).get("image/png", {}).get("alt") or output.get("metadata", {}).get("alt")
    return own or f"Figure below “{heading}”"


def last_heading(markdown: str) -> str:
    """The last heading of a text cell without its marks, or ""."""
    found = re.findall(r"(?m)^#{1,4} +(.+?)\s*$", markdown)
    return re.sub(r"[*`]", "", found[-1]) if found else ""


def _executed(unit: Unit) -> list[dict]:
    path = unit.root / "build" / "executed" / unit.name / f"{unit.name}.ipynb"
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def without_bars(printed: str) -> str:
    """Printed text as a terminal leaves it, what was overwritten after a carriage return gone, and without bars."""
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1].rstrip() for line in ANSI.sub("", printed).split("\n")]
    return "\n".join(line for line in lines if not BAR.search(line))


def _look(role: str, heading: str, shown: list[dict]) -> dict:
    """Tags and settings of MyST-NB for a code cell; it has one alternative text for all pictures of a cell."""
    if role in FOLDED:
        tag, said = FOLDED[role]
        return {"tags": [tag], "mystnb": {"code_prompt_show": said, "code_prompt_hide": said}}
    pictures = [output for output in shown if "image/png" in output.get("data", {})]
    return {"mystnb": {"image": {"alt": alt_text(pictures[0] if len(pictures) == 1 else {}, heading)}}}


def _help(unit: Unit, exercise: str) -> dict:
    """Folds below an answer cell: the steps of its hint, then the course's own answer and why it is so."""
    given = hints.unit(unit.number)["exercises"][exercise]
    steps = given["hints"]
    folds = [
        FOLD.format(kind="hint", summary=f"Hint {number} of {len(steps)}", content=step)
        for number, step in enumerate(steps, start=1)
    ]
    content = "\n\n".join([f"```python\n{given['solution']}\n```", *filter(None, [given["why"]])])
    folds.append(FOLD.format(kind="answer", summary=f"The course’s answer to {exercise}", content=content))
    return _markdown(f"help-{exercise.replace('.', '-')}", "\n".join(folds))


def _links(unit: Unit) -> str:
    return (
        f'<p class="unit-links"><a href="../../slides/{unit.name}.html">Slides of this unit</a> · '
        "to work on it, run <code>make lab</code>. What follows is what the learner gets, with what came out on one "
        "machine; hints and answers are behind folds.</p>"
    )


def _markdown(identity: str, source: str) -> dict:
    return {"cell_type": "markdown", "id": identity, "metadata": {}, "source": source}
