# %% [markdown]
# # 09 · Speculative decoding
#
# ## The question
#
# A decode step reads every weight to make one token. An engineer guesses the next four tokens, lets the model
# check all of them in *one* step, and keeps those that are right. Her demo runs twice as fast, and the answer
# is the same, token for token. In production, with many sessions at a time, TPOT gets **worse**, and somebody
# asks whether the answers are really still the model's own. Who is right, and when?
#
# The first cell below the imports shows the effect: one answer, with guesses and without.
#
# You will predict what guesses are worth and what a longer step costs, write the guesser, the check, the
# roll-back and the rule for sampling, and run them on a real model, also where they lose. (About 70 minutes.)

# %% tags=["parameters"]
device = "auto"  # "cpu", "cuda", "mps"
budget = "quick"  # "full" measures longer

# %% tags=["setup"]
import time
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch

from helpers import check, data, drawings, estimates, plots
from helpers.caches import FullCache
from helpers.clock import devices
from helpers.clock.timing import Clock, doubt
from helpers.models import pretrained, text
from helpers.models.counts import decode_flops, weight_bytes
from helpers.models.generate import greedy
from helpers.models.geometry import get
from helpers.progress import Progress, each
from helpers.serving import speculation

plots.use()
SOURCE = '''def area(width, height):
    """Area of a rectangle."""
    result = width * height
    return result


def volume(width, height, depth):
    """Volume of a box."""
    result = width * height * depth
    return result
'''

# %%
spot = devices.pick(device)
model, tokenizer = pretrained.load(device=spot)
g, end_of_turn = model.geometry, tokenizer.token_to_id("<|im_end|>")
request = (
    f"Rename `result` to `answer` in this code and write out all of it:\n\n{SOURCE}"
)
code = tokenizer.encode(text.chat(request)).ids
for name, k in {"warm-up": 4, "no guesses": 0, "4 guesses a step": 4}.items():
    cache, began = FullCache(g, len(code) + 40, device=spot), time.perf_counter()
    [first] = speculation.generate(model, cache, [code], 40, k, stop=end_of_turn)
    seconds = time.perf_counter() - began
    print(f"{name}: {first.tokens_per_step:.2f} tokens a step, {seconds:.2f} s")
print(tokenizer.decode(first.tokens))

# %% [markdown]
# Fewer steps, each of them longer. Whether that was faster *here* stands in the last column of the output, and
# why is what this unit is about.
#
# ## Predict
#
# A step takes the newest token and k guesses, and the model says for each place what it would have written. The
# first guess counts if it is what the model wanted. The second counts only if the first did, and so on: behind
# a wrong guess the model has read a text that nobody wrote. In its place stands the model's own token, and where
# all k guesses hold, the model's token behind them: **a step always yields one token more than guesses that
# hold.**
#
# Say that each guess holds with probability α, whatever the others did.
#
# **Exercise 09.1** (5 minutes). How many tokens does a step yield on average? (Three digits.)

# %% answer="09.1"
tokens_a_step = {  # tokens
    "α 0.8, 4 guesses": None,
    "α 0.3, 4 guesses": None,
    "α 0.8, 16 guesses": None,
    "α 1, 4 guesses": None,
}
### BEGIN SOLUTION
# HINT: One token is certain. What is the probability that the first guess adds
#       one? And the second?
# HINT: The second guess adds one with probability α · α. Add up what each of the
#       k guesses brings, and the certain one.
# WHY: 1 + α + α² + … + α^k = (1 − α^(k+1)) / (1 − α): the twelve guesses from 4 to
#      16 bring 1.5 tokens together.
tokens_a_step = {
    "α 0.8, 4 guesses": sum(0.8**i for i in range(5)),
    "α 0.3, 4 guesses": sum(0.3**i for i in range(5)),
    "α 0.8, 16 guesses": sum(0.8**i for i in range(17)),
    "α 1, 4 guesses": 5,
}
### END SOLUTION

# %% test="09.1" points=2
from helpers import check

earned = check.grade("09.1", tokens_a_step, points=2)
### BEGIN HIDDEN TESTS
right = {
    "α 0.8, 4 guesses": 3.3616,
    "α 0.3, 4 guesses": 1.4251,
    "α 0.8, 16 guesses": 4.8874,
    "α 1, 4 guesses": 5.0,
}
agree = [
    check.near(tokens_a_step[name], value, rel=0.011) for name, value in right.items()
]
earned = min(earned, 2 * sum(agree) / 4)
### END HIDDEN TESTS
check.share(earned, 2)

# %% [markdown]
# And what does the longer step cost? It reads each weight once, for one token or for twenty, and the cache once.
# But it *multiplies* for each token: 2 FLOPs a weight (a multiplication and an addition). While reading takes
# longer than multiplying, further tokens are free; from there on, each makes the step longer by its multiplications.
#
# | device | reads | multiplies |
# |---|---|---|
# | a laptop, float32 | 60 GB/s | 360 GFLOP/s |
# | H100, bfloat16 (data sheet) | 3,350 GB/s | 989.5 TFLOP/s |
#
# **Exercise 09.2** (5 minutes). How many tokens of one session fit into a step until multiplying takes as long
# as reading? (Do not round to whole tokens.) Leave the cache out: weights alone. In the line with 4 bits the laptop
# reads half a byte a weight and multiplies in float32 as before. With 4 sessions, a step holds the tokens of all four.

# %% answer="09.2"
free_tokens = {  # tokens of one session in a step, at which both take equally long
    "laptop, float32": None,
    "laptop, 4-bit weights": None,
    "laptop, float32, 4 sessions": None,
    "H100, bfloat16": None,
}
### BEGIN SOLUTION
# HINT: FLOPs and bytes both grow with the number of weights, so it cancels: look
#       at one weight.
# HINT: n tokens do 2n FLOPs with a weight, which takes 2n / rate; reading it
#       takes its bytes / bandwidth.
# HINT: Set both equal and solve for n; four sessions share that n.
# WHY: n = (rate / bandwidth) · bytes / 2: the ridge of unit 00, times the bytes
#      of a weight, halved. Fewer bits leave less room for guesses.
laptop = 360e9 / 60e9  # FLOPs a byte, the ridge
free_tokens = {
    "laptop, float32": laptop * 4 / 2,
    "laptop, 4-bit weights": laptop * 0.5 / 2,
    "laptop, float32, 4 sessions": laptop * 4 / 2 / 4,
    "H100, bfloat16": 989.5e12 / 3_350e9 * 2 / 2,
}
### END SOLUTION

# %% test="09.2" points=2
from helpers import check

earned = check.grade("09.2", free_tokens, points=2)
### BEGIN HIDDEN TESTS
right = {
    "laptop, float32": 12.0,
    "laptop, 4-bit weights": 1.5,
    "laptop, float32, 4 sessions": 3.0,
    "H100, bfloat16": 295.4,
}
agree = [
    check.near(free_tokens[name], value, rel=0.011) for name, value in right.items()
]
earned = min(earned, 2 * sum(agree) / 4)
### END HIDDEN TESTS
check.share(earned, 2)

# %% [markdown]
# **Exercise 09.3** (5 minutes). In each line a step with guesses takes a given number of times as long as a plain one.
# From which α on does it pay? (Two digits.)

# %% answer="09.3"
breaks_even = {  # α at which a token takes as long as without guesses
    "1 guess, a step × 1.25": None,
    "2 guesses, a step × 1.75": None,
    "4 guesses, a step × 5": None,
}
### BEGIN SOLUTION
# HINT: A step that takes 1.25 times as long breaks even where it yields 1.25
#       tokens.
# HINT: With one guess: 1 + α = 1.25. With two: 1 + α + α² = 1.75, which is a
#       quadratic equation, or a few tries with numbers.
# WHY: In the last line multiplying sets the pace even of a plain step, as in a
#      large batch: five tokens take five times as long, and even perfect guesses
#      win nothing.
breaks_even = {
    "1 guess, a step × 1.25": 1.25 - 1,
    "2 guesses, a step × 1.75": 0.5,
    "4 guesses, a step × 5": 1,
}
### END SOLUTION

# %% test="09.3" points=2
from helpers import check

check.grade("09.3", breaks_even)
### BEGIN HIDDEN TESTS
right = {
    "1 guess, a step × 1.25": 0.25,
    "2 guesses, a step × 1.75": 0.5,
    "4 guesses, a step × 5": 1.0,
}
for name, alpha in right.items():
    assert abs(float(breaks_even[name]) / alpha - 1) < 0.021, f"{name} is off"
### END HIDDEN TESTS

# %% [markdown]
# ## Build
#
# Where do guesses come from? A second, smaller model can write them. Cheaper, and often enough: the text itself.
# Code that is changed, a document that is quoted, a name that comes back. **Prompt lookup**: find the last few
# tokens earlier in the text, and guess that what followed them then follows now.
#
#     history 7 1 2 3 9 8 1 2 3, k 2: the last three tokens, 1 2 3, occurred before; 9 8 followed them
#     history 5 2 6 4 2, k 2: no three and no two of the end occurred before, but 2 did; 6 4 followed it
#
# **Exercise 09.4** (10 minutes). Write it. Three matching tokens say more than two, and two more than one, so
# begin with the longest end. Of several places take the latest.


# %% answer="09.4"
def draft(history, k, longest=3):
    """Up to k guesses: what followed the end of `history` at its last earlier
    occurrence; a list, [] without one.

    history is a list of token ids. The end is its last `longest` tokens,
    or else one fewer, down to one.
    """
    ### BEGIN SOLUTION
    # HINT: Two loops: over n, the length of the end, downwards; and over where
    #       a piece of n tokens may begin, backwards.
    # HINT: The latest piece that is not the end itself begins at
    #       len(history) - n - 1.
    # HINT: When history[i : i + n] equals history[-n:], the guesses begin at i + n.
    # WHY: No model is asked: a guess costs a search through the text, a wrong one
    #      its share of the step. (This search grows with the text; TensorRT-LLM
    #      keeps an index.)
    for n in range(min(longest, len(history) - 1), 0, -1):
        for i in range(len(history) - n - 1, -1, -1):
            if history[i : i + n] == history[-n:]:
                return history[i + n : i + n + k]
    return []
    ### END SOLUTION


# %% test="09.4" points=3
from helpers import check

check.grade("09.4", draft)
### BEGIN HIDDEN TESTS
assert list(draft([7, 1, 2, 3, 9, 8, 1, 2, 3], 2)) == [9, 8], "three that match"
assert list(draft([5, 2, 6, 4, 2], 2)) == [6, 4], "one that matches"
assert list(draft([1, 2, 8, 3, 2, 9, 1, 2], 1)) == [8], "the longest end comes first"
assert list(draft([6, 4, 6, 8, 6, 3, 6], 1)) == [3], "the latest place"
assert list(draft([1, 2, 3], 4)) == [], "nothing occurred before"
### END HIDDEN TESTS

# %% [markdown]
# The step reads the newest token and the guesses, [newest, guess 0, guess 1, …], and gives `best`: the model's most
# likely next token after each of them. So `best[0]` is what it wants in the place of guess 0.
#
# **Exercise 09.5** (5 minutes). Which new tokens does the step yield?


# %% answer="09.5"
def accept(drafted, best):
    """New tokens of a step, as a list: the guesses that hold,
    and then one of the model's own.

    drafted: k guesses; best: k + 1 tokens (there may be more behind them, which do not
    count).
    Example: drafted 4 5 6, best 4 9 6 2 → [4, 9]. Guess 6 does not count: the model
    said 6 after a 5 that it did not want.
    """
    ### BEGIN SOLUTION
    # HINT: Walk along the guesses as long as drafted[i] == best[i].
    # HINT: If n guesses hold, best[n] is the model's own token.
    # WHY: Each token of the result is what the model wants after the tokens before
    #      it; so the answer is that of plain decoding.
    n = 0
    while n < len(drafted) and drafted[n] == best[n]:
        n += 1
    return [*drafted[:n], best[n]]
    ### END SOLUTION


# %% test="09.5" points=2
from helpers import check

check.grade("09.5", accept)
### BEGIN HIDDEN TESTS
assert list(accept([4, 5, 6], [4, 9, 6, 2])) == [4, 9], "up to the first wrong one"
assert list(accept([4, 5, 6], [4, 5, 6, 2])) == [4, 5, 6, 2], "all hold"
assert list(accept([4], [7, 2])) == [7], "none holds"
assert list(accept([], [3, 8])) == [3], "no guess, a plain step"
### END HIDDEN TESTS

# %% [markdown]
# By then the cache holds keys and values of *everything* that was read, wrong guesses included, and the next step
# would attend to them. They have to be forgotten: `cache.truncate(sequence, length)`. In a batch each session has
# guesses of its own and keeps as many as hold. One step has one shape, though: with 2 guesses in one session and
# none in the other, both read 3 tokens, and what is read beyond a session's own guesses is padding.
#
# **Exercise 09.6** (5 minutes). To which lengths are the caches cut? (The model's own token at the end of the new
# ones has not been read yet: it is the newest token of the next step.)


# %% answer="09.6"
def keep(lengths, drafted, best):
    """Tokens that each session's cache may keep after a step, as a list.

    lengths: tokens in each cache before the step; drafted, best: as in `accept`,
    one list a session.
    Example: lengths 10 and 7, drafted [4, 5] and [], best [4, 9, 1] and [3, 8, 8] →
    [12, 8]: the first session keeps its newest token and guess 4,
    the second its newest token.
    """
    ### BEGIN SOLUTION
    # HINT: What did the step read that is right? The newest token, and the guesses
    #       that hold.
    # HINT: `accept` returns those guesses and one token more; which of the two
    #       numbers do you need?
    # WHY: One more was read (the newest token) and one fewer (the model's own), so
    #      the length grows by as many tokens as are new.
    return [
        length + len(accept(guesses, wanted))
        for length, guesses, wanted in zip(lengths, drafted, best, strict=True)
    ]
    ### END SOLUTION


# %% test="09.6" points=2
from helpers import check

check.grade("09.6", keep)
### BEGIN HIDDEN TESTS
assert list(keep([10, 7], [[4, 5], []], [[4, 9, 1], [3, 8, 8]])) == [12, 8], (
    "each its own"
)
assert list(keep([5], [[1, 2]], [[1, 2, 3]])) == [8], "all hold"
assert list(keep([5], [[1, 2]], [[4, 2, 3]])) == [6], "none holds"
### END HIDDEN TESTS

# %% [markdown]
# Your three functions at work, on words instead of numbers, with a model that wants to write one sentence and then
# nearly the same again.
#
# The folded cell draws a row for each step, with the length to which it cuts the cache.

# %% jupyter={"source_hidden": true}
story = "the cat sat on the mat . the cat sat on the rug . the end".split()
known, steps_taken = story[:7], {}
while len(known) < len(story):
    drafted = draft(known, min(3, len(story) - len(known) - 1))
    best = story[len(known) : len(known) + len(drafted) + 1]
    new = accept(drafted, best)
    right = len(new) - 1  # guesses that hold; the last new token is the model's own
    boxes = [(known[-1], "newest")] + [(word, "holds") for word in drafted[:right]]
    boxes += [(word, "wrong") for word in drafted[right:]] + [(new[-1], "own")]
    [length] = keep([len(known) - 1], [drafted], [best])
    known += new
    steps_taken[f"step {len(steps_taken) + 1}, keeps {length}"] = boxes
legend = {"newest": "newest token, read", "wrong": "wrong guess, forgotten"}
legend |= {"holds": "guess that holds", "own": "the model's own token"}
_ = drawings.boxes(steps_taken, legend, title="Guessed, checked, cut back")

# %% [markdown]
# Greedy decoding has *one* right token. When tokens are **sampled**, the model has a distribution p, and a guess
# cannot be right or wrong. Say it was drawn from a distribution q, a draft model's, or, as with prompt lookup,
# one that is certain: q is 1 at the guess. Keeping every guess would give q, and the product would no longer be
# this model. The rule that gives exactly p (Leviathan et al., Chen et al.):
#
# - Where q proposes a token *more* often than p wants it, keep only the share that p wants. Where it proposes it
#   less often, or equally often, keep it always.
# - What is then missing, wherever p is larger than q, is made up for when a guess is *not* kept: another token is
#   drawn, in proportion to what is missing.
#
# Example: p = 0.5, 0.3, 0.2, and q is certain of the second token. It is kept with probability 0.3; otherwise one
# of the other two is drawn, with probabilities 5/7 and 2/7. So the second comes out in 0.3 of the cases, the first
# in 0.7 · 5/7 = 0.5.
#
# **Exercise 09.7** (10 minutes). Write the rule.


# %% answer="09.7"
def rule(token, p, q):
    """(probability of keeping `token`, list of probabilities of each token that may
    replace it).

    p, q: lists, the probabilities of model and drafter; token: a number drawn from q,
    so q[token] > 0. Where p and q are equal nothing is ever replaced:
    then return p as the second.
    """
    ### BEGIN SOLUTION
    # HINT: Of q[token], the share that is wanted is p[token] / q[token], but no
    #       probability is larger than 1.
    # HINT: What is missing of token x is p[x] − q[x], where that is positive, and
    #       nothing where it is not.
    # HINT: A distribution adds up to 1: divide what is missing by its sum.
    # WHY: x comes out with min(p, q) from keeping and max(0, p − q) from replacing;
    #      together that is p.
    missing = [max(0, wanted - proposed) for wanted, proposed in zip(p, q, strict=True)]
    total = sum(missing)
    replacing = [part / total for part in missing] if total else p
    return min(1, p[token] / q[token]), replacing
    ### END SOLUTION


# %% test="09.7" points=3
from helpers import check

check.grade("09.7", rule)
### BEGIN HIDDEN TESTS
kept, other = rule(1, [0.6, 0.1, 0.3], [0.2, 0.7, 0.1])
assert abs(float(kept) - 1 / 7) < 1e-3, "q proposes it more often than p wants it"
expected = [2 / 3, 0, 1 / 3]
assert all(abs(float(a) - b) < 1e-3 for a, b in zip(other, expected, strict=True))
kept, other = rule(0, [0.7, 0.2, 0.1], [0.3, 0.2, 0.5])
assert abs(float(kept) - 1) < 1e-3, "p wants it more often than q proposes it"
assert all(abs(float(a) - b) < 1e-3 for a, b in zip(other, [1, 0, 0], strict=True))
### END HIDDEN TESTS

# %% [markdown]
# ## Measure
#
# First, your three functions around the real decoder, greedily. (`model.decode` takes the newest tokens of each
# session, [batch, t], and gives the logits after each of them.) Is the answer that of plain decoding?


# %%
def speculate(prompt, count, k):
    """The new tokens, and the steps they took."""
    cache = FullCache(g, len(prompt) + count, device=spot)
    model.prefill(torch.tensor([prompt[:-1]], device=spot), cache)
    history, steps = list(prompt), 0
    while (left := len(prompt) + count - len(history)) > 0 and steps < count:
        guesses, before = draft(history, min(k, left - 1)), cache.length
        read = torch.tensor([[history[-1], *guesses]], device=spot)
        best = model.decode(read, cache)[0].argmax(dim=-1).tolist()
        history += accept(guesses, best)
        cache.truncate(0, keep([before], [guesses], [best])[0])
        steps += 1
    return history[len(prompt) :], steps


# %%
with Progress("with guesses, then without") as bar:
    answer, steps = speculate(code, 24, 4)
    bar.to(0.4)
    plain_cache = FullCache(g, len(code) + 24, device=spot)
    alone = greedy(model, plain_cache, torch.tensor(code, device=spot), 24)
print(
    f"{len(answer)} tokens in {steps} steps; equal to plain decoding: {answer == alone}"
)

# %% [markdown]
# (Should they ever differ, look at the logits: two tokens whose logits are equal but for rounding may change places,
# since a longer step adds up its sums in another order.)
#
# And sampled: your rule on the real model's distribution after a few words. Guessed is its likeliest token, and then
# its fifth. 4,000 draws each; the p-value says how often draws from the model itself would lie at
# least this far off.

# %%
opening = tokenizer.encode("The best season of the year is").ids
seen_by = FullCache(g, 32, device=spot)
logits = model.prefill(torch.tensor([opening], device=spot), seen_by)[0]
shares, top = logits.double().cpu().softmax(dim=-1).topk(5)
p_real = [*shares.tolist(), 1 - float(shares.sum())]  # five tokens, and all others
words = [repr(tokenizer.decode([token])) for token in top.tolist()] + ["others"]
dice, draws = torch.Generator().manual_seed(9), 4_000


# %%
def sampled(guess):
    """How often each of the six came out, in `draws` draws by your rule."""
    kept, replacing = rule(guess, p_real, [float(i == guess) for i in range(6)])
    others = torch.multinomial(torch.tensor(replacing), draws, True, generator=dice)
    keeps = torch.rand(draws, generator=dice) < kept
    return torch.where(keeps, guess, others).bincount(minlength=6)


drawn = {"likeliest guessed": sampled(0), "less likely guessed": sampled(4)}

# %% [markdown]
# The folded cell draws how often each token came out, beside the model's own probability.

# %% jupyter={"source_hidden": true}
expected_counts = draws * torch.tensor(p_real)
columns = {"the model": [100 * share for share in p_real]}
columns |= {label: (100 * n / draws).tolist() for label, n in drawn.items()}
plots.bars(
    None,
    words,
    columns,
    ylabel="share of draws (%)",
    form="{:.0f}",
    title="Sampled tokens of SmolLM2-135M, without guesses and with",
)
for label, counts in drawn.items():
    p_value = speculation.chi_square_p(counts, expected_counts)
    print(f"{label}: p-value {p_value:.2f}")

# %% [markdown]
# **What does a longer step cost?** The prediction, from your device card: the bytes (weights once, cache once) or
# the arithmetic of all its tokens, whichever takes longer.

# %%
card, context = devices.card(spot), 256
widths, batches = [1, 2, 3, 5, 8], [1, 4]
step_caches = {b: FullCache(g, context + 16, batch=b, device=spot) for b in batches}
for cache in step_caches.values():
    cache.fill(context)
flops_token = decode_flops(g, context)


def floor_ms(b, width):
    read = model.weight_bytes + step_caches[b].step_bytes(context + width)
    return 1e3 * card.floor_seconds(read, b * width * flops_token)


for b in batches:
    estimates.predict(f"09.step_5_tokens_batch_{b}", floor_ms(b, 5), "ms")
turns = next((n for n in range(1, 99) if floor_ms(1, n) > 1.01 * floor_ms(1, 1)), None)
turn = f"from {turns} tokens a step on" if turns else "nowhere below 99 tokens a step"
print(f"by the card, one session: arithmetic takes over {turn}")

# %% [markdown]
# And what is read for each token that comes out? A step with guesses reads hardly more than a plain one, and your 09.1
# says how many tokens share it.
# The folded cell draws the bytes of a step, divided by its tokens.

# %% jupyter={"source_hidden": true}
streams = {}
for label, tokens in {"no guesses": 1, **tokens_a_step}.items():
    width = 1 if label == "no guesses" else 1 + int(label.split()[-2])
    half = step_caches[1].step_bytes(context + width) / 2  # keys are half, values half
    parts = {"weights": model.weight_bytes, "keys": half, "values": half}
    streams[label] = {part: size / tokens for part, size in parts.items()}
title = f"Read for each new token: {g.name}, float32, one session at {context} tokens"
_ = drawings.step_bytes(streams, title=title)


# %%
def step(b, width):
    step_caches[b].rewind(context)
    read = torch.zeros(b, width, dtype=torch.long, device=spot)
    return model.decode(read, step_caches[b])


steps_by = {(b, n): partial(step, b, n) for b in batches for n in widths}
seconds, samples = (4, 5) if budget == "quick" else (20, 20)
stepped = Clock(spot).sweep(steps_by, seconds, samples, label="steps")


# %%
def effect(plain, guessed):
    """What guesses did to a time, where it is more than both spreads together."""
    if abs(plain.median - guessed.median) <= plain.spread + guessed.spread:
        return "no difference seen"
    ratio = plain.median / guessed.median
    return f"÷ {ratio:.2f}" if ratio > 1 else f"× {1 / ratio:.2f}"


# %% [markdown]
# The folded cell draws the time of a step against the tokens in it, for one session and for four.

# %% jupyter={"source_hidden": true}
_, ax = plt.subplots()
for series, b in enumerate(batches):
    points = [stepped[b, n] for n in widths]
    plots.prediction(
        ax,
        widths,
        [floor_ms(b, n) for n in widths],
        [t.ms for t in points],
        [t.spread_ms for t in points],
        series=series,
        label=f"batch {b}",
        xlabel="tokens of a session in a step (1)",
        ylabel="time of a step (ms)",
        title=f"The price of guesses on this device{doubt(stepped.values())}",
    )
    five = stepped[b, 5]
    left = "perhaps kernels below the card's peak"
    key = f"09.step_5_tokens_batch_{b}"
    estimates.measured(key, five.ms, residual=left, verdict=five.verdict)
ax.set_ylim(0, 1.6 * max(t.ms for t in stepped.values()))
costs = {key: t.median / stepped[key[0], 1].median for key, t in stepped.items()}
for b in batches:
    told = ", ".join(f"{n} tokens × {costs[b, n]:.1f}" for n in widths[1:])
    print(f"batch {b}, against a plain step: {told}")
    pays = [
        a for a in range(101) if speculation.tokens_per_step(a / 100, 4) >= costs[b, 5]
    ]
    told = f"pay from α = {pays[0] / 100:.2f} on" if pays else "cannot pay at any α"
    print(f"   by these times, 4 guesses a step {told}")

# %% [markdown]
# (On a CPU the line of batch 4 may jump, on most between 2 and 3 tokens. Up to 8 rows, sessions times tokens, this
# engine multiplies in loops of its own, made for few rows; more rows go to torch's matrix product, with a price of its
# own. Where `make` found torch clearly faster at 8 rows or fewer, the change comes earlier.)
#
# **And what are guesses worth?** Four kinds of text, up to 4 guesses a step, with *your* `draft`: code to rewrite, a
# text to quote, a free story, and the same story told at the end of a long document. The prompts are read beforehand, so
# that the clock sees decoding alone.

# %%
quoted = text.documentation("break")[:500]
tasks = {
    "code": request,
    "quote": f"Repeat this text, word for word:\n\n{quoted}",
    "story": "Tell me a story about a lighthouse keeper and a whale.",
}
prompts = {name: tokenizer.encode(text.chat(task)).ids for name, task in tasks.items()}
long_text = text.tokens(1_000, tokenizer).tolist()
prompts["long"] = long_text + prompts["story"]
count = 32 if budget == "quick" else 96
held = {}
for name, prompt in each(prompts.items(), "reading the prompts"):
    held[name] = FullCache(g, len(prompt) + count + 8, device=spot)
    model.prefill(torch.tensor([prompt[:-1]], device=spot), held[name])


# %%
def answer_to(name, k):
    """`count` tokens at most, from a prompt that the cache holds up to its last
    token."""
    held[name].rewind(len(prompts[name]) - 1)
    options = dict(draft=draft, stop=end_of_turn, cached=True)
    [found] = speculation.generate(
        model, held[name], [prompts[name]], count, k, **options
    )
    return found


# %%
both = [(name, k) for name in prompts for k in (0, 4)]
answers = {key: answer_to(*key) for key in each(both, "answers, both ways")}
for name in prompts:
    alike = answers[name, 4].tokens == answers[name, 0].tokens
    print(f"{name}: the same tokens with guesses and without: {alike}")

# %%
for name in prompts:
    found = answers[name, 4]
    as_came = [speculation.tokens_per_step(found.alpha, n) for n in found.guesses]
    expected_yield, key = sum(as_came) / found.steps, f"09.tokens_per_step_{name}"
    estimates.predict(key, expected_yield, "tokens")
    left = "perhaps chance, and guesses are not independent"
    estimates.measured(key, found.tokens_per_step, residual=left)
    always = speculation.tokens_per_step(found.alpha, 4)
    offered = found.drafted / found.steps
    print(f"{name}: α {found.alpha:.2f}, {offered:.1f} guesses a step; tokens a step:")
    print(f"   with 4 guesses always {always:.2f}, with those that came", end=" ")
    print(f"{expected_yield:.2f}, counted {found.tokens_per_step:.2f}")

# %% [markdown]
# Your formula with the measured α, as if each step had 4 guesses, and with as many as the text offered: often there is
# nothing to copy, and the step is a plain one. What is left between formula and count is chance, in so few steps, and
# that guesses are not independent: more of that below.
#
# Now the clock: time per token with guesses and without. The prediction takes the time of each step from the
# measured points above, by its number of tokens, and divides by the tokens that came out.

# %%
step_ms = [stepped[1, n].ms for n in widths]
foretold = {
    key: sum(np.interp(n + 1, widths, step_ms) for n in found.guesses)
    / len(found.tokens)
    for key, found in answers.items()
}
for name in prompts:
    estimates.predict(f"09.tpot_ms_{name}_guessed", foretold[name, 4], "ms")

# %%
runs = {key: partial(answer_to, *key) for key in answers}
seconds, rounds = (8, 3) if budget == "quick" else (40, 9)
spoken = Clock(spot).sweep(runs, seconds, rounds, label="answers", warm=True)
tpot = {key: 1e3 * t.median / len(answers[key].tokens) for key, t in spoken.items()}
spread = {key: 1e3 * t.spread / len(answers[key].tokens) for key, t in spoken.items()}
effects = {name: effect(spoken[name, 0], spoken[name, 4]) for name in prompts}
for name, told in effects.items():
    print(f"{name}, time with guesses: {told}")

# %% [markdown]
# The folded cell draws the time per token of each text, with guesses and without.

# %% jupyter={"source_hidden": true}
labels = {0: "no guesses", 4: "up to 4 guesses"}
ax = plots.bars(
    None,
    list(prompts),
    {label: [tpot[name, k] for name in prompts] for k, label in labels.items()},
    spread={
        label: [spread[name, k] for name in prompts] for k, label in labels.items()
    },
    ylabel="time per token (ms)",
    form="{:.0f}",
    title=f"Time per token, one session{doubt(spoken.values())}",
)
for shift, k in ((-0.2, 0), (0.2, 4)):
    places = [place + shift for place in range(len(prompts))]
    ms = [foretold[name, k] for name in prompts]
    ax.plot(places, ms, "_", color="black", markersize=22, markeredgewidth=2)
ax.plot([], [], "_", color="black", markersize=12, label="predicted from steps")
ax.legend()
ax.set_ylim(bottom=0, top=1.4 * max(tpot.values()))
for name in prompts:
    key, left = (
        f"09.tpot_ms_{name}_guessed",
        "perhaps another context, drafting, Python",
    )
    verdict = spoken[name, 4].verdict
    estimates.measured(key, tpot[name, 4], residual=left, verdict=verdict)

# %% [markdown]
# A bar with guesses that is the higher one *lost*: its steps grew by more than they yielded. Compare the yields above
# with the price of a step of 5 tokens, and you have your break-even of 09.3.
#
# **Several sessions together.** Each has its own guesses and its own length from the first step on. A step is as wide
# as the session with the most guesses makes it, and that many tokens are multiplied for each session.

# %%
names, crowd_sizes = ["code", "quote", "story", "code"], [4]
if budget != "quick":
    crowd_sizes = [4, 8]
crowd_prompts = {b: [prompts[name] for name in (2 * names)[:b]] for b in crowd_sizes}
room = max(len(prompts[name]) for name in names) + count + 8
crowd_caches = {b: FullCache(g, room, batch=b, device=spot) for b in crowd_sizes}
for b in crowd_sizes:  # reads the prompts
    speculation.generate(model, crowd_caches[b], crowd_prompts[b], 1, 0)


# %%
def crowd(b, k):
    for session, prompt in enumerate(crowd_prompts[b]):
        crowd_caches[b].truncate(session, len(prompt) - 1)
    options = dict(draft=draft, stop=end_of_turn, cached=True)
    return speculation.generate(
        model, crowd_caches[b], crowd_prompts[b], count // 2, k, **options
    )


# %%
kinds = [(b, k) for b in crowd_sizes for k in (0, 4)]
crowds = {key: crowd(*key) for key in each(kinds, "sessions together")}
for name, plain_one, guessed in zip(names, crowds[4, 0], crowds[4, 4], strict=True):
    same = plain_one.tokens == guessed.tokens
    print(
        f"{name}: {guessed.steps} steps for {len(guessed.tokens)} tokens; same: {same}"
    )
runs_together = {key: partial(crowd, *key) for key in crowds}
seconds = 4 * len(crowd_sizes)
together = Clock(spot).sweep(runs_together, seconds, 3, label="batch", warm=True)
crowd_effects = {b: effect(together[b, 0], together[b, 4]) for b in crowd_sizes}
for b in crowd_sizes:
    waits = [max(one.steps for one in crowds[b, k]) for k in (0, 4)]
    print(f"{b} sessions: {waits[1]} steps instead of {waits[0]}", end="; ")
    print(f"decoding with guesses: {crowd_effects[b]}")

# %% [markdown]
# The slowest session decides when the batch is done, and the steps of all are as wide as the greediest guesser
# wants. (A serving engine lets the next request in; unit 10 builds that.)

# %%
estimates.report("09")

# %% [markdown]
# ## Explain
#
# **Published: it lost.** Prompt lookup in vLLM, one request, an answer of about 1,000 tokens, Qwen2-7B, 5 guesses a
# step:

# %%
lost = data.measurement("vllm-8439-ngram")["data"][0]
ratio = lost["ngram_tok_s"] / lost["plain_tok_s"]
print(
    f"{lost['plain_tok_s']} tokens/s without, {lost['ngram_tok_s']} with: × {ratio:.2f}"
)

# %% [markdown]
# **Published: where it turns.** NVIDIA's engine on 8 B200, Llama-4-Scout, the *second* turn of chats, where the text
# to copy from is there. The larger the batch, the smaller the gain; from batch 33 on its automatic mode does not
# guess at all, and already from batch 5 on it guesses 3 tokens instead of 5.

# %%
rows = data.measurement("trtllm-ngram-batch")["data"]
sizes = [row["batch"] for row in rows if "speedup_percent" in row]
gained = [row["speedup_percent"] for row in rows if "speedup_percent" in row]
ax = plots.bars(
    None,
    [f"batch {size}" for size in sizes],
    gained,
    ylabel="faster with guesses (%)",
    form="{:.0f}",
    title="TensorRT-LLM, prompt lookup, second turns of chats",
)

# %% [markdown]
# (Read such figures twice. The same page counts 1.66 tokens a step in such turns, with the 5 guesses of batch 1. A
# step with guesses takes no less time than one without, so that is 66 % at best: the 96 % must come from other requests,
# or from runs that differ in more than guesses.)
#
# **Published: what an engine calls acceptance rate.** A vLLM log (Qwen3-32B, 3 guesses, 129 steps) says: *acceptance
# rate 38.8 %, mean acceptance length 2.16*, and for the three places 0.543, 0.357, 0.264. The rate is accepted ÷
# drafted, so 1 + 3 · 0.388 = 2.16: guesses behind a wrong one count as failures. It is **not** α. The first guess holds
# in 0.543 of the cases, and that is α there:

# %%
[log] = data.measurement("vllm-19254-acceptance")["data"]
places = log["per_position"]
later = [b / a for a, b in zip(places, places[1:], strict=False)]
print(f"formula with the rate as α: {speculation.tokens_per_step(log['rate'], 3):.2f}")
print(f"formula with the first place: {speculation.tokens_per_step(places[0], 3):.2f}")
print(f"counted: {log['mean_length']}")
print("a guess holds, when the one before did:", ", ".join(f"{x:.2f}" for x in later))

# %% [markdown]
# Even then the formula stays below the count: a guess behind one that held is better than the first. (Perhaps copying
# goes on once it has begun; perhaps some requests are easier to guess than others.) Guesses are not independent, and
# the formula is a first estimate.
#
# **A draft model.** Guesses of a second model cost bytes of their own: k steps of it for each step of the large one.
# By bytes alone, a step takes 1 + k · small ÷ large of a plain one; divide by the tokens that it yields. *Published:*
# gpt-fast, Llama-70B checked and a 7B drafting, both in 4 bits, on an A100: 25.25 tokens/s without, 48.4 with. Which α
# would that take?

# %%
published = data.measurement("gptfast-spec")["data"][0]
target = published["tok_s"] / published["baseline_tok_s"]
small, large = (weight_bytes(get(f"Llama-2-{size}-hf")) for size in ("7b", "70b"))
guesses, alphas = range(1, 9), [0.5, 0.6, 0.7, 0.8, 0.9]
speedups = {
    f"α {alpha}": [
        speculation.tokens_per_step(alpha, k) / (1 + k * small / large) for k in guesses
    ]
    for alpha in alphas
}

# %% [markdown]
# The folded cell draws the speed-up by bytes against the guesses a step, and the published one.

# %% jupyter={"source_hidden": true}
ax = plots.curve(
    None,
    list(guesses),
    speedups,
    xlabel="guesses a step (1)",
    ylabel="speed-up by bytes (1)",
    title="A 7B drafts for a 70B: each guess has a price",
)
ax.axhline(target, color=plots.GREY, linestyle=":", label="gpt-fast, 1.92")
ax.legend(ncols=2)
print(f"a step of the small model reads {small / large:.1%} of the large one's bytes")
best_of = {label: max(values) for label, values in speedups.items()}
print(*(f"{label}: at best × {most:.2f}" for label, most in best_of.items()), sep="\n")

# %% [markdown]
# The published 1.92 lies between α = 0.6 and α = 0.7 with the best number of guesses, or higher with another one, by
# bytes alone. And all curves but the highest fall on the right: there the last guesses cost more than they bring.
#
# The claim, *speculation changes what the model says*: **false**, where the check is right. Greedy answers are equal
# to the token, near ties aside, and sampled ones have the model's distribution, whatever is guessed; your p-values
# above tested that at one place in a text.
#
# The other claim, *speculation makes decoding faster*: only while a step has room (few sessions, a device with a high
# ridge) **and** the text can be guessed. A long history may give room back: each session's cache is read once for all
# of its guesses, so where caches are most of a step's bytes, reading sets the pace again even in a large batch.
# *Published* (MagicDec, with drafts that read only part of the cache): batches of 32 to 256 and moderate to long
# histories on 8 A100, Llama-3.1-8B up to 1.84 times as fast.
#
# The row for your ledger.

# %%
estimates.ledger(
    "09",
    "speculative decoding (prompt lookup)",
    tpot=f"code {effects['code']}, story {effects['story']}; 4 sessions "
    f"{crowd_effects[4]}",
    ttft="unchanged",
    memory="none with prompt lookup; a draft model brings weights and a cache of its "
    "own",
    quality="greedy: the same tokens, near ties aside; sampled: the same distribution",
)

# %% [markdown]
# *Sources.* Rule and formula: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318. Measurements:
# meta-pytorch/gpt-fast, README; vllm-project/vllm issues 8439 and 19254; NVIDIA/TensorRT-LLM, technical blog 7, *N-Gram
# Speculative Decoding*; MagicDec: Sadhukhan et al., arXiv 2408.11049v3. All rows with their sources lie in `helpers/data/`.
