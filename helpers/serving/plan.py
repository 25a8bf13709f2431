"""Which fixes to ship: what each lever does to the bytes of a step, alone and stacked, and the best set of them.

A step streams   weights + cache bytes of a token · tokens of history it reads.   A lever shrinks one factor. Two levers
on the same factor do not multiply: a cache has one format, and a history has one length, the shortest.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lever:
    """A fix, by what it leaves of each factor.

    weights   of the bytes of the weights
    cache     of the bytes of a cached token
    keep      tokens of a session's history that are kept; None keeps all
    shared    tokens at the front of every session that are read once for the whole batch, and held once
    found     a turn finds its history in the cache, and does not prefill it again
    quality   what it costs, in per cent of the team's quality score
    days      of work until it ships
    """

    name: str
    weights: float = 1.0
    cache: float = 1.0
    keep: int | None = None
    shared: int = 0
    found: bool = False
    quality: float = 0.0
    days: int = 0


@dataclass(frozen=True)
class Service:
    """What is served: bytes of the weights that a step streams, bytes of a cached token, sessions decoded together,
    tokens that each holds, and bytes a second that all GPUs together really read."""

    weight_bytes: float
    kv_bytes_per_token: float
    batch: int
    context: int
    bytes_per_second: float

    def tpot_seconds(self, levers: Iterable[Lever] = ()) -> float:
        """A decode step with `levers` in place, together."""
        levers = list(levers)
        return (self.streamed_bytes(levers) + self.cache_bytes(levers)) / self.bytes_per_second

    def streamed_bytes(self, levers: Iterable[Lever] = ()) -> float:
        """Bytes of weights that a step reads."""
        return self.weight_bytes * min([lever.weights for lever in levers], default=1.0)

    def cache_bytes(self, levers: Iterable[Lever] = ()) -> float:
        """Bytes of cache that a step reads, which is also what has to be held: a shared token counts once in both."""
        levers = list(levers)
        cache = self.kv_bytes_per_token * min([lever.cache for lever in levers], default=1.0)
        held = min([self.context, *(lever.keep for lever in levers if lever.keep is not None)])
        shared = min(held, max([lever.shared for lever in levers], default=0))
        return cache * (self.batch * (held - shared) + shared)

    def prefill_tokens(self, levers: Iterable[Lever] = (), new: int = 500) -> int:
        """Tokens that a turn of `new` tokens prefills before its first token comes: TTFT goes with them."""
        levers = list(levers)
        held = min([self.context, *(lever.keep for lever in levers if lever.keep is not None)])
        return new if any(lever.found for lever in levers) else held + new


@dataclass(frozen=True)
class Limits:
    """Per cent of quality that may be lost in all, and days of work."""

    quality: float
    days: int

    def broken_by(self, levers: Sequence[Lever]) -> str:
        """In words, or "" where `levers` keep both."""
        quality, days = sum(lever.quality for lever in levers), sum(lever.days for lever in levers)
        if quality > self.quality + 1e-9:
            return f"together they cost {quality:g} % of quality, and {self.quality:g} % may be lost"
        return f"together they take {days} days, and there are {self.days}" if days > self.days else ""


def best(service: Service, levers: Sequence[Lever], limits: Limits, count: int = 4) -> tuple[float, list[set[str]]]:
    """The lowest TPOT that `count` levers reach within the limits, in seconds, and each set of names that reaches it.

    Raises:
        ValueError: no set of that many levers keeps the limits.
    """
    found = {
        frozenset(lever.name for lever in chosen): service.tpot_seconds(chosen)
        for chosen in itertools.combinations(levers, count)
        if not limits.broken_by(chosen)
    }
    if not found:
        raise ValueError(f"no {count} of these {len(levers)} levers keep the limits")
    lowest = min(found.values())
    return lowest, [set(names) for names, seconds in found.items() if seconds <= lowest * (1 + 1e-9)]


def scenario() -> tuple[Service, list[Lever], Limits]:
    """The service of unit 08, its levers, and what they may cost: made up, but for the quality of the two cache
    formats, which is what unit 06 measured on SmolLM2."""
    return (
        Service(139.0e9, 327_680, batch=31, context=30_000, bytes_per_second=3.7e12),
        [
            Lever("fp8 cache", cache=0.5, quality=1.0, days=3),
            Lever("int4 cache, keys per channel", cache=0.28, quality=3.6, days=15),
            # It keeps the 4,000 tokens of the system prompt as sinks, so that they can be shared as well.
            Lever("a window of 4,096 behind the system prompt", keep=8_096, quality=6.0, days=5),
            Lever("compaction at 16,000", keep=16_000, quality=1.0, days=10),
            Lever("weights in 4.5 bits", weights=0.28, quality=1.5, days=8),
            Lever("system prompt of 4,000 read once", shared=4_000, days=12),
            Lever("prefix caching", found=True, days=2),
            Lever("kernels fused", days=6),
        ],
        Limits(quality=4.0, days=35),
    )
