"""Who was handed out which variant: reads `keys/record.json` of a folder that `make variant` made.

A variant's notebooks carry its mark, in their metadata and below their title; a submission is graded against the keys
of its own student's variant, or named.
"""

import functools
import json
import re
from pathlib import Path

from tools.handed_in import Submission, content_of
from tools.units import CourseError, Unit

MARK = re.compile(r"variant-[0-9a-f]{12}(?![0-9a-f])")


class HandedOut:
    """The variants under `folder`. Raises `CourseError` when it holds no record."""

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            record = json.loads((folder / "keys" / "record.json").read_text(encoding="utf-8"))
            self.seed, self.variants = record["seed"], record["variants"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CourseError(
                f"{folder} holds no keys/record.json as `make variant` writes it ({type(error).__name__}: {error})"
            ) from None
        self.learners = {entry["learner"]: mark for mark, entry in self.variants.items()}
        self.personal = None not in self.learners

    @classmethod
    def search(cls, folder: Path, submissions: list[Submission]) -> "HandedOut | None":
        """The variants under `folder` whose marks most submissions of their units carry: one notebook with an old
        mark decides nothing for the others."""
        found = [(s.unit.name, marks_in(s.path)) for s in submissions if s.path]
        records = folder.glob("*/keys/record.json") if any(marks for _, marks in found) else []
        for record in (cls(path.parents[1]) for path in sorted(records)):
            of_its_units = [not marks.isdisjoint(record.variants) for name, marks in found if name in record.names]
            if 2 * sum(of_its_units) > len(of_its_units):
                return record
        return None

    @functools.cached_property
    def names(self) -> list[str]:
        """The units that its variants have."""
        entry = next(iter(self.variants.values()))
        folder = self.folder / "keys" / entry["folder"] / "solutions"
        return sorted(path.name for path in folder.glob("*") if path.is_dir())

    def unit(self, mark: str, name: str) -> Unit:
        """The unit `name` as the variant `mark` has it: its reference, and what was released."""
        unit = Unit(self.folder / "keys" / self.variants[mark]["folder"], name)
        if not unit.solution.exists():
            raise CourseError(f"{self.folder} has no {name}: it was made for {', '.join(self.names) or 'no unit'}")
        return unit

    def units(self, units: list[Unit], chosen: bool) -> list[Unit]:
        """Those of `units` that the variants have, as the first of them has them; all must be there if `chosen`."""
        first = next(iter(self.variants))
        return [self.unit(first, u.name) for u in units if chosen or u.name in self.names]

    def given(self) -> dict[str, dict]:
        """The givens of the first of the variants, by the unit's number."""
        return next(iter(self.variants.values()))["given"]

    def settle(self, submission: Submission) -> None:
        """Set `submission.unit` to its student's own, or `wrong` where the notebook is not of it, in place."""
        if not submission.path or submission.wrong:
            return
        found = marks_in(submission.path)
        mine = self._mark_of(submission)
        if mine in found and len(found) == 1:
            submission.unit = self.unit(mine, submission.unit.name)
            return
        owners = [self.variants[m]["learner"] for m in sorted(found) if m in self.variants and m != mine]
        if mine is None:
            submission.wrong = f"no variant was made for {submission.student}"
        elif not found:
            submission.wrong = "its notebook is of no variant: is it the public course's?"
        elif mine in found:
            submission.wrong = "its notebook carries the marks of several variants"
        else:
            submission.wrong = "its notebook is of another variant"
        if owners and self.personal:
            submission.wrong += f": that of {', '.join(owners)}"

    def _mark_of(self, submission: Submission) -> str | None:
        names = (submission.student, submission.lms_id) if self.personal else (None,)
        return next((self.learners[name] for name in names if name in self.learners), None)


def of_the_course(submission: Submission) -> None:
    """Name a notebook of a variant among those of the course itself, in place."""
    if submission.path and not submission.wrong and (found := marks_in(submission.path)):
        submission.wrong = f"its notebook is of a variant ({', '.join(sorted(found))}): grade with --variant FOLDER"


def marks_in(path: Path) -> set[str]:
    """The marks of variants in a notebook, whatever its encoding."""
    return set(MARK.findall(content_of(path)))
