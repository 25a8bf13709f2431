"""What another class is asked in unit 10: see tools/givens.py."""

import math


def givens(pick):
    chats = pick(16, 12, 20, 24, 10)
    context = pick(4_000, 3_000, 5_000, 6_000)
    prompt = pick(16_384, 12_288, 20_480, 24_576)
    allowed = pick(20, 25, 30, 40)
    alone = 1e3 * (15.0e9 + chats * context * 131_072) / 3.35e12
    chunk = int((allowed - alone) / 1e3 * 495e12 / 15.0e9)
    # Whole blocks of 16 are accepted, too: see the check.
    least = chunk - max(chunk % 16, math.ceil(0.002 * chunk))
    held = pick(
        (90, 700, 333, 1_200),
        (120, 650, 440, 1_500),
        (75, 900, 280, 1_100),
        (200, 815, 350, 1_700),
    )
    return {
        "chats": chats,
        "context": context,
        "long": prompt,
        "allowed": allowed,
        "alone": alone,
        "piece": 1e3 * prompt * 15.0e9 / 495e12,
        "chunk": chunk,
        "least": least,
        "steps": list(range(-(-prompt // chunk), -(-prompt // least) + 1)),
        "held": held,
        "h0": held[0],
        "h1": held[1],
        "h2": held[2],
        "h3": held[3],
        "cache": context * 131_072,
    }


TEXT = [
    "{chats} chats of {context:,} tokens each are running. A prompt of {long:,} tokens",
    "How long is a step of the {chats} chats alone",
    "If {allowed} ms between two tokens",
    "and {chats} caches of {context:,} tokens",
    "What do the {allowed} ms leave",
    "{chats} * {context:_} * 131_072) / 3.35e12",
    "int(({allowed} - step_ms)",
    "1e3 * {long:_} * 15.0e9",
    '"steps of the prompt": -(-{long:_} // chunk)',
    '"its first token, chunked": -(-{long:_} // chunk) * {allowed}',
    "Four sessions hold {h0}, {h1}, {h2} and {h3:,} tokens",
    "how many sessions of {h2} tokens",
    "held = [{h0}, {h1}, {h2}, {h3:_}]",
    "(-(-{h2} // 16) * 16)",
    "Sessions of {context:,} tokens: how many",
    "A session of {context:,} tokens brings {context:,} · 131,072 bytes",
    "cache, short = {context:_} * 131_072",
]

HIDDEN = {
    "10.1": """\
assert abs(float(stall["step of the chats alone"]) / {alone:.5g} - 1) < 0.011, "alone"
assert abs(float(stall["prompt in one piece"]) / {piece:.5g} - 1) < 0.011, "in one piece"
assert {least} - 1 <= float(stall["largest chunk"]) <= {chunk} + 1, "chunk"
assert float(stall["steps of the prompt"]) in {steps}, "steps"
first = float(stall["its first token, chunked"]) / {allowed}
assert {steps}[0] - 1.1 <= first <= 1.04 * {steps}[-1], "first token\""""
}
