# %% [markdown]
# # 03 · GQA and MLA: who shares a key
#
# ## The question
#
# A chat service moves to a model with 8 KV heads where the old one had 64. The dashboard shows what was promised: a
# session's KV cache is 8 times smaller, and 8 times as many fit. But a long session is no faster than before. A
# vendor offers yet another model, whose cache is "10 to 100 times smaller". **Which kind of sharing shrinks the bytes
# that a step *reads*, by how much, and what does the kernel (the function that runs on the device) have to do before
# fewer bytes become less time?**
#
# The first cell shows how much depends on the kernel: one small cache, read in two ways with the same answer. You will
# then count, write both mechanisms yourself, run them in the real decoder, and meet a case where bytes are not what
# takes the time. (About 75 minutes.)

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures longer

# %% tags=["setup"]
import matplotlib.pyplot as plt
import numpy as np
import torch

from helpers import check, data, drawings, estimates, plots
from helpers.models.counts import kv_bytes
from helpers.models.geometry import get

plots.use()

# %%
from helpers import kernels
from helpers.clock import devices, timing

spot = devices.pick(device)
attend = kernels.select(spot).decode_attention
kv = torch.randn(2, 1, 2, 8_192, 128, device=spot)  # keys and values of 2 KV heads
q = torch.randn(1, 16, 128, device=spot)  # a token's 16 query heads share them


def shared():
    return attend(q, *kv, 8_192)


def repeated():
    return attend(q, *kv.repeat_interleave(8, dim=2), 8_192)  # 16 KV heads: copies


race = timing.Clock(spot).compare(shared, repeated, budget_seconds=1, min_pairs=10)
print(f"copying each KV head for its query heads first: {race.ratio:.1f} times as long")

# %% [markdown]
# ## Predict
#
# Four ways to cache a token. **MHA** (multi-head attention): each query head has a KV head of its own. **GQA**
# (grouped-query): a group of query heads shares one. **MQA** (multi-query): all share one. **MLA** (multi-head latent
# attention, DeepSeek): a layer stores neither keys nor values, but one short vector, the **latent**, of `kv_lora_rank`
# elements, from which every head could make its key and its value. Beside it lies one **rotary key** of
# `qk_rope_head_dim` elements, which carries the position: queries and keys are rotated by angles that grow with the
# position of their token (RoPE). All heads share both.
#
# | model | attention | layers | hidden | query heads | KV heads | head_dim | latent + rotary key |
# |---|---|---|---|---|---|---|---|
# | Llama-2-7b-hf | MHA | 32 | 4,096 | 32 | 32 | 128 | |
# | Llama-4-Maverick-17B-128E | GQA | 48 | 5,120 | 40 | 8 | 128 | |
# | gpt-oss-120b | GQA | 36 | 2,880 | 64 | 8 | 64 | |
# | falcon-7b | MQA | 32 | 4,544 | 71 | 1 | 64 | |
# | DeepSeek-V2-Lite | MLA | 27 | 2,048 | 16 | | | 512 + 64 |
# | DeepSeek-V3 | MLA | 61 | 7,168 | 128 | | | 512 + 64 |
#
# **Exercise 03.1** (6 minutes). How many bytes does one token add to each cache, over all layers, in bfloat16 (2 bytes
# an element)? Let every layer keep every token. Python may do the arithmetic.

# %% answer="03.1"
kv_bytes_of = {  # bytes for one token, all layers, bfloat16
    "Llama-2-7b-hf": None,
    "Llama-4-Maverick-17B-128E": None,
    "gpt-oss-120b": None,
    "falcon-7b": None,
    "DeepSeek-V2-Lite": None,
    "DeepSeek-V3": None,
}
### BEGIN SOLUTION
# HINT: For the first four models, count as in 02.1: a key and a value for each KV head,
#       in every layer. Do query heads leave anything in the cache?
# HINT: With MLA a layer keeps one row for a token, for all heads together. Which two
#       things lie in it? Is either of them there twice?
# HINT: head_dim stands in the table: do not divide hidden by the query heads. Last come
#       the layers and 2 bytes.
# WHY: GQA and MQA shrink the number of vectors that are kept; MLA replaces all of them
#       by one row, which serves as key and as value.
kv_bytes_of = {
    # K and V · layers · KV heads · head_dim · bytes
    "Llama-2-7b-hf": 2 * 32 * 32 * 128 * 2,
    "Llama-4-Maverick-17B-128E": 2 * 48 * 8 * 128 * 2,
    "gpt-oss-120b": 2 * 36 * 8 * 64 * 2,
    "falcon-7b": 2 * 32 * 1 * 64 * 2,
    "DeepSeek-V2-Lite": 27 * (512 + 64) * 2,  # layers · row · bytes
    "DeepSeek-V3": 61 * (512 + 64) * 2,
}
### END SOLUTION

# %% test="03.1" points=3
from helpers import check

earned = check.grade("03.1", kv_bytes_of, points=3)
### BEGIN HIDDEN TESTS
right = {
    "Llama-2-7b-hf": 524_288,
    "Llama-4-Maverick-17B-128E": 196_608,
    "gpt-oss-120b": 73_728,
    "falcon-7b": 8_192,
    "DeepSeek-V2-Lite": 31_104,
    "DeepSeek-V3": 70_272,
}
agree = [
    check.near(kv_bytes_of[name], value, absolute=1) for name, value in right.items()
]
earned = min(earned, 3 * sum(agree) / 6)
### END HIDDEN TESTS
check.share(earned, 3)

# %% [markdown]
# **Exercise 03.2** (6 minutes). Three popular sentences: "GQA-8 shrinks the cache 8 times", "Maverick has GQA-8, so 8
# times", "MLA shrinks it 10 to 100 times". Work out four factors for one layer:
#
# - Llama-4 Maverick: its 8 KV heads, against 40 query heads that keep their own.
# - DeepSeek-V3's row of 512 + 64, against its own 128 heads expanded: 192 elements a key (128 + 64 rotary), 128 a
#   value.
# - The same row, against GQA with 8 KV heads of 128, and against MQA with one of 128.
#
# A factor above 1 says how many times smaller the cache becomes; below 1, it becomes larger.

# %% answer="03.2"
times_smaller = {  # cache without ÷ cache with
    "Maverick: GQA over MHA": None,
    "V3: MLA over its own 128 heads": None,
    "V3: MLA over GQA-8": None,
    "V3: MLA over MQA": None,
}
### BEGIN SOLUTION
# HINT: Each factor is a ratio of elements per layer and token. Layers and bytes per
#       element cancel.
# HINT: Elements of GQA: 2 · KV heads · head_dim. Of V3's own heads: 128 · (element of a
#       key + elements of a value), and a key has its rotary part as well.
# HINT: The row of 512 + 64 stands below the fraction line in three of the four. Should
#       all four come out above 1?
# WHY: A factor means nothing without its baseline: the same row is 71 times smaller
#       than one cache and more than twice as large as another.
times_smaller = {
    "Maverick: GQA over MHA": 40 / 8,
    "V3: MLA over its own 128 heads": 128 * (192 + 128) / 576,
    "V3: MLA over GQA-8": 2 * 8 * 128 / 576,
    "V3: MLA over MQA": 2 * 1 * 128 / 576,
}
### END SOLUTION

# %% test="03.2" points=2
from helpers import check

earned = check.grade("03.2", times_smaller, points=2)
### BEGIN HIDDEN TESTS
right = {
    "Maverick: GQA over MHA": 5.0,
    "V3: MLA over its own 128 heads": 71.11,
    "V3: MLA over GQA-8": 3.556,
    "V3: MLA over MQA": 0.4444,
}
agree = [
    check.near(times_smaller[name], value, rel=0.016) for name, value in right.items()
]
earned = min(earned, 2 * sum(agree) / 4)
### END HIDDEN TESTS
check.share(earned, 2)

# %% [markdown]
# Ten models, from their configs, beside what they would store if every query head kept a key and a value of its own.
# How many of them are "8 times"?

# %% jupyter={"source_hidden": true}
rows = []
ten = [*kv_bytes_of, "Llama-3.1-8B", "Llama-3.1-70B", "Qwen2.5-7B", "Kimi-K2"]
for name in ten:
    g = get(name)
    wide = g.head_dim + g.mla.v_head_dim if g.mla else 2 * g.head_dim  # key and value
    own, stored = 2 * g.layers * g.q_heads * wide, kv_bytes(g, tokens=1)
    sizes = [f"{own:,}", f"{stored:,}", f"{own / stored:.1f}"]
    rows.append([name, g.attention.upper(), *sizes])
columns = ["model", "kind", "B/token, every head its own"]
estimates.Table([*columns, "B/token, stored", "times smaller"], rows)

# %% [markdown]
# **Exercise 03.3** (5 minutes). DeepSeek-V2 advertises a KV cache **93.3 % smaller** than DeepSeek-67B's. The older
# model has 95 layers with 8 KV heads of 128, in bfloat16. V2 has 60 layers of 512 + 64 elements. What is the saving if
# V2's cache is in bfloat16 too? And at the 6 bits an element that the paper's section 3.2.3 mentions in passing? (To
# one decimal.)

# %% answer="03.3"
saved_percent = {  # per cent of DeepSeek-67B's bytes per token
    "both bfloat16": None,
    "V2 at 6 bits": None,
}
### BEGIN SOLUTION
# HINT: Count the bytes a token of both models: 2 · layers · KV heads · head_dim · 2 for
#       the older one, layers · row · bytes for V2.
# HINT: Saved per cent is 100 · (1 − after ÷ before). Six bits are 6 ÷ 8 of a byte.
# WHY: The architecture alone saves 82.2 %. The advertised figure compares 6 bits with
#       16, so it counts quantization as well.
before = 2 * 95 * 8 * 128 * 2
saved_percent = {
    "both bfloat16": 100 * (1 - 60 * 576 * 2 / before),
    "V2 at 6 bits": 100 * (1 - 60 * 576 * 6 / 8 / before),
}
### END SOLUTION

# %% test="03.3" points=2
from helpers import check

check.grade("03.3", saved_percent)
### BEGIN HIDDEN TESTS
assert abs(float(saved_percent["both bfloat16"]) - 82.24) < 0.07, "at equal precision"
assert abs(float(saved_percent["V2 at 6 bits"]) - 93.34) < 0.07, "at 6 bits"
### END HIDDEN TESTS

# %% [markdown]
# ## Build
#
# **Exercise 03.4** (8 minutes). Bytes *stored* are settled. Now the bytes *read*. Write one decode step of grouped
# attention: query heads `i · group … i · group + group - 1` share KV head `i`. No key or value may be copied, and each
# may be read only once for all query heads that share it.
#
# Your function is checked for its numbers, and its memory traffic is counted.


# %% answer="03.4"
def grouped_attention(q, k, v):
    """One query per sequence over its cache; query heads share KV heads.

    q [batch, q_heads, head_dim]; k, v [batch, kv_heads, context, head_dim] →
    [batch, q_heads, head_dim].
    Scores are scaled by head_dim ** -0.5.
    Example: 8 query heads and 2 KV heads: heads 0 … 3 read KV head 0,
    heads 4 … 7 read KV head 1.
    """
    ### BEGIN SOLUTION
    # HINT: The query heads of a group ask the same keys. How can several queries share
    #       one matrix product with these keys?
    # HINT: View q as [batch, kv_heads, group, head_dim], so that the heads of a group
    #       become the rows of one small matrix, and multiply by the transposed keys.
    # HINT: Scale, softmax over the last axis, multiply by the values, and view the
    #       result as q was.
    # WHY: With the group as rows, a product reads each key and each value once for all
    #       of its query heads, and nothing is copied.
    batch, kv_heads, _, head_dim = k.shape
    rows = q.view(batch, kv_heads, -1, head_dim)  # the query heads of a group
    scores = rows @ k.transpose(2, 3) * head_dim**-0.5
    return (scores.softmax(dim=-1) @ v).view(q.shape)
    ### END SOLUTION


# %% test="03.4" points=3
from helpers import check

check.grade("03.4", grouped_attention)
### BEGIN HIDDEN TESTS
line = torch.linspace(-1, 1, 60, dtype=torch.float64)
q, k, v = (
    line[:16].view(1, 4, 4) * 3,
    line[16:40].view(1, 2, 3, 4) * 5,
    line[36:60].view(1, 2, 3, 4),
)
given = grouped_attention(q, k, v)[0, :, 0].tolist()
right = [0.22325, 0.225461, 0.636198, 0.643353]
assert all(abs(a - b) < 1e-5 for a, b in zip(given, right, strict=True)), (
    "other numbers"
)
### END HIDDEN TESTS

# %% [markdown]
# Plug it into the real decoder. `Plugged` is a full cache whose decode steps call a function of yours; the decoder
# does not notice. Its logits have to agree with those of the built-in kernel.

# %%
from helpers.caches import FullCache, LatentCache
from helpers.clock import sweeps
from helpers.models import rope
from helpers.models.decoder import Decoder
from helpers.models.geometry import MLA, Geometry
from helpers.models.latent_attention import LatentAttention
from helpers.progress import each

card = devices.card(spot)
rate = card.read_bytes_per_second
print(f"{card.name}: reads {rate / 1e9:.1f} GB/s, ridge {card.ridge():.1f} FLOP/byte")


# %%
class Plugged(FullCache):
    function = None

    def attend(self, layer, q):
        if q.shape[2] > 1 or self.function is None:  # a prompt
            return super().attend(layer, q)
        end = self.seen(layer)
        q = rope.rotate(q, self.cos[end - 1 : end], self.sin[end - 1 : end])
        k, v = self.keys[layer, :, :, :end], self.values[layer, :, :, :end]
        return self.function(q[:, :, 0], k, v)[:, :, None]


def plugged(function, *args, **options):
    cache = Plugged(*args, **options)
    cache.function = function
    return cache


# %%
sizes = dict(hidden=256, q_heads=8, kv_heads=2, head_dim=32, intermediate=512)
small = Geometry("small", layers=2, vocab=512, **sizes)
decoder = Decoder(small, device=spot)
prompt = torch.arange(100, device=spot)[None]
built_in = FullCache(small, 128, device=spot)
mine = plugged(grouped_attention, small, 128, device=spot)
logits = []
for cache in (built_in, mine):
    decoder.prefill(prompt, cache)
    logits.append(decoder.decode(prompt[:, -1], cache))
print(f"largest difference of the logits: {(logits[0] - logits[1]).abs().max():.1e}")

# %% [markdown]
# **Exercise 03.5** (4 minutes). Much code does it otherwise: it *repeats* each KV head once per query head, and then
# runs ordinary MHA. The cache in memory stays small. Take a group of 8 query heads. How many bytes does a step move,
# reads and writes together, as a multiple of the bytes of the small cache? Follow keys and values from the cache to
# the end of attention; queries and scores are too small to count.

# %% answer="03.5"
repeat_traffic = None  # times the bytes of the cache
### BEGIN SOLUTION
# HINT: There are three movements of keys and values: into the repeat, out of it, and
#       into attention. How large is each, in caches?
# HINT: The repeated keys and values are 8 times as large as the cache. They are written
#       once, and then?
# WHY: Copies cost twice, when they are made and when they are used. What a dashboard
#       shows as memory does not count either.
repeat_traffic = 1 + 8 + 8  # read the cache, write the copies, read the copies
### END SOLUTION

# %% test="03.5" points=1
from helpers import check

check.grade("03.5", repeat_traffic)
### BEGIN HIDDEN TESTS
assert abs(float(repeat_traffic) - 17) < 1e-4, "not what is read and written"
### END HIDDEN TESTS

# %% [markdown]
# Now MLA. In a head, the key of a token with latent $c$ is $W_K c$, and its value is $W_V c$. The obvious way makes the
# keys and values of all heads for all cached tokens, in every step. There is a better one; find it by hand first.
#
# One head with 2 elements, latents of 3, two tokens in the cache:
#
# $$W_K = \begin{pmatrix} 1 & 0 & 2 \\ 0 & 1 & -1 \end{pmatrix}, \quad q = \begin{pmatrix} 3 \\ 1 \end{pmatrix},
# \quad c_1 = \begin{pmatrix} 1 \\ 2 \\ 0 \end{pmatrix}, \quad c_2 = \begin{pmatrix} 0 \\ 1 \\ 1 \end{pmatrix}.$$
#
# **Exercise 03.6a** (6 minutes). Compute both keys and the two scores $q \cdot (W_K c)$. Then find a vector $a$ of 3
# numbers with $a \cdot c = q \cdot (W_K c)$ for *every* latent $c$: write the score out as a sum and collect what
# stands beside each element of $c$. Last, how many multiplications do the scores of 1,000 cached tokens take, if each
# key is made first, and if $a$ is made first?

# %% answer="03.6a"
scores = [None, None]  # of c1 and c2
a = [None, None, None]
multiplications = {"each key first": None, "a first": None}  # for 1,000 tokens
### BEGIN SOLUTION
# HINT: Element 1 of a key is row 1 of W_K times c, element 2 is row 2. The score is 3
#       times the first plus 1 times the second.
# HINT: With c = (x, y, z): write 3 · (1x + 0y + 2z) + 1 · (0x + 1y − 1z) and sort by x,
#       y and z.
# HINT: Count multiplications: making a key takes 2 · 3, its product with q takes 2, and
#       a takes 2 · 3 once and then 3 for each token.
# WHY: A sum of products may be grouped either way. Grouping by c does the work of W_K
#       once, on the query, and not once for each token.
scores = [3 * 1 + 1 * 2, 3 * 2 + 1 * 0]  # the keys are (1, 2) and (2, 0)
a = [3 * 1 + 1 * 0, 3 * 0 + 1 * 1, 3 * 2 + 1 * -1]
multiplications = {"each key first": 1_000 * (2 * 3 + 2), "a first": 2 * 3 + 1_000 * 3}
### END SOLUTION

# %% test="03.6a" points=2
from helpers import check

check.grade("03.6a", scores, a, multiplications)
### BEGIN HIDDEN TESTS
given = [*scores, *a, multiplications["each key first"], multiplications["a first"]]
for mine, right in zip(given, [5, 6, 3, 1, 5, 8_000, 3_006], strict=True):
    assert abs(float(mine) - right) < 0.02, "not the numbers of the example"
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 03.6b** (4 minutes). The same for every head of every sequence: from the queries, your vectors $a$.


# %% answer="03.6b"
def absorb_query(q_nope, w_uk):
    """The queries of all heads, brought into the latent. Not scaled yet.

    q_nope [batch, heads, qk_nope_head_dim]; w_uk [heads, qk_nope_head_dim,
    kv_lora_rank], which makes a head's key as w_uk[head] @ latent → [batch, heads,
    kv_lora_rank].
    """
    ### BEGIN SOLUTION
    # HINT: In 03.6a a was W_K transposed times q. Here each head has its own W_K and
    #       each sequence its own q.
    # HINT: Which index is summed over, and which three stay? torch.einsum takes them as
    #       letters: b, h, d and r.
    # WHY: Only the short axis of a head (d) is summed away; the head keeps its own
    #       query, now as wide as the latent (r).
    return torch.einsum("bhd,hdr->bhr", q_nope, w_uk)
    ### END SOLUTION


# %% test="03.6b" points=1
from helpers import check

check.grade("03.6b", absorb_query)
### BEGIN HIDDEN TESTS
q, w = torch.tensor([[[1.0, 2.0], [0.5, -1.0]]]), torch.arange(12.0).view(2, 2, 3)
right = torch.tensor([[[6.0, 9.0, 12.0], [-6.0, -6.5, -7.0]]])
assert (absorb_query(q, w) - right).abs().max() < 1e-4, "other numbers"
### END HIDDEN TESTS

# %% [markdown]
# Why is there a rotary key beside the latent? With RoPE a key is rotated by an angle that depends on its token's
# position, and the rotation stands between $q$ and $W_K$: the score is $q \cdot (R_{t}\, W_K\, c_t)$. The vector $a$
# would then be another one for every position $t$, and absorbing would save nothing. So DeepSeek splits query and key:
# a wide part without position, which is absorbed, and a narrow rotated part, which is cached as it is.
#
# **Exercise 03.7** (8 minutes). Now the whole step. A score has two parts, which are added before one softmax: content
# (absorbed query · latent) and position (rotary query · rotary key). The scale is that of the query *before*
# absorption, `(qk_nope_head_dim + qk_rope_head_dim) ** -0.5`: moving a matrix does not change the product. The values
# allow the same trick as the keys: $W_V$ is the same for all tokens, so what can be summed up before it is applied?
#
# The bytes that your function reads and writes are counted.


# %% answer="03.7"
def mla_decode(q_nope, q_rope, latents, rope_keys, w_uk, w_uv):
    """One query per sequence over latents that are never expanded.

    q_nope [batch, heads, nope], q_rope [batch, heads, rope], already rotated;
    latents [batch, context, rank], rope_keys [batch, context, rope], already rotated,
    shared by all heads;
    w_uk [heads, nope, rank], w_uv [heads, v_head_dim, rank] →
    [batch, heads, v_head_dim].
    """
    ### BEGIN SOLUTION
    # HINT: Content: your absorbed queries times the transposed latents. Position:
    #       q_rope times the transposed rope_keys. Both are [batch, heads, context].
    # HINT: Add the two, scale by the width of a query before absorption, and take one
    #       softmax over the context.
    # HINT: Σ wᵢ (W_V cᵢ) = W_V (Σ wᵢ cᵢ): mix the latents with the weights first, then
    #       apply each head's w_uv once.
    # WHY: Keys and values of single tokens never exist: W_K acts on the query and W_V
    #       on the mixture, each once a step.
    content = absorb_query(q_nope, w_uk) @ latents.transpose(1, 2)
    position = q_rope @ rope_keys.transpose(1, 2)
    scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
    weights = ((content + position) * scale).softmax(dim=-1)
    return torch.einsum("bhr,hvr->bhv", weights @ latents, w_uv)
    ### END SOLUTION


# %% test="03.7" points=4
from helpers import check

check.grade("03.7", mla_decode)
### BEGIN HIDDEN TESTS
line = torch.linspace(-2, 2, 60, dtype=torch.float64).sin() * 2
q, qr, c, kr = (
    line[:4].view(1, 2, 2),
    line[4:8].view(1, 2, 2),
    line[8:20].view(1, 4, 3),
    line[20:28].view(1, 4, 2),
)
given = (
    mla_decode(q, qr, c, kr, line[28:40].view(2, 2, 3), line[40:52].view(2, 2, 3))
    .flatten()
    .tolist()
)
right = [-7.771289, -9.202415, -10.641387, -11.293444]
assert all(abs(a - b) < 1e-5 for a, b in zip(given, right, strict=True)), (
    "other numbers"
)
### END HIDDEN TESTS

# %% [markdown]
# **Why prefill expands.** Absorbed, a pair of query and token costs each head of V3 512 + 64 multiplications for the
# score and 512 for the value. With keys and values made first, it costs 128 + 64 and 128: 3.4 times fewer. In decode
# there is one query, and making keys for all tokens would cost far more than that saves. In a prefill every key that
# is made serves thousands of queries, and arithmetic is what limits it (unit 01). So engines expand in prefill and
# absorb in decode; vLLM's source calls the two the "compute friendly" and the "data-movement friendly" approach.
#
# Into the real decoder with yours. `LatentAttention` is the decoder's MLA layer (it absorbs always, to stay short);
# its method `mix` is the part you wrote.


# %%
class MyMLA(LatentAttention):
    def mix(self, q_nope, q_rope, cache):
        if q_nope.shape[2] > 1:  # a prompt
            return super().mix(q_nope, q_rope, cache)
        q_rope = cache.rotate(self.layer, q_rope)
        queries, rows = (q_nope[:, :, 0], q_rope[:, :, 0]), cache.held(self.layer)
        return mla_decode(*queries, *rows, self.w_uk, self.w_uv)[:, :, None]


# %%
latent = MLA(kv_lora_rank=128, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32)
small_mla = small.replace(name="small MLA", kv_heads=8, head_dim=48, mla=latent)
decoder, logits = Decoder(small_mla, device=spot), []
for layer in (LatentAttention, MyMLA):
    for block in decoder.blocks:
        block.attention.__class__ = layer  # same weights, your `mix`
    cache = LatentCache(small_mla, 128, device=spot)
    decoder.prefill(prompt, cache)
    logits.append(decoder.decode(prompt[:, -1], cache))
print(f"largest difference of the logits: {(logits[0] - logits[1]).abs().max():.1e}")

# %% [markdown]
# ## Measure
#
# One decoder, six ways to share. All have the same layers, width and query heads; only what a token adds to the cache
# differs. "GQA ×4" means that 4 query heads share a KV head. The MLA has DeepSeek's proportions: a latent of 4
# head_dims, a rotary key of half a head_dim. With 16 query heads, its cache is about that of GQA ×8.

# %%
size = dict(layers=4, hidden=1024, q_heads=16, head_dim=64, intermediate=2816)
contexts, dtype = [16, 2048, 4096, 8192], torch.float32
if spot.type == "cuda":
    half = kernels.half(spot)  # float16 where the GPU has no bfloat16
    if str(half).removeprefix("torch.") in card.matmul_flops_per_second:
        dtype = half
    if devices.free_bytes(spot) > 24e9:  # 4 layers take 17 GB, one 6
        size = dict(layers=1 if budget == "quick" else 4, hidden=4096, q_heads=32)
        size |= dict(head_dim=128, intermediate=11008)
        contexts = [16, 8192, 16384, 32768]
heads, wide = size["q_heads"], size["head_dim"]
shapes = {"MHA": Geometry("MHA", kv_heads=heads, vocab=4096, **size)}
for shared in (2, 4, 8):
    shapes[f"GQA ×{shared}"] = shapes["MHA"].replace(kv_heads=heads // shared)
shapes[f"MQA ×{heads}"] = shapes["MHA"].replace(kv_heads=1)

# %%
row = dict(kv_lora_rank=4 * wide, qk_rope_head_dim=wide // 2)
latent = MLA(**row, qk_nope_head_dim=wide, v_head_dim=wide)
shapes["MLA"] = shapes["MHA"].replace(head_dim=wide + wide // 2, mla=latent)
engines, where, room = {}, dict(dtype=dtype, device=spot), contexts[-1] + 64
for label, shape in each(shapes.items(), "making six decoders"):
    make = LatentCache if shape.mla else FullCache
    engines[label] = Decoder(shape, dtype, spot), make(shape, room, **where)

# %% [markdown]
# The prediction, from bytes alone: weights plus what a step reads of the cache, at the bandwidth on the card.

# %%
predicted, longest = {}, contexts[-1]
kv = {label: kv_bytes(shape, tokens=1, dtype=dtype) for label, shape in shapes.items()}
for label, (decoder, _) in engines.items():
    streamed = [decoder.weight_bytes + c * kv[label] for c in contexts]
    first, *_, last = predicted[label] = [1e3 * number / rate for number in streamed]
    key = f"03.tpot_ms_{label.replace(' ×', '')}_at_{longest}"
    estimates.predict(key, last, "ms")
    held = f"{longest * kv[label] / 1e6:6.1f} MB cache"
    print(f"{label:8} {held}, {first:5.2f} → {last:5.2f} ms")

# %% [markdown]
# Who reads what? Above, each query head holds the number of the KV head that it shares. Below, what one step reads
# of the cache at the longest context; *expanded* is the same MLA with a key and a value made for every head, as it
# would be without absorption.

# %% jupyter={"source_hidden": true}
shared_heads = {
    label: [(str(h * s.kv_heads // s.q_heads),) * 2 for h in range(s.q_heads)]
    for label, s in shapes.items()
    if not s.mla
}
drawings.boxes(
    shared_heads, title="The KV head of each query head", columns="query head"
)
step_reads = {}
for label, s in shapes.items():
    per_number = longest * s.layers * dtype.itemsize  # bytes, for one number a token
    if s.mla:
        wide_key = s.mla.qk_nope_head_dim + s.mla.qk_rope_head_dim
        step_reads[label] = {
            "latent": per_number * s.mla.kv_lora_rank,
            "rotary key": per_number * s.mla.qk_rope_head_dim,
        }
        step_reads["MLA, expanded"] = {
            "keys": per_number * s.q_heads * wide_key,
            "values": per_number * s.q_heads * s.mla.v_head_dim,
        }
    else:
        part = per_number * s.kv_heads * s.head_dim
        step_reads[label] = {"keys": part, "values": part}
_ = drawings.step_bytes(
    step_reads, title=f"Cache read by one step at {longest:,} tokens"
)

# %% [markdown]
# Real decode steps of all six, in turns:

# %%
timed = sweeps.decode_sweep(engines, contexts, budget, rate)
measured = {label: [timed[label][c].ms for c in contexts] for label in engines}
spread = {label: [timed[label][c].spread_ms for c in contexts] for label in engines}
for label, ms in measured.items():
    verdicts = {timed[label][c].verdict for c in contexts} - {"ok"}
    print(f"{label:8} {ms[0]:6.2f} → {ms[-1]:6.2f} ms", *verdicts)

# %% [markdown]
# Left the measured lines, right predicted and measured at the longest context:

# %% jupyter={"source_hidden": true}
fig, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), width_ratios=(4, 5))
axes = dict(xlabel="context (tokens)", ylabel="TPOT (ms)")
title = "measured: real decode steps"
plots.curve(left, contexts, measured, spread=spread, title=title, **axes)
at_the_end = {
    "predicted from bytes": [series[-1] for series in predicted.values()],
    "measured": [series[-1] for series in measured.values()],
}
half = {"measured": [series[-1] for series in spread.values()]}
labels = dict(ylabel="TPOT (ms)", title=f"at {longest:,} tokens")
plots.bars(right, list(engines), at_the_end, spread=half, **labels)
right.set_ylim(bottom=0)
plt.show()

# %% [markdown]
# Where does the time go? The slope of each line is what the context costs, and nothing else. From it follow two
# rates: bytes of cache per second, and FLOPs per second. Every cached element of a KV head takes one multiplication
# and one addition for each query head that shares it. MLA's latent takes them twice, as key and as value.

# %%
took, read, flops = {}, {}, {}
for label, shape in shapes.items():
    slope = 1e-3 * np.polyfit(contexts, measured[label], 1)[0]  # seconds per token
    took[label] = slope * longest if slope > 0 else np.nan
    read[label] = longest * kv[label]
    per_head = 2 * shape.head_dim
    if shape.mla:  # the whole row for the score, the latent again for the value
        per_head = 2 * latent.kv_lora_rank + latent.qk_rope_head_dim
    flops[label] = 2 * shape.layers * shape.q_heads * per_head * longest
seen = [label for label in shapes if took[label] > 0]
points = {n: (flops[n] / read[n], flops[n] / took[n]) for n in seen}

# %% [markdown]
# A row per way to share. The pace is bytes of cache per second of slope, beside the rate on your card. (A row is missing
# where the machine was too busy to show a slope: measure again.)

# %% jupyter={"source_hidden": true}
rows = []
for label in seen:
    pace = read[label] / took[label]
    intensity, done = points[label]
    cells = [f"{read[label] / 1e6:,.1f} MB", f"{1e3 * took[label]:.2f} ms"]
    cells += [f"{pace / 1e9:.1f} GB/s ({100 * pace / rate:.0f} %)"]
    rows.append([label, *cells, f"{done / 1e9:,.0f} GFLOP/s", f"{intensity:.1f}"])
columns = ["attention", f"cache at {longest:,}", "its time", "pace (of the card's)"]
estimates.Table([*columns, "arithmetic", "FLOP/byte"], rows)

# %% [markdown]
# Sharing does two things at once. It takes bytes away, and it gives every byte that is left more work: the last
# column. This is the *arithmetic intensity* of unit 01, and there is a limit to it.
#
# **Exercise 03.8** (5 minutes). Work the intensity out for **bfloat16** caches (2 bytes an element): MHA; GQA with 64
# query heads on 8 KV heads; DeepSeek-V3, where 128 query heads read the same 512 + 64 elements, all 576 for the score
# and the first 512 again for the value, in one reading. By its data sheet, an H200 does 206 bfloat16 FLOPs in the time
# in which it reads a byte: what limits V3's attention there, `"memory"` or `"compute"`?

# %% answer="03.8"
flop_per_byte = {
    "MHA": None,
    "GQA-8, 64 query heads": None,
    "MLA, 128 query heads": None,
}
limit = None  # "memory" or "compute"
### BEGIN SOLUTION
# HINT: Take one cached element. How many FLOPs does each query head do with it? A
#       multiplication and an addition are two. How many bytes is it?
# HINT: How many query heads share that element with MHA, and how many with 64 on 8?
# HINT: With MLA 576 elements are read, by 128 heads; all 576 serve the score and 512
#       serve the value too. Then compare with 206.
# WHY: Sharing divides the bytes and leaves the arithmetic, so every head that joins
#       raises FLOPs per byte, until arithmetic is what takes the time.
flop_per_byte = {  # 2 FLOPs for each query head, per element of 2 bytes
    "MHA": 2 * 1 / 2,
    "GQA-8, 64 query heads": 2 * 8 / 2,
    "MLA, 128 query heads": 2 * 128 * (576 + 512) / (2 * 576),
}
limit = "compute"
### END SOLUTION

# %% test="03.8" points=3
from helpers import check

check.grade("03.8", flop_per_byte, limit)
### BEGIN HIDDEN TESTS
mha, gqa = flop_per_byte["MHA"], flop_per_byte["GQA-8, 64 query heads"]
assert abs(float(mha) - 1) < 0.02 and abs(float(gqa) - 8) < 0.1, "an intensity is off"
mla = float(flop_per_byte["MLA, 128 query heads"])
assert min(abs(mla - 241.8), abs(mla - 256)) < 2.5, "MLA's intensity is off"
assert str(limit).strip().lower() == "compute", "the other one"
### END HIDDEN TESTS

# %% [markdown]
# Two **rooflines**. Across: FLOPs for each byte read. Up: FLOPs per second. Under the sloping part of the roof memory
# sets the pace, under the flat part arithmetic does; they meet at the ridge. Left your measurements. Right your
# intensities of 03.8, as high as they could get at rates that DeepSeek measured with its FlashMLA kernel on an H800.

# %%
from types import SimpleNamespace

rates = data.measurement("flashmla")["data"][0]
peak, h800_reads = 1e12 * rates["compute_bound_TFLOPs"], 1e9 * rates["mem_bound_GBps"]
h800 = SimpleNamespace(name="FlashMLA on an H800", read_bytes_per_second=h800_reads)
h800.matmul_flops_per_second = {"bfloat16": peak}
v3 = flop_per_byte["MLA, 128 query heads"]
models = {"MHA": flop_per_byte["MHA"], "GQA ×8": flop_per_byte["GQA-8, 64 query heads"]}
models |= {f"MLA, {n} heads ({m})": v3 * n / 128 for n, m in
           [(16, "V2-Lite"), (64, "Kimi-K2"), (128, "V3")]}  # fmt: skip
bounds = {name: (x, min(x * h800_reads, peak)) for name, x in models.items()}

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4))
name = str(dtype).removeprefix("torch.")
title = f"attention, measured, {name}: {card.name}"
plots.roofline(left, card, points, dtype=name, title=title)
title = "upper bounds at the rates of FlashMLA, H800, bfloat16"
plots.roofline(right, h800, bounds, dtype="bfloat16", title=title)
for ax in (left, right):
    ax.legend(loc="upper left", fontsize=9)
plt.show()

# %% [markdown]
# FlashMLA reads 3,000 GB/s where memory limits it and does 660 TFLOP/s where arithmetic does (data sheet: 3,350 and
# 989). That ridge lies at 220 FLOP/byte, with V3 close by: *on* the ridge, where reading and multiplying take about
# equally long. Which of the two "limits" V3 depends on whose rates you take: by their data sheets an H200's ridge lies at
# 206 and an H100's at 295. On which side of each is your V3? All of it is about bfloat16 arithmetic. A latent stored in
# 8 bits and multiplied in bfloat16 saves memory, and hardly any time; where the kernel multiplies in 8 bits as well, as
# TensorRT-LLM's does, the roof rises too.
#
# In the left half, find your MLA. The distance from a point up to the roof is what its kernel leaves unused. Is your
# MLA left or right of your device's ridge? Left of it bytes still set the time; right of it this MLA, with about the
# cache of GQA ×8, has to take longer than GQA ×8 does. How much of the time is arithmetic and how much the kernel
# stands in the last table.
#
# ## Explain
#
# **The inconvenient result.** The same decoder with your `grouped_attention`, with repeat-KV, and MHA for comparison.
# The attention of all is the same few lines of torch; only the traffic differs. Repeat-KV comes in two forms: as one
# writes it, with new copies in every step, and with copies written into buffers that are kept from step to step.


# %%
def repeat_kv(q, k, v):
    group = q.shape[1] // k.shape[1]  # after the copies, groups of one: MHA
    return grouped_attention(q, *(x.repeat_interleave(group, dim=1) for x in (k, v)))


buffers = {}


def repeat_kv_kept(q, k, v):
    shape = (*k.shape[:2], q.shape[1] // k.shape[1], *k.shape[2:])
    if shape not in buffers:
        buffers[shape] = torch.empty((2, *shape), dtype=k.dtype, device=k.device)
    for copy, stored in zip(buffers[shape], (k, v), strict=True):
        copy.copy_(stored[:, :, None].expand(shape))
    return grouped_attention(q, *(copy.flatten(1, 2) for copy in buffers[shape]))


# %% [markdown]
# The prediction uses your factor of 03.5 for both forms.

# %%
far, rivals, moved = contexts[-2], {}, {}
versions = {
    "MHA": ("MHA", grouped_attention, 1),
    "repeat-KV": ("GQA ×8", repeat_kv, repeat_traffic),
    "repeat-KV, kept": ("GQA ×8", repeat_kv_kept, repeat_traffic),
    "grouped": ("GQA ×8", grouped_attention, 1),
}
for label, (which, function, times) in versions.items():
    cache = plugged(function, shapes[which], room, **where)
    rivals[label] = engines[which][0], cache
    moved[label] = times * far * kv[which]
race = sweeps.decode_sweep(rivals, [contexts[0], far], budget)

# %%
held = {label: cache.nbytes for label, (_, cache) in rivals.items()}
grown = {n: race[n][far].median - race[n][contexts[0]].median for n in rivals}
rows = []
for label in rivals:
    shares = (held, moved, grown)
    rows.append([label, *(f"{share[label] / share['MHA']:.2f}" for share in shares)])
columns = ["against MHA", "bytes stored", "bytes moved", f"time of {far:,} tokens"]
estimates.Table(columns, rows)

# %% [markdown]
# The same as bars: what is stored, and what a step takes.

# %% jupyter={"source_hidden": true}
fig, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.8))
names = ["MHA", *(f"GQA ×8\n{label}" for label in list(rivals)[1:])]
stored = [size / 1e6 for size in held.values()]
plots.bars(left, names, stored, ylabel="KV cache held (MB)", title="bytes stored")
bytes_of = {label: moved[label] + rivals[label][0].weight_bytes for label in rivals}
steps = {
    "from bytes moved": [1e3 * bytes_of[label] / rate for label in rivals],
    "measured": [race[label][far].ms for label in rivals],
}
half = {"measured": [race[label][far].spread_ms for label in rivals]}
labels = dict(ylabel="TPOT (ms)", title=f"a decode step at {far:,} tokens")
plots.bars(right, names, steps, spread=half, **labels)
right.set_ylim(bottom=0)
plt.show()

# %% [markdown]
# This is what the dashboard of the first paragraph could not see: bytes *stored* fell 8 times, bytes *moved* went up.
# Name the residuals. Where the two forms of repeat-KV differ, only the buffers do: perhaps it is the price of fresh
# memory, which an operating system clears before it hands it out. Where grouped gains less than its bytes, or more,
# the pace differs: a product of plain torch may read at one pace with one query row and at another with eight. Others
# have seen memory fall further than time:
#
# - mlx-lm#1679, M5 Pro: a kernel that read K and V once per query head. With 32 query and 32 KV heads it reached
#   281 GB/s at 32k tokens, with 64 on 8 (head_dim 64) 119 GB/s, 45 % of the 266 GB/s of a dense read. If 64 KV heads
#   were read at 281 GB/s too, that is 8 times fewer bytes at 0.42 of the pace: 3.4 times less time and not 8. (A kernel
#   that reads each byte once, or twice at head_dim 128, has since been merged for groups of 8: mlx#4077.)
# - rasbt's LLMs-from-scratch, plain PyTorch, 12 layers, 24 query heads, 32,768 tokens: MHA 72 tok/s with a peak of
#   1.54 GiB; GQA with 4 KV heads, repeated by `repeat_interleave`, 63 tok/s with 0.63; MLA 67 tok/s with 0.68. The peaks
#   are those of the whole program. The caches alone, from their shapes, are 1.13 GiB and 0.19 GiB with MHA and GQA: 6
#   times fewer bytes, and decoding got *slower*.
#
# **A published figure from bytes.** When vLLM first served DeepSeek-V2-Lite (27 layers, 16 heads), it had no cache for
# latents. It stored keys (192 wide) and values (128 wide) of every head, *both padded to 256*, in float16 (2 bytes).
# Its pool on an H100 was 35.42 GiB (vllm#10927).
#
# **Exercise 03.9** (3 minutes). How many tokens fit that pool, and how many when the latents (512 + 64) are stored as
# they are?

# %% answer="03.9"
tokens_that_fit = {
    "padded": None,
    "latent": None,
}
### BEGIN SOLUTION
# HINT: Tokens that fit = bytes of the pool ÷ bytes per token. A GiB is 2**30 bytes.
# HINT: Padded: 27 layers, 16 heads, a key and a value of 256 elements each, 2 bytes.
#       Latent: what does a layer keep of a token?
# WHY: The engine stored 16 · 512 elements a layer where the model needs 576: the
#       architecture saves nothing until the cache knows of it.
pool = 35.42 * 2**30  # GiB
tokens_that_fit = {
    "padded": pool / (27 * 16 * (256 + 256) * 2),
    "latent": pool / (27 * (512 + 64) * 2),
}
### END SOLUTION

# %% test="03.9" points=2
from helpers import check

check.grade("03.9", tokens_that_fit)
### BEGIN HIDDEN TESTS
assert abs(float(tokens_that_fit["padded"]) / 85_974 - 1) < 0.0052, "padded"
assert abs(float(tokens_that_fit["latent"]) / 1_222_735 - 1) < 0.0052, "latent"
### END HIDDEN TESTS

# %% [markdown]
# A draft with the latent cache, and a kernel for it, raised throughput from 10.47 to 18.5 requests a second, 1.8
# times. How much of that is room and how much the kernel, it does not say. So much more room was never needed: the
# benchmark's 200 requests of 1,000 + 100 tokens are 220,000 tokens in all, 2.6 times what the padded pool held.
#
# **On more than one GPU.** Tensor parallelism (unit 02) gives each GPU a share of the *heads*. A KV head goes with its
# query heads. With more GPUs than KV heads, a KV head is kept by each GPU that needs it. The latent is needed by all
# heads.
#
# **Exercise 03.10** (4 minutes). Bytes per token *on each GPU*, all layers, bfloat16: Llama-3.1-405B (126 layers, 128
# query heads, 8 KV heads of 128) on 8 and on 16 GPUs, and DeepSeek-V3 (61 layers, 128 heads, 512 + 64) on 8.

# %% answer="03.10"
bytes_per_gpu = {  # bytes of cache a token, on each GPU
    ("Llama-3.1-405B", 8): None,
    ("Llama-3.1-405B", 16): None,
    ("DeepSeek-V3", 8): None,
}
### BEGIN SOLUTION
# HINT: Which KV heads does one GPU need for its share of the query heads? 128 query
#       heads on 8 GPUs are 16 each.
# HINT: On 16 GPUs a GPU has 8 query heads, half of a group. Can it do with half a KV
#       head?
# HINT: And which part of a latent does a GPU need for its 16 of the 128 heads of V3?
# WHY: Splitting by heads divides what belongs to heads. One KV head is the least a GPU
#       can keep, and a latent belongs to all heads.
bytes_per_gpu = {
    ("Llama-3.1-405B", 8): 2 * 126 * 1 * 128 * 2,  # one KV head each
    ("Llama-3.1-405B", 16): 2 * 126 * 1 * 128 * 2,  # still one: each is kept twice
    ("DeepSeek-V3", 8): 61 * (512 + 64) * 2,  # all of it, eight times
}
### END SOLUTION

# %% test="03.10" points=2
from helpers import check

check.grade("03.10", bytes_per_gpu)
### BEGIN HIDDEN TESTS
for (model, gpus), right in {
    ("Llama-3.1-405B", 8): 64_512,
    ("Llama-3.1-405B", 16): 64_512,
    ("DeepSeek-V3", 8): 70_272,
}.items():
    assert abs(float(bytes_per_gpu[model, gpus]) - right) < 0.5, f"{model} on {gpus}"
### END HIDDEN TESTS

# %% [markdown]
# There are two ways out for a latent. *Data parallel attention* (SGLang, vLLM): each GPU takes all heads of some of
# the sessions, and a latent is kept once. On 8 B200s a DeepSeek-V4-Flash got 7.7 times the room for its cache that
# way. *Decode context parallelism*: each GPU keeps every eighth token of every session, attends to those with all
# heads, and the partial answers are merged exactly (unit 05 merges them so).
#
# **Claims, tested.** You now have the arithmetic for each of these, all found in print:
#
# - "GQA-8 shrinks KV 8 times": query heads ÷ KV heads, from 2 (Qwen3-0.6B) over 5 (Maverick) to 16 (Llama-3.1-405B).
# - "MLA caches only the latent": the rotary key comes on top, 12.5 % more.
# - "Standard attention in DeepSeek-V3 would need 610 kB a token": with V2-Lite's 16 heads. V3 has 128: 4,880 KiB.
# - "Llama-3.1-405B needs 123 GB of KV at 128k": 61.5 GiB at 128,000 tokens. 123 is what 16 GPUs keep together, each
#   head twice.
#
# **And quality?** Few figures compare models trained alike. DeepSeek's own, in the V2 paper: three dense 7B models score
# 45.2 (MHA), 41.2 (GQA with 8 KV heads) and 37.9 (MQA) on MMLU; and of two mixtures of experts, the version with MLA
# did better than the one with MHA on most benchmarks, with 14 % and 4 % of its cached elements. The papers on GQA and
# on Llama 2 find GQA about level with MHA. So fewer bytes can cost quality, and how much depends on the training.
#
# Last, your predictions and the names of what separates them from the measurements: what a step with an almost empty
# cache takes beyond its bytes; how much longer the arithmetic over the context takes than its reading, both at the
# rates of the card (nothing left of the ridge); and the rest, which is the pace of the kernel.

# %%
for label in engines:
    fixed = measured[label][0] - predicted[label][0]
    context = measured[label][-1] - predicted[label][-1] - fixed
    beyond = max(0, flops[label] / card.rate(name) - read[label] / rate)
    key = f"03.tpot_ms_{label.replace(' ×', '')}_at_{longest}"
    residual = f"weights, launches {fixed:+.1f}, arithmetic {1e3 * beyond:+.1f}"
    residual += f", kernel {context - 1e3 * beyond:+.1f} ms"
    last = timed[label][longest]
    estimates.measured(key, last.ms, residual=residual, verdict=last.verdict)
estimates.report("03")

# %% [markdown]
# Three rows for your ledger: shared heads with a kernel that reads them once, with one that repeats them, and latents.


# %% jupyter={"source_hidden": true}
def effect(label):
    busy = any(timed[which][longest].verdict != "ok" for which in ("MHA", label))
    ratio = measured["MHA"][-1] / measured[label][-1]
    return f"÷ {ratio:.2f} at {longest:,} tokens, here{' (busy)' * busy}"


def smaller(label):
    return f"cache ÷ {engines['MHA'][1].nbytes / engines[label][1].nbytes:.1f}"


repeated = grown["repeat-KV"] / grown["MHA"]
rows = {
    "GQA ×8, grouped": (effect("GQA ×8"), smaller("GQA ×8")),
    "GQA ×8 with repeat-KV": (
        f"its context takes {repeated:.2f} times MHA's, here",
        smaller("GQA ×8") + " and copies",
    ),
    "MLA, absorbed": (
        effect("MLA") + "; arithmetic grows with the heads",
        smaller("MLA") + "; not split by tensor parallelism",
    ),
}
same = dict(ttft="hardly changed", quality="decided in training")
for lever, (tpot, memory) in rows.items():
    table = estimates.ledger("03", lever, tpot=tpot, memory=memory, **same)
table

# %% [markdown]
# All of this is decided when a model is trained. It helps you choose a model; it is no fix for tonight. The next units
# are about a cache that already exists: keep fewer tokens (04), share prefixes (05), use fewer bits (06).
#
# *Sources.* vllm-project/vllm issues and pull requests 10927 and recipes issue 762; vllm/v1/attention/backends/mla;
# NVIDIA/TensorRT-LLM pull request 9141; SGLang's documentation of decode context parallelism; DeepSeek-V2, arXiv
# 2405.04434. Each row lies in `helpers/data/` with its source.
