"""What another class is asked in unit 01: see tools/givens.py."""

from helpers import data
from helpers.models.counts import decode_flops, kv_bytes, prefill_flops, weight_bytes
from helpers.models.geometry import get

SHOWN = {
    "A100-80GB SXM": "A100",
    "A100-40GB SXM": "A100-40GB",
    "H100 SXM": "H100",
    "H200 SXM": "H200",
    "MI300X": "MI300X",
}


def givens(pick):
    model = pick("Llama-3.1-8B", "Qwen3-8B", "Qwen2.5-14B", "Qwen3-14B", "Qwen2.5-7B")
    gpu = pick(*SHOWN)
    g, sheet = get(model), data.device(gpu)
    head = g.vocab * g.hidden
    weights = weight_bytes(g)
    body = weights / 2 - head
    bandwidth, rate = sheet["bandwidth_GBps"], sheet["dense_bf16_TFLOPs"]

    def attention(tokens):
        return prefill_flops(g, tokens) / (2 * (body * tokens + head)) - 1

    return {
        "model": model,
        "gpu": gpu,
        "shown": SHOWN[gpu],
        "b": round(body, -7),  # the weights as the text has them
        "h": round(head, -7),
        "body": f"{body / 1e9:.2f}",
        "head": f"{head / 1e9:.2f}",
        "gb": f"{weights / 1e9:.1f}",
        "kv_gb": f"{kv_bytes(g, 1_024) / 1e9:.2f}",
        "share_1k": f"{100 * attention(1_024):.0f}",
        "share_8k": f"{100 * attention(8_192):.0f}",
        "share_step": f"{100 * (decode_flops(g, 1_024) / weights - 1):.0f}",
        "rate": rate,
        "bandwidth": bandwidth,
        "slower_rate": f"{0.6 * rate:.0f}",
        "slower_bandwidth": round(0.8 * bandwidth),
        "step_ms": f"{weights / 0.8 / bandwidth / 1e6:.1f}",
        "prefill": f"{2 * (body * 1_024 + head) / 1e12:.1f}",
        "factor_8k": f"{1 + attention(8_192):.2f}",
        "on": "" if model == "Llama-3.1-8B" else f" of your 1.3, on an {SHOWN[gpu]}",
    }


TEXT = [
    "{model}. Each token that passes through the layers",
    "their **{body} billion** weights",
    "another **{head} billion**",
    "adds {share_1k} % to this prefill and {share_step} % to the step",
    "prefill_tflop = 2 * ({body}e9 * 1024 + {head}e9) / 1e12",
    "decode_gflop = 2 * ({body}e9 + {head}e9) / 1e9",
    "each: {gb} GB pass from memory",
    "(Leave out the KV cache, {kv_gb} GB at this length",
    "An {shown} multiplies bf16 at {rate:g} TFLOP/s and reads {bandwidth:,} GB/s",
    "over the {gb} GB of one pass",
    "prefill_tflop * 1e12 / {gb}e9",
    "decode_gflop * 1e9 / {gb}e9",
    "({rate:g}e12 / 2) / ({bandwidth}e9 / 2)",
    "its utilisation of an {shown}, in **per cent**",
    "read the weights once at {bandwidth:,} GB/s",
    "step_seconds = {gb}e9 / {bandwidth}e9",
    "/ step_seconds / {rate:g}e12",
    "Take 60 % of the {shown}'s arithmetic",
    "the prefill runs at {slower_rate} TFLOP/s, and one decode step takes "
    "{gb} GB ÷ {slower_bandwidth:,} GB/s = {step_ms} ms",
    "(Attention now adds {share_8k} % to the prefill",
    "your 1.1, at {slower_rate} TFLOP/s",
    "as many, and {share_8k} % for attention",
    "{prefill}e12 / {slower_rate}e12 / {step_ms}e-3",
    "2 * {body}e9 * 8192 * {factor_8k} / {slower_rate}e12 / {step_ms}e-3",
    "the {shown}'s was your third answer in 1.2",
    ":.2f}} % for one sequence{on}",
]
