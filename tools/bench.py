"""Time this CPU's decode step and attention beside their floor and beside other engines, all measured in turns.

    python -m tools.bench                    # a table, and build/bench.json
    python -m tools.bench --seconds 120      # more samples

A row holds a name, a value with its unit, and what the value stands `against`: a byte floor (the bytes that the step
reads ÷ the read bandwidth measured in the same run), a peer on the same weights, or another way of ours to the same
end (as many tokens one by one, a float32 cache), each with the ratio of our value to it. A peer that is not installed
is listed as such. Weights are synthetic: time does not depend on them.
"""

import argparse
import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path

import torch

from helpers import kernels
from helpers.caches import BlockPool, FullCache, PagedCache
from helpers.clock import devices, sweeps, timing
from helpers.kernels import quantize
from helpers.models import geometry
from helpers.models.decoder import Decoder
from tools import bench_peers

MODEL = "SmolLM2-135M"
BATCHES = (1, 4)
TOKENS, TOKENS_CONTEXTS = (1, 2, 4, 8), (16, 1024, 8192)  # newest tokens of a step, as in the verification of drafts
ANSWERS, HELD = 4, 1024  # sessions that answer beside a chunk of a prompt, and tokens that each has behind it
CHUNKS = (4, 16, 64, 256)  # tokens
PEERS = ("transformers", "llama.cpp")
BLOCK = 16  # tokens
ATTENTION_TOKENS, ATTENTION_KV_HEADS, ATTENTION_LAYERS = 8192, 8, 8  # together far more than a processor's cache holds
ATTENTION_FORMS = {"MHA": 1, "GQA-4": 4}  # query heads a KV head
LEAD_IN_SECONDS = 0.02  # until the threads of the engine before have gone to sleep
READ, MATMUL = "read bandwidth", "matmul float32"


def row(name: str, value: float, unit: str, against: Mapping[str, float | None] | None = None) -> dict:
    """One line of the table.

    Args:
        against: name of a floor or peer → its value in the same unit, or None where it is not installed.

    Returns:
        name, value, unit, and under "against" each value and the ratio value / its value (None where not installed).
    """
    compared = {
        other: {"value": theirs, "ratio": None if theirs is None else value / theirs}
        for other, theirs in (against or {}).items()
    }
    return {"name": name, "value": value, "unit": unit, "against": compared}


def decode_rows(timed: Mapping, step_bytes: Mapping, read_bytes_per_second: float, peers: Sequence[str]) -> list[dict]:
    """A row for each (batch, context) in `step_bytes`.

    Args:
        timed: (engine, batch, context) → Timing, engine "ours" or a peer.
        step_bytes: (batch, context) → bytes that a step reads.
        peers: engines to list, timed or not.
    """
    rows = []
    for (batch, context), read in step_bytes.items():
        against = {"byte floor": read / read_bytes_per_second * 1e3}
        for peer in peers:
            found = timed.get((peer, batch, context))
            if found is not None or not any(engine == peer for engine, *_ in timed):
                against[peer] = None if found is None else found.ms
        ours = timed["ours", batch, context]
        rows.append(row(f"decode step, batch {batch}, context {context:,}", ours.ms, "ms", against))
    return rows


def tokens_rows(timed: Mapping) -> list[dict]:
    """A row for each ("tokens", t, context) in `timed`: a step of t tokens beside t times ("ours", 1, context)."""
    rows = []
    for tokens, context in (key[1:] for key in timed if key[0] == "tokens"):
        against = {"as many single steps": tokens * timed["ours", 1, context].ms}
        name = f"step of {tokens} token{'s' * (tokens > 1)}, batch 1, context {context:,}"
        rows.append(row(name, timed["tokens", tokens, context].ms, "ms", against))
    return rows


def mixed_rows(timed: Mapping) -> list[dict]:
    """A row for each ("mixed", chunk) in `timed`: answers and chunk in one pass, against ("apart", chunk) in two."""
    rows = []
    for chunk in (key[1] for key in timed if key[0] == "mixed"):
        against = {"one after the other": timed["apart", chunk].ms}
        rows.append(row(f"batch {ANSWERS} beside a chunk of {chunk}", timed["mixed", chunk].ms, "ms", against))
    return rows


def attention_rows(timed: Mapping, read_bytes: Mapping, read_bytes_per_second: float) -> list[dict]:
    """A row for each (form, precision) in `read_bytes`: against the floor, and quantised caches against float32."""
    rows = []
    for (form, precision), read in read_bytes.items():
        against = {"byte floor": read / read_bytes_per_second * 1e3}
        if precision != "float32":
            against["float32 cache"] = timed[form, "float32"].ms
        name = f"attention, {form}, {ATTENTION_TOKENS:,} tokens, {precision} cache"
        rows.append(row(name, timed[form, precision].ms, "ms", against))
    return rows


def table(rows: Sequence[dict]) -> str:
    """The rows as text."""
    lines = []
    for each in rows:
        others = [
            f"{name}: not installed" if other["value"] is None
            else f"{name} {other['value']:.2f} (ratio {other['ratio']:.2f})"
            for name, other in each["against"].items()
        ]  # fmt: skip
        lines.append(f"{each['name']:<52} {each['value']:>9.2f} {each['unit']:<8} {'   '.join(others)}".rstrip())
    return "\n".join(lines)


def decode_steps(decoder: Decoder, contexts: Sequence[int]) -> tuple[dict, dict]:
    """Steps of all engines by (engine, batch, context), and the bytes that ours reads by (batch, context)."""
    steps, step_bytes = {}, {}
    theirs = bench_peers.transformers_model(decoder)
    for batch in BATCHES:
        cache = FullCache(decoder.geometry, max(contexts) + 1, batch)
        ours = sweeps.DecodeStep(decoder, cache, max(contexts))
        for context in contexts:
            step_bytes[batch, context] = ours.bytes_at(context)
            steps["ours", batch, context] = ours.at(context)
            if theirs is not None:
                steps["transformers", batch, context] = bench_peers.transformers_step(theirs, cache, context)
    llama = bench_peers.llama_cpp_steps(decoder, contexts)
    steps |= {("llama.cpp", 1, context): step for context, step in (llama or {}).items()}
    return steps, step_bytes


def tokens_steps(decoder: Decoder, contexts: Sequence[int]) -> dict:
    """Steps of several tokens by ("tokens", t, context), at batch 1, all over one cache."""
    cache = FullCache(decoder.geometry, max(contexts) + max(TOKENS))
    cache.fill(max(contexts))

    def step(newest: torch.Tensor, context: int) -> torch.Tensor:
        cache.rewind(context)
        return decoder.decode(newest, cache)

    return {
        ("tokens", tokens, context): functools.partial(step, torch.zeros(1, tokens, dtype=torch.long), context)
        for tokens in TOKENS
        for context in contexts
    }


def mixed_steps(decoder: Decoder, held: int = HELD, chunks: Sequence[int] = CHUNKS) -> dict:
    """Steps by ("mixed", chunk) and ("apart", chunk) over one pool: `ANSWERS` sessions grow by a token, and one more
    reads a chunk of its prompt; each has `held` tokens behind it."""
    blocks = -(-(held + max(chunks)) // BLOCK)
    pool = BlockPool(decoder.geometry, (ANSWERS + 1) * blocks, BLOCK, blocks * BLOCK)
    tables = [list(range(i * blocks, (i + 1) * blocks)) for i in range(ANSWERS + 1)]
    answers, prompt = PagedCache(pool, tables[:-1], held), PagedCache(pool, tables[-1:], held)
    newest = torch.zeros(ANSWERS, 1, dtype=torch.long)

    def mixed(piece: torch.Tensor) -> list[torch.Tensor]:
        answers.rewind(held)
        prompt.rewind(held)
        return decoder.mixed([(newest, answers), (piece, prompt)])

    def apart(piece: torch.Tensor) -> list[torch.Tensor]:
        answers.rewind(held)
        prompt.rewind(held)
        return [decoder.decode(newest[:, 0], answers), decoder.prefill(piece, prompt)]

    pieces = {chunk: torch.zeros(1, chunk, dtype=torch.long) for chunk in chunks}
    return {
        (way.__name__, chunk): functools.partial(way, piece)
        for chunk, piece in pieces.items()
        for way in (mixed, apart)
    }


def attention_steps(tokens: int = ATTENTION_TOKENS, layers: int = ATTENTION_LAYERS) -> tuple[dict, dict]:
    """Steps by (form, precision), each over `layers` layers, and the bytes of cache that each reads."""
    cpu = kernels.select("cpu")
    shape = (1, ATTENTION_KV_HEADS, tokens, 64)
    generator = torch.Generator().manual_seed(0)
    caches = {"float32": [], "int8": [], "int4": []}
    for _ in range(layers):
        k, v = (torch.randn(shape, generator=generator) for _ in range(2))
        caches["float32"].append((k, v))
        caches["int8"].append((*quantize.int8_per_token(k), *quantize.int8_per_token(v)))
        packed = []
        for x in (k, v):
            levels, scale, zero = quantize.per_token(x, 4, 32)
            packed.append((quantize.pack_int4(levels), scale, zero))
        caches["int4"].append(packed)
    attends = {
        "float32": lambda q, k, v: cpu.decode_attention(q, k, v, tokens),
        "int8": lambda q, *stored: cpu.decode_attention_int8(q, *stored, tokens),
        "int4": lambda q, k, v: cpu.decode_attention_int4(q, *k[:2], *v[:2], tokens, k[2], v[2]),
    }
    steps, read_bytes = {}, {}
    for form, group in ATTENTION_FORMS.items():
        q = torch.randn(1, ATTENTION_KV_HEADS * group, 64, generator=generator)
        for precision, attend in attends.items():
            stored = caches[precision]
            steps[form, precision] = lambda q=q, attend=attend, stored=stored: [attend(q, *layer) for layer in stored]
            read_bytes[form, precision] = sum(_bytes(layer) for layer in stored)
    return steps, read_bytes


def _bytes(stored) -> int:
    return stored.nbytes if isinstance(stored, torch.Tensor) else sum(map(_bytes, stored))


def measure(contexts: Sequence[int], seconds: float) -> list[dict]:
    """Everything in one interleaved sweep; the rows of the table."""
    kernels.select("cpu").warm_up()
    decoder = Decoder(geometry.get(MODEL))
    steps, step_bytes = decode_steps(decoder, contexts)
    several = tokens_steps(decoder, [context for context in TOKENS_CONTEXTS if context in contexts])
    beside = mixed_steps(decoder)
    attention, attention_bytes = attention_steps()
    reading, read = devices.read_step(torch.device("cpu"))
    size = 1024
    a, b = torch.ones(size, size), torch.ones(size, size)
    everything = {READ: reading, MATMUL: lambda: a @ b, **steps, **several, **beside, **attention}
    timed = timing.Clock("cpu").sweep(everything, seconds, label="bench", lead_in_seconds=LEAD_IN_SECONDS)
    rate = read / timed[READ].median
    rows = [
        row(READ, rate / 1e9, "GB/s"),
        row(MATMUL, 2 * size**3 / timed[MATMUL].median / 1e9, "GFLOP/s"),
        *decode_rows(timed, step_bytes, rate, PEERS),
        *tokens_rows(timed),
        *mixed_rows(timed),
        *attention_rows(timed, attention_bytes, rate),
    ]
    busy = [str(key) for key, each in timed.items() if each.verdict == "busy"]
    if busy:
        print(f"{len(busy)} of {len(timed)} points varied too much to trust: close what else runs and measure again.")
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring, all points together")
    parser.add_argument("--out", default="build/bench.json", help="file to write")
    options = parser.parse_args(arguments)
    rows = measure(sweeps.CONTEXTS, options.seconds)
    print(table(rows))
    versions = {
        package: metadata.version(package)
        for package in ("torch", "numba", "transformers", "llama-cpp-python")
        if bench_peers.installed(package.replace("-python", "").replace("-", "_"))
    }
    report = {
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "machine": devices.name_of(torch.device("cpu")),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "versions": versions,
        "rows": rows,
    }
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"Written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
