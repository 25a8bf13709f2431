"""What a wrong number looks like: the slips that everybody makes with units and factors."""

import math

_BINARY = "a power of 1,024 where 1,000 is meant, or the other way round (GB = 1e9 bytes, GiB = 2**30 bytes)"
_ELEMENT = "check the bytes per element (float32 4, bfloat16 2, int8 1)"

# ratio answer / truth -> what usually causes it
_RATIOS = [
    (2.0, "it is twice what it should be: something is counted two times"),
    (
        1 / 2,
        "it is half of what it should be: something is left out (V beside K? the addition beside the multiplication?)",
    ),
    (4.0, f"it is four times what it should be: {_ELEMENT}"),
    (1 / 4, f"it is a quarter of what it should be: {_ELEMENT}"),
    (8.0, "it is eight times what it should be: that is bits where bytes are asked for"),
    (1 / 8, "it is an eighth of what it should be: that is bytes where bits are asked for"),
    (100.0, "it is a hundred times what it should be: that is per cent where a fraction is asked for"),
    (1 / 100, "it is a hundredth of what it should be: that is a fraction where per cent is asked for"),
]
for _power, _pair in [
    (1, "s and ms, GB and MB"),
    (2, "s and µs, GB and kB"),
    (3, "s and ns, GB and bytes"),
    (4, "TFLOP and FLOP"),
]:
    _RATIOS += [
        (1000.0**_power, f"it is {1000**_power:,} times too large: the unit is off ({_pair})"),
        (1000.0**-_power, f"it is {1000**_power:,} times too small: the unit is off ({_pair})"),
    ]
for _power in (1, 2, 3):
    _RATIOS += [
        (1.024**_power, f"it is {100 * (1.024**_power - 1):.1f} % too large: {_BINARY}"),
        (1.024**-_power, f"it is {100 * (1 - 1.024**-_power):.1f} % too small: {_BINARY}"),
        (1024.0**_power, f"it is {1024**_power:,} times too large: {_BINARY}"),
        (1024.0**-_power, f"it is {1024**_power:,} times too small: {_BINARY}"),
    ]


def diagnose(answer: float, expect: float, rel: float = 1e-3) -> str:
    """The likeliest cause of a wrong `answer`, in words; never the right answer itself.

    Both are finite and in the same unit. `rel` is how exactly a known ratio must be met.
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
    nearest, cause = min(_RATIOS, key=lambda pair: abs(log_ratio - math.log(pair[0])))
    # A sixth of the gap to "right" (ratio 1) at most, so that 1.024 is only named when it is really met, however
    # roughly the answer itself may be given.
    if abs(log_ratio - math.log(nearest)) <= min(max(rel, 2e-3), abs(math.log(nearest)) / 6):
        return cause
    return f"it is too {'high' if (log_ratio > 0) == (expect > 0) else 'low'}, by {_vague(abs(log_ratio))}"


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
