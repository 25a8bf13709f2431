"""What another class is asked in unit 00: see tools/givens.py."""

from helpers import data
from helpers.models.counts import prefill_flops, weight_bytes
from helpers.models.geometry import get


def givens(pick):
    gpus = ("A100-40GB SXM", "A100-80GB SXM", "H200 SXM", "H100 PCIe", "L4")
    gpu = pick("H100 SXM", *gpus)
    tokens = pick(1_000, 800, 1_200, 1_500, 2_000, 2_500, 3_000)
    sheet, model = data.device(gpu), get("Llama-3.1-8B")
    head = model.vocab * model.hidden
    flops = 2 * (tokens * (weight_bytes(model) / 2 - head) + head)
    attention = prefill_flops(model, tokens)
    launch_us = pick(20, 25, 30, 40, 45)
    own = gpu == "H100 SXM"
    return {
        "gpu": gpu,
        "short": gpu.split()[0],
        "tokens": tokens,
        "bandwidth": sheet["bandwidth_GBps"],
        "rate": sheet["dense_bf16_TFLOPs"],
        "tflop": f"{flops / 1e12:.2f}",
        "share": f"{100 * (attention / flops - 1):.0f}",
        "with_attention": attention,
        "launch_us": launch_us,
        "launch_ms": f"{launch_us / 1e3:.3f}",
        "kernel_ms": pick(10, 4, 5, 6, 8, 12),
        # vLLM's line was measured on an H100: its floor stays the one to compare.
        "predicted": 'floor_ms["decode"]' if own else "15.01e9 / 3_350e9 * 1e3",
        "whose": "your 00.1" if own else "the weights on an H100 SXM",
        "above": "your floor of 00.1" if own else "the 4.48 ms of these weights there",
    }


TEXT = [
    "Take an {gpu}. Its data sheet says **{bandwidth:,} GB/s** and **{rate:g} TFLOP/s**",
    "**{tflop} TFLOP** for a prompt of {tokens:,} tokens. (Attention over the prompt "
    "would add {share} %",
    "prefill of {tokens:,} tokens in one step",
    '"prompt": None,  # ms, {tokens:,} tokens',
    "reading = 15.01e9 / {bandwidth:_}e9",
    "max(reading, 15.01e9 / {rate:g}e12)",
    "max(reading, {tflop}e12 / {rate:g}e12)",
    "Somewhere between 1 and {tokens:,} tokens",
    "On the same {short}, how many",
    "ridge_flop_per_byte = {rate:g}e12 / {bandwidth:_}e9",
    "The launch takes {launch_us} µs, the kernel **{kernel_ms} ms**",
    "no_sync_ms = {launch_ms}",
    "sync_ms = {launch_ms} + {kernel_ms}",
    "{launch_ms} + 100 * {kernel_ms}",
    '"00.H100_decode_ms", {predicted}, "ms"',
    "# {whose}; vLLM measured it",
    "It lies 2 ms above {above}.",
]
