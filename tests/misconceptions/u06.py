"""Known wrong answers of unit 06, and other right ones."""

NAMES = [
    "fp8, no scales",
    "int8, a 2-byte scale per token and head",
    "int4, groups of 64, 2-byte scale and 2-byte zero",
    "int4, groups of 32, 2-byte scale and 2-byte zero",
]


def counts(*per_vector, factor=1):
    """The four counts from bytes a vector: a key or a value of 128 numbers."""
    values = [f"{name!r}: {factor} * G.vectors * {size}" for name, size in zip(NAMES, per_vector, strict=True)]
    return f"quantized_bytes = {{{', '.join(values)}}}"


def int8(*lines, result="torch.round(x / scale[..., None]).to(torch.int8), scale"):
    body = [*lines, f"return {result}"]
    return "def quantize_int8(x):\n" + "\n".join("    " + line for line in body)


def levels(scale="(high - low) / (2**bits - 1)", level="torch.round((x - low) / scale)", zero="low", dim="dim"):
    return (
        "def quantize_levels(x, bits, dim):\n"
        f"    low, high = x.amin({dim}, keepdim=True), x.amax({dim}, keepdim=True)\n"
        f"    scale = {scale}\n"
        f"    return ({level}).to(torch.uint8), scale, {zero}"
    )


def packing(pack="low | high << 4", halves="levels.chunk(2, -1)"):
    return f"def pack_int4(levels):\n    low, high = {halves}\n    return {pack}"


def restore(k_dim=2, v_dim=3, bits="bits", k_size="size", v_size="size", k="k", v="v"):
    return f"""
def restore_kv(k, v, bits=4, size=32):
    def back(x, dim, size):
        levels, scale, zero = quantize_levels(x.unflatten(dim, (-1, size)), {bits}, dim + 1)
        return (levels * scale + zero).flatten(dim, dim + 1)
    exact_k, exact_v = k, v
    k, v = back(k, {k_dim}, {k_size}), back(v, {v_dim}, {v_size})
    return {k}, {v}
"""


def count(body):
    return f"def quantized_bytes_per_token(geometry, bits, group, extra_bytes):\n    g = geometry\n    return {body}"


ALL = "2 * g.layers * g.kv_heads * g.head_dim"

WRONG = {
    "06.1": [
        (counts(128, 130, 72, 80, factor=0.5), "forgot V"),
        (counts(128, 128, 72, 80), "left out the scales"),
        (counts(128, 130, 64, 64), "left out the scales"),
        (counts(128, 130, 136, 144), "two levels share one"),
        (counts(128, 130, 72, 80, factor="1 / G.layers"), "one layer"),
        (counts(128, 130, 72, 80, factor="G.group"), "query heads"),
        (counts(128, 130, 68, 80), "forgot the zero"),
        (counts(128, 129, 72, 80), "the key has one and the value has one"),
        ("quantized_bytes = 65_536", "stay a dict"),
    ],
    "06.2": [
        ('break_even_tokens = {"H100": 0.14 / 4.37e-5, "B200": 3_623}', "bf16 slope"),
        ('break_even_tokens = {"H100": 0.14 / 2.37e-5, "B200": 3_623}', "fp8 slope"),
        ('break_even_tokens = {"H100": 7_000, "B200": 3.96 / 8.28e-6}', "whole intercept"),
        ('break_even_tokens = {"H100": 7_000, "B200": -3_623}', "other way round"),
        ('break_even_tokens = {"H100": 0.14 / (4.37e-5 + 2.37e-5), "B200": 3_623}', "added the slopes"),
        ('break_even_tokens = {"H100": 7_000}', "no entry 'B200'"),
    ],
    "06.3": [
        (int8("scale = x.abs().amax(-1) / 128"), "divided by 128"),
        (int8("scale = x.amax(-1) / 127"), "without abs"),
        (int8("scale = (x.amax(-1) - x.amin(-1)) / 255"), "minimum to maximum"),
        (
            int8("scale = x.abs().amax(-1) / 127", result="(x / scale[..., None]).to(torch.int8), scale"),
            "without rounding",
        ),
        (int8("scale = (x.abs().amax() / 127).expand(x.shape[:-1])"), "One scale for the whole tensor"),
        (
            int8("scale = x.abs().max() / 127", result="torch.round(x / scale).to(torch.int8), scale"),
            "one scale for all",
        ),
        (
            int8(
                "scale = x.abs().amax((-2, -1), keepdim=True) / 127",
                result="torch.round(x / scale).to(torch.int8), scale[..., 0].expand(x.shape[:-1])",
            ),
            "all tokens of a head",
        ),
        (
            int8("scale = x.abs().amax(-1) / 127", result="x.div_(scale[..., None]).round().to(torch.int8), scale"),
            "changes the tensor",
        ),
        (
            int8(
                "scale = x.abs().amax(-1) / 127",
                result="torch.round(x / scale[..., None]).to(torch.int8), scale.half()",
            ),
            "float32",
        ),
        (int8("scale = x.abs().amax(-1) / 127", result="torch.round(x / scale[..., None]), scale"), "int8 tensor"),
        (
            int8("scale = 127 / x.abs().amax(-1)", result="torch.round(x * scale[..., None]).to(torch.int8), scale"),
            "127 / max",
        ),
        (int8("scale = x.abs().amax(-1) / 127", result="torch.round(x / scale[..., None]).to(torch.int8)"), "2 things"),
    ],
    "06.4": [
        (
            levels(scale="(high - low) / 2**bits", level="torch.round((x - low) / scale).clamp(0, 2**bits - 1)"),
            "2**bits",
        ),
        (levels(level="(x - low) / scale"), "rounding"),
        (levels(level="torch.round(x / scale)"), "subtract the minimum"),
        (levels(scale="(high - low) / 15"), "ignored `bits`"),
        (levels(dim="-1"), "ignored `dim`"),
        (levels(zero="-low"), "not minus the minimum"),
        (levels(scale="x.abs().amax(dim, keepdim=True) / (2**bits - 1)"), "largest magnitude"),
    ],
    "06.5": [
        (packing(pack="high | low << 4"), "swapped"),
        (packing(halves="levels[..., ::2], levels[..., 1::2]"), "neighbours"),
        (packing(halves="levels[..., 1::2], levels[..., ::2]"), "neighbours, the first of them high"),
        (packing(pack="low + high"), "added the halves"),
        (packing(pack="low | high << 8"), "8 bits"),
        (packing(pack="(low.int() | high.int() << 4)"), "uint8"),
    ],
    "06.6": [
        (restore(k_dim=3), "loud channel"),
        (restore().replace("dim + 1)", "dim)", 1), "so-many-th token"),
        (restore(v_dim=2), "loud token"),
        (restore(k="exact_k"), "returned k as it was"),
        (restore(v="exact_v"), "returned v as it was"),
        (restore(k="v", v="k"), "values first"),
        (restore(bits="4"), "ignored `bits`"),
        (restore(v_size="4"), "ignored `size`"),
        (restore(bits="8"), "8 bits"),
        (restore(k_size="k.shape[2]"), "one scale over all tokens"),
        (restore(v_size="v.shape[3]"), "one scale over all dims"),
    ],
    "06.7": [
        (count(f"{ALL} * (bits / 8 + extra_bytes / group) / 2"), "forgot V"),
        (count(f"{ALL} * bits / 8"), "left out the extra bytes"),
        (count(f"{ALL} * (bits / 8 + 2 * extra_bytes / group)"), "scale and zero together"),
        (count(f"{ALL} * (bits + extra_bytes / group)"), "divide by 8"),
        (count(f"{ALL} * (bits // 8 + extra_bytes / group)"), "rounded the half byte"),
        (count("2 * g.layers * g.q_heads * g.head_dim * (bits / 8 + extra_bytes / group)"), "query heads"),
        (count(f"{ALL} * bits / 8 + extra_bytes"), "counted the extra bytes once"),
        (count("2 * g.kv_heads * g.head_dim * (bits / 8 + extra_bytes / group)"), "one layer"),
        (
            count("2 * g.layers * g.kv_heads * (g.hidden // g.q_heads) * (bits / 8 + extra_bytes / group)"),
            "a number of its own",
        ),
    ],
    "06.8": [
        ("fp8_gain = {2_048: 100.0, 32_768: 100.0}", "left the weights out"),
        ("fp8_gain = {2_048: 1.01843, 32_768: 1.2309}", "not the gain"),
        ("fp8_gain = {2_048: 0.01843, 32_768: 0.2309}", "a fraction"),
        ("fp8_gain = {2_048: 1.8094, 32_768: 18.761}", "shorter a step"),
        ("fp8_gain = {2_048: 1.8, 32_768: 23.1}", "two decimals"),
        ("fp8_gain = {2_048: 1.843, 32_768: 100.0}", "weights out"),
    ],
    "06.9": [
        ('int4_speedup = {"by bytes": 4.0, "by instructions": 1.61}', "4.5 bits"),
        ('int4_speedup = {"by bytes": 4.5 / 16, "by instructions": 1.61}', "inverse"),
        ('int4_speedup = {"by bytes": 3.556, "by instructions": 6.2 / 7.7}', "2 bytes"),
        ('int4_speedup = {"by bytes": 3.556, "by instructions": 7.7 / 12.4}', "inverse"),
        ('int4_speedup = {"by bytes": 8 / 4.5, "by instructions": 1.61}', "bf16 has 16"),
        ('int4_speedup = {"by bytes": 3.556, "by instructions": 3.556}', "own bytes"),
    ],
}

RIGHT = {
    "06.1": [
        counts(128, 130, 72, 80, factor="np.int64(1)"),
        counts(128, 130, 72, 80) + "\nquantized_bytes = dict(sorted(quantized_bytes.items(), reverse=True))",
    ],
    "06.2": [
        'break_even_tokens = {"H100": torch.tensor(7010.0), "B200": np.float32(3623)}',
        'break_even_tokens = {"H100": 7_020, "B200": 4_000}',  # vLLM's own words for the B200: roughly 4k
        'break_even_tokens = {"H100": 7_500, "B200": 2_420}',  # 0.15 and 0.02 ms, which the rounding allows
    ],
    "06.3": [
        int8(
            "scale = torch.linalg.vector_norm(x, ord=float('inf'), dim=3, keepdim=True) / 127",
            result="(x / scale).round().char(), scale.squeeze(3)",
        ),
        int8("scale = x.abs().amax(-1) / 127 + 1e-8"),  # as many do, against a division by zero
    ],
    "06.4": [
        levels(level="((x - low) * (2**bits - 1) / (high - low) + 0.5).floor()"),
        # The engine's own.
        "from helpers.kernels import quantize\n"
        "def quantize_levels(x, bits, dim):\n    return quantize.asymmetric(x, bits, dim)",
    ],
    "06.5": [
        packing(
            pack="low + 16 * high",
            halves="levels[..., : levels.shape[-1] // 2], levels[..., levels.shape[-1] // 2 :]",
        )
    ],
    "06.6": [
        restore(k_dim=-2, v_dim=-1)
        .replace("dim + 1)", "dim)", 1)
        .replace("flatten(dim, dim + 1)", "flatten(dim - 1, dim)"),
        # Scale and zero of 2 bytes each, as 06.1 counts them.
        *(
            restore().replace("(levels * scale + zero)", f"(levels * scale.{kind}().float() + zero.{kind}().float())")
            for kind in ("half", "bfloat16")
        ),
        restore().replace("(levels * scale + zero)", "(levels * scale.half() + zero.half()).float()"),
    ],
    "06.7": [
        count("2 * sum(g.kv_heads * g.head_dim / group * (group * bits / 8 + extra_bytes) for _ in range(g.layers))")
    ],
    "06.8": ["fp8_gain = {2_048: np.float64(1.843), 32_768: 23.09}", "fp8_gain = {2_048: 1.84, 32_768: 23.2}"],
    "06.9": [
        'int4_speedup = {"by bytes": np.array(3.5556), "by instructions": 1.6104}',
        'int4_speedup = {"by bytes": 3.6, "by instructions": 1.6}',
    ],
}

NEAR = {
    "06.2": [
        'break_even_tokens = {"H100": 7_000, "B200": 2_000}',
        'break_even_tokens = {"H100": 10_000, "B200": 3_623}',
    ]
}
