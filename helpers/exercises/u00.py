"""Checks of unit 00, "A clock you can trust": floors from data sheets, a timer on a simulated device."""

from __future__ import annotations

import random
import statistics

import numpy as np

from helpers import data
from helpers.check import Wrong, call, entries, exercise, number, require
from helpers.clock.simulated import SimulatedDevice
from helpers.models.counts import prefill_flops, resident_bytes
from helpers.models.geometry import get

# Llama-3.1-8B in bfloat16. Every step reads each weight once. The layers' weights are multiplied and added once a
# token, those of the output head once a step.
STEP_BYTES = 15.01e9
LAYER_FLOPS, HEAD_FLOPS = 13.96e9, 1.05e9
KERNEL_SECONDS, LAUNCH_SECONDS = 10e-3, 20e-6


@exercise("00.1")
def floors_of_two_steps(floor_ms, *, gpu="H100 SXM", tokens=1_000):
    entries("floor_ms", floor_ms, ["decode", "prompt"])
    sheet = data.device(gpu)
    rate = sheet["dense_bf16_TFLOPs"]
    reading = STEP_BYTES / sheet["bandwidth_GBps"] / 1e9 * 1e3
    multiplying = (LAYER_FLOPS + HEAD_FLOPS) / rate / 1e12 * 1e3
    flops = tokens * LAYER_FLOPS + HEAD_FLOPS
    prompt = flops / rate / 1e12 * 1e3
    overlap = "You added the two. They overlap: the slower one alone decides."
    decode_ms = number(
        floor_ms["decode"],
        max(reading, multiplying),
        unit="ms",
        rel=2e-3,
        slips={
            overlap: reading + multiplying,
            "That is the time of the multiplications. Reading takes longer, and the slower one decides.": (multiplying),
            "You read one byte a weight; 15.01 GB are what must be read.": reading / 2,
            "You read the whole model; of the input embedding a step looks up one row, which leaves 15.01 GB.": (
                reading * resident_bytes(get("Llama-3.1-8B")) / STEP_BYTES
            ),
            "You took 15.01 GB for GiB, or the bandwidth: here GB is 1e9 bytes.": [
                reading * 1.024**3,
                reading / 1.024**3,
            ],
        },
        name="floor_ms['decode']",
    )
    prompt_ms = number(
        floor_ms["prompt"],
        max(reading, prompt),
        unit="ms",
        rel=3e-3,  # three digits are enough
        slips={
            overlap: reading + prompt,
            f"That is the time to read the weights; {tokens:,} tokens multiply for longer.": reading,
            "You read the weights once a token. All tokens of a prompt share one reading.": tokens * reading,
            f"That is the work of one token; the prompt has {tokens:,}.": multiplying,
            "You charged every token for the output head; a prompt needs it once, at its end: "
            f"{flops / 1e12:.2f} TFLOP.": tokens * multiplying,
            "You counted attention over the prompt as well; leave it out here.": (
                prefill_flops(get("Llama-3.1-8B"), tokens) / rate / 1e9
            ),
            "It is half: count a multiplication and an addition for each weight, and take the dense rate of "
            f"{rate:g} TFLOP/s (the headline of {2 * rate:,.0f} is for weights of which half are zero).": prompt / 2,
        },
        name="floor_ms['prompt']",
    )
    return (
        f"{decode_ms:.3g} and {prompt_ms:.3g} ms: {tokens:,} tokens in one step cost {prompt_ms / decode_ms:.1f} times "
        "what one costs."
    )


@exercise("00.2")
def ridge(ridge_flop_per_byte, tokens_at_ridge, *, gpu="H100 SXM"):
    sheet = data.device(gpu)
    expect = sheet["dense_bf16_TFLOPs"] * 1e12 / (sheet["bandwidth_GBps"] * 1e9)
    number(
        ridge_flop_per_byte,
        expect,
        unit="FLOP/byte",
        rel=5e-3,
        slips={
            "Upside down: FLOPs per byte is the matmul rate over the read bandwidth.": 1 / expect,
            f"You took the sparse rate; {sheet['dense_bf16_TFLOPs']:g} TFLOP/s is the dense one.": 2 * expect,
            "You divided TFLOP/s by GB/s: bring both to FLOP and bytes first.": expect / 1e3,
            "You divided TFLOP/s by bytes/s: bring both to FLOP and bytes first.": expect / 1e12,
        },
        name="ridge_flop_per_byte",
    )
    number(
        tokens_at_ridge,
        expect,
        unit="tokens",
        rel=5e-3,
        slips={
            "A weight is 2 bytes, and each token does 2 FLOPs with it: the two factors cancel.": [
                expect / 2,
                2 * expect,
            ],
            "You took 4 bytes a weight; bfloat16 has 2.": 4 * expect,
            "That is one token: its intensity is 1 FLOP/byte, far below the ridge.": 1,
        },
        name="tokens_at_ridge",
    )
    return (
        f"{expect:.0f} FLOP/byte and {expect:.0f} tokens. One session that decodes alone does 1 FLOP for each byte: "
        f"it can use 1/{expect:.0f} of the arithmetic that this GPU has. Keep that number."
    )


@exercise("00.3")
def what_the_clock_says(no_sync_ms, sync_ms, hundred_ms, *, launch_us=20, kernel_ms=10):
    truth = _three_readings(launch_us / 1e6, kernel_ms / 1e3)
    launch, kernel = launch_us / 1e3, kernel_ms
    number(
        no_sync_ms,
        truth[0],
        unit="ms",
        rel=5e-4,
        slips={
            "You waited for the kernel. A launch puts it in the queue and returns at once.": [
                kernel,
                kernel + launch,
            ],
            f"Launching is not free: it takes {launch_us} µs.": 0.0,
            "That is microseconds; the answer is asked for in ms.": launch * 1e3,
        },
        name="no_sync_ms",
    )
    number(
        sync_ms,
        truth[1],
        unit="ms",
        rel=5e-4,
        slips={
            "You left the launch out: the clock started before it.": kernel,
            "synchronize() waits until the queue is empty, so the kernel is inside.": launch,
            "The launch is paid once: the kernel starts when it is in the queue.": kernel + 2 * launch,
        },
        name="sync_ms",
    )
    number(
        hundred_ms,
        truth[2],
        unit="ms",
        rel=5e-4,
        slips={
            "You charged every kernel for its launch. While one runs, the next is put in the queue: only the "
            "first launch is seen.": kernel + launch,
            "One synchronize() at the end waits for all 100 kernels.": launch,
            "That is all 100 together: divide by 100.": 100 * kernel + launch,
            "You divided twice, or counted one kernel: there are 100, for 100 launches.": [
                kernel / 100,
                (kernel + launch) / 100,
            ],
        },
        name="hundred_ms",
    )
    return (
        f"{truth[0]:g}, {truth[1]:g} and {truth[2]:g} ms. Without synchronize() a clock sees the launch alone, "
        f"{truth[1] / truth[0]:,.0f} times too fast. In a row, all launches but the first hide behind running kernels."
    )


@exercise("00.4")
def time_step(function):
    true = KERNEL_SECONDS + LAUNCH_SECONDS
    device, samples = _run(function, warm_up=0, samples=5)
    require(
        isinstance(samples, list | tuple),
        f"time_step has to return the list of all samples; it returned a {type(samples).__name__}.",
    )
    require(
        device.looks > 0,
        "You did not call now(). Take the time from the argument, so that the timer can be tested.",
    )
    require(
        len(samples) == 5,
        f"With samples=5 and warm_up=0 the list has to hold 5 values, one a call; it holds {len(samples)}.",
    )
    require(
        not all(abs(s - LAUNCH_SECONDS) < 1e-9 for s in samples),
        "The kernel takes 10 ms and your timer says 0.02 ms: that is the launch. Call synchronize() before "
        "you look at the clock again.",
    )
    require(
        not all(abs(s - 1e3 * true) < 1e-6 for s in samples),
        "Your samples are milliseconds; return seconds, as now() does.",
    )
    if len({round(s, 9) for s in samples}) > 1 and abs(sum(samples) - 15 * true) < 1e-3:
        raise Wrong("Your samples add up: sample n holds n calls. Read the clock anew before each call.")
    for i, sample in enumerate(samples):
        number(sample, true, unit="s", rel=1e-6, name=f"sample {i} of a step with a 10 ms kernel")

    _, samples = _run(function, warm_up=0, samples=3, pending=1.0)
    require(
        samples[0] < 2 * true,
        "One second of somebody else's work was still in the queue, and your first sample was charged for "
        "it. Call synchronize() before you start the clock.",
    )
    _, samples = _run(function, warm_up=2, samples=3)
    require(
        samples[0] < 1.5 * true,
        f"With warm_up=2 the first sample is {samples[0]:.4g} s: the warm-up calls were still in "
        "the queue. Call synchronize() after them, before you start the clock.",
    )
    device, samples = _run(function, warm_up=2, samples=4, start_up=(500.0, 3.0))
    require(
        max(samples) < 1.5 * true,
        "The first call of this step compiles (5 s) and the second is slow too; with warm_up=2 neither may "
        f"be among the samples, and the largest of yours is {max(samples):.3g} s. Call the step warm_up times "
        "first.",
    )
    require(
        len(samples) == 4,
        f"With warm_up=2 and samples=4 the list has to hold 4 values; it holds {len(samples)}. "
        "The warm-up comes on top, it is not cut off the samples.",
    )
    require(
        device.launches == 6,
        f"With warm_up=2 and samples=4 the step has to run 6 times; it ran {device.launches} times.",
    )
    device = _Watched(LAUNCH_SECONDS, noise=lambda now: 1 + now)
    samples = call(function, device.kernel(KERNEL_SECONDS), device.now, device.synchronize, samples=4, warm_up=0)
    require(
        all(abs(float(s) - took) < 1e-9 for s, took in zip(samples, device.took, strict=True)),
        "This device slows down from call to call, and your samples do not say so: return what the clock said of each "
        "call, in order and unrounded.",
    )
    device = _Watched()
    default = call(function, device.kernel(KERNEL_SECONDS), device.now, device.synchronize)
    require(len(default) == 20, f"Without `samples` there have to be 20 of them; there are {len(default)}.")
    return "timed a 10 ms kernel, a full queue and a compiling step"


@exercise("00.5")
def median_and_spread(function):
    _summary(function, [3.0, 1.0, 2.0, 9.0, 4.0], "[3, 1, 2, 9, 4]")
    _summary(function, [1.0, 3.0, 7.0, 2.0], "[1, 3, 7, 2]")
    rng = random.Random(7)
    poisoned = [0.0314 + rng.uniform(-2e-4, 2e-4) for _ in range(19)] + [9.6]
    rng.shuffle(poisoned)
    _summary(function, poisoned, "19 samples near 0.0314 s and one of 9.6 s that compiled")
    return "one compiling call among twenty moves neither"


@exercise("00.6")
def measure_in_turns(function):
    visited = []

    def time_once(step):
        visited.append(step)
        return float(len(visited))

    steps = {"a": "step a", "b": "step b", "c": "step c"}
    found = call(function, dict(steps), time_once, 4)
    require(
        isinstance(found, dict),
        f"measure_in_turns has to return a dictionary; it returned a {type(found).__name__}.",
    )
    require(
        set(found) == set(steps),
        f"The result needs the same names as `steps`, {sorted(steps)}; it has {sorted(map(str, found))}.",
    )
    if len({id(v) for v in found.values()}) < 3:
        raise Wrong("All names share one list. Make a new list for each: {name: [] for name in steps}.")
    require(
        not set(visited) <= set(steps),
        "You gave time_once() the name of the step; give it the step itself.",
    )
    require(
        len(visited) == 12,
        f"3 steps in 4 rounds are 12 measurements; time_once() was called {len(visited)} times.",
    )
    blocks = [visited[i : i + 4] for i in range(0, 12, 4)]
    require(
        not all(len(set(block)) == 1 for block in blocks),
        "You measured one step to the end and then the next. If the machine slows down meanwhile, the last "
        "step pays for it. Let the loop over rounds be the outer one.",
    )
    rounds = [visited[i : i + 3] for i in range(0, 12, 3)]
    require(
        all(len(set(turn)) == 3 for turn in rounds),
        "Every round has to visit every step exactly once; yours leaves some out and visits others twice.",
    )
    for name, step in steps.items():
        expect = [float(i + 1) for i, seen in enumerate(visited) if seen == step]
        require(
            hasattr(found[name], "__len__") and len(found[name]) == 4,
            f"{name!r} needs a list of 4 samples, one a round; it has {found[name]!r}.",
        )
        require(
            [float(s) for s in found[name]] == expect,
            f"The samples of {name!r} are not those that time_once() returned for it.",
        )
    ratio = _drifting_ratio(function)
    require(
        abs(ratio - 1) < 0.05,
        f"On a machine that slows down all the time, the same step as 'a' and as 'b' came out {ratio:.2f} to 1.",
    )
    return f"on a machine that slows down by half, the same step twice: ratio {ratio:.3f}"


@exercise("00.7")
def bandwidth_of_three_gpus(achieved_gb_per_s):
    entries("achieved_gb_per_s", achieved_gb_per_s, ["H100", "B200", "L4"])
    for gpu in ("H100", "B200"):
        slope_ms = _llama_slope_ms(gpu)
        expect = 131_072 / (slope_ms * 1e-3) / 1e9
        number(
            achieved_gb_per_s[gpu],
            expect,
            unit="GB/s",
            rel=1e-2,
            slips={
                "A thousand times too small: that is TB/s, or the ms of the slope taken for seconds.": expect / 1e3,
                "That is the data sheet; here it is asked what was reached.": [
                    data.device(f"{gpu} SXM").get(key, 0.0) for key in ("bandwidth_GBps", "driver_GBps")
                ],
                "Upside down: bytes a token over seconds a token.": 1 / expect,
            },
            name=f"achieved_gb_per_s[{gpu!r}]",
        )
    rows = {row["ctx"]: row["bf16"] for row in data.measurement("vllm-l4-fp8")["data"] if "ctx" in row}
    more_seconds = 1 / rows[32_768] - 1 / rows[2_048]
    # "2k" and "32k" may be read as thousands or as 1,024s.
    readings = [more * 147_456 / more_seconds / 1e9 for more in (30_000, 30_720)]
    number(
        achieved_gb_per_s["L4"],
        sum(readings) / 2,
        unit="GB/s",
        rel=2.5e-2,
        slips={
            "You subtracted tokens per second. Times add up, rates do not: turn both into seconds first.": [
                30_720 * 147_456 * (rows[2_048] - rows[32_768]) / 1e9,
                30_720 * 147_456 / (rows[2_048] - rows[32_768]) / 1e9,
            ],
            "You divided by the whole step, and the weights are in it too: divide by what 30k more tokens added.": [
                32_768 * 147_456 * rows[32_768] / 1e9,
                30_720 * 147_456 * rows[32_768] / 1e9,
            ],
            "That is the data sheet; here it is asked what was reached.": 300,
            "You took all 32k tokens; only the 30k more than at 2k belong to this difference.": (
                32_768 * 147_456 / more_seconds / 1e9
            ),
        },
        name="achieved_gb_per_s['L4']",
    )
    return (
        "about nine tenths of the data sheet, on three generations of GPU, by code that many people have tuned. So a "
        "prediction from the data sheet comes out some 10 % too fast; whoever divides by 3 TB/s for an H100 SXM has, "
        "by luck, already taken the 10 % off."
    )


class _Watched(SimulatedDevice):
    """Counts how often its clock is looked at, and knows how long each call took that found the queue empty."""

    looks = 0

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.took = []

    def launch(self, kernel_seconds: float) -> None:
        start = super().now()
        super().launch(kernel_seconds)
        self.took.append(self._queue_empty_at - start)

    def now(self) -> float:
        self.looks += 1
        return super().now()


def _run(function, warm_up: int, samples: int, pending: float = 0.0, start_up: tuple = ()):
    device = _Watched(LAUNCH_SECONDS, start_up=start_up)
    if pending:
        device.launch(pending)
    step = device.kernel(KERNEL_SECONDS)
    taken = call(function, step, device.now, device.synchronize, samples=samples, warm_up=warm_up)
    return device, taken.tolist() if hasattr(taken, "tolist") else taken  # an array is a list of samples, too


def _three_readings(launch_seconds: float, kernel_seconds: float) -> tuple[float, float, float]:
    """What the clock says, in ms: around a launch; with synchronisation; 100 launches, then one, over 100."""
    found = []
    for launches, wait in ((1, False), (1, True), (100, True)):
        device = SimulatedDevice(launch_seconds)
        for _ in range(launches):
            device.launch(kernel_seconds)
        if wait:
            device.synchronize()
        found.append(1e3 * device.now() / launches)
    return tuple(found)


def _summary(function, samples: list[float], shown: str) -> None:
    got = call(function, list(samples))
    require(
        hasattr(got, "__len__") and not isinstance(got, str | dict) and len(got) == 2,
        f"median_and_spread has to return two numbers, (median, spread); it returned {got!r}.",
    )
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    half = (high - low) / 2
    scale = "np.percentile takes per cent, 0 to 100: a half is 50, a quarter 25."
    hundredths = np.percentile(samples, [0.25, 0.5, 0.75])
    ordered = sorted(samples)
    number(
        got[0],
        middle,
        unit="s",
        rel=1e-6,
        slips={
            "That is the mean. One slow call moves it: take the median.": statistics.mean(samples),
            "You took the middle of the list as it came: sort it first.": samples[len(samples) // 2],
            "With an even number of samples the median lies half-way between the two middle ones.": (
                [] if len(ordered) % 2 else ordered[len(ordered) // 2 - 1 : len(ordered) // 2 + 1]
            ),
            "That is the best sample; it says nothing of the usual call.": ordered[0],
            "You returned (spread, median): the median comes first.": half,
            scale: hundredths[1],
        },
        name=f"the median of {shown}",
    )
    number(
        got[1],
        half,
        unit="s",
        rel=1e-6,
        slips={
            "That is the whole distance between the quartiles; the spread is half of it.": 2 * half,
            scale: [(hundredths[2] - hundredths[0]) / 2, hundredths[2] - hundredths[0]],
            "That is the standard deviation. One slow call among twenty blows it up: use the quartiles.": [
                statistics.stdev(samples),
                statistics.pstdev(samples),
            ],
            "That is largest minus smallest, so that one slow call decides it: use the quartiles.": [
                ordered[-1] - ordered[0],
                (ordered[-1] - ordered[0]) / 2,
            ],
            "That is the median distance from the median; here half the distance between the quartiles is asked for.": (
                statistics.median(abs(sample - middle) for sample in samples)
            ),
            "Those are quartiles by another rule (statistics.quantiles by default); use np.percentile.": (
                _exclusive_half(samples)
            ),
        },
        name=f"the spread of {shown}",
    )


def _exclusive_half(samples: list[float]) -> float:
    low, _, high = statistics.quantiles(samples, n=4)
    return (high - low) / 2


def _drifting_ratio(function) -> float:
    """Median of 'b' over median of 'a', one and the same step, while the device slows down by half."""
    device = SimulatedDevice(noise=lambda now: 1 + 0.5 * min(1.0, now / 0.5))

    def time_once(step):
        start = device.now()
        step()
        device.synchronize()
        return device.now() - start

    step = device.kernel(KERNEL_SECONDS)
    found = call(function, {"a": step, "b": step}, time_once, 20)
    return statistics.median(found["b"]) / statistics.median(found["a"])


def _llama_slope_ms(gpu: str) -> float:
    rows = data.measurement("vllm-h100-b200-fit")["data"]
    return next(
        row["slope"]
        for row in rows
        if (row.get("gpu"), row.get("model"), row.get("kv")) == (gpu, "Llama-3.1-8B", "bf16")
    )
