"""Perplexity against window size and number of sinks: measured live, or the recording that the course ships.

`python -m helpers.quality.sink_curve` records it anew on this machine (a few minutes on two cores).
"""

import math
import platform
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from helpers.caches import FullCache, SinkCache
from helpers.clock import recordings
from helpers.models.decoder import Decoder
from helpers.progress import Progress
from helpers.quality.perplexity import losses

RECORDING = "sink-curve"
TOKENS, SKIP = 2048, 512
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
        return math.exp(self.loss)


def measure(decoder: Decoder, tokens: torch.Tensor, grid: Iterable[tuple[int, int]], skip: int = SKIP) -> list[Point]:
    """The full cache first, then each (sinks, window) of `grid`, over tokens skip … n-1 of `tokens` [n].

    Raises:
        ValueError: fewer than skip + 2 tokens, or sizes that `SinkCache` refuses.
    """
    if len(tokens) < skip + 2:
        raise ValueError(f"{len(tokens)} tokens leave nothing to measure after the first {skip}")
    geometry, device = decoder.geometry, decoder.device
    caches = [(0, None), *grid]
    points, dense = [], None
    with Progress("perplexity") as bar:
        for sinks, window in caches:
            if window is None:
                cache = FullCache(geometry, len(tokens), dtype=decoder.dtype, device=device)
            else:
                cache = SinkCache(geometry, len(tokens), sinks, window, dtype=decoder.dtype, device=device)

            def done(part: float, before: int = len(points)) -> None:
                bar.to((before + part) / len(caches))

            scored = losses(decoder, cache, tokens.to(device), done=done, skip=skip).cpu().double()  # MPS has none
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
    recording = recordings.load(RECORDING)
    how = recording.series[0].conditions
    dense, (first, last) = how["full_cache_loss"], how["positions"]
    points = [Point(0, None, dense, 0.0, 0.0)]
    for one in recording.series:
        points += [Point(one.conditions["sinks"], int(p.x), dense + p.y, p.y, p.spread) for p in one.points]
    conditions = (
        f"{how['model']}, {how['dtype']}, positions {first:,} to {last:,} of {how['text']}; "
        f"{recording.recorded_at[:10]}, {recording.device}, torch {recording.versions['torch']}"
    )
    return points, conditions


def to_series(points: list[Point], **conditions) -> list[recordings.Series]:
    """Measured points, the full cache first, as curves of a recording: one for each number of sinks, over the window.

    Recorded is the loss above that of the full cache, with its standard error.
    """
    dense, *rest = points
    conditions |= {"positions": [SKIP, TOKENS - 1], "full_cache_loss": dense.loss}
    return [
        recordings.Series(
            f"sinks-{sinks}",
            f"{conditions['model']}, {sinks} sinks",
            [
                recordings.Point(p.window, p.above_dense, p.spread, TOKENS - SKIP)
                for p in sorted((p for p in rest if p.sinks == sinks), key=lambda p: p.window)
            ],
            conditions | {"sinks": sinks},
            x="window",
            y="loss above the full cache",
            y_unit="nats",
        )
        for sinks in sorted({p.sinks for p in rest})
    ]


def record() -> None:
    """Measure GRID on this machine and replace the recording."""
    from helpers.clock import devices
    from helpers.models import pretrained, text

    decoder, tokenizer = pretrained.load()
    points = measure(decoder, text.tokens(TOKENS, tokenizer), GRID)
    recording = recordings.new(
        RECORDING, devices.name_of(decoder.device), decoder.device.type, {}, {"torch": torch.__version__}
    )
    topics = f"the documentation topics that Python {platform.python_version()} ships"
    series = to_series(points, model="SmolLM2-135M-Instruct", dtype="float32", text=topics)
    recordings.save(replace(recording, series=series))


if __name__ == "__main__":
    record()
