"""Known wrong answers of unit 04, and other right ones."""


def two(name, llama2=None, llama3=None):
    old, new = "Llama-2-7b-hf", "Llama-3.1-8B"
    old_value, new_value = llama2 or f"{name}[{old!r}]", llama3 or f"{name}[{new!r}]"
    return f"{name} = {{{old!r}: {old_value}, {new!r}: {new_value}}}"


def grows(model, what, value):
    return f"still_growing = {{**still_growing, {model} + ', {what}': {value}}}"


def function(head, *lines):
    return f"def {head}:\n" + "\n".join("    " + line for line in lines)


def kept(*lines):
    return function("kept(newest, sinks, window)", *lines)


def row_of(expression):
    return function("row_of(token, sinks, window)", f"return {expression}")


def places(*lines):
    first = ["tokens = [*range(min(sinks, seen)), *range(max(sinks, seen - window), seen)]"]
    first += ["rows = [t if t < sinks else sinks + (t - sinks) % window for t in tokens]"]
    return function("places(seen, sinks, window)", *first, *lines)


def store(*lines):
    return function("store(cache, layer, token, k, v)", "row = row_of(token, cache.sinks, cache.window)", *lines)


KEYS, VALUES = "cache.keys[layer, :, :, row] = k[:, :, 0]", "cache.values[layer, :, :, row] = v[:, :, 0]"


def read(held="len(place)", turned="place", query="held - 1", k=None, q=None, answer=None, before="pass"):
    k = k or f"rope.rotate(cache.keys[layer, :, :, :held], cache.cos[{turned}], cache.sin[{turned}])"
    q = q or f"rope.rotate(q, cache.cos[[{query}]], cache.sin[[{query}]])"
    return function(
        "read(cache, layer, q)",
        "seen = cache.seen(layer)",
        "place = places(seen, cache.sinks, cache.window)",
        f"held = {held}",
        before,
        f"k = {k}",
        f"q = {q}",
        answer or "return causal(q, k, cache.values[layer, :, :, :held])",
    )


SDPA = (
    "return torch.nn.functional.scaled_dot_product_attention(q, k, cache.values[layer, :, :, :held], enable_gqa=True{})"
)


def safe(*lines):
    return function("smallest_safe_window(curve, dense, allowed)", *lines)


TEXT_PLACES = """place = kept(seen - 1, cache.sinks, cache.window)
    place = [place[i] for i in sorted(range(len(place)), key=lambda i: row_of(place[i], cache.sinks, cache.window))]"""

WRONG = {
    "04.1": [
        (two("ceiling_gb", "G.old_full"), "full cache"),
        (two("ceiling_gb", "G.old_capped / 2"), "forgot v"),
        (two("ceiling_gb", None, "G.old_capped"), "query heads"),
        (two("ceiling_gb", "G.old_capped * 1e9 / 2**30", "G.new_capped * 1e9 / 2**30"), "gib"),
        (two("ceiling_gb", "G.old_capped / 32"), "one layer"),
        (two("ceiling_gb", "2 * G.old_capped"), "float32"),
        (two("ceiling_gb", '"1.08 GB"'), "has to be one number"),
    ],
    "04.2": [
        (two("times_faster", "G.context / (G.window + 4)"), "ratio of the two caches"),
        (two("times_faster", "(13.21 + G.old_full) / 13.21"), "vanish"),
        (two("times_faster", "1 / times_faster['Llama-2-7b-hf']"), "upside down"),
        (two("times_faster", None, "(15.01 + 4 * G.new_full) / (15.01 + 4 * G.new_capped)"), "query heads"),
        (two("times_faster", "1 - 1 / times_faster['Llama-2-7b-hf']"), "share of time saved"),
        (two("times_faster", "times_faster['Llama-2-7b-hf'] - 1"), "beyond 1"),
        (two("times_faster", "float('nan')"), "nan"),
    ],
    "04.3": [
        (grows("G.wide", "layers", "G.w_layers"), "without a window grow"),
        (grows("G.small", "layers", "G.s_sliding"), "stop growing"),
        (grows("G.wide", "bytes per token", "G.w_all"), "all layers"),
        (grows("G.small", "bytes per token", "still_growing[G.small + ', bytes per token'] / 2"), "forgot v"),
        (grows("G.wide", "bytes per token", "round(still_growing[G.wide + ', bytes per token'], -2)"), "give 5 digits"),
        (
            grows("G.small", "bytes per token", "G.s_all - still_growing[G.small + ', bytes per token']"),
            "no longer grow",
        ),
        (grows("G.wide", "rows for its sinks", 4), "no row"),
        (grows("G.wide", "rows for its sinks", 64), "no row"),
        ("still_growing = {}", "has no entry"),
    ],
    "04.4": [
        (kept("return list(range(max(0, newest - window + 1), newest + 1))"), "always stay"),
        (
            kept("return [*range(sinks), *range(max(sinks, newest - window), newest)]"),
            "sees itself",
        ),
        (
            kept("return [*range(min(sinks, newest + 1)), *range(max(0, newest - window + 1), newest + 1)]"),
            "appears twice",
        ),
        (
            kept(
                "w = window - sinks",
                "return [*range(min(sinks, newest + 1)), *range(max(sinks, newest - w + 1), newest + 1)]",
            ),
            "beside the sinks",
        ),
        (
            kept("return [*range(min(sinks, newest + 1)), *range(max(sinks, newest - window), newest + 1)]"),
            "at most",
        ),
        (kept("return [*range(sinks), *range(max(sinks, newest - window + 1), newest + 1)]"), "comes after the newest"),
        (kept("return sinks + window"), "list of whole numbers"),
    ],
    "04.5": [
        (row_of("token % (sinks + window)"), "overwrites the sinks"),
        (row_of("token if token < sinks else sinks + token % window"), "subtract"),
        (row_of("token if token < sinks else (token - sinks) % window"), "add `sinks`"),
        (row_of("token"), "comes round"),
        (row_of("token if token < sinks else sinks + (token - sinks) % (sinks + window)"), "remainder by `window`"),
        (row_of("token if token < sinks else sinks + (token - sinks - 1) % window"), "One row off"),
        (row_of("sinks + (token - sinks) % window"), "its own number"),
        (row_of("sinks + token % window"), "its own number"),
    ],
    "04.6": [
        (places("return [tokens[rows.index(r)] for r in range(len(rows))]"), "places in the text"),
        (places("return list(range(len(tokens)))"), "rows themselves"),
        (places("return rows"), "other way round"),
        (places("return tokens"), "tokens by place"),
        (
            function(
                "places(seen, sinks, window)",
                "tokens = kept(seen, sinks, window)",
                "rows = [row_of(t, sinks, window) for t in tokens]",
                "return [rows.index(r) for r in sorted(rows)]",
            ),
            "newest token is",
        ),
        (places("return [rows.index(r) + 1 for r in range(len(rows))]"), "sinks stand at the first places"),
    ],
    "04.7": [
        (store(VALUES, "cache.keys[layer, :, :, row] = v[:, :, 0]"), "value lies among the keys"),
        (store(KEYS), "no value lies in its row"),
        (
            store(VALUES, "cache.keys[layer, :, :, row] = rope.rotate(k, cache.cos[[row]], cache.sin[[row]])[:, :, 0]"),
            "rotated",
        ),
        (store("row = token % cache.rows", KEYS, VALUES), "belongs in row"),
        (store("cache.keys[layer, 0, :, row] = k[0, :, 0]", VALUES), "first sequence and not"),
        (store("cache.keys[:, :, :, row] = k[:, :, 0]", "cache.values[:, :, :, row] = v[:, :, 0]"), "another layer"),
        (store("cache.keys[layer, :, :, row:] = k", "cache.values[layer, :, :, row:] = v"), "still needed"),
        (store("cache.keys[layer, :, 0, row] = k[:, 0, 0]", VALUES), "first kv head"),
        (store("cache.keys = torch.cat((cache.keys, cache.keys), dim=3)", KEYS, VALUES), "stay constant"),
        (
            store("cache.keys[layer, :, :, token] = k[:, :, 0]", "cache.values[layer, :, :, token] = v[:, :, 0]"),
            "IndexError",
        ),
    ],
    "04.8": [
        (read(before=TEXT_PLACES, query="seen - 1"), "places in the text"),
        (read(query="seen - 1"), "query at its place in the text"),
        (read(turned="list(range(held))"), "places are those of the rows"),
        (read(k="cache.keys[layer, :, :, :held]"), "did not rotate the keys"),
        (read(q="q"), "did not rotate the query"),
        (read(query="held"), "one place too far"),
        (
            read(
                held="cache.rows",
                k="torch.cat((rope.rotate(cache.keys[layer, :, :, :len(place)], cache.cos[place], cache.sin[place]),"
                " cache.keys[layer, :, :, len(place):]), dim=2)",
                query="len(place) - 1",
            ),
            "no token yet",
        ),
        (
            read(
                before="cache.keys[layer, :, :, :held] = rope.rotate(cache.keys[layer, :, :, :held], cache.cos[place], "
                "cache.sin[place])",
                k="cache.keys[layer, :, :, :held]",
            ),
            "changed what is stored",
        ),
        (read(answer="return causal(q, k, cache.values[layer, :, :, :held])[:, :, 0]"), "has to be that of q"),
        (read(answer="causal(q, k, cache.values[layer, :, :, :held])"), "return"),
        (read().replace("cache.seen(layer)", "cache.length"), "cache.seen(layer)"),
        (read(answer="return causal(q, k, cache.values[0, :, :, :held])"), "first layer only"),
        (read(answer=SDPA.format(", is_causal=True")), "row 0 alone"),
    ],
    "04.9": [
        (safe("return max(w for w in curve if curve[w] <= dense * (1 + allowed))"), "largest window within"),
        (safe("return min(w for w in curve if curve[w] <= dense * (1 + allowed))"), "by luck"),
        (
            safe("fits = [w for w in curve if curve[w] <= dense + allowed]", "return min(fits, default=128)"),
            "share of the dense",
        ),
        (safe("return min(curve[w] for w in curve if curve[w] <= dense * (1 + allowed))"), "return the window"),
        (
            safe(
                "best = None",
                "for w in sorted(curve, reverse=True):",
                "    if curve[w] >= dense * (1 + allowed): break",
                "    best = w",
                "return best",
            ),
            "within it",
        ),
        (
            safe(
                "best = max(curve)",
                "for w in sorted(curve, reverse=True):",
                "    if curve[w] > dense * (1 + allowed): break",
                "    best = w",
                "return best",
            ),
            "return None",
        ),
        (
            safe(
                "best = None",
                "for w in sorted(curve):",
                "    if curve[w] > dense * (1 + allowed): break",
                "    best = w",
                "return best",
            ),
            "begin at the largest",
        ),
        (
            safe(
                "best = None",
                "for w in reversed(curve):",
                "    if curve[w] > dense * (1 + allowed): break",
                "    best = w",
                "return best",
            ),
            "sort them first",
        ),
    ],
}

RIGHT = {
    "04.1": [
        "import numpy as np\n" + two("ceiling_gb", "np.float64(G.old_capped)", "torch.tensor(G.new_capped)"),
    ],
    "04.2": [
        two("times_faster", "round(times_faster['Llama-2-7b-hf'], 2)", "round(times_faster['Llama-3.1-8B'], 2)"),
        two("times_faster", "(13.21 + G.old_full) / (13.21 + G.old_capped)"),
    ],
    "04.3": [
        grows("G.wide", "layers", "torch.tensor(G.w_full)"),
        grows("G.small", "layers", "float(G.s_full)") + "\nstill_growing = dict(reversed(still_growing.items()))",
    ],
    "04.4": [
        kept("return [t for t in range(newest + 1) if t < sinks or t > newest - window]"),
        kept("t = torch.arange(newest + 1)", "return t[(t < sinks) | (t > newest - window)]"),
        kept(
            "from collections import deque",
            "text = range(newest + 1)",
            "return [*text[:sinks], *deque(text[sinks:], maxlen=window)]",
        ),
    ],
    "04.5": [
        row_of("min(token, sinks) + max(token - sinks, 0) % window"),
    ],
    "04.6": [
        places("return [rows.index(r) for r in range(len(rows))]"),
        places("return torch.tensor(rows).argsort()"),
    ],
    "04.7": [
        store("row = row_of(cache.seen(layer) - 1, cache.sinks, cache.window)", KEYS, VALUES),
        store("cache.keys[layer][:, :, row : row + 1] = k", "cache.values[layer][:, :, row : row + 1] = v"),
        store("cache.keys[layer, :, :, row].copy_(k.squeeze(2))", "cache.values[layer, :, :, row].copy_(v.squeeze(2))"),
    ],
    "04.8": [
        read(q="q.copy_(rope.rotate(q, cache.cos[[held - 1]], cache.sin[[held - 1]]))"),
        # Sorted into text order first, then places are 0, 1, 2, …
        function(
            "read(cache, layer, q)",
            "tokens = kept(cache.seen(layer) - 1, cache.sinks, cache.window)",
            "rows = [row_of(t, cache.sinks, cache.window) for t in tokens]",
            "n = len(rows)",
            "k = rope.rotate(cache.keys[layer][:, :, rows], cache.cos[:n], cache.sin[:n])",
            "q = rope.rotate(q, cache.cos[n - 1 : n], cache.sin[n - 1 : n])",
            "return causal(q, k, cache.values[layer][:, :, rows])",
        ),
        read(answer=SDPA.format("")),
        # The engine's kernel instead of `causal`.
        read(
            answer="return cache.kernels.decode_attention(q[:, :, 0], k, "
            "cache.values[layer, :, :, :held].contiguous(), held)[:, :, None]"
        ),
    ],
    "04.9": [
        safe(
            "ok = [w for w in curve if all(p <= dense * (1 + allowed) for v, p in curve.items() if v >= w)]",
            "return min(ok, default=None)",
        ),
    ],
}
