"""What another class is asked in unit 03: see tools/givens.py."""

from helpers.models.counts import kv_bytes
from helpers.models.geometry import get


def row(name: str) -> str:
    g = get(name)
    return f"{g.layers} | {g.hidden:,} | {g.q_heads} | {g.kv_heads} | {g.head_dim}"


def product(name: str) -> str:
    g = get(name)
    return f"2 * {g.layers} * {g.kv_heads} * {g.head_dim} * 2"


def givens(pick):
    mha = pick("Llama-2-7b-hf", "pythia-6.9b", "Phi-3-mini-128k-instruct")
    gqa = pick("gpt-oss-120b", "gpt-oss-20b", "Qwen3-32B")
    mla = pick("DeepSeek-V2-Lite", "DeepSeek-V2")
    split = pick("Llama-3.1-405B", "Llama-3.1-70B", "Qwen2.5-72B", "Qwen3-32B")
    # Small whole numbers, each of them other than its neighbours.
    w = pick((1, 0, 2, 0, 1, -1), (2, 1, 0, -1, 0, 3), (1, 3, 0, 2, 0, -1))
    q = pick((3, 1), (2, 3), (4, 1), (3, 2))
    c1 = pick((1, 2, 0), (2, 1, 3), (3, 1, 0), (1, 4, 2))
    c2 = pick((0, 1, 1), (1, 0, 2), (0, 3, 1), (4, 0, 1))
    keys = [
        (sum(x * y for x, y in zip(w[:3], c, strict=True)),
         sum(x * y for x, y in zip(w[3:], c, strict=True)))
        for c in (c1, c2)
    ]  # fmt: skip
    scores = [q[0] * x + q[1] * y for x, y in keys]
    a = [q[0] * x + q[1] * y for x, y in zip(w[:3], w[3:], strict=True)]
    wide, low, held = get(gqa), get(mla), get(split)

    def column(values):
        return " \\\\ ".join(map(str, values))

    def terms(numbers, sign=" + "):
        return sign.join(f"{n}{v}" for n, v in zip(numbers, "xyz", strict=True))

    return {
        "models": (
            mha,
            "Llama-4-Maverick-17B-128E",
            gqa,
            "falcon-7b",
            mla,
            "DeepSeek-V3",
        ),
        "mha": mha,
        "mha_row": row(mha),
        "mha_kv": product(mha),
        "gqa": gqa,
        "gqa_row": row(gqa),
        "gqa_kv": product(gqa),
        "narrow": kv_bytes(wide, 1) // wide.head_dim * (wide.hidden // wide.q_heads),
        "mla": mla,
        "mla_row": f"{low.layers} | {low.hidden:,} | {low.q_heads}",
        "mla_layers": low.layers,
        "split": split,
        "split_layers": held.layers,
        "split_heads": held.q_heads,
        "split_share": held.q_heads // 8,
        "split_half": held.q_heads // 16,
        "split_all": kv_bytes(held, 1),
        "w": w,
        "q": q,
        "c1": c1,
        "c2": c2,
        "w_tex": f"{' & '.join(map(str, w[:3]))} \\\\ {' & '.join(map(str, w[3:]))}",
        "q_tex": column(q),
        "c1_tex": column(c1),
        "c2_tex": column(c2),
        "first": q[0],
        "second": q[1],
        "sum_hint": f"{q[0]} · ({terms(w[:3])}) + {q[1]} · ({terms(w[3:])})".replace(
            "+ -", "− "
        ),
        "scores_code": ", ".join(f"{q[0]} * {x} + {q[1]} * {y}" for x, y in keys),
        "keys_said": " and ".join(map(str, keys)),
        "a_code": ", ".join(
            f"{q[0]} * {x} + {q[1]} * {y}" for x, y in zip(w[:3], w[3:], strict=True)
        ),
        "hand": [*scores, *a, 8_000, 3_006],
        "scores": scores,
        "a": a,
        "sums": [sum(key) for key in keys],
        "cut": [q[0] * c[0] + q[1] * c[1] for c in (c1, c2)],
        # Right for c1 and c2 alone: a step that is at right angles to both.
        "fits": [
            a[0] + c1[1] * c2[2] - c1[2] * c2[1],
            a[1] + c1[2] * c2[0] - c1[0] * c2[2],
            a[2] + c1[0] * c2[1] - c1[1] * c2[0],
        ],
    }


TEXT = [
    "| {mha} | MHA | {mha_row} | |",
    "| {gqa} | GQA | {gqa_row} | |",
    "| {mla} | MLA | {mla_row} | | |",
    '"{mha}": None,',
    '"{gqa}": None,',
    '"{mla}": None,',
    '"{mha}": {mha_kv}',
    '"{gqa}": {gqa_kv}',
    '"{mla}": {mla_layers} * (512 + 64) * 2',
    "W_K = \\begin{{pmatrix}} {w_tex} \\end{{pmatrix}}",
    "q = \\begin{{pmatrix}} {q_tex} \\end{{pmatrix}}",
    "c_1 = \\begin{{pmatrix}} {c1_tex} \\end{{pmatrix}}",
    "c_2 = \\begin{{pmatrix}} {c2_tex} \\end{{pmatrix}}",
    "The score is {first}",
    "times the first plus {second} times the second",
    "write {sum_hint} and sort",
    "scores = [{scores_code}]",
    "a = [{a_code}]",
    "the keys are {keys_said}",
    "{split} ({split_layers} layers, {split_heads} query",
    '("{split}", 8): None,',
    '("{split}", 16): None,',
    "its share of the query heads? {split_heads} query",
    "heads on 8 GPUs are {split_share} each",
    "On 16 GPUs a GPU has {split_half} query heads",
    '("{split}", 8): 2 * {split_layers} * 1',
    '("{split}", 16): 2 * {split_layers} * 1',
]

HIDDEN = {
    "03.6a": """\
given = [*scores, *a, multiplications["each key first"], multiplications["a first"]]
for mine, right in zip(given, {hand}, strict=True):
    assert abs(float(mine) - right) < 0.02, "not the numbers of the example\""""
}
