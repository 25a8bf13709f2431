"""Compile a few variants of the kernels for each generation, and print what became of them as JSON.

A script of its own because Triton either interprets or compiles in one process: `python -m
tests.kernels.compile_selected`. What is selected is what units run, and what comes closest to a chip's limits.
"""

import dataclasses
import json
import sys

from tools import kernel_table, machine_code

INT4 = "int4, Llama-3.1-8B, V in columns, zeros"
SELECTED = {
    75: ("float32, SmolLM2", "16 bits, MLA 512 + 64, 16 heads"),
    80: ("float32, SmolLM2, 4 tokens",),
    86: ("16 bits, MLA 512 + 64, 16 heads", "int8, SmolLM2"),
    89: ("fp8, Llama-3.1-8B, V in columns",),
    90: ("float32, SmolLM2, blocks of 16", "16 bits, Llama-3.1-8B", "int8, SmolLM2", INT4, *kernel_table.STEPS),
    100: ("float32, SmolLM2", "16 bits, MQA ×32, heads of 128"),
    120: ("float32, Llama-3.1-8B",),
}
UNALIGNED = "unaligned"  # int8 with strides that no one promised to be multiples of 16: the check must notice


def compiled(capability: int, name: str, unaligned: bool = False) -> dict:
    launched = kernel_table.launched(capability, name)
    if unaligned:
        kept = tuple(one for one in launched.aligned if not one.startswith(("k_stride", "v_stride")))
        launched = dataclasses.replace(launched, aligned=kept)
    code = machine_code.compiled(launched, capability)
    return dataclasses.asdict(code) | {"row": kernel_table.row(name, launched, code)}


if __name__ == "__main__":
    found = {capability: {name: compiled(capability, name) for name in names} for capability, names in SELECTED.items()}
    json.dump(found | {UNALIGNED: compiled(90, "int8, Llama-3.1-8B", unaligned=True)}, sys.stdout)
