"""A course of one small unit, for the tests of the tools: it registers its own exercises and needs no model."""

import json
from pathlib import Path

UNIT = "77-mini"

SOURCE = '''\
# %% [markdown]
# # 77 · A miniature unit

# %% tags=["parameters"]
device = "auto"
budget = "quick"

# %% tags=["setup"]
from helpers.check import exercise, number, require


@exercise("77.1")
def kv_bytes_check(answer):
    number(answer, 46_080, unit="bytes", slips={"You forgot V": 23_040})


@exercise("77.2")
def double_check(double):
    require(double(3) == 6, "double(3) should be 6")


# %% answer="77.1"
kv_bytes = None  # bytes
### BEGIN SOLUTION
kv_bytes = 46_080
### END SOLUTION

# %% test="77.1" points=2
from helpers import check

check.grade("77.1", kv_bytes)
### BEGIN HIDDEN TESTS
assert abs(float(kv_bytes) - 46_080) < 1
### END HIDDEN TESTS

# %%
print(budget, kv_bytes)


# %% answer="77.2"
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION


# %% test="77.2" points=3
from helpers import check

check.grade("77.2", double)
### BEGIN HIDDEN TESTS
assert double(21) == 42
### END HIDDEN TESTS
'''


def make(root: Path, source: str = SOURCE, name: str = UNIT) -> Path:
    """Write the percent source of one unit under `root`; returns its path."""
    path = root / "solutions" / name / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return path


def answered(root: Path, answers: dict[str, str]) -> dict:
    """The released notebook of the miniature unit with the cells of `answers` (by grade_id) replaced."""
    notebook = json.loads((root / "notebooks" / UNIT / f"{UNIT}.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["id"] in answers:
            cell["source"] = answers[cell["id"]]
    return notebook


def hand_in(folder: Path, student: str, notebook: dict | str) -> Path:
    """Write `notebook` (or raw text) as `student`'s submission under `folder`."""
    path = folder / student / UNIT / f"{UNIT}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(notebook if isinstance(notebook, str) else json.dumps(notebook), encoding="utf-8")
    return path
