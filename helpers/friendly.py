"""Errors that a learner is meant to read: a notebook shows their message alone, without a traceback."""

import textwrap

WIDTH = 88  # characters; JupyterLab breaks longer lines inside words


class Friendly:
    """Mix-in for exceptions: IPython shows `message()`, wrapped between words."""

    def message(self) -> str:
        """What is shown; a subclass may say more than the exception's own text."""
        return str(self)

    def _render_traceback_(self) -> list[str]:
        lines = self.message().splitlines()
        return [textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False) for line in lines]
