"""What the compiler makes of the kernels for seven generations; no GPU is needed to read machine code.

All of them stand in docs/gpu-kernels.md; a few are compiled here.
"""

import json
import os
import subprocess
import sys

import pytest
import triton

from helpers import data
from tests.kernels.compile_selected import INT4, SELECTED, UNALIGNED
from tools import kernel_table
from tools.machine_code import CHIPS


def run(*words: str) -> str:
    """What a module prints, in a process in which Triton compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-m", *words], env=environment, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_table_has_what_the_code_launches_within_all_limits():
    run("tools.kernel_table", "--check")


@pytest.fixture(scope="module")
def compiled():
    return json.loads(run("tests.kernels.compile_selected"))


@pytest.mark.parametrize("capability", SELECTED)
def test_within_limits_without_spills_and_by_wide_loads(compiled, capability):
    for name, code in compiled[str(capability)].items():
        assert code["shared_bytes"] <= CHIPS[capability].shared_bytes, (name, code)
        assert code["spilled_bytes"] == 0, (name, code)
        assert code["narrow_loads"] == [], (name, code)
        if name in kernel_table.VARIANTS:
            assert 0 < code["instructions_per_byte"] <= kernel_table.VARIANTS[name].bound_of(capability), (name, code)


@pytest.mark.parametrize("capability", SELECTED)
def test_figures_are_those_of_the_table(compiled, capability):
    if f"Triton {triton.__version__} " not in kernel_table.TABLE.read_text(encoding="utf-8"):
        pytest.skip("the table is of another Triton")
    section = kernel_table.TABLE.read_text(encoding="utf-8").split(f"## sm_{capability}\n")[1]
    for code in compiled[str(capability)].values():
        assert code["row"] in section.split("## sm_")[0]


def test_instructions_of_the_courses_own_int4_kernel(compiled):
    """What unit 06 says of it."""
    per_number = compiled["90"][INT4]["instructions_per_byte"] / 2
    assert round(per_number, 1) == data.measurement("int4-instructions")["data"][1]["per_number"]


def test_an_unaligned_stride_is_noticed(compiled):
    loads = compiled[UNALIGNED]["narrow_loads"]
    assert "LDG.E.U8" in loads
    assert len(loads) > 100


def test_a_straightforward_int4_kernel_needs_more():
    """What unit 06 says of the kernel that one would write first."""
    per_number = json.loads(run("tests.kernels.straightforward_int4")).values()
    row = data.measurement("int4-instructions")["data"][0]
    assert [round(f(per_number), 1) for f in (min, max)] == [row["recounted_low"], row["recounted_high"]]
    assert row["recounted_low"] < row["per_number"] < row["recounted_high"]
