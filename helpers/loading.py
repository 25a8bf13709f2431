"""A word and a bar while a notebook loads PyTorch, which takes seconds, and longer while its files come from disk.

`make lab` has every kernel load this module at its start, as an IPython extension; `helpers.hosted` calls `announce`.
"""

import importlib.util
import sys

from helpers.progress import Progress


class _Finder:
    """Stands in front of those that find modules until `name` is asked for, and lets its loader show a bar."""

    def __init__(self, name: str, label: str):
        self.name, self.label = name, label

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            load = spec.loader.exec_module

            def under_a_bar(module):
                with Progress(self.label):
                    load(module)

            spec.loader.exec_module = under_a_bar
        return spec


def announce(name: str = "torch", label: str = "loading PyTorch") -> None:
    """Show a bar when `name` is imported for the first time; nothing where it has been already."""
    waiting = any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path)
    if name not in sys.modules and not waiting:
        sys.meta_path.insert(0, _Finder(name, label))


def load_ipython_extension(shell) -> None:
    """The entry point by which IPython loads this module as an extension."""
    announce()
