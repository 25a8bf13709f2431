"""Quantisers: the error bound on random and adversarial numbers, refusals, and the kernels' layouts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from helpers.kernels import quantize
from helpers.kernels.reference import unpack_int4

SHAPE = (1, 2, 8, 16)
finite = st.floats(-(2.0**100), 2.0**100, width=32)
numbers = npst.arrays("float32", SHAPE, elements=finite).map(torch.from_numpy)


def within_half_a_scale(x, restored, scale):
    bound = scale.double() * 0.5 + x.double().abs() * 1e-6 + 1e-37
    return bool(((x.double() - restored.double()).abs() <= bound).all())


@settings(max_examples=60, deadline=None)
@given(numbers)
def test_int8_is_within_half_a_scale(x):
    values, scale = quantize.int8_per_token(x)
    assert within_half_a_scale(x, values * scale[..., None], scale[..., None])


@settings(max_examples=60, deadline=None)
@given(numbers, st.integers(1, 8))
def test_asymmetric_is_within_half_a_scale(x, bits):
    for dim in (-1, -2):
        levels, scale, zero = quantize.asymmetric(x, bits, dim)
        assert int(levels.max()) < 2**bits
        span = x.amax(dim, keepdim=True).double() - x.amin(dim, keepdim=True).double()
        restored = levels.double() * scale.double() + zero.double()
        error = (x.double() - restored).abs()
        assert bool((error <= scale.double() * 0.5 + span * 1e-6 + x.abs().amax() * 1e-6 + 1e-37).all())


@pytest.mark.parametrize("make", [torch.zeros, torch.ones], ids=["zeros", "all equal"])
def test_numbers_that_are_all_equal_come_back_exactly(make):
    x = make(SHAPE) * 3.25
    values, scale = quantize.int8_per_token(x)
    torch.testing.assert_close(values * scale[..., None], x)
    levels, scale, zero = quantize.asymmetric(x, 4, -1)
    assert torch.equal(levels * scale + zero, x)


def test_one_huge_channel_ruins_a_token_scale_and_not_a_channel_scale():
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    x[..., 3] += 100
    others = torch.arange(16) != 3

    def error(levels, scale, zero):
        return (unpack_int4(quantize.pack_int4(levels), scale, zero) - x)[..., others].abs().mean()

    assert error(*quantize.per_token(x, 4, 16)) > 5 * error(*quantize.per_channel(x, 4, 8))


def test_the_packed_layout_is_the_one_that_the_kernels_read():
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    for levels, scale, zero in (quantize.per_token(x, 4, 8), quantize.per_channel(x, 4, 4)):
        restored = unpack_int4(quantize.pack_int4(levels), scale, zero)
        rows, columns = 8 // scale.shape[2], 16 // scale.shape[3]
        spread = scale.repeat_interleave(rows, 2).repeat_interleave(columns, 3)
        assert within_half_a_scale(x, restored, spread)


def test_fp8_keeps_three_bits_of_mantissa_and_clamps():
    x = torch.tensor([0.0, 1.0, -1.1, 448.0, 1000.0, -(2.0**-9)])
    assert quantize.to_fp8(x).float().tolist() == [0.0, 1.0, -1.125, 448.0, 448.0, -(2.0**-9)]


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_refused(poison):
    x = torch.zeros(SHAPE)
    x[0, 1, 2, 3] = poison
    for quantise in (quantize.int8_per_token, lambda y: quantize.asymmetric(y, 4, -1), quantize.to_fp8):
        with pytest.raises(ValueError, match="1 of 256 numbers are NaN or infinite"):
            quantise(x)


def test_sizes_that_do_not_divide_are_refused():
    x = torch.zeros(SHAPE)
    with pytest.raises(ValueError, match="groups of 5 do not divide a head_dim of 16"):
        quantize.per_token(x, 4, 5)
    with pytest.raises(ValueError, match="8 tokens are not whole blocks of 3"):
        quantize.per_channel(x, 4, 3)
    with pytest.raises(ValueError, match="bits must be a whole number from 1 to 8"):
        quantize.asymmetric(x, 9, -1)
