"""What a unit's *Predict* exercises may ask with other numbers: `solutions/NN-name/variants.py`, and what it makes of a
notebook.

    def givens(pick):                        every given, by name; `pick(usual, *others)` draws one of the others
        gpu = pick("H100 SXM", "H200 SXM")
        return {"gpu": gpu, "bandwidth": data.device(gpu)["bandwidth_GBps"]}

    TEXT = ["**{bandwidth:,} GB/s**"]        where they stand in the unit; (text, 2) for what stands there twice

A text is looked up with the usual givens and written with the drawn ones. An exercise varies when its check has
keyword-only parameters: these are filled with the givens of the same name.
"""

import ast
import importlib
import importlib.util
import inspect
import random
import re
from collections.abc import Callable
from types import ModuleType

from helpers import check
from tools.problems import BEGIN_HIDDEN, END_HIDDEN
from tools.source import exercise_id, kind, text
from tools.units import CourseError, Unit


def module(unit: Unit) -> ModuleType | None:
    """The unit's `variants.py`; None for a unit that is the same in every class."""
    path = unit.source.with_name("variants.py")
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location(f"variants_{unit.number}", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def usual(unit: Unit) -> dict:
    """The givens of the course as it is committed; {} for a unit without `variants.py`."""
    loaded = module(unit)
    return loaded.givens(lambda first, *others: first) if loaded else {}


def drawn(unit: Unit, seed: str) -> dict:
    """Givens drawn from `seed`, each of them another than the usual one."""
    dice = random.Random(f"{seed} {unit.number}")
    return module(unit).givens(lambda first, *others: dice.choice(others))


def of_check(exercise: str, givens: dict) -> dict:
    """Those of `givens` that the check of `exercise` takes; {} for an exercise that is the same in every class."""
    importlib.import_module(f"helpers.exercises.u{exercise[:2]}")
    parameters = inspect.signature(check.find(exercise)).parameters.values()
    wanted = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    missing = sorted(set(wanted) - set(givens))
    if missing:
        raise CourseError(f"the check of {exercise} takes {', '.join(missing)}, which variants.py does not give")
    return {name: givens[name] for name in wanted}


def written(source: str, givens: dict) -> str:
    """`source` with every `G.name` as the literal of that given, and `G["name"]` within other text as its words."""
    source = re.sub(r'G\["(\w+)"\]', lambda m: str(givens[m[1]]), source)
    return re.sub(r"\bG\.(\w+)", lambda m: repr(givens[m[1]]), source)


def vary(notebook: dict, unit: Unit, givens: dict) -> list[str]:
    """Write `givens` into the cells of a solution notebook, in place; returns what cannot be done, in words."""
    before, texts = usual(unit), module(unit).TEXT
    found: dict[int, list[tuple[int, int, str]]] = {}
    problems = []
    for entry in texts:
        template, times = entry if isinstance(entry, tuple) else (entry, 1)
        old, new = template.format(**before), template.format(**givens)
        words = r"\s+".join(map(re.escape, old.split()))
        # A number or name is looked up whole.
        pattern = re.compile(r"(?<![\w.])" * old[0].isalnum() + words + r"(?!\w)" * old[-1].isalnum())
        asked = [(i, text(cell)) for i, cell in enumerate(notebook["cells"]) if kind(cell) != "test"]
        spots = [(i, m) for i, source in asked for m in pattern.finditer(source)]
        if len(spots) != times:
            problems.append(f"{unit.name}: {old!r} stands {len(spots)} times in the source, not {times}")
        for i, match in spots:
            found.setdefault(i, []).append((match.start(), match.end(), new))
    for i, spans in found.items():
        spans.sort()
        problems += [
            f"{unit.name}: two texts of variants.py overlap at {b[2]!r}"
            for a, b in zip(spans, spans[1:], strict=False)
            if b[0] < a[1]
        ]
        source = text(notebook["cells"][i])
        for start, end, new in reversed(spans):
            source = source[:start] + new + source[end:]
        notebook["cells"][i]["source"] = source.splitlines(keepends=True)
    for cell in notebook["cells"]:
        if kind(cell) == "test" and (mine := of_check(exercise_id(cell), givens)):
            cell["source"] = _with_givens(text(cell), mine).splitlines(keepends=True)
    return problems


def hide(notebook: dict, hidden: Callable[[str], str | None]) -> None:
    """Replace the hidden tests of each exercise by `hidden(exercise)`, where that is not None, in place."""
    for cell in notebook["cells"]:
        if kind(cell) == "test" and (lines := hidden(exercise_id(cell))) is not None:
            head, rest = text(cell).split(BEGIN_HIDDEN)
            tail = rest.split(END_HIDDEN)[1]
            cell["source"] = f"{head}{BEGIN_HIDDEN}\n{lines}\n{END_HIDDEN}{tail}".splitlines(keepends=True)


def _with_givens(source: str, givens: dict) -> str:
    """The test cell with `given={…}` in its call of `check.grade`."""
    calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and ast.unparse(n.func) == "check.grade"]
    (call,) = calls
    lines = source.splitlines(keepends=True)
    line = lines[call.end_lineno - 1].encode()
    at = call.end_col_offset - 1
    lines[call.end_lineno - 1] = (line[:at] + f", given={givens!r}".encode() + line[at:]).decode()
    return "".join(lines)
