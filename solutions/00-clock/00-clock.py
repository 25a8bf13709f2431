# %% [markdown]
# # 00 · A clock you can trust
#
# **Why does my chat slow down?** The whole course answers one bug report:
#
# > *An interactive chat product sees its time per output token (TPOT) start near 40 ms and climb to 120 ms
# > by the time a session holds 30k tokens of history. Why, and which fixes ship without retraining?*
#
# First see it happen. Run the cells down to the first plot (Shift+Enter): your own machine produces tokens after a
# longer and longer history, for some ten seconds.

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures longer

# %% tags=["setup"]
import time
from contextlib import nullcontext
from functools import partial

import matplotlib.pyplot as plt
import numpy as np

from helpers import check, data, drawings, estimates, plots
from helpers.caches import FullCache
from helpers.clock import devices, recordings, sweeps, timing
from helpers.clock.simulated import SimulatedDevice, busy_machine
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.decoder import Decoder
from helpers.models.geometry import get

import torch  # after helpers, which decide how its threads wait

plots.use()

# %%
spot = devices.pick(device)
sessions = 8 if spot.type == "cuda" else 4  # decoding side by side
model = Decoder(get("SmolLM2-135M"), device=spot)
cache = FullCache(model.geometry, 8_200, batch=sessions, device=spot)
sweep = sweeps.decode_sweep({"": (model, cache)}, [16, 2_048, 4_096, 8_192])[""]
live = [t.ms for t in sweep.values()]
busy = " [busy]" * any(t.verdict == "busy" for t in sweep.values())
recording = recordings.load(recordings.DECODE)
x, seconds, _ = recordings.curve(recording, "decode-batch-4")
_, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
labels = dict(xlabel="history of each session (tokens)", ylabel="TPOT (ms)")
now, then = f"Here, {sessions} sessions{busy}", f"Recorded, {recording.device}"
plots.curve(left, list(sweep), {"": live}, title=now, **labels)
plots.curve(right, x, {"": [1e3 * s for s in seconds]}, title=then, **labels)
plt.show()

# %% [markdown]
# Only the history grew: same model (SmolLM2-135M, float32), same weights, same machine. The weights are random
# numbers here: which numbers they are hardly matters to the time of a step. The right-hand curve is the same with
# four sessions on another machine, recorded with `make record`.
#
# Do you trust the left one? Perhaps it is jagged; perhaps something else was running. That is where this unit
# starts.
#
# ## The question
#
# Before anyone can explain 120 ms, someone has to have measured it, and that often goes wrong. One project
# timed a kernel at 1.76 ms; with two missing lines added it took 15.8 ms, and the rival it had "beaten" took
# 6.1 ([warp-rnnt#9](https://github.com/1ytic/warp-rnnt/issues/9)). Another reported 509.8 ms per token for a
# model that needs 31.4
# ([lightning-thunder#2638](https://github.com/Lightning-AI/lightning-thunder/pull/2638)): slow first runs had
# slipped into the average. **How do you get a time that you can build an explanation on, and how do you
# notice when it cannot be true?** (About 55 minutes.)
#
# ## Predict
#
# A few words first. A chat model answers in two phases. **Prefill** reads the whole prompt in one step and gives
# the first token of the answer; the wait for it is TTFT, *time to first token*. After that each **decode step**
# gives one more token, and takes one TPOT. A step is a series of **kernels**, functions that run on the device: a
# matrix product, a sum. A **FLOP** is one multiplication or one addition.
#
# Two limits hold for any step, however good its code. Its bytes have to be **read**, and memory delivers only so
# many a second. Its FLOPs have to be **done**, and the arithmetic units manage only so many a second. Both go on
# at the same time, so the slower of the two is the **floor** of the step: no code can be faster.
#
# Take an H100 SXM. Its data sheet says **3,350 GB/s** and **989.5 TFLOP/s** (bfloat16, dense). GB is 1e9
# bytes here and everywhere in the course. Take Llama-3.1-8B in bfloat16, two bytes a weight. Any step reads the
# weights once, **15.01 GB**, however many tokens it handles. (The whole model has 16.06 GB; of the input embedding a
# step looks up one row a token, so that table is left out.) Each token is multiplied with every weight of the
# layers, at two FLOPs a weight. The output head, which turns the result into scores for the next token, is needed
# only where a next token is wanted: once in a decode step, and once at the end of a prompt. That makes
# **15.01 GFLOP** for a decode step and **13.96 TFLOP** for a prompt of 1,000 tokens. (Attention over the prompt
# would add 2 %; leave it out.)
#
# **Exercise 00.1** (5 minutes). What is the floor, in ms, of one decode step, and of the prefill of 1,000 tokens in
# one step? Three digits are enough.

# %% answer="00.1"
floor_ms = {
    "decode": None,  # ms, 1 token
    "prompt": None,  # ms, 1,000 tokens
}
### BEGIN SOLUTION
# HINT: Each step has two times: its bytes over the bandwidth, and its FLOPs over the
#   rate.
# HINT: The two overlap, so the larger one is the floor. Both steps read the same
#   bytes.
# WHY: One token multiplies too little to keep the arithmetic busy, a thousand tokens
#   too much to wait for memory.
reading = 15.01e9 / 3_350e9  # seconds, the same for both
floor_ms = {
    "decode": 1e3 * max(reading, 15.01e9 / 989.5e12),
    "prompt": 1e3 * max(reading, 13.96e12 / 989.5e12),
}
### END SOLUTION

# %% test="00.1" points=2
from helpers import check

check.grade("00.1", floor_ms)
### BEGIN HIDDEN TESTS
assert abs(float(floor_ms["decode"]) - 4.481) < 0.01, (
    "the floor of the decode step is off"
)
assert abs(float(floor_ms["prompt"]) - 14.11) < 0.05, "the floor of the prompt is off"
### END HIDDEN TESTS

# %% [markdown]
# One of your two steps waits for memory, the other for arithmetic. Somewhere between 1 and 1,000 tokens lies the
# **ridge**, where reading and multiplying take equally long.
#
# **Exercise 00.2** (4 minutes). On the same H100, how many FLOPs must be done for each byte read, so that both take
# equally long? And how many tokens must share one reading of a bfloat16 weight to get there, at two FLOPs for
# each token?

# %% answer="00.2"
ridge_flop_per_byte = None  # FLOP/byte
tokens_at_ridge = None  # tokens
### BEGIN SOLUTION
# HINT: At the ridge, bytes / bandwidth equals FLOPs / rate. Solve for FLOPs / bytes.
# HINT: How many FLOPs does one token do with a weight, and how many bytes is that
#   weight?
# WHY: Two FLOPs for two bytes: in bfloat16 a token brings 1 FLOP for each byte, so
#   both answers are one number.
ridge_flop_per_byte = 989.5e12 / 3_350e9
tokens_at_ridge = (
    ridge_flop_per_byte * 2 / 2
)  # 2 bytes a weight, 2 FLOPs a weight and token
### END SOLUTION

# %% test="00.2" points=2
from helpers import check

check.grade("00.2", ridge_flop_per_byte, tokens_at_ridge)
### BEGIN HIDDEN TESTS
assert abs(float(ridge_flop_per_byte) - 295.4) < 1.6, "the ridge is off"
assert abs(float(tokens_at_ridge) - 295.4) < 1.6, "the number of tokens is off"
### END HIDDEN TESTS

# %% [markdown]
# Now the trap. An accelerator is **asynchronous**: to *launch* a kernel is to put it into a queue, and the launch
# returns at once, while the device is still at work. Only `synchronize()` waits until the queue is empty. The
# course has a simulated accelerator with an exact clock, so that you can see this without owning one:

# %%
accelerator = SimulatedDevice(launch_seconds=50e-6)
accelerator.launch(kernel_seconds=3e-3)
print(f"after the launch    {1e3 * accelerator.now():.3f} ms")
accelerator.launch(kernel_seconds=3e-3)
accelerator.synchronize()
print(f"after synchronize() {1e3 * accelerator.now():.3f} ms")

# %% [markdown]
# **Exercise 00.3** (5 minutes). The launch takes 20 µs, the kernel **10 ms**. What do these three clocks say, in ms?
# (The queue is empty at the start. Four digits, please: the differences are small, and they matter.)
#
# - `no_sync_ms`: start the clock, launch one kernel, stop the clock.
# - `sync_ms`: start the clock, launch one kernel, `synchronize()`, stop the clock.
# - `hundred_ms`: start the clock, launch 100 kernels in a row, `synchronize()` once, stop the clock, divide by 100.

# %% answer="00.3"
no_sync_ms = None  # ms
sync_ms = None  # ms
hundred_ms = None  # ms
### BEGIN SOLUTION
# HINT: What has to happen before each clock is stopped? Draw two lines, one for the
#   caller and one for the device.
# HINT: While one kernel runs, the next is being put into the queue. Which launches
#   does the device wait for?
# WHY: All launches but the first hide behind running kernels.
no_sync_ms = 0.020
sync_ms = 0.020 + 10
hundred_ms = (
    0.020 + 100 * 10
) / 100  # launches hide behind the kernels that run, all but the first
### END SOLUTION

# %% test="00.3" points=3
from helpers import check

check.grade("00.3", no_sync_ms, sync_ms, hundred_ms)
### BEGIN HIDDEN TESTS
assert abs(float(no_sync_ms) - 0.02) < 1e-4, "no_sync_ms is off"
assert abs(float(sync_ms) - 10.02) < 0.006, "sync_ms is off"
assert abs(float(hundred_ms) - 10.0002) < 0.006, "hundred_ms is off"
### END HIDDEN TESTS

# %% [markdown]
# ## Build
#
# **Exercise 00.4** (8 minutes). Write the timer. Three rules. Call the step a few times before it counts: it may
# compile, allocate, fill caches. Let the queue run empty before you start the clock, or you are charged for somebody
# else's work. Let it run empty again before you stop the clock. `now` and `synchronize` are arguments, so that the
# same timer runs on the simulated device and on yours.


# %% answer="00.4"
def time_step(step, now, synchronize, samples=20, warm_up=5):
    """Seconds of single calls of `step`: a list of `samples` floats.

    step         called without arguments
    now          returns the time in seconds
    synchronize  returns when the device has done all that was launched
    warm_up      calls made first, which do not count

    On the simulated device above, a 3 ms kernel gives [0.00302, 0.00302, …].
    """
    ### BEGIN SOLUTION
    # HINT: Write the loop without synchronize() first. Then ask at which two places
    #   something may still be queued.
    # HINT: Warm up first; then, for each sample: empty the queue, look at the clock,
    #   step, empty the queue, look again.
    for _ in range(warm_up):
        step()
    taken = []
    for _ in range(samples):
        synchronize()
        start = now()
        step()
        synchronize()
        taken.append(now() - start)
    return taken
    ### END SOLUTION


# %% test="00.4" points=3
from helpers import check

check.grade("00.4", time_step)
### BEGIN HIDDEN TESTS
sim = SimulatedDevice(launch_seconds=2e-5, start_up=(300.0, 5.0))
sim.launch(1.0)
got = time_step(sim.kernel(0.004), sim.now, sim.synchronize, samples=4, warm_up=2)
assert len(got) == 4 and all(abs(float(s) - 0.00402) < 1e-7 for s in got), (
    "a 4 ms kernel, launched in 20 µs, is 4.02 ms"
)
### END HIDDEN TESTS

# %% [markdown]
# Twenty samples are not one number yet. The 509.8 ms above were a mean, and a single call that compiles can move
# the mean of all the others. The **median** hardly notices. For the **spread**, take half the distance between
# the quartiles: about half of the samples lie that close to the median.
#
# **Exercise 00.5** (4 minutes). Write `median_and_spread`. `np.percentile(samples, 25)` is the first quartile.


# %% answer="00.5"
def median_and_spread(samples):
    """(median, spread) of a list of seconds;
    the spread is half the distance between the quartiles.

    median_and_spread([3, 1, 2, 9, 4]) is (3.0, 1.0): sorted 1 2 3 4 9,
    the quartiles are 2 and 4.
    """
    ### BEGIN SOLUTION
    # HINT: np.percentile takes several percentages at once: the median is 50.
    # HINT: Half the distance between 25 and 75 is the spread.
    low, middle, high = np.percentile(samples, [25, 50, 75])
    return middle, (high - low) / 2
    ### END SOLUTION


# %% test="00.5" points=2
from helpers import check

check.grade("00.5", median_and_spread)
### BEGIN HIDDEN TESTS
got = median_and_spread([5.0, 1.0, 2.0, 90.0, 4.0, 3.0])
assert abs(float(got[0]) - 3.5) < 1e-5 and abs(float(got[1]) - 1.25) < 1e-5, (
    "1 2 3 4 5 90: median 3.5, quartiles 2.25 and 4.75"
)
### END HIDDEN TESTS

# %% [markdown]
# One more rule. Laptops heat up, neighbours wake up: a machine drifts. Measure *a* twenty times and then *b*
# twenty times, and the drift lands on *b*. Measured **in turns**, a, b, a, b, …, it hits both alike.
#
# **Exercise 00.6** (4 minutes). Write `measure_in_turns`.


# %% answer="00.6"
def measure_in_turns(steps, time_once, rounds):
    """{name: list of `rounds` samples}; every round visits every step of the dict
    `steps` once.

    time_once(step) runs a step and returns its seconds.
    measure_in_turns({"a": f, "b": g}, time_once, 2) times f, g, f, g.
    """
    ### BEGIN SOLUTION
    # HINT: Two loops: which of them has to be the outer one, so that drift hits every
    #   step?
    # HINT: A new list for each name first; then rounds outside, steps inside, and
    #   append.
    samples = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            samples[name].append(time_once(step))
    return samples
    ### END SOLUTION


# %% test="00.6" points=2
from helpers import check

check.grade("00.6", measure_in_turns)
### BEGIN HIDDEN TESTS
seen = []
got = measure_in_turns(
    {"a": "x", "b": "y"}, lambda step: seen.append(step) or len(seen), 3
)
assert [sorted(seen[i : i + 2]) for i in (0, 2, 4)] == [["x", "y"]] * 3, (
    "each round visits each step once"
)
for name, step in (("a", "x"), ("b", "y")):
    wanted = [i + 1 for i in range(6) if seen[i] == step]
    assert [int(sample) for sample in got[name]] == wanted, (
        "a sample is in the wrong list"
    )
### END HIDDEN TESTS

# %% [markdown]
# In which order does *your* function call the two? The folded cell asks it, with steps that only say their name:

# %% jupyter={"source_hidden": true}
called = []
measure_in_turns({"a": "a", "b": "b"}, lambda name: called.append(name) or 0.0, 5)
_ = drawings.boxes(
    {"calls": [(name, name) for name in called]},
    {"a": "step a", "b": "step b"},
    title="Measured in turns",
    columns="call",
)

# %% [markdown]
# What does that buy? The next two cells time one step, once as *a* and once as *b*, on a simulated machine with a
# wandering clock rate and a noisy neighbour. The true ratio is 1. They try a hundred times each way, with
# **your** functions, and draw the ratios sorted:


# %%
def one_trial(seed, in_turns):
    sim = SimulatedDevice(noise=busy_machine(seed))
    pair = {"a": sim.kernel(0.010), "b": sim.kernel(0.010)}

    def once(step):
        return time_step(step, sim.now, sim.synchronize, samples=1, warm_up=0)[0]

    if in_turns:
        taken = measure_in_turns(pair, once, rounds=20)
    else:
        taken = {name: [once(step) for _ in range(20)] for name, step in pair.items()}
    return median_and_spread(taken["b"])[0] / median_and_spread(taken["a"])[0]


# %%
blocks = sorted(one_trial(seed, in_turns=False) for seed in range(100))
turns = sorted(one_trial(seed, in_turns=True) for seed in range(100))
lines = {"first all of a, then all of b": blocks, "in turns": turns}
labels = dict(
    xlabel="trial, sorted (number)", ylabel="time of b over time of a (ratio)"
)
title = "The same step, compared with itself"
plots.curve(None, range(1, 101), lines, zero=False, title=title, **labels)
plt.show()

# %% [markdown]
# ## Measure
#
# Now your own machine. First a guess, which is never graded. It goes into your log, and the capstone will draw how
# well you guess: **how many GB does your device read from its memory in a second?** Change the number before you
# run the cell.
#
# What a prediction leaves unexplained is called its **residual**. From here on every table and plot shows it, and
# each unit ends by asking where it comes from.

# %%
my_guess = 20  # GB/s: change me
estimates.predict("00.read_GB_per_s", my_guess, "GB/s", default=20)
estimates.predict(
    "00.H100_decode_ms", floor_ms["decode"], "ms"
)  # your 00.1; vLLM measured it

# %% [markdown]
# The **device card** answers it: read bandwidth (the sum of a buffer far larger than any cache), the rate of matrix
# products by dtype, and the cost of launching one tiny operation. It is measured once, in a few seconds, and kept
# for the later units. Should it say that the machine was busy: close what else runs, put
# `devices.card(spot, refresh=True)` in place of `devices.card(spot)`, and run the cell again.

# %%
card = devices.card(spot)
card.show()
read_gb = card.read_bytes_per_second / 1e9
doubt = "busy" if card.busy else "ok"
estimates.measured("00.read_GB_per_s", read_gb, residual="the guess", verdict=doubt)

# %% [markdown]
# Put your timer on it. A sum over a buffer has a floor that the card predicts, provided that the buffer is too large
# to stay in a cache. Your `time_step` measures it, and the course's own clock does too. That clock keeps the same
# rules and adds a few: it warms up until the times stop falling, gives an interval for the median, and says when
# the machine was **busy** or a time is **impossible**, that is, below the floor.

# %%
clock = timing.Clock(spot)
cache_mb = devices.cache_bytes(spot) / 1e6
most_mb = devices.buffer_bytes(spot) / 1e6  # many times that, as memory allows
sizes_mb = [mb for mb in (0.25, 1, 4, 16, 64, 256, 1024) if mb <= most_mb]
buffer = torch.ones(250_000 * sizes_mb[-1], device=spot)  # float32: 4 bytes each
big_sum = partial(torch.sum, buffer)
floor = buffer.nbytes / card.read_bytes_per_second
print(f"the cache holds some {cache_mb:,.0f} MB, the buffer {sizes_mb[-1]:,} MB")

# %%
mine = time_step(big_sum, time.perf_counter, clock.synchronize)
middle, spread = median_and_spread(mine)
doubt = timing.Timing(tuple(float(s) for s in mine), floor)
print(f"floor by the card  {floor * 1e3:.3f} ms")
print(f"your timer         {1e3 * middle:.3f} ± {1e3 * spread:.3f} ms  {doubt.verdict}")
timed = clock.measure(big_sum, budget_seconds=0.5, floor_seconds=floor)
print(f"the course's clock {timed}")

# %% [markdown]
# **Does this clock see differences that are not there?** Compare a step with itself, an *A/A comparison*.
# `compare` runs the two back to back, and a coin decides which goes first. If they are the same step, each of a
# pair is the slower one half of the time, whatever the noise does. So the interval holds on a busy machine, too.

# %%
seconds = 0.4 if budget == "quick" else 2.0
sum_16mb = partial(torch.sum, buffer[:4_000_000])
for trial in range(5):
    print(
        "same step:  ",
        clock.compare(sum_16mb, sum_16mb, budget_seconds=seconds, seed=trial),
    )
longer = partial(torch.sum, buffer[:5_000_000])
print("25 % longer:", clock.compare(sum_16mb, longer, budget_seconds=seconds))

# %% [markdown]
# Next, prediction and measurement on one plot: sums over 0.25 MB and more, up to the whole buffer. By the card, all
# of them read at the same rate. Before you run it: where will the points leave the line, and to which side?

# %%
sums = {mb: partial(torch.sum, buffer[: int(mb * 250_000)]) for mb in sizes_mb}
floors = {mb: mb * 1e6 / card.read_bytes_per_second for mb in sizes_mb}
swept = clock.sweep(sums, budget_seconds=4 * seconds, floors=floors)
rate = {mb: mb / 1e3 / t.median for mb, t in swept.items()}  # GB/s
low = [mb / 1e3 / (t.median + t.spread) for mb, t in swept.items()]
high = [mb / 1e3 / max(t.median - t.spread, t.best) for mb, t in swept.items()]
error = np.abs([low, high] - np.array(list(rate.values())))

# %%
labels = dict(xlabel="bytes read by one sum (MB)", ylabel="read rate (GB/s)")
line = [read_gb] * len(rate)
busy = any(timed.verdict == "busy" for timed in swept.values())
title = f"Reading on {card.name}" + " [busy]" * busy
plots.prediction(
    None, list(rate), line, list(rate.values()), error, xlog=True, title=title, **labels
)
plt.show()
for mb, timed in swept.items():
    print(f"{mb:>7g} MB  {timing.pretty_seconds(timed.median):>9}  {timed.verdict}")

# %% [markdown]
# And the ridge: one weight matrix of 4,096 × 4,096, multiplied with 1, 16 and 128 rows (tokens). The bytes stay
# about the same, the FLOPs grow with the rows.
#
# The picture is a **roofline**. To the right: FLOPs done for each byte read, the *arithmetic intensity*. Upwards:
# FLOPs done in a second. Both scales are logarithmic. On the slope memory sets the pace, under the flat roof
# arithmetic does, and they meet at the ridge. Slope and roof are those of your card.

# %%
side = 4_096
weight = torch.ones(side, side, device=spot)
rows = {n: torch.ones(n, side, device=spot) for n in (1, 16, 128)}
products = {n: partial(torch.nn.functional.linear, x, weight) for n, x in rows.items()}
timed = clock.sweep(products, budget_seconds=5 * seconds)

# %%
points = {}
for n, t in timed.items():
    flops, read = 2 * n * side * side, 4 * (side * side + 2 * n * side)
    points[f"{n} token{'s' * (n > 1)}"] = (flops / read, flops / t.median)
    reached = card.floor_seconds(read, flops) / t.median
    print(f"{n:3} × weight: {reached:4.0%} of what the roofline allows  {t.verdict}")
plots.roofline(None, card, points)
plt.show()

# %% [markdown]
# A point on the slope reads as fast as the memory allows; one under the roof multiplies as fast as the device can;
# one well below both loses time elsewhere: in its kernel, in launches, to a neighbour. Where torch's float32 product
# with one row stays far below the slope on a quiet CPU, a better kernel would help; later units bring one.
#
# ## Explain
#
# **Small tensors beat memory.** Where points lie *above* the line, their buffers fit into a cache: they stay there
# after the first read, and memory never sees the second. The clock calls such a time `impossible`, since it is
# faster than the bytes can come *from memory*. Where small ones lie *below*, launching costs more than reading, as
# it does on a GPU. Either way, a benchmark on small tensors measures something other than a 15 GB model does.
#
# **An unsynchronised clock shows impossible speed.** A simulated H100 reads 1 GB at 3,350 GB/s, timed with
# `synchronize` and without:

# %%
sim = SimulatedDevice(launch_seconds=5e-6)
read_1gb = sim.kernel(1e9 / 3_350e9)
for how, wait in (
    ("synchronised", sim.synchronize),
    ("not synchronised", lambda: None),
):
    watch = timing.Clock("simulated", sim.now, wait, lock=nullcontext)
    result = watch.measure(read_1gb, budget_seconds=0.05, floor_seconds=1e9 / 3_350e9)
    print(f"{how:17} {1 / result.median:>9,.0f} GB/s  {result.verdict}")
    sim.synchronize()

# %% [markdown]
# That is the story of [mlx-benchmark#21](https://github.com/TristanBilot/mlx-benchmark/pull/21): a matrix
# product on an RTX 4090 "took" 0.03 ms, and 1.36 ms once the clock waited. Counting bytes is the cheapest lie
# detector there is.
#
# **Two tools of a GPU.** A *CUDA event* is a time stamp that the device itself writes when the queue reaches it;
# two of them around a step leave the caller's own time out. A *CUDA graph* records all launches of a step once and
# replays them as one, so that the device does not wait for the next launch. On a GPU the course's clock uses both.
#
# **Power and heat.** A clock rate is no constant. Attention kernels run back to back on a B200 pushed it from
# 1,965 to 1,580 MHz or so within a hundred iterations, and took 15 % off the rate
# ([flashinfer#2899](https://github.com/flashinfer-ai/flashinfer/pull/2899)). Even the numbers matter, since bits
# that flip draw power: an A100 multiplied zeros at 295 TFLOP/s and random numbers at 257
# ([H. He](https://www.thonking.ai/p/strangely-matrix-multiplications)). Your card multiplied ones, so on a GPU it
# may flatter. Measure for as long as the real work would run, take turns, and write the clock rate down
# (`nvidia-smi -q -d CLOCK,POWER`).
#
# **What do real engines reach?** A decode step reads two things: the weights, which stay the same, and for each
# token of history a key and a value in every layer, the *KV cache*. For Llama-3.1-8B that is:

# %%
llama, streams = get("Llama-3.1-8B"), {}
for n in (2_048, 32_768, 131_072):
    half = kv_bytes(llama, n) / 2  # keys are half, values half
    parts = {"weights": weight_bytes(llama), "keys": half, "values": half}
    streams[f"{n:,} tokens"] = parts
title = "What one decode step reads: Llama-3.1-8B, bfloat16, one session"
_ = drawings.step_bytes(streams, title=title)

# %% [markdown]
# How the time of a decode step grows with the history is published for vLLM, on two GPUs and on a third. The step
# also has a fixed part: weights, launches and more. A *difference* between two contexts cancels it. What is left is
# the reading of the cache.
#
# | GPU | model | cache bytes a token | measured |
# |---|---|---|---|
# | H100 SXM | Llama-3.1-8B, bf16 | 131,072 | each token of context adds 4.37e-5 ms to a step |
# | B200 SXM | Llama-3.1-8B, bf16 | 131,072 | each token of context adds 1.80e-5 ms to a step |
# | L4 | Qwen3-4B, bf16 | 147,456 | 29.1 tokens/s at 2k tokens of context, 19.4 at 32k |
#
# Sources: the vLLM blog of 2026-04-22 on the fp8 KV cache (vllm-project.github.io,
# `_posts/2026-04-22-fp8-kvcache.md`) and a user's figures for vLLM's documentation
# (`docs/features/quantization/quantized_kvcache.md`,
# [vllm#49050](https://github.com/vllm-project/vllm/pull/49050)). One request at a time, so that a step gives one
# token. The second source prints "2k" and "32k"; thousands and 1,024s are both accepted.
#
# **Exercise 00.7** (5 minutes). At how many GB/s did each of them read the cache?

# %% answer="00.7"
achieved_gb_per_s = {
    "H100": None,  # GB/s
    "B200": None,  # GB/s
    "L4": None,  # GB/s
}
### BEGIN SOLUTION
# HINT: Bytes for one more token over seconds for one more token. The first two rows
#   give the second directly, in ms.
# HINT: For the L4, turn tokens per second into seconds per token before you subtract.
# WHY: Times add up, rates do not. The difference of two steps holds nothing but the
#   reading of more cache.
more_seconds = 1 / 19.4 - 1 / 29.1  # of 30,720 more tokens
achieved_gb_per_s = {
    "H100": 131_072 / 4.37e-8 / 1e9,
    "B200": 131_072 / 1.80e-8 / 1e9,
    "L4": (32_768 - 2_048) * 147_456 / more_seconds / 1e9,
}
### END SOLUTION

# %% test="00.7" points=3
from helpers import check

check.grade("00.7", achieved_gb_per_s)
### BEGIN HIDDEN TESTS
for gpu, right, off in (
    ("H100", 2_999.4, 0.011),
    ("B200", 7_281.8, 0.011),
    ("L4", 260.5, 0.027),
):
    assert abs(float(achieved_gb_per_s[gpu]) / right - 1) < off, (
        f"the bandwidth of the {gpu} is off"
    )
### END HIDDEN TESTS

# %%
rows = {"H100": "H100 SXM", "B200": "B200 SXM", "L4": "L4"}
sheets = {gpu: data.device(row)["bandwidth_GBps"] for gpu, row in rows.items()}
share = [100 * achieved_gb_per_s[gpu] / sheets[gpu] for gpu in sheets]
names = [f"{gpu}\n{sheet:,} GB/s" for gpu, sheet in sheets.items()]
ylabel = "read by vLLM (% of the data sheet)"
plots.bars(None, names, share, ylabel=ylabel, title="Data sheet and reality")
plt.show()

# %% [markdown]
# A time predicted from a data sheet is too short by what your bars lack of 100 %; one from your own card has that loss
# in it. And sheets change: the B200's first one said 8,000 GB/s, while current drivers report a narrower bus, 7,672 GB/s
# ([pytorch/ao#4002](https://github.com/pytorch/ao/pull/4002)). Compare your B200 with that one.
#
# **A popular claim: "an H100 has 3 TB/s".** It depends which one. The SXM board has 3.35, the NVL 3.9, the PCIe
# 2.0. With a PCIe card, dividing by three predicts times that are a third too short.
#
# **What bytes do not explain.** vLLM fitted a line to its H100 times: 4.37e-5 ms for each token of context, plus
# 6.44 ms. The second number is where the line meets zero; nothing was measured there. It lies 2 ms above your floor
# of 00.1. Of these 2 ms, 0.5 would still be bytes, if the weights were read at the rate that you found for the cache and
# not at 3.35 TB/s. The source does not explain the other 1.4 ms. Launches are the usual suspect; but vLLM replays CUDA graphs
# unless told otherwise, so it may be scheduling, sampling, or weights that stream more slowly than the cache. Only
# a profile would tell. This much is certain: making the cache smaller takes none of it away.

# %%
fits = data.measurement("vllm-h100-b200-fit")["data"]
llama = [row for row in fits if row["model"] == "Llama-3.1-8B" and row["kv"] == "bf16"]
h100 = next(row for row in llama if row["gpu"] == "H100")
estimates.measured(
    "00.H100_decode_ms", h100["intercept"], "vLLM, fitted", "1.4 ms not explained"
)
estimates.report("00")

# %% [markdown]
# Last, the *lever ledger*. A lever is any change that makes a chat cheaper or faster. Every unit adds a row for its
# lever, and the capstone chooses among them. This unit pulled none: its row is the floor for all the others.

# %%
bytes_floor = f"at least bytes ÷ {read_gb:.3g} GB/s"
flops_floor = f"at least FLOPs ÷ {card.rate() / 1e9:.3g} GFLOP/s (float32)"
same = dict(memory="as it was", quality="as it was")
estimates.ledger(
    "00", "none: a clock and a floor", tpot=bytes_floor, ttft=flops_floor, **same
)
