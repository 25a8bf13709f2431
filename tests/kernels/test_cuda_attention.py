"""The Triton kernel against float64, in Triton's interpreter."""

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from helpers import kernels
from helpers.kernels import cuda, cuda_kernels, quantize
from tools import attention_cases

NAMES = list(attention_cases.cases(torch.float32))


def test_the_interpreter_is_on():
    assert isinstance(cuda_kernels.split_attention, InterpretedFunction), (
        "Triton was imported before tests/kernels/conftest.py could set TRITON_INTERPRET=1"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_against_float64(name, dtype):
    case = attention_cases.cases(dtype)[name]()
    assert case.error() <= case.tolerance


@pytest.mark.parametrize("name", ["int8", "int4, groups and zero points", "2 tokens, int4"])
def test_before_ampere_narrow_caches_are_computed_in_float32(name, monkeypatch):
    monkeypatch.setattr(cuda, "_capability", lambda device: (7, 5))
    assert attention_cases.cases(torch.float32)[name]().error() <= attention_cases.TOLERANCE[torch.float32]


def test_float16_products_over_int8_keep_to_their_bound():
    """The bound that `_compute_type` states, and it is small beside what quantising has changed."""
    q, k, v = (torch.randn(2, heads, 512, 32, generator=torch.Generator().manual_seed(heads)) for heads in (6, 2, 3))
    q, v = q[:, :, 0], v[:, :2]
    k[..., 5] *= 20.0  # keys have channels that stand out
    (k8, k_scale), (v8, v_scale) = quantize.int8_per_token(k), quantize.int8_per_token(v)
    restored = [x.double() * scale[..., None].double() for x, scale in ((k8, k_scale), (v8, v_scale))]
    exact, _ = attention_cases.attention(q, *restored, [512, 512], 32**-0.5)
    unquantised, _ = attention_cases.attention(q, k, v, [512, 512], 32**-0.5)
    error = (cuda.decode_attention_int8(q, k8, k_scale, v8, v_scale, 512).double() - exact).abs().max()
    magnitude = (q.double().abs().unflatten(1, (2, 3)) @ restored[0].abs().transpose(-1, -2)).max() * 32**-0.5
    bound = restored[1].abs().max() * (torch.exp(2 * magnitude / 2**11) * (1 + 2**-11) - 1) + 512 * 127 / 2**25
    assert 0 < error < bound
    assert error < 0.2 * (exact - unquantised).abs().max()


@pytest.mark.parametrize("splits", [1, 2, 16])
def test_any_number_of_splits_gives_the_same(splits, monkeypatch):
    monkeypatch.setattr(cuda, "choose_splits", lambda programs, blocks, multiprocessors: splits)
    case = attention_cases.cases(torch.float32)["gqa"]()
    assert case.error() <= case.tolerance


def test_an_int_is_a_length_for_every_sequence():
    q, k, v = (torch.randn(shape) for shape in ((2, 4, 16), (2, 2, 64, 16), (2, 2, 64, 16)))
    expected, _ = attention_cases.attention(q, k, v, [37, 37], 0.25)
    torch.testing.assert_close(cuda.decode_attention(q, k, v, 37).double(), expected, rtol=1e-5, atol=1e-5)


def test_merge_of_three_stretches():
    q, k, v = (torch.randn(shape) for shape in ((1, 2, 16), (1, 2, 192, 16), (1, 2, 192, 16)))
    parts = [
        cuda.decode_attention(
            q, k[:, :, i : i + 64].contiguous(), v[:, :, i : i + 64].contiguous(), 64, return_lse=True
        )
        for i in (0, 64, 128)
    ]
    out, lse = cuda.merge([part[0] for part in parts], [part[1] for part in parts])
    expected, expected_lse = attention_cases.attention(q, k, v, [192], 0.25)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)


def test_splits_fill_the_chip_and_fit_the_cache():
    assert cuda.choose_splits(programs=8, tiles=2048, multiprocessors=132) == 128
    assert cuda.choose_splits(programs=8, tiles=4, multiprocessors=132) == 4
    assert cuda.choose_splits(programs=4096, tiles=2048, multiprocessors=132) == 1


def call(q=(2, 4, 32), k=(2, 2, 64, 32), v=None, length=5, **more):
    q, k, v = (x if isinstance(x, torch.Tensor) else torch.zeros(x) for x in (q, k, k if v is None else v))
    return cuda.decode_attention(q, k, v, length, **more)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"k": (2, 2, 65, 32)}, "allocate the next multiple"),
        ({"k": (2, 2, 64, 16)}, "rows of 16"),
        ({"q": (2, 4, 24), "k": (2, 2, 64, 24)}, "power of two"),
        ({"q": (2, 5, 32)}, "share 2 KV heads"),
        ({"k": (3, 2, 64, 32)}, "holds 3 sequences"),
        ({"v": (2, 2, 128, 32)}, "one shape"),
        ({"k": torch.zeros(2, 2, 64, 33)[..., 1:]}, "not a multiple of 16"),
        ({"k": torch.zeros(2, 2, 64, 33)[..., :32]}, "stride of 132 bytes"),
        ({"k": torch.zeros(2, 2, 64, 64)[..., ::2]}, "contiguous along a row"),
        ({"length": torch.tensor([1.0, 2.0])}, "integer tensor"),
        ({"length": 65}, "capacity of 64"),
        ({"length": torch.tensor([1], dtype=torch.int32)}, "integer tensor"),
        ({"block_table": torch.zeros(2, 3)}, "block_table must be int32"),
        ({"k": (9, 2, 8, 32), "block_table": torch.zeros(2, 3, dtype=torch.int32)}, "blocks must hold"),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        call(**arguments)


def test_scales_that_do_not_fit_are_refused():
    q, stored, scale = torch.zeros(1, 2, 32), torch.zeros(1, 2, 64, 32, dtype=torch.int8), torch.ones(1, 2, 64)
    with pytest.raises(ValueError, match="k_scale must be"):
        cuda.decode_attention_int8(q, stored, torch.ones(1, 2, 32), stored, scale, 3)
    with pytest.raises(ValueError, match="v_scale is missing"):
        cuda.decode_attention_int8(q, stored, scale, stored, None, 3)
    with pytest.raises(ValueError, match="laid out alike"):
        cuda.decode_attention_int8(q, stored, scale, stored, torch.ones(1, 64, 2).transpose(1, 2), 3)


def test_a_t4_has_the_kernels_in_float16_and_not_in_bfloat16(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert kernels.half("cuda") == torch.float16
    assert not kernels.reads_fp8("cuda")
    assert kernels.select("cuda", dtype=torch.float16) is kernels.select("cuda") is cuda
    with pytest.raises(ValueError, match=r"take torch\.float16"):
        kernels.select("cuda", "cuda", torch.bfloat16)
    monkeypatch.setattr(kernels, "_said", set())
    assert kernels.select("cuda", dtype=torch.bfloat16).__name__ == "helpers.kernels.reference"
    assert "no hardware for bfloat16, take float16" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert kernels.half("cuda") == kernels.half("cpu") == torch.bfloat16
    assert kernels.reads_fp8("cuda")
    assert not kernels.reads_fp8("cpu")


@pytest.mark.parametrize(
    ("kind", "width", "dtype", "spoilt", "says"),
    [
        ("float32", 16, torch.float16, 0.0, "stores torch.float32"),
        ("float32", 32, torch.float32, 0.0, "must be"),
        ("float32", 24, torch.float32, 0.0, "power of two"),
        ("int8", 16, torch.float32, float("nan"), "NaN"),
    ],
)
def test_what_a_bound_cache_does_not_take_is_refused(kind, width, dtype, spoilt, says):
    head_dim = 24 if says == "power of two" else 16
    numbers = torch.zeros(1, 2, 2, 64, head_dim, dtype=torch.int8 if kind == "int8" else torch.float32)
    stored = (numbers, torch.ones(1, 2, 2, 64)) * 2 if kind == "int8" else (numbers, numbers)
    tables = torch.ones(64, head_dim), torch.zeros(64, head_dim)
    x = torch.full((2, 2, 1, width), spoilt, dtype=dtype)
    with pytest.raises(ValueError, match=says):
        cuda.BoundCache(kind, stored, *tables).append(0, 3, x, x)
