"""The clock of the course: warm up, synchronise, sample in turns, report median and spread.

It knows no model. A *step* is any callable without arguments. Time source and device are arguments, so
that the tests of the clock run on `helpers.clock.simulated` and are exact.
"""

import contextlib
import gc
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import filelock
import torch

from helpers.friendly import Friendly, wrapped
from helpers.numbers import prefixed
from helpers.progress import Progress, write

Step = Callable[[], object]

# A floor is bytes over a *measured* bandwidth, which itself wobbles by some percent between two cards.
FLOOR_TOLERANCE = 0.9
# Wider than this, two points of a curve cannot be told apart and the picture would teach noise.
BUSY_SPREAD = 0.10
# Below this, reading the clock is a visible part of what is read: call the step several times a sample.
SHORTEST_SAMPLE_SECONDS = 100e-6
# Two-sided normal quantiles: 95 % for the spread of one timing, 99 % for the claim that two steps differ.
Z95, Z99 = 1.960, 2.576
# Of a sweep's progress bar.
WARM_UP_SHARE = 0.2

IMPOSSIBLE = (
    "Faster than the bytes can be read. The usual reasons: the device was not synchronised; "
    "the data fits in a cache and never came from memory; the step did less work than you counted; "
    "the byte count is too high, or the device card is out of date "
    "(from helpers.clock import devices; devices.card(refresh=True))."
)
BUSY = (
    "The samples disagree too much to teach anything: something else is using this machine. "
    "Close it and measure again, or give the measurement a larger budget."
)


def _middle_ranks(n: int, z: float) -> tuple[int, int]:
    """0-based ranks of the sorted sample that bracket its median (binomial, normal approximation)."""
    low = max(0, math.floor((n - 1) / 2 - z * math.sqrt(n) / 2))
    return low, n - 1 - low


def _memory(samples: tuple[float, ...]) -> float:
    """How much a sample resembles the one before it, 0 to 0.9: lag-1 correlation, robust to outliers.

    Taken from the signs of the deviations from the median, since it is the signs that decide where the
    median falls; sin(pi c / 2) turns a correlation of signs into that of a normal series (Sheppard 1899).
    """
    middle = statistics.median(samples)
    signs = [(s > middle) - (s < middle) for s in samples]
    known = sum(map(abs, signs))
    if known < 8:
        return 0.0
    c = sum(x * y for x, y in zip(signs, signs[1:], strict=False)) / known
    return min(0.9, max(0.0, math.sin(math.pi * c / 2)))


@dataclass(frozen=True)
class Timing:
    """What was measured of one step. All times are seconds for one call.

    samples         in the order in which they were taken
    floor_seconds   the least time in which the bytes of the step can be read, if known
    partial         the measurement was interrupted; what had been measured is here
    """

    samples: tuple[float, ...]
    floor_seconds: float | None = None
    partial: bool = False

    def __post_init__(self):
        if not self.samples:
            raise ValueError("a Timing needs at least one sample")
        bad = [s for s in self.samples if not math.isfinite(s) or s < 0]
        if bad:
            raise ValueError(f"a sample must be a finite number of seconds, at least 0; got {bad[0]}")
        floor = self.floor_seconds
        if floor is not None and not (math.isfinite(floor) and floor >= 0):
            raise ValueError(f"floor_seconds must be a finite number, at least 0; got {floor}")

    @cached_property
    def median(self) -> float:
        """Of the samples, in seconds."""
        return statistics.median(self.samples)

    @cached_property
    def best(self) -> float:
        """The shortest sample, in seconds."""
        return min(self.samples)

    @cached_property
    def spread(self) -> float:
        """Half-width of a 95 % interval of the median, in seconds.

        Distribution-free: two order statistics around the median. Samples that resemble their neighbours
        say less than independent ones, so n shrinks to n (1 - r) / (1 + r), r the correlation of a sample
        with the one before (the usual effective sample size of an AR(1) series). A single sample
        knows nothing of its spread: it is then as wide as the median itself.
        """
        n, r = len(self.samples), _memory(self.samples)
        if n == 1:
            return self.median
        ordered = sorted(self.samples)
        low, high = _middle_ranks(n, Z95 * math.sqrt((1 + r) / (1 - r)))
        return max(ordered[high] - self.median, self.median - ordered[low])

    @property
    def ms(self) -> float:
        """The median in milliseconds."""
        return self.median * 1e3

    @property
    def spread_ms(self) -> float:
        """The spread in milliseconds."""
        return self.spread * 1e3

    @property
    def verdict(self) -> str:
        """One of "ok", "busy" (spread over a tenth of the median), "impossible" (faster than the floor)."""
        floor = self.floor_seconds or 0.0
        if self.median + self.spread < FLOOR_TOLERANCE * floor:
            return "impossible"
        if self.spread > BUSY_SPREAD * self.median:
            return "busy"
        return "ok"

    @property
    def reason(self) -> str:
        """Why the verdict is not "ok", with what to do; empty when it is."""
        return {"impossible": IMPOSSIBLE, "busy": BUSY, "ok": ""}[self.verdict]

    @property
    def line(self) -> str:
        """What was measured, with the verdict and without its reason."""
        text = (
            f"{pretty_seconds(self.median)} ± {pretty_seconds(self.spread)}"
            f" (best {pretty_seconds(self.best)}, {len(self.samples)} samples)"
        )
        if self.partial:
            text += " [partial: interrupted]"
        if self.verdict != "ok":
            text += f" [{self.verdict}]"
        return text

    def __str__(self) -> str:
        return "\n".join(filter(None, [self.line, wrapped(self.reason)]))


def listed(timings: dict[str, Timing]) -> str:
    """A line for each timing of a sweep; below them each reason to doubt some of them, once."""
    wide = max(map(len, timings))
    lines = [f"{label:>{wide}}: {timing.line}" for label, timing in timings.items()]
    return "\n".join([*lines, *sorted({wrapped(timing.reason) for timing in timings.values() if timing.reason})])


def doubt(timings: Iterable[Timing]) -> str:
    """A note for a title: " [busy]" where one of the timings is, nothing where all can be trusted."""
    return "".join(f" [{verdict}]" for verdict in sorted({timing.verdict for timing in timings} - {"ok"}))


@dataclass(frozen=True)
class Comparison:
    """Step b against step a, from pairs taken side by side.

    ratio    median over the pairs of b's time over a's: 2.0 says that b takes twice as long
    spread   half-width of a 99 % interval of that ratio
    pairs    the ratios of the single pairs, in the order in which they were taken
    """

    ratio: float
    spread: float
    pairs: tuple[float, ...]
    partial: bool = False

    @property
    def differs(self) -> bool:
        """Whether the ratio lies further from 1 than its own spread."""
        return abs(self.ratio - 1) > self.spread

    def __str__(self) -> str:
        says = "they differ" if self.differs else "no difference that this clock can see"
        tail = ", partial: interrupted" if self.partial else ""
        return f"ratio {self.ratio:.3f} ± {self.spread:.3f} over {len(self.pairs)} pairs: {says}{tail}"


def compare_pairs(ratios: tuple[float, ...], partial: bool = False) -> Comparison:
    """Median ratio with the order statistics that bracket it, widened to the wider side.

    Fewer than 8 pairs cannot support 99 % even when all of them agree (2 / 2^7 > 1 %): their spread is
    infinite, so that they never claim a difference.
    """
    if not ratios:
        raise ValueError("a Comparison needs at least one pair")
    ordered = sorted(ratios)
    low, high = _middle_ranks(len(ordered), Z99)
    middle = statistics.median(ordered)
    spread = max(ordered[high] - middle, middle - ordered[low]) if len(ordered) >= 8 else math.inf
    return Comparison(middle, spread, tuple(ratios), partial)


def pretty_seconds(seconds: float) -> str:
    """Seconds with a unit that suits them: "31.24 ms"."""
    return prefixed(seconds, "s", digits=4)


def synchronizer(device: torch.device | str) -> Callable[[], None]:
    """A callable that returns once everything launched on `device` has finished."""
    device = torch.device(device)
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    if device.type == "mps":
        return torch.mps.synchronize
    return lambda: None


@contextlib.contextmanager
def device_lock(device: torch.device | str) -> Iterator[None]:
    """One measurement at a time per device, across processes and users of this machine.

    Says so when it has to wait. Where no lock file can be written, says that and goes on without.
    """
    # "cuda" and "cuda:0" are one device.
    name = "cuda-0" if str(device) == "cuda" else str(device).replace(":", "-").replace(os.sep, "-")
    lock = None
    try:
        # A directory of our own without the sticky bit: inside the shared temporary directory itself,
        # Linux refuses to open a file that another user created.
        folder = Path(tempfile.gettempdir()) / "decode-course-locks"
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):
            folder.chmod(0o777)
        lock = filelock.FileLock(folder / f"{name}.lock", mode=0o666, is_singleton=True)
        lock.acquire(timeout=0.05)
    except filelock.Timeout:
        write(f"Somebody else is timing on {device}. Waiting for my turn (interrupt the kernel to give up) …")
        lock.acquire()
    except OSError as error:
        write(f"No lock for {device} ({error}): measuring without one, so others may disturb the result.")
        lock = None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a sample would be charged to the step."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Stopped(Friendly, KeyboardInterrupt):
    """The learner stopped a measurement before it had a sample; notebooks show the message alone."""

    def __init__(self):
        super().__init__("Stopped before the first sample. Run the cell again when you like.")


class Clock:
    """Times steps on one device.

    device        "cpu", "cuda", "mps", …; only names the lock and picks the default synchronisation
    now           time source, seconds
    synchronize   returns once all launched work has finished; default: what `device` needs
    lock          context manager made from the device, held during a measurement

    A step may carry a method `elapsed_seconds()` that runs it once and returns how long the *device*
    took (a replayed CUDA graph between two events); the clock then believes that and reads no time itself.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        now: Callable[[], float] = time.perf_counter,
        synchronize: Callable[[], None] | None = None,
        lock: Callable[[object], contextlib.AbstractContextManager] = device_lock,
    ):
        self.device = device
        self.now = now
        self.synchronize = synchronizer(device) if synchronize is None else synchronize
        self._lock = lock

    def _sample(self, step: Step, calls: int = 1) -> float:
        elapsed = getattr(step, "elapsed_seconds", None)
        if elapsed is not None:
            return float(elapsed())
        self.synchronize()
        start = self.now()
        for _ in range(calls):
            step()
        self.synchronize()
        return (self.now() - start) / calls

    def _warm_up(self, step: Step, limit_seconds: float) -> int:
        """Run `step` until it stops getting faster; return the calls that make one sample.

        Stable: the median of the last three calls is no more than a tenth below that of the three before.
        The first call is not charged to the limit: it may compile.
        """
        times = [self._sample(step)]
        start = self.now()
        while True:
            times.append(self._sample(step))
            stable = len(times) >= 6 and (statistics.median(times[-3:]) > 0.9 * statistics.median(times[-6:-3]))
            if stable or self.now() - start > limit_seconds:
                break
        usual = min(times[-3:])
        return min(1000, max(1, math.ceil(SHORTEST_SAMPLE_SECONDS / max(usual, 1e-9))))

    def _lead_in(self, step: Step, seconds: float) -> None:
        start = self.now()
        while self.now() - start < seconds:
            self._sample(step)

    def measure(
        self,
        step: Step,
        budget_seconds: float = 2.0,
        min_samples: int = 20,
        floor_seconds: float | None = None,
        progress: bool = True,
    ) -> Timing:
        """Time one step: warm up, then sample for `budget_seconds`, at least `min_samples` times."""
        floors = {"step": floor_seconds}
        return self.sweep({"step": step}, budget_seconds, min_samples, progress, floors)["step"]

    def sweep(
        self,
        steps: Mapping[Hashable, Step],
        budget_seconds: float = 10.0,
        min_samples: int = 20,
        progress: bool = True,
        floors: Mapping[Hashable, float | None] | None = None,
        seed: int = 0,
        label: str = "measuring",
        lead_in_seconds: float = 0.0,
        warm: bool = False,
    ) -> dict[Hashable, Timing]:
        """Time several steps in turns: every round visits each of them once, in an order shuffled by `seed`.

        So drift and bursts of a shared machine hit all points alike, and not the last ones most.
        `budget_seconds` is for the whole sweep; `min_samples` rounds are made even beyond it. Calls
        of a step for `lead_in_seconds` go before each of its samples, not timed: needed where engines take turns,
        since one engine's threads may go on waiting for work, on the next one's cores, for a while. `warm` says
        that all steps have just run and take long: they are not run again to warm up. An interrupt
        (Ctrl-C, the stop button) keeps what has been measured and marks it `partial` (a step without a
        sample is left out); before the first sample it is raised again as Stopped.

        Raises ValueError for an empty sweep, a floor without a step, a negative lead_in_seconds, or an effort
        that is not positive.
        """
        _check_effort(budget_seconds, min_samples)
        if not 0 <= lead_in_seconds < math.inf:
            raise ValueError(f"lead_in_seconds must be a number of seconds, 0 or more, got {lead_in_seconds}")
        if not steps:
            raise ValueError("nothing to measure: `steps` is empty")
        floors = floors or {}
        unknown = set(floors) - set(steps)
        if unknown:
            raise ValueError(f"floors for steps that are not in the sweep: {sorted(map(str, unknown))}")
        samples: dict[Hashable, list[float]] = {key: [] for key in steps}
        partial = False
        bar = Progress(label, budget_seconds, progress)
        try:
            with self._lock(self.device), no_garbage_collection():
                calls = {}
                for k, s in steps.items():
                    calls[k] = 1 if warm else self._warm_up(s, 0.25 * budget_seconds / len(steps))
                    bar.to(WARM_UP_SHARE * len(calls) / len(steps))
                start, rounds, shuffle = self.now(), 0, random.Random(seed)
                order = list(steps)
                while rounds < min_samples or self.now() - start < budget_seconds:
                    shuffle.shuffle(order)
                    for key in order:
                        self._lead_in(steps[key], lead_in_seconds)
                        samples[key].append(self._sample(steps[key], calls[key]))
                    rounds += 1
                    done = min(rounds / min_samples, (self.now() - start) / budget_seconds)
                    bar.to(WARM_UP_SHARE + (1 - WARM_UP_SHARE) * done)
        except KeyboardInterrupt:
            if not any(samples.values()):
                raise Stopped from None
            partial = True
            # On a line of its own: a bar may be standing on this one.
            print(f"\nInterrupted: keeping {sum(map(len, samples.values()))} samples that were already taken.")
        finally:
            bar.close()
        return {key: Timing(tuple(s), floors.get(key), partial) for key, s in samples.items() if s}

    def compare(
        self,
        a: Step,
        b: Step,
        budget_seconds: float = 2.0,
        min_pairs: int = 40,
        progress: bool = True,
        seed: int = 0,
        label: str = "comparing",
    ) -> Comparison:
        """Does b take longer than a? Both are run in pairs, back to back, in an order drawn by `seed`.

        Why this is fair on a noisy machine: if a and b are the same step, swapping the two of a pair
        changes nothing but the sign of log(b / a), and which comes first is a coin toss. So each pair falls
        above or below 1 with equal chance *whatever the noise does*, bursts and drift included, and the
        number of pairs above 1 is binomial. The interval is the one that this gives for the median ratio.
        """
        _check_effort(budget_seconds, min_pairs)
        ratios: list[float] = []
        partial = False
        bar = Progress(label, budget_seconds, progress)
        try:
            with self._lock(self.device), no_garbage_collection():
                calls = max(self._warm_up(step, 0.125 * budget_seconds) for step in (a, b))
                start, coin = self.now(), random.Random(seed)
                while len(ratios) < min_pairs or self.now() - start < budget_seconds:
                    if coin.random() < 0.5:
                        time_a = self._sample(a, calls)
                        time_b = self._sample(b, calls)
                    else:
                        time_b = self._sample(b, calls)
                        time_a = self._sample(a, calls)
                    ratios.append(max(time_b, 1e-12) / max(time_a, 1e-12))
                    bar.to(min(len(ratios) / min_pairs, (self.now() - start) / budget_seconds))
        except KeyboardInterrupt:
            if not ratios:
                raise Stopped from None
            partial = True
            print(f"\nInterrupted: keeping {len(ratios)} pairs that were already taken.")
        finally:
            bar.close()
        return compare_pairs(tuple(ratios), partial)


def _check_effort(budget_seconds: float, at_least: int) -> None:
    if not (math.isfinite(budget_seconds) and budget_seconds > 0):
        raise ValueError(f"budget_seconds must be a positive number of seconds, got {budget_seconds}")
    if at_least < 1:
        raise ValueError(f"at least one sample is needed, got {at_least}")
