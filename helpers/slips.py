"""What a wrong number looks like: the slips that everybody makes with units and factors."""

import math
import re
from decimal import Decimal

# What 1,000 and 1,024 are mistaken for, by what the answer counts: (unit, of 1,024, [of 1e3, of 1e6, of 1e9, of 1e12]).
_KINDS = [
    (
        r"([kMGT]i?)?B\b|bytes?\b",
        "GB = 1e9 bytes, GiB = 2**30 bytes",
        ["GB and MB", "GB and kB", "GB and bytes", "TB and bytes"],
    ),
    (
        r"[mµn]?s\b|seconds?\b",
        "in what this time is computed from",
        ["s and ms", "s and µs", "s and ns", "s and ps"],
    ),
    (
        r"[kMGT]?FLOPs?\b",
        "a GFLOP is 1e9 FLOPs",
        ["TFLOP and GFLOP", "TFLOP and MFLOP", "GFLOP and FLOP", "TFLOP and FLOP"],
    ),
    (
        r"tokens?\b",
        "is 32k 32,000 tokens or 32,768? The text says which",
        ["thousands of tokens and tokens", "millions of tokens and tokens"],
    ),
    (
        "",
        "somewhere on the way",
        [f"{pair}, somewhere on the way" for pair in ("ms for s, or MB for GB", "µs for s, or kB for GB")]
        + [f"{pair}, somewhere on the way" for pair in ("ns for s, or bytes for GB", "FLOP for TFLOP")],
    ),
]
_ELEMENT = "check the bytes per element (float32 4, bfloat16 2, int8 1)"

_COUNTED = r"(rows?|layers|GPUs|times)\b|%"  # what neither bytes nor seconds turn into

# ratio answer / truth -> what usually causes it, and the units (a pattern) in which it can
_RATIOS = [
    (2.0, "it is twice what it should be: something is counted two times", ""),
    (
        1 / 2,
        "it is half of what it should be: something is left out (V beside K? the addition beside the multiplication?)",
        "",
    ),
    (4.0, f"it is four times what it should be: {_ELEMENT}", f"(?!{_COUNTED})"),
    (1 / 4, f"it is a quarter of what it should be: {_ELEMENT}", f"(?!{_COUNTED})"),
    (8.0, "it is eight times what it should be: that is bits where bytes are asked for", r"$|.*(B|bytes?)\b"),
    (1 / 8, "it is an eighth of what it should be: that is bytes where bits are asked for", r"$|.*(B|bytes?)\b"),
    (100.0, "it is a hundred times what it should be: that is per cent where a fraction is asked for", "$|%"),
    (1 / 100, "it is a hundredth of what it should be: that is a fraction where per cent is asked for", "$|%"),
]


# Of an answer in dollars, where bytes, numbers of 1,024 and fractions have no place.
_DOLLARS = [
    (100.0, "it is a hundred times what it should be: those are cents, and dollars are asked for"),
    (1000.0, "it is 1,000 times too large: the unit is off (dollars for 1,000 and for one)"),
    (1 / 1000, "it is 1,000 times too small: the unit is off (dollars for 1,000 and for one)"),
    (1e6, "it is 1,000,000 times too large: a price is for a million tokens"),
    (1e-6, "it is 1,000,000 times too small: a price is for a million tokens, not for one"),
]


def _unit_ratios(unit: str) -> list[tuple[float, str]]:
    """The ratios of mistaken units for an answer in `unit` ("ms", "GB/s", "tokens"; empty: none, as of a ratio)."""
    if re.match(_COUNTED, unit):
        return []
    kind = next(found for found in _KINDS if re.match(found[0], unit))
    if re.fullmatch(r"bytes?|B", unit):
        # "512 bytes" for 524,288 has one likely reason, and it can be said outright.
        return [
            (ratio**-power, f"it is {ratio**power:,} times too small: that is {name}, and bytes are asked for")
            for ratio, names in ((1000, ("kB", "MB", "GB")), (1024, ("KiB", "MiB", "GiB")))
            for power, name in enumerate(names, start=1)
        ] + _powers(kind)
    return _powers(kind)


def _powers(kind: tuple[str, str, list[str]]) -> list[tuple[float, str]]:
    """The ratios of a row of `_KINDS`, with 1,000 and 1,024 taken for each other."""
    binary = f"a power of 1,024 where 1,000 is meant, or the other way round ({kind[1]})"
    ratios = []
    for power, pair in enumerate(kind[2], start=1):
        times = f"{1000**power:,} times too"
        ratios += [
            (1000.0**power, f"it is {times} large: the unit is off ({pair})"),
            (1000.0**-power, f"it is {times} small: the unit is off ({pair})"),
        ]
    for power in (1, 2, 3):
        ratios += [
            (1.024**power, f"it is {100 * (1.024**power - 1):.1f} % too large: perhaps {binary}"),
            (1.024**-power, f"it is {100 * (1 - 1.024**-power):.1f} % too small: perhaps {binary}"),
            (1024.0**power, f"it is {1024**power:,} times too large: {binary}"),
            (1024.0**-power, f"it is {1024**power:,} times too small: {binary}"),
        ]
    return ratios


def diagnose(answer: float, expect: float, rel: float = 1e-3, unit: str = "") -> str:
    """The likeliest cause of a wrong `answer`, in words; never the right answer itself.

    Both are finite and in the same unit. `rel` is how exactly a known ratio must be met;
    `unit` ("ms", "GB/s") decides which units it may have been mistaken for.
    """
    if expect == 0:
        return "it is too high" if answer > 0 else "it is too low"
    if answer == 0:
        return "zero is too low" if expect > 0 else "zero is too high"
    # Logarithms taken apart: the quotient of two floats may overflow or vanish.
    log_ratio = math.log(abs(answer)) - math.log(abs(expect))
    if (answer < 0) != (expect < 0):
        sign = "positive" if expect > 0 else "negative"
        if abs(log_ratio) <= max(rel, 1e-3):
            return f"the size is right and the sign is not: it has to be {sign}"
        return f"the sign is wrong: it has to be {sign}"
    ratios = _DOLLARS
    if not unit.startswith("$"):
        ratios = [(ratio, cause) for ratio, cause, units in _RATIOS if re.match(units, unit)] + _unit_ratios(unit)
    away = {ratio: abs(log_ratio - math.log(ratio)) for ratio, _ in ratios}
    met = [(ratio, cause) for ratio, cause in ratios if away[ratio] <= _within(ratio, rel, answer)]
    if met:
        return min(met, key=lambda pair: away[pair[0]])[1]
    return f"it is too {'high' if (log_ratio > 0) == (expect > 0) else 'low'}, by {_vague(abs(log_ratio))}"


def _within(ratio: float, rel: float, answer: float) -> float:
    """How near, as a logarithm, `answer` has to come to a known `ratio`.

    However roughly the answer itself may be given, 1.024, 1,024 and their powers are only named when they are really
    met: with 1 % of each, half of all near misses would be called one, and a thousand be called 1,024. Of 1.024, which
    a near miss is by chance, that is to 0.1 %, or as far as the digits of the answer go.
    """
    gap = abs(math.log(ratio))
    if any(math.isclose(gap, power * math.log(1024)) for power in (1, 2, 3)):
        return 3e-3
    if any(math.isclose(gap, power * math.log(1.024)) for power in (1, 2, 3)):
        return min(max(1e-3, _rounding(answer)), 3e-3)
    return min(max(rel, 2e-3), gap / 6)


def _rounding(answer: float) -> float:
    """What rounding to the digits that `answer` has may have cost, as a share of it; 0 where two digits are all."""
    digits = Decimal(repr(answer)).normalize().as_tuple().digits
    return 0.5 / int("".join(map(str, digits))) if len(digits) > 2 else 0.0


def _vague(log_ratio: float) -> str:
    """How far off, in words too coarse to compute the answer back from."""
    for limit, words in [
        (1.25, "less than a quarter"),
        (2, "less than a factor of 2"),
        (10, "a factor between 2 and 10"),
        (1000, "a factor of more than 10"),
    ]:
        if log_ratio < math.log(limit):
            return words
    return "a factor of more than 1,000 (look at the units first)"
