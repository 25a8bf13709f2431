"""Known wrong answers of unit 08, and other right ones."""


def line(slope=2.7586, intercept=37.241):
    return f'line = {{"slope": {slope}, "intercept": {intercept}}}'


def infer(body):
    head = "def infer(slope, intercept, weight_bytes, kv_bytes_per_token):"
    return f"{head}\n    W, k = weight_bytes, kv_bytes_per_token\n    return {body}"


def machines(**changes):
    right = ["no room", "no room", "possible", "possible", "too slow", "possible"]
    names = ["1 × H200", "4 × A100-80GB", "8 × H100", "20 × L4", "4 × DGX Spark", "1 × H200, weights in 4.5 bits"]
    given = dict(zip(names, right, strict=True)) | {names[int(key[1:])]: value for key, value in changes.items()}
    return f"machines = {given!r}"


def refuted(arithmetic=0.8524, growth=80):
    return f'refuted = {{"arithmetic at 30,000": {arithmetic}, "growth with half the weights": {growth}}}'


def decode(body):
    arrays = "t, f, n = (np.asarray(x, float) for x in (tpot_ms, ttft_ms, answer_tokens))"
    return f"def decode_ms(tpot_ms, ttft_ms, answer_tokens):\n    {arrays}\n    return {body}"


def diagnose(*lines):
    return "def diagnose(trace):\n" + "\n".join("    " + text for text in lines)


COLUMNS = "c = {name: np.asarray(values, float) for name, values in trace.items()}"
GROWTH = "growth = lambda x: x.max() / x.min() - 1"
DECODE = 'decode = c["tpot_ms"] - c["ttft_ms"] / c["answer_tokens"]'
MISSES = 'if growth(c["tpot_ms"]) > 0.3 and growth(decode) < growth(c["tpot_ms"]) / 3: return "prefix misses"'
FIXED = 'if growth(decode) < 0.2: return "a fixed cost per step"'
BATCH = 'if growth(c["context"]) < 0.3: return "the batch grows"'
SHARE = 'share = lambda k: 1e3 / np.polyfit(c["weight_gb"] + c[k], decode, 1)[0] / c["bandwidth_gb_per_s"]'
GROWS = 'if share("cache_gb") > 0.45: return "the cache grows"'
WINDOWS = 'if share("cache_gb_all") > 0.45: return "windows are not used"'
UNSPLIT = 'return "the context is not split"'


def stacked(**parts):
    """The reference with some lines replaced."""
    lines = {
        "weights": "min([1.0, *(x.weights for x in chosen)])",
        "cache": "min([1.0, *(x.cache for x in chosen)])",
        "held": "min([service.context, *(x.keep for x in chosen if x.keep)])",
        "shared": "min(held, max([0, *(x.shared for x in chosen)]))",
        "tokens": "service.batch * (held - shared) + shared",
        "size": "service.weight_bytes * weights + service.kv_bytes_per_token * cache * tokens",
        "result": "1e3 * size / service.bytes_per_second",
    } | parts
    body = "\n".join(f"    {name} = {text}" for name, text in lines.items())
    return f"def stacked_ms(service, chosen):\n{body}\n    return result"


FOUR = ["fp8 cache", "weights in 4.5 bits", "compaction at 16,000", "system prompt of 4,000 read once"]


def plan(*names):
    return f"plan = {list(names)!r}"


WRONG = {
    "08.1": [
        (line(slope=2.6667), "29,000"),
        (line(slope=4.0), "more tokens add"),
        (line(slope=2.7586e-3), "give microseconds"),
        (line(slope=2.7586e-6), "give microseconds"),
        (line(slope=362.5), "Upside down"),
        (line(intercept=40), "no history is shorter"),
        (line(intercept=42.759), "take it off"),
        (line(intercept=0.037241), "give milliseconds"),
    ],
    "08.2": [
        (infer("W / intercept, slope * W / intercept / k"), "batch comes first"),
        (infer("k * intercept / (slope * W), W / intercept"), "Upside down"),
        (infer("slope * W / intercept, W / intercept"), "divide by what one session brings"),
        (infer("W / k, W / intercept"), "slope is not in it"),
        (infer("slope * W / intercept / k, intercept / W"), "Upside down"),
        (infer("slope * W / intercept / k, k / slope"), "one session's cache"),
        (infer("slope * W / intercept / k, W / intercept / 1e9"), "bytes per second"),
        (infer("round(slope * W / intercept / k), W / intercept"), "leave the fraction"),
        (infer("slope * W / intercept / k"), "two numbers"),
    ],
    "08.3": [
        (machines(_0="possible"), "141 GB"),
        (machines(_1="possible"), "320 GB"),
        (machines(_2="no room"), "640 GB"),
        (machines(_3="too slow"), "6.00 TB/s"),
        (machines(_4="possible"), "1.09 TB/s"),
        (machines(_5="no room"), "infer the batch anew"),
        (machines(_2="maybe"), "choose one of"),
    ],
    "08.4": [
        (refuted(arithmetic=0.0275), "serves 31"),
        (refuted(arithmetic=0.5443), "history out"),
        (refuted(arithmetic=0.3080), "weights out"),
        (refuted(arithmetic=6.819), "one GPU"),
        (refuted(arithmetic=0.0008524), "milliseconds"),
        (refuted(arithmetic=0.5802), "two FLOPs"),
        (refuted(growth=40), "slope is cache"),
        (refuted(growth=101.379), "growth is asked for"),
        (refuted(growth=18.62), "new intercept"),
        (refuted(growth=120), "between the two points"),
    ],
    "08.5": [
        (decode("t - f"), "once an answer"),
        (decode("f / n"), "decoding is the rest"),
        (decode("t + f / n"), "in there already"),
        (decode("t - f / (n - 1)"), "one token too few"),
        (decode("t * n - f"), "divide by its tokens"),
        (decode("(t * n - f) / (n - 1)"), "as unit 01 does"),
        (decode("[40.0, 19.0, 27.0]"), "has shape [3]"),
    ],
    "08.6": [
        (diagnose('return "the cache grows"'), "is taken for 'the cache grows'"),
        (diagnose(COLUMNS, GROWTH, BATCH, 'return "the cache grows"'), "is taken for"),
        (diagnose(COLUMNS, GROWTH, 'decode = c["tpot_ms"]', FIXED, BATCH, SHARE, GROWS, WINDOWS, UNSPLIT),
         "Take TTFT out"),
        (diagnose(COLUMNS, GROWTH, DECODE, MISSES, BATCH, SHARE, GROWS, WINDOWS, UNSPLIT), "Does decoding grow at all"),
        (diagnose(COLUMNS, GROWTH, DECODE, MISSES, FIXED, SHARE, GROWS, WINDOWS, UNSPLIT), "Does the context move"),
        (diagnose(COLUMNS, GROWTH, DECODE, MISSES, FIXED, BATCH, SHARE, GROWS, UNSPLIT), "cache_gb_all"),
        (diagnose(COLUMNS, GROWTH, DECODE, MISSES, FIXED, BATCH, SHARE, 'return "the cache grows"'), "taken for"),
        (diagnose('return "gremlins"'), "none of the six causes"),
        (diagnose("return 3"), "returned int"),
        ("turn = iter([*CAUSES] * 99)\n" + diagnose("return next(turn)"), "traces are right"),
    ],
    "08.7": [
        (stacked(tokens="service.context"), "You left the batch out"),
        (stacked(result="size / service.bytes_per_second"), "milliseconds"),
        (stacked(cache="np.prod([1.0, *(x.cache for x in chosen)])"), "two formats of one cache"),
        (stacked(held="max([x.keep for x in chosen if x.keep] or [service.context])"), "the longer one"),
        (stacked(tokens="service.batch * held"), "still read by every session"),
        (stacked(tokens="service.batch * (held - shared)"), "read the shared tokens once"),
        (stacked(weights="min([1.0, *(x.weights * x.cache for x in chosen)])"), "cache's factor too"),
        (stacked(cache="1.0"), "changes nothing"),
        (stacked(result="1e3 * service.tpot_seconds(chosen)"), "no attribute 'tpot_seconds'"),
        (stacked(tokens="31 * (held - shared) + shared"), "take all five"),
    ],
    "08.8": [
        (plan("a window of 4,096 behind the system prompt", "int4 cache, keys per channel", *FOUR[::2]),
         "breaks a limit"),
        (plan("fp8 cache", "weights in 4.5 bits", "compaction at 16,000", "prefix caching"), "leaves the bytes"),
        (plan("fp8 cache", "weights in 4.5 bits", "prefix caching", "kernels fused"), "leaves the bytes"),
        (plan(*FOUR[:3]), "four names"),
        (plan(*FOUR[:3], "fp8 cache"), "shipped once"),
        (plan(*FOUR[:3], "cascade"), "'cascade' is no lever"),
        (plan(*FOUR[:3], "int4 cache, keys per channel"), "breaks a limit"),
        ('plan = "fp8 cache"', "list of four"),
    ],
}  # fmt: skip

RIGHT = {
    "08.1": [line(slope="80e3 / 29_000", intercept=37.2), "import torch\n" + line(slope="torch.tensor(2.7586)")],
    "08.2": [
        infer("(slope * W / (intercept * k), W / intercept)"),
        infer("[slope / intercept * W / k, W / intercept]"),
    ],
    "08.3": [machines(_0=" No room ")],
    "08.4": [refuted(arithmetic=0.85, growth=80.0)],
    "08.5": [decode("(t * n - f) / n"), decode("[float(x) for x in t - f / n]")],
    "08.6": [
        diagnose(COLUMNS, GROWTH, DECODE, FIXED.replace("growth(decode) < 0.2", "growth(c['tpot_ms']) < 0.2"), MISSES,
                 BATCH, SHARE, GROWS, WINDOWS, UNSPLIT),
        "told = diagnose\n" + diagnose("return f' {told(trace).title()}'"),
    ],
    "08.7": [stacked(shared="max([0, *(min(held, x.shared) for x in chosen)])")],
    "08.8": [plan(*reversed(FOUR)), f"plan = tuple({FOUR!r})"],
}  # fmt: skip
