"""Known wrong answers of unit 10, and other right ones."""


def change(name, key, value):
    return f"{name} = {{**{name}, {key!r}: {value}}}"


def planned(*lines):
    return "def next_step(decoding, left, budget):\n" + "\n".join("    " + line for line in lines)


def planning(room="max(0, budget - decoding)", chunk="min(tokens, room)", less="room -= chunks[-1]"):
    return planned(
        f"room, chunks = {room}, []",
        "for tokens in left:",
        f"    chunks.append({chunk})",
        f"    {less}",
        "return chunks",
    )


def admitting(needs="-(-tokens // block_size)", stop="free < 0", then="return count", less="free -= needs"):
    return "\n    ".join(
        [
            "def admit(waiting, free, block_size):",
            "for count, tokens in enumerate(waiting):",
            f"    needs = {needs}",
            f"    {less}",
            f"    if {stop}:",
            f"        {then}",
            "return len(waiting)",
        ]
    )


def again(body):
    return f"def read_again(prompt, chunk):\n    {body}"


STEP, PIECE, CHUNK, STEPS, FIRST = (
    "step of the chats alone",
    "prompt in one piece",
    "largest chunk",
    "steps of the prompt",
    "its first token, chunked",
)
PACE = "arithmetic sets the pace, 100 tokens each"

WRONG = {
    "10.1": [
        (change("stall", STEP, "15.0 / 3.35"), "left the caches out"),
        (change("stall", STEP, "G.alone - 15.0 / 3.35"), "left the weights out"),
        (change("stall", STEP, "15.0 / 3.35 + G.cache / 3.35e9"), "one chat's cache"),
        (change("stall", STEP, "G.alone + (G.chats - 1) * 15.0 / 3.35"), "once for all"),
        (change("stall", PIECE, "15.0 / 3.35"), "by arithmetic"),
        (change("stall", PIECE, "15.0 / 495"), "one token's arithmetic"),
        (change("stall", PIECE, "G.piece + G.alone"), "arithmetic alone"),
        (change("stall", CHUNK, "int(G.allowed * 33)"), "only the rest is left"),
        (change("stall", CHUNK, "int((G.allowed - 15.0 / 3.35) * 33)"), "not that of the caches"),
        (change("stall", CHUNK, "G.chunk + G.chunk % 16"), "round down"),
        (change("stall", CHUNK, "G.chunk + 1"), "round down"),
        (change("stall", CHUNK, "G.chunk - 0.5"), "whole tokens"),
        (change("stall", STEPS, "G.long // G.chunk"), "round up"),
        (change("stall", STEPS, "G.chunk"), "number of tokens in a step"),
        (change("stall", FIRST, "G.piece"), "carries the chats along"),
        (change("stall", FIRST, "G.allowed"), "the gap of one step"),
        ("stall = {}", "has no entry"),
    ],
    "10.2": [
        (change("memory", "wasted, 2,048 reserved", "100 - memory['wasted, 2,048 reserved']"), "share in use"),
        (change("memory", "wasted, 2,048 reserved", "memory['wasted, 2,048 reserved'] / 100"), "percent is asked for"),
        (change("memory", "wasted, blocks of 16", "sum(-n % 16 for n in G.held)"), "number of empty places"),
        (
            change("memory", "wasted, blocks of 256", "100 * sum(-n % 256 for n in G.held) / sum(G.held)"),
            "divide by the places",
        ),
        (change("memory", "wasted, blocks of 16", "round(memory['wasted, blocks of 16'], 1)"), "three digits"),
        (change("memory", "wasted, blocks of 16", "memory['wasted, blocks of 256']"), "blocks of 256"),
        (change("memory", "sessions, 2,048 reserved", "memory['sessions, blocks of 16']"), "however short"),
        (change("memory", "sessions, blocks of 16", "8_192 / (-(-G.h2 // 16) * 16)"), "round down"),
        (change("memory", "sessions, blocks of 16", 512), "number of blocks"),
    ],
    "10.3": [
        (change("throughput", "batch 1", "3.35e12 / 15.0e9"), "left the cache out"),
        (change("throughput", "batch 1", 33_000), "bytes set the pace"),
        (change("throughput", "batch 64", "64 * 3.35e12 / (15.0e9 + G.cache)"), "reads all 64"),
        (change("throughput", "batch 64", "64 * 3.35e12 / 15.0e9"), "left the caches out"),
        (change("throughput", "batch 64", "throughput['batch 64'] / 64"), "one session's rate"),
        (
            change("throughput", "batch 64", "64 / (64 / throughput['batch 64'] + 64 * 15.0e9 / 495e12)"),
            "the longer of the two",
        ),
        (change("throughput", "no batch exceeds", 33_000), "limit of arithmetic"),
        (change("throughput", "knee", "G.cache / 15.0e9"), "upside down"),
        (change("throughput", "knee", 147.8), "bytes are compared with bytes"),
        (change("throughput", PACE, 147.8), "caches are read as well"),
        (change("throughput", PACE, 1_144), "weigh as much as the weights"),
    ],
    "10.4": [
        (change("attention", "scores written out", 9.44), "four passes"),
        (change("attention", "scores written out", 5.243), "one pass over"),
        (change("attention", "scores written out", 16.78), "left q, k, v"),
        (change("attention", "tiles of 128", 1.0486), "each of the 8 tiles"),
        (change("attention", "tiles of 128", 2.6214), "both k and v"),
        (change("attention", "tiles of 128", 4.194), "left q and the result out"),
        (change("attention", "SMs at work", 0.0606), "percent is asked for"),
        (change("attention", "SMs at work", 0.7576), "eight, not one"),
        (change("attention", "pieces", 16), "four sms have none"),
        (change("attention", "pieces", 132), "times the pieces"),
    ],
    "10.5": [
        (planning(room="budget"), "takes one token of the budget"),
        (planning(room="budget - decoding"), "never less than nothing"),
        (planning(chunk="room"), "more tokens than it has left"),
        (planning(less="pass"), "not beyond the budget"),
        (planning(less="room -= tokens"), "never less than nothing"),
        (
            planned("room = max(0, budget - decoding)", "return [min(left[0], room)] + [0] * (len(left) - 1)"),
            "goes to the next",
        ),
        (
            planned("room = max(0, budget - decoding)", "return [min(t, room // max(1, len(left))) for t in left]"),
            "goes to the next",
        ),
        (planned("return min(sum(left), max(0, budget - decoding))"), "return a list"),
        (planning(chunk="float(min(tokens, room))"), "whole numbers"),
        (
            planned("room = max(0, budget - decoding)", "return [min(t, room) for t in left if t <= room]"),
            "0 for one that gets nothing",
        ),
        (
            planned(
                "room, chunks = max(0, budget - decoding), []",
                "while left:",
                "    chunks.append(min(left.pop(0), room))",
                "    room -= chunks[-1]",
                "return chunks",
            ),
            "must not change",
        ),
    ],
    "10.6": [
        (admitting(needs="tokens // block_size"), "17 tokens need two blocks"),
        (admitting(needs="tokens // block_size + 1"), "fill one block of 16 exactly"),
        (admitting(stop="free <= 0"), "fill one block of 16 exactly"),
        (admitting(needs="tokens"), "fill one block of 16 exactly"),
        (admitting(less="pass", stop="needs > free"), "no longer free"),
        (admitting(then="free += needs; continue"), "two blocks"),
        (
            "def admit(waiting, free, block_size):\n"
            "    started = 0\n"
            "    for tokens in waiting:\n"
            "        needs = -(-tokens // block_size)\n"
            "        if needs <= free:\n"
            "            started, free = started + 1, free - needs\n"
            "    return started",
            "nobody overtakes",
        ),
        (
            "def admit(waiting, free, block_size):\n"
            "    total = 0\n"
            "    for count, tokens in enumerate(waiting):\n"
            "        total += tokens\n"
            "        if total > free * block_size:\n"
            "            return count\n"
            "    return len(waiting)",
            "do not share a block",
        ),
        ("def admit(waiting, free, block_size):\n    return waiting[:1]", "a whole number"),
    ],
    "10.7": [
        (again("return sum(min(s + chunk, prompt) for s in range(0, prompt, chunk))"), "not read *again*"),
        (again("return prompt * (prompt / chunk - 1) / 2"), "takes all chunks to be whole"),
        (again("return sum(range(0, prompt - chunk, chunk))"), "left the last chunk out"),
        (again("return -(-prompt // chunk)"), "number of chunks"),
        (again("return (-(-prompt // chunk) - 1) * chunk"), "all that came before"),
        (again("return prompt * -(-prompt // chunk)"), "too much"),
    ],
}

RIGHT = {
    "10.1": [
        "stall = {'step of the chats alone': G.alone, 'prompt in one piece': round(G.piece), 'largest chunk': G.least, "
        "'steps of the prompt': -(-G.long // G.least), 'its first token, chunked': -(-G.long // G.least) * G.allowed}",
        "stall = {**stall, 'largest chunk': G.least, 'steps of the prompt': -(-G.long // G.least), "
        "'its first token, chunked': -(-G.long // G.least) * G.alone + G.piece}",
        change("stall", STEP, "round(G.alone, 1)"),
    ],
    "10.2": ["memory = {key: float(f'{value:.3g}') for key, value in memory.items()}"],
    "10.3": [
        "throughput = {key: float(f'{value:.3g}') for key, value in throughput.items()}",
        "throughput = {**throughput, 'knee': int(throughput['knee'])}",
    ],
    "10.4": [
        "attention = {'scores written out': 17.8, 'tiles of 128': 4.7, 'SMs at work': 6.1, 'pieces': 17}",
    ],
    "10.5": [
        planned(
            "import itertools",
            "room = max(0, budget - decoding)",
            "ends = [min(end, room) for end in itertools.accumulate(left)]",
            "return [end - start for start, end in zip([0, *ends], ends)]",
        ),
        planned(
            "room, chunks = max(0, budget - decoding), ()",
            "for tokens in left:",
            "    chunks, room = (*chunks, min(tokens, room)), room - min(tokens, room)",
            "return chunks",
        ),
    ],
    "10.6": [
        "def admit(waiting, free, block_size):\n"
        "    import math\n"
        "    count = 0\n"
        "    while count < len(waiting) and math.ceil(waiting[count] / block_size) <= free:\n"
        "        free -= math.ceil(waiting[count] / block_size)\n"
        "        count += 1\n"
        "    return count",
        "def admit(waiting, free, block_size):\n"
        "    import numpy as np\n"
        "    return (np.cumsum([-(-n // block_size) for n in waiting]) <= free).sum()",
    ],
    "10.7": [
        again("chunks = -(-prompt // chunk); return chunk * chunks * (chunks - 1) // 2"),
        again("return sum(start for start in range(0, prompt, chunk))"),
    ],
}
