"""The library that the notebooks import."""

import os

# A decode step hands work to the cores some hundred times. GNU OpenMP, which torch and numba share on Linux, lets the
# waiting threads spin in between: for milliseconds by default, which starves everybody on a machine that is shared, or
# not at all, and then to wake one costs up to 30 µs. A fraction of a millisecond serves both. OpenMP reads this once,
# when torch is imported; the Makefile sets it too, for notebooks that import torch first.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
