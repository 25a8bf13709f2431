# %% [markdown]
# # 08 · The incident
#
# ## The question
#
# The bug report, for the last time: *time per output token (TPOT) starts near 40 ms and climbs to 120 ms by the
# time a session holds 30k tokens of history. Why, and which fixes ship without retraining?*
#
# You have the parts. Now there is a dashboard, a team with five weeks, and somebody who wants one page by
# tonight. You diagnose in three acts: **what machine does this** (from two numbers), **which of six causes is
# it** (from traces that look alike), **what do we ship** (when fixes overlap). The fourth act is the page.
# (About 95 minutes.)
#
# Below are six services with the same ticket: *tokens come too slowly*. Six different things are wrong with them, and
# four of the curves look alike.

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures longer

# %% tags=["setup"]
import matplotlib.pyplot as plt
import numpy as np

from helpers import check, drawings, estimates, plots
from helpers.serving import plan as fixes
from helpers.serving import symptoms
from helpers.serving.incident import CAUSES

plots.use()

# %% jupyter={"source_hidden": true}
_, panels = plt.subplots(2, 3, figsize=(10.5, 5.2))
for number, (i, ax) in enumerate(zip([4, 1, 3, 0, 5, 2], panels.flat, strict=True), 1):
    rows = symptoms.generate(61 + i, CAUSES[i]).table()
    across, unit = "context", "tokens"
    if np.ptp(rows["batch"]) > 10:
        across, unit = "batch", "sessions"
    labels = dict(xlabel=f"{across} ({unit})", ylabel="time per token (ms)")
    times = rows["tpot_ms"]
    plots.curve(ax, rows[across], {"": times}, title=f"Service {number}", **labels)
    ax.set_ylim(0, 1.1 * max(times))

# %% [markdown]
# ## Predict
#
# ### Act 1: what machine does this?
#
# Two points are a line. The report says 40 ms at 1,000 tokens of history and 120 ms at 30,000, a 70B model in
# 16 bits, and nothing else.
#
# **Exercise 08.1** (3 minutes). What does one more token of history cost, and what would a step with no history
# take?

# %% answer="08.1"
line = {
    "slope": None,  # µs per token of history (1 µs = 1e-6 s)
    "intercept": None,  # ms
}
### BEGIN SOLUTION
# HINT: Between the two points lie 80 ms and 29,000 tokens.
# HINT: The intercept is the first point, less the 1,000 tokens that it already has.
# WHY: Everything in Act 1 follows from these two numbers: the slope is what history
#      costs, the intercept is all the rest.
slope = (120 - 40) / (30_000 - 1_000)  # ms per token
line = {
    "slope": 1e3 * slope,
    "intercept": 40 - 1_000 * slope,
}
### END SOLUTION

# %% test="08.1" points=1
from helpers import check

check.grade("08.1", line)
### BEGIN HIDDEN TESTS
assert abs(float(line["slope"]) / 2.7586 - 1) < 0.011, "the slope is off"
assert abs(float(line["intercept"]) / 37.241 - 1) < 0.011, "the intercept is off"
### END HIDDEN TESTS

# %% [markdown]
# The intercept reads the weights: 139.0e9 bytes for a 70B in bfloat16, without the input embedding. The slope reads
# cache, at the same rate. So the ratio of the two says how many bytes of cache one more token of history brings,
# over *all* sessions that are decoded together. A single session brings 327,680 bytes (the real model, 8 KV heads)
# or would bring 2,621,440 (64 heads, MHA).
#
# **Exercise 08.2** (10 minutes). Write that as a function: from the line to the number of sessions in the batch and
# the rate at which bytes are read, if reading is all that a step does.


# %% answer="08.2"
def infer(slope, intercept, weight_bytes, kv_bytes_per_token):
    """Sessions decoded together, and bytes read per second: (batch, bytes_per_second).

    slope in seconds per token of history (of each session), intercept in seconds.
    Example: slope 1e-6, intercept 0.010, weights 20e9 bytes, 1e5 bytes a token
    → (20, 2e12).
    """
    ### BEGIN SOLUTION
    # HINT: The rate follows from the intercept alone: bytes of the weights ÷ seconds.
    # HINT: In `slope` seconds that rate reads so many bytes. One session's token is
    #       `kv_bytes_per_token` of them; how many sessions is that?
    # WHY: No overhead is assumed. If there is some, the true rate is higher and so is
    #      the true batch: both results are lower bounds.
    bytes_per_second = weight_bytes / intercept
    return slope * bytes_per_second / kv_bytes_per_token, bytes_per_second
    ### END SOLUTION


# %% test="08.2" points=2
from helpers import check

check.grade("08.2", infer)
### BEGIN HIDDEN TESTS
for given, right in [
    ((2.7586e-6, 0.037241, 139.0e9, 327_680), (31.42, 3.7324e12)),
    ((5.0e-8, 0.0125, 15e9, 131_072), (0.45776, 1.2e12)),
]:
    batch, rate = map(float, infer(*given))
    assert abs(batch / right[0] - 1) < 1e-3 and abs(rate / right[1] - 1) < 1e-3
### END HIDDEN TESTS

# %% [markdown]
# Once it passes, the test says how many sessions the report's line stands for, with 8 KV heads or with MHA, if reading
# is all that a step does. One session is out: alone, the real model would go from 40 to 42.7 ms. What your line and
# your function say in bytes:

# %%
straight = 1e-6 * line["slope"], 1e-3 * line["intercept"]  # in seconds
for heads, per_token in {"8 KV heads": 327_680, "MHA": 2_621_440}.items():
    sessions, rate = infer(*straight, 139.0e9, per_token)
    gb = 30_000 * sessions * per_token / 1e9
    print(f"{heads}: {gb:.0f} GB of cache at 30,000 tokens", end=", ")
    print(f"read at {rate / 1e12:.2f} TB/s")

# %% [markdown]
# Both batches have the same bytes of cache. With 141.1e9 of weights (input embedding included) they have to be
# *in memory*, and the rate has to come out of it. Data sheets:
#
# | GPU | memory | bandwidth |
# |---|---|---|
# | L4 | 24 GB | 300 GB/s |
# | A100-80GB | 80 GB | 2,039 GB/s |
# | H100 SXM | 80 GB | 3,350 GB/s |
# | H200 SXM | 141 GB | 4,800 GB/s |
# | DGX Spark (GB10) | 128 GB | 273 GB/s |
#
# **Exercise 08.3** (10 minutes). Which machines can be the one in the report? For each write `"possible"`,
# `"no room"` (it does not hold the bytes) or `"too slow"` (it holds them, and its data sheet is below the rate).
# Let several GPUs share the bytes evenly, whatever it takes to cut a model over 20 of them. The last row stores its
# weights in 4.5 bits each: infer anew, with 39.1e9 bytes streamed and 39.7e9 held.

# %% answer="08.3"
machines = {
    "1 × H200": None,
    "4 × A100-80GB": None,
    "8 × H100": None,
    "20 × L4": None,
    "4 × DGX Spark": None,
    "1 × H200, weights in 4.5 bits": None,
}
### BEGIN SOLUTION
# HINT: Two questions for each row: GPUs · memory against 450e9 bytes, then
#       GPUs · bandwidth against 3.73e12 bytes per second.
# HINT: For the last row, fewer bytes in the same 37.24 ms are a lower rate. The slope
#       then takes fewer bytes too, so the batch and its caches are smaller.
# WHY: In 16 bits no single GPU of the table can be it. With small weights one can: what
#      rules a machine out is bytes, and bytes depend on the format.
machines = {
    "1 × H200": "no room",
    "4 × A100-80GB": "no room",
    "8 × H100": "possible",
    "20 × L4": "possible",
    "4 × DGX Spark": "too slow",
    "1 × H200, weights in 4.5 bits": "possible",
}
### END SOLUTION

# %% test="08.3" points=2
from helpers import check

check.grade("08.3", machines)
### BEGIN HIDDEN TESTS
right = ["no room", "no room", "possible", "possible", "too slow", "possible"]
given = [str(machines[name]).strip().lower() for name in (
    "1 × H200", "4 × A100-80GB", "8 × H100", "20 × L4", "4 × DGX Spark",
    "1 × H200, weights in 4.5 bits",
)]  # fmt: skip
assert given == right
### END HIDDEN TESTS

# %% [markdown]
# Two diagnoses are popular, and both can be computed away. *It is compute*: attention over a longer history is more
# arithmetic. *The model is too big*: take a smaller one.
#
# **Exercise 08.4** (8 minutes). Take 31 sessions and, whether they can be the machine or not, 8 H100s, 989.5e12 FLOPs per
# second each. For each session a step does 2 FLOPs with each of 69.5e9 weights, and 4 · 80 layers · 64 heads · 128
# (head_dim) for each token of its history (a multiplication and an addition, for the scores and for the values). How
# long does the *arithmetic* of a step take at 30,000 tokens, at the peak rate? And if a model with half the weight
# bytes and the same cache took its place: by how many ms would TPOT still grow from 1,000 to 30,000?

# %% answer="08.4"
refuted = {
    "arithmetic at 30,000": None,  # ms
    "growth with half the weights": None,  # ms
}
### BEGIN SOLUTION
# HINT: FLOPs of one session first: weights, then history; times 31, over 8 · 989.5e12.
# HINT: For the second number ask which part of the line the weights are.
# WHY: Less than 1 of the 120 ms is arithmetic, and the weights are only in the
#      intercept: a smaller model starts lower and climbs just as steeply.
flops = 31 * (2 * 69.5e9 + 4 * 80 * 64 * 128 * 30_000)
refuted = {
    "arithmetic at 30,000": 1e3 * flops / (8 * 989.5e12),
    "growth with half the weights": 120 - 40,
}
### END SOLUTION

# %% test="08.4" points=2
from helpers import check

check.grade("08.4", refuted)
### BEGIN HIDDEN TESTS
assert abs(float(refuted["arithmetic at 30,000"]) / 0.8524 - 1) < 0.011
assert abs(float(refuted["growth with half the weights"]) / 80 - 1) < 0.011
### END HIDDEN TESTS

# %% [markdown]
# ## Build
#
# ### Act 2: six traces, six causes
#
# A dashboard divides the time of a whole answer by its tokens and calls it time per token. Below is one such table:
# each row an hour of the same service. `hit_rate` is the share of the prompt whose keys and values a
# *prefix cache* still had from an earlier request that began alike, and which was not computed again.

# %%
example = symptoms.generate(3, "prefix misses").table()
shown = ["context", "batch", "answer_tokens", "tpot_ms", "ttft_ms", "hit_rate"]
numbers = np.array([example[name] for name in shown]).T
rows = [[f"{x:,.0f}" if x >= 1_000 else f"{x:.3g}" for x in row] for row in numbers]
estimates.Table(shown, rows)

# %% [markdown]
# **Exercise 08.5** (5 minutes). The first token waits for the prompt, and that wait is in `tpot_ms`. What does *decoding*
# take per token? (To keep it simple, divide by all tokens, as the dashboard does.)


# %% answer="08.5"
def decode_ms(tpot_ms, ttft_ms, answer_tokens):
    """Milliseconds of decoding per token of the answer, from three lists of one length:
    a list or an array.

    Example: tpot_ms [50], ttft_ms [1000], answer_tokens [100] → [40].
    """
    ### BEGIN SOLUTION
    # HINT: tpot_ms · answer_tokens is the whole answer. What of it is not decoding?
    # HINT: Lists do not subtract; NumPy arrays do.
    # WHY: What is left barely moves: the users did not wait for tokens, they waited for
    #      prompts that nobody found any more.
    waited = np.asarray(ttft_ms, float) / np.asarray(answer_tokens, float)
    return np.asarray(tpot_ms, float) - waited
    ### END SOLUTION


# %% test="08.5" points=1
from helpers import check

check.grade("08.5", decode_ms)
### BEGIN HIDDEN TESTS
given = decode_ms([60.0, 25.0, 42.0], [1_500.0, 100.0, 640.0], [100, 20, 64])
assert all(abs(float(given[i]) - ms) < 1e-3 for i, ms in enumerate((45, 20, 32)))
### END HIDDEN TESTS

# %% [markdown]
# Six causes, and what each does to a table:
#
# | cause | what is true of it |
# |---|---|
# | `"the cache grows"` | time follows the bytes that have to be read, at a rate near the data sheet |
# | `"the batch grows"` | the context stands still; the batch does not |
# | `"prefix misses"` | the growth is in TTFT, not in decoding |
# | `"the context is not split"` | few workers read the history, the rest of the chip idles: a small fraction of the bandwidth |
# | `"windows are not used"` | some layers need only the latest tokens, their *window*, but time follows the bytes that *all* layers would read |
# | `"a fixed cost per step"` | decoding takes the same time at every context |
#
# In these traces a service reaches 55 to 85 % of the data sheet's bandwidth, times scatter by 2 or 3 %, and a falling
# hit rate may be harmless: answers can be long.
#
# **Exercise 08.6** (15 minutes). Write the diagnosis. `trace` is a table as above, with what a step has to read in each
# row: `weight_gb`, `cache_gb` (a layer with a window reads its window), `cache_gb_all` (every layer reads everything),
# and the one number `bandwidth_gb_per_s`. It is tried on 60 traces that you have not seen; 54 right are enough.
# `symptoms.generate(seed, cause)` makes as many for you as you like.


# %% answer="08.6"
def diagnose(trace):
    """One of the six causes, as a string, for a trace given as a dictionary of columns.

    Example: for symptoms.generate(3, "prefix misses").table() it returns "prefix
    misses".
    """
    ### BEGIN SOLUTION
    # HINT: Ask in order: does the growth vanish without TTFT? does decoding grow at all?
    #       does the context move? Three causes are then left, and only bytes tell them apart.
    # HINT: A rate is bytes over time: fit decode time against weight_gb + cache_gb with
    #       np.polyfit(x, y, 1); 1 over its slope is GB per ms.
    # HINT: Is that rate near the data sheet? If not, is the one with cache_gb_all?
    # WHY: Each test removes causes that the next could not tell apart.
    columns = {name: np.asarray(values, float) for name, values in trace.items()}

    def growth(x):
        return x.max() / x.min() - 1

    time = columns["tpot_ms"]
    decode = decode_ms(time, columns["ttft_ms"], columns["answer_tokens"])
    if growth(time) > 0.3 and growth(decode) < growth(time) / 3:
        return "prefix misses"
    if growth(decode) < 0.2:
        return "a fixed cost per step"
    if growth(columns["context"]) < 0.3:
        return "the batch grows"

    def share(cache):  # of the data sheet's bandwidth
        gb_per_ms = 1 / np.polyfit(columns["weight_gb"] + columns[cache], decode, 1)[0]
        return 1e3 * gb_per_ms / columns["bandwidth_gb_per_s"]

    if share("cache_gb") > 0.45:
        return "the cache grows"
    if share("cache_gb_all") > 0.45:
        return "windows are not used"
    return "the context is not split"
    ### END SOLUTION


# %% test="08.6" points=5
from helpers import check

check.grade("08.6", diagnose)
### BEGIN HIDDEN TESTS
unseen = [symptoms.generate(7_000 + i, CAUSES[i % 6]) for i in range(36)]
unseen.sort(key=lambda trace: trace.points[0].tpot_seconds)  # in no order of causes
said = [str(diagnose(trace.table())).strip().lower() for trace in unseen]
right = sum(word == trace.cause for word, trace in zip(said, unseen, strict=True))
assert right >= 31, f"{right} of 36 other traces"
### END HIDDEN TESTS

# %% [markdown]
# Three of the traces that it was tried on were not made up: vLLM on an L4, vLLM on an A100 without CUDA graphs, and
# llama.cpp on a DGX Spark.
#
# ### Act 3: what do we ship?
#
# The service of Act 1, as you inferred it, and eight levers. Quality is the team's own score, in per cent lost; for
# the two cache formats it is about the perplexity that unit 06 saw SmolLM2 lose, and a larger model may lose less or
# more.

# %% tags=["setup"]
service, levers, limits = fixes.scenario()

# %%
columns = ["lever", "weights", "cache a token", "history kept", "read once"]
columns += ["quality lost", "days"]
rows = [
    [x.name, f"× {x.weights:g}", f"× {x.cache:g}", f"{x.keep:,}" if x.keep else "all"]
    + [f"{x.shared:,}", f"{x.quality:g} %", f"{x.days}"]
    for x in levers
]
estimates.Table(columns, rows)

# %% [markdown]
# A lever shrinks one factor of the bytes. Levers on *different* factors multiply. Levers on the *same* factor do not:
# a cache has one format, and a history one length, the shortest. Tokens that all sessions share can be read once for
# the batch, as in unit 05's cascade; window and compaction both keep them, at the front. (A window drops all but the
# latest tokens; compaction puts a short summary in place of the oldest. Fused kernels and prefix caching leave the
# bytes of a decode step as they are.)
#
# **Exercise 08.7** (12 minutes). TPOT at 30,000 tokens with any set of levers in place.


# %% answer="08.7"
def stacked_ms(service, chosen):
    """TPOT in ms with the levers of the list `chosen` in place, all together.

    service has weight_bytes, kv_bytes_per_token, batch, context, bytes_per_second;
    a lever has weights, cache (factors), keep (tokens or None), shared (tokens).
    Example: for this unit's service and no levers, 119.9.
    """
    ### BEGIN SOLUTION
    # HINT: Begin with no levers: (weights + batch · context · bytes per token) ÷ rate.
    # HINT: Of several levers on one factor only the strongest counts: min() of the factors,
    #       min() of what is kept, max() of what is shared.
    # HINT: Shared tokens are read once, the rest of each history `batch` times.
    # WHY: fp8 and int4 together are int4, not an eighth; a window beside a compaction is
    #      the shorter of the two.
    weights = min([1.0, *(lever.weights for lever in chosen)]) * service.weight_bytes
    cache = min([1.0, *(lever.cache for lever in chosen)]) * service.kv_bytes_per_token
    kept = [lever.keep for lever in chosen if lever.keep is not None]
    history = min([service.context, *kept])
    shared = min(history, max([0, *(lever.shared for lever in chosen)]))
    tokens = service.batch * (history - shared) + shared
    return 1e3 * (weights + cache * tokens) / service.bytes_per_second
    ### END SOLUTION


# %% test="08.7" points=3
from helpers import check

check.grade("08.7", stacked_ms)
### BEGIN HIDDEN TESTS
by_name = {lever.name: lever for lever in levers}
for names, right in [
    ([], 119.93),
    (["fp8 cache", "int4 cache, keys per channel"], 60.63),
    (["compaction at 16,000", "weights in 4.5 bits"], 54.446),
    (
        [
            "system prompt of 4,000 read once",
            "a window of 4,096 behind the system prompt",
        ],
        49.167,
    ),
]:
    given = float(stacked_ms(service, [by_name[name] for name in names]))
    assert abs(given / right - 1) < 2e-3, f"{names}: {given:.2f} ms"
small = fixes.Service(20e9, 1e5, batch=10, context=8_000, bytes_per_second=1e12)
assert abs(float(stacked_ms(small, [])) - 28) < 0.06, "another service"
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 08.8** (8 minutes). Choose four. Together they may cost at most 4 % of quality and 35 days, and TPOT at
# 30,000 tokens has to be as low as possible. Your function does the counting.

# %% answer="08.8"
plan = [None, None, None, None]  # names of four levers, in the order in which you ship
### BEGIN SOLUTION
# HINT: The four with the largest effect alone break a limit. Which?
# HINT: There are 70 sets of four: itertools.combinations(levers, 4), and a sum of
#       quality and days for each.
# WHY: The best four pull on four different factors: format of the cache, length of the
#      history, format of the weights, and what is shared.
plan = [
    "fp8 cache",
    "weights in 4.5 bits",
    "compaction at 16,000",
    "system prompt of 4,000 read once",
]
### END SOLUTION

# %% test="08.8" points=3
from helpers import check

check.grade("08.8", plan)
### BEGIN HIDDEN TESTS
four = {"fp8 cache", "weights in 4.5 bits", "compaction at 16,000"}
four |= {"system prompt of 4,000 read once"}
assert {str(name) for name in plan} == four, "another set is faster, or a limit breaks"
### END HIDDEN TESTS

# %% [markdown]
# The lever ledger of the course, as numbers for this service: each lever alone, then your four together. A turn of 500
# new tokens prefills its history as well, unless a prefix cache has it; the first token waits for that.

# %% jupyter={"source_hidden": true}
by_name = {lever.name: lever for lever in levers}
ordered = [by_name[name] for name in plan]
columns = ["lever", "TPOT", "caches held", "prefill before a turn", "quality", "days"]
rows = []
sets = {"none": [], **{x.name: [x] for x in levers}, "your four": ordered}
for name, some in sets.items():
    held = f"{service.cache_bytes(some) / 1e9:,.0f} GB"
    cost = [f"{sum(x.quality for x in some):g} %", f"{sum(x.days for x in some)}"]
    waits = f"{service.prefill_tokens(some):,} tokens"
    rows.append([name, f"{stacked_ms(service, some):.1f} ms", held, waits, *cost])
estimates.Table(columns, rows)

# %% jupyter={"source_hidden": true}
streams = {}
for name, some in {"as it is": [], "with your four": ordered}.items():
    parts = {
        "weights": service.streamed_bytes(some),
        "cache": service.cache_bytes(some),
    }
    streams[name] = parts
_ = drawings.step_bytes(streams, title="What one step of this service reads")

# %% [markdown]
# Alone and stacked, in the order in which you ship. The pale bar is what the lever would have bought alone:

# %% jupyter={"source_hidden": true}
now = stacked_ms(service, [])
alone = [now - stacked_ms(service, [lever]) for lever in ordered]
steps = [stacked_ms(service, ordered[:i]) for i in range(5)]
gained = [before - after for before, after in zip(steps, steps[1:], strict=False)]
_, ax = plt.subplots(figsize=(8.2, 3.4))
places = np.arange(4)
ax.barh(places - 0.2, alone, 0.38, color=plots.GREY, alpha=0.5, label="alone")
ax.barh(places + 0.2, gained, 0.38, label="on top of those above")
ax.set_yticks(places, [lever.name for lever in ordered])
ax.invert_yaxis()
ax.set(
    xlabel="ms less per token", title=f"{now:.0f} → {steps[-1]:.0f} ms at 30,000 tokens"
)
_ = ax.legend()

# %% [markdown]
# ## Measure
#
# Two levers of the table on your own device, with SmolLM2, alone and together: a cache of 8 bits, and a history that is
# cut. Before you run it: if either alone saved a third of a step, would both together save two thirds?

# %%
from helpers.caches import FullCache, Int8Cache
from helpers.clock import devices, recordings, sweeps
from helpers.models import pretrained
from helpers.models.counts import kv_bytes

spot = devices.pick(device)
card = devices.card(spot)
model, _ = pretrained.load(device=spot)
far, kept = 8_192, 4_096
one = 1.3 * kv_bytes(model.geometry, far + 64, dtype=model.dtype)  # both caches
side = sweeps.largest_batch(model, one, 16 if spot.type == "cuda" else 4, budget)
engines = {
    "float32": (model, FullCache(model.geometry, far + 64, side, device=spot)),
    "8 bits": (model, Int8Cache(model.geometry, far + 64, side, device=spot)),
}

# %% [markdown]
# The prediction is bytes alone, as a *ratio* to the step with everything in place, so that it does not depend on
# today's bandwidth:

# %%
cases = {
    "as it is": ("float32", far),
    "8-bit cache": ("8 bits", far),
    "capped": ("float32", kept),
    "both": ("8 bits", kept),
}
read = {}
for case, (label, context) in cases.items():
    cache = engines[label][1]
    read[case] = model.weight_bytes + cache.step_bytes(context)
built = {"fp8 cache": "8-bit cache", "compaction at 16,000": "capped"}
first = built.get(plan[0], "not timed here: watch these two")
print(f"your first lever, {plan[0]}: {first}")
for case in ("8-bit cache", "capped", "both"):
    share = read[case] / read["as it is"]
    estimates.predict(f"08.step_{case.replace(' ', '_')}", share, "of a step")
    print(f"{case}: {share:.2f} of the bytes")
product = read["8-bit cache"] * read["capped"] / read["as it is"] ** 2
print(f"the two shares multiplied: {product:.2f}")

# %%
timed = sweeps.decode_sweep(engines, [kept, far], budget)
found = {case: timed[label][context] for case, (label, context) in cases.items()}
whole = found["as it is"].ms
for case in ("8-bit cache", "capped", "both"):
    key = f"08.step_{case.replace(' ', '_')}"
    point = found[case]
    estimates.measured(key, point.ms / whole, verdict=point.verdict)
    print(f"{case}: {point.ms:.1f} ms, {point.ms / whole:.2f} of {whole:.1f} ms")
recorded = recordings.load(recordings.DECODE)
x, seconds, _ = recordings.curve(recorded, "decode-batch-4")
then = dict(zip(x, seconds, strict=True))
told = f"{1e3 * then[kept]:.1f} ms, {then[kept] / then[far]:.2f}"
print(f"recorded, {recorded.device}, 4 sequences: capped {told}", end=" ")
print(f"of {1e3 * then[far]:.1f} ms")
estimates.report("08")

# %% [markdown]
# Levers on different factors of the *cache* multiply there; the weights are not part of it, and they stay. That is
# why shares of a whole step do not multiply. Where the measured share is larger than the bytes', something besides
# bytes takes time: on a CPU perhaps the arithmetic of unpacking 8-bit numbers.
#
# ### How well did you guess?
#
# Every prediction that you logged in this course before its measurement, one point each. On the line you were right;
# the band is a factor of 1.5 either way. Hollow points were measured on a busy machine.

# %%
ax = plots.calibration(estimates.calibration())

# %% [markdown]
# ## Explain
#
# **Published curves, held out.** Five models, measured by others on a DGX Spark at growing depth. Only the *first* point
# of each is used: it gives the rate at which the weights were read. Take that rate for the cache too, and bytes alone
# predict the rest:

# %%
from helpers.serving import depth_sweeps

estimates.Table(*depth_sweeps.table())

# %% [markdown]
# **An inconvenient result.** One number, the first, predicts the whole curve: with grouped heads, with windows, with
# experts. But not every engine is so obliging. Two published sweeps of GLM-4.7-Flash, an MLA model, in two engines, on two
# RTX 3090s and on one, go 121 → 89 and 119 → 90 tokens/s from 0 to 8,192 tokens. That is 3 ms more, where the latents
# (0.44 GB in 16 bits) would be read in half a millisecond. One of the two is not even smooth (perhaps a kernel changes
# on the way). A line that bends is a finding, not noise to be averaged out.
#
# **The claim.** *Just use several optimisations, the gains multiply.* Your four levers, counted in three ways:

# %%
multiplied = now * np.prod([1 - saved / now for saved in alone])
print(f"if savings added up, {now - sum(alone):.0f} ms would be left")
print(f"if shares of a step multiplied, {multiplied:.0f} ms")
print(f"by bytes, {steps[-1]:.0f} ms")

# %% [markdown]
# Weights and cache add up to a step, so what is saved on either adds; the factors of the cache multiply; and of two
# levers on one factor only the stronger counts.
#
# ### Your own incident
#
# The code of this unit reads what you have at work: the JSON that `vllm bench serve` and `llama-bench` save, or a CSV
# with context, batch and tpot_ms. It refuses where your data cannot tell. Here it reads vLLM's L4 figures:

# %%
from helpers.serving import incident

published = symptoms.published()[0]
print(published.source)
print(incident.diagnose(published.points, published.model, published.bandwidth))

# %% [markdown]
# With files of your own:
#
#     from helpers.models import hf_config
#     from helpers.serving import benchmarks, incident
#
#     model = incident.Model(hf_config.read("config.json"), weights="bf16", cache="bf16")
#     points = benchmarks.read("table.csv")
#     print(incident.diagnose(points, model, bandwidth=8 * 3.35e12))
#
# And a machine to play with: move the sliders (or call `what_if.step(...)`).

# %%
from helpers.exercises import what_if

what_if.explore()

# %% [markdown]
# ### Act 4: one page
#
# **Exercise 08.9** (15 minutes). Somebody reads this tonight and decides. At most 300 words: what happens and how you
# know (numbers), what it is not and why (numbers), what we ship in which order and what each step buys, what it costs in
# quality, and what you would measure first on the real service. Marked by a person:
#
# | points | for |
# |---|---|
# | 1 | slope and intercept, and what each is |
# | 1 | the batch and the machine that follow, with what is assumed |
# | 1 | two wrong diagnoses refuted by a number |
# | 1 | the plan, alone and stacked, inside both limits |
# | 1 | one measurement that could prove you wrong |

# %% [markdown] report="08.9" points=5
# ### BEGIN SOLUTION
# TPOT grows by 2.76 µs for each token of history from 37 ms. The 37 ms are the weights (139 GB), the slope is the KV
# cache. Both are reads at about 3.7 TB/s, if a step does nothing but read; then one more token brings 10.3 MB, which is
# 31 sessions of a 70B with 8 KV heads. 450 GB have to be resident, so in 16 bits it is no single GPU; eight H100s hold it
# and would be at 14 % of their bandwidth, which is low and worth asking about.
#
# It is not compute: the arithmetic of a step is 0.9 ms at 30,000 tokens. It is not the model's size: half the weights
# would start near 19 ms and still climb by 80.
#
# We ship, in this order: fp8 cache (120 → 79 ms, 3 days), 4.5-bit weights (→ 52 ms, 8 days), compaction at 16,000
# tokens (→ 32 ms, 10 days), the shared system prompt read once (→ 27 ms, 12 days). Together 33 days and 3.5 % of
# quality, inside 35 and 4. Alone they would save 41, 27, 38 and 11 ms; three of them shrink the same cache, so together
# they save 93 and not 117.
#
# First I would log batch and context beside TPOT for a day. If TPOT at a fixed context does not follow the batch, it is
# not the bytes of 31 caches, and this plan is wrong.
# ### END SOLUTION

# %% [markdown]
# The last row of the ledger, and the whole of it:

# %%
tpot = f"{now:.0f} → {steps[-1]:.0f} ms at 30,000 tokens, by bytes"
lost = f"{sum(lever.quality for lever in ordered):g} % of {limits.quality:g}"
same = dict(ttft="a spike at each compaction", memory="fewer bytes in each factor")
estimates.ledger("08", "the plan, stacked", tpot=tpot, quality=lost, **same)

# %% [markdown]
# *Sources.* The report and its claim: units 00 and 02. Geometries: Lightning-AI/litgpt, config.py. Data sheets, depth
# sweeps and the three published traces lie in `helpers/data/` with their sources. Quality of the two cache formats:
# unit 06 on SmolLM2-135M; everything else about the team and its service is made up.
