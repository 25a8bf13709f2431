"""`make exercises`: docs/exercises.md, all exercises on one page for who teaches them.

For each: points, minutes, what is asked, every known wrong answer with what it is told, and other right answers. What a
wrong answer is told is not written down anywhere: it is run, as in tests/test_misconceptions.py, which also holds the
committed page to it.
"""

import re
import sys
import textwrap
from collections.abc import Callable

from helpers.check import CheckFailed
from tests.misconceptions import harness
from tools.source import gives_shares, kind, solution_notebook, text
from tools.units import ROOT, CourseError, find, write_whole

PAGE = ROOT / "docs" / "exercises.md"
INTRODUCTION = """\
# The exercises

For instructors: what is asked, what it is worth, and what goes wrong. Each known wrong answer stands with the first
words that it is told; a snippet runs after the reference answer and replaces what it names. Built by `make exercises`
from `solutions/` and `tests/misconceptions/`, and held to them by `make test`; it gives answers away.
"""
TOLD = "   → "
MOST = 300  # characters of a message


def page(told: Callable[[harness.Unit, str, int], str]) -> str:
    """The page, in Markdown; `told(unit, exercise, i)` says what the i-th known wrong answer is told."""
    parts = [INTRODUCTION]
    for unit, runs in zip(find(), harness.units(), strict=True):
        cells = solution_notebook(unit)["cells"]
        title = text(cells[0]).splitlines()[0].lstrip("# ")
        wrong, right = harness.known(runs)
        asked = {name: question(cells, name) for name in graded(cells)}
        rows = [
            f"| [{name}](#{_anchor(name, points, minutes(asked[name], name))}) | {points}{_in_parts(cells, name)} | "
            f"{minutes(asked[name], name)} | {len(wrong.get(name, ())) or 'marked by a person'} |"
            for name, points in graded(cells).items()
        ]
        total = sum(graded(cells).values()), sum(minutes(asked[name], name) for name in asked)
        parts.append(f"## {title}\n")
        parts.append("| exercise | points | minutes | known wrong answers |\n|---|---|---|---|")
        parts.append("\n".join([*rows, f"| together | {total[0]} | {total[1]} | |"]) + "\n")
        for name, points in graded(cells).items():
            parts.append(f"### {_heading(name, points, minutes(asked[name], name))}\n\n{asked[name]}\n")
            if name in wrong:
                parts.append("Wrong, and what is said:\n")
                said = [told(runs, name, i) for i in range(len(wrong[name]))]
                parts += [f"1. {_code(s)}{TOLD}{m}\n" for (s, _), m in zip(wrong[name], said, strict=True)]
                parts.append("Also right:\n")
                parts += [f"1. {_code(snippet)}" for snippet in right[name]]
    return "\n".join(parts)


def graded(cells: list[dict]) -> dict[str, int]:
    """{exercise: points} of a notebook, in order; those that a person marks among them."""
    found = [c["metadata"].get("nbgrader", {}) for c in cells]
    return {g["grade_id"].split("-", 1)[1].replace("-", "."): g["points"] for g in found if g.get("grade")}


def _in_parts(cells: list[dict], name: str) -> str:
    """What to say of an exercise that gives points for each of its numbers."""
    test = next((text(c) for c in cells if c["id"] == f"test-{_dashed(name)}"), "")
    return ", for each number its share" if gives_shares(test) else ""


def question(cells: list[dict], name: str) -> str:
    """What the text above the answer of exercise `name` asks, from the exercise's name on.

    Raises `CourseError` where none names the exercise and its minutes.
    """
    at = next(i for i, c in enumerate(cells) if re.fullmatch(rf"(answer|report)-{_dashed(name)}", c["id"]))
    texts = [text(c) for c in cells[: at + 1] if kind(c) in ("text", "report")]
    above = next((said for said in reversed(texts) if _named(said, name)), None)
    if above is None:
        raise CourseError(
            f"{name}: a text above its answer has to say “**Exercise {name}** (8 minutes)”, and what to do"
        )
    return re.sub(r"(?m)^#+ ", "", above[_named(above, name).start() :]).strip()


def minutes(asked: str, name: str) -> int:
    """How long the heading of exercise `name` says that it takes."""
    return int(_named(asked, name)["minutes"])


def message(unit: harness.Unit, exercise: str, index: int) -> str:
    """What a known wrong answer is told, on one line."""
    return line(unit.run(exercise, harness.known(unit)[0][exercise][index][0]).error)


def line(error: BaseException) -> str:
    """A failed check's message on one line, without the offer of help."""
    if isinstance(error, CheckFailed):
        error.offer = ""
    said = error.message() if isinstance(error, CheckFailed) else f"{type(error).__name__}: {error}"
    return textwrap.shorten(re.sub(r"^✗ [\d.]+[ab]?\s+", "", said), MOST, placeholder=" …").replace("<", "&lt;")


def read(page: str) -> dict[tuple[str, int], str]:
    """{(exercise, i): what the i-th wrong answer is told} of a page."""
    found: dict[tuple[str, int], str] = {}
    name, index = "", 0
    for row in page.splitlines():
        if row.startswith("### "):
            name, index = row.split()[1], 0
        elif row.startswith(TOLD):
            found[name, index] = row.removeprefix(TOLD)
            index += 1
    return found


def _named(said: str, name: str) -> re.Match | None:
    short = re.escape(name.lstrip("0"))
    return re.search(
        rf"(\*\*Exercise {re.escape(name)}\*\*|(?m:^#* ?{short} [^\n]*)) \((?P<minutes>\d+) minutes\)", said
    )


def _heading(name: str, points: int, takes: int) -> str:
    return f"{name} · {points} point{'s' * (points != 1)}, {takes} minutes"


def _anchor(name: str, points: int, takes: int) -> str:
    """As GitHub makes it from a heading."""
    return re.sub(r"[^\w -]", "", _heading(name, points, takes)).replace(" ", "-")


def _dashed(name: str) -> str:
    return name.replace(".", "-")


def _code(snippet: str) -> str:
    snippet = snippet.strip("\n")
    if "\n" not in snippet and "`" not in snippet:
        return f"`{snippet}`\n"
    return f"\n{textwrap.indent(f'```python{chr(10)}{snippet}{chr(10)}```', '   ')}\n"


def main() -> int:
    try:
        write_whole(PAGE, page(message).encode())
    except CourseError as error:
        print(error)
        return 2
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
