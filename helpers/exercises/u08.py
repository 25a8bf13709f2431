"""Checks of unit 08, "The incident": a machine from two numbers, six causes on unseen traces, a plan under limits."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from types import SimpleNamespace

import numpy as np

from helpers import data
from helpers.check import Wrong, call, choice, close, entries, exercise, number, require, seed
from helpers.models.counts import kv_bytes, resident_bytes, weight_bytes
from helpers.models.geometry import get
from helpers.serving import plan as fixes
from helpers.serving import symptoms
from helpers.serving.incident import CAUSES
from helpers.serving.plan import Lever, Service

MODEL = "Llama-3.1-70B"
SLOPE, INTERCEPT = 80e-3 / 29_000, 40e-3 - 1_000 * 80e-3 / 29_000  # s per token, s: the report's two points
LEAST_SHARE = 0.9  # of unseen traces that a diagnosis has to get right


@exercise("08.1")
def the_line(line):
    entries("line", line, ["slope", "intercept"])
    number(
        line["slope"],
        1e6 * SLOPE,
        unit="µs per token",
        rel=0.01,
        name="slope",
        slips={
            "You divided by 30,000: between the two points lie 29,000 tokens.": 80e3 / 30_000,
            "That is TPOT at 30,000 tokens per token: the slope is what 29,000 more tokens add.": 120e3 / 30_000,
            "That is milliseconds per token: give microseconds.": 1e3 * SLOPE,
            "That is seconds per token: give microseconds.": SLOPE,
            "Upside down: tokens per millisecond. The slope is time per token.": 29_000 / 80,
        },
    )
    number(
        line["intercept"],
        1e3 * INTERCEPT,
        unit="ms",
        rel=0.01,
        name="intercept",
        slips={
            "That is TPOT at 1,000 tokens: a step with no history is shorter by what those 1,000 cost.": 40,
            "You added the 1,000 tokens' share; take it off.": 40 + 1e6 * SLOPE,
            "That is seconds: give milliseconds.": INTERCEPT,
            "You took off the 30,000 tokens' share from the first point.": 40 - 30e6 * SLOPE,
        },
    )
    return (
        f"{1e6 * SLOPE:.2f} µs for each token more, and {1e3 * INTERCEPT:.1f} ms that are there without any history. "
        "Whatever is to blame has to explain both."
    )


@exercise("08.2")
def from_line_to_machine(function):
    cases = {
        "slope 1e-6, intercept 0.010, weights 20e9, 1e5 bytes a token": ((1e-6, 0.010, 20e9, 1e5), 20.0, 2e12),
        "slope 4e-7, intercept 0.025, weights 50e9, 2.5e5 bytes a token": ((4e-7, 0.025, 50e9, 2.5e5), 3.2, 2e12),
    }
    for case, (given, batch, rate) in cases.items():
        slope, intercept, weights, per_token = given
        found = call(function, *given)
        try:
            got_batch, got_rate = found
        except (TypeError, ValueError):
            raise Wrong(f"return two numbers, (batch, bytes_per_second); you returned {found!r}.") from None
        number(
            got_batch,
            batch,
            unit="sessions",
            rel=1e-6,
            name=f"batch, {case}",
            slips={
                "You returned (bytes_per_second, batch): the batch comes first.": rate,
                "Upside down: sessions are the bytes that all bring, over the bytes that one brings.": 1 / batch,
                "That is bytes per token of the whole batch: divide by what one session brings.": batch * per_token,
                "You rounded: leave the fraction, it says how well the guess fits.": [round(batch), int(batch)]
                if round(batch) != batch
                else [],
                "You divided the weights by the bytes of a token; the slope is not in it.": weights / per_token,
            },
        )
        number(
            got_rate,
            rate,
            unit="B/s",
            rel=1e-6,
            name=f"bytes per second, {case}",
            slips={
                "Upside down: bytes divided by seconds.": intercept / weights,
                "That is what one session's cache would be read at: all sessions read theirs.": per_token / slope,
                "That is GB/s: give bytes per second.": rate / 1e9,
            },
        )
    l4 = data.measurement("vllm-l4-fp8")["data"]
    rows = [row for row in l4 if "ctx" in row]
    slope, intercept = np.polyfit([r["ctx"] for r in rows], [1 / r["bf16"] for r in rows], 1)
    real = get("Qwen3-4B")
    batch, rate = call(function, slope, intercept, weight_bytes(real), kv_bytes(real, 1))
    require(
        0.8 < float(batch) < 1.1,
        f"on vLLM's L4 figures (batch 1) your function says batch {float(batch):.2f}: is one of the four left unused?",
    )
    sizes = (327_680, 2_621_440)
    gqa, mha = (float(found) for found, _ in (call(function, SLOPE, INTERCEPT, 139.0e9, size) for size in sizes))
    return (
        f"for the report it gives {gqa:.1f} sessions with 8 KV heads, or {mha:.1f} with MHA, if reading is all that a "
        f"step does. vLLM's L4 sweep, which ran at batch 1, gives {float(batch):.2f} and {float(rate) / 1e9:.0f} GB/s: "
        "lower bounds, since the intercept holds some overhead too."
    )


@exercise("08.3")
def which_machine(machines):
    held = {"bf16": resident_bytes(get(MODEL)), "4.5": resident_bytes(get(MODEL)) * 4.5 / 16}
    read = {"bf16": 139.0e9, "4.5": 39.1e9}
    fleet = {
        "1 × H200": (1, "H200 SXM", "bf16"),
        "4 × A100-80GB": (4, "A100-80GB SXM", "bf16"),
        "8 × H100": (8, "H100 SXM", "bf16"),
        "20 × L4": (20, "L4", "bf16"),
        "4 × DGX Spark": (4, "GB10 (DGX Spark)", "bf16"),
        "1 × H200, weights in 4.5 bits": (1, "H200 SXM", "4.5"),
    }
    entries("machines", machines, fleet)
    said = []
    for name, (gpus, gpu, form) in fleet.items():
        sheet = data.device(gpu)
        rate = read[form] / INTERCEPT
        needed = held[form] + 30_000 * SLOPE * rate
        room, speed = gpus * sheet["capacity_GB"] * 1e9, gpus * sheet["bandwidth_GBps"] * 1e9
        expect = "no room" if needed > room else "too slow" if rate > speed else "possible"
        has = f"{name} has {room / 1e9:,.0f} GB and {speed / 1e12:.2f} TB/s"
        wants = f"{needed / 1e9:,.0f} GB and {rate / 1e12:.2f} TB/s are wanted"
        options = {word: f"{has}; {wants}." for word in ("possible", "no room", "too slow") if word != expect}
        if form == "4.5" and "no room" in options:
            options["no room"] = (
                "Its weights are 28 % of those in 16 bits, and so is the rate; the slope then takes 28 % of the cache "
                "bytes too: infer the batch anew."
            )
        choice(machines[name], expect, options, name=name)
        if expect == "possible":
            said.append(f"{name} would be at {rate / speed:.0%} of its bandwidth")
    return "; ".join(said) + "."


@exercise("08.4")
def what_it_is_not(refuted):
    names = ["arithmetic at 30,000", "growth with half the weights"]
    entries("refuted", refuted, names)
    weights, history, peak = 2 * 69.5e9, 4 * 80 * 64 * 128 * 30_000, 8 * 989.5e12
    expect = 1e3 * 31 * (weights + history) / peak
    number(
        refuted[names[0]],
        expect,
        unit="ms",
        rel=0.01,
        name=names[0],
        slips={
            "You counted one session; the step serves 31.": expect / 31,
            "You left the history out.": 1e3 * 31 * weights / peak,
            "You left the weights out.": 1e3 * 31 * history / peak,
            "You used one GPU of the eight.": 8 * expect,
            "That is seconds: give milliseconds.": expect / 1e3,
            "A multiplication and an addition are two FLOPs a weight.": 1e3 * 31 * (weights / 2 + history) / peak,
        },
    )
    number(
        refuted[names[1]],
        80.0,
        unit="ms",
        rel=0.01,
        name=names[1],
        slips={
            "You halved the growth; the weights are in the intercept, and the slope is cache.": 40,
            "That is TPOT at 30,000 tokens with half the weights; its growth is asked for.": 120 - 500 * INTERCEPT,
            "That is the new intercept; the growth from 1,000 to 30,000 tokens is asked for.": 500 * INTERCEPT,
            "That is TPOT at 30,000; the growth is what lies between the two points.": 120,
        },
    )
    return (
        f"{expect:.2g} ms of arithmetic in a step of 120, and weights of half the size would leave the climb of 80 ms "
        "as it is: two suspects less."
    )


@exercise("08.5")
def decoding_alone(function):
    tpot, ttft, answer = [50.0, 31.0, 27.5], [1_000.0, 600.0, 128.0], [100, 50, 256]
    close(
        call(function, tpot, ttft, answer),
        [40.0, 19.0, 27.0],
        rel=1e-6,
        name="the result for tpot_ms [50, 31, 27.5], ttft_ms [1000, 600, 128], answer_tokens [100, 50, 256]",
        slips={
            "You took all of TTFT off every token; it is waited for once an answer.": [-950.0, -569.0, -100.5],
            "You returned what TTFT adds; decoding is the rest.": [10.0, 12.0, 0.5],
            "You added TTFT once more; it is in there already.": [60.0, 43.0, 28.0],
            "You divided by one token too few or too many: here all tokens count, as on the dashboard.": [
                t - f / (n - 1) for t, f, n in zip(tpot, ttft, answer, strict=True)
            ],
            "You divided by the tokens behind the first, as unit 01 does: here all count, as on the dashboard.": [
                (t * n - f) / (n - 1) for t, f, n in zip(tpot, ttft, answer, strict=True)
            ],
            "That is the time of the whole answer: divide by its tokens.": [4_000.0, 950.0, 6_912.0],
        },
    )
    where = "the result for tpot_ms [44, 36], ttft_ms [800, 300], answer_tokens [50, 25]"
    close(call(function, [44.0, 36.0], [800.0, 300.0], [50, 25]), [28.0, 24.0], rel=1e-6, name=where)
    return (
        "TTFT was 10, 12 and 0.5 ms of each token: the shorter the answers, the more a slow prefill looks like slow "
        "decoding."
    )


@exercise("08.6")
def six_causes(function):
    hints = {
        "the cache grows": "Does the fitted rate use cache_gb, with the weights of each row?",
        "the batch grows": "Does the context move in that table?",
        "prefix misses": "Take TTFT out before anything else, and see whether the growth is still there.",
        "the context is not split": "A rate far below the data sheet, whichever bytes you count, is this one.",
        "windows are not used": "Compare the rate from cache_gb with the rate from cache_gb_all.",
        "a fixed cost per step": "Does decoding grow at all? Bytes may grow and the time not.",
    }
    mistaken = {
        "the batch grows": "There the context moves as well: a batch that only wavers is not the cause.",
        "prefix misses": "Take TTFT out and look again: a hit rate may fall and do no harm.",
    }
    first = seed(900)
    traces = [symptoms.generate(first + i, CAUSES[i % len(CAUSES)]) for i in range(57)] + symptoms.published()
    random.Random(first).shuffle(traces)  # or the cause would follow from how many came before
    right, confused = 0, Counter()
    for trace in traces:
        said = call(function, trace.table())
        require(
            isinstance(said, str),
            f"diagnose has to return one of the six causes as text; it returned {type(said).__name__}.",
        )
        said = said.strip().lower()
        require(said in CAUSES, f"{said!r} is none of the six causes: {', '.join(map(repr, CAUSES))}.")
        right += said == trace.cause
        confused[trace.cause, said] += said != trace.cause
    needed = round(LEAST_SHARE * len(traces))
    if right < needed:
        (true, said), times = confused.most_common(1)[0]
        raise Wrong(
            f"{right} of {len(traces)} traces are right; {needed} are asked for. Most often ({times} times) {true!r} "
            f"is taken for {said!r}. {mistaken.get(said, hints[true])}"
        )
    return f"{right} of {len(traces)} unseen traces, three of them published"


@exercise("08.7")
def stacked(function):
    service, levers, _ = fixes.scenario()
    by_name = {lever.name: lever for lever in levers}
    bare = SimpleNamespace(**dataclasses.asdict(service))  # its numbers, without the method that answers the exercise
    number(call(function, bare, []), 1e3 * service.tpot_seconds(), unit="ms", rel=1e-3, name="no levers", slips={
        "You left the batch out: each session has a cache of its own.": 1e3
        * (service.weight_bytes + service.kv_bytes_per_token * service.context)
        / service.bytes_per_second,
        "That is seconds: give milliseconds.": service.tpot_seconds(),
    })  # fmt: skip
    cases = [
        ["fp8 cache"],
        ["weights in 4.5 bits"],
        ["compaction at 16,000"],
        ["system prompt of 4,000 read once"],
        ["prefix caching", "kernels fused"],
        ["fp8 cache", "int4 cache, keys per channel"],
        ["a window of 4,096 behind the system prompt", "compaction at 16,000"],
        ["system prompt of 4,000 read once", "a window of 4,096 behind the system prompt"],
        [lever.name for lever in levers],
    ]
    for names in cases:
        chosen = [by_name[name] for name in names]
        expect = 1e3 * service.tpot_seconds(chosen)
        number(
            call(function, bare, chosen),
            expect,
            unit="ms",
            rel=1e-3,
            name=" + ".join(names) if len(names) < len(levers) else "all eight",
            slips=_stacking_slips(service, chosen, expect),
        )
    chosen = [by_name[name] for name in ("fp8 cache", "system prompt of 4,000 read once")]
    other = Service(50e9, 131_072, batch=12, context=20_000, bytes_per_second=3e12)
    fixed = [dataclasses.replace(other, **{field: value}) for field, value in dataclasses.asdict(service).items()]
    slips = {
        "A number of this unit's service stands in your function: take all five from `service`.": [
            1e3 * some.tpot_seconds(chosen) for some in (service, *fixed)
        ]
    }
    number(
        call(function, SimpleNamespace(**dataclasses.asdict(other)), chosen),
        1e3 * other.tpot_seconds(chosen),
        unit="ms",
        rel=1e-3,
        name="another service (50 GB of weights, 131,072 bytes a token, batch 12, 20,000 tokens, 3e12 B/s)",
        slips=slips,
    )
    return f"all eight at once: {1e3 * service.tpot_seconds(levers):.1f} ms, of which the weights are most"


@exercise("08.8")
def the_plan(plan):
    service, levers, limits = fixes.scenario()
    by_name = {lever.name: lever for lever in levers}
    names = [name for name in plan] if isinstance(plan, (list, tuple)) else None
    require(names is not None and len(names) == 4, "plan has to be a list of four names of levers.")
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise Wrong(f"{unknown[0]!r} is no lever of the table: copy its name as it stands there.")
    require(len(set(names)) == 4, "A lever can be shipped once: four different names are asked for.")
    chosen = [by_name[name] for name in names]
    broken = limits.broken_by(chosen)
    require(not broken, f"This plan breaks a limit: {broken}.")
    lowest, winners = fixes.best(service, levers, limits)
    if set(names) not in winners:
        taken = 1e3 * service.tpot_seconds(chosen)
        idle = [x.name for x in chosen if service.tpot_seconds([x]) == service.tpot_seconds()]
        three = {service.tpot_seconds(some) for some in itertools.combinations(chosen, 3)}
        why = ""
        if idle:
            why = f" {idle[0]!r} leaves the bytes of a decode step as they are."
        elif service.tpot_seconds(chosen) in three:
            why = " Two of these pull on the same factor."
        raise Wrong(f"This plan keeps the limits and reaches {taken:.1f} ms; another one is faster.{why}")
    return (
        f"{1e3 * service.tpot_seconds():.0f} → {1e3 * lowest:.0f} ms, and no other four within the limits do better. "
        "They leave the wait before a turn long: the one lever that removes it takes nothing off TPOT, which the "
        "report was about."
    )


def _stacking_slips(service: Service, chosen: list[Lever], expect: float) -> dict[str, float]:
    """What TPOT would be with the usual mistakes, where they differ from the truth."""

    def ms(weights=1.0, cache=1.0, tokens=service.batch * service.context):
        size = service.weight_bytes * weights + service.kv_bytes_per_token * cache * tokens
        return 1e3 * size / service.bytes_per_second

    weights, cache = (np.prod([getattr(lever, name) for lever in chosen]) for name in ("weights", "cache"))
    kept = [lever.keep for lever in chosen if lever.keep is not None]
    held = min([service.context, *kept])
    shared = min(held, max([0, *(lever.shared for lever in chosen)]))
    tokens = service.batch * (held - shared) + shared
    least = min([1.0, *(lever.cache for lever in chosen)])
    slips = {
        "You multiplied two formats of one cache: it has one, the smaller.": ms(weights, cache, tokens),
        "You forgot to read the shared tokens once.": ms(weights, least, service.batch * (held - shared)),
        "The shared tokens are still read by every session in your count.": ms(weights, least, service.batch * held),
        "You multiplied what the levers leave of the whole step: each shrinks only its own part.": 1e3
        * service.tpot_seconds()
        * float(np.prod([service.tpot_seconds([lever]) / service.tpot_seconds() for lever in chosen])),
        "You subtracted each lever's own saving: they share a step.": 1e3
        * (service.tpot_seconds() - sum(service.tpot_seconds() - service.tpot_seconds([lever]) for lever in chosen)),
        "You shrank the weights by the cache's factor too.": ms(weights * cache, least, tokens),
        "The lever changes nothing in your count.": ms(),
    }
    if len(kept) > 1:
        slips["Of two lengths the longer one was kept: the history is as long as the shortest."] = ms(
            weights, least, service.batch * (max(kept) - shared) + shared
        )
    return {words: value for words, value in slips.items() if abs(value / expect - 1) > 2e-3}
