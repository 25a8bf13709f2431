"""Checks of unit 09, "Speculative decoding": everything is a number or a list of token ids."""

from __future__ import annotations

import math

from helpers import data
from helpers.check import Wrong, call, close, entries, exercise, number, part, require
from helpers.serving import speculation


@exercise("09.1")
def tokens_of_a_step(tokens_a_step, *, high=0.8, low=0.3):
    cases = {f"α {alpha:g}, {k} guesses": (alpha, k) for alpha, k in ((high, 4), (low, 4), (high, 16))}
    entries("tokens_a_step", tokens_a_step, [*cases, "α 1, 4 guesses"])
    for name, (alpha, k) in cases.items():
        right = speculation.tokens_per_step(alpha, k)
        slips = {
            "The model's own token is missing: a step yields one even when no guess holds.": right - 1,
            "You let every guess count for itself. A guess counts only if all before it held.": [
                1 + k * alpha,
                k * alpha,
            ],
            "You left the last guess out: there are k of them, and one token more.": right - alpha**k,
            "That is the limit of endless guesses; here there are k.": 1 / (1 - alpha),
            "That is the probability that all guesses hold, not a number of tokens.": alpha**k,
            "You counted only the step in which all guesses hold.": 1 + k * alpha**k,
        }
        # Three digits: the last of 16 guesses brings 0.6 %.
        with part():
            number(tokens_a_step[name], right, unit="tokens", rel=0.005, slips=_apart(slips, right), name=name)
    slips = {
        "All guesses hold, and the model's own token behind them comes with the same step.": 4,
        "The formula is 0 ÷ 0 at α = 1; the sum 1 + α + α² + … is not.": 0,
        "Only four guesses are made; the step ends there.": 17,
    }
    with part():
        number(tokens_a_step["α 1, 4 guesses"], 5, unit="tokens", rel=0.01, slips=slips, name="α 1, 4 guesses")


@exercise("09.2")
def tokens_at_the_ridge(free_tokens, *, laptop=(60, 360), gpu="H100 SXM"):
    sheet, (reads, multiplies) = data.device(gpu), laptop
    laptop, chip = multiplies / reads, sheet["dense_bf16_TFLOPs"] * 1e3 / sheet["bandwidth_GBps"]
    cases = {
        "laptop, float32": (laptop, 4, 1),
        "laptop, 4-bit weights": (laptop, 0.5, 1),
        "laptop, float32, 4 sessions": (laptop, 4, 4),
        f"{gpu.split('-')[0].split()[0]}, bfloat16": (chip, 2, 1),
    }
    entries("free_tokens", free_tokens, list(cases))
    for name, (ridge, width, sessions) in cases.items():
        right = ridge * width / 2 / sessions
        slips = {
            "That is the ridge, in FLOPs a byte; a weight has more or fewer bytes than one, and takes 2 FLOPs.": ridge,
            "A weight takes 2 FLOPs for each token: a multiplication and an addition.": ridge * width / sessions,
            "Upside down: tokens, not their inverse.": 1 / right,
            "Do not round: both may take equally long between two tokens.": [math.floor(right), math.ceil(right)],
            "Half a byte a weight: 4 bits are not 4 bytes.": ridge * 4 / 2 if width == 0.5 else right,
            "Float32 has 4 bytes.": ridge * 2 / 2 / sessions if width == 4 else right,
            "Bfloat16 has 2 bytes.": ridge * 4 / 2 if width == 2 else right,
            "The sessions share the step: each has a quarter of its tokens.": ridge * width / 2
            if sessions > 1
            else right,
            "More sessions leave less room, not more.": ridge * width / 2 * 4 if sessions > 1 else right,
            "A weight takes 2 FLOPs for each token, and the sessions share the step.": ridge * width
            if sessions > 1
            else right,
            "You divided by the bytes of a weight: larger weights take longer to read, so more tokens fit.": [
                ridge / width / 2 / sessions,
                ridge / width / sessions,
                2 * ridge / width / sessions,
            ],
        }
        with part():
            number(free_tokens[name], right, unit="tokens", rel=0.01, slips=_apart(slips, right), name=name)
    return (
        "on such a GPU, by its data sheet, one session may guess a hundred tokens or more at no cost; on a CPU, with "
        "few bits or with many sessions, the room is soon used up"
    )


@exercise("09.3")
def acceptance_that_breaks_even(breaks_even):
    inverse = "Upside down: where a step takes 1.25 times as long, it has to yield 1.25 tokens, and so on."
    cases = {
        "1 guess, a step × 1.25": (
            0.25,
            {inverse: 0.8, "The certain token counts too: 1 + α = 1.25.": [1.25, 0.625]},
        ),
        "2 guesses, a step × 1.75": (
            0.5,
            {
                "The second guess counts too, with α · α.": 0.75,
                "The second guess counts only if the first held: it brings α · α, not α.": 0.375,
                inverse: [0.571, 0.5714],
                "The certain token counts too: 1 + α + α² = 1.75.": [0.875, 0.9142],
            },
        ),
        "4 guesses, a step × 5": (
            1.0,
            {
                "Even with α at that a step yields fewer than 5 tokens, and it takes as long as 5 steps.": [0.8, 0.9],
                inverse: 0.2,
                "A probability is at most 1.": [5, 1.25, 4],
                "There are at most 5 tokens in such a step, and 5 are needed.": 0.0,
            },
        ),
    }
    entries("breaks_even", breaks_even, list(cases))
    for name, (right, slips) in cases.items():
        number(breaks_even[name], right, rel=0.02, slips=slips, name=name)


@exercise("09.4")
def draft(function):
    def asked(history, k, *more):
        before = list(history)
        guesses = _tokens(call(function, history, k, *more), f"draft({before}, {k})")
        require(history == before, "draft changed `history`: read it, and return a list of its own.")
        return guesses

    history = [7, 1, 2, 3, 9, 8, 1, 2, 3]
    got = asked(list(history), 2)
    where = f"for {history} and k = 2"
    require(got != [1, 2, 3][:2], f"{where} you returned the piece that matches; the guesses are what *followed* it.")
    require(got != [], f"{where} you found nothing: 1 2 3 occurred before. Stop before the end itself, not earlier.")
    require(len(got) <= 2, f"{where} you returned {len(got)} guesses; k is 2.")
    require(got == [9, 8], f"{where} you returned {got}: 9 and 8 followed the earlier 1 2 3.")
    got = asked([5, 2, 6, 4, 2], 2)
    require(
        got != [], "for [5, 2, 6, 4, 2] a match of one token is enough: try shorter ends when no longer one is found."
    )
    require(got == [6, 4], f"for [5, 2, 6, 4, 2] and k = 2 you returned {got}: the 2 was followed by 6 4.")
    require(
        asked([6, 1, 2, 3, 6], 1) == [1], "for [6, 1, 2, 3, 6] the match is at the very beginning: look at index 0."
    )
    got = asked([1, 2, 8, 3, 2, 9, 1, 2], 1)
    require(
        got != [9],
        "for [1, 2, 8, 3, 2, 9, 1, 2] you followed the latest 2. Earlier, 1 2 occurred: a longer match comes first.",
    )
    require(got == [8], f"for [1, 2, 8, 3, 2, 9, 1, 2] and k = 1 you returned {got}: 8 followed 1 2.")
    got = asked([7, 5, 8, 5, 9, 5], 1)
    require(got != [8], "of several places take the latest: for [7, 5, 8, 5, 9, 5] and k = 1 that gives 9.")
    require(got != [], "for [7, 5, 8, 5, 9, 5] you found nothing: does a range end one too early?")
    require(got == [9], f"for [7, 5, 8, 5, 9, 5] and k = 1 you returned {got}.")
    got = asked([4, 4], 3)
    require(got != [], "for [4, 4] the first 4 is an earlier occurrence of the second: [4].")
    require(got == [4], f"for [4, 4] and k = 3 one token followed the earlier 4; you returned {got}.")
    for nothing in ([1, 2, 3], [1], []):
        require(asked(list(nothing), 4) == [], f"for {nothing} nothing occurred before: return [].")
    require(
        asked([1, 2, 8, 3, 2, 9, 1, 2], 1, 1) == [9],
        "with longest=1 only the last token is looked for: [1, 2, 8, 3, 2, 9, 1, 2] then gives 9.",
    )
    got = asked([1, 2, 3, 9, 5, 2, 3, 8, 1, 2, 3], 1)
    require(got == [9], f"three tokens come before two: 1 2 3 occurred before, and 9 followed; you returned {got}.")
    got = asked([6, 1, 2, 3, 9, 5, 1, 2, 3, 8, 6, 1, 2, 3], 1)
    require(got == [8], f"without a third argument three tokens at most are compared; you returned {got}, not [8].")
    require(asked([4, 4], 0) == [], "k = 0 asks for no guess: return [].")
    return "right in 13 histories"


@exercise("09.5")
def accept(function):
    def asked(drafted, best):
        return _tokens(call(function, list(drafted), list(best)), f"accept({drafted}, {best})")

    got, where = asked([4, 5, 6], [4, 9, 6, 2]), "for drafted [4, 5, 6] and best [4, 9, 6, 2]"
    require(got != [4], f"{where} the model's own token, 9, is missing: the step has computed it, so it is free.")
    require(got != [4, 5], f"{where} you kept 5, and the model wanted 9 there.")
    require(
        got != [4, 9, 6, 2], f"{where} you returned all of best. What stands behind a wrong guess was said after it."
    )
    require(got not in ([4, 6], [4, 6, 2], [4, 6, 9]), f"{where} guess 6 does not count: a guess before it was wrong.")
    require(got != [4, 9, 6], f"{where} stop at the first wrong guess.")
    require(
        got != [4, 2], f"{where} the model's own token is best[1], after the guesses that hold, not the last of best."
    )
    require(got == [4, 9], f"{where} you returned {got}; the new tokens are 4 9.")
    got = asked([4, 5, 6], [4, 5, 6, 2])
    require(got != [4, 5, 6], "all guesses hold, and the model's own token behind them, best[3], is missing.")
    require(got == [4, 5, 6, 2], f"for drafted [4, 5, 6] and best [4, 5, 6, 2] you returned {got}.")
    require(
        asked([4], [7, 2]) == [7], f"no guess holds: the new token is best[0], 7; you returned {asked([4], [7, 2])}."
    )
    require(asked([], [3]) == [3], f"without guesses the step is a plain one: [3]; you returned {asked([], [3])}.")
    got = asked([9], [4, 2])
    require(got == [4], f"guess 9 is not the 4 that the model wants, and does not hold: [4], not {got}.")
    got = asked([4], [4, 2, 9, 9])
    require(
        got == [4, 2], f"what stands in best behind the guesses is padding: [4] and [4, 2, 9, 9] give 4 2, not {got}."
    )
    return "right in 6 steps"


@exercise("09.6")
def keep(function):
    def asked(lengths, drafted, best):
        copies = list(lengths), [list(d) for d in drafted], [list(b) for b in best]
        return _tokens(call(function, *copies), f"keep({lengths}, {drafted}, {best})")

    lengths, drafted = [10, 7, 20], [[4, 5], [], [1, 2]]
    best = [[4, 9, 1], [3, 8, 8], [1, 2, 6]]
    got, where = asked(lengths, drafted, best), f"for lengths {lengths}, drafted {drafted} and best {best}"
    require(len(got) == 3, f"{where} return one length a session; you returned {got}.")
    require(got != [13, 10, 23], f"{where} you kept everything that was read: wrong guesses and padding stay.")
    require(got != [13, 8, 23], f"{where} you kept all guesses: those that do not hold have to go.")
    require(got != [11, 7, 22], f"{where} the newest token was read too, and it is right: it stays.")
    require(got != [13, 9, 24], f"{where} the model's own token has not been read yet; it has no key and no value.")
    require(got != [11, 8, 21], f"{where} you cut to the shortest: each session keeps as many as hold in it.")
    require(got != [10, 7, 20], f"{where} nothing was kept: the guesses that hold would have to be read again.")
    require(got != [2, 1, 3], f"{where} those are the new tokens; add them to what each cache held before.")
    require(got == [12, 8, 23], f"{where} you returned {got}.")
    got = asked([5, 5], [[3], [1]], [[2, 4], [1, 4]])
    require(got == [6, 7], f"one guess, wrong in the first session and right in the second: 6 and 7, not {got}.")
    return "right for batches of 3 and 2"


@exercise("09.7")
def rule(function):
    p, q = [0.5, 0.3, 0.2], [0.0, 1.0, 0.0]
    kept, other = _pair(call(function, 1, list(p), list(q)))
    slips = {
        "Upside down: the share of q that p wants is p ÷ q.": 1 / 0.3,
        "A guess is not always kept: p wants it in 0.3 of the cases, and q proposes it always.": 1.0,
        "That is the probability of *not* keeping it.": 0.7,
    }
    certain = "the probability of keeping a certain guess, p 0.3"
    number(kept, 0.3, rel=1e-3, slips=slips, name=certain)
    slips = {
        "You draw from p itself: the guess then has a second chance, and comes out too often.": p,
        "The probabilities do not add up to 1: divide by their sum.": [0.5, 0.0, 0.2],
        "You took the distance |p − q|; only what p wants *more* than q is missing.": [0.5 / 1.4, 0.5, 0.2 / 1.4],
        "You draw from q: it proposes the same guess again.": q,
        "All others are not equally likely: in proportion to what is missing.": [0.5, 0.0, 0.5],
        "p − q has negative parts, and those count as nothing: max(0, p − q).": [0.5, -0.7, 0.2],
    }
    close(other, [5 / 7, 0, 2 / 7], rel=1e-3, slips=slips, name="what may replace a certain guess")
    p, q = [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]
    kept, other = _pair(call(function, 0, list(p), list(q)))
    slips = {
        "A probability is at most 1: where p is larger than q, a guess is always kept.": 3.0,
        "That is p of the guess; it was drawn from q, so what counts is p ÷ q.": 0.6,
        "Upside down: p ÷ q.": 1 / 3,
    }
    number(kept, 1.0, rel=1e-3, slips=slips, name="the probability of keeping a guess with p 0.6, q 0.2")
    slips = {
        "The guess alone is taken out of p. What is missing is max(0, p − q), for every token.": [0.0, 0.75, 0.25],
        "You draw from p itself; what is missing is max(0, p − q).": p,
    }
    close(other, [1, 0, 0], rel=1e-3, slips=slips, name="what may replace a guess with p 0.6, q 0.2")
    kept, _ = _pair(call(function, 2, list(p), list(q)))
    slips = {
        "That is p of the guess; it was drawn from q, so what counts is p ÷ q.": 0.1,
        "Upside down: p ÷ q.": [5, 1],
    }
    number(kept, 0.2, rel=1e-3, slips=slips, name="the probability of keeping a guess with p 0.1, q 0.5")
    same = [0.25, 0.75]
    try:
        kept, other = _pair(call(function, 1, list(same), list(same)))
    except ZeroDivisionError:
        raise Wrong(
            "where p and q are equal nothing is missing, and you divide by its sum, 0: return p as the second there."
        ) from None
    number(kept, 1.0, rel=1e-3, name="the probability of keeping a guess where p and q are equal")
    close(other, same, rel=1e-3, name="the second value where p and q are equal, and nothing is missing")
    _adds_up(function)
    return "what comes out is exactly p, for 20 pairs of p and q"


def _adds_up(function) -> None:
    """Keeping and replacing together, summed over every guess that q can make, give p."""
    for case in range(20):
        p, q = ([((case + 1) * (i + turn) ** 2) % 7 + 1 for i in range(4)] for turn in (1, 3))
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        out = [0.0] * 4
        for token in range(4):
            kept, other = _pair(call(function, token, list(p), list(q)))
            for x in range(4):
                out[x] += q[token] * ((x == token) * float(kept) + (1 - float(kept)) * float(other[x]))
        close(
            out, p, rel=1e-3, name=f"what comes out for p = {[round(x, 2) for x in p]}, q = {[round(x, 2) for x in q]}"
        )


def _apart(slips: dict, right: float) -> dict:
    """The slips that do not happen to lead to the right value."""
    values = {message: value if isinstance(value, list) else [value] for message, value in slips.items()}
    return {message: [v for v in found if abs(v / right - 1) > 0.005] for message, found in values.items()}


def _tokens(value, what: str) -> list[int]:
    try:
        return [int(token) for token in value]
    except (TypeError, ValueError):
        raise Wrong(f"{what} has to be a list of whole numbers; it is {value!r}.") from None


def _pair(value) -> tuple:
    try:
        kept, other = value
    except (TypeError, ValueError):
        raise Wrong(
            f"return two things: (probability of keeping, list of probabilities); you returned {value!r}."
        ) from None
    return kept, other
