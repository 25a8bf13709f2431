"""What another class is asked in unit 07: see tools/givens.py."""

from helpers import data


def givens(pick):
    gpu, limit_ms = pick(
        ("H100 SXM", 10),
        ("H200 SXM", 6.8),
        ("A100-80GB SXM", 15),
        ("MI300X", 6),
        ("H100 NVL", 8),
    )
    bandwidth = data.device(gpu)["bandwidth_GBps"]
    return {
        "gpu": gpu,
        "limit_ms": limit_ms,
        "tb": bandwidth / 1e3,
        "room": limit_ms * bandwidth * 1e6 - 15.01e9,
        "all": limit_ms * bandwidth * 1e6,
    }


TEXT = [
    "An {gpu} reads {tb:g} TB a second",
    "tokens · 131,072) ÷ {tb:g}e12",
    "tokens * 131_072) / {tb:g}e12",
    "ms * 1e-3 * {tb:g}e12 - 15.01e9",
    "say that it may be {limit_ms:g} ms",
    "{limit_ms:g} ms at {tb:g} TB/s is a number of bytes",
    "paid from the same {limit_ms:g} ms",
    "for_caches = {limit_ms:g}e-3 * {tb:g}e12 - 15.01e9",
]
