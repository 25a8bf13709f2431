"""A pretend accelerator with exact time, so that a clock can be tested without owning one.

Real accelerators are asynchronous: a launch puts work in a queue and returns at once; only a
synchronisation waits for the result. `SimulatedDevice` does the same with a counter in place of time, so
every test on it is exact and takes no time at all.
"""

import random
from collections.abc import Callable


class SimulatedDevice:
    """An in-order queue of kernels and the clock that goes with it. All times are seconds.

    launch_seconds   what the caller pays to put one kernel in the queue
    start_up         multiples of its usual time that the first calls of a kernel take, e.g. (50.0, 3.0):
                     the first call compiles, the second fills caches, the third is ordinary
    noise            called with the present time, returns the factor by which a kernel is slowed just then
    """

    def __init__(
        self,
        launch_seconds: float = 5e-6,
        start_up: tuple[float, ...] = (),
        noise: Callable[[float], float] | None = None,
    ):
        if launch_seconds < 0:
            raise ValueError(f"launch_seconds must be at least 0, got {launch_seconds}")
        self.launch_seconds = launch_seconds
        self.start_up = start_up
        self.noise = noise
        self.launches = 0
        self.synchronizations = 0
        self._now = 0.0
        self._queue_empty_at = 0.0

    def now(self) -> float:
        """Seconds on this device's clock; looking at it costs nothing."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let time pass on the caller's side; the queue goes on working."""
        self._now += seconds

    def launch(self, kernel_seconds: float) -> None:
        """Queue a kernel and return at once, having paid only `launch_seconds`."""
        if kernel_seconds < 0:
            raise ValueError(f"a kernel cannot take {kernel_seconds} seconds")
        self.launches += 1
        self._now += self.launch_seconds
        start = max(self._now, self._queue_empty_at)
        slowed = kernel_seconds * (self.noise(start) if self.noise else 1.0)
        self._queue_empty_at = start + slowed

    def synchronize(self) -> None:
        """Wait until the queue is empty."""
        self.synchronizations += 1
        self._now = max(self._now, self._queue_empty_at)

    def kernel(self, seconds: float) -> Callable[[], None]:
        """A step that launches one kernel of `seconds`, its first calls slowed as `start_up` says."""
        calls = 0

        def step() -> None:
            nonlocal calls
            slow = self.start_up[calls] if calls < len(self.start_up) else 1.0
            calls += 1
            self.launch(seconds * slow)

        return step


def busy_machine(
    seed: int,
    jitter: float = 0.02,
    drift: float = 0.3,
    burst_every_seconds: float = 0.5,
    burst_seconds: float = 0.05,
    burst_factor: float = 1.8,
) -> Callable[[float], float]:
    """Noise of a shared machine: a slow wander, bursts from a neighbour and a little jitter on top.

    jitter   standard deviation of independent noise, as a fraction
    drift    size of a random walk that remembers itself for about a second, as a fraction
    bursts   come at random, `burst_every_seconds` apart on average, and multiply time by `burst_factor`
    """
    rng = random.Random(seed)
    wander = 0.0
    last = 0.0
    burst_ends = 0.0
    next_burst = rng.expovariate(1 / burst_every_seconds)

    def factor(now: float) -> float:
        nonlocal wander, last, burst_ends, next_burst
        memory = max(0.0, 1.0 - (now - last))
        wander = memory * wander + rng.gauss(0.0, drift) * (1 - memory**2) ** 0.5
        last = now
        while now >= next_burst:
            burst_ends = next_burst + rng.expovariate(1 / burst_seconds)
            next_burst += rng.expovariate(1 / burst_every_seconds)
        slow = burst_factor if now < burst_ends else 1.0
        return max(0.2, (1.0 + wander) * slow * (1.0 + abs(rng.gauss(0.0, jitter))))

    return factor
