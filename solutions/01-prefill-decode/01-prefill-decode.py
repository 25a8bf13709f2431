# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 01 · Prefill versus decode
#
# ## The question
#
# A chat request has two latencies. **TTFT**, time to first token, is the wait before anything appears.
# **TPOT**, time per output token, is the pace at which the answer then scrolls. A user pastes a 1,024-token
# document and asks for one sentence. Where does the time go? And where, when the user asks for an essay?
#
# One model does both jobs, with the same weights, on the same chip. Yet one phase is limited by arithmetic and the
# other by memory. In this unit you find out which is which *before* you measure, write the `generate` that every
# serving engine contains, and put two popular rules of thumb to the test.
#
# About 70 minutes. You need the device card of unit 00; if you skipped that unit, it is measured on first use, in
# about ten seconds. But first see the effect: run the cells down to the first plot.

# %% tags=["parameters"]
device = "auto"
budget = "quick"

# %% tags=["setup"]
import time
from bisect import bisect_left

import torch

from helpers import check, drawings, estimates, plots
from helpers.caches import FullCache
from helpers.clock import devices, timing
from helpers.models.counts import kv_bytes, prefill_flops, weight_bytes
from helpers.models.decoder import Decoder
from helpers.models.geometry import get

plots.use()

# %%
where = devices.pick(device)
model = Decoder(get("SmolLM2-135M"), device=where)  # random weights, real time
cache = FullCache(model.geometry, capacity=257, device=where)
some_text = torch.randint(1_000, (1, 256), device=where)


def read_the_prompt():
    cache.rewind(0)
    return model.prefill(some_text, cache)


def write_one_token():
    cache.rewind(256)
    return model.decode(some_text[0, :1], cache)


# %%
both = {"prompt": read_the_prompt, "answer": write_one_token}
first = timing.Clock(where).sweep(both, 2.0, min_samples=4, label="both phases")
per_token = [first["prompt"].ms / 256, first["answer"].ms]
names = ["of a 256-token prompt", "of the answer"]
title = f"What one token costs on this machine ({where.type})"
title += timing.doubt(first.values())
_ = plots.bars(None, names, per_token, ylabel="time for each token (ms)", title=title)

# %% [markdown]
# Same model, same weights, same chip. Why is a token of the answer so much more expensive than a token of the
# prompt?
#
# ## Predict
#
# ### 1.1 How much arithmetic is one phase? (5 minutes)
#
# *What does the chip have to compute to read a prompt, and what for one more token?*
#
# Llama-3.1-8B. Each token that passes through the layers is multiplied with their **6.98 billion** weights.
# The output head has another **0.53 billion**; it is used only where a next token is wanted, so once in a
# prefill and once in a decode step. Each weight costs **two** FLOPs: one multiplication, one addition. A KV
# cache is kept. (It is the rule of 00.1. Attention over the context adds 2 % to this prefill and 4 % to the step:
# leave it out. Looking a token up in the embedding table multiplies nothing.)
#
# 1. The prefill of a 1,024-token prompt, in **TFLOP** (1e12).
# 2. One decode step after it, one sequence, in **GFLOP** (1e9).

# %% answer="01.1"
prefill_tflop = None  # TFLOP, 1,024-token prompt
decode_gflop = None  # GFLOP, one new token
### BEGIN SOLUTION
# HINT: Two FLOPs for each weight that is multiplied. How often is each of the two
#   groups of weights used?
# HINT: The layers see every token of the prompt, the head only its last one.
prefill_tflop = 2 * (6.98e9 * 1024 + 0.53e9) / 1e12
decode_gflop = 2 * (6.98e9 + 0.53e9) / 1e9
### END SOLUTION

# %% test="01.1" points=2
from helpers import check

check.grade("01.1", prefill_tflop, decode_gflop)
### BEGIN HIDDEN TESTS
assert 14.0 < float(prefill_tflop) < 14.9
assert 14.7 < float(decode_gflop) < 15.8
### END HIDDEN TESTS

# %% [markdown]
# ### 1.2 How much arithmetic for each byte? (6 minutes)
#
# *A chip that multiplies faster than it reads is idle unless each byte is used many times. How often is it
# used?*
#
# The weights are stored in bf16, **two bytes** each: 15.0 GB pass from memory to the cores. They pass
# **once** for the whole prefill, because all 1,024 tokens are multiplied with a weight while it is there.
# They pass once more for every decode step. (Leave out the KV cache, 0.13 GB at this length, and the
# activations, which an engine moves as well.)
#
# *Arithmetic intensity* is FLOPs done for each byte read.
#
# 1. Intensity of the 1,024-token prefill.
# 2. Intensity of a decode step.
# 3. An A100 multiplies bf16 at 312 TFLOP/s and reads 2,039 GB/s (data sheet). How many tokens must share
#    one pass over the weights so that multiplying takes as long as reading?

# %% answer="01.2"
prefill_intensity = None  # FLOP/byte
decode_intensity = None  # FLOP/byte
tokens_at_ridge = None  # tokens in one pass
### BEGIN SOLUTION
# HINT: FLOPs of 1.1 over the 15.0 GB of one pass.
# HINT: For the third: n tokens do 2 n FLOPs with a weight of 2 bytes. When does that
#   take as long as reading it?
# WHY: The factors of two cancel: in 16 bits the tokens at the ridge are FLOP/s over
#   bytes/s.
prefill_intensity = prefill_tflop * 1e12 / 15.0e9
decode_intensity = decode_gflop * 1e9 / 15.0e9
tokens_at_ridge = (312e12 / 2) / (2039e9 / 2)
### END SOLUTION

# %% test="01.2" points=2
from helpers import check

check.grade("01.2", prefill_intensity, decode_intensity, tokens_at_ridge)
### BEGIN HIDDEN TESTS
assert 880 < float(prefill_intensity) < 1050
assert 0.9 < float(decode_intensity) < 1.1
assert 145 < float(tokens_at_ridge) < 161
### END HIDDEN TESTS

# %% [markdown]
# ### 1.3 How busy is the arithmetic? (5 minutes)
#
# *"Our GPUs run at 50 % utilisation in prefill and 5 % in decode." Can the second figure be right?*
#
# Utilisation here is FLOPs done ÷ (seconds × peak FLOP/s), often called MFU. `nvidia-smi` shows something
# else: the share of time in which *any* kernel runs. It can read 100 % while hardly anything is multiplied.
#
# 1. The decode step of 1.2, one sequence, limited by reading alone: its utilisation of an A100, in **per
#    cent**.
# 2. With several sequences in one batch, the weights are still read once. At how many sequences does
#    utilisation reach 5 %? (Leave the KV cache out.)

# %% answer="01.3"
decode_utilisation_percent = None  # %
batch_at_5_percent = None  # sequences
### BEGIN SOLUTION
# HINT: How long does it take to read the weights once at 2,039 GB/s? That is the
#   step.
# HINT: FLOPs of the step over what the chip could have done in that time. With B
#   sequences, B times as much.
step_seconds = 15.0e9 / 2039e9
decode_utilisation_percent = 100 * decode_gflop * 1e9 / step_seconds / 312e12
batch_at_5_percent = 5 / decode_utilisation_percent
### END SOLUTION

# %% test="01.3" points=2
from helpers import check

check.grade("01.3", decode_utilisation_percent, batch_at_5_percent)
### BEGIN HIDDEN TESTS
assert 0.61 < float(decode_utilisation_percent) < 0.71
assert 7.1 < float(batch_at_5_percent) < 8.2
### END HIDDEN TESTS

# %% [markdown]
# ### 1.4 When does decode take over? (6 minutes)
#
# *How long must the answer be before the user waits longer for the answer than for its first word?*
#
# No engine reaches the peaks. Take 60 % of the A100's arithmetic in prefill and 80 % of its bandwidth in
# decode. So the prefill runs at 187 TFLOP/s, and one decode step takes 15.0 GB ÷ 1,631 GB/s = 9.2 ms.
#
# 1. After a **1,024**-token prompt: how many output tokens until decoding has taken as long as the prefill?
# 2. After an **8,192**-token prompt? (Attention now adds 15 % to the prefill; with or without it is
#    accepted.)
# 3. Every answer has 128 tokens. As the prompt grows from 1k to 32k, does decode's *share* of the request's
#    time rise or fall? Answer `"rises"` or `"falls"`.

# %% answer="01.4"
crossover_1k = None  # output tokens
crossover_8k = None  # output tokens
decode_share = None  # "rises" or "falls"
### BEGIN SOLUTION
# HINT: Seconds of the prefill over seconds of one decode step.
# HINT: The prefill's FLOPs are your 1.1, at 187 TFLOP/s. At 8k they are eight times
#   as many, and 15 % for attention.
crossover_1k = 14.3e12 / 187e12 / 9.2e-3
crossover_8k = 2 * 6.98e9 * 8192 * 1.15 / 187e12 / 9.2e-3
decode_share = "falls"
### END SOLUTION

# %% test="01.4" points=2
from helpers import check

check.grade("01.4", crossover_1k, crossover_8k, decode_share)
### BEGIN HIDDEN TESTS
assert 7.6 < float(crossover_1k) < 10.4
assert 59 < float(crossover_8k) < 79
assert str(decode_share).strip().lower() == "falls"
### END HIDDEN TESTS

# %% [markdown]
# ## Build
#
# ### 1.5 `generate`, with a cache (8 minutes)
#
# *What does an engine do between your prompt and the words on the screen?*
#
# Write it, greedy: the next token is always the likeliest one, the argmax of the logits. The decoder has
# two entry points:
#
# - `decoder.prefill(tokens, cache)`: tokens `[1, t]`, returns logits `[1, vocab]` for the token *after* the
#   last one, and leaves the keys and values of all t tokens in `cache`;
# - `decoder.decode(tokens, cache)`: tokens `[1]`, the newest token, returns the same for the next one. A
#   tensor you make yourself goes on `decoder.device`.
#
# The user should see each token as soon as it is known, so `yield` it. For a prompt `[5, 9]` and `count=3`:
# prefill `[[5, 9]]` → yield a → decode `[a]` → yield b → decode `[b]` → yield c. Three tokens, two decode
# steps.


# %% answer="01.5"
def generate(decoder, cache, prompt, count):
    """Yield `count` greedy next tokens (int) after `prompt`, int64 [t]; `cache` is
    empty and large enough."""
    ### BEGIN SOLUTION
    # HINT: The logits of the prefill give the first token already. What does decode
    #   need to give the second?
    # HINT: count tokens take count − 1 decode steps: where in the loop is the last
    #   one left out?
    logits = decoder.prefill(prompt[None], cache)
    for step in range(count):
        token = int(logits.argmax())
        yield token
        if step < count - 1:
            logits = decoder.decode(torch.tensor([token], device=logits.device), cache)
    ### END SOLUTION


# %% test="01.5" points=4
from helpers import check

check.grade("01.5", generate)


### BEGIN HIDDEN TESTS
class Script:
    """Stands for a decoder: its next token is the newest token plus the number of
    tokens seen, modulo 50."""

    seen = steps = 0
    device = torch.device("cpu")

    def prefill(self, tokens, cache):
        self.seen += tokens.shape[1]
        return torch.eye(50)[[(int(tokens[0, -1]) + self.seen) % 50]]

    def decode(self, tokens, cache):
        self.seen, self.steps = self.seen + 1, self.steps + 1
        return torch.eye(50)[(tokens.reshape(-1) + self.seen) % 50]


script, room = Script(), FullCache(get("SmolLM2-135M"), capacity=8)
assert [int(token) for token in generate(script, room, torch.tensor([3, 1, 4]), 5)] == [
    7,
    11,
    16,
    22,
    29,
]
assert script.steps == 4
### END HIDDEN TESTS

# %% [markdown]
# ### 1.6 TTFT and TPOT from timestamps (7 minutes)
#
# *Two dashboards show different TPOT for the same server. Who is right?*
#
# A benchmark client knows when it sent the request, and when each chunk of the stream arrived with how many
# tokens in it. For n tokens in all, k of which came with the first chunk,
#
# $$\text{TTFT} = t_\text{first token} - t_\text{sent}, \qquad
# \text{TPOT} = \frac{t_\text{last token} - t_\text{first token}}{n - k}$$
#
# Most of the time k is 1, and the formula reads as in the textbooks: n tokens have n − 1 gaps. But speculative
# decoding delivers several tokens at once, and so does a server that holds text back until a tool call is
# complete. Tokens of the first chunk were all there when TTFT ended, so no time of TPOT went into them. Count them
# all the same, and the server looks faster than it is. **Time and tokens have to cover the same stretch.**
#
# Real clients got this wrong. Two did so in their list of *inter-token latencies*, the single gaps behind TPOT. One put
# TTFT on the list as well ([vllm#7242](https://github.com/vllm-project/vllm/issues/7242)). One took the gap between
# two chunks for the gap between two tokens: it showed 8.72 ms at 292 tokens a second, which are 3.42 ms each
# ([sglang#12064](https://github.com/sgl-project/sglang/pull/12064)). A third took n − 1 tokens for its decode speed,
# whatever the first chunk held ([FastDeploy#8113](https://github.com/PaddlePaddle/FastDeploy/pull/8113)).
#
# Example: sent at 10.0 s, chunks `[(10.5, 1), (10.6, 2), (10.7, 2)]` → TTFT 0.5 s, TPOT 0.2 / 4 = 0.05 s.


# %% answer="01.6"
def latency(sent, chunks):
    """(TTFT, TPOT) in seconds.

    sent: when the request left, seconds. chunks:
    [(arrival in seconds, tokens in the chunk), ...] in order.
    A chunk may hold 0 tokens (a header, a keep-alive).
    Where no token follows the first chunk, TPOT is float("nan").
    """
    ### BEGIN SOLUTION
    # HINT: Drop the chunks without tokens first. What are then the first and the last
    #   arrival?
    # HINT: How many tokens came after the first chunk? If none did, there is nothing
    #   to divide by.
    # WHY: Time and tokens have to cover the same stretch, which begins after the
    #   first chunk.
    arrivals = [(at, tokens) for at, tokens in chunks if tokens]
    first, last = arrivals[0][0], arrivals[-1][0]
    later = sum(tokens for _, tokens in arrivals[1:])
    tpot = (last - first) / later if later else float("nan")
    return first - sent, tpot
    ### END SOLUTION


# %% test="01.6" points=3
from helpers import check

check.grade("01.6", latency)
### BEGIN HIDDEN TESTS
answer = [
    float(x)
    for x in latency(3.0, [(3.1, 0), (3.25, 1), (3.35, 3), (3.45, 2), (9.0, 0)])
]
assert abs(answer[0] - 0.25) < 1e-6 and abs(answer[1] - 0.04) < 1e-6
answer = [float(x) for x in latency(0.0, [(0.2, 3), (0.3, 1), (0.5, 2)])]
assert abs(answer[0] - 0.2) < 1e-6 and abs(answer[1] - 0.1) < 1e-6
first, gap = latency(1.0, [(1.5, 1)])
assert abs(float(first) - 0.5) < 1e-6 and gap != gap
### END HIDDEN TESTS

# %% [markdown]
# ### 1.7 A model of the whole request (10 minutes)
#
# *Which phase will this customer pay for?*
#
# Turn 1.1 to 1.4 into a function for any model, prompt, answer and batch. You are given counters that look
# at real tensors:
#
# - `prefill_flops(g, prompt)`: FLOPs of one sequence's prefill, attention included;
# - `weight_bytes(g)`: bytes of weights that one step reads, bf16;
# - `kv_bytes(g, tokens)`: bytes that a cache of so many tokens holds, one sequence, bf16.
#
# The prefill produces the first token. Each later token takes one decode step. Step i (1, 2, …, outputs − 1)
# reads the weights once for the whole batch, and one cache for each sequence. By then that cache holds prompt + i
# tokens, since the newest token's own key and value are in it, too. Prefill is limited by arithmetic, decode by
# reading.


# %% answer="01.7"
def phases(g, prompt, outputs, batch, flops_per_second, bytes_per_second):
    """(prefill seconds, decode seconds) of `batch` equal requests served together on
    geometry g."""
    ### BEGIN SOLUTION
    # HINT: Prefill: FLOPs over FLOP/s, for every sequence of the batch. Decode: add
    #   up the bytes of all steps.
    # HINT: Each of the outputs − 1 steps reads the weights once, and for each
    #   sequence kv_bytes(g, 1) × (prompt + i).
    # WHY: 1 + 2 + … + steps is steps × (steps + 1) / 2, so no loop is needed.
    prefill = batch * prefill_flops(g, prompt) / flops_per_second
    steps = outputs - 1
    cached_tokens = steps * prompt + steps * (steps + 1) / 2
    read = steps * weight_bytes(g) + batch * kv_bytes(g, 1) * cached_tokens
    return prefill, read / bytes_per_second
    ### END SOLUTION


# %% test="01.7" points=3
from helpers import check

check.grade("01.7", phases)
### BEGIN HIDDEN TESTS
answer = [
    float(x) for x in phases(get("Llama-3.1-8B"), 1024, 128, 1, 1.872e14, 1.6312e12)
]
assert abs(answer[0] / 0.07783 - 1) < 0.01 and abs(answer[1] / 1.1797 - 1) < 0.01
answer = [
    float(x) for x in phases(get("Llama-3.1-8B"), 8192, 3, 16, 1.872e14, 1.6312e12)
]
assert abs(answer[0] / 11.277 - 1) < 0.01 and abs(answer[1] / 0.039473 - 1) < 0.01
answer = phases(get("Llama-3.1-8B"), 4, 2, 1024, 1e14, 1e12)  # 5 tokens each
assert abs(float(answer[1]) / 0.01568 - 1) < 0.002
### END HIDDEN TESTS

# %% [markdown]
# ## Measure
#
# Now your own device, with a real model: SmolLM2-135M, fp32 weights. First the prediction, from the device
# card: a prompt of P tokens takes as long as the slower of its arithmetic and one pass over the weights.

# %%
from helpers.clock.sweeps import DecodeStep
from helpers.models import pretrained, text
from helpers.models.counts import decode_flops

card = devices.card(where)
card.show()

# %%
decoder, tokenizer = pretrained.load(device=where)
g = decoder.geometry
clock = timing.Clock(where)
prompts = [1, 4, 16, 64, 256] if budget == "quick" else [1, 4, 16, 64, 256, 1024]
words = text.tokens(prompts[-1], tokenizer).to(where)
print(f"{g.name}: a step reads {decoder.weight_bytes / 1e6:,.0f} MB of weights")
print(f"Ridge of this device in float32: {4 / 2 * card.ridge():.0f} tokens in one pass")

# %% [markdown]
# One pass reads a prompt, however long; then each token of the answer is a pass of its own. The folded cell lets the
# model read six tokens in one pass and three more in a pass each, and asks the cache after each what it holds:

# %% jupyter={"source_hidden": true}
held, passes = FullCache(g, 16, device=where), {}
for name, new in {"prefill": 6, "step 1": 1, "step 2": 1, "step 3": 1}.items():
    old = held.length
    decoder.prefill(words[None, :new], held)
    passes[name] = [("", "old")] * old + [("", "new")] * (held.length - old)
_ = drawings.boxes(
    passes,
    {"old": "read from the cache", "new": "computed in this pass"},
    title=f"Four passes, {g.name}: each reads all weights once",
    columns="place in the cache (token)",
)

# %%
predicted = [
    n / card.floor_seconds(decoder.weight_bytes, prefill_flops(g, n)) for n in prompts
]
for n, rate in zip(prompts, predicted, strict=True):
    estimates.predict(f"01.prefill_tokens_per_second_{n}", rate, "tokens/s")


# %%
def prefill_step(count):
    """A zero-argument prefill of `count` tokens into a cache that is emptied first."""
    cache = FullCache(g, capacity=count, device=where)

    def step():
        cache.rewind(0)
        return decoder.prefill(words[None, :count], cache)

    return step


# %%
seconds = 5 if budget == "quick" else 30
timed = clock.sweep(
    {n: prefill_step(n) for n in prompts}, seconds, min_samples=5, label="prefill"
)
print(timing.listed({f"{n:,} tokens": t for n, t in timed.items()}))

# %%
measured = [n / timed[n].median for n in prompts]
spread = [n / timed[n].median ** 2 * timed[n].spread for n in prompts]
labels = dict(xlabel="prompt (tokens)", ylabel="prefill rate (tokens/s)")
title = f"Prefill, {g.name}, {card.name}{timing.doubt(timed.values())}"
labels |= dict(title=title, xlog=True, ylog=True)
_ = plots.prediction(None, prompts, predicted, measured, spread, **labels)
for n, rate in zip(prompts, measured, strict=True):
    key, rest = f"01.prefill_tokens_per_second_{n}", "perhaps attention, small kernels"
    estimates.measured(key, rate, residual=rest, verdict=timed[n].verdict)

# %% [markdown]
# Read the predicted line from the left. One token at a time is slow, because each token pays for a whole pass over
# the weights. A few more tokens share the pass, so the rate climbs. Then the line bends: arithmetic has taken over,
# and a longer prompt takes proportionally longer. The bend is the ridge of *your* device, printed above; the A100's
# was your third answer in 1.2. Do your points follow? On a fast GPU this small model may climb all the way: each
# prompt then takes about as long as its launches, whatever its length.
#
# The gap below the line is the **residual**. The card's rates come from one large read and one large product. A
# model of 135M parameters makes hundreds of small products instead, with attention, norms and Python between them.
# How much each of them takes, this plot cannot say.
#
# ### The same bend in decode: batch
#
# A batch of B sequences shares a pass over the weights just as B tokens of a prompt do. Only their caches
# are their own.

# %%
batches = [1, 2, 4, 8, 16]
points = {
    b: DecodeStep(decoder, FullCache(g, capacity=130, batch=b, device=where))
    for b in batches
}
read = {b: point.bytes_at(128) for b, point in points.items()}
floors = {b: read[b] / card.read_bytes_per_second for b in batches}
seconds = 4 if budget == "quick" else 20
at_128 = {b: p.at(128) for b, p in points.items()}
steps = clock.sweep(at_128, seconds, floors=floors, label="decode")
print(timing.listed({f"batch {b}": t for b, t in steps.items()}))

# %% [markdown]
# What one pass reads. A prompt, however long, and a batch, however large, need the weights once. A step of the answer
# also reads the keys and values that earlier passes left, for each sequence its own.

# %%
longest = prompts[-1]
streams = {f"prompt of {longest:,}": {"weights": decoder.weight_bytes}}
for b in batches:
    half = (read[b] - decoder.weight_bytes) / 2  # keys are half, values half
    parts = {"weights": decoder.weight_bytes, "keys": half, "values": half}
    streams[f"step, batch {b}"] = parts
title = f"One pass of {g.name}, float32; 128 tokens of context"
_ = drawings.step_bytes(streams, title=title)

# %%
flops = {b: decode_flops(g, 129, batch=b) for b in batches}
floor = [b / card.floor_seconds(read[b], flops[b]) for b in batches]
rates = [b / steps[b].median for b in batches]
widths = [b / steps[b].median ** 2 * steps[b].spread for b in batches]
labels = dict(xlabel="batch (sequences)", ylabel="decode rate (tokens/s)")
title = f"Decode at 128 tokens of context, {g.name}{timing.doubt(steps.values())}"
labels |= dict(title=title, xlog=True)
_ = plots.prediction(None, batches, floor, rates, widths, **labels)
rest = "perhaps norms, launches, Python"
estimates.predict("01.decode_ms_batch_1", 1e3 * floors[1], "ms")
one = steps[1]
estimates.measured("01.decode_ms_batch_1", one.ms, residual=rest, verdict=one.verdict)

# %% [markdown]
# Left of the bend, a larger batch is nearly free: twice the tokens for the same pass over the weights. How much
# longer does a step of two sequences take than a step of one on your device? A batch helps the server, not the
# single user, who still waits a whole step for each token.
#
# ### Both phases under one roof
#
# The roofline of unit 00. To the right: FLOPs for each byte read. Upwards: FLOPs done in a second. A point on the
# black line gets all that the device can give. How far to the *right* a point lies is decided by the phase and the
# batch, not by the code.

# %%
roof = {}
for n in prompts[1:]:
    work = prefill_flops(g, n)
    roof[f"prefill {n}"] = work / decoder.weight_bytes, work / timed[n].median
for b in (1, 4, 16):
    roof[f"decode, batch {b}"] = flops[b] / read[b], flops[b] / steps[b].median
_ = plots.roofline(None, card, roof)

# %% [markdown]
# ### What the cache saves
#
# Your `generate` against the way without a cache, which reads the whole text again for every token. Same model,
# same prompt. In exact arithmetic a cache changes no token. In floating point the two ways add up in another order,
# so that two tokens with almost equal scores may change places. Watch whether it happens.
#
# First what your `phases` expects. `phases` counts two bytes for each element and this model has four, so it gets
# half the bandwidth.

# %%
question = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
prompt = torch.tensor(tokenizer.encode(question).ids, device=where)
count = 24 if budget == "quick" else 128
expected = phases(
    g, len(prompt), count, 1, card.rate("float32"), card.read_bytes_per_second / 2
)
estimates.predict("01.ttft_ms", 1e3 * expected[0], "ms")
estimates.predict("01.tpot_ms", 1e3 * expected[1] / (count - 1), "ms")


# %%
def recompute(decoder, prompt, count):
    """Greedy tokens without a KV cache: each comes from a prefill of everything so
    far."""
    for _ in range(count):
        scratch = FullCache(g, capacity=len(prompt), device=where)
        token = int(decoder.prefill(prompt[None], scratch).argmax())
        yield token
        prompt = torch.cat([prompt, torch.tensor([token], device=where)])


# %%
def stamped(stream):
    """(tokens, seconds from the start to each, TTFT, TPOT) of a stream of tokens;
    times in seconds."""
    sent = time.perf_counter()
    chunks = [
        (int(token), time.perf_counter()) for token in stream
    ]  # int() waits for the device
    ttft, tpot = latency(sent, [(at, 1) for _, at in chunks])
    print(f"TTFT {1e3 * ttft:6.1f} ms    TPOT {1e3 * tpot:6.1f} ms")
    return [token for token, _ in chunks], [at - sent for _, at in chunks], ttft, tpot


# %%
def fresh():
    return FullCache(g, len(prompt) + count, device=where)


print(f"{count} tokens with a cache, twice, then as many without one …")
list(generate(decoder, fresh(), prompt, 2))  # the first call warms the kernels up
runs = [stamped(generate(decoder, fresh(), prompt, count)) for _ in range(2)]
cached, cached_at, *_ = runs[-1]
again, again_at, *_ = stamped(recompute(decoder, prompt, count))
same = next((i for i in range(count) if cached[i] != again[i]), count)
print(tokenizer.decode(cached))
print(f"the two ways agree on the first {same} of {count} tokens")

# %%
rest = "perhaps small products, norms, launches"
_, _, *latencies = zip(*runs, strict=True)  # TTFT of both runs, TPOT of both
seen = [timing.Timing(pair) for pair in latencies]
verdict = "busy" if timing.doubt(seen) else "ok"  # the same runs gave both
for name, t in zip(("ttft", "tpot"), seen, strict=True):
    estimates.measured(f"01.{name}_ms", t.ms, residual=rest, verdict=verdict)

# %%
line = [expected[0] + n * expected[1] / (count - 1) for n in range(count)]
times = {
    "with a KV cache": cached_at,
    "recomputed": again_at,
    "predicted by phases": line,
}
labels = dict(xlabel="output (tokens)", ylabel="time since the request (s)")
title = f"{len(prompt)}-token prompt, {g.name}{timing.doubt(seen)}"
plots.curve(None, range(1, count + 1), times, title=title, **labels)
estimates.report("01")

# %% [markdown]
# Which of the two is further from its prediction, TTFT or TPOT? If it is TTFT, look at the model before the machine:
# `phases` lets arithmetic alone limit a prefill. Where so few tokens lie below the ridge printed above, one pass over
# the weights takes longer than the multiplying. `phases` was made for prompts of hundreds of tokens.
#
# ## Explain
#
# ### "Prefill dominates under 1k tokens, decode beyond 4k"
#
# A rule of thumb that names nothing but prompt lengths. Your `phases` can test it, on Llama-3.1-8B and an A100 at
# 60 % of its arithmetic and 80 % of its bandwidth: decode's share of the request, in per cent.

# %%
llama = get("Llama-3.1-8B")
a100 = {"flops_per_second": 0.6 * 312e12, "bytes_per_second": 0.8 * 2.039e12}
contexts, answers = [512, 1024, 4096, 8192, 32768], [8, 32, 128, 512, 2048]


def decode_percent(prompt, outputs):
    prefill, decode = phases(llama, prompt, outputs, 1, **a100)
    return 100 * decode / (prefill + decode)


share = [[decode_percent(c, n) for c in contexts] for n in answers]
labels = dict(xlabel="prompt (tokens)", ylabel="output (tokens)")
labels |= dict(unit="decode's share of the time (%)", form="{:.0f}")
rows, columns = ([f"{n:,}" for n in sizes] for sizes in (answers, contexts))
labels |= dict(title="Llama-3.1-8B, A100, batch 1")
_ = plots.heat(None, share, rows, columns, **labels)

# %% [markdown]
# Follow a row: for a fixed answer, a longer prompt makes **prefill** more important, the opposite of the rule. With
# 128 output tokens decode takes 94 % of the time at 1k, 79 % at 4k, 64 % at 8k and 28 % at 32k. Follow a column:
# what decides is the length of the *answer*. Decode passes prefill after 10 output tokens at 1k, and after 73 at
# 8k. So other thresholds cannot save the rule: it lacks the variable that matters.
#
# The rule comes with a second half: *"at 8k context decode is 80 % of the time on an A100, at 32k it triples."* Ask `phases` again. How long must the answer be for 80 %? And how much longer does a decode step take at
# 32k than at 8k?

# %%
lengths = range(2, 2_000)  # decode's share grows with the answer, so bisect
enough = lengths[bisect_left(lengths, 80, key=lambda n: decode_percent(8_192, n))]
print(f"80 % at 8k from {enough} output tokens on")
for batch in (1, 4, 16, 28):
    step = {c: phases(llama, c, 2, batch, **a100)[1] for c in (8_192, 32_768)}
    growth = step[32_768] / step[8_192]
    print(f"batch {batch:2}: a step at 32k takes {growth:.2f} times one at 8k")

# %% [markdown]
# So 80 % is right for an answer of 287 tokens, or about as many. And a step that triples needs 28 sequences side by side:
# a single one takes 1.20 times as long, since most of what it reads is weights. Unit 02 is about this growth.
#
# ### "50 % utilisation in prefill, 5 % in decode"
#
# Measured on an A100 by a vLLM user ([vllm#42058](https://github.com/vllm-project/vllm/issues/42058)):
# Qwen3-8B in bf16, eight requests at a time. TTFT, and decode tokens a second over all eight.

# %%
from helpers import data

qwen = get("Qwen3-8B")
source = data.measurement("vllm-a100-fp8-phase")["data"]
for row in (row for row in source if "prefill" in row):
    n, step = row["prefill"], 8 / row["dec_bf16"]  # tokens, seconds
    prefill_use = 8 * prefill_flops(qwen, n) / row["ttft_bf16"] / 312e12
    decode_use = decode_flops(qwen, n, batch=8) / step / 312e12
    floor_ms = 1e3 * (weight_bytes(qwen) + 8 * kv_bytes(qwen, n)) / 2039e9
    print(f"{n:6,} tokens: prefill {prefill_use:4.0%} of peak", end="   ")
    print(
        f"decode {decode_use:.1%}, {1e3 * step:.1f} ms; bytes alone {floor_ms:.1f} ms"
    )
print(f"you predicted {decode_utilisation_percent:.2f} % for one sequence")

# %% [markdown]
# Prefill reaches 67 to 70 % (if the eight prompts are prefilled together), better than the rule. Decode reaches 1.1 %
# to 1.7 %, at batch 8, where bytes alone would allow two to four times as much. For 5 % it takes eight sequences
# *and* a perfect engine.
#
# **The inconvenient part** is the last column. A step takes 35 to 37 ms at every context, while its byte floor
# doubles from 8 to 17 ms. Neither arithmetic nor bytes set this pace. The first suspect is launches: the server ran
# with `enforce_eager`, which turns CUDA graphs off, so that every small kernel is launched from Python. It is a
# suspicion, since the thread holds no profile. What it does hold is a trial of half the cache bytes (fp8): decode
# gained 0.4 to 5.5 %, where the byte floors promise 4 to 39 %. So compare a measured step with its byte floor
# *first*. Where they lie far apart, fewer bytes buy little.
#
# **What a CUDA graph does about it.** It records the launches of a whole step once; from then on the step is one
# launch. On the simulated device of unit 00, with round numbers: 400 kernels of 8 µs each, 20 µs to launch one.

# %%
from helpers.clock.simulated import SimulatedDevice

eager, graph = SimulatedDevice(launch_seconds=20e-6), SimulatedDevice(20e-6)
for _ in range(400):
    eager.launch(8e-6)
graph.launch(400 * 8e-6)
for name, simulated in (("one by one", eager), ("as a graph", graph)):
    simulated.synchronize()
    print(f"{name}: {1e3 * simulated.now():.2f} ms, of which kernels 3.20 ms")

# %% [markdown]
# One by one, the device idles between kernels, and halving the bytes of each would change next to nothing. Launches
# hide only behind kernels that take longer than they do. The price of a graph: addresses and shapes are fixed when
# it is recorded.
#
# ### From bytes to tokens per second
#
# gpt-fast compiles the step and replays it as a CUDA graph, so that few launches are left. Its README gives tokens a
# second at batch 1 on an A100 (limited to 330 W; 5 tokens of prompt and 200 of answer, prefill included). Take
# *one* of its rows, Llama-2-7B in bf16, read the machine's rate off it, and predict the others from their bytes:
# another model, and the same one with 8-bit and 4-bit weights.

# %%
table = {(r["model"], r["prec"]): r for r in data.measurement("gptfast-a100")["data"]}
rows = [
    ("Llama-2-7B", "bf16"),
    ("Llama-3.1-8B", "bf16"),
    ("Llama-2-7B", "int8"),
    ("Llama-2-7B", "int4 g32"),
]
small, large = get("Llama-2-7b-hf"), get("Llama-3.1-8B")
# gpt-fast allocates 5 + 200 tokens of cache, rounded up to 208, and reads them all.
step_bytes = [weight_bytes(m) + kv_bytes(m, 208) for m in (small, large)]
step_bytes.append(weight_bytes(small) / 2 + kv_bytes(small, 208))  # int8
# Of int4 with its scales take the bytes that gpt-fast counts: GB/s over tokens/s.
step_bytes.append(1e9 * table[rows[3]]["GBps"] / table[rows[3]]["tok_s"])

# %%
published = [table[row]["tok_s"] for row in rows]
rate = published[0] * step_bytes[0]  # bytes/s
print(f"the first row gives {rate / 1e9:,.0f} GB/s, of 2,039 on the data sheet")
guesses = [rate / size for size in step_bytes]
names = [f"{model}\n{precision}" for model, precision in rows]
bars = {"from bytes": guesses, "published": published}
title = "gpt-fast, batch 1, A100 (the first pair is the fitted one)"
plots.bars(None, names, bars, ylabel="decode rate (tokens/s)", title=title)
for row, size, guess, seen in zip(rows, step_bytes, guesses, published, strict=True):
    print(
        f"{' '.join(row):20} {size / 1e9:5.2f} GB {guess:6.1f} expected, {seen} "
        "published"
    )

# %% [markdown]
# Another model, with a wider MLP (the matrices that follow attention in each layer), a quarter of the KV heads and four
# times the vocabulary: 1 % off. One number for the machine and one for the model are enough. That is the invariant of
# this course: **a decode step takes as long as the bytes it must stream.** So far those bytes were almost all
# weights. Unit 02 adds the part that grows.
#
# Note what the fitted number swallows. 1,398 GB/s is 69 % of the data sheet; the README itself puts the practical
# peak of these 330 W cards near 1,700. What takes the rest, the table does not say.
#
# The narrow weights are the honest counterexample. int8 has half the bytes, and runs 1.48 times as fast where bytes
# promise 1.98. int4 with its scales has a third, and runs 1.88 times as fast where bytes promise 3.04. Whatever is
# not reading (unpacking the numbers, perhaps, and the small kernels between) weighs more when fewer bytes are left.
# A lever can take away only what the step waits for.
#
# ### And without a cache?
#
# "Without a cache, each step recomputes attention over everything." That is too mild: it recomputes everything, the
# projections and the MLP of every earlier token as well. For Llama-3.1-8B at 8,192 tokens that
# is 1.3e14 FLOPs instead of 1.9e10, about 6,800 times as many. With a cache, old rows are never computed
# again; the new token only *reads* them. The rest of the course is about that reading.

# %%
estimates.ledger(
    "01",
    "keep a KV cache",
    tpot="÷ thousands in FLOPs at 8k",
    ttft="unchanged",
    memory="+131 kB a token (Llama-3.1-8B, bf16)",
    quality="the same but for rounding",
)
