"""Reads what engineers have of a slow chat: files that benchmarks save, tables, and the timestamps of a stream.

All of them become points: one decode time at one context and batch.

    points = benchmarks.read("llama-bench.json")        # llama-bench -o json, jsonl or csv, with -d 0,4096,16384
    points = benchmarks.read("serve-1.json", "serve-8.json")    # vllm bench serve --save-result, a file a run
    points = benchmarks.read("table.csv")               # context, batch, tpot_ms; ttft_ms, hit_rate, output_tokens
    point = benchmarks.from_stream(started, arrivals, prompt_tokens)    # a stopwatch beside one streamed answer
"""

import csv
import io
import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class BadBenchmark(ValueError):
    """A file is none of the forms that can be read, or lacks what a point needs; the message says what."""


@dataclass(frozen=True)
class Point:
    """One measured decode time.

    context         tokens that the average step of the answer has behind it
    batch           sequences decoded side by side, on average
    tpot_seconds    time per output token, without the first
    spread_seconds  standard deviation of it, if known
    ttft_seconds    time to first token, if known
    hit_rate        share of the prompt's tokens found in a prefix cache, 0 to 1, if known
    output_tokens   length of the answer, if known
    """

    context: float
    batch: float
    tpot_seconds: float
    spread_seconds: float | None = None
    ttft_seconds: float | None = None
    hit_rate: float | None = None
    output_tokens: float | None = None

    def __post_init__(self):
        _require(self.context >= 0, f"a context of {self.context} tokens")
        _require(self.batch > 0, f"a batch of {self.batch}")
        _require(self.tpot_seconds > 0, f"a time per token of {self.tpot_seconds} s")
        _require(self.hit_rate is None or 0 <= self.hit_rate <= 1, f"a hit rate of {self.hit_rate}; give 0 to 1")


def read(*paths: str | os.PathLike) -> list[Point]:
    """The points of one or several files of one kind, in the order of context.

    Raises:
        FileNotFoundError: no such file.
        BadBenchmark: none of the forms above; the message names the file and what it lacks.
    """
    points = []
    for path in map(Path, paths):
        try:
            points += _points(path.read_text(encoding="utf-8-sig"))
        except (BadBenchmark, UnicodeDecodeError) as error:
            raise BadBenchmark(f"{path.name}: {error}") from None
    return sorted(points, key=lambda point: (point.context, point.batch))


def from_stream(
    started: float, arrivals: Sequence[float], prompt_tokens: int, tokens: Sequence[int] | None = None, batch: float = 1
) -> Point:
    """One streamed request as a point.

    Args:
        started: when the request was sent, in seconds of any clock.
        arrivals: when each chunk of the answer came, on the same clock.
        prompt_tokens: length of the prompt.
        tokens: tokens in each chunk; None says one each. An engine may send several at a time, and a time per chunk
            is then no time per token.
        batch: sequences that the server decoded meanwhile, if you know it.

    Raises:
        BadBenchmark: fewer than two chunks with tokens, or times that run backward.
    """
    tokens = [1] * len(arrivals) if tokens is None else list(tokens)
    _require(len(tokens) == len(arrivals), f"{len(arrivals)} arrivals and {len(tokens)} counts of tokens")
    chunks = [(time, count) for time, count in zip(arrivals, tokens, strict=True) if count > 0]
    _require(len(chunks) >= 2, "a stream of fewer than two chunks: it has no time between tokens")
    times = [started, *(time for time, _ in chunks)]
    _require(all(a <= b for a, b in zip(times, times[1:], strict=False)), "times that run backward")
    # The first chunk is what TTFT pays for; the tokens after it are those that the rest of the time made.
    rest = sum(count for _, count in chunks[1:])
    made = chunks[0][1] + rest
    return Point(
        context=prompt_tokens + made / 2,
        batch=batch,
        tpot_seconds=(times[-1] - times[1]) / rest,
        ttft_seconds=times[1] - started,
        output_tokens=made,
    )


def _points(text: str) -> list[Point]:
    rows = _rows(text)
    _require(bool(rows), "no rows")
    if {"n_gen", "n_depth"} <= set(rows[0]):
        return _llama_bench(rows)
    if {"mean_tpot_ms", "total_input_tokens"} <= set(rows[0]):
        return [_vllm(row) for row in rows]
    if {"context", "tpot_ms"} <= set(rows[0]):
        return [_table(row) for row in rows]
    raise BadBenchmark(
        f"its fields are {', '.join(sorted(rows[0])[:8])}…; expected a file of llama-bench (n_gen, n_depth, avg_ns), "
        "of `vllm bench serve --save-result` (mean_tpot_ms, total_input_tokens), or a table of context, batch, tpot_ms"
    )


def _rows(text: str) -> list[dict]:
    """Rows of JSON (one object or a list), JSON lines, or CSV with a header."""
    head = text.lstrip()[:1]
    if head not in ("{", "["):
        return list(csv.DictReader(io.StringIO(text)))
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        try:
            whole = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            raise BadBenchmark(f"neither JSON nor JSON lines: {error}") from None
    rows = whole if isinstance(whole, list) else [whole]
    _require(all(isinstance(row, Mapping) for row in rows), "JSON that is not an object or a list of objects")
    return rows


def _llama_bench(rows: Iterable[Mapping]) -> list[Point]:
    """Rows that only generate: a row with n_prompt counts its prompt's time as well."""
    points = []
    for row in rows:
        generated, depth = _number(row, "n_gen"), _number(row, "n_depth")
        if generated and not _number(row, "n_prompt"):
            spread = _number(row, "stddev_ns") / generated / 1e9 if row.get("stddev_ns") not in (None, "") else None
            points.append(
                Point(depth + generated / 2, 1, _number(row, "avg_ns") / generated / 1e9, spread_seconds=spread)
            )
    _require(bool(points), "no row that only generates: run llama-bench with -n 128 -d 0,4096,16384")
    return points


def _vllm(row: Mapping) -> Point:
    """A run of `vllm bench serve`: the means over its requests."""
    done = _number(row, "completed")
    _require(done > 0, "no request was completed")
    prompt, answer = _number(row, "total_input_tokens") / done, _number(row, "total_output_tokens") / done
    tpot = _number(row, "mean_tpot_ms") / 1e3
    # Sequences that were decoding on average: the time that all answers spent decoding, over that of the run. The cap
    # that was asked for, max_concurrency, counts those that were queued or in prefill as well.
    batch = max(1.0, done * (answer - 1) * tpot / _number(row, "duration"))
    spread = _number(row, "std_tpot_ms") / 1e3 if "std_tpot_ms" in row else None
    return Point(prompt + answer / 2, batch, tpot, spread, _number(row, "mean_ttft_ms") / 1e3, output_tokens=answer)


def _table(row: Mapping) -> Point:
    def optional(name: str, factor: float = 1.0) -> float | None:
        return _number(row, name) * factor if row.get(name) not in (None, "") else None

    batch = optional("batch")
    _require(batch is not None, "no batch: a time without the batch beside it tells nothing about bytes")
    return Point(
        _number(row, "context"),
        batch,
        _number(row, "tpot_ms") / 1e3,
        optional("spread_ms", 1e-3),
        optional("ttft_ms", 1e-3),
        optional("hit_rate"),
        optional("output_tokens"),
    )


def _number(row: Mapping, name: str) -> float:
    value = row.get(name)
    if isinstance(value, list):  # one figure a request
        value = statistics.fmean(value) if value else None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadBenchmark(f"{name} is {value!r}, not a number") from None
    _require(math.isfinite(number), f"{name} is {number}")
    return number


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise BadBenchmark(problem)
