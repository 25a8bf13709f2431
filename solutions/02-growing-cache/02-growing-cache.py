# %% [markdown]
# # 02 · The cache that grows
#
# ## The question
#
# The bug report again: *time per output token (TPOT) starts near 40 ms and climbs to 120 ms by the time a
# session holds 30k tokens.* Nobody changed the model, the machine or the code between the first answer and
# the last. A decode step reads all weights, and they stay the same size. It also reads the KV cache, and that
# grows with every token. **By how many bytes, when does it matter, and does it explain 40 → 120 ms?**
#
# The first plot shows it happening: four chats side by side with a small model, recorded on two CPU cores. You
# will predict this curve, measure it on your own device, and then find the batch at which the report can be
# true. (About 75 minutes.)

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures longer

# %% tags=["setup"]
import matplotlib.pyplot as plt
import numpy as np

from helpers import check, data, drawings, estimates, plots
from helpers.models.geometry import get

SIX = ["Llama-2-7b-hf", "Llama-3.1-8B", "Llama-3.1-70B"]
SIX += ["Qwen3-4B", "Mixtral-8x7B-v0.1", "SmolLM2-135M"]
plots.use()

# %%
from helpers.clock import recordings

recorded = recordings.load(recordings.DECODE)
chats = recorded.find("decode-batch-4")
x, seconds, _ = recordings.curve(recorded, chats.id)
curves = {f"recorded on {recorded.device}": [1e3 * y for y in seconds]}
labels = dict(xlabel="context (tokens)", ylabel="TPOT (ms)", title=chats.title)
ax = plots.curve(None, x, curves, **labels)

# %% [markdown]
# ## Predict
#
# In each layer a token adds one **key** and one **value** vector per **KV head** to the cache. Every later step
# reads them all. Nothing else of a token is kept. (One KV head may serve several query heads: unit 03.) Six
# real models, from their configs:
#
# | model | layers | hidden | query heads | KV heads | head_dim | experts |
# |---|---|---|---|---|---|---|
# | Llama-2-7b-hf | 32 | 4,096 | 32 | 32 | 128 | |
# | Llama-3.1-8B | 32 | 4,096 | 32 | 8 | 128 | |
# | Llama-3.1-70B | 80 | 8,192 | 64 | 8 | 128 | |
# | Qwen3-4B | 36 | 2,560 | 32 | 8 | 128 | |
# | Mixtral-8x7B-v0.1 | 32 | 4,096 | 32 | 8 | 128 | 8, a token runs 2 |
# | SmolLM2-135M | 30 | 576 | 9 | 3 | 64 | |
#
# **Exercise 02.1** (8 minutes). How many bytes does one token add to the cache of each model, over all layers, in
# bfloat16 (2 bytes an element)?

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
# HINT: What does the cache of one layer keep of one token? One key and one value for
#       each KV head, each head_dim long.
# HINT: Count elements first: 2 (a key and a value) · KV heads · head_dim, in each
#       layer. Then layers, then the bytes of an element.
# HINT: Look at two rows again: is Qwen3-4B's head_dim what hidden ÷ query heads gives?
#       And what do Mixtral's experts replace?
# WHY: K and V exist once per KV head and layer. Query heads, the hidden size and the
#       experts of an MLP leave nothing in the cache.
kv_bytes_of = {  # K and V · layers · KV heads · head_dim · bytes per element
    "Llama-2-7b-hf": 2 * 32 * 32 * 128 * 2,
    "Llama-3.1-8B": 2 * 32 * 8 * 128 * 2,
    "Llama-3.1-70B": 2 * 80 * 8 * 128 * 2,
    # head_dim is a number of its own: 2560 / 32 would be 80
    "Qwen3-4B": 2 * 36 * 8 * 128 * 2,
    # experts replace the MLP; attention is there once
    "Mixtral-8x7B-v0.1": 2 * 32 * 8 * 128 * 2,
    "SmolLM2-135M": 2 * 30 * 3 * 64 * 2,
}
### END SOLUTION

# %% test="02.1" points=3
from helpers import check

earned = check.grade("02.1", kv_bytes_of, points=3)
### BEGIN HIDDEN TESTS
right = [524_288, 131_072, 327_680, 147_456, 131_072, 23_040]
right = dict(zip(SIX, right, strict=True))
agree = [
    check.near(kv_bytes_of[name], value, absolute=1) for name, value in right.items()
]
earned = min(earned, 3 * sum(agree) / 6)
### END HIDDEN TESTS
check.share(earned, 3)

# %% [markdown]
# A decode step also reads the weights, all but the input embedding: of that table it reads one row.
#
# | model | parameters | of these, input embedding |
# |---|---|---|
# | Llama-2-7b-hf | 6.738e9 | 0.131e9 |
# | Llama-3.1-8B | 8.030e9 | 0.525e9 |
#
# **Exercise 02.2** (4 minutes). One sequence, everything in bfloat16. At how many tokens of context does a step read
# as many bytes of cache as of weights? From there on the cache is the larger part of your TPOT.

# %% answer="02.2"
tokens_where_equal = {  # tokens of context
    "Llama-2-7b-hf": None,
    "Llama-3.1-8B": None,
}
### BEGIN SOLUTION
# HINT: Write both sides in bytes: the weights of a step on one side, tokens · bytes per
#       token on the other.
# HINT: A parameter in bfloat16 is 2 bytes, and the input embedding is not read. The
#       bytes per token are your answers of 02.1.
# WHY: Both sides are divided by the same bandwidth, so equal bytes are equal times, on
#       any machine.
tokens_where_equal = {
    "Llama-2-7b-hf": (6.738e9 - 0.131e9) * 2 / 524_288,
    "Llama-3.1-8B": (8.030e9 - 0.525e9) * 2 / 131_072,
}
### END SOLUTION

# %% test="02.2" points=2
from helpers import check

check.grade("02.2", tokens_where_equal)
### BEGIN HIDDEN TESTS
assert abs(float(tokens_where_equal["Llama-2-7b-hf"]) / 25_204 - 1) < 0.0105, (
    "Llama-2-7b-hf is off"
)
assert abs(float(tokens_where_equal["Llama-3.1-8B"]) / 114_515 - 1) < 0.0105, (
    "Llama-3.1-8B is off"
)
### END HIDDEN TESTS

# %% [markdown]
# Before the cache costs time, it has to fit. **Exercise 02.3** (4 minutes). Llama-3.1-8B in bfloat16 on an L4 with 24
# GB (1 GB = 1e9 bytes): at most how many sequences of 4,096 tokens fit? Here the whole model is in memory,
# input embedding included. Leave nothing for activations.

# %% answer="02.3"
largest_batch = None  # sequences, a whole number
### BEGIN SOLUTION
# HINT: What is left of the 24 GB once the whole model is in memory?
# HINT: How many bytes does one sequence of 4,096 tokens take? You have its bytes per
#       token from 02.1.
# HINT: A sequence that fits only in part does not fit.
# WHY: Memory has to hold the whole model; a step reads all of it but the input
#       embedding. The two counts differ.
largest_batch = int((24e9 - 8.030e9 * 2) / (4_096 * 131_072))
### END SOLUTION

# %% test="02.3" points=1
from helpers import check

check.grade("02.3", largest_batch)
### BEGIN HIDDEN TESTS
assert abs(float(largest_batch) - 14) < 1e-6, "not the number of sequences that fit"
### END HIDDEN TESTS

# %% [markdown]
# A real engine fits fewer. For Qwen3-4B on an L4, (24 − 8.04) GB is room for 108,200 tokens; vLLM reported a
# pool of 83,488. A setting explains two thirds of the 3.6 GB between the two: it was told to take 90 % of the GPU's
# memory, 21.6 of 24 GB. Activations and CUDA itself need room as well. Your number is an upper bound.
#
# ## Build
#
# **Exercise 02.4** (4 minutes). Put the count of 02.1 into a function. It takes a `Geometry` (fields as in the table:
# `layers`, `hidden`, `q_heads`, `kv_heads`, `head_dim`) and works for any number of bytes per element: 4
# for float32, 2 for bfloat16, 1 for fp8, 0.5 for int4.


# %% answer="02.4"
def kv_bytes_per_token(geometry, bytes_per_element=2):
    """Bytes that one token adds to the KV cache, over all layers.

    Example: 1 layer, 1 KV head, head_dim 64, 2 bytes an element: 256 bytes.
    """
    ### BEGIN SOLUTION
    # HINT: Take one row of 02.1 and put a field of `geometry` in place of each number.
    # HINT: Use `geometry.head_dim` as it is, and keep the result a fraction where
    #       `bytes_per_element` is one: no int(), no //.
    # WHY: The count has the same five factors for every model, and only the last one
    #       depends on the type.
    vectors = 2 * geometry.layers * geometry.kv_heads  # 2: a key and a value
    return vectors * geometry.head_dim * bytes_per_element
    ### END SOLUTION


# %% test="02.4" points=2
from helpers import check

check.grade("02.4", kv_bytes_per_token)
### BEGIN HIDDEN TESTS
for name, size, value in [
    ("Llama-3.1-8B", 2, 131_072),
    ("Qwen3-4B", 1, 73_728),
    ("SmolLM2-135M", 4, 46_080),
]:
    given = float(kv_bytes_per_token(get(name), size))
    assert abs(given - value) < 0.5, f"{name}, {size} bytes an element"
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 02.5** (5 minutes). From bytes to time. One decode step gives every sequence of the batch its next token.
# It reads the weights once and the cache of each sequence, at `bandwidth` bytes a second. On top comes an `overhead`
# in seconds that does not depend on bytes. How long does a step take? That is the TPOT of every sequence in the batch.


# %% answer="02.5"
def tpot_seconds(
    weight_bytes, kv_bytes_per_token, context, batch, bandwidth, overhead=0.0
):
    """Seconds of one decode step: `batch` sequences,
    each with `context` tokens in its cache.

    Example: 8e9 bytes of weights, 1e5 bytes a token, 20,000 tokens, batch 1, 1e12 B/s:
    0.010 s.
    """
    ### BEGIN SOLUTION
    # HINT: What does a step read once for the whole batch, and what once for each
    #       sequence?
    # HINT: Add up the bytes: weights, and batch · context · bytes per token. Which
    #       operation turns bytes and bytes per second into seconds?
    # HINT: The overhead is paid once a step and needs no bandwidth.
    # WHY: Weights are shared by the batch, caches are not: that is why batching pays,
    #       and why long contexts make it pay less.
    cache_bytes = batch * context * kv_bytes_per_token
    return (weight_bytes + cache_bytes) / bandwidth + overhead
    ### END SOLUTION


# %% test="02.5" points=3
from helpers import check

check.grade("02.5", tpot_seconds)
### BEGIN HIDDEN TESTS
assert abs(tpot_seconds(10e9, 1e5, 20_000, 3, 1e12) - 0.016) < 1e-7, (
    "batch 3, no overhead"
)
assert abs(tpot_seconds(10e9, 1e5, 20_000, 1, 1e12, overhead=0.003) - 0.015) < 1e-7, (
    "batch 1, overhead 3 ms"
)
l4 = {2_048: 29.1, 8_192: 26.4, 16_384: 23.6, 32_768: 19.4}  # vLLM, Qwen3-4B
for context, tokens_per_second in l4.items():
    predicted = tpot_seconds(8.0445e9, 147_456, context, 1, 247e9)
    assert abs(predicted * tokens_per_second - 1) < 0.05, f"L4 at {context}"
### END HIDDEN TESTS

# %% [markdown]
# Your function was just held against 10 published measurements (a few of them you have met in units 00 and 01).
# The 6 of gpt-fast come with a read rate that its authors computed from the same speed, so they test only your
# bytes. The 4 of vLLM share one bandwidth, chosen to fit them, so they test whether your line has the right shape.
#
# Can we go the other way, from times to bytes per second? TPOT is a straight line in the context: its slope is
# what one more token costs, its intercept everything else. **Exercise 02.6** (5 minutes). Fit that line by least
# squares: slope = Σ(x − x̄)(y − ȳ) / Σ(x − x̄)², and the line passes through (x̄, ȳ).


# %% answer="02.6"
def fit_line(contexts, seconds):
    """Least-squares line through the points: returns (slope, intercept),
    in s/token and in s.

    Example: contexts [0, 100, 200], seconds [0.01, 0.02, 0.03] → (0.0001, 0.01).
    """
    ### BEGIN SOLUTION
    # HINT: Turn both lists into numpy arrays, then subtract each one's mean: dx and dy.
    # HINT: The slope is Σ dx·dy ÷ Σ dx². For the intercept, put (x̄, ȳ) into y =
    #       intercept + slope · x.
    # WHY: Least squares uses all points, so that one noisy measurement does not turn
    #       the line as it would with two points.
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
    float, fit_line([500, 1_500, 2_500, 5_500], [0.010, 0.013, 0.012, 0.020])
)
assert abs(slope - 1.928571e-6) < 1e-9 and abs(intercept - 0.00892857) < 2e-6, (
    "not the least-squares line"
)
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 02.7** (6 minutes). Read the line. One more token in each of `batch` sequences adds `slope` seconds. At
# what bandwidth were those bytes read? And how much of the intercept is left after the weights, read at the same
# bandwidth?


# %% answer="02.7"
def bandwidth_and_overhead(slope, intercept, weight_bytes, kv_bytes_per_token, batch=1):
    """What a fitted line says: returns (bandwidth in bytes per second, overhead in
    seconds).

    Example: slope 1e-7 s per token, intercept 0.012 s, 10e9 bytes of weights,
    1e5 bytes a token → (1e12, 0.002).
    """
    ### BEGIN SOLUTION
    # HINT: One more token in every sequence adds `slope` seconds. How many bytes more
    #       does the step then read?
    # HINT: Bandwidth is those bytes ÷ those seconds. With it, how long do the weights
    #       take, and what does that leave of the intercept?
    # WHY: The slope holds nothing but cache reads. The intercept mixes weights and
    #       everything else, so it is read second.
    bandwidth = batch * kv_bytes_per_token / slope
    return bandwidth, intercept - weight_bytes / bandwidth
    ### END SOLUTION


# %% test="02.7" points=2
from helpers import check

check.grade("02.7", bandwidth_and_overhead)
### BEGIN HIDDEN TESTS
line = (4.37e-8, 6.44e-3, 15.0093e9, 131_072)  # H100, Llama-3.1-8B
bandwidth, overhead = map(float, bandwidth_and_overhead(*line))
assert abs(bandwidth / 2.9994e12 - 1) < 1e-3 and abs(overhead - 1.4358e-3) < 1e-5, (
    "H100"
)
bandwidth, overhead = map(
    float, bandwidth_and_overhead(8e-7, 0.030, 12e9, 1e5, batch=4)
)
assert abs(bandwidth / 5e11 - 1) < 2e-6 and abs(overhead - 0.006) < 1e-8, "batch 4"
### END HIDDEN TESTS

# %% [markdown]
# ## Measure
#
# Now the incident at home, with SmolLM2-135M in float32. The first run downloads 93 MB, and measures the
# device card of unit 00 if you have none yet.

# %%
from helpers.caches import FullCache
from helpers.clock import devices, sweeps
from helpers.models import pretrained

spot = devices.pick(device)
card = devices.card(spot)
model, tokenizer = pretrained.load(device=spot)
print(f"{card.name}: reads {card.read_bytes_per_second / 1e9:.1f} GB/s")
print(f"a step streams {model.weight_bytes / 1e6:,.0f} MB of weights")

# %% [markdown]
# Your prediction, before anything is timed here: your bytes, your formula, the bandwidth on the card, no
# overhead. (A fast device gets more sequences and longer contexts, as far as its memory goes: it needs more bytes to
# show the same.)

# %%
batches, contexts = sweeps.sizes(model, card, budget)
longest = contexts[-1]  # tokens
kv = kv_bytes_per_token(model.geometry, bytes_per_element=4)
weights, rate = model.weight_bytes, card.read_bytes_per_second
predicted = {}
for batch in batches:
    times = [tpot_seconds(weights, kv, c, batch, rate) for c in contexts]
    predicted[batch] = 1e3 * np.array(times)  # ms
    for context, ms in zip(contexts, predicted[batch], strict=True):
        estimates.predict(f"02.tpot_ms_batch{batch}_at_{context}", ms, "ms")
    print(f"batch {batch}: {predicted[batch][0]:.1f} → {predicted[batch][-1]:.1f} ms")

# %% [markdown]
# Real decode steps, at these contexts and batch sizes, in turns. The caches are filled with random keys and
# values: the time of a step hardly depends on what they say, so the smaller cache may use the larger one's
# memory. The same rounds also time a plain read of memory: what does it give *today*?

# %%
few, many = batches
room = {"capacity": longest + 64, "device": spot}
largest = FullCache(model.geometry, batch=many, **room)
caches = {few: FullCache(model.geometry, batch=few, over=largest, **room)}
caches[many] = largest
engines = {f"batch {b}": (model, cache) for b, cache in caches.items()}
plain_read, read_bytes = devices.read_step(spot, held=largest.keys)
timed = sweeps.decode_sweep(engines, contexts, budget, rate, {"read": plain_read})
rate_now = read_bytes / timed["beside"]["read"].median
print(f"memory: {rate_now / 1e9:.1f} GB/s now, {rate / 1e9:.1f} GB/s on the card")

# %%
points = {b: [timed[f"batch {b}"][c] for c in contexts] for b in batches}
measured = {b: np.array([point.ms for point in points[b]]) for b in batches}
spread = {b: np.array([point.spread_ms for point in points[b]]) for b in batches}
for b in batches:
    print(f"batch {b}: {measured[b][0]:.1f} → {measured[b][-1]:.1f} ms")
doubts = {(p.verdict, p.reason) for b in batches for p in points[b] if p.reason}
for verdict, reason in sorted(doubts):
    print(f"[{verdict}] {reason}")
note = "".join(f" [{verdict}]" for verdict, _ in sorted(doubts))


# %% [markdown]
# What is it that grew? First one token, as it lies in the cache of this model: a key and a value for each KV head, in
# every layer. Then what a step streams, from the bytes of these caches.

# %% jupyter={"source_hidden": true}
some, g = caches[batches[0]], model.geometry
rows = {
    f"layer {layer}": [
        (f"{part[layer, 0, head, 0].nbytes} B", name)
        for name, part in {"key": some.keys, "value": some.values}.items()
        for head in range(g.kv_heads)
    ]
    for layer in (0, 1, g.layers - 1)
}
drawings.boxes(
    rows,
    {"key": "key of a KV head", "value": "value of a KV head"},
    title=f"One token in 3 of the {g.layers} layers, {g.name}, float32",
)
streams = {}
for b, cache in caches.items():
    for context in (contexts[0], longest):
        half = cache.step_bytes(context) / 2  # keys are half, values half
        parts = {"weights": model.weight_bytes, "keys": half, "values": half}
        streams[f"batch {b}, {context:,} tokens"] = parts
_ = drawings.step_bytes(streams, title=f"What one decode step reads, {g.name}, float32")

# %% [markdown]
# One panel per batch: your line, the measured points, and the gap between the two shaded. Dotted: the same steps on the
# machine of the first plot.


# %% jupyter={"source_hidden": true}
def side_by_side(expected, title):
    axes = dict(xlabel="context (tokens)", ylabel="TPOT (ms)")
    _, panels = plt.subplots(1, 2, figsize=(10.5, 4.0), sharey=True)
    for series, (b, ax) in enumerate(zip(batches, panels, strict=True)):
        panel = dict(series=series, title=f"Batch {b}: {title}{note}", **axes)
        plots.prediction(ax, contexts, expected[b], measured[b], spread[b], **panel)
        recordings.beside(ax, b, longest, spot.type)
    return dict(zip(batches, panels, strict=True))


_ = side_by_side(predicted, "bytes alone")

# %% [markdown]
# Is it a line at all, and what does it say? Your own `fit_line` and `bandwidth_and_overhead` answer. R² is
# the share of the variation that the line explains: 1 means that all points lie on it.

# %%
fits, read = {}, {}
for b in batches:
    slope, intercept = fit_line(contexts, measured[b] / 1e3)
    line = 1e3 * (intercept + slope * np.array(contexts))
    r2 = (
        1
        - ((measured[b] - line) ** 2).sum()
        / ((measured[b] - measured[b].mean()) ** 2).sum()
    )
    fits[b] = slope, intercept, line, r2
    read[b] = bandwidth_and_overhead(slope, intercept, weights, kv, b)

# %% [markdown]
# What each line says, as a table:

# %% jupyter={"source_hidden": true}
columns = ["batch", "slope, per token", "intercept", "R²"]
columns += ["bandwidth of the cache reads", "overhead"]
rows = []
for b in batches:
    slope, intercept, _, r2 = fits[b]
    share = f"{read[b][0] / 1e9:.1f} GB/s ({100 * read[b][0] / rate:.0f} % of the card)"
    fitted = [f"{1e6 * slope:.2f} µs", f"{1e3 * intercept:.1f} ms", f"{r2:.4f}"]
    rows.append([f"{b}", *fitted, share, f"{1e3 * read[b][1]:+.1f} ms"])
estimates.Table(columns, rows)

# %% [markdown]
# Now name the **residual**, the part of the time that the prediction leaves out. Bytes alone are a floor. What
# else takes time in a step? Two suspects:
#
# - **Arithmetic.** A float32 weight is 4 bytes and does 2 FLOPs per sequence: a batch of B needs B/2 FLOPs for
#   each byte of weights. The *ridge* of unit 00 is what a device can do in the time in which it reads a byte. If
#   B/2 comes near it, arithmetic takes about as long as reading.
# - **Launches.** A step is hundreds of small operations. How long do they take when there is nothing to read? A
#   decoder with the same layers and operations, and almost no bytes, tells.

# %%
from helpers.models.counts import decode_flops
from helpers.models.decoder import Decoder

ridge, flop_rate = card.ridge(), card.decode_rate()
arithmetic = {}
for b in batches:
    flops = [decode_flops(model.geometry, context + 1, b) for context in contexts]
    arithmetic[b] = 1e3 * np.array(flops) / flop_rate  # ms
    print(
        f"batch {b}: {b / 2:g} FLOP/byte on weights, ridge of this device {ridge:.1f}"
    )

# %%
tiny = dict(hidden=64, head_dim=16, intermediate=64, vocab=64)
narrow = model.geometry.replace(name="no bytes", **tiny)
empty = Decoder(narrow, device=spot)
caches = {b: FullCache(narrow, 64, batch=b, device=spot) for b in batches}
engines = {f"batch {b}": (empty, cache) for b, cache in caches.items()}
timed = sweeps.decode_sweep(engines, [16], budget)
launches = {b: timed[f"batch {b}"][16].ms for b in batches}
for b in batches:
    first, last = arithmetic[b][0], arithmetic[b][-1]
    print(
        f"batch {b}: launches {launches[b]:.1f} ms, arithmetic {first:.1f} ms", end=" "
    )
    print(f"at 16 tokens and {last:.1f} ms at {longest:,}")

# %% [markdown]
# The new prediction adds the three up, as if nothing overlapped, and takes today's bandwidth in place of the
# card's. Of the step it still knows only bytes, FLOPs and the number of operations. The grey line is your fit.

# %%
streamed = {b: predicted[b] * rate / rate_now for b in batches}
expected = {b: streamed[b] + arithmetic[b] + launches[b] for b in batches}
rest = {b: measured[b] - expected[b] for b in batches}
for b, ax in side_by_side(expected, "bytes, arithmetic, launches").items():
    _, _, line, r2 = fits[b]
    ax.plot(contexts, line, color=plots.GREY, linewidth=1, label=f"fit, R² = {r2:.4f}")
    ax.set_ylim(bottom=0)
    ax.legend()

# %% [markdown]
# The same in numbers, at the longest context. With a negative rest some of the three overlap, or something is read
# faster than by the plain read; with a positive one something is left to name, perhaps kernels that read more slowly.

# %% jupyter={"source_hidden": true}
columns = ["batch", "your bytes ÷ bandwidth", "+ arithmetic", "+ launches", "+ rest"]
columns += [f"= TPOT at {longest:,}", "largest miss at any context"]
rows = []
for b in batches:
    parts = [streamed[b][-1], arithmetic[b][-1], launches[b], rest[b][-1]]
    worst = f"{100 * np.abs(rest[b] / expected[b]).max():.0f} %"
    times = [f"{part:.1f} ms" for part in [*parts, measured[b][-1]]]
    rows.append([f"{b}", *times, worst])
estimates.Table(columns, rows)

# %% [markdown]
# Into the log: each prediction beside its measurement, and the names of what separates them.

# %%
for b in batches:
    for i, context in enumerate(contexts):
        named = f"arithmetic {arithmetic[b][i]:+.1f} ms, launches {launches[b]:+.1f}"
        named += f", rest {rest[b][i]:+.1f}"
        key = f"02.tpot_ms_batch{b}_at_{context}"
        doubt = points[b][i].verdict
        estimates.measured(key, measured[b][i], residual=named, verdict=doubt)
estimates.report("02")

# %% [markdown]
# ## Explain
#
# **Other people's machines.** A slope can be read on any hardware. A user of vLLM published decode speed against context
# for Qwen3-4B on an L4, and llama.cpp for Qwen2.5-Coder-7B (8-bit weights) on a DGX Spark, at 1 and at 32
# sequences. The dashed lines are your `tpot_seconds` with one bandwidth per machine: 247 GB/s (82 % of the
# L4's data sheet) and 220 GB/s (81 % of the Spark's 273).

# %%
l4 = [row for row in data.measurement("vllm-l4-fp8")["data"] if "ctx" in row]
l4_x = [row["ctx"] for row in l4]
l4_predicted = [1e3 * tpot_seconds(8.0445e9, 147_456, c, 1, 247e9) for c in l4_x]
l4_measured = [1e3 / row["bf16"] for row in l4]

spark = data.measurement("llamacpp-gb10-batch")["data"]
spark_x = [512, 4_096, 8_192]
step = {(row["batch"], row["pp"]): row["ms_per_step"] for row in spark}
spark_predicted = {
    b: [1e3 * tpot_seconds(7.517e9, 57_344, c + 16, b, 220e9) for c in spark_x]
    for b in (1, 32)
}

# %% [markdown]
# Left the L4 at batch 1, right the Spark at batch 1 and 32:

# %% jupyter={"source_hidden": true}
axes = dict(xlabel="context (tokens)", ylabel="TPOT (ms)")
_, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.0))
title = "Qwen3-4B, L4, vLLM, batch 1"
plots.prediction(left, l4_x, l4_predicted, l4_measured, title=title, **axes)
title = "Qwen2.5-Coder-7B, DGX Spark, llama.cpp"
for series, (b, y) in enumerate(spark_predicted.items()):
    took = [step[b, c] for c in spark_x]
    panel = dict(label=f"batch {b}", series=series, title=title, **axes)
    plots.prediction(right, spark_x, y, took, **panel)
_ = right.set_xticks(spark_x)

# %% [markdown]
# At batch 1 both machines follow the bytes to within 2 %. At batch 32 the Spark goes from 54 ms at 512 tokens to
# 119 ms at 8,192, a factor of 2.2. That looks much like our incident. Bytes alone say 39 to 103: the slope is
# right, and about 16 ms that bytes do not explain come on top at every context.
#
# **An inconvenient result.** Qwen3-8B with 8 sequences on an A100, served by vLLM with `enforce_eager`, which
# launches every operation from Python, one by one. What do the bytes predict from 1,024 to 16,384 tokens, and
# what was measured?

# %%
eager = data.measurement("vllm-a100-fp8-phase")["data"]
eager = [row for row in eager if "prefill" in row]
x = [row["prefill"] for row in eager]
y = [1e3 * tpot_seconds(15.136e9, 147_456, c, 8, 2_039e9) for c in x]
took = [
    8e3 / row["dec_bf16"] for row in eager
]  # 8 sequences share the tokens per second
title = "Qwen3-8B, A100, vLLM, batch 8, eager"
ax = plots.prediction(None, x, y, took, title=title, **axes)

# %% [markdown]
# The bytes double, from 8.0 to 16.9 ms. The clock stays at 35 to 37 ms. The same thread tried an 8-bit cache,
# which halves the cache bytes. The bytes alone would let decode gain 4 to 39 %, more the longer the context. It
# gained 0.4 to 5.5 %. Something else takes the time, and launches are the first suspect; but the thread has no
# profile, so a suspect is what they are. Fit the line before you choose a fix: where the slope is not there, a
# smaller cache cannot help much.
#
# **Weights that grow with the batch.** In Mixtral, the fifth row of the first table, a token runs 2 of the 8 experts
# of each layer. Alone it reads 2. Two sequences rarely pick the same two: if they chose at random, they would touch 3.5 on
# average, and four sequences 5.5. So a mixture of experts shares its weights badly between the first few
# sequences. On the Spark, a second sequence raises the total speed of a dense 7B by 86 %, and that of three
# mixtures of experts by 5 to 17 % (llama.cpp, 512 tokens of context). In `tpot_seconds`, `weight_bytes` are the
# *active* weights at batch 1 only.
#
# **The claim.** A widely shared estimate says: *a 70B model in 16 bits is 140 GB; at 30k tokens its MHA
# cache is in the same ballpark; so TPOT goes from 40 ms at 1k to 120 ms at 30k, exactly as the formula
# predicts.* Let your formula decide. Weights read per step: 139.0e9 bytes. Cache: 2,621,440 bytes a token
# if all 64 heads had their own K and V (multi-head attention, MHA), and 327,680 in the real model, whose 64
# query heads share 8 KV heads (grouped-query attention, GQA-8).
#
# **Exercise 02.8** (8 minutes). At batch 1, by which factor does TPOT grow from 1,000 to 30,000 tokens? (Two
# decimals are enough.) And at which batch would it grow exactly 3 times, as reported? No overhead.

# %% answer="02.8"
incident = {
    "factor at batch 1, MHA": None,  # TPOT at 30,000 ÷ TPOT at 1,000
    "factor at batch 1, GQA-8": None,
    "batch for 3 times, MHA": None,  # sequences; a fraction is fine
    "batch for 3 times, GQA-8": None,
}
### BEGIN SOLUTION
# HINT: No bandwidth is needed: a ratio of two times is a ratio of two byte counts. What
#       does a step read at 1,000 tokens, and at 30,000?
# HINT: Call the batch B and write down 'three times as many bytes': weights +
#       30,000·B·kv = 3 · (weights + 1,000·B·kv).
# HINT: Bring the terms with B to one side. How many tokens' worth of cache stand there?
# WHY: At batch 1 the weights dominate and hardly anything grows. Only many caches
#       beside one set of weights can make a step 3 times as long.
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

earned = check.grade("02.8", incident, points=2)
### BEGIN HIDDEN TESTS
right = {"MHA": (1.537, 0.0188, 3.928), "GQA-8": (1.0682, 0.0024, 31.42)}
agree = [
    check.near(incident[f"{what}, {name}"], value, rel=rel, absolute=off)
    for name, (factor, grows, batch) in right.items()
    for what, value, rel, off in (
        ("factor at batch 1", factor, 0, grows),
        ("batch for 3 times", batch, 0.021, 0),
    )
]
earned = min(earned, 2 * sum(agree) / 4)
### END HIDDEN TESTS
check.share(earned, 2)

# %% [markdown]
# The curves of a step that starts at 40 ms: which one reaches the dotted line?

# %% jupyter={"source_hidden": true}
x = [1_000, 10_000, 20_000, 30_000]
cases = {
    "MHA, batch 1": (2_621_440, 1),
    "GQA-8, batch 1": (327_680, 1),
    "GQA-8, your batch": (327_680, incident["batch for 3 times, GQA-8"]),
}
curves = {}
for label, (per_token, b) in cases.items():
    times = [tpot_seconds(139.0e9, per_token, c, b, 1.0) for c in x]
    curves[label] = [40 * time / times[0] for time in times]
title = "A 70B model that starts at 40 ms: which one reaches 120?"
ax = plots.curve(None, x, curves, title=title, **axes)
_ = ax.axhline(120, color=plots.GREY, linestyle=":")

# %% [markdown]
# Suppose, then, that the product serves this model, GQA-8, with as many sessions as you found (rounded down to whole
# ones). Unit 00 called a byte count the cheapest lie detector there is. Let it speak.
#
# **Exercise 02.9** (6 minutes). All these sessions hold 30,000 tokens, and a step takes 120 ms. At what rate are its
# bytes read, if reading is all it does? And how many H100s (80 GB each) does it take just to hold everything: 141.1e9
# bytes of weights, input embedding included, and the caches?

# %% answer="02.9"
machine = {
    "read rate": None,  # TB/s; 1 TB = 1e12 bytes
    "H100s to hold it": None,  # a whole number
}
### BEGIN SOLUTION
# HINT: Round your batch down to whole sessions. How many bytes do the weights and that
#       many caches of 30,000 tokens make?
# HINT: Rate: bytes of one step ÷ 0.120 s, in units of 1e12. Room: whole model plus
#       caches, in units of 80e9, and no GPU comes in parts.
# WHY: Bytes divided by the reported time give a rate, and bytes divided by a GPU's memory
#       a number of GPUs. One H100 neither reads so fast nor holds so much.
caches = 31 * 30_000 * 327_680
machine = {
    "read rate": (139.0e9 + caches) / 0.120 / 1e12,
    "H100s to hold it": int(np.ceil((141.1e9 + caches) / 80e9)),
}
### END SOLUTION

# %% test="02.9" points=2
from helpers import check

check.grade("02.9", machine)
### BEGIN HIDDEN TESTS
assert abs(float(machine["read rate"]) / 3.698 - 1) < 0.011, "the rate is off"
assert abs(float(machine["H100s to hold it"]) - 6) < 1e-6, "it does not fit so"
### END HIDDEN TESTS

# %% [markdown]
# One byte count has told us a lot about a machine that the report never mentions. It has not told us where the
# milliseconds go, if not into reading. That is where the capstone starts.
#
# **On several GPUs** (*tensor parallelism*), each GPU keeps a share of the heads and of every matrix, so each reads a
# share of the bytes. After attention and again after the MLP (the matrices that follow attention, most of a layer's
# weights), the GPUs must add up their partial results, an *all-reduce*: two a layer, 160 a step for 80 layers. Such a
# sum is small, 16 kB per sequence for a hidden size of 8,192; at small batches it takes the time of a message,
# whatever the bytes, and more GPUs do not make it shorter. Perhaps that is part of the price that gpt-fast shows on
# A100s: Llama-2-7B goes from 104.9 to 328.4 tokens/s on 8 GPUs, 3.1 times, and each GPU reads 704 GB/s where one
# alone reads 1,397.
#
# ### The incident at its own size
#
# So far your own device ran a small model. On a CUDA GPU the next cells take the largest Llama whose 16-bit weights fit
# beside the caches of 8 sessions of 32k tokens (at `budget = "quick"`, with 7 GB, of 4 sessions of 30k). They are filled
# with random numbers, weights and caches alike. Eight sessions are fewer than you found for the report, and the model has
# fewer weights than 70B: by which factor will its TPOT grow from 1,000 to 30,000 tokens?

# %%
from helpers.clock import own_size

if spot.type == "cuda":  # let go of what holds memory
    model = largest = some = cache = llama = own_engine = None
own, llama, cache = own_size.make(spot, budget)  # a decoder and its cache, or nothing

# %% [markdown]
# Your formula again, with this device's bandwidth of today. The overhead is its launches, measured above for the layers
# of SmolLM2 and scaled to these:

# %%
if own:
    kv_own = kv_bytes_per_token(own.geometry, bytes_per_element=2)
    start = 1e-3 * launches[many] / narrow.layers * own.geometry.layers  # seconds
    given = [own.batch, rate_now, start]
    own_predicted = {}  # ms
    for context in own.contexts:
        seconds = tpot_seconds(llama.weight_bytes, kv_own, context, *given)
        own_predicted[context] = 1e3 * seconds
        estimates.predict(f"02.own_size_ms_at_{context}", 1e3 * seconds, "ms")
        print(f"{context:>6,} tokens: {1e3 * seconds:.1f} ms")

# %%
if own:
    own_engine = {own.geometry.name: (llama, cache)}
    own_timed = sweeps.decode_sweep(own_engine, own.contexts, budget, rate)
    (own_timed,) = own_timed.values()
    for context, point in own_timed.items():
        key = f"02.own_size_ms_at_{context}"
        estimates.measured(key, point.ms, verdict=point.verdict)
    near, far = own_size.REPORTED  # tokens
    print(f"{near:,} → {far:,} tokens: {own_timed[near].ms:.1f}", end=" → ")
    print(f"{own_timed[far].ms:.1f} ms, × {own_timed[far].ms / own_timed[near].ms:.2f}")
    print(f"predicted × {own_predicted[far] / own_predicted[near]:.2f}, reported × 3")

# %% [markdown]
# The line and the points, where the cells above had a GPU to time:

# %% jupyter={"source_hidden": true}
if own:
    found = [own_timed[context] for context in own.contexts]
    values = list(own_predicted.values()), [point.ms for point in found]
    scatter = [point.spread_ms for point in found]
    title = f"{own.geometry.name} in 16 bits, batch {own.batch}"
    plots.prediction(None, own.contexts, *values, scatter, title=title, **axes)

# %% [markdown]
# For those without such a GPU, by the data sheets alone, with 1.7 µs assumed for a launch and 8 sessions: Llama-3.1-8B
# goes from 5.3 ms at 1,000 tokens to 14.4 ms at 30,000 on an H100, × 2.7, and Llama-3.2-1B from 8.8 to 32.6 ms on a T4,
# × 3.7. With few weights, a few caches do what the report's many do to a 70B.
#
# The row for your ledger. This unit has no fix yet; it has the price that every fix is measured against.

# %%
b, kv_bytes = batches[-1], f"{kv:,} bytes per token and sequence (float32)"
growth = measured[b][-1] / measured[b][0]
tpot = "+ batch · KV bytes ÷ bandwidth per token; "
tpot += f"here × {growth:.1f} at batch {b} to {longest:,}{note}"
same = dict(ttft="unchanged", quality="the reference")
estimates.ledger("02", "none: the full cache", tpot=tpot, memory=kv_bytes, **same)

# %% [markdown]
# *Sources.* Geometries: Lightning-AI/litgpt, config.py. L4: vllm-project/vllm pull request 49050, for
# docs/features/quantization/quantized_kvcache.md. H100 and B200: vLLM blog of 2026-04-22. A100: meta-pytorch/gpt-fast,
# README, and vllm-project/vllm issue 42058. DGX Spark: ggml-org/llama.cpp, benches/dgx-spark.md. Two all-reduces
# a layer: "Latency-optimal allreduce and CUDA graph optimization", attached to vllm-project/vllm. Each row lies
# in `helpers/data/` with its source.
