"""`tools.gpu_check` from end to end, without a GPU and without the packages that a bare machine lacks."""

import subprocess
import sys
from dataclasses import asdict

import pytest
import torch

from helpers.clock import devices, graphs, recordings
from tools import gpu_check

# What the course installs and gpu_check must do without; torch brings filelock itself.
ABSENT = (
    "gguf",
    "matplotlib",
    "numba",
    "platformdirs",
    "requests",
    "safetensors",
    "tokenizers",
    "tqdm",
    "transformers",
)
BARE = f"""
import importlib.machinery, runpy, sys
finder = importlib.machinery.PathFinder
usual = finder.find_spec
finder.find_spec = lambda name, *where: None if name.partition(".")[0] in {ABSENT} else usual(name, *where)
sys.argv = ["gpu_check", "--toy", "--out", sys.argv[1]]
runpy.run_module("tools.gpu_check", run_name="__main__")
"""


def test_a_rehearsal_on_a_bare_machine_writes_a_recording(tmp_path):
    done = subprocess.run([sys.executable, "-c", BARE, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (path,) = tmp_path.glob("*.json")
    recording = recordings.load(str(path))
    ids = {one.id for one in recording.series}
    assert {"decode-batch-1", "decode-against-batch", "prefill", "prefix-shared", "prefix-copied"} <= ids
    assert {f"attention-{name}" for name in ("full", "fp8", "int8", "int4", "mha", "mqa", "mla-4-heads")} <= ids
    assert {f"decode-{name}" for name in ("int8", "int4", "mha", "mqa", "mla", "int8-batch-2")} <= ids
    assert {f"unit-{name}-batch-{batch}" for name in ("float32", "int8", "int4") for batch in (1, 2)} <= ids
    assert sum("against plain torch" in check.name for check in recording.checks) == 3
    assert any("no kernel that reads fp8" in note for note in recording.notes)  # a storage format on a CPU
    assert recordings.curve(recording, "decode-against-batch")[0] == [1, 2]
    assert len(recording.checks) >= 9
    assert all(check.error <= check.tolerance for check in recording.checks)
    assert any("mean nothing" in note for note in recording.notes)


@pytest.fixture
def check(monkeypatch):
    card = devices.DeviceCard("Pretend", "cpu", 50e9, {"float32": 1e11}, 1e-6, "2026-01-31 12:00+00:00")
    monkeypatch.setattr(devices, "measure_card", lambda *_, **__: card)
    return gpu_check.Check(gpu_check.TOY, torch.device("cpu"))


def test_one_broken_section_does_not_cost_the_others(check, capsys):
    def broken():
        raise ZeroDivisionError("this one")

    def too_large():
        raise torch.OutOfMemoryError("CUDA out of memory\nby far")

    done = []
    check.section("broken", broken)
    check.section("too large", too_large)
    check.section("fine", lambda: done.append(1))
    assert done == [1]
    assert check.failures == ["broken: ZeroDivisionError: this one"]
    assert check.recording.notes == ["too large: left out, not enough memory (CUDA out of memory)"]


def test_a_section_is_left_out_when_time_is_up(check):
    check.started -= 8 * 60
    check.section("late", lambda: 1 / 0)
    assert check.failures == []
    assert "minutes were up" in check.recording.notes[0]


def test_an_error_that_is_too_large_fails_the_check(check):
    check.compare("good", 1e-6, 1e-5)
    check.compare("not finite", float("inf"), 1e-5)
    assert [failure.partition(":")[0] for failure in check.failures] == ["not finite"]
    recordings.read(asdict(check.recording))


class PretendGraph:
    """Calls what a CUDA graph would replay."""

    def __init__(self, function, cuda=None):
        self.function = function

    def __call__(self):
        return self.function()

    def elapsed_seconds(self):
        self.function()
        return 1.0


def test_the_branch_for_a_gpu(check, monkeypatch):
    monkeypatch.setattr(graphs, "Graph", PretendGraph)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    check.on_gpu = True
    model = gpu_check.TOY.models[0]
    gpu_check.decode(check, model)
    gpu_check.attention(check, model)
    assert check.failures == []
    ids = [one.id for one in check.recording.series]
    assert "decode-against-batch" in ids
    assert "attention-int8" in ids
    assert "attention-fp8" not in ids  # Ampere has no fp8
    assert recordings.curve(check.recording, "decode-batch-1")[1] == [1.0, 1.0]


def test_a_t4_is_checked_in_float16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    plan = gpu_check.plan_for(torch.device("cuda"))
    assert plan.dtype == torch.float16 and plan.dtypes == (torch.float16,)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert gpu_check.plan_for(torch.device("cuda")) is gpu_check.REAL


def test_without_a_gpu_it_says_how_to_rehearse(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 2
    assert "--toy" in capsys.readouterr().out
