# %% [markdown]
# # 02 · The cache that grows
#
# ## The question
#
# The bug report again: *time per output token (TPOT) starts near 40 ms and climbs to 120 ms by the time a
# session holds 30k tokens.* Nobody changed the model, the machine or the code between the first answer and
# the last. A decode step reads all weights, and they do not grow. It also reads the KV cache, and that
# grows with every token. **By how many bytes, when does it matter, and is 40 → 120 ms what it costs?**
#
# You will predict it, measure it on a real model, and then find the batch at which the report can be true.
# (About 70 minutes.)

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures longer

# %% tags=["setup"]
import matplotlib.pyplot as plt
import numpy as np

from helpers import check, data, estimates, plots
from helpers.models.geometry import get

SIX = ["Llama-2-7b-hf", "Llama-3.1-8B", "Llama-3.1-70B"]
SIX += ["Qwen3-4B", "Mixtral-8x7B-v0.1", "SmolLM2-135M"]
plots.use()

# %% [markdown]
# ## Predict
#
# A layer keeps, for each token, one **key** and one **value** vector per **KV head**. Every later step
# reads them all. Nothing else of a token is kept. Below are six real models.
#
# **Exercise 02.1.** How many bytes does one token add to the cache of each model, over all layers, in
# bfloat16 (2 bytes an element)? Look twice at the fourth and fifth row.

# %%
rows = []
for name in SIX:
    g = get(name)
    experts = f"{g.moe.experts}, {g.moe.per_token} run" if g.moe else "none"
    sizes = (g.layers, g.hidden, g.q_heads, g.kv_heads, g.head_dim)
    rows.append([name, *(f"{n:,}" for n in sizes), experts])
estimates.Table(
    ["model", "layers", "hidden", "query heads", "KV heads", "head_dim", "experts"],
    rows,
)

# %% answer="02.1"
kv_bytes_of = {  # bytes for one token, all layers, bfloat16
    "Llama-2-7b-hf": None,
    "Llama-3.1-8B": None,
    "Llama-3.1-70B": None,
    "Qwen3-4B": None,
    "Mixtral-8x7B-v0.1": None,
    "SmolLM2-135M": None,
}
### BEGIN SOLUTION
kv_bytes_of = {  # K and V · layers · KV heads · head_dim · bytes per element
    "Llama-2-7b-hf": 2 * 32 * 32 * 128 * 2,
    "Llama-3.1-8B": 2 * 32 * 8 * 128 * 2,
    "Llama-3.1-70B": 2 * 80 * 8 * 128 * 2,
    "Qwen3-4B": 2
    * 36
    * 8
    * 128
    * 2,  # head_dim is its own number: 2560 / 32 would be 80
    "Mixtral-8x7B-v0.1": 2
    * 32
    * 8
    * 128
    * 2,  # experts replace the MLP; attention is there once
    "SmolLM2-135M": 2 * 30 * 3 * 64 * 2,
}
### END SOLUTION

# %% test="02.1" points=3
from helpers import check

check.grade("02.1", kv_bytes_of)
### BEGIN HIDDEN TESTS
right = [524_288, 131_072, 327_680, 147_456, 131_072, 23_040]
assert [float(kv_bytes_of[name]) for name in SIX] == right, (
    "one of the six counts is off"
)
### END HIDDEN TESTS

# %% [markdown]
# A decode step also reads the weights, all but the input embedding: of that table it reads one row.
#
# | model | parameters | of these, input embedding |
# |---|---|---|
# | Llama-2-7b-hf | 6.738e9 | 0.131e9 |
# | Llama-3.1-8B | 8.030e9 | 0.525e9 |
#
# **Exercise 02.2.** One sequence, everything in bfloat16. At how many tokens of context does a step read as
# many bytes of cache as of weights? From there on the cache is the larger half of your TPOT.

# %% answer="02.2"
tokens_where_equal = {  # tokens of context
    "Llama-2-7b-hf": None,
    "Llama-3.1-8B": None,
}
### BEGIN SOLUTION
tokens_where_equal = {
    "Llama-2-7b-hf": (6.738e9 - 0.131e9) * 2 / 524_288,
    "Llama-3.1-8B": (8.030e9 - 0.525e9) * 2 / 131_072,
}
### END SOLUTION

# %% test="02.2" points=2
from helpers import check

check.grade("02.2", tokens_where_equal)
### BEGIN HIDDEN TESTS
assert abs(float(tokens_where_equal["Llama-2-7b-hf"]) / 25_204 - 1) < 0.01, (
    "Llama-2-7b-hf is off"
)
assert abs(float(tokens_where_equal["Llama-3.1-8B"]) / 114_515 - 1) < 0.01, (
    "Llama-3.1-8B is off"
)
### END HIDDEN TESTS

# %% [markdown]
# The older model gets there at 25 thousand tokens, the newer one, with a quarter of the KV heads, at 115
# thousand. Four sequences side by side share the weights and bring four caches, so they get there four
# times sooner.
#
# Before the cache costs time, it has to fit. **Exercise 02.3.** Llama-3.1-8B in bfloat16 on an L4 with 24
# GB (1 GB = 1e9 bytes): how many sequences of 4,096 tokens each fit at most? Here the whole model is in
# memory, input embedding included. Leave nothing for activations.

# %% answer="02.3"
largest_batch = None  # sequences, a whole number
### BEGIN SOLUTION
largest_batch = int((24e9 - 8.030e9 * 2) / (4_096 * 131_072))
### END SOLUTION

# %% test="02.3" points=1
from helpers import check

check.grade("02.3", largest_batch)
### BEGIN HIDDEN TESTS
assert float(largest_batch) == 14, "not the number of sequences that fit"
### END HIDDEN TESTS

# %% [markdown]
# A real engine fits fewer. For Qwen3-4B on an L4, (24 − 8.04) GB is room for 108,200 tokens; vLLM reports a
# pool of 83,488, since it keeps room for activations and CUDA itself. Your number is an upper bound.
#
# ## Build
#
# **Exercise 02.4.** Put the count of 02.1 into a function. It takes a `Geometry` (fields as in the table:
# `layers`, `hidden`, `q_heads`, `kv_heads`, `head_dim`) and works for any number of bytes per element: 4
# for float32, 2 for bfloat16, 1 for fp8, 0.5 for int4.


# %% answer="02.4"
def kv_bytes_per_token(geometry, bytes_per_element=2):
    """Bytes that one token adds to the KV cache, over all layers.

    Example: 1 layer, 1 KV head, head_dim 64, 2 bytes an element: 256 bytes.
    """
    ### BEGIN SOLUTION
    elements = (
        2 * geometry.layers * geometry.kv_heads * geometry.head_dim
    )  # 2: a key and a value
    return elements * bytes_per_element
    ### END SOLUTION


# %% test="02.4" points=2
from helpers import check

check.grade("02.4", kv_bytes_per_token)
### BEGIN HIDDEN TESTS
assert float(kv_bytes_per_token(get("Llama-3.1-8B"))) == 131_072, (
    "Llama-3.1-8B, bfloat16"
)
assert float(kv_bytes_per_token(get("Qwen3-4B"), 1)) == 73_728, (
    "Qwen3-4B, one byte an element"
)
assert float(kv_bytes_per_token(get("SmolLM2-135M"), 4)) == 46_080, (
    "SmolLM2-135M, float32"
)
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 02.5.** Now time. One decode step gives every sequence of the batch its next token. It streams
# the weights once, and the cache of each sequence, at `bandwidth` bytes a second; on top comes an
# `overhead` in seconds that does not depend on bytes. How long does a step take? That time is the TPOT of
# every sequence in it.


# %% answer="02.5"
def tpot_seconds(
    weight_bytes, kv_bytes_per_token, context, batch, bandwidth, overhead=0.0
):
    """Seconds of one decode step: `batch` sequences, each with `context` tokens in its cache.

    Example: 8e9 bytes of weights, 1e5 bytes a token, 20,000 tokens, batch 1, 1e12 B/s: 0.010 s.
    """
    ### BEGIN SOLUTION
    cache_bytes = batch * context * kv_bytes_per_token
    return (weight_bytes + cache_bytes) / bandwidth + overhead
    ### END SOLUTION


# %% test="02.5" points=3
from helpers import check

check.grade("02.5", tpot_seconds)
### BEGIN HIDDEN TESTS
assert abs(tpot_seconds(10e9, 1e5, 20_000, 3, 1e12) - 0.016) < 1e-9, (
    "batch 3, no overhead"
)
assert abs(tpot_seconds(10e9, 1e5, 20_000, 1, 1e12, overhead=0.003) - 0.015) < 1e-9, (
    "batch 1, overhead 3 ms"
)
for context, tokens_per_second in [
    (2_048, 29.1),
    (8_192, 26.4),
    (16_384, 23.6),
    (32_768, 19.4),
]:
    predicted = tpot_seconds(
        8.0445e9, 147_456, context, 1, 247e9
    )  # vLLM, Qwen3-4B on an L4
    assert abs(predicted * tokens_per_second - 1) < 0.05, f"L4 at {context}"
### END HIDDEN TESTS

# %% [markdown]
# Your function was just held against 10 published measurements that you had not seen. The 6 of gpt-fast come
# with a rate of reading that its authors computed from the same speed, so they test your bytes. The 4 of vLLM
# have one bandwidth for all contexts, so they test your line.
#
# Can we go the other way, from times to bytes per second? TPOT is a straight line in the context. Its slope
# is the cost of one more token, its intercept is everything else. **Exercise 02.6.** Fit that line by least
# squares: slope = Σ(x − x̄)(y − ȳ) / Σ(x − x̄)², and the line passes through (x̄, ȳ).


# %% answer="02.6"
def fit_line(contexts, seconds):
    """Least-squares line through the points: returns (slope, intercept), in s/token and in s.

    Example: contexts [0, 100, 200], seconds [0.01, 0.02, 0.03] → (0.0001, 0.01).
    """
    ### BEGIN SOLUTION
    x, y = np.asarray(contexts, dtype=float), np.asarray(seconds, dtype=float)
    dx, dy = x - x.mean(), y - y.mean()
    slope = (dx * dy).sum() / (dx**2).sum()
    return slope, y.mean() - slope * x.mean()
    ### END SOLUTION


# %% test="02.6" points=2
from helpers import check

check.grade("02.6", fit_line)
### BEGIN HIDDEN TESTS
slope, intercept = map(
    float, fit_line([1_000, 2_000, 4_000, 9_000], [0.011, 0.013, 0.014, 0.021])
)
assert abs(slope - 1.210526e-6) < 1e-9 and abs(intercept - 0.00990789) < 1e-6, (
    "not the least-squares line"
)
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 02.7.** Read the line. One token more in each of `batch` sequences adds `slope` seconds: at
# what bandwidth was that read? And how much of the intercept is left once the weights have been read at
# that bandwidth?


# %% answer="02.7"
def bandwidth_and_overhead(slope, intercept, weight_bytes, kv_bytes_per_token, batch=1):
    """What a fitted line says: returns (bandwidth in bytes per second, overhead in seconds).

    Example: slope 1e-7 s per token, intercept 0.012 s, 10e9 bytes of weights, 1e5 bytes a token
    → (1e12, 0.002).
    """
    ### BEGIN SOLUTION
    bandwidth = batch * kv_bytes_per_token / slope
    return bandwidth, intercept - weight_bytes / bandwidth
    ### END SOLUTION


# %% test="02.7" points=2
from helpers import check

check.grade("02.7", bandwidth_and_overhead)
### BEGIN HIDDEN TESTS
bandwidth, overhead = bandwidth_and_overhead(
    4.37e-8, 6.44e-3, 15.0093e9, 131_072
)  # H100, Llama-3.1-8B
assert (
    abs(float(bandwidth) / 2.9994e12 - 1) < 1e-3
    and abs(float(overhead) - 1.4358e-3) < 1e-5
), "H100"
bandwidth, overhead = bandwidth_and_overhead(3e-7, 0.012, 10e9, 1e5, batch=3)
assert (
    abs(float(bandwidth) / 1e12 - 1) < 1e-6 and abs(float(overhead) - 0.002) < 1e-8
), "batch 3"
### END HIDDEN TESTS

# %% [markdown]
# ## Measure
#
# Now the incident at home: SmolLM2-135M, a real pretrained model, in float32. First the device and the
# model; the first run downloads 93 MB and measures the device card of unit 00 if you have none yet.

# %%
from helpers.clock import devices
from helpers.clock import sweeps
from helpers.models import pretrained
from helpers.caches import FullCache

spot = devices.pick(device)
card = devices.card(spot)
model, tokenizer = pretrained.load(device=spot)
print(f"{card.name}: reads {card.read_bytes_per_second / 1e9:.1f} GB/s")
print(f"a step streams {model.weight_bytes / 1e6:,.0f} MB of weights")

# %% [markdown]
# Your prediction, before anything is timed: your bytes, your formula, the bandwidth on the card, no
# overhead.

# %%
contexts = [16, 1_024, 2_048, 4_096, 8_192]
batches = (
    (1, 4) if spot.type == "cpu" else (4, 16)
)  # a fast device needs more bytes to show the same
kv = kv_bytes_per_token(model.geometry, bytes_per_element=4)
predicted = {}
for batch in batches:
    times = [
        tpot_seconds(model.weight_bytes, kv, c, batch, card.read_bytes_per_second)
        for c in contexts
    ]
    predicted[batch] = 1e3 * np.array(times)  # ms
    for context, ms in zip(contexts, predicted[batch], strict=True):
        estimates.predict(f"02.tpot_ms_batch{batch}_at_{context}", ms, "ms")
    print(f"batch {batch}: {predicted[batch][0]:.1f} → {predicted[batch][-1]:.1f} ms")

# %% [markdown]
# Real decode steps, at five contexts and two batch sizes, in turns. Each cache is filled with random keys
# and values: the time of a step does not depend on what they say. In the same rounds, a plain read of memory:
# what does it give *today*?

# %%
engines = {
    f"batch {b}": (model, FullCache(model.geometry, 8_256, batch=b, device=spot))
    for b in batches
}
plain_read, read_bytes = devices.read_step(spot)
timed = sweeps.decode_sweep(
    engines, contexts, budget, card.read_bytes_per_second, {"read": plain_read}
)
read_now = read_bytes / timed["beside"]["read"].median
print(
    f"memory gave {read_now / 1e9:.1f} GB/s in these minutes, {card.read_bytes_per_second / 1e9:.1f} on the card"
)
measured, spread, doubts = {}, {}, set()
for batch in batches:
    points = [timed[f"batch {batch}"][context] for context in contexts]
    measured[batch] = np.array([point.ms for point in points])
    spread[batch] = np.array([point.spread_ms for point in points])
    print(f"batch {batch}: {measured[batch][0]:.1f} → {measured[batch][-1]:.1f} ms")
    doubts |= {(point.verdict, point.reason) for point in points if point.reason}
for verdict, reason in sorted(doubts):
    print(f"[{verdict}] {reason}")
note = "".join(f" [{verdict}]" for verdict, _ in sorted(doubts))

# %%
_, panels = plt.subplots(1, 2, figsize=(10.5, 4.0), sharey=True)
for series, (batch, ax) in enumerate(zip(batches, panels, strict=True)):
    plots.prediction(
        ax,
        contexts,
        predicted[batch],
        measured[batch],
        spread[batch],
        series=series,
        xlabel="context (tokens)",
        ylabel="TPOT (ms)",
        title=f"Batch {batch}: bytes alone{note}",
    )

# %% [markdown]
# Is it a line at all, and what does it say? Your own `fit_line` and `bandwidth_and_overhead` answer. R² is
# the share of the variation that the line explains: 1 means that all points lie on it.

# %%
fits, rows = {}, []
for batch in batches:
    slope, intercept = fit_line(contexts, measured[batch] / 1e3)
    line = 1e3 * (intercept + slope * np.array(contexts))
    r2 = (
        1
        - ((measured[batch] - line) ** 2).sum()
        / ((measured[batch] - measured[batch].mean()) ** 2).sum()
    )
    read, over = bandwidth_and_overhead(slope, intercept, model.weight_bytes, kv, batch)
    fits[batch] = slope, line, r2
    share = f"{read / 1e9:.1f} GB/s ({100 * read / card.read_bytes_per_second:.0f} % of the card)"
    rows.append(
        [
            f"{batch}",
            f"{1e6 * slope:.2f} µs",
            f"{1e3 * intercept:.1f} ms",
            f"{r2:.4f}",
            share,
            f"{1e3 * over:+.1f} ms",
        ]
    )
columns = [
    "batch",
    "slope, per token",
    "intercept",
    "R²",
    "bandwidth of the cache reads",
    "overhead",
]
estimates.Table(columns, rows)

# %% [markdown]
# Now name the residual. Bytes alone are a floor. What else does a step spend time on? Two suspects:
#
# - **Arithmetic.** A float32 weight is 4 bytes and does 2 FLOPs per sequence, so four sequences need 2 FLOPs a
#   byte. Look at your ridge in unit 00: on a GPU it lies in the tens or hundreds, and this is nothing. On a CPU it
#   is small, 3 to 5 on the authors', and at batch 4 the cores have about half as much to do as the memory. Your
#   card has the rate.
# - **Launches.** A step is hundreds of small operations. How long do they take when there is nothing to read? A
#   decoder with the same layers and operations, and next to no bytes, tells.

# %%
from helpers.models.decoder import Decoder
from helpers.models.counts import decode_flops

arithmetic = {}
for batch in batches:
    flops = np.array(
        [decode_flops(model.geometry, context + 1, batch) for context in contexts]
    )
    arithmetic[batch] = 1e3 * flops / card.matmul_flops_per_second["float32"]  # ms

narrow = model.geometry.replace(
    name="no bytes", hidden=64, head_dim=16, intermediate=64, vocab=64
)
empty = Decoder(narrow, device=spot)
engines = {
    f"batch {b}": (empty, FullCache(narrow, 64, batch=b, device=spot)) for b in batches
}
timed = sweeps.decode_sweep(engines, [16], budget)
launches = {batch: timed[f"batch {batch}"][16].ms for batch in batches}
for batch in batches:
    print(
        f"batch {batch}: launches {launches[batch]:.1f} ms, arithmetic {arithmetic[batch][0]:.1f} ms at 16 tokens "
        f"and {arithmetic[batch][-1]:.1f} ms at 8,192"
    )

# %% [markdown]
# The new prediction adds the three up, as if nothing overlapped, and takes the bandwidth of the same minutes
# instead of the card's. It still knows nothing of the step but its shapes: bytes, FLOPs, number of operations.

# %%
streamed = {
    batch: predicted[batch] * card.read_bytes_per_second / read_now for batch in batches
}
expected = {
    batch: streamed[batch] + arithmetic[batch] + launches[batch] for batch in batches
}
_, panels = plt.subplots(1, 2, figsize=(10.5, 4.0), sharey=True)
for series, (batch, ax) in enumerate(zip(batches, panels, strict=True)):
    _, line, r2 = fits[batch]
    plots.prediction(
        ax,
        contexts,
        expected[batch],
        measured[batch],
        spread[batch],
        series=series,
        xlabel="context (tokens)",
        ylabel="TPOT (ms)",
        title=f"Batch {batch}: bytes, arithmetic, launches{note}",
    )
    ax.plot(
        contexts, line, color=plots.GREY, linewidth=1, label=f"your fit, R² = {r2:.4f}"
    )
    ax.set_ylim(bottom=0)
    ax.legend()

# %%
rows = []
for batch in batches:
    rest = measured[batch] - expected[batch]
    parts = (
        streamed[batch][-1],
        arithmetic[batch][-1],
        launches[batch],
        rest[-1],
        measured[batch][-1],
    )
    worst = 100 * np.abs(rest / expected[batch]).max()
    rows.append([f"{batch}", *(f"{part:.1f} ms" for part in parts), f"{worst:.0f} %"])
    for i, (context, ms) in enumerate(zip(contexts, measured[batch], strict=True)):
        name = f"arithmetic {arithmetic[batch][i]:+.1f} ms, launches {launches[batch]:+.1f}, rest {rest[i]:+.1f}"
        estimates.measured(f"02.tpot_ms_batch{batch}_at_{context}", ms, residual=name)
columns = [
    "batch",
    "your bytes ÷ bandwidth",
    "+ arithmetic",
    "+ launches",
    "+ rest",
    "= TPOT at 8,192",
    "worst miss",
]
estimates.Table(
    columns,
    rows,
    "rest below 0: reading and arithmetic overlap; above: kernels slower than the card",
)

# %%
estimates.report("02")

# %% [markdown]
# ## Explain
#
# **Somebody else's machines.** The slope can be read on any hardware. vLLM published decode speed against
# context for Qwen3-4B on an L4, and llama.cpp for Qwen2.5-7B (8-bit weights) on a DGX Spark, at 1 and at 32
# sequences. The lines below are your `tpot_seconds` with one bandwidth a machine: 247 GB/s (82 % of the
# L4's data sheet) and 220 GB/s (81 % of the Spark's 273).

# %%
l4 = [row for row in data.measurement("vllm-l4-fp8")["data"] if "ctx" in row]
l4_contexts = [row["ctx"] for row in l4]
l4_predicted = [1e3 * tpot_seconds(8.0445e9, 147_456, c, 1, 247e9) for c in l4_contexts]
l4_measured = [1e3 / row["bf16"] for row in l4]

_, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.0))
plots.prediction(
    left,
    l4_contexts,
    l4_predicted,
    l4_measured,
    xlabel="context (tokens)",
    ylabel="TPOT (ms)",
    title="Qwen3-4B, L4, vLLM, batch 1",
)
spark = data.measurement("llamacpp-gb10-batch")["data"]
for series, batch in enumerate((1, 32)):
    rows = [row for row in spark if row["batch"] == batch]
    x = [row["pp"] for row in rows]
    y = [1e3 * tpot_seconds(7.517e9, 57_344, c + 16, batch, 220e9) for c in x]
    plots.prediction(
        right,
        x,
        y,
        [row["ms_per_step"] for row in rows],
        xlabel="context (tokens)",
        ylabel="TPOT (ms)",
        label=f"batch {batch}",
        series=series,
        title="Qwen2.5-7B, DGX Spark, llama.cpp",
    )
_ = right.set_xticks(x)

# %% [markdown]
# At batch 1 both machines obey the bytes to within 2 %. At batch 32 the Spark goes from 54 to 119 ms, which
# is nearly our incident, and bytes alone say 39 to 103: the slope is right, and 16 ms of other work lie
# under it.
#
# **An inconvenient result.** Qwen3-8B at 8 sequences on an A100, vLLM with `enforce_eager`, which launches
# every operation from Python. What do the bytes predict from 1,024 to 16,384 tokens, and what was measured?

# %%
eager = [
    row for row in data.measurement("vllm-a100-fp8-phase")["data"] if "prefill" in row
]
x = [row["prefill"] for row in eager]
y = [1e3 * tpot_seconds(15.136e9, 147_456, c, 8, 2_039e9) for c in x]
took = [
    8e3 / row["dec_bf16"] for row in eager
]  # 8 sequences share the tokens per second
ax = plots.prediction(
    None,
    x,
    y,
    took,
    xlabel="context (tokens)",
    ylabel="TPOT (ms)",
    title="Qwen3-8B, A100, batch 8, eager: twice the bytes, the same time",
)

# %% [markdown]
# The bytes double, from 8.0 to 16.9 ms. The clock stays at 35 to 36 ms: launching takes longer than
# reading, and the reads hide behind it. On such a machine a smaller cache buys **nothing**; fewer launches
# (a CUDA graph) come first. So fit the line before you choose a lever: if the slope is not there, no cache
# lever will help.
#
# **The claim.** A widely shared estimate says: *a 70B model in 16 bits is 140 GB; at 30k tokens its MHA
# cache is in the same ballpark; so TPOT goes from 40 ms at 1k to 120 ms at 30k, exactly as the formula
# predicts.* Let your formula decide. Weights read per step: 139.0e9 bytes. Cache: 2,621,440 bytes a token
# if all 64 heads had their own K and V (MHA), and 327,680 in the real model, which has 8 KV heads (GQA-8).
#
# **Exercise 02.8.** At batch 1, by which factor does TPOT grow from 1,000 to 30,000 tokens? And at which
# batch would it grow exactly 3 times, as reported? No overhead.

# %% answer="02.8"
incident = {
    "factor at batch 1, MHA": None,  # TPOT at 30,000 ÷ TPOT at 1,000
    "factor at batch 1, GQA-8": None,
    "batch for 3 times, MHA": None,  # sequences; a fraction is fine
    "batch for 3 times, GQA-8": None,
}
### BEGIN SOLUTION
weights, mha, gqa = 139.0e9, 2_621_440, 327_680
incident = {
    "factor at batch 1, MHA": (weights + 30_000 * mha) / (weights + 1_000 * mha),
    "factor at batch 1, GQA-8": (weights + 30_000 * gqa) / (weights + 1_000 * gqa),
    # weights + 30,000·B·kv = 3·(weights + 1,000·B·kv)  →  27,000·B·kv = 2·weights
    "batch for 3 times, MHA": 2 * weights / (27_000 * mha),
    "batch for 3 times, GQA-8": 2 * weights / (27_000 * gqa),
}
### END SOLUTION

# %% test="02.8" points=2
from helpers import check

check.grade("02.8", incident)
### BEGIN HIDDEN TESTS
right = {
    "factor at batch 1, MHA": 1.537,
    "factor at batch 1, GQA-8": 1.068,
    "batch for 3 times, MHA": 3.928,
    "batch for 3 times, GQA-8": 31.42,
}
for name, value in right.items():
    assert abs(float(incident[name]) / value - 1) < 0.021, f"{name} is off"
### END HIDDEN TESTS

# %%
x = [1_000, 10_000, 20_000, 30_000]
cases = [
    ("MHA, batch 1", 2_621_440, 1),
    ("GQA-8, batch 1", 327_680, 1),
    ("GQA-8, batch 31", 327_680, 31),
]
curves = {}
for label, bytes_per_token, batch in cases:
    start = tpot_seconds(139.0e9, bytes_per_token, 1_000, batch, 1.0)
    curves[label] = [
        40 * tpot_seconds(139.0e9, bytes_per_token, c, batch, 1.0) / start for c in x
    ]
ax = plots.curve(
    None,
    x,
    curves,
    xlabel="context (tokens)",
    ylabel="TPOT (ms)",
    title="A 70B model that starts at 40 ms: which one reaches 120?",
)
_ = ax.axhline(120, color=plots.GREY, linestyle=":")

# %% [markdown]
# The claim is **false for one user**: 40 ms become 61 ms with MHA and 43 ms with the real model. It comes
# true near batch 4 (MHA) or batch 31 (GQA-8). So, if that model is the one behind it, the bug report tells you
# something that it does not say: *about 31 sessions of 30k tokens are decoded together*. That is where the
# capstone starts.
#
# The row for your ledger. This unit has no fix yet; it has the price that every fix is measured against.

# %%
batch = batches[-1]
growth = measured[batch][-1] / measured[batch][0]
estimates.ledger(
    "02",
    "none: the full cache",
    tpot=f"+ batch · KV bytes ÷ bandwidth per token; here × {growth:.1f} at batch {batch} to 8,192{note}",
    ttft="unchanged",
    memory=f"{kv:,} bytes per token and sequence (float32)",
    quality="the reference",
)

# %% [markdown]
# *Sources.* Geometries: Lightning-AI/litgpt, config.py. L4: vLLM documentation, quantized_kvcache.md. H100
# and B200: vLLM blog of 2026-04-22. A100: meta-pytorch/gpt-fast, README, and vllm-project/vllm issue 42058.
# DGX Spark: ggml-org/llama.cpp, benches/dgx-spark.md. Each row lies in `helpers/data/` with its source.
