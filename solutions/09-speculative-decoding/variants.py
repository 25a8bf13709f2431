"""What another class is asked in unit 09: see tools/givens.py."""

from helpers import data


def givens(pick):
    high, low = pick(0.8, 0.82, 0.84, 0.86), pick(0.3, 0.2, 0.25, 0.4)
    reads, multiplies = pick((60, 360), (50, 400), (80, 400), (40, 280))
    gpu = pick("H100 SXM", "A100-80GB SXM", "H200 SXM", "MI300X")
    sheet = data.device(gpu)
    chip = gpu.split("-")[0].split()[0]
    return {
        "high": high,
        "low": low,
        "four": f"α {high:g}, 4 guesses",
        "few": f"α {low:g}, 4 guesses",
        "many": f"α {high:g}, 16 guesses",
        "more": f"{sum(high**i for i in range(5, 17)):.1f}",
        "laptop": (reads, multiplies),
        "ridge": multiplies / reads,
        "reads": reads,
        "multiplies": multiplies,
        "gpu": gpu,
        "chip": chip,
        "sheet": f"{chip}, bfloat16",
        "bandwidth": sheet["bandwidth_GBps"],
        "rate": sheet["dense_bf16_TFLOPs"],
    }


TEXT = [
    '"{four}": None',
    '"{few}": None',
    '"{many}": None',
    "16 bring {more} tokens together",
    '"{four}": sum({high:g}**i for i in range(5))',
    '"{few}": sum({low:g}**i for i in range(5))',
    '"{many}": sum({high:g}**i for i in range(17))',
    "| a laptop, float32 | {reads} GB/s | {multiplies} GFLOP/s |",
    "| {chip}, bfloat16 (data sheet) | {bandwidth:,} GB/s | {rate:,} TFLOP/s |",
    '"{sheet}": None',
    "laptop = {multiplies}e9 / {reads}e9",
    '"{sheet}": {rate}e12 / {bandwidth:_}e9',
]
