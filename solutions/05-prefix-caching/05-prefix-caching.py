# %% [markdown]
# # 05 · Prefix caching
#
# ## The question
#
# Every session of the product begins with the same 2,000 tokens of instructions, and every turn sends the
# whole history again. So the same prompts are computed over and over. An engineer turns on *automatic prefix
# caching* and promises a lower TPOT. The next day the first token comes ten times sooner, memory is half
# empty, and **TPOT has not moved at all**. A week later somebody puts the time of day into the system prompt,
# and everything is slow again. What does a prefix cache save, what does it not, and how does one line of text
# break it?
#
# You will predict it, build one out of blocks, run a real model on it, and replay a day of traffic. (About 75
# minutes.)

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures more

# %% tags=["setup"]
import hashlib

import matplotlib.pyplot as plt
import torch

from helpers import check, data, estimates, plots
from helpers.serving.blocks import BlockManager
from helpers.caches import SharedPrefixCache

plots.use()

# %% [markdown]
# ## Predict
#
# The engine keeps keys and values in **blocks** of 16 tokens. A *full* block can be found again by a later
# prompt that has the same tokens **from the very beginning up to the end of that block**. What is found need
# not be computed: these are *hit tokens*. One token at least is always computed, for without it there are no
# logits to choose the next from.
#
# The first request: a system prompt of 40 tokens and a question of 30, so a prompt of 70. The answer has 50
# tokens, and the blocks of prompt and answer are kept. Then comes *one* of these:
#
# - **same system prompt, other question**: the 40 tokens, then a question that begins differently
# - **next turn**: the whole history of 120 tokens, then 25 new ones
# - **64 tokens, sent twice**: some other prompt of exactly 64 tokens, its second time
# - **first prompt, time in front**: the 70 tokens again, after 5 tokens such as *It is 10:42.*
# - **15 tokens, sent twice**: a short prompt, its second time
# - **next turn, prompts kept only**: the next turn, in an engine that does not keep the blocks of answers
#
# **Exercise 05.1.** How many tokens hit?

# %% answer="05.1"
hits = {  # tokens
    "same system prompt, other question": None,
    "next turn": None,
    "64 tokens, sent twice": None,
    "first prompt, time in front": None,
    "15 tokens, sent twice": None,
    "next turn, prompts kept only": None,
}
### BEGIN SOLUTION
hits = {
    "same system prompt, other question": 40 // 16 * 16,
    "next turn": 120 // 16 * 16,
    "64 tokens, sent twice": (64 - 1) // 16 * 16,  # the last block holds the last token
    "first prompt, time in front": 0,  # everything has moved by 5
    "15 tokens, sent twice": 0,  # no full block
    "next turn, prompts kept only": 70 // 16 * 16,
}
### END SOLUTION

# %% test="05.1" points=3
from helpers import check

check.grade("05.1", hits)
### BEGIN HIDDEN TESTS
assert [float(value) for value in hits.values()] == [32, 112, 48, 0, 0, 64], (
    "one of the six is off"
)
### END HIDDEN TESTS

# %% [markdown]
# Sessions that share a block share its bytes. **Exercise 05.2.** Llama-3.1-8B, 131,072 bytes a token. 50
# sessions are open; each holds the same system prompt of 2,000 tokens and 512 tokens of its own. How much
# memory do the caches take, with every session for itself, and with the prompt shared? (1 GB = 1e9 bytes.)

# %% answer="05.2"
memory_gb = {  # GB
    "each for itself": None,
    "system prompt shared": None,
}
### BEGIN SOLUTION
memory_gb = {
    "each for itself": 50 * (2_000 + 512) * 131_072 / 1e9,
    "system prompt shared": (2_000 + 50 * 512) * 131_072 / 1e9,
}
### END SOLUTION

# %% test="05.2" points=1
from helpers import check

check.grade("05.2", memory_gb)
### BEGIN HIDDEN TESTS
assert abs(float(memory_gb["each for itself"]) / 16.463 - 1) < 0.011, "each for itself"
assert abs(float(memory_gb["system prompt shared"]) / 3.618 - 1) < 0.011, (
    "system prompt shared"
)
### END HIDDEN TESTS

# %% [markdown]
# Now the decode step. Each of B sessions holds a shared prefix of P tokens and u tokens of its own. An
# ordinary engine stores the prefix once, but every session still **reads** its whole history: B · (P + u)
# rows a step. *Cascade attention* reads the prefix once for all of them, and each session's own tokens apart.
#
# **Exercise 05.3.** How many times fewer bytes of cache does a step then read?

# %% answer="05.3"
times_fewer = {  # bytes without sharing ÷ bytes with
    "P 32,768, u 256, B 128": None,
    "P 512, u 512, B 8": None,
    "P 32,768, u 256, B 1": None,
}
### BEGIN SOLUTION
times_fewer = {
    "P 32,768, u 256, B 128": 128 * (32_768 + 256) / (32_768 + 128 * 256),
    "P 512, u 512, B 8": 8 * (512 + 512) / (512 + 8 * 512),
    "P 32,768, u 256, B 1": 1,  # one session reads everything, found or computed
}
### END SOLUTION

# %% test="05.3" points=2
from helpers import check

check.grade("05.3", times_fewer)
### BEGIN HIDDEN TESTS
for got, right in zip(times_fewer.values(), [64.5, 1.778, 1.0], strict=True):
    assert abs(float(got) / right - 1) < 0.011, "one of the three factors is off"
### END HIDDEN TESTS

# %% [markdown]
# And money. A price list of early 2026 (Sonnet 4.6), dollars per million tokens: input 3.00; input that is
# **written** to the cache 3.75; input that is **found** there 0.30; output 15.00. That is 1.25 and 0.1 times
# the input, for a cache that lasts five minutes; one that lasts an hour costs 2 times to write.
#
# A session: 10 turns, 10,000 tokens of system prompt, each turn a question of 200 and an answer of 300
# tokens. Turn 1 sends 10,200 tokens, turn 2 sends 10,700, and so on. With caching, a turn finds the whole
# prompt of the turn before and writes what is new.
#
# **Exercise 05.4.** What does the session cost without caching, with caching, and with caching when each
# prompt begins with the time of day? And a prompt that is written once and found n times: at which smallest n
# is caching cheaper than n + 1 ordinary requests?

# %% answer="05.4"
money = {
    "no caching": None,  # dollars for the session, output included
    "cached": None,
    "cached, time in front": None,
    "reuses, write at 1.25": None,  # a whole number
    "reuses, write at 2": None,
}
### BEGIN SOLUTION
prompts = [10_200 + turn * 500 for turn in range(10)]
output = 10 * 300 * 15.00 / 1e6
money = {
    "no caching": sum(prompts) * 3.00 / 1e6 + output,
    "cached": (sum(prompts[:-1]) * 0.30 + prompts[-1] * 3.75) / 1e6
    + output,  # each token is written once
    "cached, time in front": sum(prompts) * 3.75 / 1e6
    + output,  # all written, nothing found
    "reuses, write at 1.25": 1,  # 1.25 + 0.1 n < 1 + n
    "reuses, write at 2": 2,
}
### END SOLUTION

# %% test="05.4" points=3
from helpers import check

check.grade("05.4", money)
### BEGIN HIDDEN TESTS
dollars = ["no caching", "cached", "cached, time in front"]
for name, right in zip(dollars, [0.4185, 0.133065, 0.511875], strict=True):
    assert abs(float(money[name]) / right - 1) < 0.006, f"{name} is off"
assert (
    float(money["reuses, write at 1.25"]) == 1
    and float(money["reuses, write at 2"]) == 2
), "break-even is off"
### END HIDDEN TESTS

# %% [markdown]
# ## Build
#
# When may two blocks be the same? Keys and values of a token depend on **everything before it**. So a block
# is named by its tokens *and* by the name of the block before it, its **parent**. And two customers who must
# not share get a **salt** each: a tenant, or an adapter, whose weights make other keys of the same words.
#
# **Exercise 05.5.** Name a full block. `hashlib.sha256(some_bytes).digest()` makes 32 bytes, and nobody has
# yet found two inputs with the same ones; `repr(x).encode()` makes bytes of any list or tuple. (Why not
# Python's `hash()`? Strangers can find two prompts with the same one.)


# %% answer="05.5"
def block_name(parent, tokens, salt=b""):
    """Name of a full block, as bytes: a hash of the parent's name (b"" for the first block), tokens and salt.

    Equal arguments give equal names, whether tokens is a list or a tuple; anything else gives other names.
    """
    ### BEGIN SOLUTION
    return hashlib.sha256(repr((parent, list(tokens), salt)).encode()).digest()
    ### END SOLUTION


# %% test="05.5" points=2
from helpers import check

check.grade("05.5", block_name)
### BEGIN HIDDEN TESTS
a, b = block_name(b"", [1, 2], b"x"), block_name(b"", [1, 3], b"x")
assert len(a) >= 32 and a == block_name(b"", (1, 2), b"x"), (
    "equal arguments, equal names"
)
assert len({a, b, block_name(b"", [1, 2], b"y")}) == 3, "tokens and salt count"
assert block_name(a, [5, 6]) != block_name(b, [5, 6]), "the parent counts"
assert block_name(b"", [1, 23]) != block_name(b"", [12, 3]), "tokens keep apart"
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 05.6.** A prompt comes in. Which blocks hold its longest known prefix? Walk from the front, name
# block after block, stop at the first that is unknown; and leave the last token of the prompt out.


# %% answer="05.6"
def longest_prefix(block_of, tokens, block_size, salt=b""):
    """The blocks that hold the longest known prefix of `tokens`, as a list of block numbers.

    block_of is {name: block number}. Example, block_size 4, everything known: 9 tokens → the blocks of tokens 0–3 and
    4–7; 8 tokens → only that of 0–3, because token 7 has to be computed.
    """
    ### BEGIN SOLUTION
    found, name = [], b""
    for start in range(0, len(tokens) - block_size, block_size):
        name = block_name(name, tokens[start : start + block_size], salt)
        if name not in block_of:
            break
        found.append(block_of[name])
    return found
    ### END SOLUTION


# %% test="05.6" points=2
from helpers import check

check.grade("05.6", longest_prefix, block_name)
### BEGIN HIDDEN TESTS
one = block_name(b"", [1, 2], b"t")
two = block_name(one, [3, 4], b"t")
assert longest_prefix({one: 7, two: 4}, [1, 2, 3, 4, 5], 2, b"t") == [7, 4], (
    "five tokens"
)
assert longest_prefix({one: 7, two: 4}, [1, 2, 3, 4], 2, b"t") == [7], (
    "the last token is computed"
)
assert longest_prefix({two: 4}, [1, 2, 3, 4, 5], 2, b"t") == [], "a gap ends the prefix"
assert longest_prefix({one: 7, two: 4}, [1, 2, 3, 4, 5], 2) == [], "another salt"
### END HIDDEN TESTS

# %% [markdown]
# Who may throw a block away? The pool counts **references**: how many open sessions use each block.
#
# | field of `pool` | holds |
# |---|---|
# | `references` | list: users of each block |
# | `free` | list: blocks that hold nothing |
# | `cached` | ordered dict {block: None}: full, named, used by nobody, the one used last at the end |
# | `block_of`, `name_of` | dicts: name → block, block → name, of the full blocks that can be found |
#
# (Two sessions may fill two blocks with the same tokens at the same time: then only one of them has the name.)
#
# Beginning to use a block is written below.


# %% tags=["setup"]
def hold(pool, block):
    """One session more uses `block`. If it was in `cached`, it must not be evicted from there any more."""
    pool.references[block] += 1
    pool.cached.pop(block, None)


# %% [markdown]
# **Exercise 05.7.** The way back. Every block is in exactly one state: in use, in `cached`, or in `free`.


# %% answer="05.7"
def let_go(pool, block):
    """One session less uses `block`. After the last: to the end of `cached` if it has a name, else to `free`."""
    ### BEGIN SOLUTION
    pool.references[block] -= 1
    if pool.references[block] == 0:
        if block in pool.name_of:
            pool.cached[block] = None
        else:
            pool.free.append(block)
    ### END SOLUTION


# %% test="05.7" points=2
from helpers import check

check.grade("05.7", let_go)
### BEGIN HIDDEN TESTS
pool = BlockManager(3, 2)
pool.extend(
    pool.open([1, 2, 3]), [1, 2, 3]
)  # a full block 0 and a partly filled block 1, free: 2
hold(pool, 0)
let_go(pool, 0)
assert pool.references == [1, 1, 0] and not pool.cached and pool.free == [2], (
    "still in use"
)
let_go(pool, 0)
let_go(pool, 1)
assert list(pool.cached) == [0] and sorted(pool.free) == [1, 2], (
    "named to cached, the other to free"
)
hold(pool, 0)
assert pool.references == [1, 0, 0] and not pool.cached, "in use again"
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 05.8.** A session needs a fresh block. Give it a free one; if there is none, **evict**: of the
# cached blocks, the one that has gone unused the longest. Its old name must be forgotten everywhere, or the
# next prompt finds tokens that are no longer there. (There is always one of the two; the engine has made
# sure.)


# %% answer="05.8"
def take(pool):
    """A block for new tokens, now used by one session: returns its number.

    Useful: pool.cached.popitem(last=False) removes and returns the oldest (block, None).
    """
    ### BEGIN SOLUTION
    if pool.free:
        block = pool.free.pop()
    else:
        block, _ = pool.cached.popitem(last=False)
        del pool.block_of[pool.name_of.pop(block)]
    pool.references[block] = 1
    return block
    ### END SOLUTION


# %% test="05.8" points=3
from helpers import check

check.grade("05.8", take)
### BEGIN HIDDEN TESTS
pool = BlockManager(2, 1)
for token in (1, 2):
    session = pool.open([token])
    pool.extend(session, [token])
    pool.close(session)
old, new = pool.cached
assert take(pool) == old, "the oldest goes first"
assert pool.references[old] == 1 and list(pool.cached) == [new], (
    "in use, no longer cached"
)
assert list(pool.name_of) == [new] and list(pool.block_of.values()) == [new], (
    "its name is forgotten"
)
### END HIDDEN TESTS

# %% [markdown]
# A user asks for two answers to one prompt: the session is *forked*, and both share all blocks, the last,
# partly filled one included. When one of them writes its next token there, the other must not see it: **copy
# on write**.
#
# **Exercise 05.9.** Before a session writes, make its last block its own. `session.table` lists its blocks in
# order, `session.tokens` its tokens. Nothing is to be done when the last block is full (the next token opens
# a new one) or when nobody else holds it.


# %% answer="05.9"
def make_own(pool, session):
    """Give `session` its own last block if that is partly filled and also held by others.

    Returns [(old block, new block)], whose contents the engine then copies, or [] if nothing was to be done.
    """
    ### BEGIN SOLUTION
    partly_filled = len(session.tokens) % pool.block_size != 0
    if not partly_filled or pool.references[session.table[-1]] == 1:
        return []
    old, new = session.table[-1], take(pool)
    session.table[-1] = new
    let_go(pool, old)
    return [(old, new)]
    ### END SOLUTION


# %% test="05.9" points=3
from helpers import check

check.grade("05.9", make_own)
### BEGIN HIDDEN TESTS
pool = BlockManager(4, 2)
first = pool.open([1, 2, 3])
pool.extend(first, [1, 2, 3])
assert list(make_own(pool, first)) == [], "its own already"
twin = pool.fork(first)
[(old, new)] = make_own(pool, twin)
assert first.table[1] == old and twin.table == [first.table[0], new] and old != new, (
    "only the writer moves"
)
assert pool.references[old] == 1 and pool.references[new] == 1, "one user each"
### END HIDDEN TESTS

# %% [markdown]
# That is a block manager. Here the engine's own is told to decide with your five functions; the last three
# each ran through 1,800 random operations of two tenants, beside a model that knows every token.


# %% tags=["setup"]
class YourBlocks(BlockManager):
    """The engine's block manager (open, extend, fork, close), with your decisions."""

    def name(self, parent, tokens, salt):
        return block_name(parent, tokens, salt)

    def match(self, tokens, salt=b""):
        return longest_prefix(self.block_of, tokens, self.block_size, salt)

    def hold(self, block):
        hold(self, block)

    def let_go(self, block):
        let_go(self, block)

    def take(self):
        return take(self)

    def make_own(self, session):
        return make_own(self, session)


# %% [markdown]
# Last, reading a shared prefix once. Attention over two stretches of keys can be done apart and joined later,
# if each stretch also says how much it weighs: the **log-sum-exp** of its scores (lse). A softmax over both
# stretches gives stretch a the share exp(lse_a) ÷ (exp(lse_a) + exp(lse_b)) of the result. `attend` does one
# stretch:


# %% tags=["setup"]
def attend(q, k, v):
    """q [batch, kv_heads, rows, head_dim]; k, v [batch, kv_heads, tokens, head_dim] → out like q, and
    the lse of each row [batch, kv_heads, rows]."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    lse = scores.logsumexp(dim=-1)
    return (scores - lse[..., None]).exp() @ v, lse


# %% [markdown]
# **Exercise 05.10.** Join two stretches. Scores have no upper limit, and exp(12) is infinite in float16,
# exp(89) in float32: exponentiate a *difference*. (1 ÷ (1 + exp(−x)) is `torch.sigmoid(x)`.)


# %% answer="05.10"
def merge(out_a, lse_a, out_b, lse_b):
    """Attention over both stretches: out_a, out_b [..., rows, head_dim]; lse_a, lse_b [..., rows] → like out_a.

    Example: lse_a = 0, lse_b = log(3): a quarter of out_a and three quarters of out_b.
    """
    ### BEGIN SOLUTION
    share = torch.sigmoid(lse_a - lse_b)[..., None]
    return share * out_a + (1 - share) * out_b
    ### END SOLUTION


# %% test="05.10" points=2
from helpers import check

check.grade("05.10", merge)
### BEGIN HIDDEN TESTS
ones, zeros = torch.ones(2, 3), torch.zeros(2, 3)
joined = merge(
    ones, torch.tensor([0.0, 900.0]), zeros, torch.tensor([1.0986123, 900.0])
)
assert (joined - torch.tensor([[0.25], [0.5]])).abs().max() < 1e-3, (
    "a quarter, and a half"
)
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 05.11.** Now the cascade. The prefix is stored once, with a batch of 1. Make the queries of
# **all** sessions rows of one call, so that it is read once: [batch, kv_heads, group, head_dim] becomes [1,
# kv_heads, batch · group, head_dim]. (Which two axes have to change places before `reshape`, and back after?)
# Then each session's own tokens, and merge.


# %% answer="05.11"
def cascade(q, prefix_k, prefix_v, k, v):
    """Attention of one new token per session over the shared prefix and the session's own tokens.

    q [batch, kv_heads, group, head_dim]; prefix_k, prefix_v [1, kv_heads, prefix, head_dim];
    k, v [batch, kv_heads, own, head_dim] → like q.
    """
    ### BEGIN SOLUTION
    batch, kv_heads, group, head_dim = q.shape
    together = q.transpose(0, 1).reshape(1, kv_heads, batch * group, head_dim)
    out, lse = attend(together, prefix_k, prefix_v)
    out = out.view(kv_heads, batch, group, head_dim).transpose(0, 1)
    lse = lse.view(kv_heads, batch, group).transpose(0, 1)
    return merge(out, lse, *attend(q, k, v))
    ### END SOLUTION


# %% test="05.11" points=3
from helpers import check

check.grade("05.11", cascade)
### BEGIN HIDDEN TESTS
draw = torch.Generator().manual_seed(1)
shapes = [(3, 2, 2, 4), (1, 2, 7, 4), (1, 2, 7, 4), (3, 2, 5, 4), (3, 2, 5, 4)]
parts = [torch.randn(shape, generator=draw) for shape in shapes]
keys, values = (
    torch.cat((p.expand(3, -1, -1, -1), o), dim=2)
    for p, o in zip(parts[1:3], parts[3:], strict=True)
)
plain = (parts[0] @ keys.transpose(-1, -2) / 2).softmax(dim=-1) @ values
assert (cascade(*parts) - plain).abs().max() < 1e-5, (
    "not the attention over prefix and own tokens"
)
### END HIDDEN TESTS


# %% tags=["setup"]
class YourPrefixCache(SharedPrefixCache):
    """The engine's cache of a shared prefix; it stores, your `cascade` reads."""

    def read(self, layer, q):
        grouped = q.unflatten(1, (self.geometry.kv_heads, -1))
        return cascade(grouped, *self.parts(layer)).flatten(1, 2)


# %% [markdown]
# ## Measure
#
# Does it run in a real model, and does a hit change the answer? A block pool for SmolLM2-135M, your manager
# to rule it, and five lines of engine: look the prompt up, make room, compute only what was not found.

# %%
from helpers.clock import devices
from helpers.clock import sweeps
from helpers.models import pretrained, text
from helpers.caches import BlockPool, FullCache, PagedCache

spot = devices.pick(device)
card = devices.card(spot)
model, tokenizer = pretrained.load(device=spot)
document = text.tokens(4_096, tokenizer).tolist()


# %%
def first_token(blocks, pool, prompt, salt=b""):
    """Read `prompt`, skipping what is cached: the logits of the first token, and the session that holds it all."""
    session = blocks.open(prompt, salt)
    new = prompt[session.hit_tokens :]
    pool.copy(blocks.extend(session, new))
    cache = PagedCache(pool, [session.table], length=session.hit_tokens)
    return model.prefill(torch.tensor([new], device=spot), cache), session


pool, blocks = (
    BlockPool(model.geometry, 40, 16, positions=512, device=spot),
    YourBlocks(40, 16),
)
without, session = first_token(blocks, pool, document[:300])
blocks.close(session)
with_hit, session = first_token(blocks, pool, document[:300])
print(f"second time: {session.hit_tokens} of 300 tokens found")
print(
    f"largest difference of {with_hit.numel():,} logits: {(with_hit - without).abs().max():.1e}"
)

# %% [markdown]
# **TTFT.** A second turn: a history of some length, which is cached or not, and 32 new tokens. Your
# prediction from the device card: arithmetic of the tokens that are computed, or the bytes of the weights,
# whichever takes longer.

# %%
from helpers.models.counts import prefill_flops

g = model.geometry
histories = [32, 128, 512] if budget == "quick" else [64, 256, 768, 2_048, 4_000]
flops = {n: prefill_flops(g, n) for h in histories for n in (h, h + 32)}
computed = {
    "no hit": lambda h: flops[h + 32],
    "hit": lambda h: flops[h + 32] - flops[h],
}
ttft_predicted = {
    case: [1e3 * card.floor_seconds(model.weight_bytes, count(h)) for h in histories]
    for case, count in computed.items()
}
for case, times in ttft_predicted.items():
    for h, ms in zip(histories, times, strict=True):
        estimates.predict(f"05.ttft_ms_{case.replace(' ', '_')}_at_{h}", ms, "ms")

# %%
import itertools

from helpers.clock.timing import Clock

size = (
    histories[-1] // 16 + 64
)  # blocks: the longest prompt, and room for questions to come and go
pool, warm = BlockPool(g, size, 16, positions=4_096, device=spot), YourBlocks(size, 16)
warm.close(
    first_token(warm, pool, document[: histories[-1]])[1]
)  # all histories are prefixes of this one
fresh = itertools.count()


def second_turn(history, hit):
    def step():
        question = [
            next(fresh),
            *document[-31:],
        ]  # a new first token: never asked before
        blocks = warm if hit else YourBlocks(size, 16)
        _, session = first_token(blocks, pool, document[:history] + question)
        blocks.close(session)

    return step


def doubt(timings):
    """A note for a title: " [busy]" when one of the timings is too wide to teach from."""
    return "".join(
        f" [{verdict}]" for verdict in sorted({t.verdict for t in timings} - {"ok"})
    )


# %%
steps = {
    (case, h): second_turn(h, case == "hit") for case in computed for h in histories
}
ttft = Clock(spot).sweep(steps, budget_seconds=4, min_samples=3, label="first tokens")
_, ax = plt.subplots()
title = f"SmolLM2-135M: a hit takes the history out of TTFT{doubt(ttft.values())}"
for series, case in enumerate(computed):
    points = [ttft[case, h] for h in histories]
    plots.prediction(
        ax,
        histories,
        ttft_predicted[case],
        [t.ms for t in points],
        [t.spread_ms for t in points],
        series=series,
        label=case,
        xlabel="history (tokens)",
        ylabel="TTFT of the second turn (ms)",
        title=title,
        xlog=True,
        ylog=True,
    )
    for h, t in zip(histories, points, strict=True):
        key = f"05.ttft_ms_{case.replace(' ', '_')}_at_{h}"
        estimates.measured(key, t.ms, residual="kernels below the card's peak")

# %% [markdown]
# What is left at a hit: the weights, once; the arithmetic of 32 tokens; gathering the blocks.
#
# **TPOT of one session.** The popular claim: *prefix caching cuts TPOT*. Two sessions with the same history,
# one that found it and one that computed it all. Bytes say: the same step.

# %%
contexts, token = [64, 512, 1_024], torch.zeros(1, dtype=torch.long, device=spot)
pool, blocks, caches = (
    BlockPool(g, 140, 16, positions=1_056, device=spot),
    YourBlocks(140, 16),
    {},
)
for label, salt in (
    ("computed", b"another tenant"),
    ("first of its kind", b""),
    ("found", b""),
):
    session = blocks.open(document[:1_056], salt)
    blocks.extend(session, document[session.hit_tokens : 1_056])
    caches[label] = PagedCache(pool, [session.table], length=1_056)
    print(f"{label}: {session.hit_tokens} of 1,056 tokens found")


def decode_at(cache, context):
    def step():
        cache.rewind(context)
        model.decode(token, cache)

    return step


# %%
steps = {
    (label, c): decode_at(caches[label], c)
    for label in ("computed", "found")
    for c in contexts
}
effort = (
    {"budget_seconds": 2, "min_samples": 12}
    if budget == "quick"
    else {"budget_seconds": 10}
)
timed = Clock(spot).sweep(steps, **effort, label="decode steps")
pairs = (
    {"budget_seconds": 1, "min_pairs": 20}
    if budget == "quick"
    else {"budget_seconds": 5}
)
pair = Clock(spot).compare(
    steps["computed", 1_024], steps["found", 1_024], **pairs, label="side by side"
)
estimates.predict("05.tpot_ratio_found_to_computed", 1.0, "×")
estimates.measured(
    "05.tpot_ratio_found_to_computed", pair.ratio, residual="none: the clock's noise"
)
print(f"found against computed, in pairs at 1,024 tokens: {pair}")

# %%
lines = {
    f"history {label}": [timed[label, c].ms for c in contexts]
    for label in ("computed", "found")
}
error = {
    f"history {label}": [timed[label, c].spread_ms for c in contexts]
    for label in ("computed", "found")
}
bytes_ms = [
    1e3 * (model.weight_bytes + c * 46_080) / card.read_bytes_per_second
    for c in contexts
]
ax = plots.curve(
    None,
    contexts,
    lines,
    spread=error,
    xlabel="context (tokens)",
    ylabel="TPOT (ms)",
    title=f"One session: found or computed, a step reads the same{doubt(timed.values())}",
)
ax.plot(contexts, bytes_ms, color=plots.GREY, linestyle=":", label="bytes ÷ card, both")
ax.set_ylim(0, 1.6 * max(map(max, lines.values())))
ax.legend()
print(*{t.reason for t in timed.values()} - {""})

# %% [markdown]
# The claim is **false**: every step still reads every row, whoever computed it, and the pairs above say how
# much of a difference your clock can see. (What lies above the bytes is launches, and, except on CUDA, this
# paged cache copying its blocks together before it reads them; the Triton kernel reads through the table.)
#
# **Memory.** N open sessions, 512 shared tokens and 64 of their own, in blocks of a real pool.

# %%
counts = [1, 2, 4, 8]
pool = BlockPool(g, 8 * 36, 16, positions=576, device=spot)
resident = {"each for itself": [], "prompt shared": []}
for case, values in resident.items():
    blocks, sessions = YourBlocks(8 * 36, 16), []
    for n in range(counts[-1]):
        prompt = document[:512] + [n] * 64
        sessions.append(
            blocks.open(prompt, b"" if case == "prompt shared" else bytes([n]))
        )
        blocks.extend(sessions[-1], prompt[sessions[-1].hit_tokens :])
        if n + 1 in counts:
            values.append(PagedCache(pool, [s.table for s in sessions]).nbytes / 1e6)

# %%
token_mb = 46_080 / 1e6  # SmolLM2-135M in float32, from unit 02
expected = {
    "each for itself": [n * 576 * token_mb for n in counts],
    "prompt shared": [(512 + n * 64) * token_mb for n in counts],
}
_, ax = plt.subplots()
for series, (case, values) in enumerate(resident.items()):
    plots.prediction(
        ax,
        counts,
        expected[case],
        values,
        series=series,
        label=case,
        xlabel="open sessions (1)",
        ylabel="resident cache (MB)",
        title="512 tokens of system prompt, 64 of one's own",
    )
    key = f"05.resident_mb_{case.replace(' ', '_')}_8_sessions"
    estimates.predict(key, expected[case][-1], "MB")
    estimates.measured(key, values[-1])
for residual in list(ax.texts):
    residual.remove()  # there is none

# %% [markdown]
# **Cascade.** Eight sessions decode together over one prefix. First your `cascade` in the real model, against
# a plain cache that holds the prefix eight times.

# %%
batch, own, short = 8, 64, 40
questions = torch.tensor([[n, 7, 9] for n in range(batch)], device=spot)
prefix = FullCache(g, short, device=spot)
model.prefill(torch.tensor([document[:short]], device=spot), prefix)
yours, plain = (
    YourPrefixCache(prefix, short + 8, batch),
    FullCache(g, short + 8, batch=batch, device=spot),
)
model.prefill(torch.tensor([document[:short]] * batch, device=spot), plain)
last = []
for cache in (yours, plain):
    model.prefill(questions, cache)
    last.append(model.decode(questions[:, 0], cache))
print(
    f"largest difference of {last[0].numel():,} logits: {(last[0] - last[1]).abs().max():.1e}"
)

# %% [markdown]
# Then the time of a step, by bytes and by the clock, with the engine's compiled cascade.

# %%
prefixes = (
    [64, 512, 1_536] + [4_096] * (budget == "full") + [8_192] * (spot.type != "cpu")
)
shared = FullCache(g, prefixes[-1], device=spot)
shared.fill(prefixes[-1])
plain = sweeps.DecodeStep(
    model, FullCache(g, prefixes[-1] + own + 1, batch=batch, device=spot)
)
points, step_bytes = {}, {}
for p in prefixes:
    shared.rewind(p)
    casc = sweeps.DecodeStep(model, SharedPrefixCache(shared, p + own + 1, batch))
    for case, point in (("plain", plain), ("cascade", casc)):
        points[case, p], step_bytes[case, p] = (
            point.at(p + own),
            point.bytes_at(p + own),
        )
stepped = Clock(spot).sweep(points, **effort, label="decode steps")
longest = prefixes[-1]
faster = Clock(spot).compare(
    points["cascade", longest], points["plain", longest], **pairs, label="side by side"
)
print(f"plain against cascade, in pairs at {longest:,} shared tokens: {faster}")

# %%
_, ax = plt.subplots()
for series, case in enumerate(("plain", "cascade")):
    predicted = [
        1e3 * step_bytes[case, p] / card.read_bytes_per_second for p in prefixes
    ]
    times = [stepped[case, p] for p in prefixes]
    plots.prediction(
        ax,
        prefixes,
        predicted,
        [t.ms for t in times],
        [t.spread_ms for t in times],
        series=series,
        label=case,
        xlabel="shared prefix (tokens)",
        ylabel="TPOT (ms)",
        title=f"Batch {batch}, {own} own tokens each{doubt(stepped.values())}",
    )
    key = f"05.tpot_ms_{case}_batch_{batch}_at_{longest}"
    estimates.predict(key, predicted[-1], "ms")
    estimates.measured(
        key, times[-1].ms, residual="arithmetic, attention kernel, launches"
    )
ax.set_ylim(0, 1.6 * max(t.ms for t in stepped.values()))
print(*{t.reason for t in stepped.values()} - {""})

# %% [markdown]
# The weights are in every point, and hide the attention. Take it alone, one layer of it, and look at short
# prefixes too.

# %%
from helpers import kernels

backend, lengths = kernels.select(spot), [16, 64, 256, 1_024, 4_096]
q, steps = torch.randn(batch, g.q_heads, g.head_dim, device=spot), {}
mine = torch.randn(2, batch, g.kv_heads, own, g.head_dim, device=spot)  # keys, values
for p in lengths:
    once = torch.randn(2, 1, g.kv_heads, p, g.head_dim, device=spot)
    every = torch.randn(2, batch, g.kv_heads, p + own, g.head_dim, device=spot)
    steps["plain", p] = lambda every=every, p=p: backend.decode_attention(
        q, *every, p + own
    )
    steps["cascade", p] = lambda once=once, p=p: backend.cascade_attention(
        q, *once, p, *mine, own
    )
alone = Clock(spot).sweep(
    steps, 3 if budget == "quick" else 15, label="attention alone"
)

# %%
gain = [alone["plain", p].median / alone["cascade", p].median for p in lengths]
bound = [batch * (p + own) / (p + batch * own) for p in lengths]
ax = plots.prediction(
    None,
    lengths,
    bound,
    gain,
    xlabel="shared prefix (tokens)",
    ylabel="plain ÷ cascade (1)",
    title=f"Attention alone: where does sharing pay?{doubt(alone.values())}",
    xlog=True,
)
ax.axhline(1, color=plots.GREY, linestyle=":")
loses = [p for p, factor in zip(lengths, gain, strict=True) if factor < 1]
print(f"cascade is slower at these prefixes: {loses}")

# %% [markdown]
# Where your line runs below 1, sharing loses: two reads and a merge are more launches than one read, and few
# bytes are saved. On a long prefix another roof comes near: the bytes shrink nearly 8 times and the
# arithmetic stays, so a step soon waits for arithmetic, on a CPU before a GPU.

# %%
estimates.report("05")

# %% [markdown]
# ## Explain
#
# **A day of traffic.** `traces` makes a seeded day: 60 chat sessions of four agents, with tools whose output
# comes back, and edited questions. What share of all prompt tokens is found, against the size of the cache
# and of a block?

# %%
from helpers.serving import traces

day = traces.generate(60, seed=1)
cache_tokens = [4_096, 8_192, 16_384, 32_768, 65_536, 131_072]
rates = {}
for block in (16, 256, 1_024):
    named = traces.hashed(day, block)
    rates[f"blocks of {block:,}"] = [
        100 * traces.hit_rate(named, block, n // block) for n in cache_tokens
    ]
print(f"{len(day)} requests, {sum(len(r.prompt) for r in day):,} prompt tokens")
ax = plots.curve(
    None,
    cache_tokens,
    rates,
    xlabel="size of the cache (tokens)",
    ylabel="hit rate (%)",
    xlog=True,
    title="Generated trace: a larger cache helps, larger blocks cost",
)

# %% [markdown]
# (A trace of your own, as JSON lines of hashed blocks: `traces.load("trace.jsonl", block_size=512)`, then
# `traces.hit_rate` as above.)
#
# **Inconvenient results.** The same day, spoilt in four ways. *Answers dropped*: only prompts are kept. *Time
# in front*: one new token at the beginning of each prompt. Then sessions longer than 6,000 tokens are
# **compacted**: a request of its own asks for a summary, which replaces the history. That request may bring a
# system prompt of its own (*broken*), or send the session's history as it stands, with the instruction at the
# end (*kept*).


# %%
def rate(requests, answers=True, kind=None):
    """Hit rate in %, over the requests of one `kind` or all."""
    found = traces.hit_tokens(traces.hashed(requests, 16, answers), 16)
    pairs = [
        (hit, len(r.prompt))
        for hit, r in zip(found, requests, strict=True)
        if kind in (None, r.kind)
    ]
    return 100 * sum(hit for hit, _ in pairs) / sum(n for _, n in pairs)


broken, kept = (
    traces.generate(60, seed=1, compact_at=6_000, same_prefix=same)
    for same in (False, True)
)
cases = {
    "as it is": rate(day),
    "answers\ndropped": rate(day, answers=False),
    "time\nin front": rate(traces.generate(60, seed=1, timestamp=True)),
    "compaction\nbroken": rate(broken, kind="compaction"),
    "compaction\nkept": rate(kept, kind="compaction"),
}
ax = plots.bars(
    None,
    list(cases),
    list(cases.values()),
    ylabel="hit rate (%)",
    form="{:.1f}",
    title="Endless cache, blocks of 16; the right two: compaction requests alone",
)

# %% [markdown]
# - **Time in front** kills every hit. Put what changes at the *end* of the prompt.
# - **Prompts below one block** never hit: with blocks of 1,024 tokens every short chat computes everything.
# - **Compaction.** An SGLang discussion (46590) reports an agent whose compaction requests of about 80,000
#   tokens found 10.1 % and stalled for over 200 s; with a prefix kept token-identical to normal turns they
#   found 99.6 %.
# - **Answers** must be put into the cache, or each turn computes its predecessor's answer again. SGLang once
#   forgot: 100 of 150 tokens were found where 150 were expected (pull request 16521). Your manager shows
#   both:

# %%
for keep in (False, True):
    blocks = YourBlocks(400, 1)  # blocks of one token, as SGLang's tree
    session = blocks.open(document[:100])
    blocks.extend(session, document[: 150 if keep else 100])
    blocks.close(session)
    print(
        f"answers kept: {keep}. Found of 150 tokens: {blocks.open(document[:160]).hit_tokens}"
    )

# %% [markdown]
# **Money.** Your session of 05.4, turn by turn.

# %%
turns = list(range(1, 11))
sent = [10_200 + 500 * t for t in range(10)]
answers = [300 * 15.00 * t / 1e6 for t in turns]
new = [sent[0], *[500] * 9]
prompts_cost = {  # millionths of a dollar, turn by turn
    "no caching": [3.00 * n for n in sent],
    "cached": [3.75 * w + 0.30 * (n - w) for n, w in zip(sent, new, strict=True)],
    "cached, time in front": [3.75 * n for n in sent],
}
bill = {
    case: [sum(c[:t]) / 1e6 + a for t, a in zip(turns, answers, strict=True)]
    for case, c in prompts_cost.items()
}
ax = plots.curve(
    None,
    turns,
    bill,
    xlabel="turns so far (1)",
    ylabel="cost so far (USD)",
    title="Prices of early 2026: caching pays from the second turn",
)
ax.set_xticks(turns)
print(
    f"after ten turns: {bill['cached'][-1] / bill['no caching'][-1]:.0%} and "
    f"{bill['cached, time in front'][-1] / bill['no caching'][-1]:.0%} of the cost without caching"
)

# %% [markdown]
# With one token in the wrong place caching does not merely fail: it costs 22 % more than none, because
# everything is written and nothing found. (Prices move: a list of later in 2026 asks 0.025 times the input
# for what is found, with Fable 5.1. Put your own list into the cell.) *Published:* at launch in August 2024
# Anthropic quoted −90 % cost for a chat with a book of 100,000 tokens (as quoted by readers). That is the
# price of found input, 0.1 times, and nothing else: the longer the shared part, the nearer.
#
# **Published: cascade.** FlashInfer measured the attention operation (H100, P = 32,768, u ≤ 256, B ≥ 128): up
# to 31 times faster than vLLM 0.2.6, and up to 26 times faster than its own kernel without cascade, which is
# the fair comparison. Your 05.3 gives the bound from bytes: 64.5 times. Two fifths of it arrive: bytes were
# no longer all that a step waits for. And the other way round, FlashInfer issue 595: 8 query heads, P =
# 4,000, B = 8. With 8 KV heads, cascade 26 µs against 55 plain; with **one** KV head (a 70B model split over
# 8 GPUs) cascade 26 µs against **19** plain.

# %%
kv_heads = [1, 8]
megabytes = [
    8 * 4_000 * heads * 2 * 128 * 2 / 1e6 for heads in kv_heads
]  # plain: 8 sessions, K and V, bfloat16
plain_us = [19, 55]
slope = (plain_us[1] - plain_us[0]) / (megabytes[1] - megabytes[0])  # µs per MB
floor = plain_us[0] - slope * megabytes[0]
reported = data.measurement("flashinfer-cascade")["data"][0][
    "speedup_vs_flashinfer_no_cascade"
]
print(
    f"32,768 shared, batch 128: bound {times_fewer['P 32,768, u 256, B 128']:.1f}, reported up to {reported}"
)
print(
    f"plain reads {megabytes[0]:.1f} and {megabytes[1]:.1f} MB: {1 / slope:.1f} TB/s, on top of {floor:.0f} µs"
)
print(
    f"cascade would read {megabytes[0] / 8:.1f} and {megabytes[1] / 8:.1f} MB: "
    f"{slope * megabytes[0] / 8:.0f} and {slope * megabytes[1] / 8:.0f} µs. It took 26 both times."
)

# %% [markdown]
# The two plain times say: a floor of 14 µs, and 3.2 TB/s above it. (Two points always lie on a line, so this
# is a reading and no proof. head_dim 128 and bfloat16 are assumed; the issue names no GPU; an H100's data
# sheet says 3.35.) The two cascade times are equal though their bytes differ 8 times, so they are not made of
# bytes: a maintainer names three launches instead of one. Measurements in a vLLM pull request (44397, open
# when read) found plain faster at a prefix of 512 for *every* batch. Long prefix, many sessions, many KV
# heads: then cascade. Otherwise plain.
#
# **Security.** A hit is *felt*. If two tenants share a cache, the second can guess the first one's prompt
# and look at the clock, block by block: each block that is right makes it faster. Tenant A has a prompt of
# 96 tokens in the cache; B tries the right one and one that differs in its third token.

# %%
secret = document[:96]
wrong = [*secret[:2], 0, *secret[3:]]
pool = BlockPool(g, 40, 16, positions=256, device=spot)


def probe(guess, salt):
    def step():
        blocks = YourBlocks(40, 16)
        victim = blocks.open(secret, b"")
        blocks.extend(victim, secret)  # A's prompt lies in the cache
        first_token(blocks, pool, guess, salt)

    return step


guesses = {"right guess": secret, "wrong guess": wrong}
salts = {"one cache for all": b"", "a salt for each tenant": b"tenant B"}
steps = {
    (s, name): probe(guess, salt)
    for s, salt in salts.items()
    for name, guess in guesses.items()
}
felt = Clock(spot).sweep(steps, 2, min_samples=3, label="guesses")
heights = {name: [felt[s, name].ms for s in salts] for name in guesses}
ax = plots.bars(
    None,
    list(salts),
    heights,
    ylabel="TTFT that tenant B sees (ms)",
    form="{:.0f}",
    title=f"Does the clock betray a right guess?{doubt(felt.values())}",
)

# %% [markdown]
# One argument of your `block_name` closes that door: under another salt every block has another name, so a
# right guess costs as much as a wrong one. The price is that tenants no longer share the memory either.
#
# The claim, *prefix caching cuts TPOT*: **false** for one session, which reads the same bytes. vLLM's
# documentation says the same: it does not shorten the decoding phase. What it cuts is TTFT, memory and
# cost. TPOT falls only if a kernel reads the prefix once for a batch; and under load, because fewer
# prefills stand in the way of running decodes.
#
# The row for your ledger.

# %%
h = histories[-1]
cut = ttft["no hit", h].median / ttft["hit", h].median
saved = resident["each for itself"][-1] / resident["prompt shared"][-1]
single = f"× {pair.ratio:.2f}" if pair.differs else "the same"
together = f"÷ {faster.ratio:.1f}" if faster.differs else "no difference seen"
estimates.ledger(
    "05",
    "prefix caching",
    tpot=f"one session: {single}; cascade, {batch} sessions on {longest:,} tokens: {together}",
    ttft=f"only what is new is computed; here ÷ {cut:.1f} at {h:,} tokens of history",
    memory=f"a shared prefix is kept once; here ÷ {saved:.1f} for 8 sessions",
    quality="the same logits; one changed token in front undoes all of it",
)

# %% [markdown]
# *Sources.* Blocks: Kwon et al., arXiv 2309.06180; vLLM, docs/features/automatic_prefix_caching.md.
# Cascade: FlashInfer, blog post "Cascade Inference" of 2024-02-02, and issue 595; Juravsky et al., arXiv
# 2402.05099; vllm-project/vllm pull request 44397. Compaction: sgl-project/sglang discussion 46590;
# answers: pull request 16521. Prices: Anthropic, pages of early and of later 2026, in
# `helpers/data/prices.json`.
