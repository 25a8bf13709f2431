"""Fewer bits per cached number: symmetric int8, asymmetric int4 packed two to a byte, and fp8 e4m3.

A *scale* is shared by a set of numbers. Which set is the whole question: a token's (each token its own scale) or a
channel's (each dim of the head its own scale, over a block of tokens). The layouts are those of `helpers.kernels`.

Rounding to the nearest level leaves an error of at most half a scale.
"""

import torch

from helpers.kernels import is_captured

FP8 = torch.float8_e4m3fn
FP8_LARGEST = torch.finfo(FP8).max  # 448


def require_finite(x: torch.Tensor) -> None:
    """Raises ValueError for NaN or infinity: one of them would poison the scale of everything that shares it."""
    if x.is_meta or is_captured(x):
        return  # there is no number to ask about, or asking would synchronise, which a graph cannot hold
    if not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).sum())
        raise ValueError(
            f"{bad} of {x.numel()} numbers are NaN or infinite and cannot be quantised; find out where they come from"
        )


def int8_per_token(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [batch, heads, t, head_dim] → int8 of the same shape, float32 scale [batch, heads, t]; x ≈ number · scale.

    Symmetric: the largest magnitude of a token and head becomes ±127.
    Raises ValueError for NaN or infinity.
    """
    require_finite(x)
    scale = _positive(x.float().abs().amax(dim=-1) / 127)
    return torch.round(x / scale[..., None]).to(torch.int8), scale


def asymmetric(x: torch.Tensor, bits: int, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Levels 0 … 2^bits - 1 between the smallest and the largest number along `dim`.

    Returns:
        levels (uint8, the shape of x), scale and zero (float32, `dim` kept with size 1): x ≈ level · scale + zero.
    Raises ValueError for NaN or infinity, or bits outside 1 … 8.
    """
    if bits not in range(1, 9):
        raise ValueError(f"bits must be a whole number from 1 to 8, not {bits!r}")
    require_finite(x)
    x, top = x.float(), 2**bits - 1
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    # Divided before subtracted, so that two huge numbers of opposite sign do not overflow.
    scale = _positive(high / top - low / top)
    levels = torch.round(x / scale - low / scale).clamp(0, top)
    return levels.to(torch.uint8), scale, low


def per_token(x: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`asymmetric` with a scale for each `group` dims of a token: scale and zero [batch, heads, t, head_dim/group].

    Raises ValueError, also where group does not divide head_dim.
    """
    if x.shape[-1] % group:
        raise ValueError(f"groups of {group} do not divide a head_dim of {x.shape[-1]}")
    levels, scale, zero = asymmetric(x.unflatten(-1, (-1, group)), bits, dim=-1)
    return levels.flatten(-2), scale[..., 0], zero[..., 0]


def per_channel(x: torch.Tensor, bits: int, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`asymmetric` with a scale for each dim over `block` tokens: scale and zero [batch, heads, t/block, head_dim].

    Raises ValueError, also where block does not divide t: a channel's scale needs its whole block.
    """
    if x.shape[-2] % block:
        raise ValueError(
            f"{x.shape[-2]} tokens are not whole blocks of {block}; keep the rest unquantised until they are"
        )
    levels, scale, zero = asymmetric(x.unflatten(-2, (-1, block)), bits, dim=-2)
    return levels.flatten(-3, -2), scale[..., 0, :], zero[..., 0, :]


def pack_int4(levels: torch.Tensor) -> torch.Tensor:
    """uint8 levels 0 … 15 [..., head_dim] → uint8 [..., head_dim/2]: first half of the dims low, second half high."""
    low, high = levels.chunk(2, dim=-1)
    return low | high << 4


def to_fp8(x: torch.Tensor) -> torch.Tensor:
    """x as float8 e4m3, values beyond ±448 clamped (a plain cast would make them NaN). Raises ValueError for NaN."""
    require_finite(x)
    return x.clamp(-FP8_LARGEST, FP8_LARGEST).to(FP8)


def _positive(scale: torch.Tensor) -> torch.Tensor:
    """A scale that can be divided by, also for numbers that are all equal."""
    return scale.clamp_min(torch.finfo(torch.float32).tiny)
