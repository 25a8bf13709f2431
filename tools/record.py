"""Record what this machine does: its device card and the decode sweep of SmolLM2-135M at batch 1 and 4.

    python -m tools.record                       # into helpers/data/recordings/, named after the device
    python -m tools.record --out build/recordings --budget quick

Takes about a minute on a laptop; close what else runs first. The weights are synthetic, for time does not depend on
them. The notebooks can draw the file beside a learner's own curve (`helpers.clock.recordings`). `tools.gpu_check`
writes one of the same format with more in it, on an NVIDIA GPU.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata

import torch

from helpers.caches import FullCache
from helpers.clock import devices, recordings, sweeps, timing
from helpers.models import geometry
from helpers.models.decoder import Decoder

MODEL = "SmolLM2-135M"
BATCHES = (1, 4)


def record(
    device: torch.device,
    shape: geometry.Geometry,
    contexts: Sequence[int],
    budget: str,
    card: devices.DeviceCard,
    name: str,
) -> recordings.Recording:
    """A recording of decode steps of `shape`, float32, over all `contexts` and BATCHES, measured in turns."""
    decoder = Decoder(shape, torch.float32, device)
    engines = {batch: (decoder, FullCache(shape, max(contexts) + 1, batch, torch.float32, device)) for batch in BATCHES}
    swept = sweeps.decode_sweep(engines, contexts, budget, card.read_bytes_per_second)
    recording = recordings.new(
        name, card.name, device.type, asdict(card),
        versions={package: metadata.version(package) for package in ("torch", "numpy", "numba")},
        machine={"threads": torch.get_num_threads()},
    )  # fmt: skip
    for batch, timings in swept.items():
        cache = engines[batch][1]
        points = []
        for context, timed in timings.items():
            points.append(recordings.point(context, timed, decoder.weight_bytes + cache.step_bytes(context + 1)))
            if timed.verdict != "ok":
                recording.notes.append(f"batch {batch}, {context} tokens: {timed.verdict}")
        title = f"{shape.name}, float32, batch {batch}"
        conditions = {"model": shape.name, "dtype": "float32", "batch": batch, "weights": "synthetic", "cache": "full"}
        recording.series.append(recordings.series(f"decode-batch-{batch}", title, points, **conditions))
    return recording


def show(recording: recordings.Recording) -> None:
    """Print the curves as a table: time, and the share of the card's read bandwidth that it amounts to."""
    read = recording.card["read_bytes_per_second"]
    for one in recording.series:
        print(one.title)
        for each in one.points:
            median, spread = timing.pretty_seconds(each.y), timing.pretty_seconds(each.spread)
            rate = each.bytes / each.y
            print(
                f"  {each.x:>8,} {one.x_unit}  {median:>10} ± {spread:<9}  {rate / 1e9:7.1f} GB/s, "
                f"{rate / read:.0%} of what is read without a model"
            )
    for note in recording.notes:
        print(f"note: {note}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--budget", default="full", choices=tuple(sweeps.SECONDS_PER_POINT))
    parser.add_argument("--name", help="of the recording; the device's if left out")
    parser.add_argument("--out", default=recordings.FOLDER, help="folder to write to")
    options = parser.parse_args(arguments)
    device = devices.pick(options.device)
    card = devices.card(device, refresh=True)
    card.show()
    name = options.name or recordings.slug(card.name)
    recording = record(device, geometry.get(MODEL), sweeps.CONTEXTS, options.budget, card, name)
    if card.busy:
        recording.notes.append("the machine was busy while the card was measured")
    show(recording)
    print(f"Written to {recordings.save(recording, options.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
