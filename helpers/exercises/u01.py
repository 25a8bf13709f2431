"""Unit 01, prefill versus decode."""

import inspect
import math
from numbers import Integral

import torch

from helpers import data
from helpers.caches import FullCache
from helpers.check import Wrong, call, choice, exercise, number, require
from helpers.models.counts import decode_flops, kv_bytes, prefill_flops, weight_bytes
from helpers.models.decoder import Decoder
from helpers.models.geometry import Geometry, get

PROMPT, LONG = 1_024, 8_192


class Phases:
    """What unit 01 asks about `model` on `gpu`: weights and FLOPs of its phases, and the data sheet."""

    def __init__(self, model: str, gpu: str = "A100-80GB SXM"):
        self.g, sheet = get(model), data.device(gpu)
        self.flops, self.bytes = 1e12 * sheet["dense_bf16_TFLOPs"], 1e9 * sheet["bandwidth_GBps"]
        self.ridge = self.flops / self.bytes
        self.weights = weight_bytes(self.g)
        self.head = self.g.vocab * self.g.hidden
        self.multiplied = self.weights / 2
        self.body = self.multiplied - self.head

    def prefill(self, tokens: int) -> float:
        """FLOPs, attention left out."""
        return 2 * (self.body * tokens + self.head)

    def outputs(self, tokens: int) -> float:
        """Steps that take as long as the prefill, at 60 % of the FLOPs and 80 % of the bytes a second."""
        return self.prefill(tokens) / (0.6 * self.flops) / (self.weights / (0.8 * self.bytes))


@exercise("01.1")
def flops_of_each_phase(prefill_tflop, decode_gflop, *, model="Llama-3.1-8B"):
    p = Phases(model)
    everything = p.multiplied + p.head  # with the input embedding
    one_flop = "You counted one FLOP for each weight; a weight costs a multiplication and an addition."
    embedding = "You counted the input embedding: looking a token up multiplies nothing."
    number(
        prefill_tflop,
        (p.prefill(PROMPT) + prefill_flops(p.g, PROMPT)) / 2e12,  # with attention over the prompt or without it
        unit="TFLOP",
        rel=0.03,
        name="prefill_tflop",
        slips={
            one_flop: (p.prefill(PROMPT) / 2e12, p.multiplied * PROMPT / 1e12),
            embedding: 2 * everything * PROMPT / 1e12,
            "You used the output head for every token of the prompt; a prefill needs it once.": 2
            * p.multiplied
            * PROMPT
            / 1e12,
            "That is one token; each of the 1,024 tokens passes through the layers.": 2 * p.multiplied / 1e12,
        },
    )
    number(
        decode_gflop,
        (2 * p.multiplied + decode_flops(p.g, PROMPT)) / 2e9,  # likewise
        unit="GFLOP",
        rel=0.03,
        name="decode_gflop",
        slips={
            one_flop: p.multiplied / 1e9,
            embedding: 2 * everything / 1e9,
            "You recompute the whole prompt; with a KV cache only the new token passes through the layers.": (
                p.prefill(PROMPT) / 1e9,
                2 * p.multiplied * PROMPT / 1e9,
            ),
            "You left the output head out: a decode step always uses it.": 2 * p.body / 1e9,
        },
    )


@exercise("01.2")
def intensity_of_each_phase(
    prefill_intensity, decode_intensity, tokens_at_ridge, *, model="Llama-3.1-8B", gpu="A100-80GB SXM"
):
    p = Phases(model, gpu)
    intensity = (p.prefill(PROMPT) + prefill_flops(p.g, PROMPT)) / 2 / p.weights
    one_byte = "You took one byte for each weight; bf16 has two."
    number(
        prefill_intensity,
        intensity,
        unit="FLOP/byte",
        rel=0.08,
        name="prefill_intensity",
        slips={
            "You read the weights again for every token; one pass over them serves all 1,024.": 1.0,
            one_byte: (2 * intensity, 2 * PROMPT),
            "You multiplied by the 1,024 tokens again: they are in the prefill's FLOPs already.": PROMPT * intensity,
            "You counted one FLOP for each weight, or four bytes: bf16 has two.": (intensity / 2, PROMPT / 2),
            "That is bytes for each FLOP: turn it over.": 1 / intensity,
        },
    )
    number(
        decode_intensity,
        1.0,
        unit="FLOP/byte",
        rel=0.08,
        name="decode_intensity",
        slips={
            one_byte: 2.0,
            "You counted one FLOP for each weight, or four bytes: bf16 has two.": 0.5,
            "That is the prefill's: a decode step reads all the weights for one single token.": (intensity, PROMPT),
            "You divided by the bytes of 1,024 passes; a step makes one.": 1 / PROMPT,
        },
    )
    number(
        tokens_at_ridge,
        p.ridge,
        unit="tokens at the ridge",
        rel=0.04,
        name="tokens_at_ridge",
        slips={
            "Twice too many: each token does 2 FLOPs for each 2-byte weight, so 1 FLOP for each byte.": 2 * p.ridge,
            "Half: each token does 2 FLOPs for each 2-byte weight, so 1 FLOP for each byte.": p.ridge / 2,
            "Turned over: divide the FLOPs by the bytes, not the bytes by the FLOPs.": 1 / p.ridge,
            "Watch the units: TFLOP/s over GB/s leaves a factor of 1,000.": p.ridge / 1e3,
        },
    )
    return (
        f"{float(prefill_intensity):.0f} FLOP/byte against {float(decode_intensity):.1f}, on the same matrices. "
        f"A prompt longer than {float(tokens_at_ridge):.0f} tokens is limited by arithmetic on this chip; a decode "
        "step of one sequence never comes near."
    )


@exercise("01.3")
def utilisation_of_decode(decode_utilisation_percent, batch_at_5_percent, *, model="Llama-3.1-8B", gpu="A100-80GB SXM"):
    p = Phases(model, gpu)
    one = 100 / p.ridge  # per cent
    number(
        decode_utilisation_percent,
        1.01 * one,  # a step's GFLOP and GB, each rounded as the text has them
        unit="%",
        rel=0.05,
        name="decode_utilisation_percent",
        slips={
            "That is a fraction; the question asks for per cent.": one / 100,
            "That is what nvidia-smi may show: time with any kernel running. Count FLOPs against the peak.": 100,
            "You counted one FLOP for each weight; a weight costs a multiplication and an addition.": one / 2,
            "You took one byte for each weight; bf16 has two, so the step takes twice as long.": 2 * one,
            "You spread the prefill's FLOPs over a decode step; one new token does "
            f"{2 * p.multiplied / 1e9:.0f} GFLOP.": (PROMPT * one, p.prefill(PROMPT) / p.weights * one),
        },
    )
    batch = p.ridge / 20
    number(
        batch_at_5_percent,
        batch,
        unit="sequences",
        rel=0.06,
        name="batch_at_5_percent",
        slips={
            f"One sequence brings {one:.2f} %, not 1 %.": 5,
            "That is the ridge, where utilisation would be 100 %.": p.ridge,
            "Five more than one is not five times: utilisation is proportional to the batch.": 5 + one,
            "You multiplied 5 by the utilisation of one sequence; divide.": (5 * one, 5 * one / 100),
            f"Mixed up fraction and per cent: 5 % over {one:.2f} %.": (100 * batch, batch / 100),
        },
    )


@exercise("01.4")
def crossover(crossover_1k, crossover_8k, decode_share, *, model="Llama-3.1-8B", gpu="A100-80GB SXM"):
    p = Phases(model, gpu)
    short, long = p.outputs(PROMPT), p.outputs(LONG)
    attention = prefill_flops(p.g, LONG) / p.prefill(LONG)
    step_ms = 1e3 * p.weights / (0.8 * p.bytes)
    peak = "You used the peak rates; take 60 % of the arithmetic and 80 % of the bandwidth."
    turned = "Turned over: divide the prefill's seconds by the seconds of one step."
    number(
        crossover_1k,
        1.083 * short,  # from the weights alone to a step that reads its cache too
        unit="output tokens at 1k",
        rel=0.15,
        name="crossover_1k",
        slips={
            "You let a decode step cost as much as one token of prefill; a step reads all the weights.": PROMPT,
            peak: 0.75 * short,
            turned: 1 / short,
            "You counted one FLOP for each weight in the prefill; it is two.": short / 2,
            f"That is the prefill in milliseconds; divide by the {step_ms:.1f} ms of a step.": short * step_ms,
        },
    )
    number(
        crossover_8k,
        1.0375 * long,  # with attention or without
        unit="at 8k",
        rel=0.14,
        name="crossover_8k",
        slips={
            "You let a decode step cost as much as one token of prefill; a step reads all the weights.": LONG,
            peak: (0.72 * long, 0.8 * long, 0.75 * attention * long),
            "The same as at 1k: eight times the prompt is eight times the prefill.": (short, 1.083 * short),
            "You let all of the prefill grow with the square of the prompt; only attention does "
            f"({100 * (attention - 1):.0f} % here).": 64 * short,
            turned: (1 / long, 1 / (attention * long)),
        },
    )
    choice(
        decode_share,
        "falls",
        {
            "rises": "the answer stays at 128 tokens, so decode hardly changes (a little more cache to read), while "
            "the prefill grows with the prompt."
        },
        name="decode_share",
    )


TINY = Geometry("tiny", layers=2, hidden=32, q_heads=4, kv_heads=2, head_dim=8, intermediate=64, vocab=101)


class Counted:
    """A real decoder that writes down what it was asked to do."""

    def __init__(self, decoder: Decoder):
        self.decoder, self.calls = decoder, []

    def prefill(self, tokens, cache, **options):
        self.calls.append(("prefill", tokens.shape[-1]))
        return self.decoder.prefill(tokens, cache, **options)

    def decode(self, tokens, cache):
        self.calls.append(("decode", 1))
        return self.decoder.decode(tokens, cache)

    def __getattr__(self, name):
        return getattr(self.decoder, name)


def _recomputed(decoder: Decoder, prompt: torch.Tensor, count: int) -> list[int]:
    """Greedy tokens without any cache that outlives a step: the definition that `generate` has to meet."""
    tokens = prompt.tolist()
    for _ in range(count):
        scratch = FullCache(decoder.geometry, capacity=len(tokens), backend="reference")
        tokens.append(int(decoder.prefill(torch.tensor([tokens]), scratch).argmax()))
    return tokens[len(prompt) :]


@exercise("01.5")
def generates_with_a_cache(generate):
    decoder = Decoder(TINY, backend="reference", seed=3)
    prompt = torch.tensor([5, 9, 2, 71, 33])
    ahead = False
    for count in (1, 8):
        expect = _recomputed(decoder, prompt, count + 1)
        counted, cache = Counted(decoder), FullCache(TINY, capacity=64, backend="reference")
        stream = call(generate, counted, cache, prompt.clone(), count, _gives="`yield`")
        require(
            inspect.isgenerator(stream) or hasattr(stream, "__next__"),
            f"generate returns a {type(stream).__name__} when all is done; `yield` each token as soon as it "
            "is known, "
            "or the user stares at an empty screen.",
        )
        got = []
        for token in stream:
            if not got:
                _first_call(counted.calls, len(prompt))
                ahead = len(counted.calls) > 1
            got.append(_as_int(token))
            require(len(got) <= count, f"count={count}, and your stream does not stop after {count} tokens.")
        _same_tokens(got, expect, counted.calls, prompt)
        steps = sum(kind == "decode" for kind, _ in counted.calls)
        require(
            steps == count - 1,
            f"decode steps for count={count}: {steps}; the first token comes out of the prefill, so {count - 1} would "
            "do. A step whose token nobody reads is wasted.",
        )
    said = "8 tokens identical to recomputing: 1 prefill, 7 decode steps"
    if ahead:
        said += (
            ". You start the next step before you yield: a GPU then works while the user reads, if the token is an int "
            "by then; on a CPU the user waits a step longer for each token"
        )
    return said


def _first_call(calls: list, prompt_tokens: int) -> None:
    require(calls, "you yield a token before the model has seen the prompt.")
    require(
        calls[0] == ("prefill", prompt_tokens),
        f"the first call is {calls[0][0]} of {calls[0][1]} token(s); read all {prompt_tokens} prompt tokens "
        "in one "
        "prefill, so that the weights are read once for all of them.",
    )


def _same_tokens(got: list[int], expect: list[int], calls: list, prompt: torch.Tensor) -> None:
    """`expect` holds one token more than were asked for."""
    again = [n for kind, n in calls[1:] if kind == "prefill"]
    require(
        not again,
        f"you run prefill again ({len(again)} more times, {sum(again)} tokens): that recomputes what the "
        "cache already "
        "holds. Give decode the newest token alone.",
    )
    wanted, shifted = expect[:-1], expect[1:]
    require(len(got) == len(wanted), f"count={len(wanted)}, and you yield {len(got)} tokens.")
    if got == wanted:
        return
    require(
        got != shifted,
        "the first token is lost: the prefill's logits give it, so yield it before you decode for the next.",
    )
    require(got != prompt[: len(got)].tolist(), "you yield the prompt; only the new tokens are the answer.")
    wrong = next(i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b)
    require(
        wrong > 0,
        "the first token is not the most likely one: take the argmax of the prefill's logits (of the last position).",
    )
    raise Wrong(
        f"token {wrong + 1} differs from recomputing everything, the first {wrong} agree: what does decode "
        "get? It has "
        "to be the token that you yielded last, once."
    )


def _as_int(token) -> int:
    require(
        isinstance(token, Integral) or (hasattr(token, "numel") and token.numel() == 1),
        f"you yield {type(token).__name__}; yield one token id, an int.",
    )
    return int(token)


@exercise("01.6")
def ttft_and_tpot(latency):
    def measure(sent, chunks):
        try:
            answer = call(latency, sent, chunks)
        except ZeroDivisionError:
            raise Wrong(
                "division by zero: where no token follows the first chunk there is no gap, and no TPOT. Return "
                "float('nan')."
            ) from None
        require(
            isinstance(answer, (tuple, list)) and len(answer) == 2,
            "return two numbers, (TTFT, TPOT).",
        )
        return answer

    def same(value, expect):
        return math.isclose(float(value), expect, rel_tol=1e-6, abs_tol=1e-9)

    sent, chunks = 10.0, [(10.5, 1), (10.54, 1), (10.58, 1), (10.62, 1), (10.66, 1)]
    ttft, tpot = measure(sent, chunks)
    number(
        ttft,
        0.5,
        unit="s",
        rel=1e-6,
        name="TTFT",
        slips={
            "That is a time of day; subtract when the request was sent.": 10.5,
            "That is the end-to-end time; TTFT ends at the first token.": 0.66,
            "That is the gap after the first token; TTFT is the wait before it.": 0.04,
            "The sign: arrival minus sent.": -0.5,
        },
    )
    number(
        tpot,
        0.04,
        unit="s",
        rel=1e-6,
        name="TPOT",
        slips={
            "TTFT is inside: subtract it, or the prefill counts as a gap (vllm#7242).": (0.132, 0.165),
            "Five tokens have four gaps: divide by n − 1.": 0.032,
            "That is all gaps together: divide by n − 1.": 0.16,
        },
    )
    tpot = measure(0.0, [(0.3, 1), (0.4, 4), (0.5, 5)])[1]
    require(
        not same(tpot, 0.1),
        "a chunk may hold several tokens: you divide by chunks where tokens count (sglang#12064).",
    )
    require(same(tpot, 0.2 / 9), "chunks of 1, 4 and 5 tokens at 0.3, 0.4 and 0.5 s: 9 gaps in 0.2 s.")
    tpot = measure(0.0, [(0.3, 3), (0.4, 2), (0.6, 2)])[1]
    require(
        not same(tpot, 0.3 / 6),
        "three tokens came with the first chunk, and you divide by n − 1: two of them count although no time of TPOT "
        "went into them. Divide by the tokens that came after the first chunk (FastDeploy#8113).",
    )
    require(same(tpot, 0.3 / 4), "chunks of 3, 2 and 2 tokens at 0.3, 0.4 and 0.6 s: 4 tokens came in 0.3 s.")
    ttft, tpot = measure(0.0, [(0.01, 0), (0.3, 1), (0.4, 2), (0.7, 0)])
    require(
        not same(ttft, 0.01),
        "the first chunk held 0 tokens: a header is not a token, so TTFT ends at the first chunk *with* tokens.",
    )
    require(same(ttft, 0.3), "an empty chunk at 0.01 s, one token at 0.3 s: TTFT is 0.3 s.")
    require(
        same(tpot, 0.05),
        "tokens at 0.3 s (1) and 0.4 s (2), an empty chunk at the end: 0.1 s over 2 gaps. The request ends "
        "with its "
        "last token, not with an empty chunk.",
    )

    def is_nan(value):
        return hasattr(value, "__float__") and math.isnan(float(value))  # the text "nan" has none

    ttft, tpot = measure(1.0, [(1.3, 1)])
    require(
        same(ttft, 0.3) and is_nan(tpot),
        "one token has no gap: its TPOT is float('nan').",
    )
    tpot = measure(1.0, [(1.3, 4)])[1]
    require(
        is_nan(tpot),
        "four tokens in one chunk: none follows the first chunk, so there is no TPOT. Return float('nan').",
    )
    return "TTFT and TPOT of six streams, chunks of several tokens and empty ones among them"


@exercise("01.7")
def model_of_a_request(phases):
    g = get("Llama-3.1-8B")
    weights, per_token = weight_bytes(g), kv_bytes(g, 1)

    def expected(prompt, outputs, batch, g=g):
        weights, per_token = weight_bytes(g), kv_bytes(g, 1)
        read = sum(weights + batch * per_token * (prompt + i) for i in range(1, outputs))
        return batch * prefill_flops(g, prompt) / 2e14, read / 1e12

    def check_one(prompt, outputs, batch, prefill_slips, decode_slips):
        answer = call(phases, g, prompt, outputs, batch, 2e14, 1e12)
        require(
            isinstance(answer, (tuple, list)) and len(answer) == 2,
            "return two numbers, (prefill seconds, decode seconds).",
        )
        case = f" (prompt {prompt:,}, outputs {outputs:,}, batch {batch})"
        prefill, decode = expected(prompt, outputs, batch)
        number(
            answer[0],
            prefill,
            unit="s",
            rel=2e-3,
            name="prefill seconds" + case,
            slips=prefill_slips(prefill),
        )
        number(answer[1], decode, unit="s", rel=2e-4, name="decode seconds" + case, slips=decode_slips(decode))

    def no_slips(_):
        return {}

    # Each case switches one mechanism on.
    check_one(
        1024,
        1,
        1,
        lambda s: {"Two FLOPs a weight are already counted by prefill_flops.": 2 * s},
        lambda s: {
            "One output token needs no decode step: the prefill gives it.": (
                (weights + per_token * 1024) / 1e12,
                (weights + per_token * 1025) / 1e12,
                weights / 1e12,
            )
        },
    )
    check_one(
        1024,
        2,
        1,
        no_slips,
        lambda s: {
            "One output token needs no decode step: the prefill gives it, so there are outputs − 1.": (
                2 * s,
                (2 * weights + per_token * 2051) / 1e12,
            ),
            "You left the KV cache out of what a step reads.": weights / 1e12,
            "Your cache starts empty: the prompt is in it too.": (weights + per_token) / 1e12,
        },
    )
    check_one(
        64,
        2001,
        1,
        lambda s: {
            "So short a prompt would wait for its weights; in this model arithmetic alone limits a prefill.": (
                weights / 1e12,
                s + weights / 1e12,
            )
        },
        lambda s: {
            "Your cache does not grow: step i reads prompt + i tokens.": (
                2000 * (weights + per_token * 64) / 1e12,
                2000 * (weights + per_token * 65) / 1e12,
            ),
            "You read the final cache in every step; it grows from the prompt to its full length.": 2000
            * (weights + per_token * 2065)
            / 1e12,
        },
    )
    check_one(
        8192,
        3,
        16,
        lambda s: {
            "Every sequence of the batch has its own prompt: 16 prefills.": s / 16,
            "You made one long prompt of the 16; no token attends to another sequence.": prefill_flops(g, 16 * 8192)
            / 2e14,
        },
        lambda s: {
            "You read the weights once for each sequence; one pass serves the whole batch.": 16
            * (2 * weights + per_token * 16387)
            / 1e12,
            "Every sequence has its own cache: 16 of them are read.": (2 * weights + per_token * 16387) / 1e12,
            "You left the KV cache out of what a step reads.": 2 * weights / 1e12,
        },
    )
    # Here the caches are short and so many that one token more or less in each of them shows.
    check_one(
        4,
        2,
        1024,
        no_slips,
        lambda s: {
            "Step i reads prompt + i tokens: the newest token's own key and value are in the cache, too.": (
                weights + 1024 * per_token * 4
            )
            / 1e12,
            "Step i reads prompt + i tokens, not one more.": (weights + 1024 * per_token * 6) / 1e12,
        },
    )
    own = "Those are the seconds of Llama-3.1-8B: FLOPs, weights and cache have to be those of g."
    answer = call(phases, get("SmolLM2-135M"), 512, 3, 4, 2e14, 1e12)
    found = zip(
        ("prefill", "decode"), answer, expected(512, 3, 4, get("SmolLM2-135M")), expected(512, 3, 4), strict=True
    )
    for phase, value, expect, fixed in found:
        name = f"{phase} seconds of SmolLM2-135M (prompt 512, outputs 3, batch 4)"
        number(value, expect, unit="s", rel=2e-3, name=name, slips={own: fixed})
    return "6 requests: prefill and decode seconds right"
