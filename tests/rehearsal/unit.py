"""A unit from top to bottom on a pretend GPU: `python -m tests.rehearsal.unit T4 02 03`.

All cells run but the tests of exercises, which no device changes. Nothing is computed and nothing is timed: the clock
runs every step once, makes up its samples, and then asks of every captured step whether it would be launched alike now,
after all the others ran.
"""

import argparse
import contextlib
import functools
import gc
import importlib
import importlib.util
import io
import json
import linecache
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

# What a unit computes on the CPU is small here, and two chips are rehearsed side by side.
os.environ |= {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

import torch

from tests.rehearsal import chip as pretend

LAUNCHES_A_LAYER_SECONDS = 10 * 1.7e-6  # ten kernels (docs/gpu-kernels.md), and what one takes, assumed
LAYERS = 2  # that a model runs; the others do the same, and only their weights and caches are there


@dataclass
class Report:
    """What a unit ran into: cells that raised, captured steps that would replay something else, and the rest."""

    unit: str
    chip: str
    failures: list[str] = field(default_factory=list)
    wrong_replays: list[str] = field(default_factory=list)
    not_captured: list[str] = field(default_factory=list)
    not_compiled: list[str] = field(default_factory=list)  # kernels that docs/gpu-kernels.md has no row of
    slow: list[str] = field(default_factory=list)
    timed: list[str] = field(default_factory=list)  # models of its sweeps over contexts
    growth: float = 0.0  # of the step that grows most in a sweep over contexts, by its bytes and its launches
    graphs: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal.unit", description="units on a pretend GPU")
    parser.add_argument("chip", choices=pretend.CHIPS)
    parser.add_argument("units", nargs="*", help="numbers or names; all when none is given")
    parser.add_argument("--budget", choices=("quick", "full"), default="quick")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of a model that run")
    parser.add_argument("--json", type=Path, help="write the reports here")
    options = parser.parse_args(arguments)
    reports = []
    for report in rehearse(options.chip, options.units, options.budget, options.layers):
        reports.append(report)
        print(
            f"{report.unit} on {report.chip}: {report.seconds:.0f} s, {report.graphs} graphs, at most "
            f"{report.peak_bytes / 1e9:.2f} GB" + f", a step grows {report.growth:.1f} times" * (report.growth > 0),
            flush=True,
        )
        for what in ("failures", "wrong_replays", "not_captured", "not_compiled", "slow"):
            for line in getattr(report, what):
                print(f"  {what}: {line}")
    if options.json:
        options.json.write_text(json.dumps([asdict(report) for report in reports]))
    return 1 if any(report.failures or report.wrong_replays for report in reports) else 0


def rehearse(chip: str, units: list[str], budget: str = "quick", layers: int = LAYERS) -> Iterator[Report]:
    """Run units, one after the other, in this process, which has the chip from then on."""
    machine = pretend.install(pretend.CHIPS[chip])
    watch = _compiled(pretend.CHIPS[chip])
    _shorten(layers)
    from tools.units import find

    for unit in find(selection=units):
        report = Report(unit.name, chip)
        _pretend_clock(report)
        machine.on_launch = watch and functools.partial(watch, report)
        machine.memory.peak, machine.slow = machine.memory.held, set()
        start = time.process_time()
        _run(unit, budget, report)
        report.seconds = time.process_time() - start
        report.peak_bytes, report.slow = machine.memory.peak, sorted(machine.slow)
        gc.collect()  # what the unit held goes, graphs and the cycles they are in included
        yield report


def _run(unit, budget: str, report: Report) -> None:
    """Every cell that is not a test, in one namespace; a cell that raises is noted, and the next one runs."""
    import matplotlib.pyplot as plt

    from tools.source import kind, solution_notebook, text

    names = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as home:
        os.environ["COURSE_HOME"] = home
        for number, cell in enumerate(solution_notebook(unit)["cells"]):
            if cell["cell_type"] != "code" or kind(cell) == "test":
                continue
            source = text(cell)
            if kind(cell) == "parameters":
                source = f"device, budget = 'cuda', {budget!r}"
            where = f"<{unit.number}, cell {number}>"
            linecache.cache[where] = (len(source), None, source.splitlines(keepends=True), where)
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said):
                    exec(compile(source, where, "exec"), names)
            except Exception as error:
                report.failures.append(_told(error, where))
            report.not_captured += [line for line in said.getvalue().splitlines() if "cannot be captured" in line]
            plt.close("all")


def _told(error: Exception, where: str) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == where or "helpers" in f.filename]
    at = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[::-1][:5])
    return f"{where} {type(error).__name__}: {str(error)[:300]} (at {at})"


def _shorten(layers: int) -> None:
    """The real model's shape without its weights, of which the first `layers` run; and no Triton kernel does."""
    from helpers import kernels
    from helpers.caches.probe import AttentionProbe
    from helpers.models import pretrained
    from helpers.models.decoder import Block, Decoder
    from helpers.models.geometry import get

    @functools.cache
    def tokenizer():
        return pretrained._packaged(pretrained.gguf_path())[2]

    def load(directory=None, dtype=torch.float32, device="cpu", backend=None):
        return Decoder(get("SmolLM2-135M"), dtype, device, backend), tokenizer()

    def few(run):
        def forward(block, x, cache, *more):
            layer = block.attention.layer
            caches = getattr(cache, "caches", [cache])  # several where parts of a batch share a pass
            if layer < layers or any(isinstance(each, AttentionProbe) for each in caches):
                return run(block, x, cache, *more)
            for each in caches:
                each._ends[layer] = each._ends[0]
            return x

        return forward

    pretrained.load = load
    Block.forward, Block.decode = few(Block.forward), few(Block.decode)
    if importlib.util.find_spec("triton"):
        for path in sorted(Path(kernels.__path__[0]).glob("cuda*.py")):
            pretend.stub_kernels(importlib.import_module(f"helpers.kernels.{path.stem}"))


def _compiled(chip: pretend.Chip) -> Callable | None:
    """What notes kernels that were not compiled for `chip`; None where there is no Triton to ask."""
    if not importlib.util.find_spec("triton"):
        return None
    from tools import kernel_table, machine_code

    kernels = {name: getattr(module, name) for name, module in machine_code.KERNELS.items()}
    known = kernel_table.forms(10 * chip.capability[0] + chip.capability[1])

    def watch(report: Report, name: str, args: tuple, kwargs: dict) -> None:
        form = machine_code.launched(name, kernels[name], *args, **kwargs).form
        if form not in known:
            known.add(form)  # once is enough
            report.not_compiled.append(f"{name} {form}")

    return watch


def _pretend_clock(report: Report) -> None:
    """A clock that runs each step and makes up how long it took; graphs that remember what they are of."""
    from helpers.clock import devices, graphs, sweeps, timing

    graphs.WARM_UP_CALLS = 1
    measured = getattr(devices._matmul_rate, "measured", devices._matmul_rate)

    def matmul_rate(device, dtype, *args, **kwargs):
        if device.type == "cuda" and dtype is torch.bfloat16 and pretend.machine.chip.capability < (8, 0):
            return None  # too slow for a row on the card
        return measured(device, dtype, *args, **kwargs)

    matmul_rate.measured = measured
    devices._matmul_rate = matmul_rate
    devices._crowded = lambda: False
    made = getattr(graphs.Graph.__init__, "made", graphs.Graph.__init__)

    def make(self, function, *args, **kwargs):
        made(self, function, *args, **kwargs)
        self.of = function
        report.graphs += 1

    make.made = made
    graphs.Graph.__init__ = make

    def again(key, step):
        """Whether a replay is what the step would launch now."""
        graph = getattr(step, "_graph", None) if isinstance(step, graphs.Prepared) else step
        if isinstance(graph, graphs.Graph):
            step()
            if differs := graph._graph.trace.differs(pretend.launched(graph.of)):
                report.wrong_replays.append(f"{key}: {differs[:600]}")

    def sweep(self, steps, budget_seconds=10.0, min_samples=20, progress=True, floors=None, **options):
        timed = {}
        for count, (key, step) in enumerate(steps.items()):
            self._sample(step)
            seconds = 1.3 * ((floors or {}).get(key) or 1e-3) + 1e-5 * count
            timed[key] = timing.Timing(tuple(seconds * (1 + 0.002 * i) for i in range(12)), (floors or {}).get(key))
        for key, step in steps.items():
            again(key, step)
        return timed

    def compare(self, a, b, *args, **options):
        self._sample(a), self._sample(b)
        return timing.compare_pairs(tuple(1.0 + 0.001 * i for i in range(20)))

    timing.Clock.sweep, timing.Clock.compare = sweep, compare
    decode_sweep = getattr(sweeps.decode_sweep, "plain", sweeps.decode_sweep)

    def noted_sweep(engines, contexts=sweeps.CONTEXTS, *args, **kwargs):
        for decoder, cache in engines.values():
            report.timed.append(decoder.geometry.name)
            first, last = (
                (decoder.weight_bytes + cache.step_bytes(context)) / pretend.machine.chip.bytes_per_second
                + decoder.geometry.layers * LAUNCHES_A_LAYER_SECONDS
                for context in (min(contexts), max(contexts))
            )
            report.growth = max(report.growth, last / first)
        return decode_sweep(engines, contexts, *args, **kwargs)

    noted_sweep.plain = decode_sweep
    sweeps.decode_sweep = noted_sweep


if __name__ == "__main__":
    sys.exit(main())
