"""What another class is asked in unit 04: see tools/givens.py."""

from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.geometry import get


def givens(pick):
    window = pick(2_048, 2_560, 3_072, 4_096, 5_120)
    context = pick(32_768, 16_384, 24_576, 49_152, 65_536)
    old, new = get("Llama-2-7b-hf"), get("Llama-3.1-8B")
    wide = pick("gpt-oss-20b", "gpt-oss-120b")
    small = pick("Gemma-3-4b-it", "Gemma-3-1b-it", "Gemma-3-12b-it", "Gemma-3-27b-it")

    def gain(g, sessions):
        full = weight_bytes(g) + sessions * kv_bytes(g, context)
        return full / (weight_bytes(g) + sessions * kv_bytes(g, window + 4))

    times = context / (window + 4)
    usual = (window, context) == (2_048, 32_768)
    given = {
        "window": window,
        "rows": window + 4,
        "context": context,
        "old_full": kv_bytes(old, context) / 1e9,
        "new_full": kv_bytes(new, context) / 1e9,
        "old_capped": kv_bytes(old, window + 4) / 1e9,
        "new_capped": kv_bytes(new, window + 4) / 1e9,
        "new_gain_8": f"{gain(new, 8):.1f}",
        "times": "sixteen" if usual else f"{times:.0f}",
        "wide": wide,
        "small": small,
        "small_said": small.removesuffix("-it"),
    }
    for key, g in {"w": get(wide), "s": get(small)}.items():
        full = g.layers - g.sliding_layers
        shape = f"{g.kv_heads} | {g.head_dim} |"
        row = f"{g.layers} | {g.sliding_layers} | {g.sliding_window:,} | {shape}"
        given |= {f"{key}_row": row, f"{key}_full": full, f"{key}_layers": g.layers}
        given[f"{key}_subtract"] = f"{g.layers} - {g.sliding_layers}"
        given[f"{key}_bytes"] = f"2 * {full} * {g.kv_heads} * {g.head_dim} * 2"
        given[f"{key}_sliding"] = g.sliding_layers
        given[f"{key}_all"] = kv_bytes(g, 1)
        given[f"{key}_last"] = f"{g.sliding_window:,}"
    return given


TEXT = [
    "4 sinks and a window of {window:,} tokens, one sequence",
    ("(4 + {window:_}) * 2 * 32", 2),
    "At {context:,} tokens of history the full cache of the two models holds "
    "{old_full:.2f} and {new_full:.2f} GB",
    "TPOT full ÷ TPOT capped, at {context:,} tokens",
    "the {times} times of the caches alone",
    "(13.21 + {old_full:.2f}) / (13.21",
    "(15.01 + {new_full:.2f}) / (15.01",
    "the same cap gives Llama-3.1-8B {new_gain_8} times",
    "min(c, {rows:_}) * per_token",
    "What 4 sinks + {window:,} can buy",
    "In {wide} every second layer sees the last {w_last} tokens",
    "In {small_said}, five layers in a row see the last {s_last} tokens",
    "| {wide} | {w_row}",
    "| {small} | {s_row}",
    '"{wide}, layers": None',
    '"{wide}, bytes per token": None',
    '"{wide}, rows for its sinks": None',
    '"{small}, layers": None',
    '"{small}, bytes per token": None',
    '"{wide}, layers": {w_subtract}',
    '"{wide}, bytes per token": {w_bytes}',
    '"{wide}, rows for its sinks": 0',
    '"{small}, layers": {s_subtract}',
    '"{small}, bytes per token": {s_bytes}',
]
