"""What `make doctor` asks of torch, in a process of its own: the GPU, memory bandwidth, and whether the clock is fair.

A line of JSON for each finding, as soon as it is found.
"""

import contextlib
import io
import json
import sys
from dataclasses import asdict

from tools.doctor import NOTE, OK, WRONG, Finding, looked

FAIR_SPREAD = 0.1


def gpu() -> Finding:
    import torch

    from helpers.clock import driver

    built = f"torch {torch.__version__}, CUDA build {torch.version.cuda or 'none'}"
    if idle := driver.problem():
        return Finding("GPU", WRONG, f"{built}; not used", f"{idle[0].upper()}{idle[1:]}. The CPU works meanwhile.")
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        text = f"{built}; {device.name}, {device.total_memory / 1e9:.0f} GB, sm_{device.major}{device.minor}"
        return Finding("GPU", OK, text)
    if torch.backends.mps.is_available():
        return Finding("GPU", OK, f"{built}; Apple GPU")
    return Finding("GPU", NOTE, f"{built}; none, so the course runs on the CPU")


def bandwidth() -> Finding:
    from helpers.clock import devices

    with contextlib.redirect_stdout(io.StringIO()):
        card = devices.card()
    text = f"{card.name} reads {card.read_bytes_per_second / 1e9:.1f} GB/s, multiplies {card.rate() / 1e12:.2g} TFLOP/s"
    text += f" in float32, launches in {card.launch_seconds * 1e6:.1f} µs (measured {card.measured_at})"
    if not card.busy:
        return Finding("bandwidth", OK, text)
    again = "Close what else runs, and run this again; in a notebook, devices.card(refresh=True).show()."
    return Finding("bandwidth", WRONG, f"{text}; the machine was busy", again)


def clock() -> Finding:
    """One step against itself: a fair clock sees no difference, a quiet machine a narrow interval."""
    import os
    import time

    import torch

    from helpers.clock import devices
    from helpers.clock.timing import Clock

    device = devices.pick()
    numbers = torch.ones(8_000_000, device=device)
    with contextlib.redirect_stdout(io.StringIO()):
        same = Clock(device).compare(numbers.sum, numbers.sum, budget_seconds=1.0, progress=False)
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    tick = time.get_clock_info("perf_counter").resolution
    text = f"ticks every {tick * 1e9:.0f} ns; a step against itself {same.ratio:.3f} ± {same.spread:.3f}{load}"
    if same.differs:
        return Finding(
            "clock", WRONG, text, "It sees a difference where there is none: run this again on a quiet machine."
        )
    if same.spread > FAIR_SPREAD:
        return Finding("clock", WRONG, text, "The machine is busy: close what else runs, plug in, let it cool.")
    return Finding("clock", OK, text)


def main() -> int:
    for what, look in {"GPU": gpu, "bandwidth": bandwidth, "clock": clock}.items():
        print(json.dumps(asdict(looked(what, look))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
