"""Every variant of the GPU kernel that a unit or gpu-check runs, compiled for seven generations: docs/gpu-kernels.md.

python -m tools.kernel_table            # compile all, some minutes, and write the table
python -m tools.kernel_table --check    # in seconds: the launches chosen in code are those of the table
"""

import argparse
import ast
import collections
import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
import triton

from helpers import data
from helpers.caches import (
    BlockPool,
    Fp8Cache,
    FullCache,
    Int4TokenCache,
    Int8Cache,
    PagedCache,
    SinkCache,
    StaticCache,
    quantized,
)
from helpers.clock import own_size, sweeps
from helpers.kernels import BFLOAT16_CAPABILITY, FP8_CAPABILITY, cuda, cuda_kernels, cuda_step_kernels, cuda_steps
from helpers.models import counts, geometry
from helpers.models.decoder import Decoder
from tools import machine_code
from tools.machine_code import CHIPS, Code, Launched

TABLE = Path(__file__).parents[1] / "docs" / "gpu-kernels.md"
TOKENS, BATCH = 8192, 8
WITHOUT_TENSOR_CORES = 7.0  # times as many instructions, on a T4, at most
HALF = "half"  # bfloat16, or float16 where there is no hardware for it


def _empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def half_of(capability: int) -> torch.dtype:
    """The 16-bit type that a chip has hardware for."""
    return torch.bfloat16 if divmod(capability, 10) >= BFLOAT16_CAPABILITY else torch.float16


@dataclass(frozen=True)
class Variant:
    """One form of attention. `at_most` bounds the instructions of its inner loop for a byte of cache where there are
    tensor cores for it, or none can be used (float32)."""

    used: str  # by which units, and gpu-check ("G")
    at_most: float
    heads: int
    kv_heads: int
    head_dim: int
    query: torch.dtype | str = torch.float32
    stored: torch.dtype | str | None = None  # None: as the query; "int4"
    scale: torch.dtype = torch.float32
    columns: bool = False  # V is stored [.., head_dim, capacity]
    zeros: bool = False
    groups: int = 2  # int4: scales of a row
    tokens: int = 1
    block: int = 0
    rank: int = 0
    bound: bool = False  # through a `BoundCache`, which also rotates the queries

    def runs_on(self, capability: int) -> bool:
        return self.stored != torch.float8_e4m3fn or divmod(capability, 10) >= FP8_CAPABILITY

    def bound_of(self, capability: int) -> float:
        """The bound for a chip."""
        plain = self.query == torch.float32 and self.stored is None
        return self.at_most if plain or capability >= 80 else WITHOUT_TENSOR_CORES * self.at_most

    def call(self, capability: int) -> None:
        """Ask the backend for it, on torch's meta device."""
        query = half_of(capability) if self.query == HALF else self.query
        stored = self.stored or query
        q = _empty(BATCH, self.tokens, self.heads, self.head_dim, dtype=query).transpose(1, 2)
        lengths = _empty(BATCH, dtype=torch.int32)
        if self.rank:
            latent = _empty(BATCH, TOKENS, self.head_dim, dtype=stored)
            cuda.decode_attention_latent(q, latent, self.rank, lengths, 0.1)
            return
        rows, capacity = (BATCH, TOKENS) if not self.block else (BATCH * TOKENS // self.block, self.block)
        int4 = stored == "int4"
        shape = (rows, self.kv_heads, capacity, self.head_dim // 2 if int4 else self.head_dim)
        k, v = (_empty(*shape, dtype=torch.uint8 if int4 else stored) for _ in range(2))
        v = v.transpose(-1, -2).contiguous().transpose(-1, -2) if self.columns else v
        scales = [_empty(*shape[:3], *((self.groups,) if int4 else ()), dtype=self.scale) for _ in range(4)]
        ks, vs, *zeros = scales
        if self.bound:
            kind = {"int4": "int4", torch.int8: "int8", torch.float8_e4m3fn: "fp8"}.get(stored, "float32")
            quantised = {"int8": (k, ks, v, vs), "int4": (k, ks, zeros[0], v, vs, zeros[1])}
            tensors = quantised.get(kind, (k, v))
            angles = [_empty(TOKENS, self.head_dim, dtype=torch.float32) for _ in range(2)]
            table = _empty(BATCH, TOKENS // self.block, dtype=torch.int32) if self.block else None
            bound = cuda.BoundCache(kind, [x[None] for x in tensors], *angles)
            bound.attend(0, TOKENS - self.tokens, q, None, table)
        elif int4:
            cuda.decode_attention_int4(q, k, ks, v, vs, lengths, *(zeros if self.zeros else (None, None)))
        elif stored == torch.int8:
            cuda.decode_attention_int8(q, k, ks, v, vs, lengths)
        elif stored == torch.float8_e4m3fn:
            cuda.decode_attention_fp8(q, k, v, lengths)
        else:
            table = _empty(BATCH, TOKENS // self.block, dtype=torch.int32) if self.block else None
            cuda.decode_attention(q, k, v, lengths, block_table=table)


SMOL = {"heads": 9, "kv_heads": 3, "head_dim": 64, "bound": True}
PAGED = {**SMOL, "block": 16}
LLAMA = {"heads": 32, "kv_heads": 8, "head_dim": 128, "query": HALF}
LATENT = {"kv_heads": 1, "head_dim": 576, "rank": 512}
INT8, FP8, COLUMNS = torch.int8, torch.float8_e4m3fn, {"columns": True, "scale": torch.float16}
INT4 = {"stored": "int4", "zeros": True}


def _half(units: str, at_most: float, heads: int, kv_heads: int, head_dim: int, **more) -> Variant:
    return Variant(units, at_most, heads, kv_heads, head_dim, HALF, **more)


VARIANTS = {
    "float32, SmolLM2": Variant("00 01 02 04 05 06 07 08 09 10", 4.2, **SMOL),
    "float32, SmolLM2, 2 tokens": Variant("09", 4.2, tokens=2, **SMOL),
    "float32, SmolLM2, 4 tokens": Variant("01 05 09", 7, tokens=4, **SMOL),
    "float32, SmolLM2, 8 tokens": Variant("01 09", 13.5, tokens=8, **SMOL),
    "float32, SmolLM2, alone": Variant("05 06 09", 4.2, 9, 3, 64),
    "float32, SmolLM2, alone, 2 tokens": Variant("09", 4.2, 9, 3, 64, tokens=2),
    "float32, SmolLM2, alone, 4 tokens": Variant("05 09", 7, 9, 3, 64, tokens=4),
    "float32, SmolLM2, blocks of 16": Variant("05 07 10", 5, **PAGED),
    "float32, SmolLM2, blocks of 16, 2 tokens": Variant("10", 5, tokens=2, **PAGED),
    "float32, SmolLM2, blocks of 16, 4 tokens": Variant("10", 7.6, tokens=4, **PAGED),
    "float32, SmolLM2, blocks of 16, 8 tokens": Variant("10", 14.5, tokens=8, **PAGED),
    "float32, prefix of 8 sequences": Variant("05", 13.5, 72, 3, 64),
    "float32, rows of 16": Variant("02", 7.5, 9, 3, 16, bound=True),
    "float32, 8 heads of 32": Variant("03", 5.5, 8, 2, 32, bound=True),
    "float32, MLA 128 + 16, 8 heads": Variant("03", 6.5, 8, 1, 144, rank=128),
    "float32, MQA, 16 heads of 64": Variant("03", 7, 16, 1, 64, bound=True),
    "float32, Llama-3.1-8B": Variant("03 G", 3.8, 32, 8, 128),
    "float32, MQA, 32 heads of 128": Variant("", 11.5, 32, 1, 128),
    "float32, MLA 512 + 64, 32 heads": Variant("", 11.5, 32, **LATENT),
    "16 bits, MHA, heads of 64": _half("03", 4, 16, 16, 64, bound=True),
    "16 bits, GQA ×4, heads of 64": _half("02 03", 4, 16, 4, 64, bound=True),
    "16 bits, MQA ×16, heads of 64": _half("03", 5, 16, 1, 64, bound=True),
    "16 bits, MLA 256 + 32, 16 heads": _half("03", 4, 16, 1, 288, rank=256),
    "16 bits, MHA, heads of 128": _half("03 G", 2.5, 32, 32, 128, bound=True),
    "16 bits, GQA ×8, heads of 128": _half("03", 2.5, 32, 4, 128, bound=True),
    "16 bits, MQA ×32, heads of 128": _half("03 G", 5, 32, 1, 128, bound=True),
    "16 bits, MLA 512 + 64, 16 heads": Variant("G", 3, 16, query=HALF, **LATENT),
    "16 bits, MLA 512 + 64, 128 heads": Variant("03 G", 3, 128, query=HALF, **LATENT),
    "16 bits, Llama-3.1-8B": Variant("02 03 G", 2.5, bound=True, **LLAMA),
    "16 bits, Llama-3.2-3B": _half("02", 2.5, 24, 8, 128, bound=True),
    "16 bits, Llama-3.1-8B, alone": Variant("G", 2.5, **LLAMA),
    "16 bits, Llama-3.1-8B, 4 tokens": Variant("", 3, tokens=4, bound=True, **LLAMA),
    "16 bits, Llama-3.1-8B, 8 tokens": Variant("", 5, tokens=8, bound=True, **LLAMA),
    "16 bits, Llama-3.1-8B, blocks of 16": Variant("", 5, block=16, **LLAMA),
    "16 bits, prefix of 8 sequences": _half("G", 5, 256, 8, 128),
    "int8, SmolLM2": Variant("06 08", 7, stored=INT8, **SMOL),
    "int8, SmolLM2, 4 tokens": Variant("", 9, stored=INT8, tokens=4, **SMOL),
    "int4, SmolLM2": Variant("06", 12.5, groups=1, **INT4, **SMOL),
    "int4, SmolLM2, groups of 32": Variant("", 14, **INT4, **SMOL),
    "int4, SmolLM2, 4 tokens": Variant("", 17, tokens=4, groups=1, **INT4, **SMOL),
    "fp8, SmolLM2": Variant("06", 5.5, stored=FP8, **SMOL),
    "int8, Llama-3.1-8B": Variant("G", 6.5, stored=INT8, bound=True, **LLAMA),
    "int8, Llama-3.1-8B, V in columns": Variant("G", 5, stored=INT8, **COLUMNS, **LLAMA),
    "int8, Llama-3.1-8B, V in columns, 8 tokens": Variant("", 6, stored=INT8, tokens=8, **COLUMNS, **LLAMA),
    "int4, Llama-3.1-8B": Variant("G", 12.5, bound=True, **INT4, **LLAMA),
    "int4, Llama-3.1-8B, V in columns": Variant("G", 9.5, stored="int4", **COLUMNS, **LLAMA),
    "int4, Llama-3.1-8B, V in columns, zeros": Variant("", 9.5, **INT4, **COLUMNS, **LLAMA),
    "fp8, Llama-3.1-8B": Variant("G", 5, stored=FP8, **LLAMA),
    "fp8, Llama-3.1-8B, V in columns": Variant("G", 2, stored=FP8, **COLUMNS, **LLAMA),
}


def _append(*forms: tuple[int, torch.dtype], block: int = 0) -> Callable[[torch.dtype], None]:
    """New tokens into a cache of `forms`, the width and type of keys (and of values), scales and zeros, which is the
    tokens' own where there are none; or into the blocks of a pool."""

    def call(dtype):
        k, v = (_empty(BATCH, 1, 11, 128, dtype=dtype).transpose(1, 2)[:, 3 * i : 3 * i + 3] for i in (1, 2))
        stored = [
            _empty(BATCH, 3, block or TOKENS, *shape, dtype=kind) for *shape, kind in forms or ((128, dtype),)
        ] * 2
        angles = tuple(_empty(TOKENS, 128, dtype=torch.float32) for _ in range(2))
        table = _empty(BATCH, TOKENS // block, dtype=torch.int32) if block else None
        cuda_steps.append(tuple(stored), angles, 100, k, v, table)

    return call


def _rotate_rows(_: torch.dtype) -> None:
    keys, tables = _empty(BATCH, 3, 320, 64, dtype=torch.float32), _empty(580, 64, dtype=torch.float32)
    cuda_steps.rotate_rows(keys, tables, tables, 260, 17, 4, 256, keys)


def _merge(dtype: torch.dtype) -> None:
    """The largest that there is: 128 parts of MLA's 512 numbers."""
    parts, lses = _empty(BATCH, 16, 128, 512, dtype=torch.float32), _empty(BATCH, 16, 128, dtype=torch.float32)
    cuda._combine(parts, lses, dtype)


def _add_norm(dtype: torch.dtype) -> None:
    x = _empty(BATCH, 4096, dtype=dtype)
    cuda_steps.add_norm(x, x, x[0], 1e-5)


def _silu_mul(dtype: torch.dtype) -> None:
    cuda_steps.silu_mul(_empty(BATCH, 2 * 14_336, dtype=dtype))


FP8_APPEND = "append, fp8"
# What else a step launches, at the widest: name → (kernel, the type of its activations, a call of the backend with it).
STEPS = {
    "parts added up, 128 × 512": ("combine", torch.float32, _merge),
    "parts added up, 128 × 512, 16 bits": ("combine", HALF, _merge),
    "append, float32": ("append", torch.float32, _append()),
    "append, 16 bits": ("append", HALF, _append()),
    "append, float32, blocks of 16": ("append", torch.float32, _append(block=16)),
    FP8_APPEND: ("append", torch.float32, _append((128, FP8))),
    "append, int8": ("append", torch.float32, _append((128, torch.int8), (torch.float32,))),
    "append, int4": (
        "append", torch.float32, _append((64, torch.uint8), (2, torch.float32), (2, torch.float32))
    ),
    "rows of a ring": ("rotate_rows", torch.float32, _rotate_rows),
    "add and norm, 4,096": ("add_norm", torch.float32, _add_norm),
    "add and norm, 4,096, 16 bits": ("add_norm", HALF, _add_norm),
    "silu · mul": ("silu_mul", torch.float32, _silu_mul),
    "silu · mul, 16 bits": ("silu_mul", HALF, _silu_mul),
}  # fmt: skip


def _blocks(model, capacity: int, batch: int, **where) -> PagedCache:
    table = list(range(capacity // 16))
    pool = BlockPool(model, len(table), 16, capacity, device=where["device"])
    return PagedCache(pool, [table] * batch, backend=where["backend"])


def _sinks(model, capacity: int, batch: int, **where) -> SinkCache:
    cache = SinkCache(model, capacity, 4, 60, batch, **where)
    cache.fill(capacity)
    return cache


# Whole steps whose kernels are counted: name → cache.
COUNTED = {
    "float32": FullCache,
    "float32, one graph for all contexts": StaticCache,
    "float32, blocks of 16": _blocks,
    "float32, 4 sinks and a ring": _sinks,
    "fp8": Fp8Cache,
    "int8": Int8Cache,
    "int4": functools.partial(Int4TokenCache, group=64),
}


@functools.cache
def step_kernels() -> dict[str, collections.Counter[str]]:
    """What a decode step of SmolLM2-135M, 30 layers, launches over each of COUNTED."""
    model = geometry.get("SmolLM2-135M")
    decoder = Decoder(model, device="meta", backend="cuda")
    token, found = _empty(BATCH, dtype=torch.int64), {}
    for name, make in COUNTED.items():
        with mock.patch.object(quantized, "reads_fp8", lambda device: True):
            cache = make(model, 128, BATCH, device="meta", backend="cuda")
        cache.rewind(100)
        found[name] = machine_code.kernels_of(functools.partial(decoder.decode, token, cache), 90)
    return found


def launched(capability: int, name: str) -> Launched:
    """How the backend launches a variant on a chip of this capability."""
    with machine_code.recorded(capability) as launches:
        if name in STEPS:
            kernel, dtype, call = STEPS[name]
            call(half_of(capability) if dtype == HALF else dtype)
        else:
            kernel = "split_attention"
            VARIANTS[name].call(capability)
    return next(one for one in launches if one.kernel == kernel)


def names(capability: int) -> list[str]:
    reads_fp8 = VARIANTS["fp8, SmolLM2"].runs_on(capability)
    steps = [name for name in STEPS if reads_fp8 or name != FP8_APPEND]
    return [name for name, variant in VARIANTS.items() if variant.runs_on(capability)] + steps


def forms(capability: int) -> set[tuple]:
    """What stands in the table of a chip, as `Launched.form`."""
    return {launched(capability, name).form for name in names(capability)}


def chosen(one: Launched) -> str:
    """A launch in the words of the table."""
    fixed = one.constants
    if "COMPUTE" not in fixed:
        return f"{one.warps} warps"
    compute = str(fixed["COMPUTE"]).replace("fp", "float").replace("bf", "bfloat")
    return f"{fixed['HEADS']} × {fixed['TILE']}, {one.warps} warps, {one.stages} stages, {compute}"


def kernel_digest() -> str:
    """Of the kernel's source without comments, docstrings and layout: figures of another kernel are of no use."""
    trees = [ast.parse(inspect.getsource(module)) for module in (cuda_kernels, cuda_step_kernels)]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:]
    return hashlib.sha256("".join(map(ast.dump, trees)).encode()).hexdigest()[:12]


def row(name: str, one: Launched, code: Code) -> str:
    spilled = f"{code.spilled_bytes} B" if code.spilled_bytes else "0"
    per_byte = f"{code.instructions_per_byte:.2f}" if code.instructions_per_byte else ""
    used = VARIANTS[name].used if name in VARIANTS else ""
    return (
        f"| {name} | {used} | {chosen(one)} | {code.shared_bytes / 1024:.1f} | {code.registers} | {spilled} "
        f"| {per_byte} |"
    )


HEAD = """# The GPU kernel, compiled for seven generations

What `python -m tools.kernel_table` counted with Triton {triton} in the machine code of the attention kernel
(`helpers/kernels/cuda_kernels.py`, {digest}), for every variant that a unit or `make gpu-check` (G) runs. No GPU was
needed, and none of it is a time. `make test` compiles a few of them again.

- launch: query heads that a program holds × tokens of a tile, and the type that products are computed in
- shared: memory that a program takes, in KiB; a chip's limit stands above its table
- registers of a thread, 255 at most, and what spills out of them into memory
- instr/byte: instructions of the inner loop, of all threads of a program, for each byte of cache that it reads

How these launches came about stands in `helpers/kernels/launches.py`.

## What is proven, and how

**Nothing of this course has run on a GPU yet: none was at hand.** Until one is:

| what | how it is known |
|---|---|
| the kernels' answers | Triton's interpreter, on a CPU: every layout against float64; seeded mistakes are caught |
| machine code, limits, spills, loads | compiled for seven generations: the tables below |
| that these are all that units launch | the rehearsal holds what they launch against the tables |
| the Triton of Colab, 3.6.0, on a T4 | compiled once, by hand, sm_75: all of it; one variant spills 8 bytes |
| devices, types, memory, what a graph captures | all units on three pretend GPUs (`tests/rehearsal/`), no numbers |
| kernels of a step | counted, below |
| how much a step grows | predicted, below, from bytes, counted kernels and an assumed time for each |
| the incident at its own size | predicted so too, below; unit 02's cells run on the pretend GPUs, no times |
| that a chip runs it, CUDA graphs, cuBLAS, every time and bandwidth | not known |

Whoever has one: `make gpu-check`, then `make course BUDGET=full` and `make record`.

## Kernels of a decode step

SmolLM2-135M, 30 layers; a kernel of torch or of ours counts as one.

| cache | kernels | of which |
|---|---|---|
{steps}

## How much a step grows

SmolLM2-135M in float32, 16 sequences, from 16 to 8,192 tokens, as unit 02 times it: bytes at the data sheet's
bandwidth, and {kernels} kernels at {each_us} µs each, which is assumed. Predicted, not measured.

| GPU | GB/s | ms at 16 | ms at 8,192 | times |
|---|---|---|---|---|
{growth}

## The incident at its own size

A Llama in 16 bits with 8 sequences, as unit 02 times it at the full budget (`helpers/clock/own_size.py`): the largest
that fits the GPU. Bytes and kernels reckoned as above. Predicted, not measured.

| GPU | model | kernels | ms at 16 | ms at 1,000 | ms at 30,000 | ms at 32,768 | times, 1,000 to 30,000 |
|---|---|---|---|---|---|---|---|
{own_size}
"""


def counted() -> list[str]:
    """The rows of the steps."""
    rows = []
    for name, kernels in step_kernels().items():
        each = ", ".join(f"{count} {kernel}" for kernel, count in sorted(kernels.items(), key=lambda x: (-x[1], x[0])))
        rows.append(f"| {name} | {kernels.total()} | {each} |")
    return rows


KERNEL_SECONDS = 1.7e-6  # that a small kernel takes inside a graph, assumed


def grown() -> list[str]:
    """The rows of the growth by GPU."""
    model, batch = geometry.get("SmolLM2-135M"), 16
    decoder = Decoder(model, device="meta", backend="cuda")
    token = counts.kv_bytes(model, 1, batch, torch.float32)
    launches = step_kernels()["float32"].total() * KERNEL_SECONDS
    rows = []
    for gpu in ("T4", "L4", "RTX 4090", "A100-80GB SXM", "H100 SXM", "B200 SXM"):
        rate = 1e9 * data.device(gpu)["bandwidth_GBps"]
        ends = [(decoder.weight_bytes + n * token) / rate + launches for n in (16, 8192)]
        times = sweeps.growth(decoder, batch, 8192, rate, launches)
        rows.append(f"| {gpu} | {rate / 1e9:,.0f} | {1e3 * ends[0]:.2f} | {1e3 * ends[1]:.2f} | {times:.1f} |")
    return rows


OWN_SIZE = {
    "Llama-3.2-1B": ("T4", "L4", "RTX 4090", "A100-40GB SXM"),
    "Llama-3.1-8B": ("A100-80GB SXM", "H100 SXM", "B200 SXM"),
}


def at_own_size() -> list[str]:
    """The rows of the incident at its own size."""
    rows = []
    for name, gpus in OWN_SIZE.items():
        one = next(one for one in own_size.all_sizes() if one.geometry.name == name)
        decoder = Decoder(one.geometry, one.dtype, "meta", "cuda")
        cache = FullCache(one.geometry, 128, one.batch, one.dtype, "meta", "cuda")
        cache.rewind(100)
        step = functools.partial(decoder.decode, _empty(one.batch, dtype=torch.int64), cache)
        kernels = machine_code.kernels_of(step, 90).total()
        token_bytes = counts.kv_bytes(one.geometry, 1, one.batch, one.dtype)
        for gpu in gpus:
            rate = 1e9 * data.device(gpu)["bandwidth_GBps"]
            tokens = (16, *own_size.REPORTED, sweeps.LONGEST_CONTEXT)
            times = [(decoder.weight_bytes + n * token_bytes) / rate + kernels * KERNEL_SECONDS for n in tokens]
            ms = " | ".join(f"{1e3 * seconds:.1f}" for seconds in times)
            rows.append(f"| {gpu} | {name} | {kernels} | {ms} | {times[2] / times[1]:.1f} |")
    return rows


def head() -> str:
    """All that stands above the tables of single chips."""
    steps = counted()
    return HEAD.format(
        triton=triton.__version__, digest=kernel_digest(), steps="\n".join(steps), growth="\n".join(grown()),
        own_size="\n".join(at_own_size()), kernels=step_kernels()["float32"].total(), each_us=1e6 * KERNEL_SECONDS,
    )  # fmt: skip


def write(capabilities: Sequence[int]) -> None:
    """Compile everything and write the table."""
    parts = [head()]
    for capability in capabilities:
        parts.append(
            f"## sm_{capability}\n\n{CHIPS[capability].shared_bytes // 1024} KiB of shared memory for a program.\n\n"
            "| variant | units | launch | shared | registers | spills | instr/byte |\n|---|---|---|---|---|---|---|"
        )
        for name in names(capability):
            one = launched(capability, name)
            code = machine_code.compiled(one, capability)
            parts.append(row(name, one, code))
            print(f"sm_{capability} {parts[-1]} {code.narrow_loads or ''}", flush=True)
        parts[-1] += "\n"
    TABLE.write_text("\n".join(parts), encoding="utf-8")


def read() -> dict[int, dict[str, list[str]]]:
    """The committed table: {capability: {variant: cells after its name}}."""
    found: dict[int, dict[str, list[str]]] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"## sm_(\d+)", line):
            found[int(heading.group(1))] = rows = {}
        elif found and line.startswith("| ") and not line.startswith("| variant"):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            rows[name] = cells
    return found


def problems() -> list[str]:
    """How the committed table differs from what the code launches, and where it breaks a chip's limits."""
    text, again = TABLE.read_text(encoding="utf-8"), "run python -m tools.kernel_table"
    found = []
    if kernel_digest() not in text:
        found.append(f"the kernel has changed since docs/gpu-kernels.md was written: {again}")
    if triton.__version__ in text:
        found += [f"no longer so: {line}: {again}" for line in head().splitlines() if line not in text]
    table = read()
    for capability, chip in CHIPS.items():
        rows = table.get(capability, {})
        if list(rows) != names(capability):
            found.append(f"sm_{capability}: other variants than the table has: {again}")
            continue
        for name, (_, launch, shared, _, spills, per_byte) in rows.items():
            now = chosen(launched(capability, name))
            if now != launch:
                found.append(f"sm_{capability}, {name}: launched as {now}, the table has {launch}: {again}")
            if spills != "0" or float(shared) * 1024 > chip.shared_bytes:
                found.append(f"sm_{capability}, {name}: {shared} KiB, spills {spills}")
            if per_byte and float(per_byte) > (most := VARIANTS[name].bound_of(capability)):
                found.append(f"sm_{capability}, {name}: {per_byte} instructions a byte, above {most}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_table", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compile nothing, compare the launches with the table")
    options = parser.parse_args(arguments)
    if options.check:
        found = problems()
        print("\n".join(found) or "docs/gpu-kernels.md has what the code launches")
        return 1 if found else 0
    write(list(CHIPS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
