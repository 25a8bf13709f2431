"""How the Triton kernel is launched: tile sizes, warps and stages, by what is read and on which GPU.

Each choice stands for compiled code that was read: no spills, shared memory within the chip's limit, loads of 16 bytes,
and of what met these about the fewest instructions for a byte of cache. docs/gpu-kernels.md has the figures of all of
them, and `python -m tools.kernel_table` counts them anew.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a variant of the kernel is compiled: its tile sizes and Triton's options."""

    heads: int  # query heads a program holds
    tile: int  # tokens a step
    warps: int
    stages: int


def launch(
    kind: str, v_form: str, group: int, head_dim: int, block: int, capability: tuple[int, int], compute: str
) -> Launch:
    """Tile sizes, warps and stages for one form of attention.

    Args:
        kind: of the cache: "wide" (16 and 32 bits), "narrow" (8 and 4 bits) or "latent".
        v_form: how values lie, "rows", "columns" or "latent".
        group: queries that read one KV head.
        head_dim: numbers of a query.
        block: tokens of a paged cache's block, or 0.
        compute: the type of the products, "float32", "float16" or "bfloat16".
    """
    heads = min(32, max(8, power_of_two(group)))
    if kind == "latent":
        chosen = _latent(heads, head_dim, capability, compute)
    elif kind == "narrow":
        chosen = _narrow(min(16, heads), v_form, head_dim, compute)
    elif compute == "float32":
        chosen = _float32(heads, head_dim)
    elif capability[0] == 9:
        # 16 columns are what Hopper's warp-group instruction needs; it reads both tiles from shared memory.
        chosen = Launch(max(16, heads), 64, 4 if heads <= 16 else 8, 3)
    elif capability[0] in (10, 11) and heads >= 16:
        # With 64 tokens Triton would take Blackwell's tensor-memory instruction, whose operands have to be moved there
        # and back: three times the instructions.
        chosen = Launch(heads, 32, 4, 3)
    else:
        chosen = Launch(heads, 64, 8, 3)
    return dataclasses.replace(chosen, tile=min(chosen.tile, block)) if block else chosen


def _float32(heads: int, head_dim: int) -> Launch:
    """No tensor core multiplies float32 exactly, so these are plain multiplications, and operands come from shared
    memory: few threads, each with a large piece, load them least often. Tiles of 64 tokens of 128 numbers would not fit
    the 99 KiB of sm_86, 89 and 120."""
    return Launch(heads, 32 if head_dim <= 128 else 16, 8 if heads == 32 else 4, 3 if head_dim <= 64 else 2)


def _narrow(heads: int, v_form: str, head_dim: int, compute: str) -> Launch:
    """Two warps convert larger pieces of a tile than four, and send fewer operands through shared memory; values in
    rows of 128 numbers need the registers of four, and float32 products (before Ampere) smaller tiles."""
    columns = v_form == "columns"
    if compute == "float32":
        return Launch(heads, 32, 2 if columns and heads == 8 else 4, 2)
    return Launch(heads, 64, 2 if columns or head_dim <= 64 else 4, 3)


def _latent(heads: int, head_dim: int, capability: tuple[int, int], compute: str) -> Launch:
    """A row of hundreds of numbers fills shared memory and registers; with 8 warps and 16 bits, sm_86 would spill."""
    if compute != "float32":
        return Launch(16, 32, 4, 2)
    if head_dim <= 160:
        return Launch(min(16, heads), 32, 4, 2)
    if head_dim <= 288:
        return Launch(16, 32, 8, 2)
    return Launch(16 if capability >= (8, 0) else 8, 16, 8, 2)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()
