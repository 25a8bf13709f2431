"""What the compiler makes of the kernel for Ampere, Hopper and Blackwell; no GPU is needed to read machine code."""

import json
import os
import subprocess
import sys

import pytest

from helpers import data
from tests.kernels.compile_variants import COMBINE, ELSEWHERE, UNALIGNED, VARIANTS

# Shared memory that one block may have, bytes (CUDA C++ Programming Guide, compute capabilities).
SHARED_LIMIT_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
NO_FP8_HARDWARE = {80}


@pytest.fixture(scope="module")
def compiled():
    """{sm: {variant: description}}, all targets compiled side by side."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    running = {}
    for target in SHARED_LIMIT_BYTES:
        variants = [*VARIANTS, UNALIGNED] if target == 90 else ELSEWHERE
        variants = [name for name in variants if name != "fp8" or target not in NO_FP8_HARDWARE]
        command = [sys.executable, "-m", "tests.kernels.compile_variants", str(target), *variants]
        running[target] = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    results = {}
    for target, process in running.items():
        output, _ = process.communicate()
        assert process.returncode == 0, f"compiling for sm_{target} failed; the compiler's words are above"
        results[target] = json.loads(output)
    return results


def narrow_loads(description: dict) -> list[str]:
    """Loads other than of 16 bytes in the inner loop, if those of 16 bytes do not add up to the tiles of K and V.

    (Scales, zero points and block numbers are loaded beside them, 2 or 4 bytes each.)
    """
    wide = [op for op in description["global_loads"] if op.endswith(".128")]
    if len(wide) * 16 * description["threads"] >= description["tile_bytes"]:
        return []
    return [op for op in description["global_loads"] if op not in wide] or ["none"]


@pytest.mark.parametrize("target", SHARED_LIMIT_BYTES)
def test_no_spills_and_16_byte_loads(compiled, target):
    for variant, description in compiled[target].items():
        if variant == UNALIGNED:
            continue
        assert description["spilled_bytes"] == 0, (variant, description)
        assert description["shared_bytes"] <= SHARED_LIMIT_BYTES[target], (variant, description)
        if variant != COMBINE:
            assert description["spill_instructions"] == 0, (variant, description)
            assert narrow_loads(description) == [], (variant, description)


def test_an_unaligned_stride_is_noticed(compiled):
    loads = narrow_loads(compiled[90][UNALIGNED])
    assert "LDG.E.U8" in loads
    assert len(loads) > 100


def test_hopper_has_instructions_to_spare(compiled):
    """An H200's 132 multiprocessors issue about 6.2 thread-instructions (128 lanes, 1.75 GHz) in the time in which its
    memory delivers a byte (4.8 TB/s): a loop that needs fewer can run at memory speed.

    int4 needs more. Its step is shorter than bf16's, but not by as much as its bytes are fewer.
    """
    per_byte = {
        name: d["thread_instructions"] / d["tile_bytes"] for name, d in compiled[90].items() if name in VARIANTS
    }
    for variant in ("bf16", "group of 16", "paged", "fp8", "int8", "latent"):
        assert per_byte[variant] < 6.2, per_byte
    counted = data.measurement("int4-instructions")["data"]
    assert round(per_byte["int4 zeros"] / 2, 1) == counted[1]["per_number"]
    bf16_budget_per_number = 2 * 6.2
    assert per_byte["int4"] / 2 < 0.4 * bf16_budget_per_number, per_byte


def test_a_straightforward_int4_kernel_needs_more():
    """What unit 06 says of the kernel that one would write first."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.straightforward_int4"]
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    per_number = json.loads(printed).values()
    row = data.measurement("int4-instructions")["data"][0]
    assert [round(f(per_number), 1) for f in (min, max)] == [row["recounted_low"], row["recounted_high"]]
    assert row["recounted_low"] < row["per_number"] < row["recounted_high"]
