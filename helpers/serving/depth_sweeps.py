"""Published decode speeds at growing depth, predicted from the first point of each and from bytes."""

from dataclasses import dataclass

from helpers import data
from helpers.models import geometry
from helpers.serving.incident import Model

# The sweeps of helpers/data/measurements.json whose models are in the catalogue, and how the file stores the weights.
# gpt-oss keeps its experts in MXFP4 and little else; the cache is f16 in all.
FORMATS = {
    "depth-qwen2.5-7b-gb10": "q8_0",
    "depth-gemma-3-4b-gb10": "q4_0",
    "depth-qwen3-30b-a3b-gb10": "q8_0",
    "depth-gpt-oss-20b-gb10": "mxfp4",
    "depth-gpt-oss-120b-gb10": "mxfp4",
}


@dataclass(frozen=True)
class Sweep:
    """Milliseconds a token by depth, as measured and as predicted; `bytes_per_second` is what the first point gives."""

    model: str
    attention: str
    measured: dict[int, float]
    predicted: dict[int, float]
    bytes_per_second: float

    @property
    def worst(self) -> float:
        """The largest |predicted ÷ measured − 1| behind the first point."""
        return max(abs(self.predicted[d] / ms - 1) for d, ms in list(self.measured.items())[1:])


def sweeps() -> list[Sweep]:
    """Each sweep, predicted from its first point alone: the rate at which that step read its weights is taken for the
    cache as well. Layers with a window read no more than it."""
    return [_sweep(data.measurement(id), form) for id, form in FORMATS.items()]


def _sweep(row: dict, form: str) -> Sweep:
    model = Model(geometry.get(row["model"]), weights=form, cache="float16")
    measured = {point["depth"]: 1e3 / point["tok_s"] for point in row["data"]}
    first, start = next(iter(measured.items()))
    rate = model.step_bytes(first) / (start / 1e3)
    predicted = {depth: 1e3 * model.step_bytes(depth) / rate for depth in measured}
    return Sweep(row["model"], row["attention"], measured, predicted, rate)


def table() -> tuple[list[str], list[list[str]]]:
    """Columns and rows: model, what its attention is, ms at the first and the last depth, and the largest miss."""
    columns = ["model", "attention", "depth", "ms a token", "predicted at the end", "largest miss"]
    rows = []
    for sweep in sweeps():
        (first, start), *_, (last, end) = sweep.measured.items()
        rows.append(
            [
                sweep.model,
                sweep.attention,
                f"{first:,} → {last:,}",
                f"{start:.1f} → {end:.1f}",
                f"{sweep.predicted[last]:.1f}",
                f"{sweep.worst:.1%}",
            ]
        )
    return columns, rows
