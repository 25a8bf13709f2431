"""A CUDA decode step captured once and replayed, and a check, without a GPU, that a step may be captured at all.

A decode step launches hundreds of small kernels; launching them one by one from Python takes longer than running them.
A CUDA graph records the launches once. What it records are addresses and constants, and so a step must read everything
that changes, the lengths above all, from device memory at an address that never changes, and must never wait for the
device to learn a number (`.item()`, a mask turned into indices).
"""

import contextlib
import functools
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.caches import StaticCache
from helpers.clock.timing import no_garbage_collection
from helpers.kernels import as_captured

SUBMITTING_CYCLES = (
    1_000_000  # of the device's clock, half a millisecond or more: longer than it takes to launch a graph
)
WARM_UP_CALLS = 3  # compile the Triton kernels, let cuBLAS allocate its workspace
# Operations whose result, or its size, is only known once the device has answered.
SYNCHRONISING = ("item", "_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "is_nonzero")


class Graph:
    """A function without arguments, captured on the current CUDA device and replayed at every call.

    Args:
        function: launches work on tensors at fixed addresses and returns tensors.
        cuda: torch.cuda, or what stands in for it in a test.

    Raises:
        RuntimeError: the function synchronised or allocated in a way that cannot be captured.
    """

    def __init__(self, function: Callable, cuda=torch.cuda):
        self._cuda = cuda
        # Not on the stream that everything else runs on, which cannot be captured; what the first calls allocate is
        # then there when the capture needs it.
        side = _side_stream(cuda, cuda.current_device())
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(WARM_UP_CALLS):
                function()
        cuda.current_stream().wait_stream(side)
        self._graph = cuda.CUDAGraph()
        # An older graph that dies meanwhile would spoil the capture, and the allocator with it; torch collects none
        # beforehand since 2.9 (pytorch/pytorch, pull request 161037).
        with no_garbage_collection(), cuda.graph(self._graph, stream=side):
            self.output = function()
        self._start, self._end = (cuda.Event(enable_timing=True) for _ in range(2))

    def __call__(self):
        """Replay; the returned tensors are overwritten by the next replay."""
        self._graph.replay()
        return self.output

    def elapsed_seconds(self) -> float:
        """Replay once between two events: how long the device took (the protocol of `helpers.clock.timing.Clock`).

        The device is kept busy first: an idle one would pass the first event while the CPU is still submitting the
        graph, which takes 0.05 to 0.2 ms.
        """
        self._cuda._sleep(SUBMITTING_CYCLES)
        self._start.record()
        self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / 1e3


@functools.cache
def _side_stream(cuda, device: int):
    """One for all graphs on a device: torch may keep a workspace of cuBLAS for every stream that ever multiplied, of
    8 MiB, on Hopper 32 (docs.pytorch.org, CUDA semantics, "cuBLAS workspaces")."""
    return cuda.Stream()


def captured(function: Callable, cuda=torch.cuda) -> Callable:
    """`function` as a `Graph`, or as it is, and a line that says so, where it cannot be captured.

    For a step that is timed at one fixed state: what Python decides in it is then the same at every call. It is run
    twice to see whether it waits for the device: a capture that breaks off for this may spoil torch's allocator.
    """
    if found := waits(function):
        _note(found[0])
        return function
    try:
        return Graph(function, cuda)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        _note(str(error).splitlines()[0] if str(error) else type(error).__name__)
        return function


_noted: set[str] | None = None


@contextlib.contextmanager
def one_note():
    """While this lasts, `captured` gives each reason once: the contexts of a sweep share it."""
    global _noted
    _noted = set()
    try:
        yield
    finally:
        _noted = None


def _note(reason: str) -> None:
    if _noted is not None:
        if reason in _noted:
            return
        _noted.add(reason)
    print(f"Note: this step is timed launch by launch, for it cannot be captured as a CUDA graph: {reason}")


class DecodeGraph:
    """The decode step of a decoder over a `StaticCache`, captured once for all contexts.

        step = DecodeGraph(decoder, cache)
        logits = step(tokens)                  # as decoder.decode(tokens, cache), one launch instead of hundreds
        clock.measure(step.at(8192))           # one step with 8,192 tokens in the cache, over and over

    The logits returned are overwritten by the next step.
    """

    def __init__(self, decoder, cache: StaticCache, cuda=torch.cuda):
        self.cache = cache
        self.tokens = torch.zeros(cache.batch, dtype=torch.long, device=decoder.device)
        lengths = cache.lengths
        # Warm-up and capture append tokens of their own; from the start of the cache they always have room.
        cache.rewind(0)
        kept = cache.keys[:, :, :, : WARM_UP_CALLS + 1].clone(), cache.values[:, :, :, : WARM_UP_CALLS + 1].clone()
        self.graph = Graph(lambda: decoder.decode(self.tokens, cache), cuda)
        for tensor, saved in zip((cache.keys, cache.values), kept, strict=True):
            tensor[:, :, :, : WARM_UP_CALLS + 1] = saved
        cache.rewind(max(lengths))
        for sequence, length in enumerate(lengths):
            cache.truncate(sequence, length)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens [batch] → logits [batch, vocab] of the next.

        Raises:
            ValueError: the cache has no room for another token.
        """
        self.cache.advance()
        self.tokens.copy_(tokens)
        return self.graph()

    def at(self, context: int) -> "Prepared":
        """The step with `context` tokens already in the cache; what it appends is forgotten again."""
        return Prepared(lambda: self.cache.rewind(context), self.graph)


class Prepared:
    """A graph with something to do ahead of each replay, and ahead of the event from which it is timed."""

    def __init__(self, prepare: Callable, graph: Graph):
        self._prepare, self._graph = prepare, graph

    def __call__(self):
        self._prepare()
        return self._graph()

    def elapsed_seconds(self) -> float:
        """As the graph's own, after what has to be prepared."""
        self._prepare()
        return self._graph.elapsed_seconds()


def waits(step: Callable) -> list[str]:
    """Operations of `step`, at its second call, for which the CPU waits for the device or copies from or to it."""
    step()  # the first may prepare something
    synchronize = torch.cuda.synchronize
    with as_captured(), _Waits() as seen:
        torch.cuda.synchronize = lambda device=None: seen.found.append("torch.cuda.synchronize waits for the device")
        try:
            step()
        finally:
            torch.cuda.synchronize = synchronize
    return list(dict.fromkeys(seen.found))


class _Waits(TorchDispatchMode):
    """What a step waits for."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = _name(function)
        there = {x.device.type for x in (*args, result) if isinstance(x, torch.Tensor)}
        if name in SYNCHRONISING:
            self.found.append(f"{function.name()} waits for the device")
        elif name in ("_to_copy", "copy_") and len(there) > 1:
            self.found.append(f"{function.name()} copies between {' and '.join(sorted(there))}")
        return result


def _name(function) -> str:
    """ "add" of aten::add.Tensor."""
    return function.name().split("::")[1].split(".")[0]


def problems(step: Callable, *owners) -> list[str]:
    """Why `step` cannot be captured, found on any device by running it three times; an empty list if it can.

    Args:
        step: launches the same work at every call, for one more token.
        owners: objects whose tensor attributes the step reads and writes, the cache for one.

    A step is safe when it asks the device nothing, when the operations of consecutive calls are the same down to
    shapes, strides, offsets and constants (so nothing grows, and nothing that changes is baked in), and when its
    owners' tensors stay where they are.
    """
    found = []
    traces, tensors = [], []
    for _ in range(3):
        with _Trace() as trace:
            step()
        traces.append(trace.operations)
        tensors.append(_tensors(owners))  # kept, so that a freed address cannot come back as another tensor's
    for name in dict.fromkeys(operation[0] for operation in traces[0]):
        if name.split("::")[1].split(".")[0] in SYNCHRONISING:
            found.append(f"{name} waits for the device")
    for before, after in zip(traces, traces[1:], strict=False):
        if len(before) != len(after):
            found.append(f"one call runs {len(before)} operations, the next {len(after)}")
        for one, other in zip(before, after, strict=False):
            if one != other:
                found.append(f"{one[0]} changes between calls: {one[1:]} became {other[1:]}")
                break
    for before, after in zip(tensors, tensors[1:], strict=False):
        moved = [name for name in before if before[name].data_ptr() != after[name].data_ptr()]
        found += [f"{name} moved to another address" for name in moved]
    return list(dict.fromkeys(found))


class _Trace(TorchDispatchMode):
    """Every operation with the layout of its tensors and the value of everything else."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.operations.append((str(function.name()), _layout(args), _layout(kwargs or {}), _layout(result)))
        return result


def _layout(value):
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.storage_offset(), str(value.dtype), str(value.device)
    if isinstance(value, list | tuple):
        return tuple(_layout(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _layout(item)) for key, item in value.items())
    return type(value).__name__ if isinstance(value, torch.UntypedStorage) else repr(value)


def _tensors(owners) -> dict[str, torch.Tensor]:
    return {
        f"{type(owner).__name__}.{name}": value
        for owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, torch.Tensor)
    }
