"""Compile the Triton kernels for GPUs that are not here, and read what became of them.

`recorded` takes down what the CUDA backend would launch, on torch's meta device and as any chip; `compiled` turns a
launch into machine code as Triton would at run time, and says what it takes. Needs no GPU: assembler and disassembler
come in the Triton wheel. Triton either interprets or compiles in one process; here it compiles.
"""

import collections
import contextlib
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from helpers.kernels import cuda, cuda_kernels, cuda_step_kernels

TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float8_e4m3fn: "fp8e4nv",
}


KERNELS = {
    "split_attention": cuda_kernels,
    "combine": cuda_kernels,
    "append": cuda_step_kernels,
    "rotate_rows": cuda_step_kernels,
    "add_norm": cuda_step_kernels,
    "silu_mul": cuda_step_kernels,
}


@dataclass(frozen=True)
class Chip:
    """What decides a launch and its limits; `shared_bytes` is what one block may have (CUDA C++ Programming Guide,
    compute capabilities)."""

    multiprocessors: int
    shared_bytes: int


CHIPS = {
    75: Chip(40, 64 * 1024),  # T4
    80: Chip(108, 163 * 1024),  # A100
    86: Chip(82, 99 * 1024),  # RTX 3090
    89: Chip(128, 99 * 1024),  # RTX 4090
    90: Chip(132, 227 * 1024),  # H100
    100: Chip(148, 227 * 1024),  # B200
    120: Chip(170, 99 * 1024),  # RTX 5090
}


@dataclass
class Launched:
    """One call of a kernel: its name, and arguments as Triton sees them."""

    kernel: str
    types: dict[str, str]
    constants: dict[str, Any]
    aligned: tuple[str, ...]
    warps: int
    stages: int

    @property
    def key(self) -> tuple:
        """Equal for launches that are compiled to the same code."""
        constants = tuple((name, str(value)) for name, value in self.constants.items())
        return self.kernel, tuple(self.types.items()), constants, self.aligned, self.warps, self.stages

    @property
    def form(self) -> tuple:
        """Equal for launches that differ in counts alone (heads, splits, widths): one row of a table of variants."""
        fixed = self.constants
        if self.kernel == "split_attention":
            types = tuple(self.types[name] for name in ("q_ptr", "k_ptr", "k_scale_ptr"))
            counts = ("KV_HEADS", "HEAD_TILES", "SPLITS", "RAGGED")
            kept = tuple((name, str(fixed[name])) for name in sorted(fixed) if name.isupper() and name not in counts)
            return self.kernel, types, kept, self.warps, self.stages
        types = tuple(self.types.get(name) for name in ("x_ptr", "gate_up_ptr", "k_ptr", "out_ptr"))
        return self.kernel, types, fixed.get("FORM"), bool(fixed.get("BLOCK"))


class _Recorder:
    def __init__(self, name: str, kernel, launches: list[Launched]):
        self.name, self.kernel, self.launches = name, kernel, launches

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *args, **options):
        self.launches.append(launched(self.name, self.kernel, *args, **options))


def launched(name: str, kernel, *args, num_warps=4, num_stages=3, **constants) -> Launched:
    """A launch of Triton's `kernel`, as Triton would see it."""
    types, aligned = {}, []
    for argument, value in zip(kernel.arg_names, args, strict=False):
        if isinstance(value, torch.Tensor):
            types[argument] = f"*{TYPES[value.dtype]}"
            whole = value.storage_offset() * value.element_size() % 16 == 0
        elif argument in (getattr(kernel, "do_not_specialize", None) or ()):
            types[argument], whole = "i32", False
        elif isinstance(value, int) and value == 1:
            constants[argument] = 1
            continue
        else:
            types[argument] = "i32" if isinstance(value, int) else "fp32"
            whole = isinstance(value, int) and value % 16 == 0
        if whole:
            aligned.append(argument)
    return Launched(name, types, constants, tuple(aligned), num_warps, num_stages)


@contextlib.contextmanager
def recorded(capability: int) -> Iterator[list[Launched]]:
    """While this lasts, the backend launches nothing and the list grows, as on a chip of this capability (90: 9.0)."""
    launches: list[Launched] = []
    kept = [(KERNELS[name], name, getattr(KERNELS[name], name)) for name in KERNELS]
    kept += [(cuda, name, getattr(cuda, name)) for name in ("_capability", "_multiprocessors")]
    try:
        for name, module in KERNELS.items():
            setattr(module, name, _Recorder(name, getattr(module, name), launches))
        cuda._capability = lambda device: divmod(capability, 10)
        cuda._multiprocessors = lambda device: CHIPS[capability].multiprocessors
        yield launches
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


@dataclass
class Code:
    """What a launch was compiled to.

    Attributes:
        instructions_per_byte: of the inner loop, by all threads of a program, for each byte of cache that it reads,
            scales aside; 0 for a kernel without such a loop.
        narrow_loads: loads of the inner loop of less than 8 bytes, if those of 16 and 8 do not add up to the tiles of
            keys and values. (Scales and block numbers are loaded beside them, 2 or 4 bytes each.)
    """

    shared_bytes: int
    registers: int
    spilled_bytes: int
    instructions_per_byte: float
    narrow_loads: list[str]


def compiled(launched: Launched, capability: int) -> Code:
    """Compile for sm_`capability`; raises what Triton raises where it cannot."""
    kernel = getattr(KERNELS[launched.kernel], launched.kernel)
    names = kernel.arg_names
    signature = {name: launched.types.get(name, "constexpr") for name in names}
    constants = {(names.index(name),): value for name, value in launched.constants.items()}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in launched.aligned}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": launched.warps, "num_stages": launched.stages}
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, spilled, code = resources(binary)
    per_byte, narrow = 0.0, []
    if launched.kernel == "split_attention":
        loop, threads, tile = inner_loop(code), 32 * launched.warps, tile_bytes(launched)
        loads = [op for op in loop if re.match(r"LDG(STS)?\.", op)]
        wide = {op: 16 if ".128" in op else 8 for op in loads if ".128" in op or ".64" in op}
        if sum(wide.get(op, 0) for op in loads) * threads < tile:
            narrow = [op for op in loads if op not in wide] or ["none"]
        per_byte = threads * len(loop) / tile
    return Code(binary.metadata.shared, registers, spilled, per_byte, narrow)


def tile_bytes(launched: Launched) -> int:
    """Bytes of cache, scales aside, that one turn of the inner loop reads."""
    fixed = launched.constants
    element = {"*fp32": 4, "*fp16": 2, "*bf16": 2}.get(launched.types["k_ptr"], 1)
    row = fixed["WIDTH"] + fixed["TAIL"] if fixed["V_FORM"] == "latent" else 2 * fixed["WIDTH"]
    return fixed["TILE"] * row * element


def resources(binary) -> tuple[int, int, str]:
    """Registers of a thread, bytes that it spills, and the machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage = _cuobjdump("--dump-resource-usage", file.name)
        code = _cuobjdump("--dump-sass", file.name)
    registers, stack, local = (int(re.search(rf"{field}:(\d+)", usage).group(1)) for field in ("REG", "STACK", "LOCAL"))
    return registers, stack + local, code


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


class _Kernels(TorchDispatchMode):
    """Counts torch's operations that run on a device; views and allocations do not."""

    def __init__(self):
        super().__init__()
        self.names: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        schema = function._schema
        name = schema.name.split("::")[1]
        is_view = not schema.is_mutable and any(value.alias_info for value in schema.returns)
        if not is_view and name != "_unsafe_view" and not name.startswith(("empty", "new_empty")):
            self.names[name] += 1
        return function(*args, **(kwargs or {}))


def kernels_of(step: Callable, capability: int) -> collections.Counter[str]:
    """How many kernels `step`, on torch's meta device, would launch on a chip of this capability, by their names."""
    with recorded(capability) as launches, _Kernels() as counted:
        step()
    return counted.names + collections.Counter(one.kernel for one in launches)
