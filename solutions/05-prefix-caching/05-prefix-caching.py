# %% [markdown]
# # 05 · Prefix caching
#
# ## The question
#
# Every session of the product begins with the same 2,000 tokens of instructions, and every turn sends the
# whole history again: the same prompts are computed over and over. An engineer turns on *automatic prefix
# caching* and promises a lower TPOT. Does it keep that promise? And why is everything slow again a week
# later, when somebody has put the time of day into the system prompt?
#
# The first cell below the imports shows the effect: a prompt of 257 tokens, read cold, and read again while the
# keys and values of its first 256 are still in memory.
#
# You will predict what such a cache saves and what it cannot, build one out of blocks, run a real model on
# it, and replay a day of traffic. (About 80 minutes, with a good place for a break after the first *Measure*.)

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures more

# %% tags=["setup"]
import hashlib
import itertools
import json
from functools import partial

import matplotlib.pyplot as plt
import torch

from helpers import check, data, drawings, estimates, kernels, plots
from helpers.caches import BlockPool, FullCache, PagedCache, SharedPrefixCache
from helpers.clock import devices, sweeps
from helpers.clock.timing import Clock, doubt
from helpers.friendly import say
from helpers.models import pretrained, text
from helpers.models.counts import prefill_flops
from helpers.progress import each
from helpers.serving import traces
from helpers.serving.blocks import BlockManager

plots.use()

# %%
spot = devices.pick(device)
model, tokenizer = pretrained.load(device=spot)
document = text.tokens(4_096, tokenizer).tolist()
page = torch.tensor([document[:257]], device=spot)
kept = FullCache(model.geometry, 257, device=spot)


def read_from(start):
    kept.rewind(start)  # forgets what came later, keeps what came before
    return model.prefill(page[:, start:], kept)


both = {"cold": partial(read_from, 0), "again": partial(read_from, 256)}
for name, seen in Clock(spot).sweep(both, budget_seconds=2, min_samples=3).items():
    print(f"{name}: first token after {seen.ms:,.0f} ms")

# %% [markdown]
# ## Predict
#
# The engine keeps keys and values in **blocks** of 16 tokens. A *full* block can be found again by a later
# prompt that has the same tokens **from the very beginning up to the end of that block**. What is found need
# not be computed: these are *hit tokens*. At least one token is always computed, for without it there are no
# logits to choose the next one from.
#
# The first request has a system prompt of 40 tokens and a question of 30, so a prompt of 70. Its answer has
# 50 tokens, and the blocks of prompt and answer are kept. Then comes *one* of these:
#
# | the next request | its tokens |
# |---|---|
# | same system prompt, other question | the same 40, then a question that differs from its first token on |
# | next turn | the whole history of 120, then 25 new ones |
# | 64 tokens, sent twice | some other prompt of exactly 64 tokens, its second time |
# | first prompt, time in front | 5 tokens such as *It is 10:42.*, then the 70 again |
# | 15 tokens, sent twice | a short prompt, its second time |
# | next turn, prompts kept only | the next turn, in an engine that does not keep the blocks of answers |
#
# **Exercise 05.1** (6 minutes). How many tokens hit?

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
# HINT: For each request: how many of its tokens, counted from the very first, are the
#       same as something that is kept?
# HINT: Round that down to whole blocks of 16.
# HINT: Then ask whether a token is left to compute. And where do the tokens stand when
#       5 new ones come first?
# WHY: A hit is a run of whole blocks from the beginning of the prompt, and never all of
#       it: the last token has to be computed.
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

earned = check.grade("05.1", hits, points=3)
### BEGIN HIDDEN TESTS
right = {
    "same system prompt, other question": 32,
    "next turn": 112,
    "64 tokens, sent twice": 48,
    "first prompt, time in front": 0,
    "15 tokens, sent twice": 0,
    "next turn, prompts kept only": 64,
}
agree = [check.near(hits[name], value, absolute=1e-6) for name, value in right.items()]
earned = min(earned, 3 * sum(agree) / 6)
### END HIDDEN TESTS
check.share(earned, 3)

# %% [markdown]
# Sessions that share a block share its bytes. **Exercise 05.2** (3 minutes). Llama-3.1-8B, 131,072 bytes a token. 50
# sessions are open; each holds the same system prompt of 2,000 tokens and 512 tokens of its own. How much
# memory do the caches take, with every session for itself, and with the prompt shared? (1 GB = 1e9 bytes.)

# %% answer="05.2"
memory_gb = {  # GB
    "each for itself": None,
    "system prompt shared": None,
}
### BEGIN SOLUTION
# HINT: Count tokens first. For itself, each of the 50 sessions holds all of its 2,512.
# HINT: Shared: which of the two parts is there once, and which 50 times? Then times the
#       bytes of a token, over 1e9.
# WHY: Sharing takes away 49 of the 50 copies of the prompt and nothing of what is each
#       session's own.
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
# ordinary engine stores the prefix once, but every session still **asks for** its whole history: B · (P + u)
# rows a step. *Cascade attention* asks for the prefix once for all of them, and for each session's own tokens
# apart.
#
# **Exercise 05.3** (4 minutes). How many times fewer bytes of cache does a step then ask for? (Asked for: if the
# prefix fits the processor's own cache, memory may deliver it once in either case. More on this in the second half.)

# %% answer="05.3"
times_fewer = {  # bytes without sharing ÷ bytes with
    "P 32,768, u 256, B 128": None,
    "P 512, u 512, B 8": None,
    "P 32,768, u 256, B 1": None,
}
### BEGIN SOLUTION
# HINT: Without cascade a step asks for B · (P + u) rows. With it, for which rows once,
#       and for which once per session?
# HINT: Rows without ÷ rows with. In the third case, put B = 1 into both and see what is
#       left.
# WHY: The bound grows with the batch and falls with the tokens of one's own; a single
#       session has nobody to share with.
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
right = {
    "P 32,768, u 256, B 128": 64.5,
    "P 512, u 512, B 8": 1.778,
    "P 32,768, u 256, B 1": 1.0,
}
for name, factor in right.items():
    assert abs(float(times_fewer[name]) / factor - 1) < 0.016, f"{name} is off"
### END HIDDEN TESTS

# %% [markdown]
# And money. A price list of early 2026 (Sonnet 4.6), dollars per million tokens: input 3.00; input that is
# **written** to the cache 3.75; input that is **found** there 0.30; output 15.00. So writing costs 1.25 times
# the input price and finding 0.1 times, in a cache that lasts five minutes; in one that lasts an hour, writing
# costs 2 times.
#
# A session: 10 turns, 10,000 tokens of system prompt, each turn a question of 200 and an answer of 300
# tokens. Turn 1 sends 10,200 tokens, turn 2 sends 10,700, and so on. With caching, a turn finds the whole
# prompt of the turn before and writes what is new.
#
# **Exercise 05.4** (6 minutes). What does the session cost without caching, with caching, and with caching when each
# prompt begins with the time of day? (To the cent, or more precisely.) And a prompt that is written once and
# found n times: at which smallest n is caching cheaper than n + 1 ordinary requests?

# %% answer="05.4"
money = {
    "no caching": None,  # dollars for the session, output included
    "cached": None,
    "cached, time in front": None,
    "reuses, write at 1.25": None,  # a whole number
    "reuses, write at 2": None,
}
### BEGIN SOLUTION
# HINT: Write the ten prompt lengths down: 10,200, 10,700, … Every one of their tokens
#       is paid, and so are 10 · 300 tokens of output.
# HINT: Cached: over the ten turns, each token of the last prompt is written once. What
#       is found in turn n is the whole prompt of turn n − 1.
# HINT: Reuses: a prompt costs write + 0.1 · n with caching and 1 + n without, in units
#       of its input price. Solve for n and round up.
# WHY: Writing costs more than plain input and finding a tenth of it, so caching pays
#       once prompts are found again, and costs extra when they never are.
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
dollars = {
    "no caching": 0.4185,
    "cached": 0.133065,
    "cached, time in front": 0.511875,
}
for name, right in dollars.items():
    off = abs(float(money[name]) - right)
    cents = abs(float(money[name]) - round(right, 2))
    assert off < 0.006 * right or cents < 1e-6, f"{name} is off"
for name, right in {"reuses, write at 1.25": 1, "reuses, write at 2": 2}.items():
    assert abs(float(money[name]) - right) < 1e-6, "break-even is off"
### END HIDDEN TESTS

# %% [markdown]
# ## Build
#
# When are two blocks the same? Keys and values of a token depend on **everything before it**. So a block is
# named by its tokens *and* by the name of the block before it, its **parent**. And two customers who must not
# share get a **salt** each: the name of the tenant, or of the adapter, since an adapter's weights make other
# keys of the same words.
#
# **Exercise 05.5** (5 minutes). Name a full block. `hashlib.sha256(some_bytes).digest()` makes 32 bytes, and nobody
# has yet found two inputs with the same ones; `repr(x).encode()` makes bytes of any list or tuple. (vLLM once used
# Python's own `hash()`. It became predictable, and then a stranger could have made a prompt whose blocks carry the
# names of yours.)


# %% answer="05.5"
def block_name(parent, tokens, salt=b""):
    """Name of a full block, as bytes: a hash of the parent's name
    (b"" for the first block), tokens and salt.

    The same arguments give the same name, whether tokens is a list or a tuple. Other
    tokens, another parent and, in the first block, another salt give another name,
    whatever bytes they are made of.
    """
    ### BEGIN SOLUTION
    # HINT: What goes into the hash: parent, tokens and salt. What may not change the
    #       name: whether the tokens are a list or a tuple.
    # HINT: Put the three into one tuple and let repr write it: it marks where each part
    #       begins and ends. Joined by hand, one part can look like two.
    # HINT: repr(…).encode() gives the bytes for hashlib.sha256(…), and .digest() its 32
    #       bytes.
    # WHY: Only a spelling from which all three parts could be read back gives different
    #       names to different arguments.
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
for mark in (b"", b"|", b":"):
    fill = b"p" * (32 - len(mark))
    one = block_name(b"", [1, 2], fill + mark + b"x")
    assert one != block_name(mark + fill, [1, 2], b"x"), "parent and salt keep apart"
fill = b"p" * 26
one = block_name(b"", [1, 2], fill + b"[1, 2]x")
assert one != block_name(b"[1, 2]" + fill, [1, 2], b"x"), "parent, tokens and salt, too"
apart = int.from_bytes(a, "big") ^ int.from_bytes(b, "big")
assert bin(apart).count("1") >= 32, "a hash, of which half the bits differ"
large = {block_name(b"", [1 + n], b"") for n in (0, 256, 65_536)}
assert len(large) == 3, "large tokens count whole"
### END HIDDEN TESTS

# %% [markdown]
# **Exercise 05.6** (6 minutes). A prompt comes in. Which blocks hold its longest known prefix? Walk from the front,
# name block after block, each with the salt, stop at the first that is unknown; and leave the last token of the prompt
# out.


# %% answer="05.6"
def longest_prefix(block_of, tokens, block_size, salt=b""):
    """The blocks that hold the longest known prefix of `tokens`,
    as a list of block numbers.

    block_of is {name: block number}. Example, block_size 4, everything known: 9 tokens
    → the blocks of tokens 0–3 and 4–7; 8 tokens → only that of 0–3,
    because token 7 has to be computed.
    """
    ### BEGIN SOLUTION
    # HINT: Keep the name of the block before, b"" at the start, and make the next one
    #       from it: block_name(name, tokens of this block, salt).
    # HINT: Which starts may a block have, so that at least one token of the prompt lies
    #       behind its end? Think of range() with a step.
    # HINT: An unknown name ends the walk. Test with `in`, since block number 0 is a
    #       good block.
    # WHY: A name holds all that came before it, so the first unknown block rules out
    #       all later ones.
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
known, five = {one: 7, two: 4}, [1, 2, 3, 4, 5]
assert list(longest_prefix(known, five, 2, b"t")) == [7, 4], "five tokens"
assert list(longest_prefix(known, five[:4], 2, b"t")) == [7], "the last is computed"
assert list(longest_prefix({two: 4}, five, 2, b"t")) == [], "a gap ends the prefix"
assert list(longest_prefix(known, five, 2)) == [], "another salt"
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
    """One session more uses `block`. If it was in `cached`,
    it must not be evicted from there any more."""
    pool.references[block] += 1
    pool.cached.pop(block, None)


# %% [markdown]
# **Exercise 05.7** (6 minutes). The way back. Every block is in exactly one state: in use, in `cached`, or in `free`.


# %% answer="05.7"
def let_go(pool, block):
    """One session less uses `block`. After the last: to the end of `cached` if it has a
    name, else to `free`."""
    ### BEGIN SOLUTION
    # HINT: Count down first. Does anything else happen while somebody still uses the
    #       block?
    # HINT: After the last user: can a later prompt still find it? `pool.name_of` knows
    #       whether it has a name. Assigning pool.cached[block] = None puts it at the
    #       end.
    # WHY: A named block is worth keeping for the next prompt; one without a name can
    #       never be found, so its room is free at once.
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
# **Exercise 05.8** (6 minutes). A session needs a fresh block. Give it a free one; if there is none, **evict**: of the
# cached blocks, the one that has gone unused the longest. Its old name must be forgotten everywhere, or the
# next prompt finds tokens that are no longer there. (There is always one of the two; the engine has made
# sure.)


# %% answer="05.8"
def take(pool):
    """A block for new tokens, now used by one session: returns its number.

    Useful: pool.cached.popitem(last=False) removes and returns the oldest
    (block, None).
    """
    ### BEGIN SOLUTION
    # HINT: Two sources: pool.free, else the oldest of pool.cached. Take the block out
    #       of the one that you use.
    # HINT: An evicted block stands in two dictionaries. name_of gives you its name;
    #       with the name you find the entry in block_of. Delete both.
    # HINT: The new user has to be counted before you return the number.
    # WHY: A name that outlives its block promises keys and values that another session
    #       has overwritten by then.
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
assert list(pool.name_of) == [new] and set(pool.block_of.values()) == {new}, (
    "its name is forgotten"
)
### END HIDDEN TESTS

# %% [markdown]
# A user asks for two answers to one prompt: the session is *forked*, and both share all blocks, the last,
# partly filled one included. When one of them writes its next token there, the other must not see it: **copy
# on write**.
#
#     blocks of 4 tokens. A holds 6 tokens in blocks [0, 3]; its fork B holds [0, 3]: two users of each block
#     B is about to write: it takes block 5. A keeps [0, 3], B has [0, 5]: two users of 0, one of 3, one of 5
#     returned: [(3, 5)], and the engine copies the two tokens of block 3 into block 5
#
# **Exercise 05.9** (6 minutes). Before a session writes, make its last block its own. `session.table` lists its blocks
# in order, `session.tokens` its tokens. Nothing is to be done when the last block is full (the next token opens a new
# one) or when nobody else holds it.


# %% answer="05.9"
def make_own(pool, session):
    """Give `session` its own last block if that is partly filled and also held by
    others.

    Returns [(old block, new block)], whose contents the engine then copies, or [] if
    nothing was to be done.
    """
    ### BEGIN SOLUTION
    # HINT: When is nothing to be done? When the last block is full, or when this
    #       session is its only user. len(session.tokens) and pool.references tell.
    # HINT: Otherwise: take() a new block, put it in the place of the last one in
    #       session.table, and let_go() of the old one.
    # HINT: Return the pair, old block first, in a list.
    # WHY: Writers get a copy and readers keep the original, so that sharing can never
    #       be seen in an answer.
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
pool = BlockManager(2, 3)
full = pool.open([1, 2, 3])
pool.extend(full, [1, 2, 3])
assert list(make_own(pool, pool.fork(full))) == [], "a full block of three"
### END HIDDEN TESTS

# %% [markdown]
# That is a block manager. Below, the engine's own is told to decide with your five functions. (The checks of
# the last three each ran 1,800 random operations of two tenants on it, beside a model that knows every token.)


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
# A small pool as your functions run it. A number says how many sessions use the block, #1 which of the cached ones would
# be evicted first: the *end* of a text goes before its beginning, which others may share.
# The folded cell draws six blocks with four tokens each.

# %% jupyter={"source_hidden": true}
small, moments = YourBlocks(6, 4), {}


def note(moment):
    """Draw the pool as it stands into the row `moment`."""
    order = {block: f"#{i}" for i, block in enumerate(small.cached, start=1)}
    moments[moment] = [
        (str(users), "shared" if users > 1 else "used")
        if users
        else (order[block], "cached")
        if block in order
        else ("", drawings.EMPTY)
        for block, users in enumerate(small.references)
    ]


session_a = small.open(range(10))
small.extend(session_a, range(10))
note("A reads 10 tokens")
session_b = small.fork(session_a)
note("B is forked from A")
small.extend(session_b, [99])
note("B writes a token")
small.close(session_a)
small.close(session_b)
note("both end")
session_c = small.open(range(100, 120))
small.extend(session_c, range(100, 120))
note("C reads 20 others")
_ = drawings.boxes(
    moments,
    {"used": "in use", "shared": "in use by several", "cached": "cached, unused"},
    title="Your blocks, step by step",
    columns="block",
)

# %% [markdown]
# ## Measure
#
# Does it run in a real model, and does a hit change the answer? Five lines of engine: look the prompt up, make
# room, compute only what was not found.


# %%
def first_token(blocks, pool, prompt, salt=b""):
    """Read `prompt`, skipping what is cached: the logits of the first token, and the
    session that holds it all."""
    session = blocks.open(prompt, salt)
    new = prompt[session.hit_tokens :]
    pool.copy(blocks.extend(session, new))
    cache = PagedCache(pool, [session.table], length=session.hit_tokens)
    return model.prefill(torch.tensor([new], device=spot), cache), session


g, card = model.geometry, devices.card(spot)

# %%
two_reads, answers = YourBlocks(40, 16), []
two_pool = BlockPool(g, 40, 16, positions=512, device=spot)
for time in ("first", "second"):
    logits, session = first_token(two_reads, two_pool, document[:300])
    two_reads.close(session)
    answers.append(logits)
    print(f"{time} time: {session.hit_tokens} of 300 tokens found")
off = (answers[0] - answers[1]).abs().max()
print(f"largest difference of {answers[0].numel():,} logits: {off:.1e}")

# %% [markdown]
# **TTFT.** A second turn: a history of some length, cached or not, and 32 new tokens. The prediction, from the
# device card: the arithmetic of the tokens that are computed, or the bytes of the weights, whichever takes
# longer.

# %%
histories = [32, 128, 512] if budget == "quick" else [64, 256, 768, 2_048, 4_000]
flops = {n: prefill_flops(g, n) for h in histories for n in (h, h + 32)}
computed = {
    "no hit": [flops[h + 32] for h in histories],
    "hit": [flops[h + 32] - flops[h] for h in histories],
}
ttft_predicted = {
    case: [1e3 * card.floor_seconds(model.weight_bytes, n) for n in counts]
    for case, counts in computed.items()
}
for case, times in ttft_predicted.items():
    for h, ms in zip(histories, times, strict=True):
        estimates.predict(f"05.ttft_ms_{case.replace(' ', '_')}_at_{h}", ms, "ms")

# %%
turn_blocks = histories[-1] // 16 + 64  # the longest prompt, and room for questions
turn_pool = BlockPool(g, turn_blocks, 16, positions=4_096, device=spot)
warm, fresh = YourBlocks(turn_blocks, 16), itertools.count()
# The longest history is kept, and the shorter ones are prefixes of it.
warm.close(first_token(warm, turn_pool, document[: histories[-1]])[1])


def second_turn(history, blocks=None):
    """`history` tokens and a question that was never asked before; without `blocks`,
    nothing is known."""
    blocks = blocks or YourBlocks(turn_blocks, 16)
    question = [next(fresh), *document[-31:]]
    _, turn = first_token(blocks, turn_pool, document[:history] + question)
    blocks.close(turn)


# %%
ttft_steps = {("no hit", h): partial(second_turn, h) for h in histories}
ttft_steps |= {("hit", h): partial(second_turn, h, warm) for h in histories}
ttft = Clock(spot).sweep(ttft_steps, 4, 3, label="first tokens", warm=True)

# %% [markdown]
# The folded cell draws the TTFT of the second turn, with a hit and without, beside your card's prediction.

# %% jupyter={"source_hidden": true}
_, ax = plt.subplots()
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
        title="SmolLM2-135M: a hit takes the history out of "
        f"TTFT{doubt(ttft.values())}",
        xlog=True,
        ylog=True,
    )
    for h, t in zip(histories, points, strict=True):
        key = f"05.ttft_ms_{case.replace(' ', '_')}_at_{h}"
        left = "perhaps kernels below the card's peak"
        estimates.measured(key, t.ms, residual=left, verdict=t.verdict)

# %% [markdown]
# What a hit leaves to do: stream the weights once, compute 32 tokens, gather the blocks.
#
# **TPOT of one session.** The popular claim: *prefix caching cuts TPOT*. Two sessions with the same history,
# one that found it and one that computed all of it. Before you run on: will one step be faster than the other?

# %%
contexts, step_token = [64, 512, 1_024], torch.zeros(1, dtype=int, device=spot)
decode_pool = BlockPool(g, 140, 16, positions=1_056, device=spot)
decode_blocks, decode_caches = YourBlocks(140, 16), {}
tenants = {"computed": b"another tenant", "first of its kind": b"", "found": b""}
for label, salt in tenants.items():
    session = decode_blocks.open(document[:1_056], salt)
    decode_blocks.extend(session, document[session.hit_tokens : 1_056])
    decode_caches[label] = PagedCache(decode_pool, [session.table], length=1_056)
    print(f"{label}: {session.hit_tokens:,} of 1,056 tokens found")


def decode_at(label, context):
    decode_caches[label].rewind(context)
    return model.decode(step_token, decode_caches[label])


# %%
quick = budget == "quick"
effort = dict(budget_seconds=2, min_samples=12) if quick else dict(budget_seconds=10)
pairs = dict(budget_seconds=1, min_pairs=20) if quick else dict(budget_seconds=5)
tpot_steps = {
    (label, c): sweeps.timed_step(partial(decode_at, label, c), spot)
    for label in ("computed", "found")
    for c in contexts
}
timed = Clock(spot).sweep(tpot_steps, **effort, label="decode steps")
sides = [tpot_steps[label, 1_024] for label in ("computed", "found")]
pair = Clock(spot).compare(*sides, **pairs, label="side by side")
estimates.predict("05.tpot_ratio_found_to_computed", 1.0, "×")
estimates.measured("05.tpot_ratio_found_to_computed", pair.ratio)
print(f"found against computed, in pairs at 1,024 tokens: {pair}")

# %% [markdown]
# The folded cell draws the TPOT of both sessions against the context, and what bytes alone would give.

# %% jupyter={"source_hidden": true}
lines, error = (
    {
        f"history {label}": [getattr(timed[label, c], field) for c in contexts]
        for label in ("computed", "found")
    }
    for field in ("ms", "spread_ms")
)
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
    title=f"One session, history found or computed{doubt(timed.values())}",
)
ax.plot(contexts, bytes_ms, color=plots.GREY, linestyle=":", label="bytes ÷ card, both")
ax.set_ylim(0, 1.6 * max(map(max, lines.values())))
ax.legend()
say(*{t.reason for t in timed.values()} - {""})

# %% [markdown]
# Every step reads every row, whoever computed it, and the pairs above say how large a difference your clock
# could have seen. (The kernels of a CPU and of CUDA read the blocks where they lie, through the table.
# Without kernels, as on MPS, they are first copied together, which the line of bytes does not count.)
#
# **Memory.** N open sessions, 512 shared tokens and 64 of their own, in the blocks of a real pool.

# %%
open_sessions = [1, 2, 4, 8]
session_pool = BlockPool(g, 8 * 36, 16, positions=576, device=spot)
resident = {"each for itself": [], "prompt shared": []}
for case, values in resident.items():
    manager, tables = YourBlocks(8 * 36, 16), []
    for n in range(open_sessions[-1]):
        prompt = document[:512] + [n] * 64
        salt = b"" if case == "prompt shared" else bytes([n])
        session = manager.open(prompt, salt)
        manager.extend(session, prompt[session.hit_tokens :])
        tables.append(session.table)
        if n + 1 in open_sessions:
            values.append(PagedCache(session_pool, tables).nbytes / 1e6)

# %% [markdown]
# The folded cell draws the memory that the sessions hold, measured and by arithmetic.

# %% jupyter={"source_hidden": true}
token_mb = 46_080 / 1e6  # SmolLM2-135M in float32, from unit 02
expected = {
    "each for itself": [n * 576 * token_mb for n in open_sessions],
    "prompt shared": [(512 + n * 64) * token_mb for n in open_sessions],
}
_, ax = plt.subplots()
for series, (case, values) in enumerate(resident.items()):
    plots.prediction(
        ax,
        open_sessions,
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
# **Which block goes first?** A session that ends lets go of its blocks one by one, and the one let go first is
# the first to be evicted. The engine begins with the **last** block of the history. What if it began at the
# front? Here a prompt of 65 tokens (four full blocks) ends, and then the pool is short of one block. Guess
# both numbers first.


# %%
class FrontFirst(YourBlocks):
    def close(self, session):
        session.table.reverse()
        super().close(session)


for kind in (YourBlocks, FrontFirst):
    tight = kind(5, 16)
    for prompt in (document[:65], [0] * 32):  # the second evicts one block of the first
        session = tight.open(prompt)
        tight.extend(session, prompt[session.hit_tokens :])
        tight.close(session)
    print(f"{kind.__name__}: {tight.open(document[:65]).hit_tokens} of 64 still found")

# %% [markdown]
# A prefix ends at its first gap. Without the front block the other three can never be found again, yet they
# keep their room until they are evicted too. The tail is also the part that fewest other prompts share; that
# is the reason vLLM's design notes give for freeing a request's blocks in reverse order.
#
# **A good place for a break.** The block manager is done. What follows is the other half: a kernel that reads
# a shared prefix once.

# %% [markdown]
# ## Build: read a shared prefix once
#
# Attention over two stretches of keys can be done apart and joined later, if each stretch also says how much
# it weighs: the **log-sum-exp** of its scores (lse). A softmax over both stretches gives stretch a the share
# exp(lse_a) ÷ (exp(lse_a) + exp(lse_b)) of the result. `attend` does one stretch:


# %% tags=["setup"]
def attend(q, k, v):
    """q [batch, kv_heads, rows, head_dim]; k, v [batch, kv_heads, tokens, head_dim]
    → out like q, and the lse of each row [batch, kv_heads, rows]."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    lse = scores.logsumexp(dim=-1)
    return (scores - lse[..., None]).exp() @ v, lse


# %% [markdown]
# **Exercise 05.10** (6 minutes). Join two stretches. Scores have no upper limit, and exp(12) is infinite in float16,
# exp(89) in float32: exponentiate a *difference*. That may be large as well, and infinite: a stretch can be
# empty, its lse is then −∞, and the other one is the result. (1 ÷ (1 + exp(−x)) is `torch.sigmoid(x)`.)


# %% answer="05.10"
def merge(out_a, lse_a, out_b, lse_b):
    """Attention over both stretches: out_a, out_b [..., rows, head_dim]; lse_a, lse_b
    [..., rows] → like out_a.

    Example: lse_a = 0, lse_b = log(3): a quarter of out_a and three quarters of out_b.
    One lse may be −∞.
    """
    ### BEGIN SOLUTION
    # HINT: The share of stretch a is exp(lse_a) ÷ (exp(lse_a) + exp(lse_b)). Divide
    #       above and below by exp(lse_a): which difference is left in the exponent?
    # HINT: That is a sigmoid of one difference. It has one number per row: add an axis
    #       for head_dim with [..., None].
    # HINT: The other stretch gets what is left of 1.
    # WHY: A sigmoid of the difference is between 0 and 1 even where the difference is
    #       infinite, and no exp of a score is ever formed.
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
nothing = torch.full((2,), -torch.inf)
assert (merge(ones, torch.zeros(2), zeros, nothing) - ones).abs().max() < 1e-3, (
    "an empty stretch has no say"
)
### END HIDDEN TESTS

# %% [markdown]
# `attend` does not know whose rows it gets: a row is a query, whoever asks. So the queries of **all** sessions
# can be rows of *one* call over the prefix, which is then read once for all. One thing has to be watched: a
# row must meet the keys of its own KV head. Take two sessions A and B, two KV heads 0 and 1, and one query head
# for each; in `q` they come in the order A0 A1 B0 B1:
#
# | | under KV head 0 | under KV head 1 |
# |---|---|---|
# | the rows that one call needs | A0 B0 | A1 B1 |
# | the rows that `q.reshape(1, 2, 2, head_dim)` makes | A0 A1 | B0 B1 |
#
# In the last line B0 meets the keys of head 1.
#
# **Exercise 05.11** (8 minutes). The cascade. The prefix is stored once, with a batch of 1. Make one call of it:
# [batch, kv_heads, group, head_dim] becomes [1, kv_heads, batch · group, head_dim], with every row under its own KV
# head, and the result goes back into the order of `q`. Then attend to each session's own tokens, and merge.


# %% answer="05.11"
def cascade(q, prefix_k, prefix_v, k, v):
    """Attention of one new token per session over the shared prefix and the session's
    own tokens.

    q [batch, kv_heads, group, head_dim]; prefix_k, prefix_v
    [1, kv_heads, prefix, head_dim];
    k, v [batch, kv_heads, own, head_dim] → like q.
    """
    ### BEGIN SOLUTION
    # HINT: Bring the KV heads to the front, so that the rows of one head from all
    #       sessions lie side by side: which transpose does that?
    # HINT: Reshape to [1, kv_heads, batch · group, head_dim] and call attend on the
    #       prefix. Undo both steps, in reverse order, for the output and for its lse.
    # HINT: attend(q, k, v) does each session's own tokens. Then merge the two.
    # WHY: Queries do not care whose they are. As rows of one call they meet the prefix
    #       once, and merge makes the result exact.
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
shapes = [(3, 2, 5, 4), (1, 2, 7, 4), (1, 2, 7, 4), (3, 2, 5, 4), (3, 2, 5, 4)]
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
# ## Measure: the cascade
#
# Eight sessions decode together over one prefix. First your `cascade` in the real model, against a plain cache
# that holds the prefix eight times.

# %%
batch, own, short = 8, 64, 40
questions = torch.tensor([[n, 7, 9] for n in range(batch)], device=spot)
once = FullCache(g, short, device=spot)
model.prefill(torch.tensor([document[:short]], device=spot), once)
yours = YourPrefixCache(once, short + 8, batch)
eightfold = FullCache(g, short + 8, batch=batch, device=spot)
model.prefill(torch.tensor([document[:short]] * batch, device=spot), eightfold)
last = []
for cache in each((yours, eightfold), "your cascade, then plain"):
    model.prefill(questions, cache)
    last.append(model.decode(questions[:, 0], cache))
off = (last[0] - last[1]).abs().max()
print(f"largest difference of {last[0].numel():,} logits: {off:.1e}")

# %% [markdown]
# Then the time of a step, by bytes and by the clock, with the engine's compiled cascade.

# %%
far = {4_096} if budget == "full" else set()
if spot.type == "cuda":  # where there is room for eight copies
    far |= {8_192 if devices.free_bytes(spot) > 9e9 else 4_096}
prefixes = [64, 512, 1_536, *sorted(far)]
longest = prefixes[-1]
shared = FullCache(g, longest, device=spot)
shared.fill(longest)
eight = FullCache(g, longest + own + 1, batch=batch, device=spot)
plain, batch_steps, step_bytes = sweeps.DecodeStep(model, eight), {}, {}
for p in prefixes:
    shared.rewind(p)
    one = SharedPrefixCache(shared, p + own + 1, batch)
    for case, point in (("plain", plain), ("cascade", sweeps.DecodeStep(model, one))):
        batch_steps[case, p] = point.at(p + own)
        step_bytes[case, p] = point.bytes_at(p + own)

# %% [markdown]
# The folded cell draws what such a step reads.

# %% jupyter={"source_hidden": true}
own_bytes, streams = batch * (own + 1) * 46_080, {}
for p in (prefixes[0], longest):
    for case in ("plain", "cascade"):
        rest = step_bytes[case, p] - model.weight_bytes - own_bytes
        parts = {"weights": model.weight_bytes, "shared prefix": rest}
        streams[f"{case}, {p:,} shared"] = parts | {"own tokens": own_bytes}
title = f"One step of {batch} sessions: {g.name}, float32, {own} own tokens each"
_ = drawings.step_bytes(streams, title=title)

# %%
stepped = Clock(spot).sweep(batch_steps, **effort, label="decode steps")
sides = [batch_steps[case, longest] for case in ("cascade", "plain")]
faster = Clock(spot).compare(*sides, **pairs, label="side by side")
print(f"plain against cascade, in pairs at {longest:,} shared tokens: {faster}")

# %% [markdown]
# The folded cell draws the TPOT of the eight sessions against the length of the shared prefix.

# %% jupyter={"source_hidden": true}
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
    left = "perhaps arithmetic, the attention kernel, launches"
    estimates.measured(key, times[-1].ms, residual=left, verdict=times[-1].verdict)
ax.set_ylim(0, 1.6 * max(t.ms for t in stepped.values()))
say(*{t.reason for t in stepped.values()} - {""})

# %% [markdown]
# The weights are in every point and hide the attention. So take attention alone, at short prefixes too: one layer
# of it, or on a GPU all 30, each with a cache of its own, since the chip's cache might hold one. And be fair to plain
# attention: a paged engine stores the prefix **once** and reads it eight times, and what was read a moment ago may
# still lie in the processor's own cache. So there are two plain forms: eight copies, and one copy that each session
# reads in turn.

# %%
backend, lengths = kernels.select(spot), [16, 64, 256, 1_024, 4_096]
rounded = backend.CAPABILITIES.rounded  # rows that a kernel wants of a cache
q = torch.randn(batch, g.q_heads, g.head_dim, device=spot)
mine = torch.randn(2, batch, g.kv_heads, rounded(own), g.head_dim, device=spot)
layers = g.layers if spot.type == "cuda" else 1
rounds = 3 if budget == "quick" else 15


def in_turn(q, keys, values, tokens):
    if spot.type == "cuda":  # one launch, in which all sessions point at the same rows
        keys, values = (t.expand(batch, -1, -1, -1) for t in (keys, values))
        return backend.decode_attention(q, keys, values, tokens)
    return [backend.decode_attention(row, keys, values, tokens) for row in q.split(1)]


def through(attend, caches, *rest):
    """A step in which q attends to the keys and values of each layer."""
    pairs = [tuple(pair) for pair in caches]
    return sweeps.timed_step(lambda: [attend(q, *kv, *rest) for kv in pairs], spot)


# %%
alone_steps = {}
for p in lengths:
    sizes = (layers, 2, batch, g.kv_heads, rounded(p + own), g.head_dim)
    every = torch.randn(sizes, device=spot)
    copy = every[:, :, :1]
    alone_steps |= {
        ("plain", p): through(backend.decode_attention, every, p + own),
        ("one copy", p): through(in_turn, copy, p + own),
        ("cascade", p): through(backend.cascade_attention, copy, p, *mine, own),
    }
alone = Clock(spot).sweep(alone_steps, rounds, label="attention alone")
gains = {
    case: [alone[case, p].median / alone["cascade", p].median for p in lengths]
    for case in ("plain", "one copy")
}

# %% [markdown]
# The folded cell draws how many times faster cascade is than either plain form, beside the bound from bytes.

# %% jupyter={"source_hidden": true}
ax = plots.curve(
    None,
    lengths,
    {
        "bytes asked for": [batch * (p + own) / (p + batch * own) for p in lengths],
        "against eight copies": gains["plain"],
        "against one copy": gains["one copy"],
    },
    xlabel="shared prefix (tokens)",
    ylabel="plain ÷ cascade (1)",
    title=f"Attention alone: where does sharing pay?{doubt(alone.values())}",
    xlog=True,
)
ax.axhline(1, color=plots.GREY, linestyle=":")
for label, case in (("eight copies", "plain"), ("one copy", "one copy")):
    slower = [
        f"{p:,}" for p, gain in zip(lengths, gains[case], strict=True) if gain < 1
    ]
    print(f"prefixes where cascade loses to {label}: {', '.join(slower) or 'none'}")
rows = g.q_heads // g.kv_heads
print(
    f"FLOP per byte of prefix: plain {2 * rows / 4:.1f}, cascade "
    f"{2 * rows * batch / 4:.0f}; "
    f"the ridge of this {card.name}: {card.ridge():.1f}"
)

# %% [markdown]
# Where a line runs below 1, sharing loses: two reads and a merge are more work to hand out than one read. (On
# the CPU the one-copy form hands out eight pieces of work, so trust it on long prefixes only.) On a long prefix
# the gap between the two lines may be the processor's own cache at work for plain attention. And cascade meets
# another roof sooner: eight sessions' queries meet each byte, so it does eight times the arithmetic per byte.
# The last line of output says whether that lies beyond the ridge, where arithmetic sets the pace and not bytes.

# %%
estimates.report("05")

# %% [markdown]
# ## Explain
#
# **A day of traffic.** `traces` makes a seeded day: 60 chat sessions of four agents, with tools whose output
# comes back, and edited questions. What share of all prompt tokens is found, against the size of the cache
# and of a block?

# %%
day = traces.generate(60, seed=1)
cache_tokens = [4_096, 8_192, 16_384, 32_768, 65_536, 131_072]
rates = {}
for size in each((16, 256, 1_024), "the day, in blocks of three sizes"):
    named = traces.hashed(day, size)
    rates[f"blocks of {size:,}"] = [
        100 * traces.hit_rate(named, size, n // size) for n in cache_tokens
    ]
print(f"{len(day)} requests, {sum(len(r.prompt) for r in day):,} prompt tokens")

# %% [markdown]
# The folded cell draws the hit rate against the size of the cache.

# %% jupyter={"source_hidden": true}
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
# SGLang keeps no names but a **radix tree**: each edge is a run of tokens, a history is a path from the root,
# and a node is split where two histories part. As published in January 2024, its pages hold one token, so
# nothing is rounded down to a block; and only leaves are evicted, so tails go first by construction.
#
# **Many replicas.** Each has its own cache. A round-robin balancer may send your next turn to a machine that
# has never seen your history. The same day on four replicas, each with an endless cache:


# %%
def found_on(replicas, choose):
    """Hit rate in % when request number i goes to replica choose(i, request) of
    `replicas`."""
    hits_all, tokens_all = 0, 0
    for replica in range(replicas):
        mine_only = [r for i, r in enumerate(day) if choose(i, r) % replicas == replica]
        hits_all += sum(traces.hit_tokens(traces.hashed(mine_only, 16), 16))
        tokens_all += sum(len(r.prompt) for r in mine_only)
    return 100 * hits_all / tokens_all


print(f"one machine:             {found_on(1, lambda i, r: 0):.1f} %")
print(f"4 replicas, round robin: {found_on(4, lambda i, r: i):.1f} %")
print(f"4 replicas, by session:  {found_on(4, lambda i, r: r.session):.1f} %")

# %% [markdown]
# So balancers are made *cache-aware*: they keep a tree of what they sent where, and choose the replica with
# the longest match unless the load is too uneven. SGLang reports up to 1.9 times the throughput of round robin
# and 3.8 times its hit rate (v0.4).
#
# **Inconvenient results.** The same day on one machine, spoilt in four ways. *Answers dropped*: only prompts
# are kept. *Time in front*: one new token at the beginning of each prompt. Then sessions longer than 6,000
# tokens are **compacted**: a request of its own asks for a summary, which replaces the history. That request
# may bring a system prompt of its own (*broken*), or send the session's history as it stands, with the
# instruction at the end (*kept*).


# %%
def rate(requests, answers=True, kind=None):
    """Hit rate in %, over the requests of one `kind` or all."""
    found = traces.hit_tokens(traces.hashed(requests, 16, answers), 16)
    counted = [
        (hit, len(r.prompt))
        for hit, r in zip(found, requests, strict=True)
        if kind in (None, r.kind)
    ]
    return 100 * sum(hit for hit, _ in counted) / sum(n for _, n in counted)


# %%
broken, whole = (
    traces.generate(60, seed=1, compact_at=6_000, same_prefix=same)
    for same in (False, True)
)
cases = {
    "as it is": rate(day),
    "answers\ndropped": rate(day, answers=False),
    "time\nin front": rate(traces.generate(60, seed=1, timestamp=True)),
    "compaction\nbroken": rate(broken, kind="compaction"),
    "compaction\nkept": rate(whole, kind="compaction"),
}

# %% [markdown]
# The folded cell draws the hit rate in each case.

# %% jupyter={"source_hidden": true}
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
# - **Compaction.** An agent's compaction requests found 0 %, because they brought a summary prompt of their own.
#   Rebuilt on the conversation's own prefix, one found 99.6 % in a test, and one of 144,000 tokens 89.9 % in
#   production, where the last turn had not been written to the cache yet (iterate pull request 1888).
# - **Answers** must be put into the cache, or each turn computes its predecessor's answer again. SGLang once
#   forgot: 100 of 150 tokens were found where 150 were expected (pull request 16521). Your manager shows both,
#   with one token less: the token sampled last was never read by the model, so it has no key and no value.
#   (In 05.1, 119 and 120 tokens fill the same seven blocks.)

# %%
for held in (100, 149):
    tree_like = YourBlocks(400, 1)  # blocks of one token, as the pages of SGLang's tree
    session = tree_like.open(document[:held])
    tree_like.extend(session, document[:held])
    tree_like.close(session)
    found = tree_like.open(document[:160]).hit_tokens
    print(f"{held - 100} tokens of the answer kept. Found of 150 tokens: {found}")

# %% [markdown]
# **The same text is not the same tokens.** A hit compares tokens, and a client sends text. Two ways to lose:
# a model may sample a word in other pieces than the tokenizer would cut it into, and a client may write a
# tool's JSON with its keys in another order.

# %%
sampled = [tokenizer.token_to_id(piece) for piece in ("ĠLu", "x", "ell")]
encoded = tokenizer.encode(tokenizer.decode(sampled)).ids
print(*(repr(tokenizer.decode([t])) for t in sampled), "come back as", end=" ")
print(*(repr(tokenizer.decode([t])) for t in encoded))
tool = {"name": "search", "query": "a string", "limit": "a number from 1 to 50"}
swapped = dict(reversed(tool.items()))
sent, other = (tokenizer.encode(json.dumps(t)).ids for t in (tool, swapped))
before, after = document[:100], document[100:400]
for label, again in (("answer", [sampled, encoded]), ("tool", [sent, other])):
    first, second = (before + middle + after for middle in again)
    names = YourBlocks(60, 16)
    names.extend(names.open(first), first)
    print(f"{label}: {names.open(second).hit_tokens} of {len(first)} tokens found")

# %% [markdown]
# Everything behind the first difference is lost. *Published:* a benchmark that appended each answer as text
# found 4,992 of 5,753 tokens, which is every full block of the prompt and not one of the answer (gpt-oss-120b
# on vLLM, inference-perf issue 649). A session whose tool results came with their keys in a new order each
# time found 26 to 31 % of about 150,000 tokens and waited 11 s for each first token (swift-ai-sdk pull request
# 39). The cures: send back the tokens that were sampled, and sort the keys.
#
# **Money.** Your session of 05.4, turn by turn.

# %%
turns = list(range(1, 11))
prompt_tokens = [10_200 + 500 * t for t in range(10)]
written = [prompt_tokens[0], *[500] * 9]
per_turn = {  # millionths of a dollar
    "no caching": [3.00 * n for n in prompt_tokens],
    "cached": [
        3.75 * w + 0.30 * (n - w) for n, w in zip(prompt_tokens, written, strict=True)
    ],
    "cached, time in front": [3.75 * n for n in prompt_tokens],
}
bill = {
    case: [(sum(costs[:t]) + 15.00 * 300 * t) / 1e6 for t in turns]
    for case, costs in per_turn.items()
}

# %% [markdown]
# The folded cell draws the bill, turn by turn.

# %% jupyter={"source_hidden": true}
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
    f"{bill['cached, time in front'][-1] / bill['no caching'][-1]:.0%} of the cost "
    "without caching"
)

# %% [markdown]
# With one token in the wrong place caching does not merely fail: it costs 22 % more than none, because
# everything is written and nothing found. (Prices move: a list of later in 2026 asks 0.025 times the input
# for what is found, with Fable 5.1. Put your own list into the cell.) *Published:* at launch in August 2024
# Anthropic quoted −90 % cost for a chat with a book of 100,000 tokens (as quoted by readers). That is the
# price of found input, 0.1 times: what a long chat about a long text comes close to.
#
# **Published: cascade.** FlashInfer measured the attention operation (H100, P = 32,768, u ≤ 256, B ≥ 128): up
# to 31 times faster than vLLM 0.2.6, and up to 26 times faster than its own kernel without cascade, which is
# the fair comparison. Your 05.3 gives the bound from bytes: how much of it arrives? And the other way round,
# FlashInfer issue 595, one operation at P = 4,000 and B = 8:

# %%
for row in data.measurement("flashinfer-595")["data"]:
    prefix_mb = 4_000 * row["kv_heads"] * 2 * 128 * 2 / 1e6  # K and V, bfloat16
    print(
        f"{row['kv_heads']} KV heads, a prefix of {prefix_mb:.1f} MB: "
        f"plain asks for {8 * prefix_mb:.0f} MB and takes {row['plain_us']} µs, "
        f"cascade for {prefix_mb:.1f} MB and takes {row['cascade_us']} µs"
    )

# %% [markdown]
# The two cascade times are equal though the bytes differ eightfold, so they are not made of bytes: a
# maintainer names three launches instead of one, on kernels that are too short to hide them. With one KV head
# (a 70B model split over 8 GPUs) plain attention is the faster one. And do not read a bandwidth off the plain
# times: the whole prefix is 2 or 16 MB (head_dim 128 and bfloat16 assumed), an H100 has 50 MB of second-level
# cache, and where eight sessions read one stored copy, most of the reads need not reach the memory. (The issue
# names no GPU.)
#
# How long must a prefix be? On an L20 with 128 beams, FlashInfer's cascade took 84 µs against 43 at a prefix of
# 128 tokens, 90 against 199 at 256, and 93 against 2,965 at 4,096 (TensorRT-LLM pull request 14396). A vLLM
# pull request (44397, open when read) found plain faster at a prefix of 512 for *every* batch it lists. Long
# prefix, many sessions, many KV heads: then cascade. Otherwise plain.
#
# **Security.** A hit can be *felt*. If two tenants share a cache, the second can guess the first one's prompt
# and look at the clock, block by block: each block that is right makes it faster. Tenant A has a prompt of
# 96 tokens in the cache; B tries the right one and one that differs in its third token.

# %%
secret = document[:96]
wrong = [*secret[:2], 0, *secret[3:]]
probe_pool = BlockPool(g, 40, 16, positions=256, device=spot)


def probe(guess, salt):
    victims = YourBlocks(40, 16)
    victim = victims.open(secret, b"")
    victims.extend(victim, secret)  # A's prompt lies in the cache
    first_token(victims, probe_pool, guess, salt)


# %%
guesses = {"right guess": secret, "wrong guess": wrong}
salts = {"one cache for all": b"", "a salt for each tenant": b"tenant B"}
probes = {
    (s, guess): partial(probe, tokens, salt)
    for s, salt in salts.items()
    for guess, tokens in guesses.items()
}
felt = Clock(spot).sweep(probes, 2, min_samples=3, label="guesses")

# %% [markdown]
# The folded cell draws the TTFT that tenant B sees.

# %% jupyter={"source_hidden": true}
ax = plots.bars(
    None,
    list(salts),
    {guess: [felt[s, guess].ms for s in salts] for guess in guesses},
    ylabel="TTFT that tenant B sees (ms)",
    form="{:.0f}",
    title=f"Does the clock betray a right guess?{doubt(felt.values())}",
)
ax.margins(y=0.35)  # room for the legend

# %% [markdown]
# One argument of your `block_name` closes that door: under another salt every block has another name, so a
# right guess costs as much as a wrong one. The price is that tenants no longer share the memory either.
#
# The claim, *prefix caching cuts TPOT*: **false** for one session, which reads the same bytes. vLLM's
# documentation says the same: it does not shorten the decoding phase. What it cuts is TTFT, memory and
# cost. TPOT falls only if a kernel reads the prefix once for a batch. Under load it can go either way: fewer
# prefills stand in the way of running decodes, but the room that is saved lets more sessions in, and a larger
# batch has a longer step. One report, where prefill and decode run on separate GPUs and the decode side was given
# a prefix cache (SGLang pull request 19746; Qwen3-32B, 128 requests at a time, 50K shared tokens): requests per
# second + 29 %, median TTFT from 71.9 to 7.0 s, and the time between tokens from 65 to **135** ms.
#
# The row for your ledger.

# %%
history = histories[-1]
cut = ttft["no hit", history].median / ttft["hit", history].median
saved = resident["each for itself"][-1] / resident["prompt shared"][-1]
single = f"× {pair.ratio:.2f}" if pair.differs else "the same"
together = f"÷ {faster.ratio:.1f}" if faster.differs else "no difference seen"
estimates.ledger(
    "05",
    "prefix caching",
    tpot=f"one session: {single}; cascade, {batch} sessions on {longest:,} tokens: "
    f"{together}",
    ttft=f"only what is new is computed; here ÷ {cut:.1f} at {history:,} tokens of "
    "history",
    memory=f"a shared prefix is kept once; here ÷ {saved:.1f} for 8 sessions",
    quality="the same logits; one changed token in front undoes all of it",
)

# %% [markdown]
# *Sources.* Blocks: Kwon et al., arXiv 2309.06180; vLLM, docs/features/automatic_prefix_caching.md and
# docs/design/prefix_caching.md. Radix tree: LMSYS, blog post of 2024-01-17; balancer: SGLang v0.4. Cascade:
# FlashInfer, blog post "Cascade Inference" of 2024-02-02, and issue 595; Juravsky et al., arXiv 2402.05099;
# vllm-project/vllm pull request 44397; NVIDIA/TensorRT-LLM pull request 14396. Compaction: iterate/iterate
# pull request 1888. Tokens: kubernetes-sigs/inference-perf issue 649, teunlao/swift-ai-sdk pull request 39.
# Answers and load: sgl-project/sglang pull requests 16521 and 19746. H100's second-level cache: Chips and
# Cheese. Prices: Anthropic, pages of early and of later 2026. All rows with their sources lie in
# `helpers/data/`.
