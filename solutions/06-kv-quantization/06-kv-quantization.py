# %% [markdown]
# # 06 · KV quantization
#
# ## The question
#
# An engineer turns on a 4-bit KV cache. Memory goes down, and TPOT goes **up**. A colleague has the opposite
# story: 8 bits, half the memory, and 20 % more tokens per second at 32k. A third tells of a model that no longer
# finds what it was told. All three are true. **How many bytes does a quantised cache really read, when does
# reading less make a step faster, and what does the model lose?**
#
# You will count the bytes, write the quantisers, run the real model on what they give back, and time several
# ways of reading a packed cache. (About 70 minutes.) First, the stories:

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures longer and tries more schemes

# %% tags=["setup"]
import matplotlib.pyplot as plt
import numpy as np
import torch

from helpers import check, data, drawings, estimates, plots
from helpers.friendly import say
from helpers.models.geometry import get

plots.use()

# %%
faster = data.measurement("vllm-l4-fp8")["data"][3]
slower = data.measurement("fp8-kv-slower")["data"][1]
lost = data.measurement("vllm-fp8-accuracy")["data"][0]
speed, found = "tokens/s at 32k", "% of needles found at 128k"
stories = [
    ["Qwen3-4B on an L4", speed, faster["bf16"], faster["fp8"]],
    ["27B on 2 Arc Pro B50", speed, slower["fp16_tok_s"], slower["fp8_tok_s"]],
    ["an H100", found, lost["niah_128k_bf16"], lost["fp8_before_fix"]],
]
rows = [[str(entry) for entry in story] for story in stories]
header = ["where", "what", "16-bit cache", "fp8 cache"]
estimates.Table(header, rows, "The last two have since been reported as fixed.")

# %% [markdown]
# ## Predict
#
# *Quantising* writes a number as one of a few **levels**: 256 of them in int8, 16 in int4. To turn a level back
# into a number one needs a **scale** (how far apart the levels are), and often a **zero** (the number that level 0
# stands for). A whole group of numbers shares one scale and one zero, and these are bytes too. **fp8** is a small
# floating-point number of one byte.
#
# **Exercise 06.1** (4 minutes). Llama-3.1-8B has 32 layers, 8 KV heads and a head_dim of 128; in bfloat16 the cache
# takes 131,072 bytes for each token. How many does it take under each of these schemes? Count K and V, scales and
# zeros.

# %% answer="06.1"
quantized_bytes = {  # bytes for one token, all layers
    "fp8, no scales": None,
    "int8, a 2-byte scale per token and head": None,
    "int4, groups of 64, 2-byte scale and 2-byte zero": None,
    "int4, groups of 32, 2-byte scale and 2-byte zero": None,
}
### BEGIN SOLUTION
# HINT: The 128 numbers of a key are one vector; so are those of a value. How many
#       vectors does a token have over 32 layers and 8 KV heads?
# HINT: Bytes of one vector: 128 at 8 bits; two levels share a byte at 4 bits. Then its
#       scales and zeros: how many groups of 64, or of 32, are in 128 dims?
# HINT: Each group has a scale of 2 bytes, and in the int4 schemes a zero of 2 bytes as
#       well.
# WHY: Scales and zeros are read in every step like the numbers themselves, and the
#       smaller the groups, the more of them there are.
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

earned = check.grade("06.1", quantized_bytes, points=2)
### BEGIN HIDDEN TESTS
right = {"fp8, no": 65_536, "int8, a": 66_560, "of 64": 36_864, "of 32": 40_960}
agree = [
    check.near(value, right[part], absolute=0.5)
    for name, value in quantized_bytes.items()
    for part in right
    if part in name
]
earned = min(earned, 2 * sum(agree) / 4)
### END HIDDEN TESTS
check.share(earned, 2)

# %% [markdown]
# Fewer bytes, but also more work: an engine has to quantise what is new, and unless its attention computes in the
# small type itself, it has to convert what it reads. So a quantised cache has its own line, TPOT = intercept +
# slope · context, with a smaller slope and, usually, a larger intercept. vLLM measured both lines for Llama-3.1-8B,
# batch 1 (slope in ms per token of context, intercept in ms):
#
# | GPU | bf16 slope | bf16 intercept | fp8 slope | fp8 intercept |
# |---|---|---|---|---|
# | H100 | 4.37e-5 | 6.44 | 2.37e-5 | 6.58 |
# | B200 | 1.80e-5 | 3.93 | 9.72e-6 | 3.96 |
#
# **Exercise 06.2** (4 minutes). From how many tokens of context on is fp8 the faster one? (The intercepts are rounded
# to 0.01 ms; an answer within that rounding is right.)

# %% answer="06.2"
break_even_tokens = {"H100": None, "B200": None}  # tokens of context
### BEGIN SOLUTION
# HINT: At the break-even both lines give the same time: intercept + slope · tokens,
#       twice.
# HINT: fp8 begins with more milliseconds and gains some with each token. How many
#       tokens earn the difference of the intercepts back?
# WHY: The extra intercept is paid once a step, and the saving grows with the context:
#       below the crossing fp8 costs, above it pays.
break_even_tokens = {
    "H100": (6.58 - 6.44) / (4.37e-5 - 2.37e-5),
    "B200": (3.96 - 3.93) / (1.80e-5 - 9.72e-6),
}
### END SOLUTION

# %% test="06.2" points=1
from helpers import check

check.grade("06.2", break_even_tokens)
### BEGIN HIDDEN TESTS
assert abs(float(break_even_tokens["H100"]) - 7_000) < 510, "H100 is off"
assert abs(float(break_even_tokens["B200"]) - 3_623) < 1_220, "B200 is off"
### END HIDDEN TESTS

# %% [markdown]
# ## Build
#
# The simplest quantiser is **symmetric**: 0 stays 0, the largest magnitude becomes ±127, and everything is rounded
# to the nearest level between. For a cache the usual choice is one scale for each token and head.
#
# **Exercise 06.3** (5 minutes). Write it.


# %% answer="06.3"
def quantize_int8(x):
    """Symmetric int8, one scale per token and head.

    x: float32 [batch, kv_heads, t, head_dim], no token all zero; it is left as it is.
    Returns (numbers, scale): int8 of the shape of x, and float32 [batch, kv_heads, t],
    so that numbers * scale[..., None] is x to within half a scale.

    Example: one token [-1.27, 0.5, 1.0] → numbers [-127, 50, 100], scale 0.01.
    """
    ### BEGIN SOLUTION
    # HINT: The largest magnitude of each token and head becomes 127: reduce abs() over
    #       the last dimension only.
    # HINT: scale = that ÷ 127, of shape [batch, kv_heads, t]. To divide x by it, it
    #       needs a last axis: scale[..., None].
    # HINT: Round to the nearest before .to(torch.int8), which cuts off.
    # WHY: With a scale of its own a quiet token keeps 127 steps; with a shared one the
    #       loudest token would decide for all.
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
assert torch.allclose(scale.float(), torch.tensor([[[0.01, 0.2]]]), rtol=1e-3), (
    "wrong scales"
)
### END HIDDEN TESTS

# %% [markdown]
# With only 16 levels every one counts, and keys are seldom centred on 0. An **asymmetric** quantiser spends its
# levels between the smallest and the largest number: level 0 is the minimum, the top level the maximum.
#
# **Exercise 06.4** (6 minutes). Write it for any number of bits, along any dimension.


# %% answer="06.4"
def quantize_levels(x, bits, dim):
    """Asymmetric quantisation: levels 0 … 2**bits - 1 from the minimum to the maximum
    along `dim`.

    x: float32 of any shape, nowhere constant along `dim`; it is left as it is.
    Returns (levels, scale, zero): uint8 of the shape of x; float32 scale and zero with
    `dim` kept at size 1, so that levels * scale + zero is x to within half a scale.

    Example: x = [-1.0, 0.0, 0.4, 2.0], bits 2 → levels [0, 1, 1, 3], scale 1.0,
    zero -1.0.
    """
    ### BEGIN SOLUTION
    # HINT: Minimum and maximum along `dim`, with keepdim=True, so that they can be
    #       subtracted from x as they are.
    # HINT: 2**bits levels have how many steps between the first and the last? The range
    #       divided by that is the scale; level 0 stands for the minimum.
    # HINT: levels = (x − zero) ÷ scale, rounded, as uint8.
    # WHY: All levels lie between the smallest and the largest number. A symmetric
    #       quantiser spends some of them where no number is.
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
assert torch.allclose(scale.float(), torch.ones(2, 1), rtol=1e-3), "wrong scale"
assert torch.allclose(zero.float(), torch.tensor([[-1.0], [5.0]]), rtol=1e-3), (
    "wrong zero"
)
### END HIDDEN TESTS

# %% [markdown]
# torch names 4-bit types (`torch.uint4`) and computes with none of them, so you pack by hand. Two levels share a
# byte: the **low nibble** (`byte & 15`) and the **high nibble** (`byte >> 4`). The kernels of this course want the
# first half of a head's dims in the low nibbles and the second half in the high ones, so that a whole vector is
# unpacked with one mask and one shift.
#
# **Exercise 06.5** (6 minutes). Pack them.


# %% answer="06.5"
def pack_int4(levels):
    """uint8 levels 0 … 15 [..., head_dim] → uint8 [..., head_dim/2]; byte j holds dim j
    low, dim j + head_dim/2 high.

    Example: [1, 2, 3, 4] → [1 + 16·3, 2 + 16·4] = [49, 66].
    """
    ### BEGIN SOLUTION
    # HINT: Split the last dimension in two halves: chunk(2, dim=-1), or two slices.
    # HINT: The first half stays in the low four bits. By how many bits does the second
    #       move up, and which operator puts two bit patterns together?
    # WHY: Halves, and not neighbours: unpacking with one mask and one shift gives two
    #       vectors that are contiguous already.
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
# Unpacking is one line, `torch.cat((packed & 15, packed >> 4), dim=-1)`: all that a kernel does to each byte that it
# reads before it can scale and multiply.
#
# Before you decide who shares a scale, look at what is to be quantised: the keys and values that the real model
# computes. The next cell loads it and lets it read some of the Python documentation into an exact cache. (It also
# keeps, for later, how well the model foresaw each next token: its perplexity.) The cell after it draws the mean
# magnitude of each dim of one head, and prints how far the largest stands out in all of them.

# %%
from helpers.clock import devices
from helpers.models import pretrained, text
from helpers.caches import FullCache
from helpers.quality.perplexity import perplexity

spot = devices.pick(device)
model, tokenizer = pretrained.load(device=spot)
length = 1_536 if budget == "quick" else 2_048  # tokens of the text
tokens = text.tokens(length + 1, tokenizer).to(spot)
cache = FullCache(model.geometry, length, device=spot)
exact = perplexity(model, cache, tokens)

# %% jupyter={"source_hidden": true}
layer, head = 15, 0
_, panels = plt.subplots(1, 2, figsize=(10.5, 3.8), sharey=True)
for ax, name in zip(panels, ("keys", "values"), strict=True):
    magnitude = (
        getattr(cache, name)[:, 0].abs().mean(dim=2).cpu()
    )  # [layers, kv_heads, head_dim]
    stands_out = magnitude.amax(-1) / magnitude.median(-1).values
    print(
        f"{name}: the largest dim is {stands_out.median():.1f} times the median one "
        "(median of all heads)"
    )
    colour = plots.BLUE if name == "keys" else plots.ORANGE
    ax.bar(range(64), magnitude[layer, head], color=colour)
    ax.set_title(f"{name}: largest ÷ median {stands_out[layer, head]:.1f}")
    ax.set_xlabel("dim of the head (index)")
_ = panels[0].set_ylabel("mean magnitude (model units)")

# %% [markdown]
# A few **channels** (dims of the head) of the keys are many times larger than the rest, for every token alike. The
# values of this head have nothing like it. If a token's 64 key dims share one scale, the outlier decides how far
# apart the levels are, and each of the other dims has only a few of the 16 levels left.
#
# The way out, as in KIVI: let a **channel** share a scale across a block of tokens. Then an outlier channel has a wide
# scale of its own and harms no other. Values stay per token. (KVQuant, too, quantises keys per channel, but *before*
# rotation, which mixes pairs of channels.)
#
# **Exercise 06.6** (6 minutes). Write what such a cache gives back. `unflatten` splits a dimension: a tensor [b, h, t,
# d] with `.unflatten(2, (-1, size))` becomes [b, h, t/size, size, d], and `.flatten(2, 3)` undoes it.


# %% answer="06.6"
def restore_kv(k, v, bits=4, size=32):
    """Quantise, then dequantise: keys per channel over `size` tokens,
    values per token over `size` dims.

    k, v: [batch, kv_heads, t, head_dim]; `size` divides t and head_dim. Returns (k, v)
    as they would be read back.
    Use your quantize_levels.
    """
    ### BEGIN SOLUTION
    # HINT: Keys: split the tokens into blocks with unflatten(2, (-1, size)). Along
    #       which dimension of [b, h, blocks, size, d] does a channel lie within its
    #       block?
    # HINT: quantize_levels along that dimension, then levels * scale + zero, then
    #       flatten(2, 3).
    # HINT: Values: the same with dimension 3 split. Which dimension now holds the
    #       `size` dims of one token?
    # WHY: A loud channel then shares its scale only with itself over time, and a loud
    #       token only with itself over its dims.
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
assert torch.allclose(back.float(), grid, rtol=0.01, atol=0.05), (
    "keys: each dim has its own scale in each block of tokens"
)
mirror = (
    grid.mT.contiguous()
)  # 4 tokens, 8 dims: in each group a token lies on 4 levels of its own
_, back = restore_kv(mirror, mirror, bits=2, size=4)
assert torch.allclose(back.float(), mirror, rtol=0.01, atol=0.05), (
    "values: each token has its own scale in each group of dims"
)
between = torch.tensor([[0.4], [0.0], [0.0], [0.0]]).repeat(2, 4)[None, None] + grid
back_k, back_v = restore_kv(between, between, bits=2, size=4)
gone = [float((back - between).abs().max()) for back in (back_k, back_v)]
assert min(gone) > 0.1, "2 bits have 4 levels: what lies between them is lost"
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 06.7** (4 minutes). Now count for any scheme: `bits` for each number, and for each `group` of numbers
# `extra_bytes`, scale and zero together. Your function is held against the tensors of real caches.


# %% answer="06.7"
def quantized_bytes_per_token(geometry, bits, group, extra_bytes):
    """Bytes of cache for one token: all layers, K and V, scales and zeros included.

    Example: SmolLM2-135M, 8 bits, groups of 64, 4 extra bytes → 12,240.
    """
    ### BEGIN SOLUTION
    # HINT: How many numbers does a token have: K and V, layers, KV heads, head_dim?
    # HINT: Each number has bits ÷ 8 bytes of its own, and its share of the extra bytes
    #       of its group. No //, since 4 // 8 is 0.
    # WHY: Bytes per number are bits ÷ 8 + extra bytes ÷ group: the second term is what
    #       an article that says 'a quarter' leaves out.
    numbers = 2 * geometry.layers * geometry.kv_heads * geometry.head_dim
    return numbers * (bits / 8 + extra_bytes / group)
    ### END SOLUTION


# %% test="06.7" points=2
from helpers import check

check.grade("06.7", quantized_bytes_per_token)
### BEGIN HIDDEN TESTS
llama = get("Llama-3.1-8B")
small = get("SmolLM2-135M")
for model_shape, scheme, expect in (
    (llama, (4, 64, 4), 36_864),
    (llama, (3, 32, 4), 32_768),
    (small, (8, 64, 4), 12_240),
    (get("Qwen3-4B"), (4, 32, 4), 46_080),
):
    counted = float(quantized_bytes_per_token(model_shape, *scheme))
    assert abs(counted - expect) < 0.5, f"bits, group, extra bytes {scheme}"
### END HIDDEN TESTS

# %% [markdown]
# One row of your format: the first 16 numbers of a real key, as levels in nibbles, as bytes, and with the scale and the
# zero that they share.

# %% jupyter={"source_hidden": true}
piece = cache.keys[15, 0, 0, 100, :16][None].cpu()
levels, scale, zero = quantize_levels(piece, 4, 1)
packed = pack_int4(levels)
low, high = (part.tolist() for part in levels[0].chunk(2))
rows = {
    "dims 0 to 7": [(f"{x:.1f}", "number") for x in piece[0, :8].tolist()],
    "low nibbles": [(str(level), "low") for level in low],
    "dims 8 to 15": [(f"{x:.1f}", "number") for x in piece[0, 8:].tolist()],
    "high nibbles": [(str(level), "high") for level in high],
    "bytes": [(str(byte), "byte") for byte in packed[0].tolist()],
    "shared": [(f"{float(scale):.2f}", "scale"), (f"{float(zero):.1f}", "zero")],
}
legend = {"number": "what the model computed", "low": "level, low nibble"}
legend |= {"high": "level, high nibble", "byte": "stored: low + 16 · high"}
legend |= {"scale": "stored: scale", "zero": "stored: zero"}
_ = drawings.boxes(
    rows, legend, title=f"16 numbers in {packed.nbytes} bytes, scale and zero"
)

# %% [markdown]
# ## Measure
#
# First the error of the cache itself. Your `quantize_levels`, on the real keys and values of all layers: how far is
# what comes back from what was stored, relative to its size? The plot has one line for each choice of who shares.


# %%
def relative_error(x, dim, bits, size=32):
    """Error in % of the norm; x [layers, batch, kv_heads, t, head_dim],
    scales shared along `dim`."""
    parts = x.unflatten(dim, (-1, size))
    levels, scale, zero = quantize_levels(parts, bits, dim + 1)
    return 100 * float((levels * scale + zero - parts).norm() / parts.norm())


bits = [2, 3, 4, 8]
stored = {"keys": cache.keys[..., :length, :], "values": cache.values[..., :length, :]}
errors = {}
for name, x in stored.items():
    errors[f"{name} per token"] = [relative_error(x, 4, b) for b in bits]
    errors[f"{name} per channel"] = [relative_error(x, 3, b) for b in bits]

# %% jupyter={"source_hidden": true}
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
# And is an error of a few per cent a lot? Ask the model: its perplexity on the same text, from token 512 on, with
# each token reading back what the scheme gives.
#
# One scheme is new. **fp8 e4m3** spends its byte as a small floating-point number: a sign, 4 bits of exponent, 3 bits
# of mantissa. It reaches ±448, and rounding is off by at most 1/16 of each number (from 2⁻⁶ up), whatever its
# neighbours are. As a format to *store* in it works anywhere, converted in software where the chip knows no fp8.
#
# First your guesses. fp8 and int8 both take one byte a number, and two schemes take 4 bits. How much worse than the
# exact cache is each, in %?

# %%
guesses = {  # % more perplexity: change them before you run the next cell
    "fp8": 1.0,
    "int8 per token": 1.0,
    "int4 per token": 5.0,
    "int4 K per channel": 5.0,
}
as_it_came = [1.0, 1.0, 5.0, 5.0]  # a guess that you leave is not kept as yours
for (name, guess), default in zip(guesses.items(), as_it_came, strict=True):
    estimates.predict(f"06.ppl_rise_{name.replace(' ', '_')}", guess, "%", default)

# %%
from helpers.caches import RoundTripCache
from helpers.clock import recordings, sweeps
from helpers.kernels import quantize


# %%
def per_token(x, bits, size=64):
    """One tensor of keys or values, each token in groups of `size` dims."""
    levels, scale, zero = quantize_levels(x.unflatten(3, (-1, size)), bits, 4)
    return (levels * scale + zero).flatten(3, 4)


def int8(x):
    numbers, scale = quantize_int8(x)
    return numbers * scale[..., None]


def fp8(x):  # by way of the CPU, since torch has no fp8 on MPS
    return quantize.to_fp8(x.cpu()).float().to(x.device)


# %%
schemes = {  # what is read back of the keys k and values v that came
    "fp8": lambda k, v: (fp8(k), fp8(v)),
    "int8 per token": lambda k, v: (int8(k), int8(v)),
    "int4 per token": lambda k, v: (per_token(k, 4), per_token(v, 4)),
    "int4 K per channel": lambda k, v: restore_kv(k, v, 4, 64),
}
if budget == "full":
    schemes["int4 K per channel, 32"] = restore_kv
    schemes["int3 K per channel"] = lambda k, v: restore_kv(k, v, 3, 64)
    schemes["int2 K per channel"] = lambda k, v: restore_kv(k, v, 2, 64)
    schemes["int2 per token"] = lambda k, v: (per_token(k, 2), per_token(v, 2))

# %% [markdown]
# Perplexity under each scheme (some four seconds a scheme on two idle cores), and how far it is above that of the exact
# cache, which was kept when the model was loaded.

# %%
from tqdm import tqdm
import sys

rise = {}  # % above the exact cache
for name, restore in tqdm(schemes.items(), desc="perplexity", file=sys.stdout):
    held = RoundTripCache(model.geometry, length, restore, device=spot)
    above = 100 * (perplexity(model, held, tokens) / exact - 1)
    rise[name] = round(above, 1) + 0.0  # no minus before a zero
for name in guesses:
    estimates.measured(f"06.ppl_rise_{name.replace(' ', '_')}", rise[name])

# %% jupyter={"source_hidden": true}
_ = plots.bars(
    None,
    [name.replace(" ", "\n", 1) for name in rise],
    list(rise.values()),
    ylabel="perplexity above exact (%)",
    title=f"SmolLM2-135M, {len(tokens) - 512:,} tokens; exact {exact:.2f}",
    form="{:+.1f}",
)

# %% [markdown]
# At 4 bits, who shares the scale matters more than whether there are 4 bits or 8. And for the same byte fp8 loses more
# than int8. Why? Compare what each does to the cache itself; then give fp8 a scale for each token, too.


# %%
def fp8_scaled(x):
    scale = x.abs().amax(dim=-1, keepdim=True) / 448
    return fp8(x / scale) * scale


rows = []
for name, back in (("int8", int8), ("fp8", fp8), ("fp8, scaled", fp8_scaled)):
    for what, x in stored.items():
        x = x.flatten(0, 1)
        missed = 100 * float((back(x) - x).norm() / x.norm())
        rows.append([name, what, f"{missed:.2f} %"])
estimates.Table(["one byte a number", "of", "error (% of the norm)"], rows)

# %% [markdown]
# The scale changes little: with 3 bits of mantissa each number is off by up to 1/16 of itself, however it is scaled.
# int8 has 127 even steps up to the largest number of the token, off by at most half a step: finer than fp8 for every
# number above about an eighth of the largest, and these hold most of the norm.
# What a scale is for in fp8 is its *range*: beyond 448 numbers are clipped, and below 2⁻⁶ the steps get coarser.
# Nearly all numbers of this model lie within it. vLLM's default is a scale of 1 too, and its documentation recommends to **calibrate**
# scales on sample text; where values did exceed the range (vllm-project/vllm#54705), that won back about half of what
# was lost on MATH-500, though within the noise of three runs. When the weights change, the scales have to follow:
# verl-project/verl#4435 computes them anew after each step of training.
#
# Now time. A packed cache can be read in two ways. **Naive**: dequantise all of it into full precision, then
# attend. **Fused**: the attention kernel reads the packed bytes and converts them in registers. The bytes at rest are
# the same. (A device without kernels of its own, such as MPS, has no fused form, and on CUDA keys per channel have
# none: their label says so.)
#
# The caches below keep their scales and zeros in 4 bytes each, so that int4 in groups of 64 takes 5 bits a number and
# not the 4.5 of exercise 06.1 (and a little more per channel, where up to 64 keys wait in full precision for their block
# to fill). Both int4 schemes whose perplexity you just saw are timed. On a CUDA GPU a step serves as many sequences as
# fit, 16 at most: with one, weights and launches would hide what a cache saves. The prediction comes from bytes alone,
# for one step at the longest context; then the steps are timed, and a folded cell draws them.

# %%
from helpers.caches import Fp8Cache, Int4ChannelCache, Int4TokenCache, Int8Cache
from helpers.models.counts import kv_bytes

card = devices.card(spot)
contexts = [512, 2_048, 4_096] if budget == "quick" else [512, 2_048, 4_096, 8_192]
size = {"capacity": contexts[-1] + 64, "device": spot}
row_bytes = 2.1 * kv_bytes(model.geometry, size["capacity"], dtype=model.dtype)  # all
most = 16 if spot.type == "cuda" else 1  # sequences
size["batch"] = batch = sweeps.largest_batch(model, row_bytes, most, budget)

# %%
channel = Int4ChannelCache(model.geometry, group=64, block=64, **size)
caches = {
    "float32": FullCache(model.geometry, **size),
    "int8 naive": Int8Cache(model.geometry, fused=False, **size),
    "int8 fused": Int8Cache(model.geometry, **size),
    "int4 per token": Int4TokenCache(model.geometry, group=64, **size),
    "int4 K per channel" + ", naive" * (not channel.fused): channel,
}
if (e4m3 := Fp8Cache(model.geometry, **size)).fused:  # only where the chip reads fp8
    caches["fp8 fused"] = e4m3

# %%
per_token_bytes = {
    name: held.nbytes / size["capacity"] / batch for name, held in caches.items()
}
rows = []
for name, each in per_token_bytes.items():
    read = model.weight_bytes + batch * contexts[-1] * each
    floor = 1e3 * read / card.read_bytes_per_second
    estimates.predict(f"06.tpot_ms_{name.replace(' ', '_')}", floor, "ms")
    bits = 32 * each / per_token_bytes["float32"]
    rows.append([name, f"{bits:.1f}", f"{each:,.0f}", f"{floor:.1f} ms"])
header = ["cache", "bits per number", "bytes a token", f"step at {contexts[-1]:,}"]
estimates.Table(header, rows, f"A step of {batch} sequence{'s' * (batch > 1)}.")

# %% jupyter={"source_hidden": true}
streams = {}
for name, held in caches.items():
    if "naive" in name:  # reads copies as well
        continue
    full = {"keys": held.keys, "values": held.values} if name == "float32" else {}
    tensors = full or held.stored
    total = sum(tensor.nbytes for tensor in tensors.values())
    streams[name] = {"weights": model.weight_bytes, "keys": 0, "values": 0, "scales": 0}
    for what, tensor in tensors.items():
        part = "keys" if what in ("k", "keys") else "values"
        part = "scales" if "_" in what else part
        streams[name][part] += held.step_bytes(contexts[-1]) * tensor.nbytes / total
title = f"What a step reads at batch {batch}, {contexts[-1]:,} tokens"
_ = drawings.step_bytes(streams, title=title)

# %%
engines = {name: (model, held) for name, held in caches.items()}
timed = sweeps.decode_sweep(engines, contexts, budget)
measured = {name: np.array([timed[name][c].ms for c in contexts]) for name in caches}
spread = {name: [timed[name][c].spread_ms for c in contexts] for name in caches}
for name in caches:
    left = "copies written and read again" if "naive" in name else "perhaps conversion"
    left = "perhaps launches and the kernel" if name == "float32" else left
    last = timed[name][contexts[-1]]
    key = f"06.tpot_ms_{name.replace(' ', '_')}"
    estimates.measured(key, last.ms, residual=left, verdict=last.verdict)
reasons = {timed[name][c].reason for name in caches for c in contexts} - {""}
say(*sorted(reasons))

# %% jupyter={"source_hidden": true}
ax = plots.curve(
    None,
    contexts,
    measured,
    spread=spread,
    xlabel="context (tokens)",
    ylabel="TPOT (ms)",
    title=f"{len(caches)} ways to read a cache, batch {batch} ({card.name})",
)
recordings.beside(ax, batch, contexts[-1], spot.type)
_ = ax.set_ylim(0, 1.5 * ax.get_ylim()[1])  # room for the legend

# %% [markdown]
# Which of the stories does each line tell? Below float32 at the right end: less memory *and* less time. Above it: less
# memory, paid for *with* time. And int4, with the fewest bytes of all: is it faster than int8? Fit the lines and let them
# say where they cross. (A slope below zero says that the machine was too busy to be measured: run the two cells above
# again.)

# %%
lines = {name: np.polyfit(contexts, measured[name], 1) for name in caches}


def crossing(name):
    """From which context on the line of `name` lies below that of float32."""
    saved = lines["float32"][0] - lines[name][0]
    extra = lines[name][1] - lines["float32"][1]
    return f"{max(0, extra / saved):,.0f} tokens" if saved > 0 else "never"


# %%
rows = []
for name, (slope, intercept) in lines.items():
    each = batch * per_token_bytes[name]
    rate = f"{each / slope / 1e6:.1f} GB/s" if slope > 0 else "busy"
    line = [f"{1e3 * slope:.2f} µs", f"{intercept:.1f} ms", rate]
    rows.append([name, *line, "—" if name == "float32" else crossing(name)])
header = ["cache", "slope, per token", "intercept", "bytes ÷ slope", "faster from"]
estimates.Table(header, rows)

# %% [markdown]
# Compare the column of rates. Where a packed cache is read at *fewer* bytes per second than the float32 one, bytes fall
# faster than time, and something other than reading takes its share. What that is, a rate cannot say; the last exercise
# looks at one suspect.
#
# And compare the two int4 lines, which read about the same bytes. The scheme that is kinder to the model is harder to read
# fast. A scale of a *token* multiplies the score of that token, one number for a whole key. A scale of a *channel* belongs
# inside the product: a kernel has to restore a tile of keys first, as the one of this course does on a CPU, or to fold
# the scales into the query, once for each block.
#
# **Whether fewer bytes win depends on the processor, too.** A number that was read is converted once, and then multiplied
# once for each query head that shares it. Packing leaves all of that arithmetic as it is, so with more heads a KV head it
# sooner takes as long as reading. With four, int4 took 0.79 of float32's time on the AMD EPYC of this course's recordings
# and 1.22 times it on an Intel Xeon. (Its last-level cache of 300 MB has room for the 67 MB of keys and values below:
# perhaps float32 did not come from memory there, so that fewer bytes saved less.) On your CPU? Attention alone, over
# 16,384 tokens of 8 KV heads, whatever the device above:

# %%
from functools import partial

from helpers import kernels
from helpers.clock.timing import Clock
from helpers.kernels import quantize

on_cpu, far = kernels.select("cpu"), 16_384
pair = torch.randn(2, 1, 8, far, 64)  # keys and values
as_int8 = [part for x in pair for part in quantize.int8_per_token(x)]
(k4, *k_grid), (v4, *v_grid) = (quantize.per_token(x, 4, 64) for x in pair)
pack = quantize.pack_int4
as_int4 = [pack(k4), k_grid[0], pack(v4), v_grid[0], far, k_grid[1], v_grid[1]]

# %%
attends = {}
for heads in (1, 4):
    q = torch.randn(1, 8 * heads, 64)
    attends["float32", heads] = partial(on_cpu.decode_attention, q, *pair, far)
    attends["int8", heads] = partial(on_cpu.decode_attention_int8, q, *as_int8, far)
    attends["int4", heads] = partial(on_cpu.decode_attention_int4, q, *as_int4)
alone = Clock("cpu").sweep(attends, {"quick": 2.0, "full": 8.0}[budget])
rows = []
for heads in (1, 4):
    took = {name: alone[name, heads].median for name in ("float32", "int8", "int4")}
    parts = [f"{took[name] / took['float32']:.2f}" for name in ("int8", "int4")]
    rows.append([f"{heads}", *parts, min(took, key=took.get)])
say(*sorted({t.reason for t in alone.values()} - {""}))
columns = ["query heads a KV head", "int8 ÷ float32", "int4 ÷ float32", "fastest here"]
estimates.Table(columns, rows)

# %%
estimates.report("06")

# %% [markdown]
# ## Explain
#
# **A published gain, from bytes.** vLLM served Qwen3-4B on an L4 with a bf16 and an fp8 cache. The step reads
# 8.0445e9 bytes of weights; each token adds 147,456 bytes of cache in bf16 and half of that in fp8. If time is bytes,
# the bandwidth cancels.
#
# **Exercise 06.8** (4 minutes). By how many per cent do tokens per second rise with fp8, at 2,048 and at 32,768
# tokens? (To two decimals.)

# %% answer="06.8"
fp8_gain = {2_048: None, 32_768: None}  # % more tokens per second
### BEGIN SOLUTION
# HINT: Tokens per second are 1 ÷ time, and time is bytes ÷ bandwidth. What is left of
#       the bandwidth in a ratio of two speeds?
# HINT: (weights + context · 147,456) ÷ (weights + context · half of that). The gain in
#       per cent is what this has above 1, times 100.
# WHY: The weights are not in fp8. At short contexts they are nearly all that is read,
#       and halving the rest gains little.
fp8_gain = {
    context: 100 * ((8.0445e9 + context * 147_456) / (8.0445e9 + context * 73_728) - 1)
    for context in (2_048, 32_768)
}
### END SOLUTION

# %% test="06.8" points=2
from helpers import check

check.grade("06.8", fp8_gain)
### BEGIN HIDDEN TESTS
assert abs(float(fp8_gain[2_048]) - 1.843) < 0.02, "the gain at 2,048 is off"
assert abs(float(fp8_gain[32_768]) - 23.09) < 0.13, "the gain at 32,768 is off"
### END HIDDEN TESTS

# %% [markdown]
# And what was published? The next cell fits a line to each of the two caches, and the folded one draws the gain against
# yours.

# %%
l4 = [row for row in data.measurement("vllm-l4-fp8")["data"] if "ctx" in row]
x = [row["ctx"] for row in l4]
for kind in ("bf16", "fp8"):
    slope, intercept = np.polyfit(x, [1e3 / row[kind] for row in l4], 1)
    print(f"{kind}: {1e6 * slope:.0f} ns per token + {intercept:.2f} ms")

# %% jupyter={"source_hidden": true}
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
# Bytes give the ceiling, your 06.8; vLLM measured 1.0 to 20.6 %. What is missing? Not conversion: a line through the
# published points has half the slope with fp8 (50.7 % of bf16's), as its bytes say. fp8 has 0.24 ms more of intercept;
# and if the intercept is all weights, these arrive at 242 GB/s where the cache arrives at 264, so that weights take a
# larger share of the step than of its bytes. (The source rounds to 0.1 tokens per second.)
#
# **When instructions are the limit.** A GPU core can also run out of *instructions*. On an H200 each byte that
# arrives from memory leaves time for about 6.2 instructions of one thread (132 SMs × 128 lanes × 1.755 GHz ÷ 4.8
# TB/s; the clock is an assumption, its top of 1.98 GHz would make it 7.0). A straightforward int4 kernel spends 7.7
# on each number: shift, mask, convert, scale, multiply, add. (Counted in code compiled for the H200, not timed; a
# recount gave 6.7 to 9.7, depending on the size of its tiles.) A bf16 number is 2 bytes, and its kernel is limited by
# them.
#
# **Exercise 06.9** (6 minutes). Attention over an int4 cache of 4.5 bits per number (16 levels, groups of 64, 2-byte
# scale and zero), against bf16: how many times faster would it be if only bytes counted? And how many times at most,
# when each number costs 7.7 instructions?

# %% answer="06.9"
int4_speedup = {"by bytes": None, "by instructions": None}  # times faster than bf16
### BEGIN SOLUTION
# HINT: By bytes: how many bits does a number have in each of the two caches?
# HINT: A bf16 number arrives in the time of 2 bytes. For how many instructions is there
#       time meanwhile, at 6.2 a byte?
# HINT: If each int4 number needs 7.7 instructions, how many int4 numbers are done in
#       that time?
# WHY: The slower of bytes and instructions sets the pace. Fewer bits make the first
#       faster and leave the second as it is.
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
# So a first int4 kernel gains no more than the second of your numbers (at the top clock an eighth more), where bytes
# promise the first. Even that is optimistic: an SM of this GPU has 128 lanes for floating point and 64 for integers,
# which do the shifts and masks. A kernel that multiplies scores and weights by the scales, and not the keys and values,
# needs 4.4 instructions a number (counted in the one of this course). And one that unpacks into memory first can gain
# less than nothing: Hugging Face's post on its 4-bit cache speaks of "roughly an x2.5 memory saving" and of a speed
# that "starts to decrease with higher batch sizes".
#
# fp8 caches have lost as well, each for a reason of its own: on an H200 at small batch and short context, where K, V and
# the query were converted by operations of their own (sgl-project/sglang#30815, open); on two Arc Pro B50 at *long*
# context, 9.9 against 15.9 tokens per second at 32k (intel/llm-scaler#666, fixed in the next build). So measure before
# and after.
#
# **What engines add.**
#
# - *A window in full precision.* KIVI and Hugging Face's cache keep the newest tokens exact (Hugging Face: up to 128) and
#   quantise them later. A channel has to wait for its block anyway, and the newest tokens are the ones most looked
#   at. The cost: bytes that no quantiser saves, and nearly all of them in a short chat.
# - *Layers left out.* A windowed layer (unit 04) has few rows to shrink and pays for quantising all the same. On gpt-oss-20b
#   full fp8 paid off from 22,109 tokens on; with the windowed layers kept in bf16, from 7,659 (vLLM, H100).
# - *Scales that are calibrated*, for each layer or each head, as above.
#
# **The claims.**
#
# - *FP8 halves the cache.* True with no scale per token: vLLM's pool on the L4 went from 83,488 to 166,992 tokens.
# - *INT4 quarters it.* False: 28 % in groups of 64, 31 % in groups of 32, and more with a window in full precision.
# - *It costs less than half a point of quality.* That depends on the model, on the task and on who shares a scale.
#   Hugging Face shared per token for both, and saw almost no loss with Llama-2-7B-chat; your run above lost a lot that way.
#   At 128k tokens an fp8 attention kernel found 13 % of the needles where bf16 found 91 %, until its accumulation was
#   mended (89 %). Measure your own task.
#
# The row for your ledger:

# %%
best = lines["int8 fused"][0] / lines["float32"][0]
fewer = per_token_bytes["int8 fused"] / per_token_bytes["float32"]
later = lines["int8 fused"][1] - lines["float32"][1]
verdicts = [timed[n][c].verdict for n in ("float32", "int8 fused") for c in contexts]
busy = " (busy)" * any(verdict != "ok" for verdict in verdicts)
estimates.ledger(
    "06",
    "quantise the cache (int8, fused)",
    tpot=f"here slope × {best:.2f}{busy} for bytes × {fewer:.2f}, intercept "
    f"{later:+.1f} ms; weights unchanged",
    ttft="not measured here; +2 to +5 % on an A100 (vllm-project/vllm#42058)",
    memory="÷ 2 (fp8), ÷ 3.2 to 3.6 (int4) against bf16",
    quality=", ".join(f"{rise[n]:+.1f} % {n}" for n in guesses) + " (perplexity)",
)

# %% [markdown]
# *Sources.* L4: vllm-project/vllm pull request 49050, for docs/features/quantization/quantized_kvcache.md, which also
# tells of calibration. vLLM blog of 2026-04-22 (H100, B200, needles, windowed layers). KIVI, arXiv 2402.02750. KVQuant,
# arXiv 2401.18079. huggingface/blog, kv-cache-quantization.md.
# Measurements lie in `helpers/data/` with their sources.
