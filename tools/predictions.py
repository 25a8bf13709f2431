"""What a class predicted and what it measured then, from the logs that learners handed in (`helpers.estimates`)."""

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from helpers import estimates

MOST_BYTES = 5 << 20  # of one log; a whole course writes some 20 kB
NEAR = 1.25  # a prediction within a quarter of what came out


@dataclass
class Quantity:
    """One quantity of a unit, e.g. "02.tpot_ms_at_8192"; `ratios` are measured ÷ predicted, one a learner."""

    key: str
    ratios: list[float] = field(default_factory=list)

    @property
    def unit(self) -> str:
        return self.key.split(".")[0]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def near(self) -> int:
        return sum(1 / NEAR <= ratio <= NEAR for ratio in self.ratios)


def of_class(logs: dict[str, list[Path]]) -> list[Quantity]:
    """Every quantity that somebody predicted before measuring it, in the order of the units; `logs` by student.

    Of several logs of one student the one with the most pairs counts. A log is a learner's file: what cannot be read
    in it is left out.
    """
    found: dict[str, Quantity] = defaultdict(lambda: Quantity(""))
    for paths in logs.values():
        pairs = max((_pairs(path) for path in paths), key=len, default={})
        for key, ratio in pairs.items():
            found[key].key = key
            found[key].ratios.append(ratio)
    return [found[key] for key in sorted(found)]


def _pairs(log: Path) -> dict[str, float]:
    if log.is_symlink() or not log.is_file() or log.stat().st_size > MOST_BYTES:
        return {}
    return {row.key: row.ratio for row in estimates.calibration(log) if row.ratio > 0}
