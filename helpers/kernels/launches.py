"""How the Triton kernel is launched: tile sizes, warps and stages, by what is read and on which GPU.

Each choice stands for compiled code that was read: no spills, shared memory within the chip's limit, loads of 16 bytes,
and of what met these about the fewest instructions for a byte of cache.
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
    kind: str, v_form: str, group: int, block: int, capability: tuple[int, int], compute: str = "bfloat16"
) -> Launch:
    """Tile sizes for a cache of `kind` "wide" (16 and 32 bits), "narrow" (8 and 4 bits) or "latent".

    Args:
        group: queries that read one KV head.
        block: tokens of a paged cache's block, or 0.
        compute: the type of the products, "float32", "float16" or "bfloat16".
    """
    if kind == "latent":
        heads, tile, warps, stages = 16, 32, 8, 2
    elif kind == "narrow":
        heads, tile, warps, stages = min(16, max(8, power_of_two(group))), 64, 2 if v_form == "columns" else 4, 3
    elif capability[0] == 9:
        # 16 columns are what Hopper's warp-group instruction needs; it reads both tiles from shared memory.
        heads = min(32, max(16, power_of_two(group)))
        tile, warps, stages = 64, 4 if heads == 16 else 8, 3
    else:
        heads, tile, warps, stages = min(32, max(8, power_of_two(group))), 64, 8, 3
    return Launch(heads, min(tile, block) if block else tile, warps, stages)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()
