"""Known wrong answers of unit 09, and other right ones."""


def change(name, key, value):
    return f"{name} = {{**{name}, {key!r}: {value}}}"


def function(head, *lines):
    return f"def {head}:\n" + "\n".join("    " + line for line in lines)


def tokens(key, value):
    return f"tokens_a_step = {{**tokens_a_step, {key}: {value}}}"


def free(key, value):
    return f"free_tokens = {{**free_tokens, {key}: {value}}}"


def even(key, value):
    return change("breaks_even", key, value)


def draft(
    ends="range(min(longest, len(history) - 1), 0, -1)",
    places="range(len(history) - n - 1, -1, -1)",
    found="return history[i + n : i + n + k]",
):
    return function(
        "draft(history, k, longest=3)",
        f"for n in {ends}:",
        f"    for i in {places}:",
        "        if history[i : i + n] == history[-n:]:",
        f"            {found}",
        "return []",
    )


def accept(*lines):
    return function("accept(drafted, best)", *lines)


HELD = ("n = 0", "while n < len(drafted) and drafted[n] == best[n]:", "    n += 1")


def keep(length):
    return function(
        "keep(lengths, drafted, best)",
        f"return [{length} for n, d, b in zip(lengths, drafted, best, strict=True)]",
    )


def rule(kept="min(1, p[token] / q[token])", missing="max(0, a - b)", other="[x / sum(m) for x in m] if sum(m) else p"):
    return function(
        "rule(token, p, q)",
        f"m = [{missing} for a, b in zip(p, q, strict=True)]",
        f"return {kept}, {other}",
    )


WRONG = {
    "09.1": [
        (tokens("G.four", "tokens_a_step[G.four] - 1"), "own token is missing"),
        (tokens("G.four", "1 + 4 * G.high"), "every guess count for itself"),
        (tokens("G.few", "tokens_a_step[G.few] - 1"), "own token is missing"),
        (tokens("G.few", "1 + 4 * G.low"), "every guess count for itself"),
        (tokens("G.four", "sum(G.high**i for i in range(4))"), "left the last guess out"),
        (tokens("G.many", "1 / (1 - G.high)"), "endless guesses"),
        (tokens("G.many", "sum(G.high**i for i in range(16))"), "left the last guess out"),
        (tokens("G.four", "G.high**4"), "probability that all guesses hold"),
        (tokens('"α 1, 4 guesses"', 4), "own token"),
        ('tokens_a_step = {"α 1, 4 guesses": 5}', "has no entry"),
    ],
    "09.2": [
        (free('"laptop, float32"', "G.ridge"), "that is the ridge"),
        (free('"laptop, float32"', "4 * G.ridge"), "takes 2 flops"),
        (free('"laptop, 4-bit weights"', "2 * G.ridge"), "half a byte"),
        (free('"laptop, 4-bit weights"', "G.ridge / 2"), "takes 2 flops"),
        (free('"laptop, float32, 4 sessions"', "2 * G.ridge"), "share the step"),
        (free('"laptop, float32, 4 sessions"', "8 * G.ridge"), "less room"),
        (free('"laptop, float32, 4 sessions"', "4 * G.ridge"), "and the sessions share"),
        (free("G.sheet", "2e3 * G.rate / G.bandwidth"), "2 flops"),
        (free("G.sheet", "1e3 * G.rate / G.bandwidth / 2"), "divided by the bytes"),
        (free("G.sheet", "G.bandwidth / G.rate / 1e3"), "upside down"),
    ],
    "09.3": [
        (even("1 guess, a step × 1.25", 0.8), "upside down"),
        (even("1 guess, a step × 1.25", 1.25), "certain token counts"),
        (even("2 guesses, a step × 1.75", 0.75), "second guess counts too"),
        (even("2 guesses, a step × 1.75", 0.375), "only if the first held"),
        (even("4 guesses, a step × 5", 0.8), "takes as long as 5 steps"),
        (even("4 guesses, a step × 5", 5), "at most 1"),
    ],
    "09.4": [
        (draft(found="return history[i : i + k]"), "what *followed* it"),
        (draft(found="return history[i + n :]"), "k is 2"),
        (draft(ends="(3,)"), "a match of one token is enough"),
        (draft(ends="range(1, min(longest, len(history) - 1) + 1)"), "a longer match comes first"),
        (draft(places="range(len(history) - n)"), "take the latest"),
        (draft(places="range(len(history) - n - 2, -1, -1)"), "[4, 4]"),
        (draft(places="range(len(history) - n - 1, 0, -1)"), "index 0"),
        (draft(ends="range(min(3, len(history) - 1), 0, -1)"), "longest=1"),
        (draft(places="range(len(history) - n, -1, -1)"), "you found nothing"),
        (draft().replace("longest=3", "longest=2"), "three tokens come before two"),
        (draft().replace("longest=3", "longest=5"), "three tokens at most"),
        (draft(found="return history[i + n : i + n + max(1, k)]"), "k = 0"),
        (draft(found="return history[i + n]"), "has to be a list"),
        (draft().replace("return []", "return None"), "returns None"),
    ],
    "09.5": [
        (accept(*HELD, "return drafted[:n]"), "own token, 9, is missing"),
        (accept(*HELD, "return drafted[: n + 1]"), "the model wanted 9"),
        (accept("return best"), "all of best"),
        (accept("return [d for d, b in zip(drafted, best) if d == b]"), "guess 6 does not count"),
        (accept(*HELD, "return [*drafted[:n], best[-1]]"), "not the last of best"),
        (accept(*HELD, "return [*drafted[:n], best[n]] if n < len(drafted) else list(drafted)"), "all guesses hold"),
        (
            accept("n = 0", "while n < len(drafted) and drafted[n] >= best[n]:", *HELD[2:], "return best[: n + 1]"),
            "9 is not",
        ),
        (accept("return best[: len(drafted)]"), "stop at the first wrong guess"),
        (
            accept("n = 0", "while n < len(best) - 1 and drafted[n] == best[n]:", "    n += 1", "return best[: n + 1]"),
            "IndexError",
        ),
    ],
    "09.6": [
        (keep("n + len(d) + 1"), "kept all guesses"),
        (keep("n + len(b)"), "everything that was read"),
        (keep("n + len(accept(d, b)) - 1"), "the newest token was read too"),
        (keep("n + len(accept(d, b)) + 1"), "has not been read yet"),
        (keep("n + min(len(accept(x, y)) for x, y in zip(drafted, best))"), "cut to the shortest"),
        (keep("n"), "nothing was kept"),
        (keep("len(accept(d, b))"), "add them"),
        (function("keep(lengths, drafted, best)", "return lengths[0] + len(accept(drafted[0], best[0]))"), "list of"),
    ],
    "09.7": [
        (rule(kept="q[token] / p[token]"), "upside down"),
        (rule(kept="1"), "not always kept"),
        (rule(kept="p[token] / q[token]"), "at most 1"),
        (rule(kept="p[token]"), "p of the guess"),
        (rule(other="p"), "second chance"),
        (rule(other="m"), "add up to 1"),
        (rule(missing="abs(a - b)"), "distance"),
        (rule(other="[x * (i != token) / (1 - p[token]) for i, x in enumerate(p)]"), "guess alone is taken out"),
        (rule(other="[x / sum(m) for x in m]"), "return p as the second"),
        (rule(kept="1 - min(1, p[token] / q[token])"), "*not* keeping"),
        (function("rule(token, p, q)", "return min(1, p[token] / q[token])"), "return two things"),
    ],
}

RIGHT = {
    "09.1": [
        "tokens_a_step = {key: round(value, 2) for key, value in tokens_a_step.items()}",
        tokens("G.four", "(1 - G.high**5) / (1 - G.high)"),
        "tokens_a_step = {key: torch.tensor(float(value)) for key, value in tokens_a_step.items()}",
    ],
    "09.2": [
        "free_tokens = {key: round(value, 2) for key, value in free_tokens.items()}",
        free("G.sheet", "round(free_tokens[G.sheet])"),
    ],
    "09.3": ["breaks_even = {key: torch.tensor(value) for key, value in reversed(breaks_even.items())}"],
    "09.4": [
        draft().replace("return []", "return ()"),
        function(
            "draft(history, k, longest=3)",
            "for n in range(longest, 0, -1):",
            "    end, place = tuple(history[-n:]), None",
            "    for i in range(len(history) - n):",
            "        place = i if tuple(history[i : i + n]) == end else place",
            "    if place is not None:",
            "        return [t for t in history[place + n :]][:k]",
            "return []",
        ),
    ],
    "09.5": [
        accept(
            "new = []",
            "for i, token in enumerate(best[: len(drafted) + 1]):",
            "    new.append(token)",
            "    if i < len(drafted) and drafted[i] != token:",
            "        break",
            "return new",
        ),
        accept(*HELD, "return tuple(best[: n + 1])"),
    ],
    "09.6": [
        keep("n + 1 + len(accept(d, b)[:-1])"),
        function(
            "keep(lengths, drafted, best)",
            "kept = []",
            "for length, guesses, wanted in zip(lengths, drafted, best):",
            "    length += 1",
            "    for guess, want in zip(guesses, wanted):",
            "        if guess != want:",
            "            break",
            "        length += 1",
            "    kept.append(length)",
            "return tuple(kept)",
        ),
    ],
    "09.7": [
        function(
            "rule(token, p, q)",
            "p, q = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)",
            "rest = (p - q).clamp(min=0)",
            "rest = rest / rest.sum() if rest.sum() > 0 else p",
            "return float((p[token] / q[token]).clamp(max=1)), rest.tolist()",
        ),
        function(
            "rule(token, p, q)",
            "keep = p[token] / q[token] if p[token] < q[token] else 1.0",
            "m = [a - min(a, b) for a, b in zip(p, q)]",
            "return [keep, [x / (sum(m) or 1) for x in m] if sum(m) else list(p)]",
        ),
    ],
}
