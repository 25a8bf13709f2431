"""A pretend GPU: tensors that say cuda:0 and hold shapes, types and bytes, but no numbers.

What it refuses is what CUDA would: tensors of two devices in one operation, more memory than the chip has, and, while a
graph is captured, whatever waits for the device or copies from the CPU. What a graph captured is kept, to be compared
with what the same step would launch later: the same operations on the same memory, or a replay is wrong.

`install(CHIPS["T4"])` turns a process into such a machine; call it before anything of helpers is imported.
"""

import contextlib
import ctypes
import functools
import itertools
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda", 0)
META = torch.device("meta")


@dataclass(frozen=True)
class Chip:
    """A GPU as its driver describes it; `free_bytes` is what a process that has just started can allocate, and
    `bytes_per_second` what it is taken to read."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    free_bytes: int
    bytes_per_second: float


CHIPS = {
    "T4": Chip("Tesla T4", (7, 5), 40, 14_900_000_000, 320e9),
    "8GB": Chip("NVIDIA GeForce RTX 3070", (8, 6), 46, 7_400_000_000, 448e9),
    "H100": Chip("NVIDIA H100 80GB HBM3", (9, 0), 132, 79_000_000_000, 3350e9),
    "5090": Chip("NVIDIA GeForce RTX 5090", (12, 0), 170, 31_000_000_000, 1792e9),
}

# Answers that only the device has, or results whose size only it knows.
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim"}
COPIES = {"_to_copy", "copy_"}
INDEXES = {"index", "index_put_", "index_put", "_index_put_impl_"}


class Memory:
    """The chip's allocator: what is held now, and the most that ever was."""

    def __init__(self, size: int):
        self.size, self.held, self.peak = size, 0, 0
        self.blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()

    def block(self, storage: torch.UntypedStorage) -> "Block":
        """The block behind a storage, allocated when it is first seen."""
        found = self.blocks.get(storage._cdata)
        if found is None:
            found = self.blocks[storage._cdata] = Block(self, storage)
        return found

    def take(self, nbytes: int) -> None:
        if self.held + nbytes > self.size:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {nbytes / 1e9:.2f} GB; {self.held / 1e9:.2f} GB are held of "
                f"{self.size / 1e9:.2f} GB."
            )
        self.held += nbytes
        self.peak = max(self.peak, self.held)


class Block:
    """Memory that lives as long as some tensor of it does."""

    def __init__(self, memory: Memory, storage: torch.UntypedStorage):
        # The allocator gives out multiples of 512 bytes.
        self.memory, self.storage, self.nbytes = memory, storage, -(-storage.nbytes() // 512) * 512
        self.number = next(_numbers)
        memory.take(self.nbytes)

    def __del__(self):
        self.memory.held -= self.nbytes


_numbers = itertools.count()


class OnChip(torch.Tensor):
    """A tensor on the chip; `shape_of` is its twin on torch's meta device."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, shape_of: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            shape_of.shape,
            strides=shape_of.stride(),
            storage_offset=shape_of.storage_offset(),
            dtype=shape_of.dtype,
            device=CUDA,
        )

    def __init__(self, shape_of: torch.Tensor):
        self.shape_of = shape_of
        self.block = machine.memory.block(shape_of.untyped_storage())

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return machine.run(function, args, kwargs or {})

    def data_ptr(self):
        return (1 << 40) + self.storage_offset() * self.element_size()

    def __getitem__(self, key):
        return torch.Tensor.__getitem__(self, _lists_to_tensors(key))

    def __setitem__(self, key, value):
        torch.Tensor.__setitem__(self, _lists_to_tensors(key), value)

    def tolist(self):
        return self.cpu().tolist()

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), self.clone())

    def __format__(self, form):
        return format(self.item(), form)

    def __repr__(self):
        return f"tensor(on the chip, {list(self.shape)}, {self.dtype})"

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy


def _lists_to_tensors(key):
    """A list of places travels to the device."""
    if isinstance(key, tuple):
        return tuple(map(_lists_to_tensors, key))
    return torch.tensor(key).to(CUDA) if isinstance(key, list) else key


class Machine:
    """One process with one chip."""

    def __init__(self, chip: Chip):
        self.chip, self.memory = chip, Memory(chip.free_bytes)
        self.trace: Trace | None = None
        self.capturing = False
        self.slow: set[str] = set()
        self.on_launch: Callable[[str, tuple, dict], None] | None = None  # told of every Triton kernel
        self.results: dict[
            tuple | None, tuple
        ] = {}  # of operations that make a new tensor; torch's own shapes are slow

    def run(self, function, args, kwargs):
        """One operation of torch."""
        name, fresh = _about(function)
        leaves = list(_leaves(args)) + list(_leaves(tuple(kwargs.values())))
        here = [x for x in leaves if isinstance(x, OnChip)]
        away = [x for x in leaves if isinstance(x, torch.Tensor) and not isinstance(x, OnChip)]
        wanted = kwargs.get("device")
        to_chip = bool(here) if wanted is None else torch.device(wanted).type == "cuda"
        if not here and not to_chip:
            return function(*args, **kwargs)
        if self.capturing:
            self._check_captured(name, here, away, to_chip)
        if name in COPIES and (away or not to_chip):
            return self._copied(name, args, kwargs, to_chip)
        if away and not all(x.dim() == 0 for x in away) and not (name in INDEXES and isinstance(args[0], OnChip)):
            raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu in {name}")
        if name in WAITS:
            return self._answer(name, args)
        if name in ("mm", "bmm", "addmm") and here[0].dtype is torch.bfloat16 and self.chip.capability < (8, 0):
            self.slow.add(f"bfloat16 {name}: sm_75 has no hardware for it")
        layout = (function, *map(_layout, leaves), *kwargs) if fresh else None
        if layout in self.results:
            result = OnChip(torch.empty_strided(*self.results[layout][:2], dtype=self.results[layout][2], device=META))
        else:
            result = function(*_mapped(_shape_of, args), **_mapped(_shape_of, kwargs))
            if layout is not None and isinstance(result, torch.Tensor):
                self.results[layout] = result.shape, result.stride(), result.dtype
            twins = {id(x.shape_of): x for x in here}
            # Of an operation in place, the very tensor that it was given.
            result = _mapped(
                lambda x: (twins[id(x)] if id(x) in twins else OnChip(x)) if isinstance(x, torch.Tensor) else x, result
            )
        if self.trace is not None:
            self.trace.note(str(function), (args, kwargs), result)
        return result

    def launch(self, name: str, grid, args, kwargs) -> None:
        """One Triton kernel: it gets addresses, and nobody looks after it."""
        if not all(isinstance(x, OnChip) for x in args if isinstance(x, torch.Tensor)):
            raise ValueError(f"Pointer argument of {name} cannot be accessed from Triton (cpu tensor?)")
        if self.on_launch is not None:
            self.on_launch(name, args, kwargs)
        if self.trace is not None:
            self.trace.note(name, (tuple(grid), args, kwargs), ())

    def _check_captured(self, name, here, away, to_chip) -> None:
        if name in WAITS:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({name})")
        if (away and any(x.dim() or name in COPIES for x in away)) or (here and not to_chip):
            raise RuntimeError(f"Cannot copy between CPU and CUDA tensors during CUDA graph capture ({name})")

    def _copied(self, name, args, kwargs, to_chip):
        """A copy from one device to the other. What comes back is ones, which are tokens, places and factors alike."""
        if name == "copy_":
            target = args[0]
            return target if isinstance(target, OnChip) else target.fill_(1)
        source, dtype = args[0], kwargs.get("dtype") or args[0].dtype
        if not to_chip:
            return torch.ones(source.shape, dtype=dtype)
        return OnChip(torch.empty_strided(source.shape, source.stride(), dtype=dtype, device=META))

    def _answer(self, name, args):
        """What the CPU gets to know of a number on the device: that it is one."""
        if name == "_local_scalar_dense":
            return args[0].dtype.is_floating_point and 1.0 or (True if args[0].dtype is torch.bool else 1)
        if name in ("equal", "is_nonzero"):
            return True
        raise NotImplementedError(f"{name} on a pretend device: its size is not known")


@functools.cache
def _about(function) -> tuple[str, bool]:
    """An operation's name, and whether what it returns is new memory."""
    schema = function._schema
    name = schema.name.split("::")[1]
    fresh = not schema.is_mutable and all(value.alias_info is None for value in schema.returns)
    return name, fresh and name != "_unsafe_view"


def _leaves(x):
    """What is in nested lists and tuples."""
    for part in x:
        if isinstance(part, list | tuple):
            yield from _leaves(part)
        else:
            yield part


def _layout(x):
    if isinstance(x, torch.Tensor):
        return x.shape, x.stride(), x.dtype
    return type(x), x


def _mapped(change: Callable, x):
    """Nested lists, tuples and dictionaries with all that is in them changed; much faster than torch's pytree."""
    if isinstance(x, list | tuple):
        return tuple(_mapped(change, part) for part in x)
    if isinstance(x, dict):
        return {name: _mapped(change, part) for name, part in x.items()}
    return change(x)


def _shape_of(x):
    """An argument as torch's meta device takes it."""
    if isinstance(x, OnChip):
        return x.shape_of
    if isinstance(x, torch.Tensor):
        return x.to(META) if x.dim() else x
    return META if isinstance(x, torch.device) else x


class Trace:
    """What a step launched: operations, with the place of every tensor and the value of everything else."""

    def __init__(self):
        self.operations: list[tuple] = []
        self.made: dict[int, int] = {}  # blocks that the step itself allocated, in order
        self.kept: dict[int, weakref.ref] = {}  # the others

    def note(self, name: str, inputs, outputs) -> None:
        inputs = _mapped(self._place, inputs)
        for x in _leaves((outputs,)):
            if isinstance(x, OnChip) and x.block.number not in self.kept:
                self.made.setdefault(x.block.number, len(self.made))
        self.operations.append((name, repr(inputs), repr(_mapped(self._place, outputs))))

    def _place(self, x):
        if not isinstance(x, OnChip):
            return x
        number = x.block.number
        if number not in self.made:
            self.kept[number] = weakref.ref(x.block)
        where = f"made {self.made[number]}" if number in self.made else f"kept {number}"
        return f"{where} {list(x.shape)} {x.stride()} {x.storage_offset()} {x.dtype}"

    def differs(self, other: "Trace") -> str:
        """The first thing that is not as in `other`, or nothing."""
        for here, there in zip(self.operations, other.operations, strict=False):
            if here != there:
                return f"{here} became {there}"
        more = self.operations[len(other.operations) :] + other.operations[len(self.operations) :]
        return f"{more[0]} is in one of the two only" if more else ""

    @property
    def freed(self) -> bool:
        """Whether memory that the step reads or writes was given back since."""
        return any(block() is None for block in self.kept.values())


class Generator(torch.Generator):
    """Of random numbers that nobody draws."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls)


class _Everywhere(TorchDispatchMode):
    """Sees what no tensor of the chip takes part in: `torch.zeros(8, device="cuda")`."""

    _should_skip_dynamo = classmethod(lambda cls: False)  # to skip it, torch would import all of it first

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return machine.run(function, args, kwargs or {})


# --- torch.cuda ----------------------------------------------------------------------------------


class Stream:
    def wait_stream(self, other):
        pass

    def synchronize(self):
        pass


class Event:
    def __init__(self, enable_timing=False):
        pass

    def record(self, stream=None):
        pass

    def synchronize(self):
        if machine.capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing (event)")

    def elapsed_time(self, end):
        return 1.0


class CUDAGraph:
    """`trace` is what was captured. What the step needed on its way stays in a pool of its own, as long as it."""

    def __init__(self):
        self.trace, self.pool_bytes = Trace(), 0

    def __del__(self):
        machine.memory.held -= self.pool_bytes

    def replay(self):
        if machine.capturing:
            raise RuntimeError("a replay while another graph is captured")
        if self.trace.freed:
            raise RuntimeError("a captured step reads memory that was freed since")


@contextlib.contextmanager
def capture(graph: CUDAGraph, **options):
    memory, before = machine.memory, machine.memory.peak
    machine.capturing, machine.trace, memory.peak = True, graph.trace, memory.held
    try:
        yield
    finally:
        machine.capturing, machine.trace = False, None
        pool_bytes = memory.peak - memory.held  # what was returned is held by who has it
        memory.peak = max(before, memory.peak)
        memory.take(pool_bytes)
        graph.pool_bytes = pool_bytes


def launched(step: Callable) -> Trace:
    """What a capture of `step` would hold now."""
    graph = CUDAGraph()
    with capture(graph):
        step()
    return graph.trace


def _synchronize(device=None):
    if machine.capturing:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing (synchronize)")


# --- installing ----------------------------------------------------------------------------------


def install(chip: Chip) -> Machine:
    """Make this process one with a GPU.

    Raises:
        RuntimeError: this build of torch has no place for a device guard that can be filled from outside.
    """
    global machine
    machine = Machine(chip)
    _guard()
    memory = machine.memory
    stand_ins = dict(
        _lazy_init=lambda: None,
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_capability=lambda device=None: chip.capability,
        get_device_name=lambda device=None: chip.name,
        get_device_properties=lambda device=None: types.SimpleNamespace(
            multi_processor_count=chip.multiprocessors,
            total_memory=chip.free_bytes,
            name=chip.name,
            L2_cache_size=32 * 2**20,
        ),
        _sleep=lambda cycles: None,
        get_arch_list=lambda: [f"sm_{major}{minor}" for major, minor in {c.capability for c in CHIPS.values()}],
        mem_get_info=lambda device=None: (memory.size - memory.held, memory.size),
        synchronize=_synchronize,
        empty_cache=lambda: None,
        is_current_stream_capturing=lambda: machine.capturing,
        current_stream=lambda device=None: Stream(),
        stream=lambda stream: contextlib.nullcontext(),
        Stream=Stream,
        Event=Event,
        CUDAGraph=CUDAGraph,
        graph=capture,
    )
    for name, value in stand_ins.items():
        setattr(torch.cuda, name, value)
    _python_ways_in()
    _Everywhere().__enter__()
    return machine


def _guard() -> None:
    """Give CUDA the device guard of torch's meta device, which does nothing: a CPU build has none, and views ask it."""
    library = next(Path(torch.__file__).parent.joinpath("lib").glob("*c10.*"))
    try:
        guards = (ctypes.c_void_p * 15).in_dll(ctypes.CDLL(str(library)), "_ZN3c104impl26device_guard_impl_registryE")
    except ValueError as error:
        raise RuntimeError(f"torch {torch.__version__} keeps its device guards elsewhere: {error}") from None
    cuda, meta = 1, 14  # c10::DeviceType
    guards[cuda] = guards[meta]


def _python_ways_in() -> None:
    """Where torch would ask the CUDA runtime before it asks a tensor."""
    make, take, to = torch.tensor, torch.as_tensor, torch.Tensor.to

    def placed(device):
        """cuda is cuda:0."""
        named = isinstance(device, str | torch.device)
        return CUDA if named and str(device).startswith("cuda") else device

    def new_tensor(data, *args, device=None, **kwargs):
        made = make(data, *args, **kwargs)
        return made if device is None else made.to(device)

    def any_tensor(data, dtype=None, device=None):
        made = take(data, dtype=dtype)
        return made if device is None else made.to(device)

    torch.tensor, torch.as_tensor = new_tensor, any_tensor
    torch.Tensor.to = lambda self, *args, **kw: to(self, *map(placed, args), **{k: placed(v) for k, v in kw.items()})
    torch.Tensor.cuda = lambda self, *args, **kw: self.to(CUDA)
    torch.Generator = Generator
    torch.inference_mode = torch.no_grad  # wrapped tensors have no views in inference mode


def stub_kernels(module) -> None:
    """Put a stub in the place of every Triton kernel of `module`, which checks its pointers and does nothing."""
    for name, value in vars(module).copy().items():
        if type(value).__name__ in ("JITFunction", "InterpretedFunction", "Autotuner"):
            setattr(module, name, _Kernel(name))


class _Kernel:
    def __init__(self, name):
        self.name = name

    def __getitem__(self, grid):
        return lambda *args, **kwargs: machine.launch(self.name, grid, args, kwargs)
