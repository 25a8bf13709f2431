"""Checks of unit 10, "Sharing the machine": bytes and arithmetic of shared steps, and the decisions of a scheduler."""

from __future__ import annotations

import math
from numbers import Integral

from helpers.check import Wrong, call, entries, exercise, number, part, require

WEIGHTS, CACHE, BANDWIDTH, FLOPS = 15.0e9, 131_072, 3.35e12, 495e12  # bytes (and FLOP a token), bytes a token, per s


@exercise("10.1")
def stall(stall, *, chats=16, context=4_000, long=16_384, allowed=20):
    weights, caches = 1e3 * WEIGHTS / BANDWIDTH, 1e3 * chats * context * CACHE / BANDWIDTH
    alone, per_token = weights + caches, 1e3 * WEIGHTS / FLOPS
    names = [
        "step of the chats alone",
        "prompt in one piece",
        "largest chunk",
        "steps of the prompt",
        "its first token, chunked",
    ]
    entries("stall", stall, names)
    number(
        stall[names[0]],
        alone,
        unit="ms",
        rel=0.01,
        slips={
            f"You left the caches out: each of the {chats} chats reads its {context:,} tokens.": weights,
            f"That is one chat's cache; there are {chats}.": weights + caches / chats,
            "You left the weights out: every step streams them once.": caches,
            f"The weights are read once for all {chats} chats, not once for each.": chats * weights + caches,
        },
        name=names[0],
    )
    number(
        stall[names[1]],
        long * per_token,
        unit="ms",
        rel=0.01,
        slips={
            f"A prompt is read by arithmetic: {long:,} tokens at 15.0 GFLOP. You took one pass over the "
            "weights.": weights,
            f"That is one token's arithmetic; the prompt has {long:,}.": per_token,
            "You streamed the weights once for each token; a prompt's tokens share one pass.": long * weights,
            "You added the bytes of the step; here the arithmetic alone is asked for.": long * per_token + alone,
            "You added the weights' bytes; here the arithmetic alone is asked for.": long * per_token + weights,
        },
        name=names[1],
    )
    expect = (allowed - alone) / per_token
    # Whole blocks of 16 are a chunk that somebody would really set.
    chunk = number(
        stall[names[2]],
        math.floor(expect),
        unit="tokens",
        absolute=math.floor(expect) % 16,
        rel=0.002,
        slips={
            f"The step's bytes take part of the {allowed} ms: only the rest is left for arithmetic.": allowed
            / per_token,
            "You took off the weights' time and not that of the caches.": (allowed - weights) / per_token,
            f"That many are the step's bytes in tokens; what is left of the {allowed} ms is asked for.": alone
            / per_token,
        },
        name=names[2],
    )
    require(chunk <= expect, f"a chunk that large makes the gap longer than {allowed} ms: round down.")
    require(chunk == int(chunk), f"a chunk has whole tokens: round {chunk:.2f} down.")
    steps = math.ceil(long / chunk)
    number(
        stall[names[3]],
        steps,
        rel=0,
        slips={
            "Steps come whole: round up, for the last, shorter chunk needs one too.": [long / chunk, long // chunk],
            "That is the number of tokens in a step.": chunk,
        },
        name=names[3],
    )
    number(
        stall[names[4]],
        steps * allowed,
        unit="ms",
        # Or exactly, with a last step that is shorter.
        absolute=1.01 * (steps * allowed - steps * alone - long * per_token),
        rel=0.03,
        slips={
            f"Every one of these steps carries the chats along too, and takes {allowed} ms.": long * per_token,
            "That is its arithmetic and one step of the chats; they run in each of its steps.": long * per_token
            + alone,
            "That counts the chats' steps alone; the chunk's arithmetic comes on top.": steps * alone,
            "That is the gap of one step; the prompt takes all of them.": allowed,
        },
        name=names[4],
    )


@exercise("10.2")
def memory(memory, *, held=(90, 700, 333, 1_200)):
    session = -(-held[2] // 16) * 16  # places
    fit = 8_192 // session

    def wasted(size: int) -> float:
        return 100 * (1 - sum(held) / sum(-(-n // size) * size for n in held))

    cases = {"wasted, 2,048 reserved": 2_048, "wasted, blocks of 16": 16, "wasted, blocks of 256": 256}
    sessions = {"sessions, 2,048 reserved": 4, "sessions, blocks of 16": fit}
    entries("memory", memory, [*cases, *sessions])
    for name, size in cases.items():
        expect = wasted(size)
        taken = sum(-(-n // size) * size for n in held)
        slips = {
            "That is the share in use; the share that holds nothing is asked for.": 100 - expect,
            "That is a share of one; percent is asked for.": expect / 100,
            "That is the number of empty places; their percentage is asked for.": taken - sum(held),
            "You divided by the tokens; divide by the places that are taken.": 100 * (taken / sum(held) - 1),
            "That is what blocks of 256 waste.": wasted(256),
            "That is right as far as it goes; give three digits.": round(expect, 1),
            "That is what blocks of 16 waste.": wasted(16),
        }
        slips = {message: value for message, value in slips.items() if not math.isclose(value, expect, rel_tol=0.01)}
        number(memory[name], expect, unit="%", rel=0.01, slips=slips, name=name)
    number(
        memory["sessions, 2,048 reserved"],
        4,
        rel=0,
        slips={
            "Each session takes 2,048 places, however short it is.": [fit, 8_192 / held[2], 8_192 // held[2]],
            "That is one session; 8,192 places are four times as many.": 1,
        },
        name="sessions, 2,048 reserved",
    )
    number(
        memory["sessions, blocks of 16"],
        fit,
        rel=0,
        slips={
            "Sessions come whole: round down.": [8_192 / session, 8_192 / held[2]],
            "Rounded up: the last one does not fit.": fit + 1,
            "That is the number of blocks in 8,192 places.": 512,
            "That is the number of blocks of one session.": session // 16,
        },
        name="sessions, blocks of 16",
    )


@exercise("10.3")
def throughput(throughput, *, context=4_000):
    cache, short, token = context * CACHE, 100 * CACHE, WEIGHTS / FLOPS
    pace = WEIGHTS / BANDWIDTH / (token - short / BANDWIDTH)
    cases = {
        "batch 1": (
            BANDWIDTH / (WEIGHTS + cache),
            "tokens/s",
            {
                "You left the cache out.": BANDWIDTH / WEIGHTS,
                "One token in a step: bytes set the pace here, not arithmetic.": 1 / token,
                "That is a step in seconds; tokens a second are asked for.": (WEIGHTS + cache) / BANDWIDTH,
                "That is a step in ms; tokens a second are asked for.": 1e3 * (WEIGHTS + cache) / BANDWIDTH,
            },
        ),
        "batch 64": (
            64 * BANDWIDTH / (WEIGHTS + 64 * cache),
            "tokens/s",
            {
                "You counted one cache; a step reads all 64.": 64 * BANDWIDTH / (WEIGHTS + cache),
                "You left the caches out.": 64 * BANDWIDTH / WEIGHTS,
                "That is one session's rate; a step gives 64 tokens.": BANDWIDTH / (WEIGHTS + 64 * cache),
                "The weights are read once for all, not once for each.": BANDWIDTH / (WEIGHTS + cache),
                "Arithmetic alone would allow that; the bytes take longer.": 1 / token,
                "You added bytes and arithmetic; the longer of the two counts.": 64
                / ((WEIGHTS + 64 * cache) / BANDWIDTH + 64 * token),
            },
        ),
        "no batch exceeds": (
            BANDWIDTH / cache,
            "tokens/s",
            {
                "That is the limit of arithmetic; the caches' bytes are reached long before.": 1 / token,
                "However large the batch, the share of the weights goes to nothing: leave them out.": BANDWIDTH
                / (WEIGHTS + cache),
                "With many sessions it is the caches that remain, not the weights.": BANDWIDTH / WEIGHTS,
            },
        ),
        "knee": (
            WEIGHTS / cache,
            "sessions",
            {
                "Upside down: the weights' bytes ÷ those of one session.": cache / WEIGHTS,
                f"That many tokens, not sessions of {context:,}.": WEIGHTS / CACHE,
                "That is FLOP/byte of the machine; here bytes are compared with bytes.": FLOPS / BANDWIDTH,
            },
        ),
        "arithmetic sets the pace, 100 tokens each": (
            pace,
            "sessions",
            {
                "Nearly: the caches are read as well, 100 tokens each.": FLOPS / BANDWIDTH,
                "That is the batch at which the caches weigh as much as the weights.": WEIGHTS / short,
                f"The sessions hold 100 tokens here, not {context:,}.": WEIGHTS / cache,
            },
        ),
    }
    entries("throughput", throughput, list(cases))
    for name, (expect, unit, slips) in cases.items():
        whole = 0.7 if name == "knee" else 0.0  # a batch is whole: 28 or 29
        number(throughput[name], expect, unit=unit, rel=0.02, absolute=whole, slips=slips, name=name)


@exercise("10.4")
def attention(attention):
    small, large = 4 * 1_024 * 64 / 1e6, 4 * 1_024 * 1_024 / 1e6
    cases = {
        "scores written out": (
            4 * small + 4 * large,
            "MB",
            0.01,
            {
                "Scores and probabilities are both written and read: four passes over T · T.": [
                    4 * small + 2 * large,
                    4 * small + 3 * large,
                ],
                "You counted one pass over T · T; there are four.": 4 * small + large,
                "You left Q, K, V and the result out.": 4 * large,
                "float32 has 4 bytes.": (4 * small + 4 * large) / 2,
                "Those are millions of elements; each has 4 bytes.": small + large,
            },
        ),
        "tiles of 128": (
            2 * small + 16 * small,
            "MB",
            0.01,
            {
                "K and V are read once for each of the 8 tiles, not once.": 4 * small,
                "Both K and V are read for each tile.": 2 * small + 8 * small,
                "You left Q and the result out.": 16 * small,
                "There are 1,024 ÷ 128 = 8 tiles, not 128.": 2 * small + 2 * 128 * small,
                "float32 has 4 bytes.": 9 * small,
            },
        ),
        "SMs at work": (
            100 * 8 / 132,
            "%",
            0.01,
            {
                "That is a share of one; percent is asked for.": 8 / 132,
                "That is how many; their percentage is asked for.": 8,
                "One program for each KV head: eight, not one.": 100 / 132,
            },
        ),
        "pieces": (
            17,
            "",
            0,
            {
                "Rounded down, 16 pieces of 8 heads are 128 programs: four SMs have none.": 16,
                "Pieces come whole: round up.": 16.5,
                "Each KV head is cut: 8 heads times the pieces are the programs.": 132,
            },
        ),
    }
    entries("attention", attention, list(cases))
    for name, (expect, unit, rel, slips) in cases.items():
        with part():
            number(attention[name], expect, unit=unit, rel=rel, slips=slips, name=name)


@exercise("10.5")
def next_step(function):
    def given(decoding, left, budget):
        before = list(left)
        chunks = call(function, decoding, left, budget)
        require(left == before, "next_step must not change `left`: build a list of your own.")
        try:
            chunks = list(chunks)
        except TypeError:
            raise Wrong(f"return a list of tokens, one entry for each of `left`; you returned {chunks!r}.") from None
        require(
            all(isinstance(chunk, Integral) for chunk in chunks),
            f"tokens are whole numbers (int): you returned {chunks!r}.",
        )
        require(
            len(chunks) == len(before),
            f"decoding = {decoding}, left = {before}, budget = {budget}: you returned {chunks}. One entry for each "
            "prompt: 0 for one that gets nothing.",
        )
        return [int(chunk) for chunk in chunks]

    case = "decoding = {}, left = {}, budget = {}: you gave {}."

    def told(decoding, left, budget, expect, why):
        got = given(decoding, list(left), budget)
        if min(got) < 0:
            why = "Nothing is left, and a chunk is never less than nothing."
        require(got == expect, f"{case.format(decoding, left, budget, got)} {why}")

    told(0, [30], 100, [30], "A prompt cannot get more tokens than it has left.")
    told(0, [500], 64, [64], "A prompt gets at most the budget, and the whole of it where nobody else runs.")
    told(
        3,
        [500],
        64,
        [61],
        "Each running answer takes one token of the budget, before any prompt does.",
    )
    told(9, [500], 8, [0], "Nothing is left, and a chunk is never less than nothing.")
    told(8, [500], 8, [0], "The answers take the whole budget, and it is used up.")
    told(
        3,
        [500, 40, 80],
        512,
        [500, 9, 0],
        "What the first prompt does not need goes to the next, in order of arrival, and not beyond the budget.",
    )
    told(
        0, [40, 500, 80], 100, [40, 60, 0], "In order of arrival: the second is not passed over, nor is it all shared."
    )
    told(2, [10, 20, 30], 1_000, [10, 20, 30], "There is room for all of them, and each may be read whole.")
    require(given(5, [], 64) == [], "nothing is to be read: return an empty list.")
    return "9 steps planned"


@exercise("10.6")
def admit(function):
    case = "waiting = {}, free = {}, block_size = {}: you let {} start."

    def told(waiting, free, size, expect, why):
        before = list(waiting)
        got = call(function, waiting, free, size)
        require(
            isinstance(got, Integral) and not isinstance(got, bool),
            f"return how many may start, a whole number (int); you returned {got!r}.",
        )
        require(waiting == before, "admit must not change `waiting`.")
        require(int(got) == expect, f"{case.format(before, free, size, got)} {why}")

    told([16], 1, 16, 1, "16 tokens fill one block of 16 exactly, and one is free.")
    told([17], 1, 16, 0, "17 tokens need two blocks: the second is taken, though it holds one token.")
    told([16, 16, 16], 2, 16, 2, "What the first takes is no longer free for the next.")
    told([8, 8], 1, 16, 1, "Two sessions do not share a block: each takes one, though both would fit into it.")
    told([100, 30, 8], 9, 16, 2, "They need 7, 2 and 1 blocks: the first two take all nine.")
    told([100, 30, 8], 8, 16, 1, "The second does not fit, so the third may not start either: nobody overtakes.")
    told([200, 8], 3, 16, 0, "The first does not fit, so nobody starts: nobody overtakes.")
    told([], 5, 16, 0, "Nobody waits.")
    told([5, 5, 5], 100, 4, 3, "There is room for all of them.")
    told([5], -2, 4, 0, "Less than nothing is free where running answers need it all: nobody starts.")
    return "10 queues"


@exercise("10.7")
def read_again(function):
    cases = [(10, 4, 12), (8, 4, 4), (7, 7, 0), (7, 100, 0), (5, 1, 10), (1_000, 256, 1_536)]
    for prompt, chunk, expect in cases:
        got = call(function, prompt, chunk)
        starts = list(range(0, prompt, chunk))
        slips = {
            "A chunk's own tokens are not read *again*: count what was there before it.": sum(
                min(s + chunk, prompt) for s in starts
            ),
            "That takes all chunks to be whole; the last may be shorter.": [
                prompt * (prompt / chunk - 1) / 2,
                prompt * (prompt // chunk - 1) / 2,
            ],
            "You left the last chunk out: it reads what was before it, too.": sum(starts[:-1]),
            "That is the number of chunks; tokens are asked for.": len(starts),
            "You counted the chunk before each one; all that came before is read.": chunk * (len(starts) - 1),
            "The whole prompt for each chunk is too much: what comes later is not there yet.": prompt * len(starts),
        }
        slips = {message: value for message, value in slips.items() if value != expect}
        number(got, expect, unit="tokens", rel=0, slips=slips, name=f"read_again({prompt}, {chunk})")
    return f"{len(cases)} prompts"
