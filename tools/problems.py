"""What a unit must satisfy before it is released: each trap of nbgrader's that an author can fall into, by name."""

import ast
import builtins
import symtable
from collections import Counter

from tools.source import exercise_id, kind, text

BEGIN_SOLUTION, END_SOLUTION = "### BEGIN SOLUTION", "### END SOLUTION"
BEGIN_HIDDEN, END_HIDDEN = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
NOTEBOOK_NAMES = set(dir(builtins)) | {"__name__", "display", "get_ipython"}


def source_problems(number: str, notebook: dict) -> list[str]:
    """What is wrong with a solution notebook of unit `number`; an empty list when it can be released."""
    by_kind = {name: [] for name in ("answer", "test", "setup", "parameters", "measure", "report", "text")}
    for cell in notebook["cells"]:
        by_kind[kind(cell)].append(cell)
    problems = _pairing(number, notebook)
    if problems:
        return problems
    for cell in by_kind["answer"]:
        problems += [f"answer {exercise_id(cell)}: {problem}" for problem in _answer_problems(text(cell))]
    for cell in by_kind["test"]:
        problems += [
            f"test {exercise_id(cell)}: {problem}" for problem in _test_problems(exercise_id(cell), text(cell))
        ]
    for cell in by_kind["report"]:
        if not regions(text(cell), BEGIN_SOLUTION, END_SOLUTION):
            problems.append(f"report {exercise_id(cell)}: no `{BEGIN_SOLUTION}` … `{END_SOLUTION}`: a model answer")
    for cell in by_kind["measure"] + by_kind["setup"] + by_kind["parameters"]:
        for marker in (BEGIN_SOLUTION, BEGIN_HIDDEN):
            if marker in text(cell):
                problems.append(f"{cell['id']}: `{marker}` in a cell that is neither answer= nor test=")
        try:
            ast.parse(_without_magics(text(cell)))
        except SyntaxError as error:
            problems.append(f"{cell['id']}: not plain Python ({error.msg}, line {error.lineno})")
    return problems or _dependency_problems(by_kind)


def release_problems(solution: dict, release: dict) -> list[str]:
    """What is wrong with the notebook that nbgrader made for learners from `solution`."""
    problems = []
    tested = {exercise_id(c): Names(text(c)).used for c in solution["cells"] if kind(c) == "test"}
    released = {c["id"]: c for c in release["cells"]}
    if [c["id"] for c in solution["cells"]] != list(released):
        problems.append("the released notebook has other cells than the solution")
    for cell in solution["cells"]:
        if kind(cell) != "answer" or cell["id"] not in released:
            continue
        exercise, stub = exercise_id(cell), text(released[cell["id"]])
        try:
            ast.parse(stub)
        except SyntaxError as error:
            problems.append(
                f"answer {exercise}: without its solution it is a SyntaxError ({error.msg}, line {error.lineno})"
            )
            continue
        missing = sorted((Names(text(cell)).bound - Names(stub).bound) & tested[exercise])
        if missing:
            problems.append(
                f"answer {exercise}: its test uses {', '.join(missing)}, which the learner's notebook no longer "
                f"defines; write `{missing[0]} = None  # unit` before {BEGIN_SOLUTION}"
            )
    for cell in release["cells"]:
        for marker in ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS"):
            if marker in text(cell):
                problems.append(f"{cell['id']}: `{marker}` is still in the released notebook")
    return problems


def _pairing(number: str, notebook: dict) -> list[str]:
    graded = [c for c in notebook["cells"] if kind(c) in ("answer", "test")]
    problems = [
        f"{kind(c)} {exercise_id(c)}: exercises of this unit are named {number}.1, {number}.2, …"
        for c in graded
        if not exercise_id(c).startswith(number + ".")
    ]
    ids = Counter(c["id"] for c in notebook["cells"])
    problems += [f"duplicated id {cell_id} ({count} cells)" for cell_id, count in ids.items() if count > 1]
    answered = [exercise_id(c) for c in graded if kind(c) == "answer"]
    tested = [exercise_id(c) for c in graded if kind(c) == "test"]
    problems += [f'answer {e} has no test; add a cell `# %% test="{e}" points=…`' for e in answered if e not in tested]
    problems += [f'test {e} has no answer; add a cell `# %% answer="{e}"`' for e in tested if e not in answered]
    if not problems:
        order = [(kind(c), exercise_id(c)) for c in graded]
        problems += [
            f"test {e} stands before its answer"
            for e in tested
            if order.index(("test", e)) < order.index(("answer", e))
        ]
    return problems


def _answer_problems(source: str) -> list[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return [f"not plain Python ({error.msg}, line {error.lineno})"]
    marked = regions(source, BEGIN_SOLUTION, END_SOLUTION)
    if not marked:
        return [f"no `{BEGIN_SOLUTION}` … `{END_SOLUTION}` region (each marker once, on its own line, in this order)"]
    problems = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            holds = any(node.lineno < begin and end <= node.end_lineno + 1 for begin, end in marked)
            if holds and not ast.get_docstring(node):
                problems.append(
                    f"`{node.name}` holds a solution region and has no docstring: "
                    "the learner's version could be a SyntaxError and would not say what to write"
                )
    return problems


def _test_problems(exercise: str, source: str) -> list[str]:
    marked = regions(source, BEGIN_HIDDEN, END_HIDDEN)
    if not marked:
        return [f"no `{BEGIN_HIDDEN}` … `{END_HIDDEN}` region; add assertions that hold if helpers/ was changed"]
    visible = "\n".join(
        line
        for number, line in enumerate(source.splitlines(), start=1)
        if not any(begin <= number <= end for begin, end in marked)
    )
    problems = []
    for version, code in (("", source), (" without its hidden tests", visible)):
        try:
            tree = ast.parse(code)
        except SyntaxError as error:
            return [f"not plain Python{version} ({error.msg}, line {error.lineno})"]
        if not tree.body or not _imports_check(tree.body[0]):
            return [
                "must begin with `from helpers import check`, so that a learner's own `check` cannot stand in for it"
            ]
        last = tree.body[-1]
        if isinstance(last, ast.Expr) and not _returns_none(last.value):
            problems.append(
                f"its last line{version} is `{ast.unparse(last)[:60]}`, whose value nbgrader reads as the score; "
                "assert it, or end with a call of check"
            )
    problems += _stricter_than_checks(ast.parse(source), marked)
    calls = [n for n in ast.walk(ast.parse(visible)) if isinstance(n, ast.Call) and _is_check_call(n)]
    named = [n.args[0].value for n in calls if n.args and isinstance(n.args[0], ast.Constant)]
    if exercise not in named:
        problems.append(
            f'no visible `check.grade("{exercise}", …)`'
            + (f" (it grades {', '.join(map(str, named))})" if named else "")
        )
    if BEGIN_SOLUTION in source:
        problems.append(f"`{BEGIN_SOLUTION}` in a test cell")
    return problems


def _stricter_than_checks(tree: ast.Module, hidden: list[tuple[int, int]]) -> list[str]:
    """What in the hidden tests refuses answers that a check accepts: another order of keys, a float's last digit."""
    problems, unordered = [], set()
    for node in ast.walk(tree):
        if not any(begin < getattr(node, "lineno", 0) < end for begin, end in hidden):
            continue
        shown = ast.unparse(node)[:60]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "sorted"):
            unordered |= set(map(id, ast.walk(node)))
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "values"
        if called and id(node) not in unordered:
            problems.append(f"its hidden tests read `{shown}`, whose order is the learner's: go by the keys")
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            if any(_is_float(side) for side in (node.left, *node.comparators)):
                problems.append(f"its hidden tests compare floats with `==` in `{shown}`: allow what the check allows")
    return problems


def _is_float(node: ast.AST) -> bool:
    """Whether an expression is a float, as far as can be read: a literal, a quotient, float(…), or a list of such."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "float"
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div) or _is_float(node.left) or _is_float(node.right)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return any(map(_is_float, node.elts))
    if isinstance(node, ast.UnaryOp):
        return _is_float(node.operand)
    return False


def _dependency_problems(by_kind: dict[str, list[dict]]) -> list[str]:
    """Grading runs setup, parameters, answers and tests only; these must not need what a measurement cell defines."""
    graded = by_kind["setup"] + by_kind["parameters"] + by_kind["answer"] + by_kind["test"]
    of_cell = {cell["id"]: Names(text(cell)) for cell in graded}
    if any("import *" in text(cell) for cell in graded):
        return ["`import *` in a cell that grading runs hides where names come from; import them by name"]
    available = NOTEBOOK_NAMES.union(*(n.bound for n in of_cell.values()))
    measured = set().union(*(Names(text(cell)).bound for cell in by_kind["measure"]))
    problems = []
    for cell in graded:
        for name in sorted(of_cell[cell["id"]].used - available):
            why = (
                'is defined in a cell that grading does not run: move it to a cell with tags=["setup"]'
                if name in measured
                else "is defined nowhere"
            )
            problems.append(f"{cell['id']}: `{name}` {why}")
    return problems


def _without_magics(source: str) -> str:
    """The cell with IPython's own lines blanked."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())


class Names:
    """The names a cell binds at its top level, and those it looks up there; nothing for a cell with magics."""

    def __init__(self, source: str):
        self.bound: set[str] = set()
        self.used: set[str] = set()
        try:
            table = symtable.symtable(_without_magics(source), "cell", "exec")
        except SyntaxError:
            return
        for symbol in table.get_symbols():
            if symbol.is_assigned() or symbol.is_imported():
                self.bound.add(symbol.get_name())
            if symbol.is_referenced():
                self.used.add(symbol.get_name())
        self._inner(table)
        self.used -= self.bound

    def _inner(self, table: symtable.SymbolTable) -> None:
        for child in table.get_children():
            self.used |= {s.get_name() for s in child.get_symbols() if s.is_global() and s.is_referenced()}
            self._inner(child)


def regions(source: str, begin: str, end: str) -> list[tuple[int, int]]:
    """Line numbers of each begin and end marker; an empty list when they do not pair up."""
    marks = [
        (number, line.strip())
        for number, line in enumerate(source.splitlines(), start=1)
        if begin[4:] in line or end[4:] in line
    ]
    if len(marks) % 2 or any(mark != (begin, end)[i % 2] for i, (_, mark) in enumerate(marks)):
        return []
    return [(marks[i][0], marks[i + 1][0]) for i in range(0, len(marks), 2)]


def _imports_check(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "helpers" and "check" in [a.name for a in node.names]


def _is_check_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "check"
    )


def _returns_none(node: ast.expr) -> bool:
    is_print = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    return _is_check_call(node) or is_print
