"""Checks of unit 04, "StreamingLLM": bytes from real tensors, the cache against dense attention in float64."""

from __future__ import annotations

import torch

from helpers.caches import SinkBuffers
from helpers.check import Wrong, call, close, entries, exercise, number, require
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.geometry import Geometry, get
from helpers.quality import sink_curve

SINKS = 4
CACHES, TOKENS = ((2, 3), (4, 6), (0, 5), (4, 4)), 40
SMALL = Geometry(
    "small", layers=2, hidden=48, q_heads=6, kv_heads=2, head_dim=8, intermediate=48, vocab=61, rope_theta=1e4
)


@exercise("04.1")
def check_ceiling_gb(ceiling_gb, *, window=2_048, context=32_768):
    names = ["Llama-2-7b-hf", "Llama-3.1-8B"]
    entries("ceiling_gb", ceiling_gb, names)
    rows = SINKS + window
    for name in names:
        g = get(name)
        expect = kv_bytes(g, tokens=rows) / 1e9
        slips = {
            f"That is the full cache at {context:,} tokens. A ceiling does not depend on the context.": _gb(g, context),
            "You forgot V: a row is a key and a value.": expect / 2,
            "You counted one layer; every layer keeps its own sinks and window.": expect / g.layers,
            "You counted the 4 sinks alone; the window is kept beside them.": _gb(g, SINKS),
            "You counted float32; the cache is in bfloat16, 2 bytes an element.": 2 * expect,
            "You counted GiB; 1 GB is 1e9 bytes.": expect * 1e9 / 2**30,
        }
        if g.group_size > 1:
            slips["You counted query heads; only the KV heads are kept."] = expect * g.group_size
        if g.group_size != SINKS:
            slips["You multiplied sinks and window; the rows are their sum."] = _gb(g, SINKS * window)
        number(ceiling_gb[name], expect, unit="GB", rel=0.01, slips=slips, name=name)


@exercise("04.2")
def check_times_faster(times_faster, *, window=2_048, context=32_768):
    names = ["Llama-2-7b-hf", "Llama-3.1-8B"]
    entries("times_faster", times_faster, names)
    for name in names:
        g = get(name)
        weights = weight_bytes(g, torch.bfloat16)
        full, capped = kv_bytes(g, tokens=context), kv_bytes(g, tokens=SINKS + window)
        expect = (weights + full) / (weights + capped)
        slips = {
            "That is the ratio of the two caches. A step reads the weights too, before and after.": full / capped,
            "You let the cache vanish; the window and the sinks are still read.": (weights + full) / weights,
            "You left the weights out of the capped step; they are read in both.": (weights + full) / capped,
            "Upside down: the full cache's step time divided by the capped one's.": 1 / expect,
            "That is the share of time saved; the ratio of the two times is asked for.": 1 - 1 / expect,
            "That is what is gained beyond 1; the ratio of the two times is asked for.": expect - 1,
            "You forgot V in the cache.": (weights + full / 2) / (weights + capped / 2),
        }
        if g.group_size > 1:
            many = g.group_size
            slips["You counted query heads; only the 8 KV heads are kept."] = (weights + many * full) / (
                weights + many * capped
            )
        number(times_faster[name], expect, rel=0.01, slips=slips, name=name)
    return (
        f"a cache {full / capped:.0f} times smaller, and the newer model gains {100 * (expect - 1):.0f} %: what "
        "shrinks is the cache, not the weights"
    )


@exercise("04.3")
def check_still_growing(still_growing, *, wide="gpt-oss-20b", small="Gemma-3-4b-it"):
    keys = [f"{name}, {what}" for name in (wide, small) for what in ("layers", "bytes per token")]
    entries("still_growing", still_growing, [*keys, f"{wide}, rows for its sinks"])
    for name in (wide, small):
        g = get(name)
        layers = g.layers - g.sliding_layers
        slips = {
            "Those are the layers with a window: they stop growing. The others still grow.": g.sliding_layers,
            "Only layers without a window grow; a windowed layer stops when its window is full.": g.layers,
        }
        slips = {message: value for message, value in slips.items() if value != layers}
        if g.sliding_layers == layers:  # half and half: the first slip gives the right number
            slips["Every second layer has a window and stops growing."] = 0
        number(still_growing[f"{name}, layers"], layers, unit="layers", rel=0, slips=slips, name=f"{name}, layers")
        grown = kv_bytes(g, tokens=32_769, windowed=True) - kv_bytes(g, tokens=32_768, windowed=True)
        everything = kv_bytes(g, tokens=1)
        slips = {
            "That counts all layers; beyond the window only those without one add a row.": everything,
            "Those are the bytes of the windowed layers, which no longer grow.": everything - grown,
            "You forgot V: a token leaves a key and a value.": grown / 2,
            "You counted query heads; only the KV heads are kept.": grown * g.group_size,
            "You counted one layer; all that grow add a row.": grown / layers,
            "You counted float32; the cache is in bfloat16, 2 bytes an element.": grown * 2,
        }
        slips = {message: value for message, value in slips.items() if value != grown}
        number(
            still_growing[f"{name}, bytes per token"],
            grown,
            unit="bytes",
            rel=1e-5,
            slips=slips,
            name=f"{name}, bytes per token",
        )
    g = get(wide)
    number(
        still_growing[f"{wide}, rows for its sinks"],
        0,
        unit="rows",
        slips={
            "Four is StreamingLLM's habit. A learned sink is a number in the softmax: no token, no row.": [1, 4],
            "There is one learned logit a query head, and none of them has a key or a value: no row.": [
                g.q_heads,
                g.kv_heads,
            ],
            "There is one learned logit a head and layer, and none of them has a key or a value: no row.": [
                g.layers,
                g.layers - g.sliding_layers,
                g.q_heads * g.layers,
                g.kv_heads * g.layers,
            ],
        },
        name=f"{wide}, rows for its sinks",
    )


@exercise("04.4")
def kept(function):
    cases = [(9, 2, 4), (3, 2, 4), (0, 2, 4), (4, 2, 4), (5, 2, 4), (6, 2, 4), (1, 4, 8), (20, 0, 5), (700, 8, 256)]
    for newest, sinks, window in cases:
        case = f"kept(newest={newest}, sinks={sinks}, window={window})"
        got = _tokens(call(function, newest, sinks, window), case)
        first, last = range(min(sinks, newest + 1)), range(max(sinks, newest - window + 1), newest + 1)
        expect = [*first, *last]
        if got == expect:
            continue
        short = f"{case} gives {_brief(got)}."
        require(
            len(set(got)) == len(got), f"{short} A token appears twice: where window and sinks meet, count it once."
        )
        require(all(token <= newest for token in got), f"{short} Token {max(got)} comes after the newest.")
        require(all(token >= 0 for token in got), f"{short} There is no token {min(got)}: the text begins at 0.")
        require(newest in got, f"{short} The newest token sees itself, too: it is the last of the window.")
        require(sorted(got) != expect, f"{short} The tokens are right and their order is not: ascending, please.")
        require(set(range(min(sinks, newest + 1))) <= set(got), f"{short} The first {sinks} tokens always stay.")
        behind = [token for token in got if token >= sinks]
        wanted = len(last)
        require(
            len(behind) >= wanted,
            f"{short} That is a window of {len(behind)}: `window` tokens beside the sinks, the newest included.",
        )
        require(
            len(behind) <= wanted,
            f"{short} That is a window of {len(behind)}: it holds {window} tokens at most, the newest included.",
        )
        raise Wrong(f"{short} Expected {_brief(expect)}.")


@exercise("04.5")
def row_of(function):
    caches = ((3, 10), *CACHES)  # the roomy one first: its slips have different values
    for sinks, window in caches:
        for token in range(TOKENS):
            number(
                call(function, token, sinks, window),
                _row(token, sinks, window),
                rel=0,
                slips=_row_slips(token, sinks, window),
                name=f"row_of(token={token}, sinks={sinks}, window={window})",
            )
    return f"the rows of {TOKENS} tokens in {len(caches)} caches"


@exercise("04.6")
def places(function):
    for sinks, window in CACHES:
        taken: dict[int, int] = {}
        for token in range(TOKENS):
            taken[_row(token, sinks, window)] = token
            case = f"places(seen={token + 1}, sinks={sinks}, window={window})"
            got = _tokens(call(function, token + 1, sinks, window), case)
            _check_places(got, taken, token + 1, sinks, window, case)
    return f"after each of {TOKENS} tokens in {len(CACHES)} caches"


@exercise("04.7")
def store(function):
    sinks, window, n = 2, 5, 24
    _, k, v = _drawn(n)
    cache = _cache(function, _read, sinks, window)
    for token in range(n):
        for layer in range(SMALL.layers):
            sign = 1 - 2 * layer  # another text in every layer
            cache.append(layer, sign * k[:, :, token : token + 1], sign * v[:, :, token : token + 1])
        _check_stored(cache, k, v, token)
    return f"{n} tokens through {sinks} + {window} rows, 2 layers, batch 2"


@exercise("04.8")
def read(function):
    sinks, window, n = 4, 9, 40
    q, k, v = _drawn(n)
    cache = _cache(_store, function, sinks, window)
    answers: list[list[torch.Tensor]] = [[] for _ in range(SMALL.layers)]
    for token in range(n):
        for layer in range(SMALL.layers):
            piece, sign = slice(token, token + 1), 1 - 2 * layer
            cache.append(layer, sign * k[:, :, piece], sign * v[:, :, piece])
            before = cache.keys.clone(), cache.values.clone()
            got = call(cache.attend, layer, q[:, :, piece])
            require(
                torch.equal(before[0], cache.keys) and torch.equal(before[1], cache.values),
                "read() changed what is stored. Rotate a copy: the next step needs the keys as they came.",
            )
            require(isinstance(got, torch.Tensor), f"read() has to return a tensor; it returned {type(got).__name__}.")
            require(
                list(got.shape) == list(q[:, :, piece].shape),
                f"read() returns shape {list(got.shape)}; it has to be that of q, {list(q[:, :, piece].shape)}.",
            )
            answers[layer].append(got)
    failures: dict[int, Wrong] = {}
    for layer in range(SMALL.layers):
        sign = 1 - 2 * layer
        try:
            _check_read(torch.cat(answers[layer], dim=2), q, sign * k, sign * v, sinks, window)
        except Wrong as error:
            failures[layer] = error
    require(list(failures) != [1], "right in the first layer only: read keys[layer] and values[layer].")
    require(
        list(failures) != [0],
        "right in the last layer only. In the middle of a step layers differ: take cache.seen(layer).",
    )
    if failures:
        raise failures[0]
    return f"{n} tokens equal dense attention in float64 under the same mask"


@exercise("04.9")
def smallest_safe_window(function):
    curve = {128: 15.0, 256: 12.6, 512: 11.3, 1_024: 10.1, 1_536: 10.05}
    case = "for {128: 15.0, 256: 12.6, 512: 11.3, 1024: 10.1, 1536: 10.05}, dense 10.0 and 15 %"
    slips = {
        "That is the largest window within the budget; memory asks for the smallest.": 1_536,
        "The budget is a share of the dense perplexity, not an addition to it: dense · (1 + allowed).": 1_024,
        "That is the largest window outside the budget; take the next one.": 256,
        "You returned the perplexity of the window; return the window.": [11.3, 10.1, 10.05],
        "128 tokens exceed the budget by far: compare the perplexity, not the window, with dense · (1 + allowed).": 128,
    }

    def asked(curve, dense, allowed):
        window = function(dict(curve), dense, allowed)  # a copy: it may take out what it has looked at
        require(
            window is not None,
            f"for {curve}, dense {dense} and {100 * allowed:.0f} % it returns None, and there is a safe window. Begin "
            "at the largest window; the limit is dense · (1 + allowed).",
        )
        return window

    number(asked(curve, 10.0, 0.15), 512, unit="tokens", rel=0, slips=slips, name=case)
    shuffled = {window: curve[window] for window in (1_024, 256, 512, 128, 1_536)}
    slips = {"The windows need not come in order: sort them first.": [w for w in curve if w != 512]}
    number(asked(shuffled, 10.0, 0.15), 512, unit="tokens", rel=0, slips=slips, name=f"shuffled, {case}")
    edge = {"A window exactly at the budget is within it: use <=.": 1_024}
    number(
        asked({512: 12.5, 1_024: 11.0}, 10.0, 0.25),
        512,
        rel=0,
        slips=edge,
        name="at the edge (12.5 of 12.5), the window",
    )
    other = {
        "The budget is a share of the dense perplexity, not an addition to it: dense · (1 + allowed).": 1_024,
        "You compared with a fixed perplexity; use `dense`.": 512,
    }
    number(
        asked({256: 21.9, 512: 20.1, 1_024: 20.05}, 20.0, 0.10),
        256,
        rel=0,
        slips=other,
        name="with dense 20.0, the window",
    )
    bumpy = {128: 10.9, 256: 12.0, 512: 10.8, 1_024: 10.2}
    slips = {"128 is within the budget by luck: 256 is not. Safe is a window from which on all are within.": 128}
    number(
        asked(bumpy, 10.0, 0.10),
        512,
        unit="tokens",
        rel=0,
        slips=slips,
        name="with a bump at 256, the window",
    )
    got = function({128: 30.0, 256: 20.0}, 10.0, 0.10)
    require(
        got is None,
        f"no window of {{128: 30.0, 256: 20.0}} is within 10 % of 10.0: return None; you returned {got!r}.",
    )
    points, _ = sink_curve.recorded()
    curve, dense = sink_curve.by_window(points, 4), points[0].perplexity
    for allowed in (0.05, 0.10, 0.25):
        within = [w for w in curve if all(curve[v] <= dense * (1 + allowed) for v in curve if v >= w)]
        name = f"on the recorded curve, {100 * allowed:.0f} %"
        number(asked(curve, dense, allowed), min(within), unit="tokens", rel=0, name=name)
    return "nine curves and budgets, one with a bump, one without a safe window"


def _gb(g: Geometry, rows: int) -> float:
    return kv_bytes(g, tokens=rows) / 1e9


def _tokens(value, case: str) -> list[int]:
    """Any sequence of whole numbers as a list of int."""
    try:
        numbers = [float(x) for x in value]
    except (TypeError, ValueError):
        raise Wrong(f"{case} has to return a list of whole numbers; it returned {value!r}.") from None
    require(all(x == int(x) for x in numbers), f"{case} has to return whole numbers; it returned {numbers}.")
    return [int(x) for x in numbers]


def _brief(tokens: list[int]) -> str:
    if len(tokens) <= 14:
        return str(tokens)
    first, last = (", ".join(map(str, part)) for part in (tokens[:6], tokens[-6:]))
    return f"[{first}, …, {last}] ({len(tokens)} tokens)"


def _row(token: int, sinks: int, window: int) -> int:
    return token if token < sinks else sinks + (token - sinks) % window


def _row_slips(token: int, sinks: int, window: int) -> dict[str, float]:
    right = _row(token, sinks, window)
    slips = {
        "That ring runs over all rows and overwrites the sinks; it has to turn within the window's rows.": token
        % (sinks + window),
        "The ring starts with token `sinks`: subtract `sinks` before you take the remainder.": sinks + token % window,
        "That row would be overwritten by others: the ring starts behind the sinks, add `sinks`.": (token - sinks)
        % window,
        "The ring has `window` rows and then comes round: take the remainder by `window`.": token,
        "One row off: token `sinks` lies in row `sinks`.": [sinks + (token - sinks + one) % window for one in (-1, 1)],
    }
    if token < sinks:
        ring = (token - sinks) % window
        own = "A sink is not in the ring: its row is its own number, always."
        slips = {own: [sinks + ring, ring, sinks + token % window]}
    return {message: value for message, value in slips.items() if value != right}


def _check_places(got: list[int], taken: dict[int, int], seen: int, sinks: int, window: int, case: str) -> None:
    """`taken` maps each row to the token that lies in it."""
    held = min(seen, sinks + window)
    order = sorted(taken.values())
    expect = [order.index(taken[row]) for row in range(held)]
    if got == expect:
        return
    short = f"{case} gives {got}."
    require(
        len(got) == held,
        f"{short} It has {len(got)} entries. The newest token is {seen - 1}, so the number of rows in use is {held}.",
    )
    require(
        got != [taken[row] for row in range(held)],
        f"{short} Those are places in the text. In the cache the newest token stands at {held - 1}, whatever the text.",
    )
    require(
        got != list(range(held)),
        f"{short} Those are the rows themselves. Once the ring has come round, the oldest is not in its first row.",
    )
    require(
        got != [held - 1 - place for place in expect],
        f"{short} The order is reversed: the oldest comes first, the newest last.",
    )
    require(got != order, f"{short} Those are the tokens by place; the place of each row is asked for.")
    inverse = [expect.index(place) for place in range(held)]
    require(
        got != inverse,
        f"{short} That is the row at each place; the place of each row is asked for (the other way round).",
    )
    require(
        got[:sinks] == expect[:sinks],
        f"{short} The sinks stand at the first places, 0 … {sinks - 1}, always.",
    )
    raise Wrong(
        f"{short} Row {next(r for r in range(held) if got[r] != expect[r])} holds the wrong place; expected {expect}."
    )


def _drawn(n: int) -> list[torch.Tensor]:
    """q, k, v [2, heads, n, head_dim] in float64."""
    generator = torch.Generator().manual_seed(4)
    heads = (SMALL.q_heads, SMALL.kv_heads, SMALL.kv_heads)
    return [torch.randn(2, h, n, SMALL.head_dim, generator=generator, dtype=torch.float64) for h in heads]


def _cache(store, read, sinks: int, window: int) -> SinkBuffers:
    class Cache(SinkBuffers):
        def append(self, layer, k, v):
            store(self, layer, self.next_token(layer), k, v)

        def attend(self, layer, q):
            return call(read, self, layer, q.clone())

    return Cache(SMALL, 1_000, sinks, window, batch=2, dtype=torch.float64, backend="reference")


def _store(cache, layer, token, k, v):
    row = _row(token, cache.sinks, cache.window)
    cache.keys[layer, :, :, row], cache.values[layer, :, :, row] = k[:, :, 0], v[:, :, 0]


def _read(cache, layer, q):
    raise Wrong("store() called attend(); it only writes.")


def _check_stored(cache: SinkBuffers, k: torch.Tensor, v: torch.Tensor, token: int) -> None:
    shape = (SMALL.layers, 2, SMALL.kv_heads, cache.rows, SMALL.head_dim)
    require(
        tuple(cache.keys.shape) == shape and tuple(cache.values.shape) == shape,
        "the buffers changed their shape: memory has to stay constant. Write into a row, do not join tensors.",
    )
    row = _row(token, cache.sinks, cache.window)
    for layer in range(SMALL.layers):
        sign = 1 - 2 * layer
        want_k, want_v = sign * k[:, :, token], sign * v[:, :, token]
        got_k, got_v = cache.keys[layer, :, :, row], cache.values[layer, :, :, row]
        where = f"token {token} in layer {layer}"
        require(
            not torch.equal(got_k, -want_k),
            f"{where}: another layer's key lies in its row: write to keys[layer] and values[layer] alone.",
        )
        require(
            not torch.equal(got_k, want_v),
            f"{where}: the value lies among the keys. k goes to cache.keys, v to cache.values.",
        )
        for kind, got, want in (("key", got_k, want_k), ("value", got_v, want_v)):
            if torch.allclose(got, want, rtol=0, atol=1e-12):
                continue
            buffer = (cache.keys if kind == "key" else cache.values)[layer]
            same = [other for other in range(cache.rows) if torch.equal(buffer[:, :, other], want)]
            require(not same, f"{where}: its {kind} lies in row {same[0] if same else ''} and belongs in row {row}.")
            require(got.any(), f"{where}: no {kind} lies in its row {row}. Both are stored, the key and the value.")
            require(
                kind == "value" or not torch.allclose(got.norm(dim=-1), want.norm(dim=-1)),
                f"{where}: its key lies there rotated. Store it as it comes; its place in the cache will still change.",
            )
            require(
                not torch.equal(got[0], want[0]),
                f"{where}: its {kind} is right for the first sequence and not for the second: write the whole batch.",
            )
            require(
                not torch.equal(got[:, 0], want[:, 0]),
                f"{where}: its {kind} is right for the first KV head only: write all heads.",
            )
            raise Wrong(f"{where}: its {kind} does not lie in row {row} as it came: copy it there, and nothing else.")
        for old in range(token):
            there = _row(old, cache.sinks, cache.window)
            lost = not torch.equal(cache.keys[layer, :, :, there], sign * k[:, :, old])
            lost |= not torch.equal(cache.values[layer, :, :, there], sign * v[:, :, old])
            require(
                not lost or (old >= cache.sinks and old <= token - cache.window),
                f"{where}: token {old}, which is still needed, has gone from row {there}: write one row, no other.",
            )


def _check_read(got, q, k, v, sinks: int, window: int) -> None:
    n, rows = q.shape[2], sinks + window
    query, key = torch.arange(n)[:, None], torch.arange(n)[None]
    seen = (key <= query) & ((key < sinks) | (key > query - window))
    last = query.clamp(max=rows - 1)  # place of the newest
    place = torch.where(key < sinks, key, key - (query - last))
    row = torch.where(key < sinks, key, sinks + (key - sinks) % window)
    expect = _dense(q, k, v, seen, last - place)
    full = query >= rows
    slips = {
        "You rotated by places in the text. Inside the cache the newest token stands at the last row's place, and "
        "the window follows the sinks without a gap.": (seen, query - key),
        "The keys stand at their places in the cache and the query at its place in the text; give it the place of the "
        "newest token.": (seen, query - place),
        "The places are those of the rows. The ring has come round: rotate each row by places(…), not by its number.": (
            seen,
            last - row,
        ),
        "You did not rotate the keys.": (seen, last + 0 * key),
        "You did not rotate the query.": (seen, -place),
        "You rotated nothing: all tokens stand at the same place.": (seen, 0 * place),
        "The query stands one place too far: places count from 0, the newest has place held − 1.": (
            seen,
            last + 1 - place,
        ),
        "The query stands at place 0 of a full cache; the newest token is the last.": (
            seen,
            torch.where(full, 0, last) - place,
        ),
        "The sinks are not attended to; read all rows that hold a token.": (
            seen & ((key >= sinks) | ~full),
            last - place,
        ),
        "The query sees row 0 alone: `is_causal` lines up the first query with the first key, and here the only query "
        "is the last token. It sees every row that holds one.": ((key == 0) & (query >= key), 0 * place),
        "The newest token does not see itself.": (seen & ((key < query) | (query == 0)), last - place),
    }
    answers = {message: _dense(q, k, v, *how) for message, how in slips.items()}
    answers["You attended to rows that hold no token yet; only the first min(seen, rows) count."] = _dense(
        q, k, v, seen, last - place, empty=(rows - 1 - last).double()
    )
    answers["You did not scale the scores by head_dim ** -0.5."] = _dense(q, k, v, seen, last - place, scale=1.0)
    group = q.shape[1] // k.shape[1]
    mixed = [x.repeat(1, group, 1, 1) for x in (k, v)]
    answers["Query heads and KV heads are paired wrongly: query heads h·group … share KV head h."] = _dense(
        q, *mixed, seen, last - place
    )
    try:
        close(got, expect, rel=1e-5, absolute=1e-5, slips=answers, name="the attention")
    except Wrong as error:
        off = ((got - expect).abs() > 1e-4).flatten(0, 1).any(-1).any(0)
        first = int(off.nonzero()[0]) if off.any() else 0
        if first >= rows and str(error) not in answers:
            raise Wrong(
                f"right as long as nothing is dropped; wrong from token {first} on, with {sinks} sinks and a window of "
                f"{window}. Look at the places once the ring has come round."
            ) from None
        raise


def _dense(q, k, v, seen, distance, empty=0.0, scale=None):
    """All tokens at once: which keys a query sees, and how many places apart the two stand.

    Keys and queries are complex numbers, and rotation multiplies by exp(i · angle · distance): it shares no code with
    the caches. `empty` rows of zeros are attended to beside them, by each query.
    """
    group, half = q.shape[1] // k.shape[1], q.shape[3] // 2
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    speed = SMALL.rope_theta ** (-torch.arange(0, 2 * half, 2, dtype=torch.float64) / (2 * half))
    turn = torch.polar(torch.ones(1, dtype=torch.float64), distance[..., None].double() * speed)
    pairs = [torch.complex(x[..., :half], x[..., half:]) for x in (q, k)]
    scores = torch.einsum("bhid,bhjd,ijd->bhij", pairs[0], pairs[1].conj(), turn).real
    weights = (scores * ((2 * half) ** -0.5 if scale is None else scale)).masked_fill(~seen, -torch.inf).exp()
    return weights @ v / (weights.sum(-1, keepdim=True) + empty)
