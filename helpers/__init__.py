"""The library that the notebooks import."""

import os

# A decode step hands work to the cores some hundred times. GNU OpenMP, which torch and numba share on Linux, lets the
# waiting threads spin in between: for milliseconds by default, which starves everybody on a machine that is shared, or
# not at all, and then to wake one costs up to 30 µs. A fraction of a millisecond serves both. OpenMP reads this once,
# when torch is imported; the Makefile sets it too, for notebooks that import torch first.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Linux gives out memory in pages of 4 kB, and looking up where each of them lies slows whoever streams through hundreds
# of megabytes. torch asks for pages of 2 MB if told so before it first needs one: on two EPYC cores a decode step gains
# 7 %.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
