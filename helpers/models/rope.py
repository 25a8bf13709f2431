"""Rotary position embedding (RoPE), half-split convention: lane i is paired with lane i + head_dim/2."""

import torch


def tables(positions: int, head_dim: int, theta: float | None, device="cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine for positions 0 … positions-1, each [positions, head_dim], float32.

    The angle of lane pair i at position p is p · theta^(-2i/head_dim) (Su et al., RoFormer, arXiv 2104.09864).

    Raises:
        ValueError: no theta, by which a geometry says that its positions are learned.
    """
    if theta is None:
        raise ValueError("this model learned its positions and has no rotary angles (rope_theta is None)")
    # On the CPU in float64, then rounded once: float32 angles drift by whole milliradians at position 8,192.
    pair = torch.arange(0, head_dim, 2, dtype=torch.float64)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), theta ** (-pair / head_dim))
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [..., t, head_dim] by cos and sin [t, head_dim]; same shape and dtype as x."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)
