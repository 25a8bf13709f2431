"""The page of recordings: each machine's decode curve over what its bytes predict, and how to add one's own."""

from pathlib import Path

import matplotlib.pyplot as plt

from helpers.clock import recordings
from tools import picture

INTRODUCTION = """# Gallery of machines

Each picture is a recording: measured times per output token over the floor that bytes alone predict. None is drawn by
hand, and a machine that nobody ran the tools on has none.

To add yours, on a quiet machine:

    make record

writes a JSON file to `helpers/data/recordings/` (`make gpu-check` on an NVIDIA GPU). Run `make site` to see it here,
and send the file as it is: [how to contribute](CONTRIBUTING.md).
"""


def write(source: Path) -> None:
    """gallery.md and its pictures into `source`."""
    parts = [INTRODUCTION]
    for name in recordings.available():
        recording = recordings.load(name)
        if not any(one.id.startswith("decode-batch-") for one in recording.series):
            continue
        figure = picture.draw(recording)
        (source / "gallery").mkdir(exist_ok=True)
        figure.savefig(source / "gallery" / f"{name}.png", dpi=144, metadata={"Software": None})
        plt.close(figure)
        parts.append(_entry(recording))
    (source / "gallery.md").write_text("\n".join(parts), encoding="utf-8")


def _entry(recording: recordings.Recording) -> str:
    alt = f"Time per output token against context on {recording.device}: measured points over predicted lines"
    rows = [_row(one, recording) for one in recording.series if one.id.startswith("decode-batch-")]
    notes = "".join(f"- {note}\n" for note in recording.notes)
    versions = ", ".join(f"{package} {version}" for package, version in sorted(recording.versions.items()))
    return "\n".join(
        [
            f"## {recording.device}\n",
            f"![{alt}](gallery/{recording.name}.png)\n",
            "| model | batch | context | measured ÷ floor, shortest | longest |",
            "|---|---|---|---|---|",
            *rows,
            f"\nRecorded {recording.recorded_at}, with {versions}.\n",
            notes,
        ]
    )


def _row(one: recordings.Series, recording: recordings.Recording) -> str:
    """Model, batch, contexts, and by what factor the ends of the curve lie above their byte floor."""
    read = recording.card["read_bytes_per_second"]
    first, last = one.points[0], one.points[-1]
    factors = " | ".join(f"{point.y * read / point.bytes:.2f}" for point in (first, last))
    context = f"{first.x:,.0f} to {last.x:,.0f}"
    return f"| {one.conditions['model']} | {one.conditions['batch']} | {context} | {factors} |"
