"""Known wrong answers of unit 01 and a phrase of the message each gets; other answers that are right."""

GENERATE = """
def generate(decoder, cache, prompt, count):
    logits = decoder.prefill(prompt[None], cache)
    for step in range(count):
        token = int(logits.argmax())
        yield token
        if step < count - 1:
            logits = decoder.decode(torch.tensor([token]), cache)
"""

LATENCY = """
def latency(sent, chunks):
    chunks = [c for c in chunks if c[1] > 0]
    n, k = sum(c[1] for c in chunks), chunks[0][1]
    if n == k:
        return chunks[0][0] - sent, float("nan")
    return chunks[0][0] - sent, (chunks[-1][0] - chunks[0][0]) / (n - k)
"""

PHASES = """
def phases(g, prompt, outputs, batch, flops_per_second, bytes_per_second):
    weight_bytes_once, per_token = weight_bytes(g), kv_bytes(g, 1)
    prefill = batch * prefill_flops(g, prompt) / flops_per_second
    decode = 0.0
    for i in range(1, outputs):
        decode += (weight_bytes_once + batch * per_token * (prompt + i)) / bytes_per_second
    return prefill, decode
"""


def changed(source: str, *pairs: tuple[str, str]) -> str:
    """`source` with each old text of `pairs` replaced; the old text must be there."""
    for old, new in pairs:
        assert old in source, old
        source = source.replace(old, new)
    return source


WRONG = {
    "01.1": [
        ("prefill_tflop = G.b * 1024 / 1e12", "one FLOP for each weight"),
        ("prefill_tflop = 2 * (G.b + 2 * G.h) * 1024 / 1e12", "input embedding"),
        ("prefill_tflop = 2 * (G.b + G.h) / 1e12", "each of the 1,024 tokens"),
        ("prefill_tflop = 2 * (G.b + G.h) * 1024 / 1e12", "output head for every token"),
        ("prefill_tflop = 1_000 * prefill_tflop", "1,000 times too large"),
        ("prefill_tflop = float('nan')", "NaN"),
        ("decode_gflop = (G.b + G.h) / 1e9", "one FLOP for each weight"),
        ("decode_gflop = 2 * (G.b + 2 * G.h) / 1e9", "input embedding"),
        ("decode_gflop = prefill_tflop * 1000", "recompute the whole prompt"),
        ("decode_gflop = 2 * G.b / 1e9", "output head"),
        ("decode_gflop = '15'", "without quotes"),
    ],
    "01.2": [
        ("prefill_intensity = 1.0", "one pass over them serves"),
        ("prefill_intensity = 2 * prefill_intensity", "one byte for each weight"),
        ("prefill_intensity = prefill_intensity / 2", "four bytes"),
        ("prefill_intensity = 1 / prefill_intensity", "turn it over"),
        ("prefill_intensity = 1_024 * prefill_intensity", "1,024 tokens again"),
        ("decode_intensity = 2.0", "one byte for each weight"),
        ("decode_intensity = 0.5", "one FLOP for each weight"),
        ("decode_intensity = prefill_intensity", "one single token"),
        ("tokens_at_ridge = 2 * G.rate * 1e3 / G.bandwidth", "twice too many"),
        ("tokens_at_ridge = G.rate * 1e3 / G.bandwidth / 2", "half"),
        ("tokens_at_ridge = G.bandwidth / (G.rate * 1e3)", "turned over"),
        ("tokens_at_ridge = G.rate / G.bandwidth", "factor of 1,000"),
    ],
    "01.3": [
        ("decode_utilisation_percent = decode_utilisation_percent / 100", "fraction"),
        ("decode_utilisation_percent = 100", "nvidia-smi"),
        ("decode_utilisation_percent = decode_utilisation_percent / 2", "one FLOP for each weight"),
        ("decode_utilisation_percent = 2 * decode_utilisation_percent", "one byte for each weight"),
        ("decode_utilisation_percent = 1_000 * decode_utilisation_percent", "spread the prefill"),
        ("batch_at_5_percent = 5", "not 1 %"),
        ("batch_at_5_percent = G.rate * 1e3 / G.bandwidth", "ridge"),
        ("batch_at_5_percent = 5 * 100 / (G.rate * 1e3 / G.bandwidth)", "divide"),
        ("batch_at_5_percent = 5 * (G.rate * 1e3 / G.bandwidth)", "fraction and per cent"),
    ],
    "01.4": [
        ("crossover_1k = 1024", "as much as one token of prefill"),
        ("crossover_1k = 2 * G.b * 1024 / G.rate / 1e12 / (2 * (G.b + G.h) / G.bandwidth / 1e9)", "peak rates"),
        ("crossover_1k = 1 / crossover_1k", "turned over"),
        ("crossover_1k = crossover_1k / 2", "one FLOP"),
        ("crossover_1k = 2 * G.b * 1024 / (0.6 * G.rate * 1e12) * 1e3", "milliseconds"),
        ("crossover_8k = 8192", "as much as one token of prefill"),
        ("crossover_8k = crossover_1k", "eight times the prefill"),
        ("crossover_8k = crossover_1k * 64", "only attention does"),
        ("crossover_8k = 0.75 * 8 * crossover_1k", "peak rates"),
        ("decode_share = 'rises'", "prefill grows with the prompt"),
        ("decode_share = 'stays'", "choose one of"),
    ],
    "01.5": [
        (changed(GENERATE, ("decoder.decode(torch.tensor([token]), cache)", "decoder.prefill(prompt[None], "
                            "cache)")),
         "run prefill again"),
        ("def generate(decoder, cache, prompt, count):\n"
         "    for _ in range(count):\n"
         "        new = FullCache(decoder.geometry, capacity=64, backend='reference')\n"
         "        token = int(decoder.prefill(prompt[None], new).argmax())\n"
         "        yield token\n"
         "        prompt = torch.cat([prompt, torch.tensor([token])])", "recomputes what the cache already "
         "holds"),
        (changed(GENERATE, ("        if step < count - 1:\n    ", "")), "the first token comes out"),
        ("def generate(decoder, cache, prompt, count):\n    decoder.prefill(prompt[None], cache)", "a `yield` line"),
        (changed(GENERATE, ("torch.tensor([token])", "prompt[-1:]")), "what does decode get"),
        (changed(GENERATE, ("range(count)", "range(count - 1)")), "you yield 0 tokens"),
        (changed(GENERATE, ("range(count)", "range(count + 1)")), "does not stop after"),
        (changed(GENERATE, ("argmax", "argmin")), "not the most likely"),
        (changed(GENERATE, ("yield token", "yield logits.argmax(-1, keepdim=True).repeat(1, 2)")), "yield "
                            "one token id"),
        ("def generate(decoder, cache, prompt, count):\n"
         "    logits = decoder.prefill(prompt[None], cache)\n"
         "    for step in range(count):\n"
         "        logits = decoder.decode(logits.argmax(-1), cache)\n"
         "        yield int(logits.argmax())", "the first token is lost"),
        ("def generate(decoder, cache, prompt, count):\n"
         "    for token in prompt:\n"
         "        logits = decoder.decode(token[None], cache)\n"
         "    for step in range(count):\n"
         "        token = int(logits.argmax())\n"
         "        yield token\n"
         "        if step < count - 1:\n"
         "            logits = decoder.decode(torch.tensor([token]), cache)", "all 5 prompt tokens in one "
         "prefill"),
        (changed(GENERATE, ("yield token", "answer.append(token)"), ("    for", "    answer = []\n    for"))
         + "    return answer\n", "returns a list when all is done"),
        (changed(GENERATE, ("prompt[None]", "prompt")), "your line:  logits = decoder.prefill(prompt, "
                            "cache)"),
        (changed(GENERATE, ("yield token", "answer = token")), "returns None"),
    ],
    "01.6": [
        ("def latency(sent, chunks):\n"
         "    n = sum(c[1] for c in chunks)\n"
         "    return chunks[0][0] - sent, (chunks[-1][0] - sent) / n", "TTFT is inside"),
        (changed(LATENCY, ("chunks[-1][0] - chunks[0][0]", "chunks[-1][0] - sent")), "TTFT is inside"),
        (changed(LATENCY, ("/ (n - k)", "/ n")), "four gaps"),
        (changed(LATENCY, ("/ (n - k)", "/ (len(chunks) - 1)")), "divide by chunks"),
        (changed(LATENCY, ("chunks[0][0] - sent, (", "chunks[0][0], (")), "time of day"),
        (changed(LATENCY, ("chunks[0][0] - sent, (", "chunks[-1][0] - sent, (")), "end-to-end"),
        (changed(LATENCY, (" if c[1] > 0", "")), "a header is not a token"),
        (changed(LATENCY, ("    chunks = [c for c in chunks if c[1] > 0]\n", ""),
                 ("return chunks[0][0] - sent, (", "return next(t for t, k in chunks if k) - sent, (")),
         "not with an empty chunk"),
        (changed(LATENCY, ("if n == k", "if n == 0")), "division by zero"),
        (changed(LATENCY, ("k = sum(c[1] for c in chunks), chunks[0][1]", "k = sum(c[1] for c in chunks), 1")),
         "came with the first chunk"),
        ("def latency(sent, chunks):\n"
         "    times = [t for t, k in chunks for _ in range(k)]\n"
         "    gaps = len(times) - 1\n"
         "    return times[0] - sent, (times[-1] - times[0]) / gaps if gaps else float('nan')",
         "came with the first chunk"),
        (changed(LATENCY, ("if n == k", "if n == 1"), ("/ (n - k)", "/ max(n - k, 1)")), "none follows the first"),
        (changed(LATENCY, ('float("nan")', "0.0")), "one token has no gap"),
        (changed(LATENCY, ('float("nan")', "None")), "one token has no gap"),
        (changed(LATENCY, ('float("nan")', '"nan"')), "one token has no gap"),
        ("def latency(sent, chunks):\n    return chunks[0][0] - sent", "return two numbers"),
    ],
    "01.7": [
        (changed(PHASES, ("range(1, outputs)", "range(outputs)")), "needs no decode step"),
        (changed(PHASES, ("range(1, outputs)", "range(1, outputs + 1)")), "needs no decode step"),
        (changed(PHASES, ("batch * per_token * (prompt + i)", "0")), "left the KV cache out"),
        (changed(PHASES, ("(prompt + i)", "prompt")), "does not grow"),
        (changed(PHASES, ("(prompt + i)", "(prompt + outputs)")), "read the final cache"),
        (changed(PHASES, ("(prompt + i)", "(prompt + i - 1)")), "newest token's own key"),
        (changed(PHASES, ("(prompt + i)", "(prompt + i + 1)")), "not one more"),
        (changed(PHASES, ("(prompt + i)", "i")), "the prompt is in it too"),
        (changed(PHASES, ("batch * prefill_flops", "prefill_flops")), "16 prefills"),
        (changed(PHASES, ("batch * prefill_flops(g, prompt)", "prefill_flops(g, batch * prompt)")), "another sequence"),
        (changed(PHASES, ("batch * per_token", "per_token")), "own cache"),
        (changed(PHASES, ("(weight_bytes_once + batch *", "batch * (weight_bytes_once +")), "weights once "
                          "for each"),
        (changed(PHASES, ("batch * prefill_flops", "2 * batch * prefill_flops")), "already counted"),
        (changed(PHASES, ("return prefill, decode", "return prefill + decode")), "two numbers"),
        (changed(PHASES, ("per_token * (", "per_tokens * (")), "NameError"),
        (changed(PHASES, ("weight_bytes(g), kv_bytes(g, 1)", "15.0093e9, 131_072")), "have to be those of g"),
    ],
}  # fmt: skip

RIGHT = {
    "01.1": [
        "import numpy as np\nprefill_tflop, decode_gflop = 1.02 * prefill_tflop, np.float32(1.035 * decode_gflop)",
        "decode_gflop = round(decode_gflop)",
    ],
    "01.2": ["prefill_intensity, decode_intensity, tokens_at_ridge = 1024, torch.tensor(1.0), round(tokens_at_ridge)"],
    "01.3": [
        "decode_utilisation_percent, batch_at_5_percent = 100 / tokens_at_ridge, tokens_at_ridge / 20",
        "decode_utilisation_percent, batch_at_5_percent = 1.05 * decode_utilisation_percent, 0.047 * tokens_at_ridge",
    ],
    "01.4": [
        "crossover_1k, crossover_8k, decode_share = 0.963 * crossover_1k, 8 * crossover_1k, ' Falls '",
        "crossover_1k, crossover_8k = 1.2 * crossover_1k, 1.1 * 8 * crossover_1k",
        "crossover_1k, crossover_8k = 0.925 * crossover_1k, 0.9 * 8 * crossover_1k",
    ],
    "01.5": [
        GENERATE,
        "def generate(decoder, cache, prompt, count):\n"
        "    tokens = decoder.prefill(prompt.view(1, -1), cache).argmax(dim=-1)\n"
        "    yield tokens.item()\n"
        "    for _ in range(1, count):\n"
        "        tokens = decoder.decode(tokens, cache).argmax(dim=-1)\n"
        "        yield tokens.item()",
        # The next step is launched before the token is handed over, so that a GPU works meanwhile.
        "import numpy as np\n"
        "def generate(decoder, cache, prompt, count):\n"
        "    logits = decoder.prefill(prompt[None], cache)\n"
        "    for left in reversed(range(count)):\n"
        "        token = np.int64(logits.argmax())\n"
        "        if left:\n"
        "            logits = decoder.decode(torch.tensor([token]), cache)\n"
        "        yield token",
    ],
    "01.6": [
        LATENCY,
        "import math\n"
        "def latency(sent, chunks):\n"
        "    times = [t for t, k in chunks for _ in range(k)]\n"
        "    later = [t for t in times if t > times[0]]\n"
        "    return times[0] - sent, (later[-1] - times[0]) / len(later) if later else math.nan",
    ],
    "01.7": [
        PHASES,
        "import numpy as np\n"
        "def phases(g, prompt, outputs, batch, flops_per_second, bytes_per_second):\n"
        "    tokens = np.arange(prompt + 1, prompt + outputs)\n"
        "    steps = weight_bytes(g) + batch * kv_bytes(g, 1) * tokens.astype(float)\n"
        "    return batch * prefill_flops(g, prompt) / flops_per_second, steps.sum() / bytes_per_second",
    ],
}
