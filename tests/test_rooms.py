"""The rooms of helpers/: which may import which, as docs/authors.md draws them, and no circle anywhere."""

import ast
import graphlib
from pathlib import Path

import pytest

HELPERS = Path(__file__).parents[1] / "helpers"

# A room may import itself and what stands here. The desk is helpers/ itself, without the rooms.
BASE = {"data", "paths", "friendly", "numbers", "progress", "loading", "threads"}
DESK = {"check", "slips", "estimates", "plots", "alt_text", "drawings", "hints", "blanks", "course"}
ENGINE = ("kernels", "models", "caches", "clock", "serving", "quality")
MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    **dict.fromkeys(DESK, BASE | DESK),
    "hosted": BASE | {"clock"},
    "kernels": BASE,
    "models": BASE | {"kernels"},
    "caches": BASE | {"kernels", "models"},
    "clock": BASE | {"kernels", "models", "caches"},
    "serving": BASE | {"kernels", "models", "caches"},
    "quality": BASE | {"kernels", "models", "caches", "clock", "serving"},
    "exercises": BASE | DESK | set(ENGINE),
}


def modules(folder: Path) -> dict[str, ast.Module]:
    """Every module below `folder`, by its dotted name as `helpers.…`."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(("helpers", *parts)).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports(tree: ast.Module, known: set[str]) -> set[str]:
    """Modules of `known` that a module imports anywhere, inside a function too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return found & known


def room(module: str) -> str:
    return module.split(".")[1]


def problems(folder: Path) -> list[str]:
    """Every import that runs the wrong way, every room that nobody has placed, and a circle if there is one."""
    trees = modules(folder)
    graph = {name: imports(tree, set(trees)) for name, tree in trees.items() if name != "helpers"}
    found = [f"{name}: say in MAY_IMPORT what this room may import" for name in graph if room(name) not in MAY_IMPORT]
    for name, targets in graph.items():
        allowed = MAY_IMPORT.get(room(name), set()) | {room(name)}
        found += [f"{name} imports {to}" for to in sorted(targets) if to != "helpers" and room(to) not in allowed]
    # A room's own __init__ names its modules for others; inside the room that is no circle.
    inner = {n: {t for t in ts if not n.startswith(t + ".")} for n, ts in graph.items()}
    try:
        graphlib.TopologicalSorter(inner).prepare()
    except graphlib.CycleError as error:
        found.append("circle: " + " → ".join(error.args[1]))
    return found


def test_imports_run_downward_only():
    assert problems(HELPERS) == []


def test_every_room_says_what_it_is_for_and_what_it_must_not_know():
    for folder in (HELPERS / name for name in (*ENGINE, "exercises")):
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert text and ("ust not know" in text or "must know it" in text), folder


@pytest.mark.parametrize(
    ("path", "line", "said"),
    [
        ("models/rope.py", "from helpers.caches import FullCache", "helpers.models.rope imports helpers.caches"),
        ("kernels/quantize.py", "def f():\n    from helpers import check", "helpers.kernels.quantize imports"),
        ("models/geometry.py", "import helpers.models.decoder", "circle: "),
        ("attic/old.py", "", "helpers.attic.old: say in MAY_IMPORT"),
    ],
)
def test_a_broken_wall_is_named(tmp_path, path, line, said):
    for source in HELPERS.rglob("*.py"):
        target = tmp_path / source.relative_to(HELPERS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    broken = tmp_path / path
    broken.parent.mkdir(exist_ok=True)
    broken.write_text((broken.read_text(encoding="utf-8") if broken.exists() else "") + "\n" + line + "\n")
    assert any(said in problem for problem in problems(tmp_path))
