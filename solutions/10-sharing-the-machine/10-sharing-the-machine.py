# %% [markdown]
# # 10 · Sharing the machine
#
# ## The question
#
# A user writes: *the answer was streaming along, then it froze for a second, then it went on.* His history is
# short, the model is the same, the GPU is half idle. Somebody else had sent a long document. **Who decides
# whose tokens are computed next, what does that do to everybody's clock, and how many can share one machine?**
#
# The two cells below the imports show the freeze: a running chat, and after its eighth token somebody else's prompt of 512
# tokens, read in one piece, or in chunks of 64.
#
# You will predict the freeze and its cure, write the two decisions of a scheduler, and put real requests
# through it. (About 75 minutes.)

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures more

# %% tags=["setup"]
import statistics
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from helpers import check, data, drawings, estimates, plots
from helpers.caches import BlockPool, FullCache, PagedCache
from helpers.clock import devices, sweeps, timing
from helpers.exercises.traffic import Traffic
from helpers.models import pretrained, text
from helpers.models.counts import decode_flops, prefill_flops
from helpers.models.decoder import Decoder
from helpers.models.generate import greedy
from helpers.progress import each
from helpers.serving import traces
from helpers.serving.scheduler import Arrival, Scheduler, from_trace, poisson

plots.use()

# %%
spot = devices.pick(device)
model, tokenizer = pretrained.load(device=spot)
words = text.tokens(2_048, tokenizer).tolist()


def freeze(token_budget, long=512):
    """A chat of 24 tokens; after 8 of them comes a prompt of `long` tokens. Returns
    both, with their times."""
    pool = BlockPool(model.geometry, 48, 16, positions=768, device=spot)
    served = Scheduler(model, pool, token_budget)
    chat = served.submit(Arrival(0.0, tuple(words[:64]), 24))
    while len(chat.answer) < 8:
        served.step()
    late = served.submit(Arrival(served.seconds, tuple(words[64 : 64 + long]), 2))
    while served.running or served.waiting:
        served.step()
    return chat, late


# %%
freeze(32, long=32)  # warms up
limits = each([("in one piece", None), ("chunks of 64", 65)], "a prompt comes in")
frozen = {how: freeze(tokens) for how, tokens in limits}
gaps_ms = {
    how: [1e3 * gap for gap in chat.gaps_seconds] for how, (chat, _) in frozen.items()
}
ax = plots.curve(
    None,
    list(range(2, 25)),
    gaps_ms,
    xlabel="token of the running chat (1)",
    ylabel="time since its last token (ms)",
    title="Somebody else's prompt comes in after token 8",
)

# %% [markdown]
# ## Predict
#
# The time between two tokens of a running chat is its **inter-token latency** (ITL); TPOT is its mean. A
# server works in **steps**. In one step every running answer grows by a token (**continuous batching**:
# requests come and go between any two steps), and prompts are read as well. **Chunked prefill** cuts a prompt
# into chunks, one for each step.
#
# Llama-3.1-8B on an H100: a step reads 15.0 GB of weights at 3.35 TB/s, and 131,072 bytes of cache for each
# token of each session. A token costs 15.0 GFLOP (leave the attention's out). Say that the kernels reach 495 TFLOP/s,
# half of the data sheet's.
# 16 chats of 4,000 tokens each are running. A prompt of 16,384 tokens comes in.
#
# Let a step take the time of its bytes (weights and the chats' caches) *plus* that of its chunk's arithmetic.
#
# **Exercise 10.1** (10 minutes). How long is a step of the 16 chats alone? How long does the arithmetic of the
# whole prompt take, during which they stand still if it is read in one piece? If 20 ms between two tokens are
# allowed: how many tokens may a chunk have (round down), how many steps does the prompt take then, and when does
# its first token come?

# %% answer="10.1"
stall = {
    "step of the chats alone": None,  # ms
    "prompt in one piece": None,  # ms of its arithmetic
    "largest chunk": None,  # tokens
    "steps of the prompt": None,
    "its first token, chunked": None,  # ms after the first of these steps began
}
### BEGIN SOLUTION
# HINT: Bytes first: the weights once, and 16 caches of 4,000 tokens. Divide by the
#       bandwidth.
# HINT: What do the 20 ms leave, once the bytes are read? At 15.0 GFLOP a token and
#       495 TFLOP/s, how many tokens is that?
# WHY: A step has a fixed part, the bytes, and a part that grows with the chunk. The
#      allowed gap minus the first is what the second may take.
step_ms = 1e3 * (15.0e9 + 16 * 4_000 * 131_072) / 3.35e12
chunk = int((20 - step_ms) / 1e3 * 495e12 / 15.0e9)
stall = {
    "step of the chats alone": step_ms,
    "prompt in one piece": 1e3 * 16_384 * 15.0e9 / 495e12,
    "largest chunk": chunk,
    "steps of the prompt": -(-16_384 // chunk),
    "its first token, chunked": -(-16_384 // chunk) * 20,
}
### END SOLUTION

# %% test="10.1" points=3
from helpers import check

check.grade("10.1", stall)
### BEGIN HIDDEN TESTS
assert abs(float(stall["step of the chats alone"]) - 6.98) < 0.1, "step alone"
assert abs(float(stall["prompt in one piece"]) - 496.5) < 6, "in one piece"
assert 415 <= float(stall["largest chunk"]) < 430, "chunk"
assert float(stall["steps of the prompt"]) in (38, 39, 40), "steps"
assert 750 <= float(stall["its first token, chunked"]) <= 830, "first token"
### END HIDDEN TESTS

# %% [markdown]
# How many can share the memory? A server that does not know how long an answer will be may reserve room for
# the longest. Or it hands out **blocks**, as your manager of unit 05 did.
#
# **Exercise 10.2** (8 minutes). Four sessions hold 90, 700, 333 and 1,200 tokens. What percentage of the places
# that they take holds no token (three digits): with 2,048 places reserved for each; with blocks of 16; with blocks
# of 256? And how many sessions of 333 tokens fit into 8,192 places, in the first two ways?

# %% answer="10.2"
memory = {
    "wasted, 2,048 reserved": None,  # %
    "wasted, blocks of 16": None,  # %
    "wasted, blocks of 256": None,  # %
    "sessions, 2,048 reserved": None,
    "sessions, blocks of 16": None,
}
### BEGIN SOLUTION
# HINT: A session takes whole blocks. Round each of the four up before you add.
# HINT: Wasted is 1 - tokens ÷ places taken, in percent.
# WHY: Only the last block of a session is partly empty: half a block a session on
#      average, whatever its length.
held = [90, 700, 333, 1_200]


def wasted(size):
    return 100 * (1 - sum(held) / sum(-(-n // size) * size for n in held))


memory = {
    "wasted, 2,048 reserved": wasted(2_048),
    "wasted, blocks of 16": wasted(16),
    "wasted, blocks of 256": wasted(256),
    "sessions, 2,048 reserved": 8_192 // 2_048,
    "sessions, blocks of 16": 8_192 // (-(-333 // 16) * 16),
}
### END SOLUTION

# %% test="10.2" points=2
from helpers import check

check.grade("10.2", memory)
### BEGIN HIDDEN TESTS
assert abs(float(memory["wasted, 2,048 reserved"]) - 71.64) < 0.8, "reserved"
assert abs(float(memory["wasted, blocks of 16"]) - 0.557) < 0.02, "blocks of 16"
assert abs(float(memory["wasted, blocks of 256"]) - 17.51) < 0.3, "blocks of 256"
assert abs(float(memory["sessions, 2,048 reserved"]) - 4) < 0.01, "sessions reserved"
assert abs(float(memory["sessions, blocks of 16"]) - 24) < 0.01, "sessions in blocks"
### END HIDDEN TESTS

# %% [markdown]
# More sessions in a step: the weights are read once for all, each cache for its session alone. With the H100
# and the model of 10.1, let a step take the time of its bytes or that of its arithmetic, whichever is longer.
#
# **Exercise 10.3** (10 minutes). Sessions of 4,000 tokens: how many tokens a second, all sessions together, come
# out at batch 1 and at batch 64? Which number can no batch exceed, however large the memory? At which batch, the
# **knee**, are the caches as many bytes as the weights? And with sessions of only 100 tokens: from which batch on
# does arithmetic set the pace?

# %% answer="10.3"
throughput = {
    "batch 1": None,  # tokens/s
    "batch 64": None,  # tokens/s
    "no batch exceeds": None,  # tokens/s
    "knee": None,  # sessions
    "arithmetic sets the pace, 100 tokens each": None,  # sessions
}
### BEGIN SOLUTION
# HINT: A session of 4,000 tokens brings 4,000 · 131,072 bytes to each step. At batch
#       B there are B of these, and the weights once.
# HINT: For the limit, let B grow until the weights no longer count. For the last one,
#       set bytes ÷ 3.35e12 equal to B · 15.0e9 ÷ 495e12 and solve for B.
# WHY: Batching shares the weights and nothing else: beyond the knee a step is mostly
#      cache, and every further session makes it longer for all.
cache, short = 4_000 * 131_072, 100 * 131_072
throughput = {
    "batch 1": 3.35e12 / (15.0e9 + cache),
    "batch 64": 64 * 3.35e12 / (15.0e9 + 64 * cache),
    "no batch exceeds": 3.35e12 / cache,
    "knee": 15.0e9 / cache,
    "arithmetic sets the pace, 100 tokens each": 15.0e9
    / 3.35e12
    / (15.0e9 / 495e12 - short / 3.35e12),
}
### END SOLUTION

# %% test="10.3" points=3
from helpers import check

check.grade("10.3", throughput)
### BEGIN HIDDEN TESTS
right = {
    "batch 1": 215.8,
    "batch 64": 4_416,
    "no batch exceeds": 6_390,
    "knee": 28.6,
    "arithmetic sets the pace, 100 tokens each": 169.7,
}
for name, value in right.items():
    assert abs(float(throughput[name]) / value - 1) < 0.025, f"{name} is off"
### END HIDDEN TESTS

# %% [markdown]
# Inside a step there is attention, and there two more things are shared: the memory's bandwidth, between the
# passes over the scores, and the processor's cores, between the sessions.
#
# *A prompt.* Plain attention of T queries over T keys, head_dim d, **writes its scores out**: it reads Q and K and
# writes T · T scores; reads these and writes as many probabilities; reads these and V and writes the result.
# **FlashAttention** takes a **tile** of queries at a time and keeps the tile's scores on the chip: Q is read and
# the result written once, K and V are read once for every tile.
#
# *A decode.* One program for each session and KV head reads that head's whole context. **Flash-Decoding**
# (split-KV) cuts the context into pieces, one program for each, and joins them by log-sum-exp, as your `merge` of
# unit 05 did.
#
# **Exercise 10.4** (10 minutes). One head, T = 1,024, d = 64, float32: how many MB go through memory with scores
# written out, and with tiles of 128 queries? One session, 8 KV heads, an H100 with 132 SMs (its cores): what
# percentage of them is at work without splitting, and into how many pieces must the context be cut at least, so
# that each has some?

# %% answer="10.4"
attention = {
    "scores written out": None,  # MB
    "tiles of 128": None,  # MB
    "SMs at work": None,  # %
    "pieces": None,
}
### BEGIN SOLUTION
# HINT: Q, K, V and the result are T · d elements each; scores and probabilities T · T
#       each. Which of them pass through memory twice?
# HINT: With tiles: Q and the result once; 1,024 ÷ 128 tiles, and K and V for each.
# WHY: The scores are T ÷ d times as large as the keys, and plain attention moves them
#      four times. A tile never lets them leave the chip.
small, large = 4 * 1_024 * 64 / 1e6, 4 * 1_024 * 1_024 / 1e6
attention = {
    "scores written out": 4 * small + 4 * large,
    "tiles of 128": 2 * small + 2 * (1_024 // 128) * small,
    "SMs at work": 100 * 8 / 132,
    "pieces": -(-132 // 8),
}
### END SOLUTION

# %% test="10.4" points=2
from helpers import check

earned = check.grade("10.4", attention, points=2)
### BEGIN HIDDEN TESTS
right = {
    "scores written out": 17.83,
    "tiles of 128": 4.72,
    "SMs at work": 6.06,
    "pieces": 17,
}
agree = [check.near(attention[name], value, rel=0.016) for name, value in right.items()]
earned = min(earned, 2 * sum(agree) / 4)
### END HIDDEN TESTS
check.share(earned, 2)

# %% [markdown]
# ## Build
#
# A step has a **budget** of tokens. Every running answer takes one of it, first and always. What is left goes to
# the prompts that are still to be read, in order of arrival: to the first as much as it needs, then to the next.
#
#     decoding = 3, left = [500, 40, 80], budget = 512  →  [500, 9, 0]
#     decoding = 3, left = [500, 40, 80], budget = 64   →  [61, 0, 0]
#     decoding = 9, left = [500],         budget = 8    →  [0]     the answers run nevertheless
#
# **Exercise 10.5** (10 minutes). Which tokens go into the next step?


# %% answer="10.5"
def next_step(decoding, left, budget):
    """Tokens that each prompt gets in the next step, as a list like `left`.

    decoding: answers that grow by one token each; left: unread tokens of each prompt,
    in order of arrival.
    """
    ### BEGIN SOLUTION
    # HINT: What is left of the budget once the answers have theirs? It may be nothing,
    #       and is never less.
    # HINT: Go through `left` with that number; a prompt gets min(its tokens, what is
    #       left), which you then take off.
    # WHY: Answers first keeps their gap short; in order of arrival keeps a prompt from
    #      being overtaken for ever.
    room = max(0, budget - decoding)
    chunks = []
    for tokens in left:
        chunks.append(min(tokens, room))
        room -= chunks[-1]
    return chunks
    ### END SOLUTION


# %% test="10.5" points=3
from helpers import check

check.grade("10.5", next_step)
### BEGIN HIDDEN TESTS
assert list(next_step(3, [500, 40, 80], 512)) == [500, 9, 0], "the rest to the next"
assert list(next_step(3, [500, 40, 80], 64)) == [61, 0, 0], "answers come first"
assert list(next_step(9, [500], 8)) == [0], "never below nothing"
assert list(next_step(0, [5, 6], 100)) == [5, 6], "never more than there is"
### END HIDDEN TESTS

# %% [markdown]
# Who may start at all? A prompt needs whole blocks. If it starts without them, somebody has to be thrown out a
# moment later. And if a short request may overtake a long one that does not fit yet, the long one may wait for
# ever: so **nobody overtakes**.
#
#     waiting = [100, 30, 8], free = 9 blocks of 16  →  2     (7 and 2 blocks: all nine)
#     waiting = [100, 30, 8], free = 8               →  1     (the third would fit, but may not overtake)
#
# **Exercise 10.6** (8 minutes). How many of those that wait may start, from the front?


# %% answer="10.6"
def admit(waiting, free, block_size):
    """How many requests may start, counted from the front of the queue.

    waiting: tokens that each has to read, in order of arrival; free:
    blocks that nobody uses.
    """
    ### BEGIN SOLUTION
    # HINT: How many blocks do n tokens need? A block that is only partly filled is
    #       taken all the same.
    # HINT: Take each request's blocks off `free`; at the first that does not fit, stop
    #       and say how many did.
    # WHY: Admission by free blocks lets in as many as really fit, not as many as would
    #      fit if all became as long as they may.
    for count, tokens in enumerate(waiting):
        free -= -(-tokens // block_size)
        if free < 0:
            return count
    return len(waiting)
    ### END SOLUTION


# %% test="10.6" points=3
from helpers import check

check.grade("10.6", admit)
### BEGIN HIDDEN TESTS
assert admit([100, 30, 8], 9, 16) == 2, "seven and two blocks"
assert admit([100, 30, 8], 8, 16) == 1, "nobody overtakes"
assert admit([16, 16], 2, 16) == 2, "exactly"
assert admit([], 5, 16) == 0 and admit([17], 1, 16) == 0, "two blocks for 17 tokens"
### END HIDDEN TESTS

# %% [markdown]
# What does chunking cost? Every chunk attends to all that was read before it, so those keys and values are read
# again for each chunk. (Its own do not count: they are read in one piece as well.)
#
#     a prompt of 10 tokens in chunks of 4: 4, 4 and 2 tokens; before them 0, 4 and 8  →  12 read again
#
# **Exercise 10.7** (8 minutes). Tokens of the cache that are read again, in the whole prefill.


# %% answer="10.7"
def read_again(prompt, chunk):
    """Tokens that were in the cache before each chunk, summed over the chunks of a
    prompt of `prompt` tokens."""
    ### BEGIN SOLUTION
    # HINT: Where does each chunk begin? What is in the cache by then?
    # HINT: range(0, prompt, chunk) lists the beginnings.
    # WHY: About prompt² ÷ (2 · chunk): half the chunk, twice the reads.
    return sum(range(0, prompt, chunk))
    ### END SOLUTION


# %% test="10.7" points=2
from helpers import check

check.grade("10.7", read_again)
### BEGIN HIDDEN TESTS
assert read_again(10, 4) == 12, "0 + 4 + 8"
assert read_again(8, 4) == 4, "0 + 4"
assert read_again(7, 7) == 0 and read_again(7, 100) == 0, "one piece"
assert read_again(9, 2) == 20, "0 + 2 + 4 + 6 + 8"
### END HIDDEN TESTS


# %% tags=["setup"]
class YourScheduler(Scheduler):
    """The engine's loop (decode a batch, read chunks, hand out blocks),
    with your two decisions."""

    def plan(self, decoding, left, budget):
        return next_step(decoding, left, budget or decoding + sum(left))

    def admit(self, waiting, free, block_size):
        return admit(waiting, free, block_size)


# %% [markdown]
# What it does around them:
#
# - **Sharing.** Whole blocks that somebody has read already are found by their hashes and not read again, as in unit 05.
# - **Refusal.** A request whose prompt and answer exceed the whole pool is refused when it comes, with the reason.
# - **Preemption by recomputation.** Answers grow, and one day a step needs a block and none is free. Then the
#   request that *started last* gives up its blocks, goes to the front of the queue, and later reads its prompt *and
#   its answer so far* again, as if both were a prompt. The oldest is never thrown out, so somebody always finishes.
# - A block for each running request is kept back when `admit` is asked, or newcomers might be thrown out at once.
#
# ## Measure
#
# **The same tokens?** Requests in chunks, side by side, must get what each gets alone.

# %%
g, card = model.geometry, devices.card(spot)


def serve(arrivals, token_budget, blocks=128):
    """The jobs of all arrivals, and the scheduler that ran them."""
    pool = BlockPool(g, blocks, 16, positions=1_024, device=spot)
    served = YourScheduler(model, pool, token_budget)
    return served.run(arrivals), served


# %%
few = [Arrival(0.01 * i, tuple(words[50 * i : 50 * i + 40]), 8) for i in range(4)]
same = 0
for job in serve(few, 24)[0]:
    prompt = torch.tensor(job.arrival.prompt, device=spot)
    same += job.answer == greedy(model, FullCache(g, 64, device=spot), prompt, 8)
print(f"{same} of {len(few)} requests: the same 8 tokens as alone")

# %% [markdown]
# Who is computed when? Three requests under a budget of 24 tokens a step, with your two decisions.
#
# The folded cell draws who gets what in each step; a number is a piece of a prompt, in tokens.

# %% jupyter={"source_hidden": true}
few_blocks = BlockPool(g, 12, 16, positions=256, device=spot)
shared = YourScheduler(model, few_blocks, 24)
asked_for = [(40, 6), (60, 4), (20, 5)]  # tokens of prompt and of answer
drawn_jobs = [
    shared.submit(Arrival(0.0, tuple(words[:n]), count)) for n, count in asked_for
]
turns = {f"{n} tokens of prompt": [] for n, _ in asked_for}
while shared.waiting or shared.running:
    stood = [(job.unread, len(job.answer), job.session) for job in drawn_jobs]
    shared.step()
    for row, job, (unread, answered, _) in zip(
        turns.values(), drawn_jobs, stood, strict=True
    ):
        done = len(job.answer) == job.arrival.answer_tokens
        more = len(job.answer) - answered
        computed = unread if done else unread + more - job.unread
        if more and unread == 1:
            row.append(("", "answer"))
        elif computed and not (done and not more):
            row.append((str(computed), "prompt"))
        else:
            row.append(("", drawings.EMPTY))
legend = {"prompt": "a piece of its prompt", "answer": "one token of its answer"}
_ = drawings.boxes(turns, legend, title="Your scheduler at work", columns="step")

# %% [markdown]
# (Sums are added up in another order in a batch, so on a near tie a token may differ.)
#
# **Inter-token latency under load.** Requests come at random times (a *Poisson* process), once with prompts in one
# piece, then under two budgets. *Goodput* counts only requests that were served within a limit: here, whose TPOT is
# at most three times the chat's undisturbed gap of the beginning.
#
# A mean hides a freeze, so read percentiles: half of all gaps are no longer than the **p50**, 99 of 100 no longer than
# the **p99**. The few longest, beyond it, are the **tail**.

# %%
alone = statistics.median(frozen["in one piece"][0].gaps_seconds[:6])
count, rate = 6 if budget == "quick" else 32, 1 / (20 * alone)
traffic = poisson(count, rate, g.vocab, (32, 320), (8, 16), seed=7)
budgets = {"in one piece": None, "budget 256": 256, "budget 64": 64}
served = {
    how: serve(traffic, tokens)
    for how, tokens in each(budgets.items(), "serving the same requests")
}
gaps = {
    how: np.array([1e3 * gap for job in jobs for gap in job.gaps_seconds])
    for how, (jobs, _) in served.items()
}

# %% [markdown]
# The folded cell draws the distribution of the gaps, and prints the table.

# %% jupyter={"source_hidden": true}
shares = [50, 75, 90, 95, 99, 100]
ax = plots.curve(
    None,
    list(range(len(shares))),
    {how: np.percentile(all_gaps, shares) for how, all_gaps in gaps.items()},
    xlabel="percentile (%)",
    ylabel="inter-token latency (ms)",
    title=f"{count} requests, {rate:.2f} a second: gaps between two tokens",
)
ax.set_xticks(range(len(shares)), [str(share) for share in shares])
limit_ms, rows, ttft_ms, goodput = 3e3 * alone, [], {}, {}
for how, (jobs, engine) in served.items():
    good = sum(1e3 * job.tpot_seconds <= limit_ms for job in jobs)
    ttft_ms[how] = 1e3 * statistics.median(job.ttft_seconds for job in jobs)
    goodput[how] = good / engine.seconds
    rows.append(
        [
            how,
            *(f"{np.percentile(gaps[how], p):,.0f}" for p in (50, 99)),
            f"{ttft_ms[how]:,.0f}",
            f"{sum(len(job.answer) for job in jobs) / engine.seconds:,.1f}",
            f"{good} of {count}, {goodput[how]:.2f}/s",
        ]
    )
header = ["prompts", "ITL p50 (ms)", "p99 (ms)", "TTFT p50 (ms)", "tokens/s", "goodput"]
estimates.Table(header, rows, f"limit of TPOT: {limit_ms:,.0f} ms")

# %%
tail = {how: np.percentile(all_gaps, 99) for how, all_gaps in gaps.items()}
best = min(tail, key=tail.get)
print(f"shortest tail in this run: {best}, p99 {tail[best]:,.0f} ms")
print(f"earliest first tokens in this run: {min(ttft_ms, key=ttft_ms.get)}")
print(f"highest goodput in this run: {max(goodput, key=goodput.get)}")

# %% [markdown]
# One run of a few requests is an anecdote, and on another day another line may win; what has to hold is the freeze
# itself, which your 10.1 explains.
#
# **Throughput against batch.** The prediction takes bytes and arithmetic from your device card.

# %%
batches, held_tokens = [1, 2, 4, 8, 16], 128
steps, step_floor = {}, {}
for b in batches:
    cache_b = FullCache(g, held_tokens + 1, batch=b, device=spot)
    point = sweeps.DecodeStep(model, cache_b)
    steps[b] = point.at(held_tokens)
    flops = decode_flops(g, held_tokens + 1, b)
    step_floor[b] = card.floor_seconds(point.bytes_at(held_tokens), flops)
timed = timing.Clock(spot).sweep(steps, 2, min_samples=5, label="batches")

# %%
predicted = [b / step_floor[b] for b in batches]
measured = [b / timed[b].median for b in batches]
for b, floor, seen in zip(batches, predicted, measured, strict=True):
    key = f"10.tokens_per_second_batch_{b}"
    estimates.predict(key, floor, "tokens/s")
    estimates.measured(key, seen, verdict=timed[b].verdict)

# %% [markdown]
# The folded cell draws tokens a second against the batch.

# %% jupyter={"source_hidden": true}
ax = plots.prediction(
    None,
    batches,
    predicted,
    measured,
    [b * timed[b].spread / timed[b].median ** 2 for b in batches],
    xlabel="batch (sessions)",
    ylabel="throughput (tokens/s)",
    title=f"SmolLM2-135M, {held_tokens} tokens a session{timing.doubt(timed.values())}",
    xlog=True,
    ylog=True,
)
gain = measured[-1] / measured[0]
full = next((b for b in batches if b / 2 > card.ridge()), None)  # 2 FLOP, 4 bytes
print(
    f"batch 16 gives {gain:.1f} times the tokens of batch 1, each after "
    f"{timed[16].ms:.1f} ms instead of {timed[1].ms:.1f}"
)
print(
    f"arithmetic by the card sets the pace from about batch {full}"
    if full
    else f"the card's ridge lies beyond batch {batches[-1]}"
)

# %% [markdown]
# **What chunking costs.** The same prompt in chunks of several sizes. Each chunk reads the weights and what is in
# the cache already, and computes its own products; the prediction adds up the floors of the chunks.

# %%
long = 256 if budget == "quick" else 1_536
token_bytes = 46_080  # of cache: SmolLM2-135M in float32, from unit 02
sizes = [32, 128, long] if budget == "quick" else [32, 64, 128, 512, long]
page = torch.tensor([words[:long]], device=spot)
room = BlockPool(g, long // 16, 16, positions=long, device=spot)
table = list(range(long // 16))


def read_in(size):
    cache = PagedCache(room, [table])
    for start in range(0, long, size):
        logits = model.prefill(page[:, start : start + size], cache)
    return logits


# %%
def chunk_floor(start, end):
    """Seconds of the chunk of tokens start … end - 1, from bytes or arithmetic,
    whichever is longer."""
    flops = prefill_flops(g, end) - (prefill_flops(g, start) if start else 0)
    return card.floor_seconds(model.weight_bytes + start * token_bytes, flops)


cost_floor = [
    sum(chunk_floor(s, min(s + size, long)) for s in range(0, long, size))
    for size in sizes
]
cost = timing.Clock(spot).sweep(
    {size: partial(read_in, size) for size in sizes}, 3, min_samples=3, label="chunks"
)

# %% [markdown]
# The folded cell draws the time of the whole prompt against the size of a chunk.

# %% jupyter={"source_hidden": true}
ax = plots.prediction(
    None,
    sizes,
    [1e3 * seconds for seconds in cost_floor],
    [cost[size].ms for size in sizes],
    [cost[size].spread_ms for size in sizes],
    xlabel="chunk (tokens)",
    ylabel="time of the whole prompt (ms)",
    title=f"A prompt of {long:,} tokens: what chunks cost its "
    f"user{timing.doubt(cost.values())}",
    xlog=True,
)
for size, floor in zip(sizes, cost_floor, strict=True):
    again = read_again(long, size) * token_bytes / 1e6
    weights = -(-long // size) * model.weight_bytes / 1e6
    print(
        f"chunks of {size:>5}: {again:6,.0f} MB of cache read again, {weights:6,.0f} "
        "MB of weights"
    )
    estimates.predict(f"10.prefill_ms_chunks_of_{size}", 1e3 * floor, "ms")
    estimates.measured(
        f"10.prefill_ms_chunks_of_{size}", cost[size].ms, verdict=cost[size].verdict
    )

# %% [markdown]
# The printed bytes say which weighs more here, the cache read again or the weights. Those of the weights grow in
# proportion to the prompt, your 10.7 with its square. (Above the floors lies at least a chunk's copying of the blocks
# before it; perhaps also products that are less efficient the fewer rows they have.)
#
# **One pass for both.** A step of this engine multiplies the rows of the answers and of the chunk together, so that
# the weights are read once (**piggybacking**). What does that save, against an answer step and then the chunk? By the
# card, one pass takes the longer of *its* bytes and *its* arithmetic, and two passes take two such times.

# %%
chats, before = 4, 112  # sessions; tokens in the cache of each and of the prompt
chunk_sizes = [16, 128] if budget == "quick" else [8, 16, 32, 64, 128, 256]
space = BlockPool(g, 56, 16, positions=512, device=spot)
answering = PagedCache(
    space, [list(range(8 * i, 8 * i + 8)) for i in range(chats)], before
)
half_read = PagedCache(space, [list(range(32, 56))], before)
newest = torch.zeros(chats, 1, dtype=torch.long, device=spot)


# %%
def one_pass(size):
    answering.rewind(before)
    half_read.rewind(before)
    return model.mixed([(newest, answering), (page[:, :size], half_read)])


def one_after_the_other(size):
    answering.rewind(before)
    half_read.rewind(before)
    grown = model.decode(newest[:, 0], answering)
    return grown, model.prefill(page[:, :size], half_read)


# %%
def share_left(size):
    """One pass ÷ one after the other, by bytes and arithmetic."""
    work = [
        (answering.step_bytes(before + 1), decode_flops(g, before + 1, chats)),
        (
            before * token_bytes,
            prefill_flops(g, before + size) - prefill_flops(g, before),
        ),
    ]
    reads, flops = (sum(column) for column in zip(*work, strict=True))
    apart = sum(card.floor_seconds(model.weight_bytes + r, f) for r, f in work)
    return card.floor_seconds(model.weight_bytes + reads, flops) / apart


# %% [markdown]
# The folded cell draws what the two ways read, whatever the size of the chunk.

# %% jupyter={"source_hidden": true}
caches_read = {
    f"caches of the {chats} answers": answering.step_bytes(before + 1),
    "prompt so far": half_read.step_bytes(before),
}
streams = {
    "one pass": {"weights": model.weight_bytes, **caches_read},
    "one after the other": {"weights": 2 * model.weight_bytes, **caches_read},
}
title = f"What answers and a chunk read: {g.name}, float32, {before} tokens each"
_ = drawings.step_bytes(streams, title=title)

# %%
for size in chunk_sizes:
    key = f"10.one_pass_ratio_chunk_{size}"
    apart, joint = partial(one_after_the_other, size), partial(one_pass, size)
    off = (torch.cat(joint()) - torch.cat(apart())).abs().max()
    estimates.predict(key, share_left(size), "1")
    pair = timing.Clock(spot).compare(apart, joint, budget_seconds=1.5, min_pairs=8)
    estimates.measured(key, pair.ratio, residual="perhaps kernels below the peak")
    print(f"a chunk of {size} beside {chats} answers: one pass ÷ one after the other")
    print(f"   predicted {share_left(size):.2f}, measured {pair}; off by {off:.0e}")

# %% [markdown]
# The saving is one reading of the weights. Beside a short chunk that is much of the step; beside a long one, whose
# arithmetic takes many times as long, it is hardly seen. (Many rows and few also go to different kernels on a CPU: a
# chunk takes the answers' rows along into the one that suits many, which may cost or save something of its own.)
#
# **Attention, counted.** A counter adds up what each operation reads and writes. A tile is one call of torch's fused
# kernel, which keeps its scores to itself.

# %%
heads = [torch.randn(1, 1, 1_024, 64, device=spot) for _ in range(3)]


def written_out(q, k, v):
    return (q @ k.transpose(-1, -2)).softmax(dim=-1) @ v


def in_tiles(q, k, v):
    kernel = partial(F.scaled_dot_product_attention, scale=1.0)
    return [kernel(tile, k, v) for tile in q.split(128, dim=2)]


ways = {"scores written out": written_out, "tiles of 128": in_tiles}
off = (written_out(*heads) - torch.cat(in_tiles(*heads), dim=2)).abs().max()
print(f"largest difference: {off:.0e}")

# %%
for name, way in ways.items():
    with Traffic() as counted:
        way(*heads)
    estimates.predict(
        f"10.attention_mb_{name.replace(' ', '_')}", attention[name], "MB"
    )
    estimates.measured(f"10.attention_mb_{name.replace(' ', '_')}", counted.bytes / 1e6)
    print(
        f"{name}: {counted.bytes / 1e6:.2f} MB counted, {attention[name]:.2f} predicted"
    )
calls = [partial(way, *heads) for way in ways.values()]
tiles_pair = timing.Clock(spot).compare(*calls, budget_seconds=1, min_pairs=10)
print(f"time of the tiles ÷ time with scores written out: {tiles_pair}")

# %% [markdown]
# (Fewer bytes need not be less time. The counter charges memory with everything that is read or written; a processor's
# cache may keep 4 MB of scores, and then they cost less than their bytes say.)
#
# **A decode that does not split** leaves cores without work. Here is one KV head with a context of 32,768 tokens, as
# one piece and as several; the same bytes either way.

# %%
context = 32_768
q1 = torch.randn(1, 4, 64, device=spot)  # 4 query heads of a group
k1, v1 = (torch.randn(context, 64, device=spot) for _ in range(2))


def split(pieces):
    """Attention of q1, with the context cut into pieces that are joined by
    log-sum-exp."""
    k, v = (x.view(pieces, -1, 64) for x in (k1, v1))
    scores = q1.expand(pieces, -1, -1) @ k.transpose(-1, -2) * 64**-0.5
    lse = scores.logsumexp(dim=-1, keepdim=True)
    return ((scores - lse).exp() @ v * lse.softmax(dim=0)).sum(dim=0)


# %%
pieces = 16
for n in (1, pieces):
    with Traffic(at_least=k1.numel()) as counted:
        split(n)
    print(f"pieces: {n}, keys and values read: {counted.read_bytes / 1e6:.1f} MB")
print(f"largest difference: {(split(1) - split(pieces)).abs().max():.0e}")
split_pair = timing.Clock(spot).compare(
    partial(split, 1), partial(split, pieces), budget_seconds=1, min_pairs=10
)
if split_pair.differs:
    said = "faster" if split_pair.ratio < 1 else "slower"
else:
    said = "neither faster nor slower, as far as this clock can see"
print(f"{pieces} pieces on {torch.get_num_threads()} threads: {said}. {split_pair}")

# %%
estimates.report("10")

# %% [markdown]
# ## Explain
#
# **Memory, over a day.** A trace of chats in the form in which public ones come (times, lengths, and names of
# blocks; a file of your own: `traces.load("trace.jsonl")`), through your scheduler on a tiny model with a pool that
# is too small.

# %%
narrow = dict(layers=1, hidden=32, q_heads=2, kv_heads=1, head_dim=16, intermediate=48)
tiny = g.replace(name="tiny", vocab=100, **narrow)
day = traces.hashed(traces.generate(4, seed=1, turns=1), 16)
crowd = [Arrival(0.0, a.prompt, a.answer_tokens) for a in from_trace(day, 16, 100)]

# %%
pool = BlockPool(tiny, 110, 16, positions=4_096)
toy = YourScheduler(Decoder(tiny), pool, 256)
done = toy.run(crowd)  # all at once
refused = [job.refused for job in done if job.refused]
thrown_out = sum(job.preemptions for job in done)
read = sum(step.read for step in toy.steps)
asked = sum(len(job.arrival.prompt) for job in done if not job.refused)
print(f"{len(done)} requests, {len(refused)} refused, {thrown_out} times thrown out")
print(
    f"prompts of {asked:,} tokens, {read:,} computed: some were found, some read twice"
)
print(*refused, sep="\n")

# %%
lengths = [r.input_length + r.output_length for r in day]
most = max(lengths)
for label, size in (
    ("the longest reserved", most),
    ("blocks of 256", 256),
    ("blocks of 16", 16),
):
    taken = sum(-(-n // size) * size for n in lengths)
    print(
        f"{label}: {100 * (1 - sum(lengths) / taken):.1f} % of the places hold nothing"
    )

# %% [markdown]
# *Published:* PagedAttention's authors found 60 to 80 % wasted in the systems before it, and under 4 % with pages
# (vLLM, June 2023). Your 10.2 gives both, from four lengths.
#
# **Inconvenient results.** By themselves, chunks do not make anything cheaper. Whoever sends the long prompt waits
# longer for its first token, since the weights and the cache are read again; vLLM's developers expect the same (issue
# 3130). On the throughput of an offline batch they disagree. One says that chunking does *not* raise it (issue 7604,
# prompts of 40,000 tokens, answers of 256): take the largest budget that your inter-token latency allows. Another found
# it "greatly" improved (3130 again, 2,000 chats, Llama-2-70B on 8 A100), perhaps by the shared pass below. How large is
# the cost? *Published* (a vLLM fork's issue 411, packed weights): chunks of 6,144 instead of 2,048 read a prompt faster
# by

# %%
for row in data.measurement("chunk-size-vllm")["data"]:
    again = [sum(range(0, row["prompt"], chunk)) for chunk in (2_048, 6_144)]
    print(
        f"{row['prompt']:>8,} tokens: +{row['faster_pct']} %; "
        f"read again: {again[0] / 1e6:.1f} against {again[1] / 1e6:.1f} million tokens"
    )

# %% [markdown]
# Longer prompts gain more, as the square in your 10.7 would have it. But it is not all cache: in that fork each chunk also
# unpacks the weights anew, and the products with them alone gained 13 to 15 %.
#
# *Published:* **Sarathi**, whose idea this is, puts the answers into the same pass as the chunk: their weights are
# then read anyway. On an A6000 (LLaMA-13B) decode throughput rose up to 10 times, that of whole requests up to 1.33
# times.
# Its successor serves 2.6 times as many requests as vLLM of its day on one A100 (Mistral-7B), with the same limit on
# the tail. The claim *chunked prefill makes serving faster* is therefore **half true**: it makes room under a latency
# limit, and costs arithmetic nothing and bytes something.
#
# *Published:* **Flash-Decoding**. 16 query heads and 2 KV heads, an A100; the same number of tokens of cache in all, in
# many sessions or in one, and in the last line twice that. What would bytes alone take?

# %%
a100 = data.device("A100-80GB SXM")["bandwidth_GBps"] * 1e9
for row in data.measurement("flash-decoding")["data"]:
    if row["batch"] in (1, 8, 256):
        kv = row["batch"] * row["seqlen"] * 2 * 2 * 128 * 2  # K and V, 2 heads, float16
        print(
            f"batch {row['batch']:>3}, context {row['seqlen']:>7,}: by bytes "
            f"{1e6 * kv / a100:.0f} µs, "
            f"split {row['flashdec_us']:.0f}, not split {row['fa2_us']:,.0f}"
        )

# %% [markdown]
# Not split, the same bytes take longer with few sessions; split, they do not. From batch 256 to batch 1 the kernel
# that does not split takes 5.9 times as long for the same bytes: that is the price of idle cores. (At batch 256 none
# is idle, and it still takes 6.2 times as long as the other: something else is slow there, perhaps that the 8 query
# heads of a group each read their keys and values for themselves. Which A100 it was is not said; the line of bytes
# takes the faster one.)
#
# **Which machine ends the story?** Two numbers of a data sheet say how a machine shares. *FLOP/byte*: how many
# operations it must do with each byte to be busy. *Bytes a second for each byte of memory*: how often it could read
# all it holds. By its bytes, a step takes one such read at most, if everything is in that memory.
#
# The folded cell draws up the table.

# %% jupyter={"source_hidden": true}
machines = [
    "V100 SXM2",
    "T4",
    "A100-80GB SXM",
    "L4",
    "H100 SXM",
    "B200 SXM",
    "Groq LPU",
    "Cerebras WSE-3",
]
table_rows = []
for name in machines:
    sheet = data.device(name)
    per_second = sheet["bandwidth_GBps"] / sheet["capacity_GB"]
    flop_byte = sheet["ridge_flop_per_byte"]
    need = 15.0 + 131_072 * 131_072 / 1e9  # weights and one session of 128k tokens, GB
    chips = -(-need // sheet["capacity_GB"])
    shown = "not known" if flop_byte is None else f"{flop_byte:,.1f}"
    row = [
        name,
        shown,
        f"{per_second:,.1f}",
        f"{1e3 / per_second:,.3f}",
        f"{chips:,.0f}",
    ]
    table_rows.append(row)
columns = [
    "machine",
    "FLOP/byte",
    "full reads a second",
    "one full read (ms)",
    "chips for 8B + 128k",
]
estimates.Table(columns, table_rows)

# %% [markdown]
# Six generations of GPUs lie between 12.5 and 42 full reads a second: memory has grown about as fast as its bandwidth.
# Fill one to the brim, and reading it takes 24 to 80 ms, in every generation: times like the bug report's. The two SRAM
# machines stand elsewhere: what fits is read in microseconds, so bytes stop being the question. But *what fits* is
# 0.23 GB or 44 GB. One chat of 128k tokens beside the weights of an 8B model needs 140 of the first kind, or one of
# the second, and then there is no second chat: for long contexts in a large batch they run out of places, and GPUs of
# time. (The times between many chips are not in these numbers.)
#
# "Infinite context" would take infinite bytes a step on any of them, as long as a step reads all of it. What ends
# that story is not a machine but a cache that stops growing: units 04 and 07, with what they cost.
#
# The row for your ledger.

# %%
whole, chunked = (max(gaps_ms[how]) for how in frozen)
waits = [1e3 * late.ttft_seconds for _, late in frozen.values()]
estimates.ledger(
    "10",
    "chunked prefill, continuous batching",
    tpot=f"longest gap beside a long prompt here: {whole:,.0f} ms in one piece, "
    f"{chunked:,.0f} in chunks",
    ttft=f"of the long prompt here: {waits[0]:,.0f} ms in one piece, {waits[1]:,.0f} "
    "in chunks",
    memory="in blocks, only the last one of each session is partly empty",
    quality="the same tokens",
)

# %% [markdown]
# *Sources.* Chunked prefill: Agrawal et al., arXiv 2308.16369 and 2403.02310 (OSDI 2024); vllm-project/vllm issues
# 3130 and 7604; local-inference-lab/vllm issue 411. Pages: Kwon et al., arXiv 2309.06180; vLLM, blog post of
# 2023-06-20. Flash-Decoding: PyTorch blog, "Flash-Decoding for long-context inference". Machines: the rows of
# `helpers/data/devices.json`, with their sources.
