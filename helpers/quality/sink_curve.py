"""Perplexity against window size and number of sinks: measured live, or the recording that the course ships.

`python -m helpers.quality.sink_curve` records it anew on this machine (a few minutes on two cores).
"""

import datetime
import json
import platform
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from helpers.caches import FullCache, SinkCache
from helpers.models.decoder import Decoder
from helpers.quality.perplexity import losses

RECORDING = Path(__file__).parents[1] / "data" / "sink_curve.json"
GRID = [(sinks, window) for window in (128, 256, 512, 1024) for sinks in (0, 1, 2, 4, 8)]
GRID += [(4, window) for window in (192, 384, 768, 1536)]


@dataclass(frozen=True)
class Point:
    """One cache: `window` None is the full cache.

    loss            mean over the scored positions, nats
    above_dense     mean of (loss − loss of the full cache) over the same positions, nats
    spread          standard error of that mean, nats; the positions are paired, so that hard words cancel
    """

    sinks: int
    window: int | None
    loss: float
    above_dense: float
    spread: float

    @property
    def perplexity(self) -> float:
        return float(torch.tensor(self.loss, dtype=torch.float64).exp())


def measure(decoder: Decoder, tokens: torch.Tensor, grid: Iterable[tuple[int, int]], skip: int = 512) -> list[Point]:
    """The full cache first, then each (sinks, window) of `grid`, over tokens skip … n-1 of `tokens` [n].

    Raises:
        ValueError: fewer than skip + 2 tokens, or sizes that `SinkCache` refuses.
    """
    if len(tokens) < skip + 2:
        raise ValueError(f"{len(tokens)} tokens leave nothing to measure after the first {skip}")
    geometry, device = decoder.geometry, decoder.device
    caches = [(0, None), *grid]
    points, dense = [], None
    # stdout: a bar on stderr would look like an error in a notebook.
    for sinks, window in tqdm(caches, desc="perplexity", file=sys.stdout, delay=2, leave=False):
        if window is None:
            cache = FullCache(geometry, len(tokens), dtype=decoder.dtype, device=device)
        else:
            cache = SinkCache(geometry, len(tokens), sinks, window, dtype=decoder.dtype, device=device)
        scored = losses(decoder, cache, tokens.to(device))[max(skip - 1, 0) :].cpu().double()  # MPS has no float64
        dense = scored if dense is None else dense
        above = scored - dense
        spread = float(above.std() / len(above) ** 0.5)
        points.append(Point(sinks, window, float(scored.mean()), float(above.mean()), spread))
    return points


def by_window(points: Iterable[Point], sinks: int) -> dict[int, float]:
    """{window: perplexity} of the points with this many sinks, in order of the window."""
    found = {p.window: p.perplexity for p in points if p.window is not None and p.sinks == sinks}
    return dict(sorted(found.items()))


def recorded() -> tuple[list[Point], str]:
    """The shipped recording: its points, the full cache first, and a line that says what was measured where."""
    recording = json.loads(RECORDING.read_text(encoding="utf-8"))
    return [Point(**row) for row in recording["points"]], recording["conditions"]


def record() -> None:
    """Measure GRID on this machine and replace the recording."""
    from helpers.clock import devices
    from helpers.models import pretrained, text

    decoder, tokenizer = pretrained.load()
    points = measure(decoder, text.tokens(2048, tokenizer), GRID)
    conditions = (
        "SmolLM2-135M-Instruct, float32, positions 512 to 2,047 of the documentation topics that Python "
        f"{platform.python_version()} ships; {datetime.date.today()}, {devices.name_of(decoder.device)}, "
        f"torch {torch.__version__}"
    )
    text_ = json.dumps({"conditions": conditions, "points": [asdict(p) for p in points]}, indent=1)
    RECORDING.write_text(text_ + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
