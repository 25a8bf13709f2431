"""The library that the notebooks import."""

import os

from helpers import threads

threads.settle(os.environ)
