"""Traces of slow chats, each with its one cause: made from bytes with realistic noise, seeded, or published.

A trace is what a dashboard shows: context, batch, time per token, and, where a prefix cache is involved, TTFT and hit
rate. What a trace is *made* from stands in `generate`, one function a cause, so that a diagnosis can be held to it.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from helpers import data
from helpers.models import counts, geometry
from helpers.serving import incident
from helpers.serving.benchmarks import Point
from helpers.serving.incident import Model

GROUPED = ("Llama-3.1-8B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B", "Llama-3.1-70B", "phi-4")
DENSE = (*GROUPED, "Llama-2-7b-hf")
WINDOWED = ("Gemma-3-12b-it", "Gemma-3-27b-it", "gpt-oss-20b", "gpt-oss-120b")
GPUS = ("A100-80GB SXM", "H100 SXM", "H200 SXM", "B200 SXM")
NOISE = 0.025  # standard deviation of a time, relative: what repeated runs of one server differ by
LEAST_GROWTH = 1.5  # a trace in which nobody would have noticed anything is none


@dataclass(frozen=True)
class Trace:
    """What was seen, and where.

    points     rows of the dashboard
    model      geometry, and the formats of weights and cache
    bandwidth  bytes a second of all GPUs that share the model, by the data sheet
    cause      one of `incident.CAUSES`
    source     the machine, or where the figures were published
    """

    points: tuple[Point, ...]
    model: Model
    bandwidth: float
    cause: str
    source: str


@dataclass(frozen=True)
class _Server:
    """A machine on which a trace is made: what of the sheet's bandwidth it reaches, and what a step costs besides."""

    model: Model
    gpu: str
    gpus: int
    efficiency: float
    overhead_seconds: float

    @property
    def bandwidth(self) -> float:
        return self.gpus * data.device(self.gpu)["bandwidth_GBps"] * 1e9

    def seconds(self, context: float, batch: float, windowed: bool = True) -> float:
        size = self.model.weight_bytes(batch) + batch * self.model.kv_bytes(context, windowed)
        return self.overhead_seconds + size / (self.bandwidth * self.efficiency)

    def prefill_seconds(self, tokens: float) -> float:
        """Two FLOPs a weight and token, attention left out, at half of the sheet's matrix rate."""
        rate = self.gpus * data.device(self.gpu)["dense_bf16_TFLOPs"] * 1e12 / 2
        return 2 * counts.weight_bytes(self.model.geometry, torch.int8) * tokens / rate


def generate(seed: int, cause: str | None = None) -> Trace:
    """A trace of one of `incident.CAUSES`, or of a cause drawn at random. The same seed gives the same trace.

    Raises:
        ValueError: no such cause.
    """
    dice = random.Random(seed)
    cause = dice.choice(incident.CAUSES) if cause is None else cause
    if cause not in _MAKERS:
        raise ValueError(f"no cause {cause!r}; there are {', '.join(incident.CAUSES)}")
    while True:
        server = _server(dice, {incident.WINDOWS_IGNORED: WINDOWED, incident.UNSPLIT: GROUPED}.get(cause, DENSE))
        points = _MAKERS[cause](dice, server)
        times = [point.tpot_seconds for point in points]
        if points and (cause == incident.LAUNCHES or max(times) / min(times) >= LEAST_GROWTH):
            where = f"{server.gpus} × {server.gpu}"
            return Trace(tuple(points), server.model, server.bandwidth, cause, where)


def _server(dice: random.Random, models: tuple[str, ...]) -> _Server:
    """A model on as few GPUs of a kind as leave it half of their memory."""
    model, gpu = Model(geometry.get(dice.choice(models))), dice.choice(GPUS)
    gpus = 1
    while gpus < 8 and gpus * data.device(gpu)["capacity_GB"] * 0.5e9 < model.weight_bytes(batch=64):
        gpus *= 2
    return _Server(model, gpu, gpus, dice.uniform(0.55, 0.85), dice.uniform(0.0005, 0.003))


def _noisy(dice: random.Random, seconds: float) -> float:
    return seconds * math.exp(dice.gauss(0, NOISE))


def _contexts(dice: random.Random) -> list[int]:
    """Five or six lengths from about 1k to about 32k, as a sweep has them."""
    lengths = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000][dice.randint(0, 1) :]
    return [round(length * dice.uniform(0.9, 1.1)) for length in lengths]


def _cache_grows(dice: random.Random, server: _Server) -> list[Point]:
    batch = dice.choice((1, 2, 4, 8, 16, 32))
    return [Point(c, batch, _noisy(dice, server.seconds(c, batch))) for c in _contexts(dice)]


def _batch_grows(dice: random.Random, server: _Server) -> list[Point]:
    context = dice.choice((4_000, 8_000, 16_000))
    points = []
    for batch in (1, 4, 8, 16, 32, 64)[dice.randint(0, 1) :]:
        near = round(context * dice.uniform(0.95, 1.05))
        points.append(Point(near, batch, _noisy(dice, server.seconds(near, batch))))
    return points


def _prefix_misses(dice: random.Random, server: _Server) -> list[Point]:
    """The history grows, and from some turn on the prompt is no longer found. Latency per token counts TTFT in."""
    batch, answer = dice.choice((1, 2)), dice.choice((64, 128, 256))
    contexts = _contexts(dice)
    lost = dice.randint(1, len(contexts) - 2)
    points = []
    for turn, context in enumerate(contexts):
        hit = dice.uniform(0.9, 0.98) if turn < lost else dice.uniform(0.0, 0.1)
        ttft = _noisy(dice, 0.03 + server.prefill_seconds(context * (1 - hit)))
        between = _noisy(dice, server.seconds(context, batch))
        points.append(Point(context, batch, between + ttft / answer, None, ttft, hit, answer))
    # Where the cache itself grows as much as what the misses add, there are two causes and no exercise.
    rest = [p.tpot_seconds - p.ttft_seconds / p.output_tokens for p in points]
    return points if max(rest) / min(rest) < 1.15 else []


def _unsplit(dice: random.Random, server: _Server) -> list[Point]:
    """One block of threads reads one KV head's whole history at its own small share of the bandwidth; as long as heads
    and sequences are too few to fill the chip, more of them cost nothing."""
    blocks = dice.uniform(60, 130)  # that many would fill it; an H100 has 132 multiprocessors
    a_head = server.model.kv_bytes_per_token / server.model.geometry.kv_heads
    slope = a_head * blocks / (server.bandwidth / server.gpus * server.efficiency)
    points = []
    for context in _contexts(dice):
        batch = dice.choice((1, 2, 4))
        weights = server.seconds(0, batch)
        points.append(Point(context, batch, _noisy(dice, weights + slope * context)))
    return points


def _windows_ignored(dice: random.Random, server: _Server) -> list[Point]:
    batch = dice.choice((4, 8, 16))
    return [Point(c, batch, _noisy(dice, server.seconds(c, batch, windowed=False))) for c in _contexts(dice)]


def _launches(dice: random.Random, server: _Server) -> list[Point]:
    """A step that takes at least three times as long as its bytes, whatever they are."""
    batch = dice.choice((1, 4))
    contexts = _contexts(dice)
    floors = [server.seconds(c, batch) for c in contexts]
    if max(floors) / min(floors) < 1.4:
        return []
    fixed = max(floors) * dice.uniform(3, 5)
    return [Point(c, batch, _noisy(dice, fixed)) for c in contexts]


_MAKERS: dict[str, Callable[[random.Random, _Server], list[Point]]] = {
    incident.CACHE_GROWS: _cache_grows,
    incident.BATCH_GROWS: _batch_grows,
    incident.PREFIX_MISSES: _prefix_misses,
    incident.UNSPLIT: _unsplit,
    incident.WINDOWS_IGNORED: _windows_ignored,
    incident.LAUNCHES: _launches,
}


def published() -> list[Trace]:
    """Traces from measurements in helpers/data: what others saw, and the cause that their bytes show."""

    def rows(id: str, key: str) -> list[dict]:
        return [row for row in data.measurement(id)["data"] if key in row]

    def trace(id: str, points: list[Point], model: str, gpu: str, cause: str, **formats) -> Trace:
        rate = data.device(gpu)["bandwidth_GBps"] * 1e9
        source = data.measurement(id)["sources"][0]["source"]
        return Trace(tuple(points), Model(geometry.get(model), **formats), rate, cause, f"{gpu}, {source}")

    l4 = [Point(row["ctx"], 1, 1 / row["bf16"]) for row in rows("vllm-l4-fp8", "ctx")]
    eager = [Point(row["prefill"], 8, 8 / row["dec_bf16"]) for row in rows("vllm-a100-fp8-phase", "prefill")]
    gb10 = [
        Point(row["pp"], row["batch"], row["ms_per_step"] / 1e3)
        for row in rows("llamacpp-gb10-batch", "pp")
        if row["pp"] == 8_192
    ]
    return [
        trace("vllm-l4-fp8", l4, "Qwen3-4B", "L4", incident.CACHE_GROWS),
        trace("vllm-a100-fp8-phase", eager, "Qwen3-8B", "A100-80GB SXM", incident.LAUNCHES),
        trace(
            "llamacpp-gb10-batch", gb10, "Qwen2.5-7B", "GB10 (DGX Spark)", incident.BATCH_GROWS,
            weights="q8_0", cache="float16",
        ),
    ]  # fmt: skip
