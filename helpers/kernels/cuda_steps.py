"""Launches of `cuda_step_kernels`: checks and shapes. Like all of the GPU backend, nothing here synchronises."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from helpers.kernels import cuda_step_kernels
from helpers.kernels.launches import power_of_two

PIECE = 1024  # numbers of a row that a program of silu_mul takes
ROWS = 32  # rows that a program of rotate_rows takes


def bind_norm_linear(norm: torch.Tensor, eps: float, weight: torch.Tensor) -> Callable:
    """A function x [batch, in] → linear(rms_norm(x), weight) [batch, out], in two launches."""

    def norm_linear(x: torch.Tensor) -> torch.Tensor:
        return F.linear(add_norm(x, None, norm, eps)[1], weight)

    return norm_linear


def bind_finish_block(
    out: torch.Tensor, norm: torch.Tensor, eps: float, gate_up: torch.Tensor, down: torch.Tensor
) -> Callable:
    """A function (mixed, x) → all of a block that follows its attention, in five launches: h = x + linear(mixed, out),
    then h + down(silu(gate) · up), with gate and up of rms_norm(h). Shapes as in `helpers.kernels.cpu`."""

    def finish_block(mixed: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        h, normed = add_norm(x, F.linear(mixed, out), norm, eps)
        # h is this function's own, so that the last product may be added to it where it lies.
        return h.addmm_(silu_mul(F.linear(normed, gate_up)), down.t())

    return finish_block


def add_norm(
    x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and more [batch, width] → (x + more, its RMS norm times weight), of x's type; without `more`, (x, its norm)."""
    x = x.contiguous()
    added, normed = x if more is None else torch.empty_like(x), torch.empty_like(x)
    width = x.shape[1]
    cuda_step_kernels.add_norm[(x.shape[0],)](
        x, x if more is None else more, weight, added, normed, eps, width,
        PADDED=power_of_two(width), ADD=more is not None, num_warps=4 if width <= 2048 else 8,
    )  # fmt: skip
    return added, normed


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[batch, 2 · width], gate first → silu(gate) · up [batch, width]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    result = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    cuda_step_kernels.silu_mul[(rows, -(-width // PIECE))](gate_up, result, width, PIECE=PIECE)
    return result


def append(
    stored: tuple[torch.Tensor, ...], angles: tuple[torch.Tensor, torch.Tensor] | None, start, k: torch.Tensor,
    v: torch.Tensor, table: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Write k, rotated, and v [batch, kv_heads, t, head_dim] into a layer of a cache from `start` on, in one launch.

    Args:
        stored: keys and values [batch, kv_heads, capacity, ·], each followed by its scales and zeros, if any.
        angles: cosines and sines of `models.rope`; None: keys are stored as they came.
        start: the position of the first new token: an int, or an integer tensor [batch] on the device.
        table: int32 [batch, blocks]: `stored` are those of a pool, [blocks, kv_heads, block_size, ·].
    """
    batch, heads, tokens, head_dim = k.shape
    keys, half = stored[0], len(stored) // 2
    form = "fp8" if keys.dtype == torch.float8_e4m3fn else {1: "plain", 2: "int8", 3: "int4"}[half]
    # A pointer that a form does not use still has to be one.
    of_keys, of_values = ((*part, keys, keys)[:3] for part in (stored[:half], stored[half:]))
    ragged = isinstance(start, torch.Tensor)
    cuda_step_kernels.append[(heads * tokens, batch)](
        k, v, *((k, k) if angles is None else angles), start if ragged else keys, 0 if ragged else start,
        keys if table is None else table, 0 if table is None else table.stride(0), *of_keys, *of_values,
        *k.stride()[:3], *v.stride()[:3], heads, tokens, keys.shape[2],
        HALF=head_dim // 2, FORM=form, GROUPS=stored[1].shape[3] if form == "int4" else 1, RAGGED=ragged,
        BLOCK=0 if table is None else keys.shape[2], ROTATE=angles is not None, num_warps=1,
    )  # fmt: skip


def rotate_rows(
    keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, held: int, oldest: int, sinks: int, window: int,
    out: torch.Tensor,
) -> None:  # fmt: skip
    """Put the first `held` rows of a ring's keys [batch, kv_heads, rows, head_dim], rotated to their places, into
    `out` of the same shape, in one launch; `oldest` is the row of the ring whose place is right behind the sinks."""
    batch, heads, rows, head_dim = keys.shape
    cuda_step_kernels.rotate_rows[(-(-held // ROWS), batch * heads)](
        keys, cos, sin, out, held, oldest, sinks, window, rows, HALF=head_dim // 2, TILE=ROWS, num_warps=4
    )
