"""What is still blank, and what a cell says that fails because of it.

`install` gives the notebook's kernel a handler: where a cell fails and uses an answer that is blank, or a name that
only a cell above defines, it says so instead of a traceback through torch. Importing `helpers.check` installs it; `make
lab` has every kernel do so from its start, so that it also works after a restart.
"""

import ast
import difflib
import dis
import os
import re
import traceback
import types
from collections.abc import Iterable, Sequence
from pathlib import Path

from helpers import hints
from helpers.friendly import Friendly, shell


class CannotRun(Friendly, Exception):
    """A cell that needs another one first; notebooks show its message alone."""


def is_blank(value) -> bool:
    """True for None and `...`, by which the notebooks mark what is still to be filled in."""
    return value is None or value is ...


def is_stub(function) -> bool:
    """True for a Python function whose body is a docstring, `pass` or `...` and nothing else."""
    if isinstance(function, (staticmethod, classmethod)):
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        return False
    code = function.__code__
    return not code.co_names and all(
        step.opname in {"RESUME", "NOP", "RETURN_VALUE", "MAKE_CELL", "COPY_FREE_VARS"}
        or (step.opname in {"LOAD_CONST", "RETURN_CONST"} and step.argval is None)
        for step in dis.get_instructions(code)
    )


def blank_in(label: str, value) -> str | None:
    """What in `value` is still blank, as the learner would write it ("kv_gb['8k']", "Cache.append", "f()"), or None."""
    if is_blank(value):
        return label
    if isinstance(value, dict):
        return next((f"{label}[{key!r}]" for key, part in value.items() if is_blank(part)), None)
    if isinstance(value, list):
        return next((f"{label}[{i}]" for i, part in enumerate(value) if is_blank(part)), None)
    if isinstance(value, type):
        return next((f"{value.__name__}.{key}" for key, part in vars(value).items() if is_stub(part)), None)
    return f"{value.__name__}()" if is_stub(value) else None


def reason(error: BaseException, source: str, space: dict, unit: str, ran: Sequence[str] = ()) -> str | None:
    """Why a cell of `unit` ("04") failed, if it is for want of another cell; None for an error of its own.

    Args:
        source: of the cell.
        space: the names of the notebook.
        ran: sources of the cells that ran before it, whether or not they failed.
    """
    known = hints.unit(unit)
    gone = absent(error, space, unit)
    if gone and isinstance(error, NameError) and error.name not in _assigned(source):
        return _blank_behind([error.name], space, known, ran) or gone
    return _blank_behind(_reached(source, space), space, known)


def absent(error: BaseException, space: dict, unit: str, exercise: str = "") -> str | None:
    """What to do about a name that a cell of `unit` sets and the notebook does not have; None for any other error.

    Args:
        exercise: where it is given ("04.8"), only answers to exercises before it count.
    """
    known = hints.unit(unit)
    ours = {*known["answers"], *known["names"]}
    earlier = {name for name, asks in known["answers"].items() if _place(asks) < _place(exercise)}
    if not isinstance(error, NameError) or error.name in space or error.name not in (earlier if exercise else ours):
        return None
    if alike := difflib.get_close_matches(error.name, space.keys() - ours, 1, 0.85):
        return f"`{error.name}` is not there, and `{alike[0]}` is: keep the name that the notebook gives."
    return (
        f"`{error.name}` is not there yet: the kernel was restarted, or a cell above was not run. In the menu, "
        "Run → Run All Above Selected Cell; then run this cell again. Where that stops at a test that does not "
        "pass, click the cell below the test, Shift+click this one, and press Shift+Enter."
    )


def _place(exercise: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", exercise)]


def _blank_behind(names: Iterable[str], space: dict, known: dict, ran: Sequence[str] = ()) -> str | None:
    """Which exercise is still blank that one of `names` needs; one that is missing, through the cell that sets it."""
    for name in names:
        exercise = known["answers"].get(name)
        if exercise and name in space and (missing := blank_in(name, space[name])):
            return (
                f"This cell needs exercise {exercise}, which is still blank ({missing}). Fill it in and run it first."
            )
        setters = [i for i, earlier in enumerate(ran) if name not in space and name in _assigned(earlier)]
        if setters and (why := _blank_behind(_reached(ran[setters[-1]], space), space, known, ran[: setters[-1]])):
            return why
    return None


def install() -> None:
    """Let the running notebook kernel explain cells that fail for want of another; nothing where there is none."""
    if (running := shell()) is not None:
        load_ipython_extension(running)


def load_ipython_extension(shell) -> None:
    """The entry point by which IPython loads this module as an extension."""
    shell.set_custom_exc((Exception,), _show)


def _show(shell, kind, error, trace, tb_offset=None) -> None:
    why = None
    # Where helpers.hosted prepared the machine, a notebook does not lie in its unit's folder.
    unit = re.match(r"\d\d(?=-|$)", os.environ.get("COURSE_UNIT") or Path.cwd().name)
    if unit and not isinstance(error, Friendly):
        *ran, source = shell.user_ns["_ih"]
        why = reason(error, source, shell.user_ns, unit[0], ran)
    if why is None:
        # A cell that is no Python never ran: IPython's own frames would say nothing about it.
        began = any(frame.f_globals is shell.user_ns for frame, _ in traceback.walk_tb(trace))
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset, running_compiled_code=began)
    else:
        shell.showtraceback((CannotRun, CannotRun(why), None))


def _parsed(source: str) -> ast.AST:
    try:
        return ast.parse(
            "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())
        )
    except SyntaxError:
        return ast.Module([], [])


def _used(source: str) -> list[str]:
    names = [n for n in ast.walk(_parsed(source)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return list(dict.fromkeys(n.id for n in sorted(names, key=lambda n: (n.lineno, n.col_offset))))


def _reached(source: str, space: dict) -> list[str]:
    """Names that a cell uses, and behind them those that the notebook's own functions and classes use."""
    names = _used(source)
    for name in names:  # which grows on the way
        value = space.get(name)
        parts = [value, *vars(value if isinstance(value, type) else type(value)).values()]
        own = [part for part in parts if isinstance(part, types.FunctionType) and part.__globals__ is space]
        names += dict.fromkeys(inner for part in own for inner in global_names(part.__code__) if inner not in names)
    return names


def global_names(code: types.CodeType) -> list[str]:
    """Names that a function, and the functions and classes inside it, look up outside of it."""
    names = [step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return [name for name in names if name != "__name__"] + [name for part in inner for name in global_names(part)]


def _assigned(source: str) -> set[str]:
    """Names that the cell itself sets: a NameError of theirs comes from its own order, not from a cell above."""
    return {n.id for n in ast.walk(_parsed(source)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
