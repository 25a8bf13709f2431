"""Compile variants of the kernel for a GPU that is not here, and describe the machine code as JSON.

A script of its own because Triton either interprets or compiles in one process: `python -m
tests.kernels.compile_variants 90 bf16 int8 …`. Uses the assembler and disassembler inside the Triton wheel.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from helpers.kernels import cuda, cuda_kernels

# Llama-3.1-8B's shape, DeepSeek-V2-Lite's latent. Types in Triton's names: (cache, query, scale).
LLAMA = {"kv_heads": 8, "group": 4, "head_dim": 128, "splits": 16}
VARIANTS = {
    "bf16": ("wide", "bf16", dict(LLAMA, v_form="rows", compute="bfloat16")),
    "fp16": ("wide", "fp16", dict(LLAMA, v_form="rows", compute="float16")),
    "group of 16": ("wide", "bf16", dict(LLAMA, group=16, v_form="rows", compute="bfloat16")),
    "shared prefix": ("wide", "bf16", dict(LLAMA, group=32, v_form="rows", compute="bfloat16")),
    "8 tokens": ("wide", "bf16", dict(LLAMA, group=32, queries=8, v_form="rows", compute="bfloat16")),
    "8 tokens, int8": ("narrow", "i8", dict(LLAMA, group=32, queries=8, v_form="columns", compute="float16", scales=1)),
    "head_dim 64": ("wide", "bf16", dict(LLAMA, head_dim=64, v_form="rows", compute="bfloat16")),
    "paged": ("wide", "bf16", dict(LLAMA, v_form="rows", compute="bfloat16", block=64)),
    "blocks of 16": ("wide", "bf16", dict(LLAMA, v_form="rows", compute="bfloat16", block=16)),
    "fp8": ("narrow", "fp8e4nv", dict(LLAMA, v_form="columns", compute="float16")),
    "int8": ("narrow", "i8", dict(LLAMA, v_form="columns", compute="float16", scales=1)),
    "int8 rows": ("narrow", "i8", dict(LLAMA, v_form="rows", compute="float16", scales=1)),
    "int4": ("narrow", "u8", dict(LLAMA, v_form="columns", compute="float16", scales=2, int4=True)),
    "int4 zeros": ("narrow", "u8", dict(LLAMA, v_form="columns", compute="float16", scales=2, int4=True, zeros=True)),
    "latent": (
        "latent",
        "bf16",
        {
            "kv_heads": 1,
            "group": 16,
            "head_dim": 576,
            "tail": 64,
            "splits": 16,
            "v_form": "latent",
            "compute": "bfloat16",
        },
    ),
}
ELSEWHERE = ("bf16", "paged", "fp8", "int8", "int8 rows", "int4", "latent")  # on the other targets
COMBINE = "combine"
UNALIGNED = "unaligned"  # int8 with strides that no one promised to be multiples of 16: the check must notice


def describe(variant: str, capability: int) -> dict:
    """Registers, spills and the global loads of one variant's inner loop for sm_`capability`."""
    kind, stored, settings = VARIANTS["int8" if variant == UNALIGNED else variant]
    launch = cuda.launch(kind, settings["v_form"], settings["group"], settings.get("block", 0), divmod(capability, 10))
    fixed = cuda.constants(kind, launch, **settings)
    kernel = cuda_kernels.split_attention
    names = kernel.arg_names
    types = {
        "q_ptr": "*bf16", "k_ptr": f"*{stored}", "v_ptr": f"*{stored}", "table_ptr": "*i32", "lengths_ptr": "*i32",
        "part_ptr": "*fp32", "part_lse_ptr": "*fp32", "softmax_scale": "fp32",
    }  # fmt: skip
    signature = {
        name: types.get(name) or ("*fp16" if name.endswith("_ptr") else "i32") for name in names if name not in fixed
    }
    # What Triton sees at run time: 16-byte aligned pointers, and strides that 16 divides.
    aligned = {name for name in signature if name not in ("softmax_scale", "group", "queries")}
    if variant == UNALIGNED:
        aligned = {name for name in aligned if not name.startswith(("k_stride", "v_stride"))}
    if settings.get("scales") == 2:
        aligned -= {"scale_stride_token", "scale_stride_half"}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    constants = {(names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    figures, code = resources(compiled)
    loop = inner_loop(code)
    return figures | {
        "spill_instructions": sum(op.startswith(("LDL", "STL")) for op in loop),
        "threads": 32 * launch.warps,
        "global_loads": [op for op in loop if re.match(r"LDG(STS)?\.", op)],
        "thread_instructions": 32 * launch.warps * len(loop),
        "tile_bytes": _tile_bytes(fixed, stored),
    }


def describe_combine(capability: int) -> dict:
    """Registers and spills of `combine` at its largest: 128 parts of MLA's 512 numbers."""
    kernel = cuda_kernels.combine
    fixed = cuda.combine_constants(parts=128, width=512)
    signature = {name: "*fp32" for name in kernel.arg_names if name not in fixed}
    constants = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(kernel, signature, constexprs=constants)
    return resources(triton.compile(source, target=GPUTarget("cuda", capability, 32)))[0]


def resources(compiled) -> tuple[dict, str]:
    """What a compiled kernel takes, and its machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _cuobjdump("--dump-resource-usage", file.name)
        code = _cuobjdump("--dump-sass", file.name)
    registers, stack, local = (int(re.search(rf"{field}:(\d+)", usage).group(1)) for field in ("REG", "STACK", "LOCAL"))
    return {
        "registers": registers,
        "spilled_bytes": stack + local,
        "shared_bytes": compiled.metadata.shared,
    }, code


def _tile_bytes(fixed: dict, stored: str) -> int:
    """Bytes of cache, scales aside, that one turn of the inner loop reads."""
    element = 2 if stored in ("bf16", "fp16") else 1
    row = (fixed["WIDTH"] + fixed["TAIL"]) if fixed["V_FORM"] == "latent" else 2 * fixed["WIDTH"]
    return fixed["TILE"] * row * element


def _cuobjdump(*arguments: str) -> str:
    tool = pathlib.Path(nvidia.__file__).with_name("bin") / "cuobjdump"
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout


def inner_loop(code: str) -> list[str]:
    """Opcodes between the backward branch that spans most instructions and its target."""
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);", code)
    instructions = [(int(address, 16), op, operands) for address, op, operands in lines]
    loops = []
    for address, op, operands in instructions:
        target = re.search(r"0x([0-9a-f]+)", operands) if op.startswith("BRA") else None
        if target and int(target.group(1), 16) < address:
            loops.append((int(target.group(1), 16), address))
    first, last = max(loops, key=lambda loop: loop[1] - loop[0])
    return [op for address, op, _ in instructions if first <= address <= last]


if __name__ == "__main__":
    target, *variants = sys.argv[1:]
    described = {variant: describe(variant, int(target)) for variant in variants}
    json.dump(described | {COMBINE: describe_combine(int(target))}, sys.stdout)
