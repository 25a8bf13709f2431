"""The course's numbers, as a sentence, a table and a picture write them."""

import math

import pytest

from helpers.numbers import check_int, prefixed, pretty


@pytest.mark.parametrize(
    "value, digits, text",
    [
        (46_080.0, 4, "46,080"),
        (0.014249, 4, "0.01425"),
        (1234.56, 4, "1,235"),
        (12_345.6, 4, "12,346"),
        (12_345.6, 3, "12,346"),
        (999.96, 3, "1,000"),
        (-2.0, 3, "-2"),
        (math.inf, 3, "inf"),
        (1.5e18, 4, "1.5e+18"),
        (0, 4, "0"),
    ],
)
def test_a_number_in_a_sentence(value, digits, text):
    assert pretty(value, digits) == text


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (35.94e9, "B/s", "35.9 GB/s"),
        (660e12, "FLOP/s", "660 TFLOP/s"),
        (12.0, "B/s", "12 B/s"),
        (0.0312, "s", "31.2 ms"),
        (75.0, "s", "75 s"),
        (7_500.0, "s", "7,500 s"),
        (1.9e-6, "s", "1.9 µs"),
        (999.96e-3, "s", "1 s"),
        (3e-12, "s", "0.003 ns"),
        (0.0, "s", "0 ns"),
    ],
)
def test_a_quantity_with_its_prefix(value, unit, text):
    assert prefixed(value, unit) == text


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3", None])
def test_what_is_no_whole_number_is_named(value):
    with pytest.raises(ValueError, match=f"FullCache: batch must be a whole number of at least 1, not {value!r}"):
        check_int("FullCache", "batch", value, minimum=1)
    check_int("FullCache", "batch", 1, minimum=1)
