# %% [markdown]
# # 06 · KV quantization
#
# ## The question
#
# An engineer turns on a 4-bit KV cache. The dashboards say: memory went down, and TPOT went **up**. A colleague
# has the opposite story: 8 bits, half the memory, and 20 % more tokens per second at 32k. A third one turned it on
# and the model forgot what it had been told. All three are right. **How many bytes does a quantised cache really
# read, when does reading less make a step faster, and what does the model lose?**
#
# You will count the bytes, write the quantisers, run the real model on what they give back, and time two ways of
# reading the same packed cache. (About 70 minutes.)

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures longer and tries more schemes

# %% tags=["setup"]
import matplotlib.pyplot as plt
import numpy as np
import torch

from helpers import check, data, estimates, plots
from helpers.models.geometry import get

plots.use()

# %% [markdown]
# ## Predict
#
# *Quantising* writes a number as one of a few **levels**: 256 of them in int8, 16 in int4. To turn a level back
# into a number one needs a **scale** (how far apart the levels are), and often a **zero** (the number that level 0
# stands for). A whole group of numbers shares one scale and one zero, and these are bytes too.
#
# **Exercise 06.1.** Llama-3.1-8B has 32 layers, 8 KV heads and a head_dim of 128; in bfloat16 a token leaves
# 131,072 bytes. How many bytes does it leave under each of these schemes? Count K and V, scales and zeros.

# %% answer="06.1"
quantized_bytes = {  # bytes for one token, all layers
    "fp8, no scales": None,
    "int8, a 2-byte scale per token and head": None,
    "int4, groups of 64, 2-byte scale and 2-byte zero": None,
    "int4, groups of 32, 2-byte scale and 2-byte zero": None,
}
### BEGIN SOLUTION
heads = 2 * 32 * 8  # K and V of every layer's KV heads
quantized_bytes = {
    "fp8, no scales": heads * 128,
    "int8, a 2-byte scale per token and head": heads * (128 + 2),
    "int4, groups of 64, 2-byte scale and 2-byte zero": heads
    * (128 // 2 + 2 * (2 + 2)),
    "int4, groups of 32, 2-byte scale and 2-byte zero": heads
    * (128 // 2 + 4 * (2 + 2)),
}
### END SOLUTION

# %% test="06.1" points=2
from helpers import check

check.grade("06.1", quantized_bytes)
### BEGIN HIDDEN TESTS
assert [float(value) for value in quantized_bytes.values()] == [
    65_536,
    66_560,
    36_864,
    40_960,
], "a count is off"
### END HIDDEN TESTS

# %% [markdown]
# "INT4 quarters the cache" is what most articles say. You just counted 28 % and 31 %.
#
# Fewer bytes, and yet more work: every number has to be converted, and the engine launches extra kernels to
# quantise what is new. So a quantised cache has its own line, TPOT = intercept + slope · context, with a smaller
# slope and, usually, a larger intercept. vLLM measured both lines for Llama-3.1-8B, batch 1 (slope in ms per token
# of context, intercept in ms):
#
# | GPU | bf16 slope | bf16 intercept | fp8 slope | fp8 intercept |
# |---|---|---|---|---|
# | H100 | 4.37e-5 | 6.44 | 2.37e-5 | 6.58 |
# | B200 | 1.80e-5 | 3.93 | 9.72e-6 | 3.96 |
#
# **Exercise 06.2.** From how many tokens of context on is fp8 the faster one?

# %% answer="06.2"
break_even_tokens = {"H100": None, "B200": None}  # tokens of context
### BEGIN SOLUTION
break_even_tokens = {
    "H100": (6.58 - 6.44) / (4.37e-5 - 2.37e-5),
    "B200": (3.96 - 3.93) / (1.80e-5 - 9.72e-6),
}
### END SOLUTION

# %% test="06.2" points=1
from helpers import check

check.grade("06.2", break_even_tokens)
### BEGIN HIDDEN TESTS
assert (
    abs(float(break_even_tokens["H100"]) - 7_000) < 20
    and abs(float(break_even_tokens["B200"]) - 3_623) < 20
)
### END HIDDEN TESTS

# %% [markdown]
# vLLM's own figure for the H100 is 7,010. A chat of two thousand tokens is *slower* with the smaller cache, if only
# by 0.1 ms a token.
#
# ## Build
#
# The simplest quantiser is **symmetric**: 0 stays 0, the largest magnitude becomes ±127, and everything is rounded
# to the nearest level between. For a cache the usual choice is one scale for each token and head.
#
# **Exercise 06.3.** Write it.


# %% answer="06.3"
def quantize_int8(x):
    """Symmetric int8, one scale per token and head.

    x: float32 [batch, kv_heads, t, head_dim], no token all zero; it is left as it is.
    Returns (numbers, scale): int8 of the shape of x, and float32 [batch, kv_heads, t], so that
    numbers * scale[..., None] is x to within half a scale.

    Example: one token [-1.27, 0.5, 1.0] → numbers [-127, 50, 100], scale 0.01.
    """
    ### BEGIN SOLUTION
    scale = x.abs().amax(dim=-1) / 127
    return torch.round(x / scale[..., None]).to(torch.int8), scale
    ### END SOLUTION


# %% test="06.3" points=2
from helpers import check

check.grade("06.3", quantize_int8)
### BEGIN HIDDEN TESTS
probe = torch.tensor([[[[-1.27, 0.5, 1.0], [0.0, 3.0, -25.4]]]])
numbers, scale = quantize_int8(probe)
assert numbers.dtype == torch.int8 and numbers.tolist() == [
    [[[-127, 50, 100], [0, 15, -127]]]
], "wrong numbers"
assert torch.allclose(scale.float(), torch.tensor([[[0.01, 0.2]]])), "wrong scales"
### END HIDDEN TESTS

# %% [markdown]
# With 16 levels there is none to waste, and keys are seldom centred on 0. An **asymmetric** quantiser spends its
# levels between the smallest and the largest number: level 0 is the minimum, the top level the maximum.
#
# **Exercise 06.4.** Write it for any number of bits, along any dimension.


# %% answer="06.4"
def quantize_levels(x, bits, dim):
    """Asymmetric quantisation: levels 0 … 2**bits - 1 from the minimum to the maximum along `dim`.

    x: float32 of any shape, nowhere constant along `dim`; it is left as it is.
    Returns (levels, scale, zero): uint8 of the shape of x; float32 scale and zero with `dim` kept at size 1, so that
    levels * scale + zero is x to within half a scale.

    Example: x = [-1.0, 0.0, 0.4, 2.0], bits 2 → levels [0, 1, 1, 3], scale 1.0, zero -1.0.
    """
    ### BEGIN SOLUTION
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    scale = (high - low) / (2**bits - 1)
    return torch.round((x - low) / scale).to(torch.uint8), scale, low
    ### END SOLUTION


# %% test="06.4" points=2
from helpers import check

check.grade("06.4", quantize_levels)
### BEGIN HIDDEN TESTS
levels, scale, zero = quantize_levels(
    torch.tensor([[-1.0, 0.0, 0.4, 2.0], [5.0, 8.0, 6.2, 5.0]]), 2, 1
)
assert levels.tolist() == [[0, 1, 1, 3], [0, 3, 1, 0]], (
    "wrong levels along the last dimension"
)
assert scale.flatten().tolist() == [1.0, 1.0] and zero.flatten().tolist() == [
    -1.0,
    5.0,
], "wrong scale or zero"
### END HIDDEN TESTS

# %% [markdown]
# There is no 4-bit number in torch. Two levels share a byte: the **low nibble** (`byte & 15`) and the **high
# nibble** (`byte >> 4`). The kernels of this course want the first half of a head's dims in the low nibbles and the
# second half in the high ones, so that a whole vector is unpacked with one mask and one shift.
#
# **Exercise 06.5.** Pack them.


# %% answer="06.5"
def pack_int4(levels):
    """uint8 levels 0 … 15 [..., head_dim] → uint8 [..., head_dim/2]; byte j holds dim j low, dim j + head_dim/2 high.

    Example: [1, 2, 3, 4] → [1 + 16·3, 2 + 16·4] = [49, 66].
    """
    ### BEGIN SOLUTION
    low, high = levels.chunk(2, dim=-1)
    return low | high << 4
    ### END SOLUTION


# %% test="06.5" points=2
from helpers import check

check.grade("06.5", pack_int4)
### BEGIN HIDDEN TESTS
probe = torch.tensor([[15, 0, 7, 9, 8, 1]], dtype=torch.uint8)
packed = pack_int4(probe)
assert packed.dtype == torch.uint8 and packed.tolist() == [
    [15 + 16 * 9, 0 + 16 * 8, 7 + 16 * 1]
], "wrong bytes"
### END HIDDEN TESTS

# %% [markdown]
# Back again: `torch.cat((packed & 15, packed >> 4), dim=-1)`, which is all that a kernel has to do for each byte it
# reads, before it can scale and multiply.

# %% [markdown]
# Before you choose who shares a scale, look at what is to be quantised: the keys and values that the real model
# computes. The next cell loads it and reads 2,048 tokens of the Python documentation.

# %%
from helpers.clock import devices
from helpers.models import pretrained, text
from helpers.caches import FullCache

spot = devices.pick(device)
model, tokenizer = pretrained.load(device=spot)
tokens = text.tokens(2_049, tokenizer).to(spot)
cache = FullCache(model.geometry, 2_048, device=spot)
_ = model.prefill(tokens[None, :2_048], cache)

# %%
layer, head = 15, 0
_, panels = plt.subplots(1, 2, figsize=(10.5, 3.8), sharey=True)
for ax, name, stored in zip(
    panels, ("keys", "values"), (cache.keys, cache.values), strict=True
):
    size = stored[layer, 0, head].abs().mean(dim=0).cpu()
    ax.bar(range(64), size, color=plots.BLUE if name == "keys" else plots.ORANGE)
    ax.set(
        title=f"{name}: largest ÷ median {size.max() / size.median():.1f}",
        xlabel="dim of the head (index)",
    )
    every = stored[:, 0].abs().mean(dim=2)  # [layers, kv_heads, head_dim]
    ratio = (every.amax(-1) / every.median(-1).values).median()
    print(
        f"{name}, all layers and heads: the largest dim is {ratio:.1f} times the median one (median of the heads)"
    )
_ = panels[0].set_ylabel("mean magnitude (model units)")

# %% [markdown]
# A few **channels** (dims of the head) of the keys are many times larger than the rest, for every token alike. The
# values of this head have nothing like it. If a token's 64 key dims share one scale, the outlier decides how far
# apart the levels are, and each of the other dims has only a few of the 16 levels left.
#
# The way out, as in KIVI: let a **channel** share a scale across a block of tokens. Then an outlier channel has its
# own wide scale and troubles nobody. Values stay per token. (KVQuant, too, gives each key channel a scale of its
# own, but fixes it beforehand on sample text, and quantises keys *before* rotation, which mixes pairs of channels.)
#
# **Exercise 06.6.** Write what such a cache gives back. `unflatten` splits a dimension: a tensor [b, h, t, d] with
# `.unflatten(2, (-1, size))` becomes [b, h, t/size, size, d], and `.flatten(2, 3)` undoes it.


# %% answer="06.6"
def restore_kv(k, v, bits=4, size=32):
    """Quantise, then dequantise: keys per channel over `size` tokens, values per token over `size` dims.

    k, v: [batch, kv_heads, t, head_dim]; `size` divides t and head_dim. Returns (k, v) as they would be read back.
    Use your quantize_levels.
    """
    ### BEGIN SOLUTION
    levels, scale, zero = quantize_levels(k.unflatten(2, (-1, size)), bits, dim=3)
    k = (levels * scale + zero).flatten(2, 3)
    levels, scale, zero = quantize_levels(v.unflatten(3, (-1, size)), bits, dim=4)
    return k, (levels * scale + zero).flatten(3, 4)
    ### END SOLUTION


# %% test="06.6" points=3
from helpers import check

check.grade("06.6", restore_kv)
### BEGIN HIDDEN TESTS
lanes = torch.tensor(
    [[0.0, 90.0, 1, 0], [3.0, 60.0, 4, 9], [1.0, 30.0, 2, 3], [2.0, 0.0, 3, 6]]
)
grid = torch.cat((lanes, lanes * 100))[
    None, None
]  # 8 tokens, 4 dims: in each block a dim lies on 4 levels of its own
back, _ = restore_kv(grid, grid, bits=2, size=4)
assert torch.allclose(back.float(), grid, atol=0.05), (
    "keys: each dim has its own scale in each block of tokens"
)
mirror = (
    grid.mT.contiguous()
)  # 4 tokens, 8 dims: in each group a token lies on 4 levels of its own
_, back = restore_kv(mirror, mirror, bits=2, size=4)
assert torch.allclose(back.float(), mirror, atol=0.05), (
    "values: each token has its own scale in each group of dims"
)
between = torch.tensor([[0.4], [0.0], [0.0], [0.0]]).repeat(2, 4)[None, None] + grid
back_k, back_v = restore_kv(between, between, bits=2, size=4)
gone = [float((back - between).abs().max()) for back in (back_k, back_v)]
assert min(gone) > 0.1, "2 bits have 4 levels: what lies between them is lost"
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 06.7.** Now count for any scheme. `bits` per number, one scale (and zero) of `extra_bytes` together for
# each `group` numbers. Your function is held against the tensors of real caches.


# %% answer="06.7"
def quantized_bytes_per_token(geometry, bits, group, extra_bytes):
    """Bytes that one token leaves, all layers, K and V, scales and zeros included.

    Example: Llama-3.1-8B, 4 bits, groups of 64, 4 extra bytes → 36,864.
    """
    ### BEGIN SOLUTION
    numbers = 2 * geometry.layers * geometry.kv_heads * geometry.head_dim
    return numbers * (bits / 8 + extra_bytes / group)
    ### END SOLUTION


# %% test="06.7" points=2
from helpers import check

check.grade("06.7", quantized_bytes_per_token)
### BEGIN HIDDEN TESTS
llama = get("Llama-3.1-8B")
assert float(quantized_bytes_per_token(llama, 4, 64, 4)) == 36_864, (
    "int4 in groups of 64"
)
assert float(quantized_bytes_per_token(llama, 3, 32, 4)) == 32_768, (
    "int3 in groups of 32"
)
assert float(quantized_bytes_per_token(get("SmolLM2-135M"), 8, 64, 4)) == 12_240, (
    "int8 of the small model"
)
### END HIDDEN TESTS

# %% [markdown]
# ## Measure
#
# First the error of the cache itself. Your two functions, on the real keys and values of all layers: how far is
# what comes back from what was stored, relative to its size?


# %%
def relative_error(x, dim, bits, size=32):
    """Error of one tensor [layers, batch, kv_heads, t, head_dim] with scales shared along `dim`."""
    parts = x.unflatten(dim, (-1, size))
    levels, scale, zero = quantize_levels(parts, bits, dim + 1)
    return float((levels * scale + zero - parts).norm() / parts.norm())


bits = [2, 3, 4, 8]
stored = {"keys": cache.keys[..., :2_048, :], "values": cache.values[..., :2_048, :]}
errors = {
    f"{name} per {who}": [100 * relative_error(x, dim, b) for b in bits]
    for name, x in stored.items()
    for who, dim in (("token", 4), ("channel", 3))
}
_ = plots.curve(
    None,
    bits,
    errors,
    xlabel="bits per number (bits)",
    ylabel="error (% of the norm)",
    title="Groups of 32: who should share a scale?",
    ylog=True,
)

# %% [markdown]
# For which of the two, keys or values, does it matter who shares? (Where it matters little, per token is the simpler
# choice: a token can be packed as it arrives, while a channel has to wait until its block of tokens is full.)
#
# And is a few per cent of error much? Ask the model: its perplexity on the documentation, tokens 512 to 2,048, with
# each token reading back what the scheme gives.
#
# One scheme is new. **fp8 e4m3** spends its byte as a small floating-point number: a sign, 4 bits of exponent, 3 bits
# of mantissa. It reaches ±448, and rounding is off by at most 1/16 of each number (from 2⁻⁶ up), whatever its
# neighbours are, so that it needs no groups. As a format to *store* in it works anywhere, converted in software where
# the chip knows no fp8.
#
# First your guess. Two schemes have 4 bits; how much worse than the exact cache is each, in %?

# %%
guess_keys_per_token = 5.0  # % more perplexity: change it before you run the next cell
guess_keys_per_channel = 1.0
estimates.predict("06.ppl_rise_int4_keys_per_token", guess_keys_per_token, "%")
estimates.predict("06.ppl_rise_int4_keys_per_channel", guess_keys_per_channel, "%")

# %%
from helpers.caches import RoundTripCache
from helpers.clock import sweeps
from helpers.kernels import quantize
from helpers.quality.perplexity import perplexity


def per_token(bits, size=64):
    """Keys and values both per token, in groups of `size` dims."""

    def restore(k, v):
        parts = [x.unflatten(3, (-1, size)) for x in (k, v)]
        return [
            (levels * scale + zero).flatten(3, 4)
            for levels, scale, zero in (quantize_levels(x, bits, 4) for x in parts)
        ]

    return restore


def int8_both(k, v):
    return [numbers * scale[..., None] for numbers, scale in map(quantize_int8, (k, v))]


def fp8_both(k, v):
    return [
        quantize.to_fp8(x.cpu()).float().to(x.device) for x in (k, v)
    ]  # torch has no fp8 on MPS


schemes = {
    "exact": lambda k, v: (k, v),
    "fp8": fp8_both,
    "int8 per token": int8_both,
    "int4 per token": per_token(4),
    "int4 K per channel": lambda k, v: restore_kv(k, v, 4, 64),
}
if budget == "full":
    schemes["int4 K per channel, 32"] = restore_kv
    schemes["int3 K per channel"] = lambda k, v: restore_kv(k, v, 3, 64)
    schemes["int2 K per channel"] = lambda k, v: restore_kv(k, v, 2, 64)
    schemes["int2 per token"] = per_token(2)

# %% [markdown]
# (About six seconds a scheme on two cores.)

# %%
from tqdm import tqdm
import sys

perplexities = {}
for name, restore in tqdm(schemes.items(), desc="perplexity", file=sys.stdout):
    held = RoundTripCache(model.geometry, 2_049, restore, device=spot)
    perplexities[name] = perplexity(model, held, tokens)
rise = {
    name: 100 * (value / perplexities["exact"] - 1)
    for name, value in perplexities.items()
}
estimates.Table(
    ["scheme", "perplexity", "against exact"],
    [[name, f"{perplexities[name]:.2f}", f"{rise[name]:+.1f} %"] for name in schemes],
)

# %%
estimates.measured(
    "06.ppl_rise_int4_keys_per_token",
    rise["int4 per token"],
    residual="outlier channels of the keys",
)
estimates.measured("06.ppl_rise_int4_keys_per_channel", rise["int4 K per channel"])
shown = [name for name in schemes if name != "exact"]
ax = plots.bars(
    None,
    [name.replace(" ", "\n", 1) for name in shown],
    [rise[name] for name in shown],
    ylabel="perplexity above exact (%)",
    title="SmolLM2-135M, 1,536 tokens",
    form="{:+.1f}",
)

# %% [markdown]
# The same number of bits, and a several-fold difference in what they cost: who shares the scale matters more than
# whether there are 4 bits or 8.
#
# Now time. A packed cache can be read in two ways. **Naive**: dequantise all of it into full precision, then
# attend. **Fused**: the attention kernel reads the packed bytes and converts them in registers. Same bytes at rest.
# (A device without kernels of its own, such as MPS, has no fused form: its plain torch is naive in every line.)
# The prediction from bytes alone, for one step at the longest context:

# %%
from helpers.caches import Fp8Cache, Int4TokenCache, Int8Cache

contexts = [512, 2_048, 4_096] if budget == "quick" else [512, 2_048, 4_096, 8_192]
capacity = contexts[-1] + 32
card = devices.card(spot)
caches = {
    "float32": FullCache(model.geometry, capacity, device=spot),
    "int8 naive": Int8Cache(model.geometry, capacity, fused=False, device=spot),
    "int8 fused": Int8Cache(model.geometry, capacity, device=spot),
    "int4 fused": Int4TokenCache(model.geometry, capacity, device=spot),
}
if (
    fp8 := Fp8Cache(model.geometry, capacity, device=spot)
).fused:  # timed only where the chip reads fp8 itself
    caches["fp8 fused"] = fp8
per_token_bytes = {name: cache.nbytes / capacity for name, cache in caches.items()}
for name, size in per_token_bytes.items():
    floor = (
        1e3 * (model.weight_bytes + contexts[-1] * size) / card.read_bytes_per_second
    )
    estimates.predict(f"06.tpot_ms_{name.replace(' ', '_')}", floor, "ms")
    print(
        f"{name:11} {size:8,.0f} bytes a token, {floor:6.1f} ms at {contexts[-1]:,} tokens"
    )

# %%
engines = {name: (model, cache) for name, cache in caches.items()}
timed = sweeps.decode_sweep(engines, contexts, budget)
measured = {name: np.array([timed[name][c].ms for c in contexts]) for name in caches}
spread = {name: [timed[name][c].spread_ms for c in contexts] for name in caches}
for name in caches:
    estimates.measured(
        f"06.tpot_ms_{name.replace(' ', '_')}",
        measured[name][-1],
        residual="conversion"
        if name != "float32"
        else "launches, kernel below the card",
    )
print(
    *{
        f"{timed[name][c].reason}\n"
        for name in caches
        for c in contexts
        if timed[name][c].reason
    },
    end="",
)
_ = plots.curve(
    None,
    contexts,
    measured,
    spread=spread,
    xlabel="context (tokens)",
    ylabel="TPOT (ms)",
    title=f"One model, four ways to keep its cache ({card.name})",
)

# %% [markdown]
# Which of the stories of the opening does each line tell? Below float32 at the right end: less memory *and* less time.
# Above it: less memory *for* time. And fused int4, with the fewest bytes of all? Where it is no faster than int8 it
# has run out of instructions, not of bytes, and the last exercise is about that. Fit the lines and let them say where
# they cross. (A slope below zero says that the machine was too busy to be measured: run the cell above again.)

# %%
lines = {name: np.polyfit(contexts, measured[name], 1) for name in caches}
rows = []
for name, (slope, intercept) in lines.items():
    saved, extra = lines["float32"][0] - slope, intercept - lines["float32"][1]
    crossing = (
        "—"
        if name == "float32"
        else "never"
        if saved <= 0
        else f"{max(0, extra / saved):,.0f} tokens"
    )
    rate = (
        f"{per_token_bytes[name] / slope / 1e6:.1f} GB/s"
        if slope > 0
        else "no line: busy"
    )
    rows.append([name, f"{1e3 * slope:.2f} µs", f"{intercept:.1f} ms", rate, crossing])
estimates.Table(
    [
        "cache",
        "slope, per token",
        "intercept",
        "cache bytes ÷ slope",
        "faster than float32 from",
    ],
    rows,
)

# %% [markdown]
# Compare the column of rates. Where a packed cache is read at *fewer* bytes per second than the exact one, its kernel
# is busy converting, and bytes fall faster than time. So it was in exercise 06.2: fp8 has 50 % of the bytes and kept
# 54 % of the slope on both GPUs.

# %%
estimates.report("06")

# %% [markdown]
# ## Explain
#
# **A published gain, from bytes.** vLLM served Qwen3-4B on an L4 with a bf16 and an fp8 cache. The step reads
# 8.0445e9 bytes of weights; a token leaves 147,456 bytes in bf16 and half of that in fp8. If time is bytes, the
# bandwidth cancels.
#
# **Exercise 06.8.** By how many per cent do tokens per second rise with fp8, at 2,048 and at 32,768 tokens? (To two
# decimals.)

# %% answer="06.8"
fp8_gain = {2_048: None, 32_768: None}  # % more tokens per second
### BEGIN SOLUTION
fp8_gain = {
    context: 100 * ((8.0445e9 + context * 147_456) / (8.0445e9 + context * 73_728) - 1)
    for context in (2_048, 32_768)
}
### END SOLUTION

# %% test="06.8" points=2
from helpers import check

check.grade("06.8", fp8_gain)
### BEGIN HIDDEN TESTS
assert (
    abs(float(fp8_gain[2_048]) - 1.843) < 0.02
    and abs(float(fp8_gain[32_768]) - 23.09) < 0.1
), "a gain is off"
### END HIDDEN TESTS

# %%
l4 = [row for row in data.measurement("vllm-l4-fp8")["data"] if "ctx" in row]
x = [row["ctx"] for row in l4]
from_bytes = [100 * ((8.0445e9 + c * 147_456) / (8.0445e9 + c * 73_728) - 1) for c in x]
published = [100 * (row["fp8"] / row["bf16"] - 1) for row in l4]
_ = plots.prediction(
    None,
    x,
    from_bytes,
    published,
    xlabel="context (tokens)",
    ylabel="gain of fp8 (%)",
    title="Qwen3-4B, L4, vLLM: fp8 against bf16",
)

# %% [markdown]
# Bytes give the ceiling, 1.8 to 23.1 %; vLLM measured 1.0 to 20.6 %. What is missing is the conversion, and whatever
# else in a step is not reading.
#
# **When instructions are the limit.** A GPU core can also run out of *instructions*. On an H200 each byte that
# arrives from memory leaves time for about 6.2 instructions of one thread (132 SMs × 128 lanes × 1.755 GHz ÷ 4.8
# TB/s; the clock is an assumption, its top of 1.98 GHz would make it 7.0). A straightforward int4 kernel spends 7.7
# on each number: shift, mask, convert, scale, multiply, add (counted by the authors in code compiled for the H200,
# not timed). A bf16 number is 2 bytes, and its kernel is limited by them.
#
# **Exercise 06.9.** Attention over an int4 cache of 4.5 bits per number (16 levels, groups of 64, 2-byte scale and
# zero), against bf16: how many times faster would it be if only bytes counted? And how many times at most, when
# each number costs 7.7 instructions?

# %% answer="06.9"
int4_speedup = {"by bytes": None, "by instructions": None}  # times faster than bf16
### BEGIN SOLUTION
int4_speedup = {"by bytes": 16 / 4.5, "by instructions": 2 * 6.2 / 7.7}
### END SOLUTION

# %% test="06.9" points=2
from helpers import check

check.grade("06.9", int4_speedup)
### BEGIN HIDDEN TESTS
assert abs(float(int4_speedup["by bytes"]) - 3.556) < 0.055, "by bytes"
assert abs(float(int4_speedup["by instructions"]) - 1.610) < 0.025, "by instructions"
### END HIDDEN TESTS

# %% [markdown]
# So a first int4 kernel gains 1.6 times at most (1.8 at the top clock) where 3.6 were promised, and one that unpacks
# into memory first can gain less than nothing. That is the engineer of the opening: Hugging Face's own report on a
# 4-bit cache that is dequantised at every step says "about 2.5×" less memory and *slower* generation as the batch
# grows. Threads from vLLM, SGLang and Intel show fp8 caches that lose, for a software conversion, an extra launch or
# a short context.
#
# **The claims.**
#
# - *FP8 halves the cache.* True with no scale per token: vLLM's pool on the L4 went from 83,488 to 166,992 tokens.
# - *INT4 quarters it.* False: 28 % in groups of 64, 31 % in groups of 32, and more with a full-precision tail.
# - *It costs less than half a point of quality.* Depends on what is asked and on who shares a scale. Your int8 run
#   above cost next to nothing, int4 with keys per token a lot. At 128k tokens an fp8 attention kernel
#   found 13 % of the needles where bf16 found 91 %, until its accumulation was mended (89 %). Measure your own task.
#
# The row for your ledger:

# %%
best = lines["int8 fused"][0] / lines["float32"][0]
fewer = per_token_bytes["int8 fused"] / per_token_bytes["float32"]
busy = any(
    timed[name][c].verdict != "ok"
    for name in ("float32", "int8 fused")
    for c in contexts
)
estimates.ledger(
    "06",
    "quantise the cache (int8, fused)",
    tpot=f"slope × {best:.2f} here{' (busy)' * busy}, bytes × {fewer:.2f}; intercept up; weights unchanged",
    ttft="unchanged or slightly worse (quantising what is new)",
    memory="÷ 2 (fp8), ÷ 3.2 to 3.6 (int4) against bf16",
    quality=f"perplexity {rise['int8 per token']:+.1f} % int8, {rise['int4 K per channel']:+.1f} % int4 K per channel, "
    f"{rise['int4 per token']:+.1f} % int4 per token",
)

# %% [markdown]
# *Sources.* vLLM documentation, quantized_kvcache.md (L4), and blog of 2026-04-22 (H100, B200, needles). KIVI, arXiv
# 2402.02750. KVQuant, arXiv 2401.18079. huggingface/blog, kv-cache-quantization.md. Threads: sgl-project/sglang
# 30815, intel/llm-scaler 666, vllm-project/vllm 48786. Measurements lie in `helpers/data/` with their sources.
