"""Runs a unit's test cells outside the sandbox: `check.grade` and hidden assertions, on answers from inside.

What a test cell prints, raises or ends with becomes the outputs that nbgrader reads the score from.
"""

import ast
import contextlib
import io
import math
import random
import re
import secrets
from collections.abc import Iterable

from nbformat.v4 import new_output

from helpers import check
from helpers.check import CheckFailed, NotAnswered
from helpers.friendly import Friendly
from tools.asking import HERE, Conversation, NoAnswer
from tools.problems import BEGIN_HIDDEN, END_HIDDEN

MAGIC = re.compile(r"(?m)^\s*[%!].*$")
HIDDEN_FAILED = "passes what is shown, but not a hidden test of the same exercise"


class Judge:
    """The names that the test cells of one notebook see: those of its set-up cells, and the learner's answers."""

    def __init__(self, secret: str = ""):
        """`secret` is what the seeds of trials come from; the same one draws the same trials."""
        self.secret = secret or secrets.token_hex()
        self.names = {"__name__": HERE, "device": "cpu", "budget": "quick"}
        self.used: set[str] = set()  # names that functions and classes of the set-up cells may look up

    def set_up(self, source: str) -> None:
        """Run a set-up cell of the release."""
        self.used |= _names_in(source)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(MAGIC.sub("", source), "<set-up>", "exec"), self.names)

    def test(self, name: str, source: str, answers: Iterable[str], asked: Conversation, most: float) -> list:
        """The outputs of test cell `name`, worth `most` points; `answers` are the names that come from inside.

        Raises `NoAnswer` when the kernel cannot be asked any more; every answer that is merely wrong is an output.
        """
        said = io.StringIO()
        check.trial_seeds = random.Random(f"{self.secret} {name}")
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
                # Only what this test can come to use: what an earlier exercise was answered with is not its business.
                used = self.used | _names_in(source)
                missing = {}
                for answer in answers:
                    self.names.pop(answer, None)
                    try:
                        if answer in used:
                            self.names[answer] = asked.value(answer)
                    except Exception as error:
                        missing[answer] = error
                score = self._run(name, source)
        except NoAnswer:
            raise
        except NameError as error:
            return [failure(*_undefined(error, missing))]
        except (Exception, SystemExit) as error:
            return [failure(*_told(error, _is_hidden(error, name, source)))]
        finally:
            check.trial_seeds = None
        outputs = [new_output("stream", name="stdout", text=said.getvalue()[:10_000])] if said.getvalue() else []
        if score is None:
            return outputs
        fraction = _checked(score, most)
        if fraction is None:
            return [failure("ValueError", f"{name} gave {score!r} for a score of at most {most:g}")]
        return [*outputs, new_output("execute_result", data={"text/plain": repr(fraction)}, execution_count=1)]

    def _run(self, name: str, source: str):
        """Execute a cell; returns the value of its last line, which nbgrader takes as the score, if it has one."""
        tree = ast.parse(source)
        last = tree.body[-1] if tree.body else None
        value = last.value if isinstance(last, ast.Expr) else None
        if value is not None:
            tree.body.pop()
        exec(compile(tree, f"<{name}>", "exec"), self.names)
        if value is not None:
            return eval(compile(ast.Expression(value), f"<{name}>", "eval"), self.names)
        return None


def _names_in(source: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(MAGIC.sub("", source))) if isinstance(node, ast.Name)}


def _checked(score, most: float) -> float | None:
    """`score` as nbgrader may read it; None for what it would take for full marks by mistake."""
    if isinstance(score, (int, float)) and not isinstance(score, bool) and math.isfinite(score) and 0 <= score <= most:
        return float(score)
    return None


def _undefined(error: NameError, missing: dict[str, Exception]) -> tuple[str, str]:
    name = getattr(error, "name", None)
    why = missing.get(name, error)
    if why is error:
        return "NameError", str(error)
    if isinstance(why, NameError):
        return "NameError", f"`{name}` is not defined: the cell above the test has to define it under this name"
    return type(why).__name__, f"`{name}` is nothing that can be graded ({type(why).__name__}: {why})"


def _is_hidden(error: BaseException, name: str, source: str) -> bool:
    """Whether `error` came out of the hidden part of the cell."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == f"<{name}>":
            line = trace.tb_lineno
        trace = trace.tb_next
    inside = False
    for number, text in enumerate(source.splitlines(), start=1):
        inside = (inside or BEGIN_HIDDEN in text) and END_HIDDEN not in text
        if number == line:
            return inside
    return False


def _told(error: BaseException, hidden: bool) -> tuple[str, str]:
    """(kind, message) of a failed test, without a word of the hidden test itself."""
    if isinstance(error, CheckFailed):
        error.offer = ""  # help for who sits at the notebook
        return ("NotAnswered" if isinstance(error, NotAnswered) else "Wrong"), error.message()
    if isinstance(error, Friendly):
        return type(error).__name__, error.message()
    if hidden:
        # The words of an assertion are the author's; those of an exception that the learner's code raised may quote
        # what it was given.
        authors = type(error) is AssertionError and not hasattr(error, "place") and str(error)
        what = str(error) if authors else HIDDEN_FAILED
        return "AssertionError", what if authors or type(
            error
        ) is AssertionError else f"{what} ({type(error).__name__})"
    return type(error).__name__, str(error) or type(error).__name__


def failure(kind: str, message: str):
    """The output of a test cell that earns nothing."""
    message = message[:2_000]
    return new_output("error", ename=kind, evalue=message, traceback=[message])
