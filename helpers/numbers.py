"""How the course writes a number, digits that can be trusted and the prefix that suits the unit, and how it checks one
that a caller gives."""

import math

PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9))


def pretty(value: float, digits: int = 4) -> str:
    """A number for a sentence or a table: "46,080", "0.01425"; whole numbers whole, others to `digits` digits."""
    if math.isfinite(value) and abs(value) < 1e15:
        rounded = float(f"{value:.{digits}g}")
        if value == int(value) or abs(rounded) >= 10**digits:
            return f"{value:,.0f}"
    return f"{value:,.{digits}g}"


def prefixed(value: float, unit: str, digits: int = 3) -> str:
    """A quantity with the prefix that suits it: "35.9 GB/s", "31.2 ms". Seconds have no prefix above one."""
    fitting = [pair for pair in PREFIXES if unit != "s" or pair[1] <= 1]
    rounded = abs(float(f"{value:.{digits}g}"))
    prefix, size = next((pair for pair in fitting if rounded >= pair[1]), fitting[-1])
    return f"{pretty(value / size, digits)} {prefix}{unit}"


def check_int(who: str, name: str, value, minimum: int) -> None:
    """Raise ValueError that names the field unless `value` is a whole number from `minimum` on; `who` took it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{who}: {name} must be a whole number of at least {minimum}, not {value!r}")
