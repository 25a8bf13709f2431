"""What the tests of a unit's text share: its words in one line, and the names that its reference answers define."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jupytext

from tests.misconceptions.harness import load


@dataclass(frozen=True)
class Prose:
    """The percent source of a unit."""

    source: Path

    @cached_property
    def text(self) -> str:
        """Text and code, without the marks of comments, each run of white space as one space."""
        uncommented = re.sub(r"^# ?", "", self.source.read_text(encoding="utf-8"), flags=re.MULTILINE)
        return re.sub(r"\s+", " ", uncommented)

    @cached_property
    def markdown(self) -> str:
        """The text cells alone, in one line: what stands there before anything is filled in."""
        return " ".join(
            " ".join(c.source.split()) for c in jupytext.read(self.source).cells if c.cell_type == "markdown"
        )

    def says(self, *phrases: str) -> None:
        """AssertionError unless the unit says each of them."""
        for words in phrases:
            unit = self.source.stem[:2]
            assert words in self.text, f"unit {unit} no longer says {words!r}; correct the prose or this test"

    def hides(self, *answers: str) -> None:
        """AssertionError if a text cell gives one of these numbers away."""
        for answer in answers:
            found = re.search(rf"(?<![\d.,]){re.escape(answer)}(?![\d])", self.markdown)
            assert not found, f"the prose gives {answer} away"

    def reference(self) -> dict:
        """The names that the set-up cells and the reference answers define."""
        space = {"__name__": "__main__"}
        for cell in load(self.source).cells:
            if cell.setup or cell.answer:
                exec(compile(cell.source, f"<unit {self.source.stem[:2]}>", "exec"), space)
        return space
