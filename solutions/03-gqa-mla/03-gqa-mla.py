# %% [markdown]
# # 03 · GQA and MLA: who shares a key
#
# ## The question
#
# A chat service moves to a model with 8 KV heads where the old one had 64. The dashboard shows what was promised: a
# session's KV cache is 8 times smaller, and 8 times as many fit. And the TPOT of one long session does not move at
# all. A vendor offers another model, whose cache is "10 to 100 times smaller". **Which kind of sharing shrinks the
# bytes that a step *reads*, by how much, and what has to happen in the kernel before that becomes time?**
#
# You will count, write both mechanisms yourself, run them in the real decoder, and meet a case where bytes are not
# what takes the time. (About 70 minutes.)

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures longer

# %% tags=["setup"]
import matplotlib.pyplot as plt
import numpy as np
import torch

from helpers import check, data, estimates, plots
from helpers.models.counts import kv_bytes
from helpers.models.geometry import get

plots.use()

# %% [markdown]
# ## Predict
#
# Four ways to leave a token behind. **MHA**: each query head has a KV head of its own. **GQA**: a group of query
# heads shares one. **MQA**: all share one. **MLA** (DeepSeek): a layer stores neither keys nor values, but one
# **latent** of `kv_lora_rank` elements, from which every head could make its key and its value, and beside it one
# **rotary key** of `qk_rope_head_dim` elements, which carries the position. All heads share both.
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
# **Exercise 03.1.** How many bytes does one token add to each cache, over all layers, in bfloat16 (2 bytes an
# element)? Let every layer keep every token. Python may do the arithmetic.

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
kv_bytes_of = {
    "Llama-2-7b-hf": 2
    * 32
    * 32
    * 128
    * 2,  # K and V · layers · KV heads · head_dim · bytes
    "Llama-4-Maverick-17B-128E": 2 * 48 * 8 * 128 * 2,
    "gpt-oss-120b": 2 * 36 * 8 * 64 * 2,
    "falcon-7b": 2 * 32 * 1 * 64 * 2,
    "DeepSeek-V2-Lite": 27 * (512 + 64) * 2,  # layers · row · bytes
    "DeepSeek-V3": 61 * (512 + 64) * 2,
}
### END SOLUTION

# %% test="03.1" points=3
from helpers import check

check.grade("03.1", kv_bytes_of)
### BEGIN HIDDEN TESTS
right = [524_288, 196_608, 73_728, 8_192, 31_104, 70_272]
assert [float(value) for value in kv_bytes_of.values()] == right, (
    "one of the six counts is off"
)
### END HIDDEN TESTS

# %% [markdown]
# Ten models, from their configs, beside what they would store if every query head kept a key and a value of its own:

# %%
rows = []
for name in [*kv_bytes_of, "Llama-3.1-8B", "Llama-3.1-70B", "Qwen2.5-7B", "Kimi-K2"]:
    g = get(name)
    wide = (
        g.head_dim + g.mla.v_head_dim if g.mla else 2 * g.head_dim
    )  # a head's key and value
    own, stored = 2 * g.layers * g.q_heads * wide, kv_bytes(g, tokens=1)
    rows.append(
        [name, g.attention.upper(), f"{own:,}", f"{stored:,}", f"{own / stored:.1f}"]
    )
estimates.Table(
    [
        "model",
        "kind",
        "B/token, every head its own",
        "B/token, stored",
        "times smaller",
    ],
    rows,
)

# %% [markdown]
# The last column is never simply "8". **Exercise 03.2.** Three popular sentences: "GQA-8 shrinks the cache 8 times",
# "Maverick has GQA-8, so 8 times", "MLA shrinks it 10 to 100 times". Work out four factors for one layer:
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
times_smaller = {
    "Maverick: GQA over MHA": 40 / 8,
    "V3: MLA over its own 128 heads": 128 * (192 + 128) / 576,
    "V3: MLA over GQA-8": 2 * 8 * 128 / 576,
    "V3: MLA over MQA": 2 * 1 * 128 / 576,
}
### END SOLUTION

# %% test="03.2" points=2
from helpers import check

check.grade("03.2", times_smaller)
### BEGIN HIDDEN TESTS
given = [float(value) for value in times_smaller.values()]
right = [5.0, 71.11, 3.556, 0.4444]
assert all(abs(a / b - 1) < 0.016 for a, b in zip(given, right, strict=True)), (
    "a factor is off"
)
### END HIDDEN TESTS

# %% [markdown]
# So "10 to 100" is true against a model that nobody would serve: 128 heads with a cache each. Against GQA-8, which is
# what the competition ships, it is 3.6; DeepSeek's own paper says "GQA with 2.25 groups". An MQA cache is *smaller*.
#
# **Exercise 03.3.** DeepSeek-V2 advertises a KV cache **93.3 % smaller** than DeepSeek-67B's. The older model has
# 95 layers with 8 KV heads of 128, in bfloat16. V2 has 60 layers of 512 + 64 elements. What is the saving if V2's
# cache is in bfloat16 too? And at the 6 bits an element that the paper's section 3.2.3 mentions in passing? (To one
# decimal.)

# %% answer="03.3"
saved_percent = {  # per cent of DeepSeek-67B's bytes per token
    "both bfloat16": None,
    "V2 at 6 bits": None,
}
### BEGIN SOLUTION
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
# 82.2 % is what the architecture saves; the rest of the 93.3 % is quantization, which the older model could have
# had too.
#
# ## Build
#
# **Exercise 03.4.** Bytes *stored* are settled. Now the bytes *read*. Write one decode step of grouped attention in
# which no key or value is ever copied: query heads `i · group … i · group + group - 1` share KV head `i`. Think of a
# group's queries as the *rows of one small matrix*. Then one product reads a KV head once for all of them.
#
# Your function is checked for its numbers, and its memory traffic is counted: a tensor with one key per *query* head
# and token must not appear. Broadcasting makes one, too.


# %% answer="03.4"
def grouped_attention(q, k, v):
    """One query per sequence over its cache; query heads share KV heads.

    q [batch, q_heads, head_dim]; k, v [batch, kv_heads, context, head_dim] → [batch, q_heads, head_dim].
    Scores are scaled by head_dim ** -0.5.
    Example: 8 query heads and 2 KV heads: heads 0 … 3 read KV head 0, heads 4 … 7 read KV head 1.
    """
    ### BEGIN SOLUTION
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
from helpers.clock import devices
from helpers.clock import sweeps
from helpers.models import rope
from helpers.caches import FullCache, LatentCache
from helpers.models.decoder import Decoder
from helpers.models.geometry import MLA, Geometry
from helpers.models.latent_attention import LatentAttention

spot = devices.pick(device)
card = devices.card(spot)
print(
    f"{card.name}: reads {card.read_bytes_per_second / 1e9:.1f} GB/s, ridge {card.ridge():.1f} FLOP/byte in float32"
)


# %%
class Plugged(FullCache):
    function = None

    def attend(self, layer, q):
        if q.shape[2] > 1 or self.function is None:  # a prompt
            return super().attend(layer, q)
        end = self.lengths[layer]
        q = rope.rotate(q, self.cos[end - 1 : end], self.sin[end - 1 : end])
        k, v = self.keys[layer, :, :, :end], self.values[layer, :, :, :end]
        return self.function(q[:, :, 0], k, v)[:, :, None]


def plugged(function, *args, **options):
    cache = Plugged(*args, **options)
    cache.function = function
    return cache


# %%
small = Geometry(
    "small",
    layers=2,
    hidden=256,
    q_heads=8,
    kv_heads=2,
    head_dim=32,
    intermediate=512,
    vocab=512,
)
decoder = Decoder(small, device=spot)
prompt = torch.arange(100, device=spot)[None]
caches = (
    FullCache(small, 128, device=spot),
    plugged(grouped_attention, small, 128, device=spot),
)
logits = []
for cache in caches:
    decoder.prefill(prompt, cache)
    logits.append(decoder.decode(prompt[:, -1], cache))
print(f"largest difference of the logits: {(logits[0] - logits[1]).abs().max():.1e}")

# %% [markdown]
# **Exercise 03.5.** Much code does it otherwise: it *repeats* each KV head once per query head, and then runs
# ordinary MHA. The cache in memory stays small. Take a group of 8 query heads. Making the copies reads the cache
# and writes the copies; attention then reads the copies. How many times the bytes of the cache does a step move,
# reads and writes together? (Grouped: 1. MHA, had it been stored in full: 8.)

# %% answer="03.5"
repeat_traffic = None  # times the bytes of the cache
### BEGIN SOLUTION
repeat_traffic = 1 + 8 + 8  # read the cache, write the copies, read the copies
### END SOLUTION

# %% test="03.5" points=1
from helpers import check

check.grade("03.5", repeat_traffic)
### BEGIN HIDDEN TESTS
assert float(repeat_traffic) == 17, "not what is read and written"
### END HIDDEN TESTS

# %% [markdown]
# Now MLA. In a head, the key of a token with latent $c$ is $W_K c$, its value $W_V c$. The obvious way makes keys and
# values of all heads for all cached tokens, in every step. But
#
# $$q \cdot (W_K\, c) = (W_K^{\top} q) \cdot c, \qquad \sum_t p_t\, (W_V\, c_t) = W_V \sum_t p_t\, c_t .$$
#
# So bring the *query into the latent* once, attend there, and bring the *answer out of it* once. The up-projections
# have been **absorbed**; what was stored is read as it is.
#
# **Exercise 03.6.** First the query: for each head, $W_K^{\top} q$.


# %% answer="03.6"
def absorb_query(q_nope, w_uk):
    """The queries of all heads, brought into the latent. Not scaled yet.

    q_nope [batch, heads, qk_nope_head_dim]; w_uk [heads, qk_nope_head_dim, kv_lora_rank], which makes a head's key
    as w_uk[head] @ latent → [batch, heads, kv_lora_rank].
    """
    ### BEGIN SOLUTION
    return torch.einsum("bhd,hdr->bhr", q_nope, w_uk)
    ### END SOLUTION


# %% test="03.6" points=1
from helpers import check

check.grade("03.6", absorb_query)
### BEGIN HIDDEN TESTS
q, w = torch.tensor([[[1.0, 2.0], [0.5, -1.0]]]), torch.arange(12.0).view(2, 2, 3)
assert absorb_query(q, w).tolist() == [[[6.0, 9.0, 12.0], [-6.0, -6.5, -7.0]]], (
    "other numbers"
)
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 03.7.** Now the whole step. A score has two parts, which are added before one softmax: content (absorbed
# query · latent) and position (rotary query · rotary key). The scale is that of the query *before* absorption,
# `(qk_nope_head_dim + qk_rope_head_dim) ** -0.5`: moving a matrix does not change the product.


# %% answer="03.7"
def mla_decode(q_nope, q_rope, latents, rope_keys, w_uk, w_uv):
    """One query per sequence over latents that are never expanded.

    q_nope [batch, heads, nope], q_rope [batch, heads, rope], already rotated;
    latents [batch, context, rank], rope_keys [batch, context, rope], already rotated, shared by all heads;
    w_uk [heads, nope, rank], w_uv [heads, v_head_dim, rank] → [batch, heads, v_head_dim].
    """
    ### BEGIN SOLUTION
    content = absorb_query(q_nope, w_uk) @ latents.transpose(1, 2)
    position = q_rope @ rope_keys.transpose(1, 2)
    scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
    mixed = ((content + position) * scale).softmax(
        dim=-1
    ) @ latents  # [batch, heads, rank]
    return torch.einsum("bhr,hvr->bhv", mixed, w_uv)
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
# Into the real decoder with it. `LatentAttention` is the decoder's MLA layer; its method `mix` is the part you wrote.


# %%
class MyMLA(LatentAttention):
    def mix(self, q_nope, q_rope, cache):
        if q_nope.shape[2] > 1:  # a prompt
            return super().mix(q_nope, q_rope, cache)
        q_rope = cache.rotate(self.layer, q_rope)
        return mla_decode(
            q_nope[:, :, 0],
            q_rope[:, :, 0],
            *cache.held(self.layer),
            self.w_uk,
            self.w_uv,
        )[:, :, None]


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
# One decoder, six ways to share. All have the same layers, width and query heads; only what a token leaves behind
# differs. "GQA ×4" means that 4 query heads share a KV head. The MLA has DeepSeek's proportions: a latent of 4
# head_dims, a rotary key of half a head_dim. With 16 query heads, its cache is about that of GQA ×8.

# %%
size = dict(layers=4, hidden=1024, q_heads=16, head_dim=64, intermediate=2816)
contexts, dtype = [16, 2048, 4096, 8192], torch.float32
if spot.type == "cuda":
    dtype = torch.bfloat16
    if (
        torch.cuda.mem_get_info(spot)[0] > 24e9
    ):  # all decoders and caches together take 17 GB
        size = dict(layers=4, hidden=4096, q_heads=32, head_dim=128, intermediate=11008)
        contexts = [16, 8192, 16384, 32768]
heads, wide = size["q_heads"], size["head_dim"]
mha = Geometry("MHA", kv_heads=heads, vocab=4096, **size)
latent = MLA(
    kv_lora_rank=4 * wide,
    qk_rope_head_dim=wide // 2,
    qk_nope_head_dim=wide,
    v_head_dim=wide,
)

# %%
shapes = {"MHA": mha}
shapes |= {f"GQA ×{group}": mha.replace(kv_heads=heads // group) for group in (2, 4, 8)}
shapes |= {
    f"MQA ×{heads}": mha.replace(kv_heads=1),
    "MLA": mha.replace(head_dim=wide + wide // 2, mla=latent),
}
engines, room = {}, contexts[-1] + 64
for label, shape in shapes.items():
    make = LatentCache if shape.mla else FullCache
    engines[label] = (
        Decoder(shape, dtype, spot),
        make(shape, room, dtype=dtype, device=spot),
    )

# %% [markdown]
# The prediction, from bytes alone: weights plus what a step reads of the cache, at the bandwidth on the card.

# %%
predicted, longest = {}, contexts[-1]
kv = {label: kv_bytes(shape, tokens=1, dtype=dtype) for label, shape in shapes.items()}
for label, (decoder, _) in engines.items():
    streamed = [decoder.weight_bytes + c * kv[label] for c in contexts]
    predicted[label] = [
        1e3 * number / card.read_bytes_per_second for number in streamed
    ]
    estimates.predict(
        f"03.tpot_ms_{label.replace(' ×', '')}_at_{longest}", predicted[label][-1], "ms"
    )
    print(
        f"{label:8} {decoder.weight_bytes / 1e6:4.0f} MB weights, {longest * kv[label] / 1e6:6.1f} MB cache, "
        f"{predicted[label][0]:5.2f} → {predicted[label][-1]:5.2f} ms"
    )

# %%
timed = sweeps.decode_sweep(engines, contexts, budget, card.read_bytes_per_second)
measured = {label: [timed[label][c].ms for c in contexts] for label in engines}
spread = {label: [timed[label][c].spread_ms for c in contexts] for label in engines}
for label in engines:
    verdicts = {timed[label][c].verdict for c in contexts} - {"ok"}
    print(
        f"{label:8} {measured[label][0]:6.2f} → {measured[label][-1]:6.2f} ms",
        *verdicts,
    )

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(4, 5))
axes = dict(
    xlabel="context (tokens)", ylabel="TPOT (ms)", title="measured: real decode steps"
)
plots.curve(left, contexts, measured, spread=spread, **axes)
at_the_end = {
    "predicted from bytes": [series[-1] for series in predicted.values()],
    "measured": [series[-1] for series in measured.values()],
}
half = {"measured": [series[-1] for series in spread.values()]}
plots.bars(
    right,
    list(engines),
    at_the_end,
    spread=half,
    ylabel="TPOT (ms)",
    title=f"at {longest:,} tokens",
)
right.set_ylim(bottom=0)
plt.show()

# %% [markdown]
# Where does the time go? The slope of each line is what the context costs, and nothing else. From it follow two
# rates: bytes of cache per second, and FLOPs per second. Every cached element of a KV head takes one multiplication
# and one addition for each query head that shares it. MLA's latent takes them twice, as key and as value.

# %%
points, rows, row = {}, [], latent.kv_lora_rank + latent.qk_rope_head_dim
for label, shape in shapes.items():
    seconds = max(1e-3 * np.polyfit(contexts, measured[label], 1)[0] * longest, 1e-9)
    read = longest * kv[label]
    per_head = row + latent.kv_lora_rank if shape.mla else 2 * shape.head_dim
    flops = 2 * shape.layers * shape.q_heads * per_head * longest
    points[label] = flops / read, flops / seconds
    pace = f"{read / seconds / 1e9:.1f} GB/s ({100 * read / seconds / card.read_bytes_per_second:.0f} %)"
    rows.append(
        [
            label,
            f"{read / 1e6:,.1f} MB",
            f"{1e3 * seconds:.2f} ms",
            pace,
            f"{flops / seconds / 1e9:,.0f} GFLOP/s",
            f"{flops / read:.1f}",
        ]
    )
columns = [
    "attention",
    f"cache at {longest:,}",
    "its time",
    "pace (of the card's)",
    "arithmetic",
    "FLOP/byte",
]
estimates.Table(columns, rows)

# %% [markdown]
# Sharing does two things at once. It takes bytes away, and it gives every byte that is left more work: the last
# column. This is the *arithmetic intensity* of unit 01, and it has a roof.
#
# **Exercise 03.8.** Work the intensity out for **bfloat16** caches (2 bytes an element): MHA; GQA with 64 query
# heads on 8 KV heads; DeepSeek-V3, where 128 query heads read the same 512 + 64 elements, all 576 for the score and
# the first 512 again for the value, in one reading. An H200 does 206 FLOPs in the time in which it reads a byte:
# what limits V3's attention there, `"memory"` or `"compute"`?

# %% answer="03.8"
flop_per_byte = {
    "MHA": None,
    "GQA-8, 64 query heads": None,
    "MLA, 128 query heads": None,
}
limit = None  # "memory" or "compute"
### BEGIN SOLUTION
flop_per_byte = {
    "MHA": 2
    * 1
    / 2,  # a multiplication and an addition for each query head, per element of 2 bytes
    "GQA-8, 64 query heads": 2 * 8 / 2,
    "MLA, 128 query heads": 2 * 128 * (576 + 512) / (2 * 576),
}
limit = "compute"
### END SOLUTION

# %% test="03.8" points=3
from helpers import check

check.grade("03.8", flop_per_byte, limit)
### BEGIN HIDDEN TESTS
mha, gqa, mla = (float(value) for value in flop_per_byte.values())
assert abs(mha - 1) < 0.02 and abs(gqa - 8) < 0.1, "an intensity is off"
assert min(abs(mla - 241.8), abs(mla - 256)) < 2.5, "MLA's intensity is off"
assert str(limit).strip().lower() == "compute", "the other one"
### END HIDDEN TESTS

# %%
from types import SimpleNamespace

rates = data.measurement("flashmla")["data"][
    0
]  # DeepSeek's FlashMLA on an H800, measured
h800 = SimpleNamespace(
    name="FlashMLA on an H800",
    read_bytes_per_second=1e9 * rates["mem_bound_GBps"],
    matmul_flops_per_second={"bfloat16": 1e12 * rates["compute_bound_TFLOPs"]},
)
models = {
    "MHA": 1,
    "GQA ×8": 8,
    "MLA, 16 heads (V2-Lite)": 30.2,
    "MLA, 64 heads (Kimi-K2)": 120.9,
    "MLA, 128 heads (V3)": 241.8,
}
peak = h800.matmul_flops_per_second["bfloat16"]
bounds = {
    label: (x, min(x * h800.read_bytes_per_second, peak)) for label, x in models.items()
}

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6))
name = str(dtype).removeprefix("torch.")
plots.roofline(
    left, card, points, dtype=name, title=f"attention, measured, {name}: {card.name}"
)
plots.roofline(
    right,
    h800,
    bounds,
    dtype="bfloat16",
    title="upper bounds at the rates of FlashMLA, H800, bfloat16",
)
for ax in (left, right):
    ax.legend(loc="upper left", fontsize=9)
plt.show()

# %% [markdown]
# The roof on the right is measured, not printed: DeepSeek's FlashMLA reads 3,000 GB/s where memory limits it and
# does 660 TFLOP/s where arithmetic does (data sheet: 3,350 and 989). Its ridge is 220 FLOP/byte, and V3 with 242
# lies beyond it. So V3's decode attention is **not** a question of bytes: storing its latent in 8 bits saves memory
# and hardly any time.
#
# In the left half, find your MLA. The distance from a point up to the roof is what its kernel leaves unused. Beyond
# the ridge, bytes no longer set the time: arithmetic does. A CPU's ridge is often so low that this MLA, with about
# the cache of GQA ×8, costs clearly more than its bytes say (how much of that is arithmetic, and how much its kernel,
# stands in the last table); on a large GPU it takes about 128 heads to get there.
#
# ## Explain
#
# **The inconvenient result.** The same decoder with your `grouped_attention`, with repeat-KV, and MHA for comparison.
# The attention of all is the same few lines of torch; only the traffic differs. Repeat-KV comes in two forms: as one
# writes it, with new copies in every step, and with copies written into buffers that are kept from step to step.


# %%
def repeat_kv(q, k, v):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return grouped_attention(q, k, v)  # groups of one: MHA


buffers = {}


def repeat_kv_kept(q, k, v):
    shape, copies = (*k.shape[:2], q.shape[1] // k.shape[1], *k.shape[2:]), []
    for which, stored in enumerate((k, v)):
        if (which, shape) not in buffers:
            buffers[which, shape] = torch.empty(shape, dtype=k.dtype, device=k.device)
        copies.append(
            buffers[which, shape].copy_(stored[:, :, None].expand(shape)).flatten(1, 2)
        )
    return grouped_attention(q, *copies)


# %% [markdown]
# The prediction takes your 17 for both.

# %%
far = contexts[-2]
versions = {
    "MHA": ("MHA", grouped_attention, 1),
    "repeat-KV": ("GQA ×8", repeat_kv, repeat_traffic),
    "repeat-KV, kept": ("GQA ×8", repeat_kv_kept, repeat_traffic),
    "grouped": ("GQA ×8", grouped_attention, 1),
}
rivals, moved = {}, {}
for label, (which, function, times) in versions.items():
    rivals[label] = (
        engines[which][0],
        plugged(function, shapes[which], room, dtype=dtype, device=spot),
    )
    moved[label] = times * far * kv[which]
race = sweeps.decode_sweep(rivals, [contexts[0], far], budget)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8))
names = ["MHA", *(f"GQA ×8\n{label}" for label in list(rivals)[1:])]
held = [cache.nbytes / 1e6 for _, cache in rivals.values()]
plots.bars(left, names, held, ylabel="KV cache held (MB)", title="bytes stored")
bytes_of = {label: moved[label] + rivals[label][0].weight_bytes for label in rivals}
took = {
    "from bytes moved": [
        1e3 * bytes_of[label] / card.read_bytes_per_second for label in rivals
    ],
    "measured": [race[label][far].ms for label in rivals],
}
half = {"measured": [race[label][far].spread_ms for label in rivals]}
plots.bars(
    right,
    names,
    took,
    spread=half,
    ylabel="TPOT (ms)",
    title=f"a decode step at {far:,} tokens",
)
right.set_ylim(bottom=0)
plt.show()

# %%
grown = {
    label: race[label][far].median - race[label][contexts[0]].median for label in rivals
}
rows = [
    [
        label,
        f"{held[i] / held[0]:.2f}",
        f"{moved[label] / moved['MHA']:.2f}",
        f"{grown[label] / grown['MHA']:.2f}",
    ]
    for i, label in enumerate(rivals)
]
estimates.Table(
    ["against MHA", "bytes stored", "bytes moved", f"time of {far:,} tokens"], rows
)

# %% [markdown]
# This is what the dashboard of the first paragraph saw: bytes *stored* fell 8 times, bytes *moved* did not fall at
# all. Name the residuals. Where the two forms of repeat-KV differ, it is the price of fresh memory: an operating
# system clears every page before it hands it out, and on a CPU this can cost more than the copying. Where grouped
# gains less than its bytes, or more, the pace differs: a product of plain torch may read at one pace with one query
# row and at another with eight. Others have seen memory fall and time stay:
#
# - mlx-lm#1679, M5 Pro: a kernel that read K and V once per query head. With 32 query and 32 KV heads it reached
#   281 GB/s at 32k tokens, with 64 on 8 (head_dim 64) 119 GB/s, 45 % of the 266 GB/s of a dense read.
# - rasbt's LLMs-from-scratch, naive PyTorch, 12 layers, 24 heads: MHA 72 tok/s with 1.54 GB, GQA 63 tok/s with 0.63
#   GB, MLA 67 tok/s with 0.68 GB. Memory fell 2.4 times, and every step got *slower*.
#
# **A published figure from bytes.** When vLLM first served DeepSeek-V2-Lite (27 layers, 16 heads), it knew no
# latents. It stored keys (192 wide) and values (128 wide) of every head, *both padded to 256*, in bfloat16. Its
# pool on an H100 was 35.42 GiB (vllm#10927).
#
# **Exercise 03.9.** How many tokens fit that pool, and how many when the latents (512 + 64) are stored as they are?

# %% answer="03.9"
tokens_that_fit = {
    "padded": None,
    "latent": None,
}
### BEGIN SOLUTION
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
assert abs(float(tokens_that_fit["padded"]) / 85_974 - 1) < 0.002, "padded"
assert abs(float(tokens_that_fit["latent"]) / 1_222_744 - 1) < 0.002, "latent"
### END HIDDEN TESTS

# %% [markdown]
# vLLM's log said 5,373 blocks of 16, that is 85,968 tokens. With a latent cache the same pool holds 14.2 times as
# many. Throughput rose from 10.47 to 18.5 requests a second: 1.8 times. Once room is no longer what is missing,
# something else is.
#
# **On more than one GPU.** Tensor parallelism gives each GPU a share of the *heads*. A KV head goes with its query
# heads. With more GPUs than KV heads, a KV head is kept by each GPU that needs it. The latent is needed by all
# heads.
#
# **Exercise 03.10.** Bytes per token *on each GPU*, all layers, bfloat16: Llama-3.1-405B (126 layers, 128 query
# heads, 8 KV heads of 128) on 8 and on 16 GPUs, and DeepSeek-V3 (61 layers, 128 heads, 512 + 64) on 8.

# %% answer="03.10"
bytes_per_gpu = {  # bytes of cache a token, on each GPU
    ("Llama-3.1-405B", 8): None,
    ("Llama-3.1-405B", 16): None,
    ("DeepSeek-V3", 8): None,
}
### BEGIN SOLUTION
bytes_per_gpu = {
    ("Llama-3.1-405B", 8): 2 * 126 * 1 * 128 * 2,  # one KV head each
    ("Llama-3.1-405B", 16): 2
    * 126
    * 1
    * 128
    * 2,  # still one each; every head is kept twice
    ("DeepSeek-V3", 8): 61 * (512 + 64) * 2,  # all of it, eight times
}
### END SOLUTION

# %% test="03.10" points=2
from helpers import check

check.grade("03.10", bytes_per_gpu)
### BEGIN HIDDEN TESTS
assert [float(value) for value in bytes_per_gpu.values()] == [64_512, 64_512, 70_272], (
    "bytes on one GPU"
)
### END HIDDEN TESTS

# %% [markdown]
# On 8 GPUs DeepSeek-V3 keeps *more* cache per GPU than Llama-3.1-405B: 70,272 against 64,512 bytes a token. And each
# GPU now has 16 of the heads and reads all the latents for them: 30 FLOP/byte instead of 242, limited by memory
# again. That is why engines can run its attention *data parallel* (so SGLang and vLLM call it): each GPU takes all
# heads of some of the sessions, and a latent is kept once.
#
# **Claims, tested.** You now have the arithmetic for each of these, all found in print:
#
# - "GQA-8 shrinks KV 8 times": query heads ÷ KV heads, from 2 (Qwen3-0.6B) over 5 (Maverick) to 16 (Llama-3.1-405B).
# - "MLA caches only the latent": the rotary key comes on top, 12.5 % more.
# - "Standard attention in DeepSeek-V3 would need 610 kB a token": with V2-Lite's 16 heads. V3 has 128: 4,880 KiB.
# - "Llama-3.1-405B needs 123 GB of KV at 128k": 61.5 GiB. 123 is what 16 GPUs keep together, each head twice.
#
# Last, your predictions and the names of what separates them from the measurements: what a step with an almost empty
# cache takes beyond its bytes; how much longer the arithmetic over the context takes than its reading, both at the
# rates of the card (nothing left of the ridge); and the rest, which is the pace of the kernel.

# %%
for label in engines:
    fixed = measured[label][0] - predicted[label][0]
    context = measured[label][-1] - predicted[label][-1] - fixed
    read = longest * kv[label]
    arithmetic = 1e3 * max(
        0, points[label][0] * read / card.rate(name) - read / card.read_bytes_per_second
    )
    key = f"03.tpot_ms_{label.replace(' ×', '')}_at_{longest}"
    residual = f"weights, launches {fixed:+.1f}, arithmetic {arithmetic:+.1f}, kernel {context - arithmetic:+.1f} ms"
    estimates.measured(key, measured[label][-1], residual=residual)
estimates.report("03")


# %%
def effect(label):
    busy = any(timed[which][longest].verdict != "ok" for which in ("MHA", label))
    return f"÷ {measured['MHA'][-1] / measured[label][-1]:.2f} at {longest:,} tokens, here{' (busy)' * busy}"


def smaller(label):
    return f"cache ÷ {engines['MHA'][1].nbytes / engines[label][1].nbytes:.1f}"


same = dict(ttft="hardly changed", quality="decided in training")
estimates.ledger(
    "03", "GQA ×8, grouped", tpot=effect("GQA ×8"), memory=smaller("GQA ×8"), **same
)
repeated = (
    f"its context takes {grown['repeat-KV'] / grown['MHA']:.2f} times MHA's, here"
)
estimates.ledger(
    "03",
    "GQA ×8 with repeat-KV",
    tpot=repeated,
    memory=smaller("GQA ×8") + " and copies",
    **same,
)
estimates.ledger(
    "03",
    "MLA, absorbed",
    tpot=effect("MLA") + "; compute-bound with many heads",
    memory=smaller("MLA") + "; not split by tensor parallelism",
    **same,
)

# %% [markdown]
# All of this is decided when a model is trained: it chooses your model for you and is no fix for tonight. What can
# be done to a cache that already exists is the matter of the next units: keep fewer tokens (04), share prefixes
# (05), use fewer bits (06).
