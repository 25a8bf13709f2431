"""Known wrong answers of unit 07, and other right ones."""


def change(name, key, value):
    return f"{name} = {{**{name}, {key!r}: {value}}}"


def function(head, *lines):
    return f"def {head}:\n" + "\n".join("    " + line for line in lines)


def rule(
    start="total, gone = head + sum(turns), 0", over="total <= high", down="total > low and gone < len(turns) - 1"
):
    return function(
        "leave(head, turns, high, low)",
        start,
        f"if {over}:",
        "    return 0",
        f"while {down}:",
        "    total -= turns[gone]",
        "    gone += 1",
        "return gone",
    )


REQUEST = "system + tools + summary + sum(turns, []) + instruction"
AFTER = "system + tools + new_summary + sum(turns[gone:], [])"


def prompts(*lines):
    return function("compaction(system, tools, summary, turns, instruction, new_summary, gone)", *lines)


def request(value):
    return prompts(f"return {value}, {AFTER}")


def after(value):
    return prompts(f"return {REQUEST}, {value}")


def extract(
    wanted="any(c.isdigit() for c in s) or {'i', 'my', 'we', 'our'} & set(s.lower().split())",
    walk="sorted(wanted, key=lambda i: len(sentences[i].split()))",
    fits="len(sentences[i].split()) <= room",
    back="[sentences[i] for i in sorted(taken)]",
):
    return function(
        "extract(sentences, words)",
        f"wanted = [i for i, s in enumerate(sentences) if {wanted}]",
        "taken, room = [], words",
        f"for i in {walk}:",
        f"    if {fits}:",
        "        taken.append(i)",
        "        room -= len(sentences[i].split())",
        f"return {back}",
    )


WORDS = "{'i', 'my', 'we', 'our'}"

WRONG = {
    "07.1": [
        (change("tpot_ms", "nothing done, at 30,000", "1e-9 * 8 * 30_000 * 131_072 / G.tb"), "left the weights out"),
        (
            change("tpot_ms", "nothing done, at 30,000", "1e-9 * (15.01e9 + 30_000 * 131_072) / G.tb"),
            "that is one session",
        ),
        (change("tpot_ms", "truncated at 8,000", "15.01 / G.tb"), "left the cache out"),
        (change("tpot_ms", "truncated at 8,000", "1e-9 * 8 * (15.01e9 + 8_000 * 131_072) / G.tb"), "read once for all"),
        (change("tpot_ms", "compacted, just before", "tpot_ms['compacted, just after']"), "the other mark"),
        (change("tpot_ms", "compacted, just after", "tpot_ms['compacted, just before']"), "the other mark"),
        ("tpot_ms = {name: ms / 1e3 for name, ms in tpot_ms.items()}", "unit"),
        ('tpot_ms = {"truncated at 8,000": 7.3}', "has no entry"),
    ],
    "07.2": [
        (change("window", "longest, 8 sessions", "G.all / (8 * 131_072)"), "forgot the weights"),
        (change("window", "longest, 8 sessions", "G.room / 131_072"), "for one session"),
        (change("window", "longest, 24 sessions", "G.all / (24 * 131_072)"), "forgot the weights"),
        (change("window", "shortest", 4_000), "below the floor"),
        (change("window", "shortest", 12_000), "keeps 97 %"),
        (change("window", "most sessions", "G.room / (6_000 * 131_072)"), "round down"),
        (change("window", "most sessions", 24), "no window is left"),
        (change("window", "most sessions", "G.all // (6_000 * 131_072)"), "forgot the weights"),
    ],
    "07.3": [
        (change("found", "nothing done", 13_200), "the question is new"),
        (change("found", "nothing done", 3_000), "turns are found as well"),
        (change("found", "oldest turn dropped", 12_500), "turn 1 has gone"),
        (change("found", "oldest turn dropped", 0), "still stand in front"),
        (change("found", "oldest tokens dropped", 12_800), "first token is another"),
        (change("found", "asks for a summary, instruction behind", 13_100), "the instruction is new"),
        (change("found", "asks for a summary, prompt of its own", 10_000), "behind another system prompt"),
        (change("found", "summary behind the tools", 7_500), "behind a new summary"),
        (change("found", "summary behind the tools", 3_500), "nobody has read it"),
        (change("found", "summary before the tools", 3_000), "written anew"),
    ],
    "07.4": [
        (change("cost", "nothing done, turn 60", 10.5), "left the output out"),
        (change("cost", "nothing done, turn 60", 16.035), "last answer is found"),
        (change("cost", "nothing done, turn 60", 127.125), "found, at 0.30"),
        (change("cost", "truncated", 9.0), "written anew"),
        (change("cost", "truncated", 52.125), "are found, at 0.30"),
        (change("cost", "truncated", 34.5), "not 3.00"),
        (change("cost", "compacted", 118.05), "sum of the cycle"),
        (change("cost", "compacted", 9.8375), "no turn of the user"),
        (change("cost", "compacted", 9.661), "left the request"),
        (change("cost", "compacted", 9.257), "finds 3,000"),
        (change("cost", "equal at", 139_250), "both turns pay"),
        (change("cost", "equal at", 9_940), "at 0.30 a million"),
    ],
    "07.5": [
        (rule(over="total <= low"), "that is the hysteresis"),
        (rule(over="total < high"), "reached, not exceeded"),
        (rule(down="total > high and gone < len(turns) - 1"), "*low*"),
        (rule(start="total, gone = sum(turns), 0"), "count the head"),
        (rule(down="total > low and gone < len(turns)"), "holds the question"),
        (rule(down="total >= low and gone < len(turns) - 1"), "2 turns have to leave"),
        (function("leave(head, turns, high, low)", "return head + sum(turns) > high"), "a whole number"),
        (
            function(
                "leave(head, turns, high, low)",
                "while head + sum(turns) > low and len(turns) > 1:",
                "    turns.pop(0)",
                "return 0",
            ),
            "must stay as it was",
        ),
        (function("leave(head, turns, high, low)", "return int(head + sum(turns) > high)"), "*low*"),
        (function("leave(head, turns, high, low)", "gone = 0"), "`return` line is missing"),
    ],
    "07.6": [
        (request("instruction + system + tools + summary + sum(turns, [])"), "instruction stands in front"),
        (request("summary + sum(turns, []) + instruction"), "does not begin with"),
        (request("system + summary + sum(turns, []) + instruction"), "tools are missing"),
        (request("system + tools + sum(turns, []) + instruction"), "summary so far is missing"),
        (request("system + tools + summary + turns + instruction"), "lists inside the list"),
        (request("system + tools + summary + sum(turns, [])"), "instruction is missing"),
        (after("new_summary + system + tools + sum(turns[gone:], [])"), "written anew"),
        (after("system + tools + new_summary + sum(turns, [])"), "turns that left"),
        (after("system + tools + new_summary + sum(turns[:gone], [])"), "turns that left"),
        (after("system + tools + sum(turns[gone:], []) + new_summary"), "behind the turns"),
        (after("system + tools + sum(turns[gone:], [])"), "new summary is missing"),
        (after("system + tools + new_summary + turns[-1]"), "the oldest turn alone leaves"),
        (
            prompts(
                "for turn in turns:", "    summary += turn", f"return system + tools + summary + instruction, {AFTER}"
            ),
            "change a list in place",
        ),
        (prompts(f"return {REQUEST}"), "two prompts"),
    ],
    "07.7": [
        (extract(wanted="True"), "none of the four words"),
        (extract(wanted=f"any(c.isdigit() for c in s) or {WORDS} & set(s.split())"), "in any case"),
        (extract(wanted=f"{WORDS} & set(s.lower().split())"), "holds a digit"),
        (extract(wanted=f"any(c.isdigit() for c in s) and {WORDS} & set(s.lower().split())"), "a digit *or* a word"),
        (
            extract(wanted="any(c.isdigit() for c in s) or any(w in s.lower() for w in ('i', 'my', 'we', 'our'))"),
            "none of the four",
        ),
        (
            extract(wanted="any(c.isdigit() for c in s) or s.lower().startswith(('i', 'my ', 'we ', 'our '))"),
            "none of the four",
        ),
        (extract(wanted="any(c.isdigit() for c in s) or {'my', 'we', 'our'} & set(s.lower().split())"), "holds 'I'"),
        (extract(wanted="any(c.isdigit() for c in s) or {'i', 'my', 'our'} & set(s.lower().split())"), "holds 'we'"),
        (extract(walk="wanted"), "as they come"),
        (extract(walk="sorted(wanted, key=lambda i: -len(sentences[i].split()))"), "longest first"),
        (extract(back="[sentences[i] for i in taken]"), "as they were said"),
        (extract(fits="True"), "more than 9 words"),
        (extract(fits="len(sentences[i].split()) < room"), "fill 7 exactly"),
        (extract(back="' '.join(sentences[i] for i in sorted(taken))"), "not one string"),
        (extract(back="[s for s in dict.fromkeys(sentences) if s in {sentences[i] for i in taken}]"), "counts twice"),
        (extract(walk="sorted(wanted, key=lambda i: sentences[i])"), "by the alphabet"),
    ],
    "07.8": [
        ("order = ['time of day', *order[:5]]", "time of day changes"),
        ("order = [order[0], order[3], order[1], order[2], *order[4:]]", "summary stands in front"),
        ("order = [*order[:3], order[4], order[3], order[5]]", "summary stands behind the turns"),
        ("order = [*order[:4], order[5], order[4]]", "all that stands behind it"),
        ("order = [*order[:2], *order[3:], order[2]]", "never changes"),
        ("order = order[:5]", "is missing"),
        ("order = ' '.join(order)", "a list of the six names"),
        ("order = [*order, 'summary']", "each of the six names once"),
    ],
}

RIGHT = {
    "07.1": [
        "tpot_ms = {name: round(ms, 2) for name, ms in tpot_ms.items()}",
        "import numpy\ntpot_ms = {name: numpy.float64(ms) for name, ms in tpot_ms.items()}",
    ],
    "07.2": [
        "window = {**window, 'longest, 8 sessions': round(G.room / (8 * 131_072), -2), 'shortest': 6e3}",
    ],
    "07.3": ["found = {name: float(tokens) for name, tokens in found.items()}"],
    "07.4": [
        "cost = {'nothing done, turn 60': 15, 'truncated': 41.8, 'compacted': 10.7, 'equal at': 122_000}",
    ],
    "07.5": [
        function(
            "leave(head, turns, high, low)",
            "if head + sum(turns) <= high:",
            "    return 0",
            "fits = [n for n in range(len(turns)) if head + sum(turns[n:]) <= low]",
            "return fits[0] if fits else len(turns) - 1",
        ),
        function(
            "leave(head, turns, high, low)",
            "kept = list(turns)",
            "if head + sum(kept) > high:",
            "    while len(kept) > 1 and head + sum(kept) > low:",
            "        kept.pop(0)",
            "return len(turns) - len(kept)",
        ),
        "import numpy\n"
        + function(
            "leave(head, turns, high, low)",
            "left = head + numpy.cumsum(turns[::-1])[::-1]",
            "return 0 if left[0] <= high else min((left > low).sum(), len(turns) - 1)",
        ),
    ],
    "07.6": [
        request("[*system, *tools, *summary, *(t for turn in turns for t in turn), *instruction]"),
        after("tuple([*system, *tools, *new_summary, *(t for turn in turns[gone:] for t in turn)])"),
    ],
    "07.7": [
        extract(wanted=f"set('0123456789') & set(s) or {WORDS} & set(s.casefold().split())"),
        extract(
            walk="sorted(wanted, key=lambda i: (len(sentences[i].split()), i))",
            back="tuple(sentences[i] for i in sorted(taken))",
        ),
    ],
    "07.8": [
        "order = [order[2], order[0], order[1], *order[3:]]",
        "order = tuple(name.upper() for name in order)",
    ],
}
