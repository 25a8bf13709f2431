"""Traces of slow chats, each with its one cause: made from bytes with realistic noise, seeded, or published.

A trace is what a dashboard shows: context, batch, time per token, and, where a prefix cache is involved, TTFT and hit
rate. What a trace is *made* from stands in `generate`, one function a cause, so that a diagnosis can be held to it.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from helpers import data
from helpers.models import counts, geometry
from helpers.serving import incident
from helpers.serving.benchmarks import Point
from helpers.serving.incident import Model

GROUPED = ("Llama-3.1-8B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B", "Llama-3.1-70B", "phi-4")
DENSE = (*GROUPED, "Llama-2-7b-hf")
WINDOWED = ("Gemma-3-12b-it", "Gemma-3-27b-it", "gpt-oss-20b", "gpt-oss-120b")
MODELS = (*DENSE, "Gemma-3-12b-it", "Gemma-3-27b-it")
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

    def table(self) -> dict:
        """What a learner's diagnosis is given: one list a column, a number a row, and the bandwidth.

        context, batch, answer_tokens   tokens, sequences, tokens
        tpot_ms                         time of a whole answer, TTFT included, divided by its tokens
        ttft_ms, hit_rate               of its prompt, 0 to 1; a benchmark that times decoding alone has 0 in both
        weight_gb, cache_gb             what a step has to read, 1e9 bytes; layers with a window read their window
        cache_gb_all                    the same if every layer reads every token
        bandwidth_gb_per_s              of all GPUs, by the data sheet: one number
        """
        rows = self.points
        read = {
            "weight_gb": [self.model.weight_bytes(row.batch) / 1e9 for row in rows],
            "cache_gb": [row.batch * self.model.kv_bytes(row.context) / 1e9 for row in rows],
            "cache_gb_all": [row.batch * self.model.kv_bytes(row.context, windowed=False) / 1e9 for row in rows],
        }
        return {
            "context": [row.context for row in rows],
            "batch": [row.batch for row in rows],
            "tpot_ms": [1e3 * row.tpot_seconds for row in rows],
            "ttft_ms": [1e3 * (row.ttft_seconds or 0) for row in rows],
            "answer_tokens": [row.output_tokens or 1 for row in rows],
            "hit_rate": [row.hit_rate or 0 for row in rows],
            **read,
            "bandwidth_gb_per_s": self.bandwidth / 1e9,
        }


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

    As on many dashboards, the time per token is that of the whole answer, TTFT included, divided by its tokens.

    Raises:
        ValueError: no such cause.
    """
    dice = random.Random(seed)
    cause = dice.choice(incident.CAUSES) if cause is None else cause
    if cause not in _MAKERS:
        raise ValueError(f"no cause {cause!r}; there are {', '.join(incident.CAUSES)}")
    while True:
        server = _server(dice, {incident.WINDOWS_IGNORED: WINDOWED, incident.UNSPLIT: GROUPED}.get(cause, MODELS))
        rows = _MAKERS[cause](dice, server)
        points = [_point(dice, server, row) for row in rows]
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


@dataclass(frozen=True)
class _Row:
    """A decode step, and the prompt and answer that it belongs to."""

    context: float
    batch: int
    seconds: float
    hit_rate: float
    answer: int


def _point(dice: random.Random, server: _Server, row: _Row) -> Point:
    ttft = _noisy(dice, 0.03 + server.prefill_seconds(row.context * (1 - row.hit_rate)))
    seconds = _noisy(dice, row.seconds) + ttft / row.answer
    return Point(row.context, row.batch, seconds, None, ttft, row.hit_rate, row.answer)


def _noisy(dice: random.Random, seconds: float) -> float:
    return seconds * math.exp(dice.gauss(0, NOISE))


def _contexts(dice: random.Random) -> list[int]:
    """Five or six lengths from about 1k to about 32k, as a sweep has them."""
    lengths = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000][dice.randint(0, 1) :]
    return [round(length * dice.uniform(0.9, 1.1)) for length in lengths]


def _found(dice: random.Random, turns: int, lost: int | None = None) -> list[float]:
    """Hit rates of consecutive turns; from turn `lost` on nearly nothing is found."""
    return [dice.uniform(0.0, 0.1) if lost is not None and i >= lost else dice.uniform(0.9, 0.98) for i in range(turns)]


def _sweep(dice: random.Random, seconds: Callable[[float, int], float], batches: list[int], answer: int) -> list[_Row]:
    """Decode times over contexts; in a third of the sweeps prompts are lost too, and answers are so long that it does
    not matter."""
    contexts = _contexts(dice)
    lost = dice.randint(1, 4) if dice.random() < 1 / 3 else None
    found = _found(dice, len(contexts), lost)
    answer = answer if lost is None else 8 * answer
    batches = batches * len(contexts) if len(batches) == 1 else [dice.choice(batches) for _ in contexts]
    return [_Row(c, b, seconds(c, b), hit, answer) for c, b, hit in zip(contexts, batches, found, strict=False)]


def _cache_grows(dice: random.Random, server: _Server) -> list[_Row]:
    return _sweep(dice, server.seconds, [dice.choice((1, 2, 4, 8, 16, 32))], answer=512)


def _batch_grows(dice: random.Random, server: _Server) -> list[_Row]:
    context = dice.choice((4_000, 8_000, 16_000))
    batches = (1, 4, 8, 16, 32, 64)[dice.randint(0, 1) :]
    near = [round(context * dice.uniform(0.95, 1.05)) for _ in batches]
    found = _found(dice, len(batches))
    return [_Row(c, b, server.seconds(c, b), hit, 512) for c, b, hit in zip(near, batches, found, strict=True)]


def _prefix_misses(dice: random.Random, server: _Server) -> list[_Row]:
    """From some turn on the prompt is no longer found, and answers are short."""
    contexts, batch, answer = _contexts(dice), dice.choice((1, 2)), dice.choice((64, 128))
    found = _found(dice, len(contexts), lost=dice.randint(1, len(contexts) - 2))
    steps = [server.seconds(context, batch) for context in contexts]
    # Where the cache itself grows as well, there are two causes and no exercise.
    if max(steps) / min(steps) > 1.1:
        return []
    return [_Row(c, batch, s, hit, answer) for c, s, hit in zip(contexts, steps, found, strict=True)]


def _unsplit(dice: random.Random, server: _Server) -> list[_Row]:
    """One block of threads reads one KV head's whole history at its own small share of the bandwidth; as long as heads
    and sequences are too few to fill the chip, more of them cost nothing."""
    blocks = dice.uniform(60, 130)  # that many would fill it; an H100 has 132 multiprocessors
    a_head = server.model.kv_bytes_per_token / server.model.geometry.kv_heads
    slope = a_head * blocks / (server.bandwidth / server.gpus * server.efficiency)
    return _sweep(dice, lambda context, batch: server.seconds(0, batch) + slope * context, [1, 2, 4], answer=512)


def _windows_ignored(dice: random.Random, server: _Server) -> list[_Row]:
    return _sweep(dice, lambda c, b: server.seconds(c, b, windowed=False), [dice.choice((4, 8, 16))], answer=512)


def _launches(dice: random.Random, server: _Server) -> list[_Row]:
    """A step that takes at least three times as long as its bytes, whatever they are."""
    rows = _sweep(dice, server.seconds, [dice.choice((4, 8))], answer=512)
    floors = [row.seconds for row in rows]
    if max(floors) / min(floors) < 1.4:
        return []
    fixed = max(floors) * dice.uniform(3, 5)
    return [replace(row, seconds=fixed) for row in rows]


_MAKERS: dict[str, Callable[[random.Random, _Server], list[_Row]]] = {
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
