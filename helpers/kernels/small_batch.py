"""Up to how many rows (sequences · tokens) the compiled loops multiply on this processor; more go to torch's matmul.

`helpers.clock.small_batch` measures it, once, when `make` sets the course up. It is kept because with the kernel the
last bits of logits change: if each day chose anew, a near tie would be answered otherwise from one day to the next.
"""

from pathlib import Path

import torch
from llvmlite import binding

from helpers import paths

MOST = 8  # compiled for more, the loops lost wherever that was measured: 1.1 to 2 times torch's time from 12 rows on


def kept() -> int:
    """What was measured on this processor, 1 to MOST; MOST where nothing was."""
    try:
        rows = int(_file().read_text(encoding="ascii"))
    except (OSError, ValueError):
        return MOST
    return rows if 1 <= rows <= MOST else MOST


def keep(rows: int) -> None:
    """For every process that starts from now on, on processors like this one.

    Raises:
        OSError: the file cannot be written.
    """
    _file().write_text(f"{rows}\n", encoding="ascii")


def _file() -> Path:
    # What LLVM calls the processor is also what numba keeps compiled loops by.
    return paths.cache_dir() / f"small-batch-{binding.get_host_cpu_name()}-{torch.get_num_threads()}-threads.txt"
