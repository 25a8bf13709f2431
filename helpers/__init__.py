"""The library that the notebooks import."""

import os

# A decode step hands work to the cores some hundred times. GNU OpenMP, which torch and numba share, would put the waiting
# threads to sleep in between, and to wake one costs up to 30 µs: several milliseconds a step. Spinning a fraction of a
# millisecond first avoids that. OpenMP reads this once, when torch is imported, so it is set before that.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
