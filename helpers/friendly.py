"""What a learner is meant to read: errors without a traceback, lines broken between words."""

import sys
import textwrap

WIDTH = 70  # characters; what a notebook at half a screen holds. JupyterLab breaks longer lines inside words


class Friendly:
    """Mix-in for exceptions: IPython shows `message()`, wrapped between words."""

    def message(self) -> str:
        """What is shown; a subclass may say more than the exception's own text."""
        return str(self)

    def _render_traceback_(self) -> list[str]:
        return wrapped(self.message()).splitlines()


def shell():
    """The shell of the notebook that this code runs in, or None."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def wrapped(text: str) -> str:
    """`text` in lines of WIDTH at most, its own line breaks kept; a word that is longer stays whole."""
    lines = text.splitlines()
    return "\n".join(textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False) for line in lines)


def say(*lines: str) -> None:
    """Print sentences, wrapped where a notebook shows them; a grader's log gets each in one line."""
    for line in lines:
        print(line if shell() is None else wrapped(line))
