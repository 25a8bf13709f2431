"""What a unit's source holds for who is stuck: hints, reference answers, and which exercise defines which name.

In a solution region, a comment `# HINT: …` is one step and `# WHY: …` the reason; lines below that begin with `#` and
at least three spaces go on with it. The build writes all of it to `helpers/exercises/uNN.json`.
"""

import json
import re
import textwrap

from tools.problems import BEGIN_SOLUTION, END_SOLUTION, Names, regions
from tools.source import exercise_id, kind, text

MARK = re.compile(r"\s*# (HINT|WHY):\s*(.*)")
GOES_ON = re.compile(r"\s*#\s{3,}(\S.*)")


def extract(notebook: dict) -> dict:
    """The content of `uNN.json` (see `helpers.hints.unit`) from a solution notebook."""
    exercises, answers, others, points = {}, {}, set(), {}
    for cell in notebook["cells"]:
        role = kind(cell)
        if role == "answer":
            exercise = exercise_id(cell)
            exercises[exercise] = _entry(text(cell))
            answers |= dict.fromkeys(sorted(Names(text(cell)).bound), exercise)
        elif role == "test":
            points[exercise_id(cell)] = cell["metadata"]["nbgrader"]["points"]
        elif role != "text":
            others |= Names(text(cell)).bound
    exercises = {name: entry | {"points": points.get(name, 0)} for name, entry in exercises.items()}
    return {"answers": answers, "exercises": exercises, "names": sorted(others - set(answers))}


def to_text(content: dict) -> str:
    """The file, one spelling for one content."""
    return json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def _entry(source: str) -> dict:
    code, said, current = [], {"HINT": [], "WHY": []}, None
    inside = regions(source, BEGIN_SOLUTION, END_SOLUTION)
    lines = source.splitlines()
    # A region that stands alone is the answer; one in a function needs the lines around it.
    alone = all(not lines[begin - 1].startswith((" ", "\t")) for begin, _ in inside)
    for number, line in enumerate(lines, start=1):
        if any(number in pair for pair in inside):
            continue
        within = any(begin < number < end for begin, end in inside)
        if within and (found := MARK.match(line)):
            current = said[found[1]]
            current.append(found[2])
        elif within and current is not None and (found := GOES_ON.match(line)):
            current[-1] = f"{current[-1]} {found[1]}"
        else:
            current = None
            if within or not alone:
                code.append(line)
    answer = textwrap.dedent("\n".join(code)).strip()
    return {"hints": said["HINT"], "solution": answer, "why": " ".join(said["WHY"])}
