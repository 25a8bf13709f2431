"""Draw the README's picture from a recording of `tools.record`: TPOT over context, measured and predicted.

    python -m tools.record                       # on a quiet machine; says the name of what it wrote
    python -m tools.picture amd-epyc-2-threads   # that recording into docs/images/tpot.png

The prediction is bytes ÷ read bandwidth, both from the recording. Machine and date stand in the picture itself.
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from helpers import plots
from helpers.clock import recordings
from tools.units import ROOT

PICTURE = ROOT / "docs" / "images" / "tpot.png"


def draw(recording: recordings.Recording) -> Figure:
    """The decode curves of `recording` over the line that its bytes and its device card predict.

    Raises `LookupError` when it holds no decode sweep.
    """
    sweeps = [one for one in recording.series if one.id.startswith("decode-batch-")]
    if not sweeps:
        raise LookupError(f"{recording.name} holds no series decode-batch-…; `python -m tools.record` writes them")
    plots.use()
    read = recording.card["read_bytes_per_second"]
    figure, ax = plt.subplots(figsize=(7.6, 4.4))
    for number, one in enumerate(sweeps):
        x, median, spread = recordings.curve(recording, one.id)
        plots.prediction(
            ax, x,
            [1e3 * point.bytes / read for point in one.points],
            [1e3 * seconds for seconds in median],
            [1e3 * seconds for seconds in spread],
            xlabel="context (tokens in the session)",
            ylabel="time per output token (ms)",
            label=f"batch {one.conditions['batch']}",
            title=f"{one.conditions['model']}: every token of history makes the next one slower",
            series=number,
        )  # fmt: skip
    figure.supxlabel(caption(recording), fontsize=8.5, color=plots.GREY)
    return figure


def caption(recording: recordings.Recording) -> str:
    """Where and when it was measured, and what the dashed lines are."""
    when = datetime.fromisoformat(recording.recorded_at).date()
    read = recording.card["read_bytes_per_second"] / 1e9
    busy = " while it was busy" * any("busy" in note for note in recording.notes)
    return (
        f"Measured on {recording.device}{busy}, {when}.\n"
        f"Dashed: bytes of weights and KV cache ÷ {read:.0f} GB/s, this machine's read bandwidth."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.picture", description="draw the README's picture")
    parser.add_argument("recording", help="its name, or the path of its JSON file")
    parser.add_argument("--out", type=Path, default=PICTURE, help="the PNG to write (default: docs/images/tpot.png)")
    options = parser.parse_args(arguments)
    try:
        figure = draw(recordings.load(options.recording))
    except (LookupError, recordings.BadRecording) as error:
        print(error.args[0])
        return 2
    options.out.parent.mkdir(parents=True, exist_ok=True)
    # Without the note of matplotlib's version the same recording gives the same file.
    figure.savefig(options.out, dpi=144, metadata={"Software": None})
    plt.close(figure)
    print(f"Drawn to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
