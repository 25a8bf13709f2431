"""Bring your own incident: from measured decode times to a cause, the evidence for it, and what would help.

    from helpers.models import hf_config
    from helpers.serving import benchmarks, incident

    model = incident.Model(hf_config.read("config.json"), weights="bf16", cache="bf16")
    print(incident.diagnose(benchmarks.read("table.csv"), model, bandwidth=8 * 3.35e12))

It fits   TPOT = intercept + slope · (tokens of history of the whole batch)   and compares both with the bytes that the
model has to stream. It says so where the data cannot tell.
"""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import gguf
import numpy as np
import torch

from helpers.models import counts
from helpers.models.geometry import Geometry
from helpers.serving.benchmarks import Point

CACHE_GROWS = "the cache grows"
BATCH_GROWS = "the batch grows"
PREFIX_MISSES = "prefix misses"
UNSPLIT = "the context is not split"
WINDOWS_IGNORED = "windows are not used"
LAUNCHES = "a fixed cost per step"
CAUSES = (CACHE_GROWS, BATCH_GROWS, PREFIX_MISSES, UNSPLIT, WINDOWS_IGNORED, LAUNCHES)

# A difference smaller than this tells nothing: repeated runs of one server differ by as much.
NOISE = 0.10
SAME = 1.3  # contexts, or batches, within this ratio of each other count as one
FASTER = 1.15  # times the data sheet: what is read faster than this was not read, or not in these formats
STEEP = 2.5  # times the slope that bytes allow, from which on a kernel, not memory, is what limits


class CannotTell(ValueError):
    """The data do not decide between causes; the message says what to measure."""


def bytes_per_number(form: str) -> float:
    """Bytes of a stored number, scales included: "bf16", "fp8", "int8", or a GGUF type such as "Q8_0" or "MXFP4".

    Raises:
        ValueError: a form that is not known.
    """
    plain = {"float32": 4.0, "float16": 2.0, "fp16": 2.0, "bfloat16": 2.0, "int8": 1.0}
    plain |= dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2"), 1.0)
    if form in plain:
        return plain[form]
    try:
        numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form.upper()]]
    except KeyError:
        known = [*plain, *(kind.name.lower() for kind in gguf.GGMLQuantizationType)]
        raise ValueError(f"no number format {form!r}; there are {', '.join(known)}") from None
    return size / numbers


@dataclass(frozen=True)
class Model:
    """A geometry, and how its weights and its cache are stored; see `bytes_per_number`."""

    geometry: Geometry
    weights: str = "bf16"
    cache: str = "bf16"

    @functools.cached_property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one more token of history adds to a step while no window is full, all layers."""
        return counts.kv_bytes(self.geometry, 1, dtype=torch.int8) * bytes_per_number(self.cache)

    @functools.cached_property
    def held_bytes(self) -> float:
        """Bytes of weights in memory: every expert, and the input embedding, of which a step reads one row."""
        return counts.resident_bytes(self.geometry, torch.int8) * bytes_per_number(self.weights)

    def weight_bytes(self, batch: float = 1) -> float:
        """Bytes of weights a step streams. Of a mixture of experts, those that a batch of tokens touches on average if
        each picks its experts independently: experts · (1 − (1 − per_token / experts)^batch)."""
        g = self.geometry
        size = counts.weight_bytes(g, torch.int8)
        if g.moe and batch > 1 and g.moe.per_token < g.moe.experts:
            more = g.replace(moe=replace(g.moe, per_token=g.moe.per_token + 1))
            touched = g.moe.experts * (1 - (1 - g.moe.per_token / g.moe.experts) ** batch)
            size += (counts.weight_bytes(more, torch.int8) - size) * (touched - g.moe.per_token)
        return size * bytes_per_number(self.weights)

    def kv_bytes(self, context: float, windowed: bool = True) -> float:
        """Bytes of one sequence's cache that a step reads; layers that slide read their window only, unless told."""
        g = self.geometry
        sliding = g.sliding_layers / g.layers if windowed else 0.0
        kept = min(context, g.sliding_window or math.inf)
        return self.kv_bytes_per_token * ((1 - sliding) * context + sliding * kept)

    def step_bytes(self, context: float, batch: float = 1) -> float:
        """Weights once, the cache of every sequence."""
        return self.weight_bytes(batch) + batch * self.kv_bytes(context)


@dataclass(frozen=True)
class Line:
    """TPOT = intercept_seconds + slope_seconds · (context · batch), least squares of relative errors.

    misfit is the median of |measured / line − 1|.
    """

    intercept_seconds: float
    slope_seconds: float
    misfit: float

    def at(self, tokens: float) -> float:
        """Seconds of a step with `tokens` of history in the whole batch."""
        return self.intercept_seconds + self.slope_seconds * tokens


@dataclass(frozen=True)
class Lever:
    """What a change would do to the slowest point, by the fitted line."""

    name: str
    tpot_seconds: float
    note: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The cause, in words, that a line of measured TPOT allows; what speaks for it, and which levers it leaves."""

    cause: str
    line: Line
    evidence: tuple[str, ...]
    levers: tuple[Lever, ...]

    def __str__(self) -> str:
        rows = [f"{self.cause}", *(f"  {line}" for line in self.evidence)]
        if self.levers:
            rows.append("What would help, at the slowest point, by this line:")
            rows += [
                f"  {lever.tpot_seconds * 1e3:8.1f} ms  {lever.name}{': ' + lever.note if lever.note else ''}"
                for lever in self.levers
            ]
        return "\n".join(rows)


def fit(points: Sequence[Point], per: str = "batch") -> Line:
    """The least-squares line through the points, each weighted by 1 / its time so that errors are relative.

    Args:
        per: "batch" counts the history of all sequences of a step; "sequence" that of one, whatever the batch.

    Raises:
        CannotTell: fewer than three points, or all at one place.
    """
    if len(points) < 3:
        raise CannotTell(f"{len(points)} points fix no line: measure at three contexts or more, far apart")
    tokens = np.array([p.context * (p.batch if per == "batch" else 1) for p in points])
    times = np.array([p.tpot_seconds for p in points])
    if tokens.max() <= SAME * max(tokens.min(), 1):
        raise CannotTell("all points are at one context: measure at three contexts or more, far apart")
    columns = np.stack([np.ones_like(tokens), tokens], axis=1) / times[:, None]
    (intercept, slope), *_ = np.linalg.lstsq(columns, np.ones_like(times), rcond=None)
    misfit = float(np.median(np.abs(times / (intercept + slope * tokens) - 1)))
    return Line(float(intercept), float(slope), misfit)


def diagnose(points: Sequence[Point], model: Model | None = None, bandwidth: float | None = None) -> Diagnosis:
    """Which of CAUSES fits, with the evidence in words.

    Args:
        points: measured decode times, from `helpers.serving.benchmarks`.
        model: geometry and formats; without it nothing can be said about bytes, and two causes are out of reach.
        bandwidth: bytes a second of all GPUs that share the model, from the data sheet.

    Raises:
        CannotTell: too few points, too near each other, or too noisy; the message says what to measure.
    """
    if len(points) < 3:
        raise CannotTell(f"{len(points)} points tell no cause: measure at three contexts or more, far apart")
    times = [p.tpot_seconds for p in points]
    if model is not None and bandwidth is not None:
        _require_possible(points, model, bandwidth)
    if (found := _prefix_misses(points)) is not None:
        return found
    contexts, batches = [p.context for p in points], [p.batch for p in points]
    one_context, one_batch = _ratio(contexts) < SAME, _ratio(batches) < SAME
    if one_context and one_batch:
        raise CannotTell("context and batch stay the same: vary one of them over a factor of four or more")
    line = fit(points)
    if _ratio(times) < 1 + 2 * NOISE:
        return _flat(points, line, model, bandwidth)
    if line.slope_seconds <= 0:
        raise CannotTell(
            "the time falls where history or batch grows, and none of the causes does that: was each context measured "
            "at the same batch, warmed up, with the server otherwise idle?"
        )
    if one_context:
        return _batch_grows(points, line, model)
    alone = fit(points, per="sequence")
    if not one_batch and alone.misfit < min(NOISE, line.misfit / 2) and line.misfit > NOISE / 3:
        said = (
            f"the time follows the context of one sequence (misfit {alone.misfit:.0%}) and not that of the batch "
            f"({line.misfit:.0%}): a read of bytes would grow with both"
        )
        return Diagnosis(UNSPLIT, alone, (_said(alone, "token of one sequence"), said), ())
    if line.misfit > NOISE:
        raise CannotTell(
            f"no line fits: half of the points are off by more than {line.misfit:.0%}. Measure each point again, with "
            "the server otherwise idle and the batch held still"
        )
    return _by_bytes(points, line, model, bandwidth)


def _require_possible(points: Sequence[Point], model: Model, bandwidth: float) -> None:
    """No step is faster than its bytes; of a mixture of experts at least what one token needs is read."""
    for p in points:
        floor = (model.weight_bytes() + p.batch * model.kv_bytes(p.context)) / bandwidth
        if floor > FASTER * p.tpot_seconds:
            raise CannotTell(
                f"at {p.context:,.0f} tokens and batch {p.batch:.3g} a token takes {p.tpot_seconds * 1e3:.1f} ms, and "
                f"reading its bytes takes {floor * 1e3:.1f} by the data sheet: the model, its formats, the batch or "
                "the number of GPUs is not what was said, or a step gives several tokens (speculative decoding)"
            )


def _prefix_misses(points: Sequence[Point]) -> Diagnosis | None:
    """Time per token that is really the prefill's: it vanishes once TTFT is taken out of it."""
    known = [p for p in points if None not in (p.ttft_seconds, p.hit_rate, p.output_tokens)]
    if len(known) < len(points) or max(p.hit_rate for p in known) - min(p.hit_rate for p in known) < 0.2:
        return None
    times = [p.tpot_seconds for p in known]
    rest = [p.tpot_seconds - p.ttft_seconds / p.output_tokens for p in known]
    if min(rest) <= 0 or _ratio(times) < 1 + 2 * NOISE or _ratio(rest) - 1 > (_ratio(times) - 1) / 3:
        return None
    low, high = (f(known, key=lambda p: p.hit_rate).hit_rate for f in (min, max))
    evidence = (
        f"the reported time per token spans a ratio of {_ratio(times):.2f}; without TTFT ÷ tokens it spans "
        f"{_ratio(rest):.2f}",
        f"the hit rate moves between {low:.0%} and {high:.0%}: prompts are prefilled anew, and their time is counted "
        "as time between tokens",
    )
    flat = Line(statistics.median(rest), 0.0, 0.0)
    return Diagnosis(PREFIX_MISSES, flat, evidence, (Lever("every prompt found", statistics.median(rest)),))


def _flat(points, line: Line, model: Model | None, bandwidth: float | None) -> Diagnosis:
    """The time hardly moves although history or batch does."""
    if model is None or bandwidth is None:
        raise CannotTell(
            "the time hardly moves. Whether that is a fixed cost or simply few bytes, only the model and the memory "
            "bandwidth can tell: give both"
        )
    floors = [model.step_bytes(p.context, p.batch) / bandwidth for p in points]
    slowest = max(points, key=lambda p: p.tpot_seconds)
    share = max(floors) / slowest.tpot_seconds
    said = (
        f"reading the bytes takes {min(floors) * 1e3:.1f} to {max(floors) * 1e3:.1f} ms by the data sheet, "
        f"at most {share:.0%} of the slowest step"
    )
    if share > 1 / 3 and _ratio(floors) < SAME:
        raise CannotTell(f"{said}; most of these bytes are read whatever the history: measure longer contexts")
    evidence = (f"the time stays within a ratio of {_ratio([p.tpot_seconds for p in points]):.2f}", said)
    return Diagnosis(LAUNCHES, line, evidence, ())


def _batch_grows(points, line: Line, model: Model | None) -> Diagnosis:
    batches = [p.batch for p in points]
    evidence = [f"the context stays at about {statistics.median(p.context for p in points):,.0f} tokens"]
    evidence.append(f"the batch goes from {min(batches):.3g} to {max(batches):.3g}, and the time with it")
    levers = []
    if model is not None and model.geometry.moe:
        few, many = (f(points, key=lambda p: p.batch) for f in (min, max))
        experts = model.weight_bytes(many.batch) - model.weight_bytes(few.batch)
        caches = many.batch * model.kv_bytes(many.context) - few.batch * model.kv_bytes(few.context)
        evidence.append(
            f"by bytes, {experts / (experts + caches):.0%} of what grows are experts, of which a larger batch touches "
            "more (if each token picks its own independently); only the rest is cache"
        )
    elif line.intercept_seconds > 0 and line.misfit < NOISE:
        half = max(p.context * p.batch for p in points) / 2
        levers.append(Lever("half the batch", line.at(half), "on twice the machines"))
        levers += _smaller_cache(points, line, model)
    return Diagnosis(BATCH_GROWS, line, (_said(line, "token of the batch"), *evidence), tuple(levers))


def _by_bytes(points, line: Line, model: Model | None, bandwidth: float | None) -> Diagnosis:
    """Time that grows with the history: is it what the bytes take?"""
    evidence = [_said(line, "token of history")]
    if line.intercept_seconds <= 0:
        raise CannotTell(
            f"{evidence[0]}. No step takes less than nothing: the time grows faster than the history, or the shortest "
            "contexts are missing. Measure at 1,000 tokens, and at twice the longest context"
        )
    if model is None:
        evidence.append("whether that is what the bytes take, the model's config.json would tell")
        return Diagnosis(CACHE_GROWS, line, tuple(evidence), ())
    batch = statistics.median(p.batch for p in points)
    near, far = (f(p.context for p in points) for f in (min, max))

    def per_token(windowed: bool) -> float:
        return (model.kv_bytes(far, windowed) - model.kv_bytes(near, windowed)) / (far - near)

    cached = per_token(windowed=True) / line.slope_seconds
    full = per_token(windowed=False) / line.slope_seconds
    # What the weights stream at, if all of the intercept is their time: a lower bound of the bandwidth.
    weights = model.weight_bytes(batch) / line.intercept_seconds
    known = bandwidth or weights
    evidence.append(
        f"by its slope the cache streams at {cached / 1e9:,.0f} GB/s, by the intercept the weights at "
        f"{weights / 1e9:,.0f} GB/s or more" + (f"; the data sheet says {bandwidth / 1e9:,.0f}" if bandwidth else "")
    )
    if bandwidth and cached > FASTER * bandwidth:
        raise CannotTell(
            f"the cache would stream at {cached / 1e9:,.0f} GB/s where {bandwidth / 1e9:,.0f} can be had: the model, "
            "its formats, the batch or the number of GPUs is not what was said"
        )
    nearer = abs(math.log(full / known)) < abs(math.log(cached / known)) and (
        not bandwidth or full < FASTER * bandwidth
    )
    if full / cached > 1.3 and nearer and cached < known / 1.3:
        evidence.append(
            f"the windows of {model.geometry.sliding_layers} of {model.geometry.layers} layers would make the slope "
            f"{full / cached:.1f} times smaller; it is what all layers reading all tokens cost"
        )
        return Diagnosis(WINDOWS_IGNORED, line, tuple(evidence), ())
    if cached * STEEP < min(known, weights):
        evidence.append(
            f"history streams {min(known, weights) / cached:.1f} times more slowly than the weights: perhaps a kernel "
            "that leaves most of the chip idle on a long context, or that converts or expands what it reads"
        )
        evidence.append(
            f"a batch of {batch * min(known, weights) / cached:,.0f} would cost the same: is {batch:.3g} right?"
        )
        if model.geometry.mla:
            evidence.append("and with tensor parallelism each GPU reads the whole latent, so that they do not add up")
        return Diagnosis(UNSPLIT, line, tuple(evidence), ())
    return Diagnosis(CACHE_GROWS, line, tuple(evidence), tuple(_smaller_cache(points, line, model)))


def _smaller_cache(points, line: Line, model: Model | None) -> list[Lever]:
    """What shrinks the part of the time that grows, at the slowest point."""
    slowest = max(points, key=lambda p: p.tpot_seconds)
    tokens = slowest.context * slowest.batch
    levers = []
    if model is not None and (size := bytes_per_number(model.cache)) > 1:
        levers.append(Lever("a cache in fp8", line.at(tokens / size), "quality to be checked"))
    levers.append(Lever("history capped at half", line.at(tokens / 2), "what was dropped is forgotten"))
    if model is not None and (size := bytes_per_number(model.weights)) > 1:
        saved = line.intercept_seconds * (1 - bytes_per_number("q4_0") / size)
        levers.append(
            Lever("weights in 4 bits", line.at(tokens) - saved, "at best: if all of the intercept is weights")
        )
    return levers


def _said(line: Line, per: str) -> str:
    slope = line.slope_seconds * 1e9
    return (
        f"TPOT = {line.intercept_seconds * 1e3:.1f} ms + {f'{slope:,.0f}' if slope >= 100 else f'{slope:.3g}'} ns per "
        f"{per}; half of the points lie within {line.misfit:.1%} of it"
    )


def _ratio(values: Sequence[float]) -> float:
    low = min(values)
    return max(values) / low if low > 0 else math.inf
