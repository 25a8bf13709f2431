"""Checks of unit 02, "The cache that grows": bytes from real tensors, times from published measurements."""

from __future__ import annotations

import math
import types

import torch

from helpers import data
from helpers.check import Wrong, call, entries, exercise, number, part, require
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.geometry import Geometry, catalogue, get

SIX = ("Llama-2-7b-hf", "Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-4B", "Mixtral-8x7B-v0.1", "SmolLM2-135M")
WITHIN = 0.05  # how near a published measurement a model of bytes has to come


@exercise("02.1")
def kv_bytes_of_six_models(kv_bytes_of, *, models=SIX):
    entries("kv_bytes_of", kv_bytes_of, models)
    for name in models:
        g = get(name)
        expect = kv_bytes(g, tokens=1, dtype=torch.bfloat16)
        with part():
            number(kv_bytes_of[name], expect, unit="bytes", rel=1e-6, slips=_kv_slips(g, expect), name=name)
    wide = get(models[3])
    return (
        f"In two models the obvious formula goes wrong: {models[3]}'s head_dim is a number of its own (hidden ÷ query "
        f"heads would be {wide.hidden // wide.q_heads}), and Mixtral's experts replace the MLP, so that attention and "
        "its cache are there once."
    )


@exercise("02.2")
def tokens_where_cache_equals_weights(tokens_where_equal, *, pair=SIX[:2]):
    entries("tokens_where_equal", tokens_where_equal, pair)
    equal = {}
    for name in pair:
        g = get(name)
        weights, per_token = weight_bytes(g, torch.bfloat16), kv_bytes(g, tokens=1)
        embedding = g.vocab * g.hidden * 2
        equal[name] = expect = weights / per_token
        slips = {
            "You counted the input embedding. A step reads one row of it, not the table: leave it out.": (
                weights + embedding
            )
            / per_token,
            "You forgot V (a token leaves a key and a value), or counted 4 bytes a parameter.": 2 * expect,
            "You divided parameters, not bytes: in bfloat16 a parameter is 2 bytes.": expect / 2,
            "You divided bytes by elements, or counted float32 weights: both sides are in bfloat16.": 4 * expect,
            "You counted one layer's cache; a token leaves keys and values in every layer.": expect * g.layers,
        }
        if g.group_size > 1:
            slips["You counted query heads; only the KV heads are kept."] = expect / g.group_size
            del slips["You divided bytes by elements, or counted float32 weights: both sides are in bfloat16."]
        number(tokens_where_equal[name], expect, unit="tokens", rel=0.01, slips=slips, name=name)
    (old, many), (new, few) = ((f"{equal[name] / 1e3:.0f} thousand tokens", get(name).kv_heads) for name in pair)
    return (
        f"{pair[0]} gets there at {old}, {pair[1]}, with {few} KV heads in place of {many}, at {new}. Four sequences "
        "side by side share the weights and bring four caches: they get there four times sooner."
    )


@exercise("02.3")
def largest_batch(largest_batch, *, model="Llama-3.1-8B", gpu="L4", length=4_096):
    g, gb = get(model), data.device(gpu)["capacity_GB"]
    capacity = 1e9 * gb
    read = weight_bytes(g, torch.bfloat16)
    resident = read + g.vocab * g.hidden * 2
    sequence = kv_bytes(g, tokens=length)
    exact = (capacity - resident) / sequence
    fits = int(exact)
    number(
        largest_batch,
        fits,
        unit="sequences",
        rel=0,
        slips={
            "You left the input embedding out. A step does not read it, but it takes up memory.": int(
                (capacity - read) / sequence
            ),
            "You rounded up: the last sequence does not fit whole.": fits + 1,
            "Sequences come whole: round down.": exact,
            f"You used {gb} GiB: here 1 GB is 1e9 bytes.": int((gb * 2**30 - resident) / sequence),
            "You forgot the weights: they are in the same memory.": int(capacity / sequence),
            "You forgot V (a token leaves a key and a value), or took 1 byte for a bfloat16 parameter.": [
                int((capacity - resident) / (sequence / 2)),
                int((capacity - resident / 2) / sequence),
            ],
            "You took 4 bytes a cached element; bfloat16 has 2.": int((capacity - resident) / (2 * sequence)),
            f"You counted query heads; only the {g.kv_heads} KV heads are kept.": int(
                (capacity - resident) / (sequence * g.group_size)
            ),
            f"That is the number of tokens that fit; a sequence has {length:,} of them.": [
                fits * length,
                int(exact * length),
            ],
        },
    )
    return (
        f"{fits} sequences. The weights are there once, each sequence brings a cache of {sequence / 1e9:.2f} GB: the "
        "batch is what memory leaves. Half the bytes a token would be room for about twice as many."
    )


@exercise("02.4")
def kv_bytes_per_token(function):
    shape = types.SimpleNamespace(layers=3, hidden=120, q_heads=12, kv_heads=4, head_dim=16, intermediate=256)
    known = Geometry(name="a small model", vocab=512, **vars(shape))
    case = "your count for 3 layers, hidden 120, 12 query heads, 4 KV heads, head_dim 16"
    expect = kv_bytes(known, tokens=1, dtype=torch.bfloat16)
    number(call(function, known, 2), expect, unit="bytes", rel=1e-9, slips=_kv_slips(known, expect), name=case)
    for dtype, size in ((torch.float32, 4), (torch.int8, 1)):
        expect = kv_bytes(known, tokens=1, dtype=dtype)
        slips = {"You ignored bytes_per_element and assumed 2.": expect * 2 / size}
        name = f"{case}, with bytes_per_element={size}"
        number(call(function, known, size), expect, unit="bytes", rel=1e-9, slips=slips, name=name)
    half = kv_bytes(known, tokens=1, dtype=torch.int8) / 2
    name = f"{case}, with bytes_per_element=0.5"
    slips = {"You rounded the half byte of int4 away: do not use int() or //.": [0, 2 * half]}
    number(call(function, known, 0.5), half, unit="bytes", rel=1e-9, slips=slips, name=name)
    default = kv_bytes(known, tokens=1, dtype=torch.bfloat16)
    number(call(function, known), default, rel=1e-9, name=f"{case}, bytes_per_element left out")
    dense = {name: g for name, g in catalogue().items() if not g.mla}
    for name, g in dense.items():
        expect = kv_bytes(g, tokens=1, dtype=torch.bfloat16)
        number(call(function, g, 2), expect, unit="bytes", rel=1e-9, slips=_kv_slips(g, expect), name=name)
    return f"right for all {len(dense)} models of the catalogue"


@exercise("02.5")
def tpot_seconds(function):
    case = "a step with weights of 10e9 B, 1e5 B a token, 20,000 tokens, batch 3, 1e12 B/s"
    number(
        call(function, 10e9, 1e5, 20_000, 3, 1e12),
        0.016,
        unit="s",
        rel=1e-6,
        name=case,
        slips={
            "You forgot the batch: each of the 3 sequences has a cache of its own.": 0.012,
            "You multiplied the weights by the batch too: they are read once for all sequences.": 0.036,
            "You left the cache out.": 0.010,
            "You left the weights out.": 0.006,
            "That is milliseconds: the answer is in seconds.": 16.0,
            "You divided by the batch: every sequence waits for the whole step.": [0.016 / 3, 0.012 / 3],
            "You counted one token of cache; a step reads all of the context.": [0.0100003, 0.0100001],
            "You multiplied by the bandwidth: seconds are bytes divided by bytes per second.": 1.6e22,
            "That is bytes: divide by the bandwidth.": 16e9,
            "You divided the cache by the bandwidth and not the weights: is a pair of brackets missing?": 10e9 + 0.006,
            "You divided the weights by the bandwidth and not the cache: is a pair of brackets missing?": 6e9 + 0.01,
            "You added a token to the context: `context` is what lies in the cache and is read.": 0.0160003,
        },
    )
    number(
        call(function, 10e9, 1e5, 20_000, 3, 1e12, 0.002),
        0.018,
        unit="s",
        rel=1e-6,
        name=f"{case}, overhead 0.002 s",
        slips={
            "You left the overhead out, or divided it by the bandwidth: it is in seconds already.": 0.016,
            "You counted the overhead once for each sequence: a step pays it once.": 0.022,
            "You subtracted the overhead.": 0.014,
            "You took the larger of the two: the overhead comes on top.": [0.016],
        },
    )
    number(call(function, 10e9, 1e5, 0, 3, 1e12), 0.010, unit="s", rel=1e-6, name=f"{case}, context 0")
    named = call(function, weight_bytes=2e9, kv_bytes_per_token=1e4, context=10, batch=1, bandwidth=1e9, overhead=0)
    number(named, 2.0001, unit="s", rel=1e-6, name="called with arguments by name")  # float32 is good enough
    return "; ".join([*_against_vllm_on_l4(function), *_against_gpt_fast(function)])


@exercise("02.6")
def fit_line(function):
    exact = _pair(call(function, [0, 100, 200], [0.01, 0.02, 0.03]), "slope", "intercept")
    require(
        abs(exact[0] - 0.01) > 1e-9 or abs(exact[1] - 1e-4) > 1e-9,
        "You returned (intercept, slope): the slope comes first.",
    )
    slips = {"np.cov divides by n − 1 and np.var by n: divide the sums themselves.": 1.5e-4}
    number(exact[0], 1e-4, unit="s/token", rel=1e-6, slips=slips, name="the slope of the example")
    slips = {"The sign: the line meets x = 0 at ȳ − slope · x̄.": 0.03}
    number(exact[1], 0.01, unit="s", rel=1e-6, slips=slips, name="the intercept of the example")
    x, y = [1_000, 2_000, 4_000, 9_000], [0.011, 0.013, 0.014, 0.021]
    slope, intercept = _pair(call(function, x, y), "slope", "intercept")
    where = f"for contexts {x} and seconds {y}"
    number(
        slope,
        1.2105263e-6,
        unit="s/token",
        rel=1e-4,
        name=f"the slope {where}",
        slips={
            "That is the line through the first and the last point; least squares uses them all.": 1.25e-6,
            "That is the line through the origin: a step with an empty cache is not free.": 2.764706e-6,
            "You divided by Σ(y − ȳ)², and so fitted the context to the time.": [1.2336957e-6, 8.105727e5],
            "That is the mean of the slopes between neighbours; least squares weighs them.": 1.3e-6,
        },
    )
    slips = {
        "That is the mean time; the line meets x = 0 at ȳ − slope · x̄.": 0.01475,
        "That is the first measured time; the line meets x = 0 at ȳ − slope · x̄.": 0.011,
    }
    number(intercept, 0.009907895, unit="s", rel=1e-4, name=f"the intercept {where}", slips=slips)
    contexts, seconds = _vllm_on_l4()
    slope, _ = _pair(call(function, contexts, seconds), "slope", "intercept")
    number(slope, 5.58308e-7, unit="s/token", rel=1e-4, name="the slope of Qwen3-4B on an L4")
    return f"on vLLM's L4 figures: {1e9 * slope:.0f} ns a token"


@exercise("02.7")
def bandwidth_and_overhead(function):
    labels = ("bandwidth", "overhead")
    bandwidth, overhead = _pair(call(function, 3e-7, 0.012, 10e9, 1e5, 3), *labels)
    case = "slope 3e-7 s, intercept 0.012 s, weights 10e9 B, 1e5 B a token, batch 3"
    number(
        bandwidth,
        1e12,
        unit="B/s",
        rel=1e-6,
        name=f"the bandwidth, {case}",
        slips={
            "You forgot the batch: one token more in each of 3 sequences is three rows to read.": 1e12 / 3,
            "You divided by the batch; one token more in each sequence is batch rows to read.": 1e12 / 9,
            "Upside down: bandwidth is bytes per token divided by seconds per token.": [3e-12, 1e-12, 9e-12],
            "You read the intercept. It holds the overhead too; the slope holds nothing but reads.": 10e9 / 0.012,
            "You returned (overhead, bandwidth): the bandwidth comes first.": 0.002,
        },
    )
    number(
        overhead,
        0.002,
        unit="s",
        rel=1e-6,
        name=f"the overhead, {case}",
        slips={
            "That is the whole intercept: take off the time of the weights.": 0.012,
            "That is the time of the weights: the overhead is what is left of the intercept.": 0.010,
            "Turned round: intercept minus the time of the weights.": -0.002,
            "You divided the weights by the batch: they are read once, whole.": 0.012 - 0.010 / 3,
            "You multiplied the weights by the batch, or forgot it in the bandwidth: they are read once for all "
            "sequences, at the bandwidth above.": 0.012 - 0.030,
        },
    )
    said = []
    for gpu, sheet in (("H100", "H100 SXM"), ("B200", "B200 SXM")):
        line = _published_line(gpu)
        weights = weight_bytes(get("Llama-3.1-8B"), torch.bfloat16)
        per_token = kv_bytes(get("Llama-3.1-8B"), tokens=1)
        read, left = _pair(call(function, line["slope"] / 1e3, line["intercept"] / 1e3, weights, per_token), *labels)
        nameplate = 1e9 * data.device(sheet)["bandwidth_GBps"]
        require(
            abs(read / nameplate - 1) < 0.12,
            f"vLLM's line of Llama-3.1-8B on an {gpu} gives {read / 1e12:.2f} TB/s with your function, too "
            f"far from the data sheet's {nameplate / 1e12:.2f}. Check it with batch left out.",
        )
        said.append(f"{gpu} {read / 1e12:.2f} TB/s ({100 * read / nameplate:.0f} % of the data sheet)")
        require(0 < left < line["intercept"] / 1e3, f"the overhead on an {gpu} has to be part of the intercept.")
    return "; ".join(said)


@exercise("02.8")
def the_incident(incident):
    weights = weight_bytes(get("Llama-3.1-70B"), torch.bfloat16)
    real = get("Llama-3.1-70B")
    kinds = {"MHA": kv_bytes(real.replace(kv_heads=real.q_heads), 1), "GQA-8": kv_bytes(real, 1)}
    entries(
        "incident",
        incident,
        [f"factor at batch 1, {k}" for k in kinds] + [f"batch for 3 times, {k}" for k in kinds],
    )
    factors = {}
    for kind, per_token in kinds.items():
        short, long = weights + 1_000 * per_token, weights + 30_000 * per_token
        factors[kind] = factor = long / short
        name = f"factor at batch 1, {kind}"
        slips = {
            "That is the growth of the cache alone; the weights are read at both lengths.": 30,
            "That is the factor that was reported; compute the one that the bytes give.": 3,
            "Upside down: TPOT at 30,000 divided by TPOT at 1,000.": 1 / factor,
            "That is the growth, without the 1 it starts from.": factor - 1,
            "That is per cent of growth; a factor is asked for.": 100 * (factor - 1),
            "That is milliseconds of a step that starts at 40; a factor is asked for.": 40 * factor,
            "The step at 1,000 tokens reads 1,000 tokens of cache as well as the weights.": long / weights,
        }
        # What counts is how much is added to 1: rounding to two decimals may pass, a growth that is off may not.
        near = min(0.01 * factor, 0.03 * (factor - 1))
        with part():
            number(incident[name], factor, rel=0, absolute=near, slips=slips, name=name)
    batches = {}
    for kind, per_token in kinds.items():
        batches[kind] = expect = 2 * weights / (27_000 * per_token)
        name = f"batch for 3 times, {kind}"
        slips = {
            "You made the cache at 30,000 tokens three times the weights. TPOT at 1,000 holds weights too: "
            "solve W + 30,000·B·kv = 3·(W + 1,000·B·kv).": 3 * weights / (30_000 * per_token),
            "You left the cache at 1,000 tokens out of the start. Three times the start is 3·(W + 1,000·B·kv).": 2
            * weights
            / (30_000 * per_token),
            "The start is tripled whole, its cache too: the unknown stands at 30,000 − 3·1,000.": 2
            * weights
            / (29_000 * per_token),
            "You made cache and weights equal at 30,000 tokens; that doubles TPOT at most.": weights
            / (30_000 * per_token),
        }
        with part():
            number(incident[name], expect, unit="sequences", rel=0.02, slips=slips, name=name)
    mha, gqa = (f"{40 * factors[kind]:.0f} ms" for kind in kinds)
    return (
        f"For one user the claim is false: 40 ms become {mha} with MHA and {gqa} with the real model. It comes true "
        f"near batch {batches['MHA']:.0f} (MHA) or batch {batches['GQA-8']:.0f} (GQA-8)."
    )


@exercise("02.9")
def what_machine_that_takes(machine):
    model, sheet = get("Llama-3.1-70B"), data.device("H100 SXM")
    entries("machine", machine, ["read rate", "H100s to hold it"])
    weights, caches = weight_bytes(model, torch.bfloat16), kv_bytes(model, tokens=30_000, batch=31)
    resident = weights + model.vocab * model.hidden * 2 + caches
    rate = (weights + caches) / 0.120 / 1e12
    number(
        machine["read rate"],
        rate,
        unit="TB/s",
        rel=0.01,
        name="read rate",
        slips={
            "You read one cache; a step reads all 31.": (weights + caches / 31) / 0.120 / 1e12,
            "You rounded the sessions up; down makes 31.": (weights + caches / 31 * 32) / 0.120 / 1e12,
            "You left the weights out: a step reads them too.": caches / 0.120 / 1e12,
            "You left the caches out.": weights / 0.120 / 1e12,
            "You multiplied the weights by 31 too: one step reads them once for all.": (31 * weights + caches)
            / 0.120
            / 1e12,
            "You divided by 40 ms; at 30,000 tokens a step takes 120.": (weights + caches) / 0.040 / 1e12,
            "That is GB/s: give TB/s, 1e12 bytes.": 1e3 * rate,
            "That is bytes per second: give TB/s, 1e12 bytes.": 1e12 * rate,
        },
    )
    exact = resident / (1e9 * sheet["capacity_GB"])
    count = math.ceil(exact)
    number(
        machine["H100s to hold it"],
        count,
        unit="GPUs",
        rel=0,
        absolute=1e-6,
        name="H100s to hold it",
        slips={
            "GPUs come whole, and all of it has to fit: round up.": [exact, count - 1],
            "You left the caches out: weights alone fit that many.": math.ceil((resident - caches) / 80e9),
            "You left the weights out.": math.ceil(caches / 80e9),
            "You gave each session weights of its own; all share them.": math.ceil(
                (31 * (resident - caches) + caches) / 80e9
            ),
        },
    )
    bandwidth = sheet["bandwidth_GBps"] / 1e3
    return (
        f"{rate:.1f} TB/s from {resident / 1e9:.0f} GB. One H100 reads {bandwidth:.2f} TB/s by its data sheet, and "
        f"holds 80 GB: on H100s it takes several. Eight of them read {8 * bandwidth:.1f} TB/s, so on those "
        f"the bytes account for {1e3 * (weights + caches) / (8e12 * bandwidth):.0f} of the 120 ms."
    )


def _kv_slips(g: Geometry, expect: float) -> dict[str, float]:
    """What the usual slips make of the bytes per token of `g`; a slip that changes nothing is left out."""
    narrow = g.hidden / g.q_heads / g.head_dim
    experts = g.moe.experts if g.moe else 1
    slips = {
        "You forgot V (a token leaves a key and a value), or counted elements of 2 bytes as one byte.": expect / 2,
        "You counted query heads; only the KV heads are kept.": expect * g.group_size,
        "You took head_dim to be hidden / query heads; in this model it is a number of its own.": expect * narrow,
        "You multiplied by the experts. They replace the MLP; attention and its cache are there once.": expect
        * experts,
        "You counted one layer; every layer keeps keys and values.": expect / g.layers,
        "You used the hidden size; what is kept is KV heads × head_dim wide.": expect
        * g.hidden
        / (g.kv_heads * g.head_dim),
        "You forgot V and counted elements: each has 2 bytes.": expect / 4,
        "That is bits: a byte has 8.": expect * 8,
    }
    unlike = {}
    for message, value in slips.items():
        if abs(value / expect - 1) > 1e-9 and value not in unlike.values():
            unlike[message] = value
    return unlike


def _pair(value, first: str, second: str) -> tuple[float, float]:
    try:
        one, two = value
        return float(one), float(two)
    except (TypeError, ValueError):
        raise Wrong(f"return two numbers, ({first}, {second}); you returned {value!r}.") from None


def _vllm_on_l4() -> tuple[list[int], list[float]]:
    rows = [row for row in data.measurement("vllm-l4-fp8")["data"] if "ctx" in row]
    return [row["ctx"] for row in rows], [1 / row["bf16"] for row in rows]


def _against_vllm_on_l4(function) -> list[str]:
    g = get("Qwen3-4B")
    weights, per_token = weight_bytes(g, torch.bfloat16), kv_bytes(g, tokens=1)
    gaps = []
    for context, seconds in zip(*_vllm_on_l4(), strict=True):
        predicted = number(call(function, weights, per_token, context, 1, 247e9), seconds, rel=1)
        gaps.append(predicted / seconds - 1)
        require(
            abs(gaps[-1]) < WITHIN,
            f"Qwen3-4B on an L4 at {context} tokens: you predict {1e3 * predicted:.1f} ms, vLLM measured "
            f"{1e3 * seconds:.1f}.",
        )
    return [f"vLLM on L4, 4 contexts: within {100 * max(map(abs, gaps)):.1f} %"]


def _against_gpt_fast(function) -> list[str]:
    """Seconds at each row's own rate in bytes a second; a step reads the weights and a cache of 208 slots."""
    models = {"Llama-2-7B": "Llama-2-7b-hf", "Llama-2-70B": "Llama-2-70b-hf"}
    gaps = []
    for row in data.measurement("gptfast-a100")["data"]:
        if row["prec"] not in ("bf16", "int8"):
            continue
        g = get(models.get(row["model"], row["model"]))
        weights = weight_bytes(g, torch.bfloat16 if row["prec"] == "bf16" else torch.int8)
        predicted = call(function, weights, kv_bytes(g, tokens=1), 208, 1, 1e9 * row["GBps"])
        gaps.append(float(predicted) * row["tok_s"] - 1)
        require(
            abs(gaps[-1]) < WITHIN,
            f"{row['model']} in {row['prec']} on an A100: you predict {1e3 * float(predicted):.1f} ms, "
            f"gpt-fast measured {1e3 / row['tok_s']:.1f}.",
        )
    return [f"gpt-fast, {len(gaps)} rows: within {100 * max(map(abs, gaps)):.1f} %"]


def _published_line(gpu: str) -> dict:
    rows = data.measurement("vllm-h100-b200-fit")["data"]
    return next(r for r in rows if (r["gpu"], r["model"], r["kv"]) == (gpu, "Llama-3.1-8B", "bf16"))
