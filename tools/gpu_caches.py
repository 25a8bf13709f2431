"""One model's worth of cache in every precision the kernel reads, filled with random numbers, for `tools.gpu_check`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from helpers.kernels import cuda


@dataclass
class Layer:
    """One layer's cache: `attend(q, lengths)`, what a token costs, and the numbers that the bytes stand for."""

    attend: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    bytes_per_token: int  # of all sequences together, scales included
    dense: Callable[[], tuple[torch.Tensor, torch.Tensor]]  # k, v float64 [batch, kv_heads, capacity, head_dim]


def layer(precision: str, batch: int, kv_heads: int, capacity: int, head_dim: int, dtype, device) -> Layer:
    """A layer of `precision` "full" (in `dtype`), "fp8", "int8" or "int4" (groups of half a head, fp16 scales)."""
    shape = (batch, kv_heads, capacity, head_dim)
    return _MAKERS[precision](shape, dtype, device)


def _full(shape, dtype, device):
    k, v = (torch.randn(shape, dtype=dtype, device=device) for _ in range(2))
    return Layer(
        lambda q, lengths: cuda.decode_attention(q, k, v, lengths),
        (k.nbytes + v.nbytes) // shape[2],
        lambda: (k.double(), v.double()),
    )


def _fp8(shape, dtype, device):
    k, v = (torch.randn(shape, dtype=dtype, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    v = _columns(v)
    return Layer(
        lambda q, lengths: cuda.decode_attention_fp8(q, k, v, lengths),
        (k.nbytes + v.nbytes) // shape[2],
        lambda: (k.double(), v.double()),
    )


def _int8(shape, dtype, device):
    k, v = (torch.randint(-127, 128, shape, dtype=torch.int8, device=device) for _ in range(2))
    v = _columns(v)
    k_scale, v_scale = (_scales(shape[:3], 1 / 127, device) for _ in range(2))
    return Layer(
        lambda q, lengths: cuda.decode_attention_int8(q, k, k_scale, v, v_scale, lengths),
        sum(x.nbytes for x in (k, v, k_scale, v_scale)) // shape[2],
        lambda: (k.double() * k_scale.double()[..., None], v.double() * v_scale.double()[..., None]),
    )


def _int4(shape, dtype, device):
    packed = (*shape[:3], shape[3] // 2)
    k, v = (torch.randint(0, 256, packed, dtype=torch.uint8, device=device) for _ in range(2))
    v = _columns(v)
    k_scale, v_scale = (_scales((*shape[:3], 2), 1 / 7, device) for _ in range(2))

    def dense(numbers, scale):
        nibbles = torch.cat((numbers & 15, numbers >> 4), dim=-1).double() - 8
        return nibbles * scale.double().repeat_interleave(shape[3] // 2, dim=-1)

    return Layer(
        lambda q, lengths: cuda.decode_attention_int4(q, k, k_scale, v, v_scale, lengths),
        sum(x.nbytes for x in (k, v, k_scale, v_scale)) // shape[2],
        lambda: (dense(k, k_scale), dense(v, v_scale)),
    )


def latent(batch: int, capacity: int, rank: int, rope: int, scale: float, dtype, device) -> Layer:
    """A layer of MLA: one row of rank + rope numbers a token."""
    rows = torch.randn(batch, capacity, rank + rope, dtype=dtype, device=device)
    return Layer(
        lambda q, lengths: cuda.decode_attention_latent(q, rows, rank, lengths, scale),
        rows.nbytes // capacity,
        lambda: (rows[:, None].double(), rows[:, None, :, :rank].double()),
    )


def _scales(shape, size, device):
    return (torch.rand(shape, device=device) * size + size).half()


def _columns(v: torch.Tensor) -> torch.Tensor:
    """v stored [.., head_dim, capacity], the order in which the kernel reads narrow values fastest."""
    return v.transpose(-1, -2).contiguous().transpose(-1, -2)


_MAKERS = {"full": _full, "fp8": _fp8, "int8": _int8, "int4": _int4}
