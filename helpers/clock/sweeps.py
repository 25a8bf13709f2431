"""Real decode steps under the clock: one decoder over one cache at any context, and sweeps over many."""

from collections.abc import Callable, Iterable, Mapping

import torch

from helpers.caches import KVCache
from helpers.clock import graphs, timing
from helpers.clock.devices import MemoryRead
from helpers.models.decoder import Decoder
from helpers.progress import Progress

CONTEXTS = (16, 1024, 2048, 4096, 8192)
SECONDS_PER_POINT = {"quick": 0.7, "full": 4.0}
BESIDE = "beside"


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

        # The context is fixed, so every launch of the step is: on CUDA they are replayed as one.
        return graphs.captured(step) if self.decoder.device.type == "cuda" else step

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
    for label, point in points.items():
        for context in contexts:
            steps[label, context] = point.at(context)
            floors[label, context] = point.bytes_at(context) / read_bytes_per_second if read_bytes_per_second else None
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
