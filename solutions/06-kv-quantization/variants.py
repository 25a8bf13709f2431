"""What another class is asked in unit 06: see tools/givens.py."""

from helpers.models.counts import kv_bytes
from helpers.models.geometry import get


def givens(pick):
    # A head_dim of 128 each: 28 and 31 %, as the unit goes on to say.
    model = pick("Llama-3.1-8B", "Qwen3-8B", "Qwen3-32B", "Llama-3.1-70B", "phi-4")
    g = get(model)
    return {
        "model": model,
        "layers": g.layers,
        "kv_heads": g.kv_heads,
        "bytes": kv_bytes(g, 1),
        "vectors": 2 * g.layers * g.kv_heads,
        "group": g.group_size,
    }


TEXT = [
    "{model} has {layers} layers, {kv_heads} KV heads and a head_dim of 128; in bfloat16"
    " the cache takes {bytes:,} bytes",
    "over {layers} layers and {kv_heads} KV heads?",
    "heads = 2 * {layers} * {kv_heads}",
]
