"""Can a unit's cells be run again in any order? What each sets and reads, shared by the tests of several units."""

import builtins
import dis
import types

from helpers.blanks import global_names
from tools.source import text


def folded(cell: dict) -> bool:
    """Whether a notebook shows a cell's output and not its source."""
    return cell["metadata"].get("jupyter", {}).get("source_hidden", False)


def names_by_cell(code: list[dict]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """{name: numbers of the cells that set it} and {name: numbers of those that read it without setting it first}."""
    set_by, read_by = {}, {}
    for number, cell in enumerate(code):
        stored, read = names(compile(text(cell), "<cell>", "exec"))
        for name in stored:
            set_by.setdefault(name, []).append(number)
        for name in read - set(dir(builtins)):
            read_by.setdefault(name, []).append(number)
    return set_by, read_by


def names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Names that a module sets, and those that it, or a function in it, reads without having set them before."""
    stored, read = set(), set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            stored.add(step.argval)
        elif step.opname == "LOAD_NAME" and step.argval not in stored:
            read.add(step.argval)
        elif isinstance(step.argval, types.CodeType):
            inner = set(global_names(step.argval))
            # A comprehension runs at once; a function later, when another cell may have set the name again.
            at_once = step.argval.co_name.startswith("<") and step.argval.co_name != "<lambda>"
            read |= inner - stored if at_once else inner
    return stored, read
