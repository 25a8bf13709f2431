"""What another class is asked in unit 02: see tools/givens.py."""

from helpers import data
from helpers.models.counts import kv_bytes, resident_bytes
from helpers.models.geometry import get


def row(name: str) -> str:
    g = get(name)
    return f"{g.layers} | {g.hidden:,} | {g.q_heads} | {g.kv_heads} | {g.head_dim}"


def product(name: str) -> str:
    g = get(name)
    return f"2 * {g.layers} * {g.kv_heads} * {g.head_dim} * 2"


def givens(pick):
    models = {
        "a": pick("Llama-2-7b-hf", "pythia-6.9b", "Phi-3-mini-128k-instruct"),
        "b": pick("Llama-3.1-8B", "Qwen3-8B", "Qwen2.5-7B"),
        "c": pick("Llama-3.1-70B", "Qwen2.5-72B", "Qwen2.5-32B", "Llama-3.1-405B"),
        "d": pick("Qwen3-4B", "Qwen3-32B"),
        "f": pick("SmolLM2-135M", "SmolLM2-360M", "Qwen2.5-0.5B", "Llama-3.2-1B"),
    }
    a, b, d = (get(models[key]) for key in "abd")
    gpu = pick("L4", "RTX 5090", "A100-40GB SXM", "RTX 4090")
    given = {
        "models": (*(models[k] for k in "abcd"), "Mixtral-8x7B-v0.1", models["f"]),
        "pair": (models["a"], models["b"]),
        "model": models["b"],
        "gpu": gpu,
        "shown": gpu.split("-")[0],
        "gb": data.device(gpu)["capacity_GB"],
        "length": pick(4_096, 2_048, 3_000, 5_000, 6_144, 8_192),
        "wide": f"{d.hidden} / {d.q_heads} would be {d.hidden // d.q_heads}",
        "narrow": 2 * d.layers * d.kv_heads * d.hidden // d.q_heads * 2,
        "query": kv_bytes(b, 1) * b.group_size,
        "one": kv_bytes(get(models["f"]), 1) // get(models["f"]).layers,
        "group": b.group_size,
        "a_layers": a.layers,
        "b_heads": b.kv_heads,
    }
    for key, name in models.items():
        given |= {key: name, f"{key}_row": row(name), f"{key}_kv": product(name)}
    for key, g in {"a": a, "b": b}.items():
        given |= {f"{key}_bytes": kv_bytes(g, 1), f"{key}_all": resident_bytes(g) / 2}
        given[f"{key}_table"] = g.vocab * g.hidden
        given[f"{key}_params"] = f"{resident_bytes(g) / 2e9:.3f}e9"
        given[f"{key}_embedding"] = f"{g.vocab * g.hidden / 1e9:.3f}e9"
    return given


TEXT = [
    'SIX = ["{a}", "{b}", "{c}"]',
    'SIX += ["{d}", "Mixtral-8x7B-v0.1", "{f}"]',
    *(f"| {{{k}}} | {{{k}_row}} | |" for k in "abcdf"),
    *((f'"{{{k}}}": None,', 2) for k in "ab"),
    *(f'"{{{k}}}": None,' for k in "cdf"),
    *(f'"{{{k}}}": {{{k}_kv}}' for k in "abcdf"),
    "is {d}'s head_dim what hidden",
    "a number of its own: {wide}",
    *(f"| {{{k}}} | {{{k}_params}} | {{{k}_embedding}} |" for k in "ab"),
    *(
        f'"{{{k}}}": ({{{k}_params}} - {{{k}_embedding}}) * 2 / {{{k}_bytes:_}}'
        for k in "ab"
    ),
    "**Exercise 02.3** (4 minutes). {b} in bfloat16 on an {shown} with {gb} GB",
    "how many sequences of {length:,} tokens fit",
    "left of the {gb} GB once",
    "one sequence of {length:,} tokens take",
    "int(({gb}e9 - {b_params} * 2) / ({length:_} * {b_bytes:_}))",
]
