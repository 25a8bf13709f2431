"""Every unit on pretend GPUs: a T4, which has no bfloat16, a card of 8 GB, and an H100."""

import json
import subprocess
import sys

import pytest

from tests.rehearsal.chip import CHIPS
from tools.units import ROOT, find

SHOWN = ("02", "04", "06")  # the units whose curve is the slow-down itself


def run(*words):
    """Run a module of this folder in a process of its own, which is a machine with a chip to its end."""
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    if "keeps its device guards elsewhere" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    return done


def rehearsed(chip, folder):
    """The reports of all units on `chip`."""
    written = folder / "reports.json"
    done = run("tests.rehearsal.unit", chip, "--json", str(written))
    assert written.exists(), done.stderr[-2000:]
    return json.loads(written.read_text())


def test_the_pretend_chip_refuses_what_a_gpu_would():
    done = run("tests.rehearsal.refusals")
    assert done.stdout.strip() == "all refused", done.stderr[-2000:]


@pytest.mark.parametrize("chip", ["T4", "8GB", "H100"])
def test_all_units_run_and_replay_what_they_would_launch(chip, tmp_path):
    reports = rehearsed(chip, tmp_path)
    assert [report["unit"] for report in reports] == [unit.name for unit in find()]
    for report in reports:
        unit = report["unit"]
        assert not report["failures"], f"{unit}: {report['failures']}"
        assert not report["wrong_replays"], f"{unit}: {report['wrong_replays']}"
        assert not report["not_captured"], f"{unit}: {report['not_captured']}"
        assert not report["not_compiled"], f"{unit}: {report['not_compiled']}"
        assert not report["slow"], f"{unit}: {report['slow']}"
        # What torch rounds up, pools of graphs and cuBLAS take come on top.
        most = min(7e9, 0.9 * CHIPS[chip].free_bytes)
        assert report["peak_bytes"] < most, f"{unit} takes {report['peak_bytes'] / 1e9:.2f} GB"
        if unit[:2] in SHOWN:
            assert report["growth"] > 1.5, f"{unit}: a step grows {report['growth']:.2f} times"
        if unit[:2] == "02":  # the incident at its own size, which a card of 8 GB has no room for
            assert ("Llama-3.2-1B" in report["timed"]) == (chip != "8GB"), f"{unit}: times {report['timed']}"
    assert sum(report["graphs"] for report in reports) > 50
