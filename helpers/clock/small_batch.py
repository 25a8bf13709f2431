"""Where a batch changes the kernel on this processor: `python -m helpers.clock.small_batch` measures it and keeps it.

On x86 the compiled loops were the faster ones up to 8 rows; an Apple CPU, whose torch multiplies on a matrix unit of
its own, may change earlier.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from helpers.clock import devices
from helpers.clock.timing import Clock
from helpers.kernels import cpu, small_batch

CANDIDATES = (2, 4, 8)
CLEARLY = 1.1  # so many times torch's time, beyond the doubt of the measurement, and the loops are left
WEIGHT = (3072, 576)  # [out, in] of SmolLM2-135M's gate and up, 7 MB

Product = Callable[[], object]


def measure(clock: Clock | None = None, products: Callable[[int], tuple[Product, Product]] | None = None) -> int:
    """The largest of CANDIDATES up to which the loops are not clearly slower than torch; 1 where they are at 2.

    One row always stays with the loops: torch reads weights slowly there on the processors that were measured.

    Args:
        products: rows → (loops, torch's), two ways to do the same products; for tests.
    """
    clock, products = clock or Clock("cpu"), products or _on_weights_from_memory()
    found = 1
    for rows in CANDIDATES:
        loops, by_torch = products(rows)
        pair = clock.compare(by_torch, loops, budget_seconds=1.0)
        if pair.ratio - pair.spread > CLEARLY:
            break
        found = rows
    return found


def _on_weights_from_memory() -> Callable[[int], tuple[Product, Product]]:
    """Products with weights of which the processor's cache holds a quarter at the most, as in a decode step."""
    size = devices.buffer_bytes(torch.device("cpu"), devices.LARGEST_BUFFER_BESIDE_BYTES)
    outputs, inputs = WEIGHT
    weights = torch.rand(size // (4 * outputs * inputs), outputs, inputs)

    def products(rows: int) -> tuple[Product, Product]:
        x = torch.rand(rows, inputs)
        return (
            lambda: [cpu.multiply_few(x, weight) for weight in weights],
            lambda: [F.linear(x, weight) for weight in weights],
        )

    return products


def set_up() -> None:
    """Measure it and keep it; where there is no room for that, a line says so and MOST rows are multiplied by loops."""
    try:
        rows = measure()
        small_batch.keep(rows)
    except (OSError, MemoryError) as error:
        print(f"Not measured and kept, so up to {small_batch.MOST} rows are multiplied by compiled loops: {error}")
    else:
        print(f"Up to {rows} rows are multiplied by compiled loops here, more by torch.")


if __name__ == "__main__":
    set_up()
