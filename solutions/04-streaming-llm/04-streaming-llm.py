# %% [markdown]
# # 04 · StreamingLLM: a session without end
#
# ## The question
#
# A support chat runs all day. Its sessions never end, so its caches never stop growing: TPOT climbs, and at
# some hour the memory is full. Somebody proposes the obvious: *keep the last few thousand tokens and drop the
# rest*. It has been tried. The table below shows how the text then looks to the model (perplexity: among how many
# words, so to speak, it has to guess each time), and what a handful of other tokens change. **Which tokens are
# these, what does such a cache buy, and what does it cost?**
#
# You will predict the gain, build the cache, run it in a real model, and find out what the model has
# forgotten. (About 70 minutes.)

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures more

# %% tags=["setup"]
import matplotlib.pyplot as plt
import torch

from helpers import check, data, drawings, estimates, plots
from helpers.models import rope
from helpers.quality import sink_curve
from helpers.models.attention import causal
from helpers.caches import SinkBuffers
from helpers.models.counts import kv_bytes
from helpers.models.geometry import get

plots.use()

# %%
published = data.measurement("streamingllm-sinks")["data"]
estimates.Table(
    ["Llama-2-7B, 400,000 tokens, a cache of 4,096 rows", "perplexity"],
    [
        ["the latest tokens, nothing else", f"{published[0]['ppl']:,.0f}"],
        ["four of the rows for tokens from elsewhere", f"{published[3]['ppl']:,.1f}"],
    ],
)

# %% [markdown]
# From where would you take the four? Make a guess before you read on.
#
# ## Predict
#
# StreamingLLM keeps two stretches of the text: the first few tokens, called **sinks**, and the latest ones, the
# **window**. Everything between them is dropped, so the cache has a ceiling, however long the session gets. (Why the
# *first* tokens matter, you will see under Measure.)
#
# | model | layers | KV heads | head_dim | weights read per step |
# |---|---|---|---|---|
# | Llama-2-7b-hf | 32 | 32 | 128 | 13.21 GB |
# | Llama-3.1-8B | 32 | 8 | 128 | 15.01 GB |
#
# **Exercise 04.1** (3 minutes). 4 sinks and a window of 2,048 tokens, one sequence, everything in bfloat16 (2 bytes).
# How large does the cache become at most? Three digits are enough; 1 GB = 1e9 bytes.

# %% answer="04.1"
ceiling_gb = {  # GB
    "Llama-2-7b-hf": None,
    "Llama-3.1-8B": None,
}
### BEGIN SOLUTION
# HINT: How many rows does each layer hold at most, sinks and window together?
# HINT: A row is a key and a value for each KV head, head_dim long, at 2 bytes an
#       element; and there are 32 layers. Divide by 1e9 at the end.
# WHY: The ceiling has no context length in it: rows are reused, so a session of any
#       length needs the same memory.
ceiling_gb = {  # rows · K and V · layers · KV heads · head_dim · bytes
    "Llama-2-7b-hf": (4 + 2_048) * 2 * 32 * 32 * 128 * 2 / 1e9,
    "Llama-3.1-8B": (4 + 2_048) * 2 * 32 * 8 * 128 * 2 / 1e9,
}
### END SOLUTION

# %% test="04.1" points=1
from helpers import check

check.grade("04.1", ceiling_gb)
### BEGIN HIDDEN TESTS
assert abs(float(ceiling_gb["Llama-2-7b-hf"]) / 1.0758 - 1) < 0.011, (
    "Llama-2-7b-hf is off"
)
assert abs(float(ceiling_gb["Llama-3.1-8B"]) / 0.26896 - 1) < 0.011, (
    "Llama-3.1-8B is off"
)
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 04.2** (4 minutes). At 32,768 tokens of history the full cache of the two models holds 17.18 and 4.29 GB.
# A step takes as long as the bytes it streams, weights and cache. How many times shorter is a step with the capped
# cache of 04.1? (TPOT with the full cache ÷ TPOT with the capped one; three digits.)

# %% answer="04.2"
times_faster = {  # TPOT full ÷ TPOT capped, at 32,768 tokens
    "Llama-2-7b-hf": None,
    "Llama-3.1-8B": None,
}
### BEGIN SOLUTION
# HINT: What does a step read with the full cache? The weights of the first table and
#       the cache of the question. And with the capped one?
# HINT: Times are in the ratio of the bytes: (weights + full cache) ÷ (weights + your
#       04.1).
# WHY: The weights stand above and below the fraction line, so the ratio stays far from
#       the sixteen times of the caches alone.
times_faster = {  # the weights stay, above and below
    "Llama-2-7b-hf": (13.21 + 17.18) / (13.21 + ceiling_gb["Llama-2-7b-hf"]),
    "Llama-3.1-8B": (15.01 + 4.29) / (15.01 + ceiling_gb["Llama-3.1-8B"]),
}
### END SOLUTION

# %% test="04.2" points=2
from helpers import check

check.grade("04.2", times_faster)
### BEGIN HIDDEN TESTS
assert abs(float(times_faster["Llama-2-7b-hf"]) / 2.127 - 1) < 0.011, (
    "Llama-2-7b-hf is off"
)
assert abs(float(times_faster["Llama-3.1-8B"]) / 1.264 - 1) < 0.011, (
    "Llama-3.1-8B is off"
)
### END HIDDEN TESTS

# %% [markdown]
# Some models were trained with windows from the start. In gpt-oss-20b every second layer sees the last 128 tokens
# only, and each query head has learned a number that takes part in its softmax and has no token behind it: a
# **learned sink**. In Gemma-3-4b, five layers in a row see the last 1,024 tokens only, and then one sees all.
#
# | model | layers | of these with a window | window | KV heads | head_dim |
# |---|---|---|---|---|---|
# | gpt-oss-20b | 24 | 12 | 128 | 8 | 64 |
# | Gemma-3-4b-it | 34 | 29 | 1,024 | 4 | 256 |
#
# **Exercise 04.3** (4 minutes). At 32k tokens of history: in how many layers does the cache still grow, and by how
# many bytes a token in all (bfloat16)? How many rows of cache does a layer of gpt-oss keep for its learned sinks?

# %% answer="04.3"
still_growing = {
    "gpt-oss-20b, layers": None,
    "gpt-oss-20b, bytes per token": None,
    "gpt-oss-20b, rows for its sinks": None,
    "Gemma-3-4b-it, layers": None,
    "Gemma-3-4b-it, bytes per token": None,
}
### BEGIN SOLUTION
# HINT: Beyond its window a layer drops a row for each row that it adds. So which layers
#       still grow at 32k?
# HINT: Bytes per token: K and V, only the layers that grow, KV heads, head_dim, 2
#       bytes.
# HINT: A row of cache is a key and a value. Does a number that only takes part in a
#       softmax have either?
# WHY: Only layers without a window pay for context, and a learned sink is one number a
#       head, stored with the weights.
still_growing = {
    "gpt-oss-20b, layers": 24 - 12,
    "gpt-oss-20b, bytes per token": 2 * 12 * 8 * 64 * 2,
    "gpt-oss-20b, rows for its sinks": 0,  # a logit has neither a key nor a value
    "Gemma-3-4b-it, layers": 34 - 29,
    "Gemma-3-4b-it, bytes per token": 2 * 5 * 4 * 256 * 2,
}
### END SOLUTION

# %% test="04.3" points=2
from helpers import check

check.grade("04.3", still_growing)
### BEGIN HIDDEN TESTS
right = {
    "gpt-oss-20b, layers": 12,
    "gpt-oss-20b, bytes per token": 24_576,
    "gpt-oss-20b, rows for its sinks": 0,
    "Gemma-3-4b-it, layers": 5,
    "Gemma-3-4b-it, bytes per token": 20_480,
}
for name, value in right.items():
    assert abs(float(still_growing[name]) - value) < 0.5, f"{name} is off"
### END HIDDEN TESTS

# %% [markdown]
# ## Build
#
# Three questions define this cache: which tokens are kept, in which row does each lie, and at which position does it
# stand?
#
# **Exercise 04.4** (4 minutes). Which tokens does token number `newest` see (0 is the first of the text)? The first
# `sinks` tokens, and the last `window` tokens, itself included. A token that is both counts as a sink.


# %% answer="04.4"
def kept(newest, sinks, window):
    """The tokens that `newest` attends to, in ascending order.

    Example: kept(9, sinks=2, window=4) → [0, 1, 6, 7, 8, 9];
    kept(3, sinks=2, window=4) → [0, 1, 2, 3].
    """
    ### BEGIN SOLUTION
    # HINT: Two ranges, one after the other: the sinks, then the window. The window ends
    #       at `newest`; where does it begin, if it is `window` long?
    # HINT: Early in the text the window would begin among the sinks: let it begin at
    #       `sinks` at the earliest. And there may be fewer tokens than sinks: min().
    # WHY: With max and min the two stretches never overlap and never reach beyond the
    #       text, so each token appears once.
    first_of_window = max(sinks, newest - window + 1)
    return [*range(min(sinks, newest + 1)), *range(first_of_window, newest + 1)]
    ### END SOLUTION


# %% test="04.4" points=2
from helpers import check

check.grade("04.4", kept)
### BEGIN HIDDEN TESTS
assert list(map(int, kept(9, 2, 4))) == [0, 1, 6, 7, 8, 9], "kept(9, 2, 4)"
assert list(map(int, kept(4, 2, 4))) == [0, 1, 2, 3, 4], "kept(4, 2, 4)"
assert list(map(int, kept(0, 4, 8))) == [0], "kept(0, 4, 8)"
assert list(map(int, kept(100, 0, 3))) == [98, 99, 100], "kept(100, 0, 3)"
### END HIDDEN TESTS

# %% [markdown]
# Memory must stay constant, so the newest token takes the row of the one that drops out. That is a **ring** of
# `window` rows behind the sinks. With 2 sinks and a window of 3:
#
# | after token | row 0 | row 1 | row 2 | row 3 | row 4 |
# |---|---|---|---|---|---|
# | 4 | token 0 | 1 | 2 | 3 | 4 |
# | 5 | token 0 | 1 | **5** | 3 | 4 |
# | 6 | token 0 | 1 | 5 | **6** | 4 |
#
# **Exercise 04.5** (4 minutes). In which row does a token lie? (One line.)


# %% answer="04.5"
def row_of(token, sinks, window):
    """The row in which `token` is stored.

    Example: row_of(5, sinks=2, window=3) → 2.
    """
    ### BEGIN SOLUTION
    # HINT: A sink lies in the row of its own number. For the others, count from the
    #       first token behind the sinks.
    # HINT: Every `window` tokens the ring comes round: which operator gives a
    #       remainder? Then step over the rows of the sinks.
    # WHY: Token t and token t + window share a row, and t drops out of the window at
    #       the very step in which t + window comes in.
    return token if token < sinks else sinks + (token - sinks) % window
    ### END SOLUTION


# %% test="04.5" points=1
from helpers import check

check.grade("04.5", row_of)
### BEGIN HIDDEN TESTS
assert [int(row_of(t, 2, 3)) for t in range(9)] == [0, 1, 2, 3, 4, 2, 3, 4, 2], (
    "rows of 2 + 3"
)
assert [int(row_of(t, 0, 2)) for t in range(5)] == [0, 1, 0, 1, 0], "rows of 0 + 2"
### END HIDDEN TESTS

# %% [markdown]
# And the position? RoPE rotates each key by an angle that grows with its position. StreamingLLM counts positions
# **inside the cache**: after token 6 the five tokens 0, 1, 4, 5, 6 stand at the places 0, 1, 2, 3, 4. There is no gap,
# and no place beyond sinks + window: however long the text gets, the model meets no position that it was not trained on.
#
# **Exercise 04.6** (5 minutes). At which place does each row stand, after `seen` tokens? `kept` and `row_of` do most
# of it.


# %% answer="04.6"
def places(seen, sinks, window):
    """For each row that holds a token, row 0 first: the place in the cache of that
    token, after `seen` tokens.

    Example: places(7, sinks=2, window=3) → [0, 1, 3, 4, 2],
    since the rows hold the tokens 0, 1, 5, 6, 4.
    """
    ### BEGIN SOLUTION
    # HINT: `kept(seen - 1, …)` lists the tokens in the order of their places: the first
    #       has place 0, the next place 1, and so on.
    # HINT: `row_of` says in which row each of them lies. Fill a list of that length: at
    #       the row of a token, write its place.
    # WHY: Rows say where a token is stored, places say how far apart two tokens stand
    #       for RoPE. Once the ring has come round the two differ.
    tokens = kept(seen - 1, sinks, window)
    place = [0] * len(tokens)
    for i, token in enumerate(tokens):
        place[row_of(token, sinks, window)] = i
    return place
    ### END SOLUTION


# %% test="04.6" points=2
from helpers import check

check.grade("04.6", places)
### BEGIN HIDDEN TESTS
assert list(map(int, places(7, 2, 3))) == [0, 1, 3, 4, 2], "places(7, 2, 3)"
assert list(map(int, places(3, 2, 3))) == [0, 1, 2], "places(3, 2, 3)"
assert list(map(int, places(11, 0, 4))) == [1, 2, 3, 0], "places(11, 0, 4)"
### END HIDDEN TESTS

# %% [markdown]
# Once tokens drop out, a place changes with every step: what stood at 5 stands at 4 one token later. So a key cannot
# be rotated when it is stored, as in the full cache. **Store it as it comes, rotate it when it is read.**
#
# Here is the class that the decoder will call. `SinkBuffers` gives it memory: `cache.keys` and `cache.values`, each
# `[layers, batch, kv_heads, sinks + window, head_dim]`, and the tables `cache.cos` and `cache.sin`, one row for each
# place. You write its two halves.


# %% tags=["setup"]
class StreamingCache(SinkBuffers):
    """Sinks and window in constant memory, one token at a time."""

    def append(self, layer, k, v):
        store(self, layer, self.next_token(layer), k, v)

    def attend(self, layer, q):
        return read(self, layer, q)


# %% [markdown]
# **Exercise 04.7** (5 minutes). Put the key and the value of `token` into their row.


# %% answer="04.7"
def store(cache, layer, token, k, v):
    """Write k and v [batch, kv_heads, 1, head_dim], the key not rotated,
    into the row of `token` in `layer`.

    Example: with 2 sinks and a window of 3, the key of token 5 goes to
    cache.keys[layer, :, :, 2].
    """
    ### BEGIN SOLUTION
    # HINT: `row_of(token, cache.sinks, cache.window)` is the row. Which index of
    #       cache.keys picks the layer, and which the row?
    # HINT: k is [batch, kv_heads, 1, head_dim] and the row is [batch, kv_heads,
    #       head_dim]: take token 0 of k. The same for v.
    # WHY: The key is stored unrotated, for its place will change with every token that
    #       drops out before it.
    row = row_of(token, cache.sinks, cache.window)
    cache.keys[layer, :, :, row] = k[:, :, 0]
    cache.values[layer, :, :, row] = v[:, :, 0]
    ### END SOLUTION


# %% test="04.7" points=2
from helpers import check

check.grade("04.7", store)
### BEGIN HIDDEN TESTS
tiny = get("SmolLM2-135M").replace(
    name="tiny", layers=2, hidden=16, q_heads=4, kv_heads=2, head_dim=4
)
c = StreamingCache(tiny, 100, sinks=1, window=2, batch=2, backend="reference")
for t in range(5):
    one = torch.full((2, 2, 1, 4), float(t + 1))
    store(c, 1, c.next_token(1), one, -one)
rows = torch.tensor([1.0, 4.0, 5.0])
assert torch.equal(c.keys[1, 1, 1, :3, 0], rows), (
    "keys of tokens 0, 3, 4 in rows 0 to 2"
)
assert torch.equal(c.values[1, 0, 0, :3, 3], -rows), "values likewise"
assert not c.keys[0].any(), "the other layer is untouched"
### END HIDDEN TESTS

# %% [markdown]
# Your rows as they fill: nine tokens into a cache of 2 sinks and a window of 3. Each key is the token's own number, and
# what is drawn is read back from the buffer.

# %% jupyter={"source_hidden": true}
tiny = dict(layers=1, hidden=16, q_heads=4, kv_heads=2, head_dim=4)
ring = StreamingCache(get("SmolLM2-135M").replace(name="tiny", **tiny), 100, 2, 3)
filled = {}
for token in range(9):
    one = torch.full((1, 2, 1, 4), float(token))
    ring.append(0, one, one)
    numbers = [int(number) for number in ring.keys[0, 0, 0, :, 0]][: token + 1]
    filled[f"after token {token}"] = [
        (str(t), "new" if t == token else "sink" if t < 2 else "window")
        for t in numbers
    ]
_ = drawings.boxes(
    filled,
    {"sink": "sink", "window": "window", "new": "just written"},
    title="Tokens in the rows of your cache",
    columns="row of the buffer",
)

# %% [markdown]
# **Exercise 04.8** (10 minutes). Now the newest token asks. Rotate the keys that are held and the query, each by its
# place, and attend. Two helpers: `rope.rotate(x, cos, sin)` rotates x `[…, t, head_dim]` by the t rows of `cos` and
# `sin` (a list of places picks rows: `cache.cos[[0, 1, 3]]`), and `causal(q, k, v)` attends, with the query as the
# last of all. The order of the rows does not matter to attention; their places do.


# %% answer="04.8"
def read(cache, layer, q):
    """Attention of the newest token of `layer`, q [batch, q_heads, 1, head_dim],
    not rotated → same shape.

    The sequence has cache.seen(layer) tokens by now, the newest included.
    Nothing that is stored changes.
    """
    ### BEGIN SOLUTION
    # HINT: `places(cache.seen(layer), …)` has one entry for each row that holds a
    #       token: how many rows is that? Read only those.
    # HINT: Rotate these keys by the rows of cache.cos and cache.sin that the list of
    #       places picks. At which place does the newest token, the query, stand?
    # HINT: The query's table rows must keep two dimensions: pick them with a list of
    #       one place. Then causal(q, k, values).
    # WHY: RoPE looks only at the difference of two places, so keys and query have to be
    #       counted in the same way, inside the cache.
    place = places(cache.seen(layer), cache.sinks, cache.window)
    held = len(place)
    k = rope.rotate(cache.keys[layer, :, :, :held], cache.cos[place], cache.sin[place])
    q = rope.rotate(q, cache.cos[[held - 1]], cache.sin[[held - 1]])
    return causal(q, k, cache.values[layer, :, :, :held])
    ### END SOLUTION


# %% test="04.8" points=3
from helpers import check

check.grade("04.8", read)
### BEGIN HIDDEN TESTS
tiny = get("SmolLM2-135M").replace(
    name="tiny", layers=1, hidden=16, q_heads=2, kv_heads=1, head_dim=4, rope_theta=1e4
)
c = StreamingCache(tiny, 100, sinks=1, window=2, backend="reference")
c.keys[0, 0, 0, :3] = torch.tensor([[2.0, 0, 1, 0], [0, 1, 0, 2], [1, 1, 0, 0]])
c.values[0, 0, 0, :3] = torch.eye(3, 4)
for _ in range(6):
    c.next_token(0)  # the rows hold the tokens 0, 5, 4
shares = read(c, 0, torch.tensor([[1.0, 2, 0, 1], [0, 1, 2, 0]]).view(1, 2, 1, 4))[
    0, :, 0, :3
]
SHARES = [[0.0868, 0.6172, 0.296], [0.0434, 0.6685, 0.2881]]
assert (shares - torch.tensor(SHARES)).abs().max() < 2e-4, "the weights of three rows"
### END HIDDEN TESTS

# %% [markdown]
# That was checked in float64, over 40 tokens, against attention that keeps everything and masks what you drop.
#
# ## Measure
#
# Does it run in a real model? SmolLM2-135M reads 48 tokens one by one through your cache, 4 sinks and a window of
# 16. Next to it runs the engine's `SinkCache`: the same rule, but it also takes many tokens at once, each with
# exactly its own window, so that long texts can be read.

# %%
from helpers.clock import devices, recordings, sweeps, timing
from helpers.models import pretrained, text
from helpers.caches import FullCache, SinkCache

spot = devices.pick(device)
model, tokenizer = pretrained.load(device=spot)
tokens = text.tokens(2_048, tokenizer).to(spot)
yours = StreamingCache(model.geometry, 48, sinks=4, window=16, device=spot)
engine = SinkCache(model.geometry, 48, sinks=4, window=16, device=spot)
for token in tokens[:48]:
    logits = model.decode(token[None], yours)
gap = (logits - model.prefill(tokens[None, :48], engine)).abs().max()
print(f"largest difference of {logits.numel():,} logits after 48 tokens: {gap:.1e}")

# %% [markdown]
# **What does a window do to the model?** Perplexity over 2,048 tokens of documentation, of which the last 1,536
# count: the full cache, then windows with and without sinks. How much do you expect of one single sink?

# %%
grid = [(0, 256), (1, 256)] if budget == "quick" else sink_curve.GRID
live = sink_curve.measure(model, tokens, grid)
rows = []
for p in live:
    name = "full cache" if p.window is None else f"sinks {p.sinks}, window {p.window}"
    above = f"{p.above_dense:+.3f} ± {2 * p.spread:.3f}"
    rows.append([name, f"{p.perplexity:.2f}", f"{p.loss:.3f}", above])
estimates.Table(["cache", "perplexity", "loss (nats)", "above the full cache"], rows)

# %% [markdown]
# The next cell draws a recording that was made with the same code, and your own run as stars. (Another version of Python
# ships another text of the documentation, so your stars may lie a little off the lines.)

# %% jupyter={"source_hidden": true}
recorded, conditions = sink_curve.recorded()
windows = list(sink_curve.by_window(recorded, 0))
lines = {}
for s in (0, 1, 2, 4, 8):
    lines[f"sinks: {s}"] = [sink_curve.by_window(recorded, s)[w] for w in windows]
ax = plots.curve(
    None,
    windows,
    lines,
    xlabel="window (tokens)",
    ylabel="perplexity (1)",
    xlog=True,
    zero=False,
    title="SmolLM2-135M: one sink mends what the window breaks",
)
ax.axhline(recorded[0].perplexity, color=plots.GREY, linestyle=":", label="full cache")
stars = [p.window for p in live[1:]], [p.perplexity for p in live[1:]]
ax.plot(*stars, "k*", markersize=11, label="your run")
_ = ax.legend()
print("recorded:", conditions)

# %% [markdown]
# In the recording, at a window of 256, perplexity goes from 10.4 to 23.3, and one single token brings it back to 13.0.
# In this model more than one adds next to nothing: with sinks the lines lie on top of each other. What remains above
# the full cache shrinks as the window grows: it is the price of what was *said* in the dropped part.
#
# **Why the first token?** Attention weights sum to 1. The authors' explanation: a head that finds nothing to look at has
# to put its weight somewhere, and the one token that every later token can see is the first. So look where attention
# goes. The next two cells measure and draw the share that the queries 256 … 511 give to each of the first positions, as
# a mean over the heads of a layer.

# %%
from helpers.caches import AttentionProbe
from helpers.progress import each


def attention_on_the_first(ids, positions=8):
    """Share of attention in % [layers, heads, positions],
    from the queries 256 … 511."""
    probe = AttentionProbe(model.geometry, 512, device=spot, first=positions)
    for half in each(ids[None, :512].split(256, dim=1), "where 256 queries look"):
        probe.reset()
        model.prefill(half, probe)
    return 100 * probe.share


share = attention_on_the_first(tokens)

# %% jupyter={"source_hidden": true}
_, ax = plt.subplots(figsize=(10.5, 3.4))
_ = plots.heat(
    ax,
    share.mean(1).T,
    [str(p) for p in range(8)],
    [str(n) for n in range(model.geometry.layers)],
    xlabel="layer (number)",
    ylabel="position in the text (tokens)",
    unit="share of attention (%)",
    form="{:.0f}",
    title="Attention on the first 8 of 512 positions; an even share would be 0.3 %",
)

# %% [markdown]
# Is it the word or the place? Put another word in front of the same text.

# %%
banana = torch.tensor(tokenizer.encode(" banana").ids, device=spot)
other = attention_on_the_first(torch.cat((banana, tokens)))
for ids, found in ((tokens, share), (banana, other)):
    deep = found[12:, :, 0]
    print(
        f"first token {tokenizer.decode([int(ids[0])])!r}: {deep.mean():.0f} % of the "
        "attention in layers 12 to 29, "
        f"{deep.max():.0f} % in the strongest head"
    )

# %% [markdown]
# It is the place. In these 18 layers more than a third of all attention rests on whatever stands first (here as much as
# the lines above say). Drop it, and all of that has to go to words that mean something: the output of nearly every
# head changes at once. Why does the token that now stands first not take over? Its key and value were written while it
# stood in the middle of a text. Only a window that is *computed anew* at every token makes itself a new sink; remember
# that when you come to the published speed.
#
# **What does it buy?** Decode steps from 16 tokens of history up, with the full cache and with yours (on a GPU, with the
# engine's in its place). The prediction: the bytes of weights and cache, over the bandwidth of your device card. After it
# the steps are timed, and a folded cell draws both, beside a full cache on another machine, as recorded.

# %%
card = devices.card(spot)
longest = 16_384 if budget == "quick" else 32_768
contexts = [16, longest // 4, longest // 2, longest]
batch = 4 if spot.type == "cuda" else 1  # a fast device needs more bytes to show it
size = {"capacity": longest + 1, "batch": batch, "device": spot}
capped = {"sinks": 4, "window": 256, **size}

# %%
caches = {"full": FullCache(model.geometry, **size)}
if spot.type == "cpu":
    caches["yours"] = StreamingCache(model.geometry, **capped)
else:
    caches["engine"] = SinkCache(model.geometry, **capped)
    print(
        "Timed below: the engine's cache of sinks and window, not yours. Yours makes a "
        "list of places in Python at every layer. Here that list has to travel to the "
        "GPU each time, and the clock would show the journey instead of the cap."
    )

# %%
row_bytes = kv_bytes(model.geometry, tokens=1, batch=batch, dtype=torch.float32)
predicted = {}
for label in caches:
    rows_read = [c if label == "full" else min(c, 4 + 256) for c in contexts]
    read_bytes = [model.weight_bytes + rows * row_bytes for rows in rows_read]
    predicted[label] = [1e3 * b / card.read_bytes_per_second for b in read_bytes]  # ms
    estimates.predict(f"04.tpot_ms_{label}_at_{longest}", predicted[label][-1], "ms")

# %% [markdown]
# What does such a step read? Rows of the cache are counted with your `kept`:

# %% jupyter={"source_hidden": true}
streams = {}
for context in (contexts[0], longest):
    for label, rows in (
        ("full cache", context),
        ("4 sinks + 256", len(kept(context - 1, 4, 256))),
    ):
        half = rows * row_bytes / 2  # keys are half, values half
        parts = {"weights": model.weight_bytes, "keys": half, "values": half}
        streams[f"{label}, {context:,} tokens"] = parts
title = f"What one step reads: {model.geometry.name}, float32, batch {batch}"
_ = drawings.step_bytes(streams, title=title)

# %%
engines = {label: (model, cache) for label, cache in caches.items()}
timed = sweeps.decode_sweep(engines, contexts, budget, card.read_bytes_per_second)
note = timing.doubt(t for points in timed.values() for t in points.values())

# %% jupyter={"source_hidden": true}
_, ax = plt.subplots(figsize=(8, 4.4))
for series, label in enumerate(caches):
    points = [timed[label][c] for c in contexts]
    plots.prediction(
        ax,
        contexts,
        predicted[label],
        [t.ms for t in points],
        [t.spread_ms for t in points],
        xlabel="context (tokens)",
        ylabel="TPOT (ms)",
        label=label,
        series=series,
        title=f"SmolLM2-135M: the full cache, and 4 sinks + 256{note}",
    )
recordings.beside(ax, batch, longest, spot.type)

# %%
why = "perhaps keys rotated at every read, launches"
for label, cache in caches.items():
    first, last = timed[label][16], timed[label][longest]
    left = "perhaps launches and the kernel" if label == "full" else why
    key = f"04.tpot_ms_{label}_at_{longest}"
    estimates.measured(key, last.ms, residual=left, verdict=last.verdict)
    held = f"the cache holds {cache.nbytes / 1e6:,.0f} MB"
    print(f"{label}: {first.ms:.1f} → {last.ms:.1f} ms; {held}", last.reason)

# %% [markdown]
# The cap has a price, too: each step rotates all its keys again, where the full cache rotates each key once. Below the
# window you pay it and gain nothing: compare the two caches at 16 tokens. (Yours also runs plain torch operations where
# the full cache has a kernel, so not all of that difference is rotation.)

# %%
estimates.report("04")

# %% [markdown]
# **What does it cost?** A fact is planted in a text of 600 tokens: *The secret access code is NNNN.* The question
# comes at the end. First the fact lies at 30 % of the text and the cache is full; then the same with 4 sinks and a
# window of 256, which no longer holds the fact; then with the fact at 80 %, inside the window.

# %%
from helpers.quality import needle

codes = needle.CODES[:2] if budget == "quick" else needle.CODES
room = {"capacity": 700, "device": spot}  # tokens: the text, the fact and the question
cut = SinkCache(model.geometry, sinks=4, window=256, **room)
cases = {
    "full cache, fact at 30 %": (0.3, FullCache(model.geometry, **room)),
    "4 + 256, fact at 30 %": (0.3, cut),
    "4 + 256, fact at 80 %": (0.8, cut),
}

# %%
rows, recalled = [], {}
for label, (where, cache) in cases.items():
    answers = []
    for code in each(codes, f"needle, {label}"):
        cache.rewind(0)
        asked = needle.prompt(tokenizer, code, 600, where)
        answers.append(needle.ask(model, tokenizer, cache, asked))
    recalled[label] = sum(a == code for a, code in zip(answers, codes, strict=True))
    rows.append([label, f"{recalled[label]} of {len(codes)}", ", ".join(answers)])
estimates.Table(["cache", "recalled", "answers"], rows, "planted: " + ", ".join(codes))

# %% [markdown]
# The model does not say that it has forgotten: it answers something else, fluently. Perplexity does not show this: most
# words need only the sentences just before them, and the code stood a page further back.
#
# Could the fact have reached the end all the same? A token in the window was computed while older tokens were still in
# *its* window, and these while still older ones were in theirs: layer by layer the reach grows to layers × window, here
# 30 × 256 = 7,680 tokens, and the fact lay some 420 back. So much for theory. The first author of StreamingLLM reckons that
# where 100 layers with a window of 1,000 words should see 100,000, models make use of about 1,500: on the way the
# information is diluted, and residual connections weaken it at every hop.
#
# **Exercise 04.9** (6 minutes). So how small may the window be? A product owner allows a perplexity of at most
# `allowed` above that of the full cache (0.15 is 15 %). Find the smallest window that is safe: it and every larger
# window that was measured are within the budget. If none is, return None.


# %% answer="04.9"
def smallest_safe_window(curve, dense, allowed):
    """The smallest safe window of `curve` {window: perplexity}; `dense` is the
    perplexity of the full cache.

    Example: smallest_safe_window({128: 13.0, 256: 11.0, 512: 10.2}, dense=10.0,
    allowed=0.15) → 256.
    """
    ### BEGIN SOLUTION
    # HINT: The limit is dense · (1 + allowed). From which end do you have to look, if
    #       all larger windows have to be safe as well?
    # HINT: Go through the windows from the largest down, remember the last one within
    #       the limit, and stop at the first that is not.
    # WHY: One small window may be within the budget by luck. Coming from above, the
    #       walk ends before it gets there.
    safe = None
    for window in sorted(curve, reverse=True):
        if curve[window] > dense * (1 + allowed):
            break
        safe = window
    return safe
    ### END SOLUTION


# %% test="04.9" points=2
from helpers import check

check.grade("04.9", smallest_safe_window)
### BEGIN HIDDEN TESTS
assert (
    smallest_safe_window({128: 14.0, 256: 11.4, 512: 10.9, 1_024: 10.1}, 10.0, 0.15)
    == 256
), "15 % above 10"
assert smallest_safe_window({512: 21.5, 128: 21.9, 256: 22.5}, 20.0, 0.10) == 512, (
    "a bump at 256"
)
assert smallest_safe_window({128: 14.0}, 10.0, 0.1) is None, "no window is safe"
### END HIDDEN TESTS

# %% [markdown]
# What you would choose for this model, on the recorded curve with 4 sinks and, at the full budget, on your own:

# %%
curves = (
    {"recorded": recorded} if budget == "quick" else {"recorded": recorded, "own": live}
)
for name, points in curves.items():
    curve = sink_curve.by_window(points, 4)
    for allowed in (0.05, 0.10, 0.25):
        window = smallest_safe_window(curve, points[0].perplexity, allowed)
        print(f"{name}, {100 * allowed:.0f} % allowed, of {len(curve)}: {window}")

# %% [markdown]
# ## Explain
#
# **The published table.** Llama-2-7B, a cache of 4,096 rows, 400,000 tokens (Xiao et al., arXiv 2309.17453, table 2,
# as quoted by readers of the paper), beside this course's recording, both drawn below. The story is the same: without a sink the model
# fails, and the first sink mends most. In Llama-2-7B four are better than one; in SmolLM2-135M one does what four do.

# %% jupyter={"source_hidden": true}
sinks = [0, 1, 2, 4, 8]
tables = {
    "Llama-2-7B, 4,096 rows (as quoted, log scale)": [row["ppl"] for row in published],
    "SmolLM2-135M, window 256 (recorded)": [
        sink_curve.by_window(recorded, s)[256] for s in sinks
    ],
}
_, panels = plt.subplots(1, 2, figsize=(10.5, 3.6))
for ax, (title, values) in zip(panels, tables.items(), strict=True):
    plots.bars(
        ax,
        [str(s) for s in sinks],
        values,
        xlabel="sinks (tokens)",
        ylabel="perplexity (1)",
        title=title,
        form="{:,.2f}",
        ylog="log scale" in title,
    )

# %% [markdown]
# **The claim.** *StreamingLLM makes decoding 22.2 times faster.* Up to that, say its authors (README of
# mit-han-lab/streaming-llm), against a sliding window that **recomputes** the keys and values of its window for every
# token, because it keeps no sinks and so cannot reuse them. Against an ordinary full cache your 04.2 holds, since the
# weights stay. (For Llama-2-7B that is bytes only: it was trained on 4,096 positions.) With 8 sessions in a batch, which
# share the weights and not the caches, the same cap gives Llama-3.1-8B 2.9 times. The plot shows batch 1.

# %%
x = [1_024, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072]
models = {"Llama-2-7b-hf": (13.21e9, 524_288), "Llama-3.1-8B": (15.01e9, 131_072)}
gain = {}
for name, (weights, per_token) in models.items():
    full = [weights + c * per_token for c in x]
    small = [weights + min(c, 2_052) * per_token for c in x]
    gain[name] = [f / s for f, s in zip(full, small, strict=True)]

# %% jupyter={"source_hidden": true}
ax = plots.curve(
    None,
    x,
    gain,
    xlabel="context (tokens)",
    ylabel="TPOT full ÷ TPOT capped (1)",
    xlog=True,
    zero=False,
    title="What 4 sinks + 2,048 can buy at batch 1, from bytes",
)
_ = ax.axhline(1, color=plots.GREY, linestyle=":")

# %% [markdown]
# **Inconvenient results.**
#
# - *It is not a longer context.* The session goes on forever, and its middle is gone; the authors say so themselves.
#   For a chat that must remember an order number from an hour ago, this is data loss with a good perplexity.
# - *Below the window it costs.* Until the history is longer than sinks + window, it saves nothing and rotates keys.
# - *It does not go with prefix reuse* (unit 05). What is left was computed with what was dropped, and another prompt that
#   branches off in the dropped part finds nothing to start from. llama.cpp, with windowed layers, logs "forcing full prompt
#   re-processing due to lack of cache data" (ggml-org/llama.cpp#14157).
# - *Check that your engine does it.* On its PyTorch backend TensorRT-LLM accepted a `sink_token_length`, reserved blocks
#   for the sinks, and ignored them in attention; since May 2026 the option is marked as deprecated and ignored there
#   (NVIDIA/TensorRT-LLM#14275). A perplexity like yours would have shown it in a minute.
# - *Some models bring it with them.* The learned sinks of gpt-oss do what your first token does, without a row of
#   cache, and its windowed layers have stopped growing long before 32k. Only the layers that still grow, those of your
#   04.3, are left to cap, and they are the layers that remember.
#
# **Choosing by content.** StreamingLLM looks at positions only. H2O keeps the latest tokens and those that have collected
# the most attention so far; SnapKV lets the last tokens of the prompt decide, once and for each head, what the answer will
# need (its authors report generation 3.6 times faster at 16k tokens of input). Both have to see attention weights, which
# fused kernels do not write down, and what they drop is gone as well.
#
# The row for your ledger:

# %%
capped_one = list(caches)[-1]
full, flat = (timed[label][longest].ms for label in ("full", capped_one))
found = recalled["4 + 256, fact at 30 %"]
above = 100 * (sink_curve.by_window(recorded, 4)[256] / recorded[0].perplexity - 1)
held = caches[capped_one].nbytes / batch / 1e6
estimates.ledger(
    "04",
    "StreamingLLM, 4 sinks + window",
    tpot=f"capped, weights unchanged; here {full:.0f} → {flat:.0f} ms at {longest:,} "
    f"tokens{note}",
    ttft="not measured; the prompt is still read whole",
    memory=f"capped at sinks + window rows; here {held:.0f} MB a sequence",
    quality=f"what is dropped is gone: {found} of {len(codes)} facts found; "
    f"perplexity {above:+.0f} % (recorded)",
)
