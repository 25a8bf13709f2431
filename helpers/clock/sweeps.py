"""Real decode steps under the clock: one decoder over one cache at any context, and sweeps over many."""

import math
from collections.abc import Callable, Iterable, Mapping

import torch

from helpers.caches import FullCache, KVCache
from helpers.clock import devices, graphs, timing
from helpers.clock.devices import DeviceCard, MemoryRead
from helpers.models.counts import kv_bytes
from helpers.models.decoder import Decoder
from helpers.progress import Progress

CONTEXTS = (16, 1024, 2048, 4096, 8192)
SECONDS_PER_POINT = {"quick": 0.5, "full": 4.0}
BESIDE = "beside"
# Caches of a sweep take at most this share of what is free: a read buffer and what captured steps need come on top.
CACHE_SHARE = 0.7
# A unit at "quick" takes no more of an accelerator than this, weights included, so that it runs on a card of 8 GB and
# learners can share a larger one; what captured steps and logits need is part of it.
QUICK_BYTES, WORKING_BYTES = 7e9, 0.3e9
BATCHES = (16, 12, 8, 4, 2, 1)
LONGEST_CONTEXT = 32_768
ENOUGH_GROWTH = 4.0  # a step that takes so many times as long at the end shows its slope


def launches_seconds(decoder: Decoder, batch: int) -> float:
    """Seconds that the launches of a decode step take: a decoder of as many operations and almost no bytes, timed."""
    narrow = decoder.geometry.replace(name="no bytes", hidden=64, head_dim=16, intermediate=64, vocab=64)
    empty = Decoder(narrow, decoder.dtype, decoder.device)
    step = DecodeStep(empty, FullCache(narrow, 64, batch, decoder.dtype, decoder.device)).at(16)
    return timing.Clock(decoder.device).measure(step, 0.2, progress=False).median


def growth(decoder: Decoder, batch: int, context: int, bytes_per_second: float, launches: float = 0.0) -> float:
    """How many times as long a step takes at `context` as at 16 tokens, by bytes and launches (seconds)."""
    token = kv_bytes(decoder.geometry, 1, batch, decoder.dtype)
    first, last = ((decoder.weight_bytes + n * token) / bytes_per_second + launches for n in (CONTEXTS[0], context))
    return last / first


def room_bytes(decoder: Decoder, budget: str = "quick") -> float:
    """What caches may take beside a decoder that is already there; infinity where the system does not say what is
    free."""
    free = devices.free_bytes(decoder.device)
    return room_beside(decoder.weight_bytes, free, budget, accelerator=decoder.device.type != "cpu")


def room_beside(weight_bytes: float, free: float | None, budget: str = "quick", accelerator: bool = True) -> float:
    """What caches may take beside weights: CACHE_SHARE of `free`, the memory that these leave, and of an accelerator at
    "quick" what QUICK_BYTES leave."""
    room = math.inf if free is None else CACHE_SHARE * free
    return min(room, QUICK_BYTES - WORKING_BYTES - weight_bytes) if accelerator and budget == "quick" else room


def largest_batch(decoder: Decoder, sequence_bytes: float, most: int, budget: str = "quick") -> int:
    """The largest of BATCHES, `most` at the most, whose caches have room here; 1 where not even two have.

    Args:
        sequence_bytes: of all caches that are held side by side, for one sequence.
    """
    room = room_bytes(decoder, budget)
    return next((batch for batch in BATCHES if batch <= most and batch * sequence_bytes <= room), 1)


def sizes(decoder: Decoder, card: DeviceCard, budget: str = "quick") -> tuple[tuple[int, int], tuple[int, ...]]:
    """Two batches, one four times the other, and the contexts at which full caches of both show the slope here.

    A fast device gets more sequences, and an accelerator longer contexts, doubled up to 32k until a step is predicted
    to take four times as long at the end: as far as the larger cache, whose memory the smaller one may take
    (`FullCache`, over), fits `room_bytes`.
    """
    token, room = kv_bytes(decoder.geometry, 1, dtype=decoder.dtype), room_bytes(decoder, budget)

    def fit(batch: int, longest: int) -> bool:
        return 4 * batch * (longest + 64) * token <= room

    contexts = list(CONTEXTS)
    batch = next((b for b in ((4, 2) if decoder.device.type == "cuda" else ()) if fit(b, contexts[-1])), 1)
    while len(contexts) > 2 and not fit(batch, contexts[-1]):
        contexts.pop()
    if decoder.device.type != "cpu" and contexts[-1] == CONTEXTS[-1]:
        launches = launches_seconds(decoder, 4 * batch)
        while (
            2 * contexts[-1] <= LONGEST_CONTEXT
            and fit(batch, 2 * contexts[-1])
            and growth(decoder, 4 * batch, contexts[-1], card.read_bytes_per_second, launches) < ENOUGH_GROWTH
        ):
            contexts.append(2 * contexts[-1])
    return (batch, 4 * batch), tuple(contexts)


def timed_step(step: Callable, device: torch.device) -> Callable:
    """A step that does the same at every call, as it is timed: on CUDA its launches are replayed as one."""
    return graphs.captured(step) if device.type == "cuda" else step


class DecodeStep:
    """Real decode steps of one decoder over one cache, at any context that the cache was filled to.

    The cache is filled once to its capacity less one token and rewound before every step, so that a sweep over
    contexts neither pays a prefill nor holds more than one cache.
    """

    def __init__(self, decoder: Decoder, cache: KVCache, longest: int | None = None):
        self.decoder, self.cache = decoder, cache
        self.token = torch.zeros(cache.batch, dtype=torch.long, device=decoder.device)
        cache.fill(cache.capacity - 1 if longest is None else longest)
        self.longest = cache.length

    def at(self, context: int) -> Callable[[], torch.Tensor]:
        """A function that runs one decode step with `context` tokens already in the cache, and returns its logits.

        Raises:
            ValueError: the cache does not hold that many.
        """
        if not 0 <= context <= self.longest:
            raise ValueError(f"the cache holds {self.longest} tokens; cannot time a step at {context}")

        def step() -> torch.Tensor:
            self.cache.rewind(context)
            return self.decoder.decode(self.token, self.cache)

        return timed_step(step, self.decoder.device)

    def bytes_at(self, context: int) -> int:
        """Bytes that a step at `context` streams: the weights once, and what it reads of the cache."""
        return self.decoder.weight_bytes + self.cache.step_bytes(context + 1)


def decode_sweep(
    engines: Mapping[str, tuple[Decoder, KVCache]],
    contexts: Iterable[int] = CONTEXTS,
    budget: str = "quick",
    read_bytes_per_second: float | None = None,
    beside: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, dict[int, timing.Timing]]:
    """Time real decode steps at every context, all engines and contexts in turns.

    Args:
        engines: label → (decoder, cache). Engines on one device; each cache holds the longest context and one more.
        contexts: tokens already in the cache before the step that is timed.
        budget: "quick" or "full", see SECONDS_PER_POINT; at least 20 samples a point in either.
        read_bytes_per_second: from the device card; a time below bytes ÷ this is then reported as impossible.
        beside: label → another step to time in the same rounds, such as `devices.read_step`, whose buffer is given
            back afterwards.

    Returns:
        {label: {context: Timing}}, and {BESIDE: {label: Timing}} where there was one; points that an interrupt left
        unmeasured are missing.

    Raises:
        ValueError: an unknown budget, no engine, no context, an engine named BESIDE, or a context that does not fit a
            cache.
    """
    if budget not in SECONDS_PER_POINT:
        raise ValueError(f"budget must be one of {', '.join(SECONDS_PER_POINT)}, not {budget!r}")
    contexts = sorted(set(contexts))
    if not engines or not contexts:
        raise ValueError("nothing to measure: a sweep needs at least one engine and one context")
    if BESIDE in engines:
        raise ValueError(
            f"no engine may be called {BESIDE!r}: the steps timed beside the engines are returned under it"
        )
    points, steps, floors = {}, {}, {}
    with Progress("filling caches") as bar:
        for label, (decoder, cache) in engines.items():
            points[label] = DecodeStep(decoder, cache, contexts[-1])
            bar.to(len(points) / len(engines))
    with graphs.one_note():
        for label, point in points.items():
            for context in contexts:
                steps[label, context] = point.at(context)
                floor = point.bytes_at(context) / read_bytes_per_second if read_bytes_per_second else None
                floors[label, context] = floor
    beside = beside or {}
    steps |= {(BESIDE, label): step for label, step in beside.items()}
    device = next(iter(points.values())).decoder.device
    seconds = SECONDS_PER_POINT[budget] * len(steps)
    try:
        timed = timing.Clock(device).sweep(steps, budget_seconds=seconds, floors=floors, label="decode steps")
    finally:
        for step in beside.values():
            if isinstance(step, MemoryRead):
                step.free()
    result: dict[str, dict[int, timing.Timing]] = {label: {} for label, _ in steps}
    for (label, point), found in timed.items():
        result[label][point] = found
    return result
