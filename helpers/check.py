"""What a notebook cell calls to grade an answer.

    check.grade("02.1", kv_bytes_per_token)

looks the exercise up in `helpers/exercises/u02.py`, prints one line when the answer is right and raises
`Wrong` or `NotAnswered` when it is not. Both show as one short message, without a traceback. Nothing is ever
written to stderr, because nbgrader scores a test cell that does so 0.
"""

import contextlib
import importlib
import inspect
import io
import linecache
import math
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable

import numpy as np

from helpers import estimates
from helpers.blanks import absent, blank_in, install, is_blank
from helpers.friendly import Friendly, say, shell
from helpers.hints import hint, offer, solution, varied
from helpers.numbers import pretty
from helpers.slips import diagnose

__all__ = [
    "CheckFailed", "NotAnswered", "Wrong", "call", "choice", "close", "entries", "exercise", "grade", "hint", "number",
    "near", "part", "require", "seed", "share", "solution",
]  # fmt: skip

# An endless loop in a learner's code is stopped: one call of theirs, and a check as a whole, which may call it often.
# Counted is what it computes, for a busy machine may keep it waiting; and in the end what it waits, so much longer.
CALL_SECONDS, CHECK_SECONDS = 10.0, 60.0
PATIENCE = 10

trial_seeds: random.Random | None = None  # a grader's, which a learner cannot search for
_EXERCISES: dict[str, Callable] = {}
_parts: list["CheckFailed | None"] = []  # of the running check: what is wrong with each part
_shown: list[str] = []  # what the running check wants printed beside its tick
_misses: dict[str, int] = {}  # wrong answers of this session, by exercise

install()


class CheckFailed(Friendly, AssertionError):
    """An answer that earns no point; notebooks show its message alone."""

    exercise = ""
    offer = ""  # what to do when stuck
    name = ""  # of the number in question, and what is said of it
    said = ""

    def message(self) -> str:
        said = f"✗ {self.exercise}  {self}" if self.exercise else f"✗ {self}"
        return f"{said}\n{self.offer}" if self.offer else said


class NotAnswered(CheckFailed):
    """The blank is still blank."""

    said = "not answered yet"

    def message(self) -> str:
        return f"… {self}. Fill in the cell above, run it, then run this one again."


class Wrong(CheckFailed):
    """An answer was given and is not right; the message names the slip."""


class _Endless(BaseException):
    """A learner's code took too long; no `except Exception` of theirs may keep it going."""


def exercise(name: str) -> Callable[[Callable], Callable]:
    """Register the decorated function as the check of exercise `name` ("02.1").

    The function receives the learner's answers in the order `grade` got them. It returns when they are right
    (a returned string is printed beside the tick, in place of the numbers checked) and raises `Wrong` when not.

    Raises ValueError when another function has that name already.
    """

    def register(function: Callable) -> Callable:
        known = _EXERCISES.get(name)
        # A module that is reloaded registers its own checks again.
        if known is not None and _origin(known) != _origin(function):
            raise ValueError(f"exercise {name} has two checks: {' and '.join(map(_origin, (known, function)))}")
        _EXERCISES[name] = function
        return function

    return register


def _origin(function: Callable) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def grade(name: str, *answers, points: float | None = None, given: dict | None = None) -> float | None:
    """Check the answers to exercise `name` ("02.1").

    Raises NotAnswered, or Wrong with a message that names the slip. ValueError for an exercise that does not
    exist and TypeError for a wrong number of answers are mistakes of the notebook, not of the learner.

    With `points` the parts of the exercise (see `part`) count singly: returns the share of `points` for those that
    are right, and prints what is wrong with each of the others. If none is right it raises, and says the same.

    `given` holds the numbers of an exercise that a variant of the course asks with others than the usual ones.
    """
    function, given = find(name), given or {}
    bound = inspect.signature(function).bind(*answers, **given)
    if given:
        varied.add(name)
    _shown.clear()
    _parts.clear()
    noise = io.StringIO()
    try:
        with contextlib.redirect_stderr(noise), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if points is None or any(map(is_blank, answers)):
                _refuse_blanks(name, bound.arguments)
            with _limit(CHECK_SECONDS):
                said = function(*answers, **given)
            failed = [failure for failure in _parts if failure]
            if failed and len(failed) < len(_parts) and points is not None and _one_for_all(answers, len(failed)):
                raise Wrong(
                    "the same number in all places earns nothing: where it is right, that may be chance. Look at each "
                    "by itself."
                )
            if failed and (points is None or len(failed) == len(_parts)):
                raise _whole(failed) if points else next((f for f in failed if isinstance(f, Wrong)), failed[0])
    except NotAnswered as failure:
        raise NotAnswered(str(failure).replace("this exercise", f"exercise {name}")) from None
    except CheckFailed as failure:
        raise _missed(name, failure) from None
    except (Exception, SystemExit, _Endless) as error:
        space = getattr(shell(), "user_ns", None)
        # Of other cells' names many are words that a learner's own function may have forgotten to set, such as `scale`.
        gone = space and absent(error, space, name[:2], name)
        raise _missed(name, Wrong(gone or _explain(error))) from None
    finally:
        if noise.getvalue().strip():
            print(noise.getvalue().strip())
    _note(name, 1 - len(failed) / len(_parts) if failed else 1.0)
    if failed:
        good = len(_parts) - len(failed)
        earned = share(points * good / len(_parts), points)
        right = f"{good} of {len(_parts)} right, {pretty(earned)} of {points:g} points"
        say(f"✗ {name}  {right}", *_lines(failed), *filter(None, [_offer(name)]))
        return earned
    if isinstance(said, str):
        _shown[:] = [said]
    say("  ".join([f"✓ {name}", *_shown]))
    return None if points is None else float(points)


@contextlib.contextmanager
def part():
    """Around the check of one of several answers in an exercise: a wrong one does not keep the next from being seen."""
    try:
        yield
        _parts.append(None)
    except CheckFailed as failure:
        _parts.append(failure)


def share(earned, most: float) -> float:
    """`earned` as the last line of a test cell that gives part of its `most` points: a plain float from 0 to `most`.

    nbgrader takes NaN, numpy's numbers and text for full marks, and more than the most for an error. Raises ValueError
    for what is no finite number.
    """
    earned = float(earned)
    if not math.isfinite(earned):
        raise ValueError(f"{earned} is no number of points")
    return min(max(earned, 0.0), float(most))


def near(answer, expect: float, *, rel: float = 0.0, absolute: float = 0.0) -> bool:
    """Whether `answer` is a number within `rel` of `expect`, or within `absolute`; for hidden tests of parts.

    What is no number is not near, and does not keep the other parts from counting.
    """
    try:
        return abs(_plain(answer, "it") - expect) <= max(rel * abs(expect), absolute)
    except CheckFailed:
        return False


def _one_for_all(answers: Iterable, missed: int) -> bool:
    """Whether all numbers in the dictionaries among `answers` are one and the same, to 1 %, and not all are right.

    `missed` parts are not right. What is blank or no number hides no guess; twice the same number may be meant.
    """
    entered, values = [value for answer in answers if isinstance(answer, dict) for value in answer.values()], []
    for value in entered:
        with contextlib.suppress(CheckFailed):
            values.append(_plain(value, "it"))
    if len(values) < 3 or missed <= len(entered) - len(values):
        return False
    return max(values) - min(values) <= 0.01 * max(map(abs, values))


def _whole(failed: list[CheckFailed]) -> CheckFailed:
    """What to raise where no part is right: it says what each of them wants, unless all are blank."""
    if all(isinstance(failure, NotAnswered) for failure in failed):
        return failed[0]
    lines = _lines(sorted(failed, key=lambda failure: isinstance(failure, NotAnswered)))
    return Wrong("\n".join(lines).removeprefix("✗ "))


def _lines(failed: list[CheckFailed]) -> list[str]:
    """What the parts want: a line each, and one for all that made the same slip."""
    alike: dict[str | CheckFailed, list[CheckFailed]] = {}
    for failure in failed:
        alike.setdefault(failure.said or failure, []).append(failure)
    return [_line(*same) for same in alike.values()]


def _line(first: CheckFailed, *others: CheckFailed) -> str:
    mark = "…" if isinstance(first, NotAnswered) else "✗"
    if not others:
        return f"{mark} {first.name} is {first.said}" if isinstance(first, NotAnswered) else f"{mark} {first}"
    names = "; ".join(failure.name for failure in (first, *others))
    who = f"all {len(_parts)}" if len(others) + 1 == len(_parts) else f"{len(others) + 1} of them ({names})"
    return f"{mark} {who}: {first.said}"


def _missed(name: str, failure: CheckFailed) -> CheckFailed:
    """The failure of exercise `name`, with an offer of help from the second one on."""
    failure.exercise = name
    _note(name, 0.0)
    failure.offer = _offer(name)
    return failure


def _offer(name: str) -> str:
    """What to do about exercise `name`, missed once more: nothing the first time, nor where a grader asks."""
    _misses[name] = _misses.get(name, 0) + 1
    return offer(name) if _misses[name] > 1 and trial_seeds is None else ""


def _note(name: str, share: float) -> None:
    """Log what a test gave, where it runs in a learner's notebook; a grader has a gradebook."""
    if shell() is not None:
        estimates.checked(name, share)


@contextlib.contextmanager
def _limit(seconds: float):
    """Raise _Endless in the running code after so many seconds; no limit outside the main thread, or on Windows.

    Python code is interrupted between two of its instructions; a single call into a library is not.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number, frame):
        if time.thread_time() - worked < seconds and time.monotonic() - started < PATIENCE * seconds:
            return
        raise _Endless(f"it was stopped after {seconds:.0f} s: does a loop of it never end?")

    started, worked = time.monotonic(), time.thread_time()
    before = signal.signal(signal.SIGALRM, stop)
    # Again every second or so: it may have waited, and code that swallows the first one is stopped by the next.
    outer, interval = signal.setitimer(signal.ITIMER_REAL, seconds, min(1.0, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if outer:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, outer - (time.monotonic() - started)), interval)


def seed(usual: int) -> int:
    """The first seed of a trial: `usual` for a learner, so that a message can be met again; a grader draws its own."""
    return usual if trial_seeds is None else trial_seeds.randrange(2**31)


def require(condition, message: str) -> None:
    """Raise Wrong(message) unless `condition` holds. The message names the slip and what to do about it."""
    if not bool(condition):
        raise Wrong(message)


def number(
    answer,
    expect: float,
    *,
    unit: str = "",
    rel: float = 1e-3,
    absolute: float = 0.0,
    slips: dict[str, float | Iterable[float]] | None = None,
    name: str = "your answer",
) -> float:
    """Check one number and return it as a plain float.

    `expect` is the right value in `unit`; right is within `rel` of it, or within `absolute`. `slips` maps a
    message to the value (or values) that this slip produces. Python, numpy and torch scalars are numbers;
    text, booleans, arrays, NaN and infinity are not. A wrong number gets the message of the nearest slip, or
    a general diagnosis (factor of two, bits for bytes, GiB for GB, ms for s, sign), or else "too high/low". The truth
    rounded too far is told how many digits are wanted.

    Raises NotAnswered for None and `...`; Wrong otherwise.
    """
    value = _plain(answer, name)
    expect = float(expect)
    if abs(value - expect) <= max(rel * abs(expect), absolute):
        _shown.append(f"{pretty(value)} {unit}".strip())
        return value
    near = max(rel, 2e-3)
    digits = _digits_wanted(value, expect, max(rel * abs(expect), absolute))
    right_so_far = f"that is right as far as it goes; give {digits} digits"
    found = []
    for message, values in (slips or {}).items():
        for slip in values if isinstance(values, Iterable) else [values]:
            distance = abs(value - float(slip))
            # Nearer to the slip than to the truth: a slip beside the right answer must not swallow the rest.
            if distance <= near * abs(slip) and distance <= abs(value - expect):
                found.append((distance, message))
    if found:
        # Two slips may lead to one value: then both are said.
        closest = min(found)[0]
        told = " Or: ".join(dict.fromkeys(message for distance, message in found if math.isclose(distance, closest)))
        # Who rounded made no mistake of thought: that comes first.
        said = f"{right_so_far}. Or: {told}" if digits else told
    else:
        said = f"{right_so_far if digits else diagnose(value, expect, near, unit)}."
    failure = Wrong(f"{_lead(name, value, unit)}{'.' if found and not digits else ':'} {said}")
    failure.name, failure.said = name, said
    raise failure


def entries(name: str, answer, keys: Iterable) -> list[tuple]:
    """The (key, value) pairs of a dictionary that the notebook gave with blanks in it, in the order of `keys`.

    Raises Wrong for anything but a dict, and for one that lost a key.
    """
    keys = list(keys)
    named = ", ".join(map(repr, keys))
    require(
        isinstance(answer, dict), f"{name} has to stay a dictionary with the entries {named}; it is {_kind(answer)}."
    )
    missing = [key for key in keys if key not in answer]
    require(not missing, f"{name} has no entry {', '.join(map(repr, missing))}: keep the names as they were given.")
    return [(key, answer[key]) for key in keys]


def choice(answer, expect: str, options: dict[str, str], *, name: str = "your answer") -> str:
    """Check an answer picked from fixed words; `options` maps each wrong word to why it is wrong.

    Case and surrounding blanks do not matter. Returns the word.
    """
    words = sorted([expect, *options])
    if is_blank(answer):
        raise _blank(name)
    require(
        isinstance(answer, str),
        f"{name} has to be one of the words {', '.join(map(repr, words))}, in quotes; it is {_kind(answer)}.",
    )
    word = str.strip(answer).lower()  # of a subclass of str, too, what it is and not what it says
    lookup = {key.lower(): reason for key, reason in options.items()}
    if word == expect.lower():
        _shown.append(expect)
        return expect
    require(word in lookup, f"{name} is {answer!r}; choose one of {', '.join(map(repr, words))}.")
    raise Wrong(f"{name} is {answer!r}: {lookup[word]}")


def close(
    actual,
    expect,
    *,
    rel: float = 1e-4,
    absolute: float = 1e-5,
    slips: dict | None = None,
    name: str = "the result",
) -> None:
    """Check an array (torch, numpy or nested lists) against `expect`, element by element.

    `slips` maps a message to the array that this slip produces. Raises Wrong naming the slip, a wrong shape
    (both shapes, and whether only the order of axes is off), NaN, a common factor, or the first element off.
    """
    if is_blank(actual):
        raise Wrong(f"{name} is None: is a `return` line missing?")
    got, want = _array(actual, name), _array(expect, "the expected value")
    found = []
    for message, wrong in (slips or {}).items():
        wrong = _array(wrong, "a slip")
        if _same(got, wrong, rel, absolute) and not _same(wrong, want, rel, absolute):
            found.append(message)
    if found:
        raise Wrong(" Or: ".join(found))
    if got.shape != want.shape:
        hint = ""
        if sorted(got.shape) == sorted(want.shape):
            hint = " The sizes are right and their order is not: transpose or permute."
        elif got.size == want.size:
            hint = " The number of elements is right: reshape."
        raise Wrong(f"{name} has shape {list(got.shape)} and has to have shape {list(want.shape)}.{hint}")
    if not np.isfinite(got).all() and np.isfinite(want).all():
        raise Wrong(f"{name} holds NaN or infinity: a division by zero, or a softmax over nothing?")
    if _same(got, want, rel, absolute):
        return
    safe = np.abs(want) > max(absolute, 1e-12)
    ratios = got[safe] / want[safe]
    if ratios.size and abs(ratios[0]) > 0 and np.allclose(ratios, ratios[0], rtol=1e-3):
        raise Wrong(f"every element of {name} is off by the same factor: {diagnose(float(ratios[0]), 1.0)}.")
    off = ~np.isclose(got, want, rtol=rel, atol=absolute)
    first = tuple(int(i) for i in np.argwhere(off)[0])
    largest = pretty(float(np.abs(got - want).max()))
    raise Wrong(
        f"{name} is wrong in {int(off.sum()):,} of {off.size:,} elements; the first is at index "
        f"{list(first)}, where it is {pretty(float(got[first]))} (largest error {largest})."
    )


def call(function: Callable, *arguments, _gives="`return`", **options):
    """Call the learner's function, for CALL_SECONDS at most; a result of None is a stub, or a forgotten `return`
    (or `yield`, when that is what `_gives` its results)."""
    with _limit(CALL_SECONDS):
        result = function(*arguments, **options)
    if result is None:
        with contextlib.suppress(OSError, TypeError):
            # A function that runs in a grading sandbox has its source there, and says so itself.
            blank = getattr(function, "blank", None)
            if "YOUR CODE HERE" in inspect.getsource(function) if blank is None else blank:
                raise _blank(f"{function.__name__}()")
        name = getattr(function, "__name__", "your function")
        raise Wrong(f"{name} returns None: a {_gives} line is missing.")
    return result


def find(name: str) -> Callable:
    module = f"helpers.exercises.u{name.split('.')[0]}"
    if name not in _EXERCISES:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    if name not in _EXERCISES:
        raise ValueError(f"there is no exercise {name!r}: {module} does not register it")
    return _EXERCISES[name]


def _blank(name: str) -> NotAnswered:
    failure = NotAnswered(f"this exercise is not answered yet ({name} is still blank)")
    failure.name = name
    return failure


def _refuse_blanks(name: str, answers: dict) -> None:
    """NotAnswered when a value is None or `...`, or when a function or method is still its stub."""
    for label, answer in answers.items():
        for part in answer if isinstance(answer, tuple) else [answer]:
            if missing := blank_in(label, part):
                raise NotAnswered(f"exercise {name} is not answered yet ({missing} is still blank)")


def _plain(answer, name: str) -> float:
    if is_blank(answer):
        raise _blank(name)
    if hasattr(answer, "detach"):
        answer = answer.detach().cpu().numpy() if answer.ndim else answer.item()
    if isinstance(answer, (np.generic, np.ndarray)) and answer.ndim == 0:
        answer = answer.item()
    if (
        isinstance(answer, (bool, str, bytes, complex))
        or not hasattr(answer, "__float__")
        or isinstance(answer, np.ndarray)
    ):
        raise Wrong(f"{name} has to be one number; it is {_kind(answer)}.")
    try:
        value = float(answer)
    except (TypeError, ValueError, OverflowError) as error:
        raise Wrong(f"{name} has to be one number; float() of it says: {error}.") from None
    require(not math.isnan(value), f"{name} is NaN, not a number: 0/0 or inf - inf somewhere on the way.")
    require(math.isfinite(value), f"{name} is infinite: a division by zero, or an overflow.")
    return value


def _digits_wanted(value: float, expect: float, tolerance: float) -> int:
    """How many digits are exact enough, where `value` is `expect` rounded to fewer, two at least; 0 where it is not."""
    rounded = {digits: float(f"{expect:.{digits}g}") for digits in range(2, 16)}
    wanted = next((digits for digits, candidate in rounded.items() if abs(candidate - expect) <= tolerance), 16)
    return wanted if any(math.isclose(value, rounded[digits]) for digits in range(2, min(wanted, 16))) else 0


def _kind(answer) -> str:
    plain = "write a number without quotes and without commas, as in 12_000 or 4.5"
    if isinstance(answer, tuple) and answer and all(type(part) is int for part in answer):
        return f"{len(answer)} numbers, {answer}, which is what Python makes of a comma: {plain}"
    if isinstance(answer, bool):
        return f"the truth value {answer}"
    if isinstance(answer, (str, bytes)):
        return f"the text {answer!r}: {plain}" if any(c.isdigit() for c in str(answer)) else f"the text {answer!r}"
    if callable(answer):
        return "a function or class (call it, and give what it returns)"
    shape = getattr(answer, "shape", None)
    if shape is not None:
        return f"an array of shape {list(shape)}"
    kind = type(answer).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _array(value, name: str) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.numpy() if value.is_complex() else value.double().numpy()
    with contextlib.suppress(TypeError, ValueError):
        # numpy reads text as numbers, and drops what is imaginary.
        if np.asarray(value).dtype.kind not in "USc":
            return np.asarray(value, dtype=np.float64)
    raise Wrong(f"{name} has to be an array of numbers; it is {_kind(value)}.")


def _same(a: np.ndarray, b: np.ndarray, rel: float, absolute: float) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=rel, atol=absolute))


def _lead(name: str, value: float, unit: str) -> str:
    return f"{name} is {pretty(value)} {unit}".strip()


def _explain(error: BaseException) -> str:
    """Words for an exception that came out of the learner's code, with the line of theirs that raised it."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    what = str(error) if isinstance(error, _Endless) else what
    name, source = getattr(error, "place", ("", ""))  # told by a function that ran in a grading sandbox
    where = f", at your line:  {source}" if source else ""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "__main__":  # a notebook's cells, and nothing else
            code = trace.tb_frame.f_code
            name, source = code.co_name, linecache.getline(code.co_filename, trace.tb_lineno).strip()
            where = f", at your line:  {source}" if source else f", at line {trace.tb_lineno}"
        trace = trace.tb_next
    if not name and isinstance(error, _Endless):
        return what
    if not name:
        return f"what you gave cannot be used ({what}): check its type and shape against the text above."
    if isinstance(error, _Endless):
        return f"{name}() did not come back; {what}{where.replace(', at', ' It was at')}"
    return f"{name}() raised {what}{where}"
