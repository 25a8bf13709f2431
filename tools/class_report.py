"""One HTML page about a class: which exercise is too hard, which slips were made how often, what ran into limits."""

import html
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from tools.alike import Pair
from tools.grading import Exercise, Result
from tools.predictions import Quantity

HARD = 0.5  # an exercise that fewer than half of those who answered it have right
MOST_MESSAGES = 6
COUNTED = re.compile(r"✗ \S+\s+\d+ of \d+ right, ")
SEVERAL = re.compile(r"(all \d+|\d+ of them \(.*?\)): ")  # parts in which the same slip was made

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .25rem .6rem; vertical-align: top }
tr { border-top: 1px solid #ddd } .bar { display: inline-flex; width: 14rem; height: .9rem; background: #eee }
.full { background: #3b8f5a } .part { background: #c9a227 } .none { background: #b5483a } .hard { font-weight: 600 }
small { color: #666 }
"""


def page(
    results: list[Result], absent: list[tuple[str, str]], alike: list[Pair], predicted: Iterable[Quantity] = ()
) -> str:
    """The page, complete; `alike` are pairs of submissions that somebody may want to look at."""
    units = sorted({r.unit for r in results} | {unit for _, unit in absent})
    body = [_unit(u, [r for r in results if r.unit == u], sum(unit == u for _, unit in absent)) for u in units]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>The class</title><style>{STYLE}</style>'
        f"<h1>The class</h1><p>Green is right, yellow right in part, red wrong; "
        "the rest of a bar has no answer. <b>Bold</b>: fewer than half of those who answered have it right.</p>"
        f"{''.join(body)}{_predicted(list(predicted))}{_alike(alike)}</html>\n"
    )


def _unit(unit: str, results: list[Result], absent: int) -> str:
    graded = [r for r in results if not r.problem]
    exercises: dict[str, list[Exercise]] = defaultdict(list)
    for result in graded:
        for exercise in result.counted:
            exercises[exercise.id].append(exercise)
    order = sorted(exercises, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])
    rows = "".join(_exercise(name, exercises[name]) for name in order)
    human = [f"<li>{html.escape(r.student)}: {html.escape(r.problem)}</li>" for r in results if r.problem]
    most = max((r.max_points for r in graded), default=0)
    mean = f", mean {sum(r.points for r in graded) / len(graded):.1f} of {most:g}" if graded else ""
    return (
        f"<h2>{html.escape(unit)}</h2><p>{len(graded)} graded{mean}, {len(human)} need a human, {absent} not "
        f"submitted</p><table><tr><th>exercise<th>points<th><th>what went wrong, how often</tr>{rows}</table>"
        + (f"<p>Need a human:</p><ul>{''.join(human)}</ul>" if human else "")
    )


def _exercise(name: str, given: list[Exercise]) -> str:
    full = sum(e.full for e in given)
    part = sum(not e.full and (e.points or 0) > 0 for e in given)
    blank = sum(not e.answered for e in given)
    wrong = len(given) - full - part - blank
    slips = Counter(slip for e in given if not e.full and e.answered for slip in _slips(e))
    told = "".join(f"<div>{count} × {html.escape(slip)}</div>" for slip, count in slips.most_common(MOST_MESSAGES))
    rest = sum(slips.values()) - sum(count for _, count in slips.most_common(MOST_MESSAGES))
    late = sum(e.timed_out for e in given)
    told += f"<div><small>and {rest} others</small></div>" if rest else ""
    told += f"<div><small>{late} × stopped because it took too long</small></div>" if late else ""
    answered = len(given) - blank
    hard = ' class="hard"' if answered and full / answered < HARD else ""
    bar = _bar(*(n / len(given) for n in (full, part, wrong)))
    return (
        f"<tr><td{hard}>{name}<td>{given[0].max_points:g}<td>{bar}<small>{full} right, {part} in part, {wrong} wrong, "
        f"{blank} blank</small><td>{told}</tr>"
    )


def _slips(exercise: Exercise) -> list[str]:
    """What was said, without the learner's own numbers, so that equal slips are counted together.

    An exercise that gives points for each of its parts has a line for each that is wrong, or for several that have the
    same slip, which then counts once.
    """
    first, *others = exercise.message.split("\n")
    parts = [line.removeprefix("✗ ") for line in others if line.startswith("✗ ")]
    if not parts or not COUNTED.match(first):
        parts.insert(0, re.sub(r"^✗ [\d.]+[a-z]?\s+", "", first))
    parts = [SEVERAL.sub("several: ", part, count=1) for part in parts]
    return [re.sub(r"\bis -?[\d.,]+(e[+-]?\d+)?\b", "is …", part)[:160] or "no message" for part in parts]


def _bar(full: float, part: float, wrong: float) -> str:
    parts = zip(("full", "part", "none"), (full, part, wrong), strict=True)
    inner = "".join(f'<span class="{kind}" style="width:{100 * share:.1f}%"></span>' for kind, share in parts)
    return f'<span class="bar">{inner}</span>'


def _predicted(quantities: list[Quantity]) -> str:
    if not quantities:
        return ""
    rows = "".join(
        f"<tr><td>{html.escape(q.key)}<td>{len(q.ratios)}<td>{q.median:.2g}<td>{q.near}<td>{_strip(q.ratios)}</tr>"
        for q in quantities
    )
    return (
        "<h2>Predicted and measured</h2><p>From the logs that were handed in: what came out ÷ what was predicted. "
        "A dot is a learner; the scale runs from a tenth to ten times, its middle is 1.</p>"
        "<table><tr><th>quantity<th>learners<th>median<th>within a quarter<th>measured ÷ predicted</tr>"
        f"{rows}</table>"
    )


def _strip(ratios: list[float]) -> str:
    """A dot for each ratio on a logarithmic line from 0.1 to 10; what lies beyond sits at its end."""
    places = [110 * (1 + min(1, max(-1, math.log10(ratio)))) + 5 for ratio in ratios]
    dots = "".join(f'<circle cx="{x:.0f}" cy="8" r="3.5" fill="#36c" fill-opacity=".45"/>' for x in places)
    lines = '<path d="M5 8H225M115 2V14" stroke="#999"/>'
    return f'<svg width="230" height="16" role="img" aria-label="ratios">{lines}{dots}</svg>'


def _alike(pairs: list[Pair]) -> str:
    if not pairs:
        return ""
    rows = "".join(
        f"<tr><td>{html.escape(p.one)}<td>{html.escape(p.other)}<td>{p.exercise}<td>{100 * p.share:.0f} %</tr>"
        for p in pairs
    )
    return (
        "<h2>Alike after renaming</h2><p>Answers whose code is the same but for names, numbers and comments. Short "
        "exercises have few solutions, so this says where to look and no more.</p>"
        f"<table><tr><th>one<th>other<th>exercise<th>in common</tr>{rows}</table>"
    )
