"""Where torch's matmul takes over from the compiled loops: measured, kept by processor, obeyed."""

import contextlib

import pytest
import torch

from helpers.caches import FullCache
from helpers.clock import small_batch as measuring
from helpers.clock.simulated import SimulatedDevice
from helpers.clock.timing import Clock
from helpers.kernels import cpu, small_batch
from helpers.models.decoder import Decoder
from helpers.models.geometry import get

SMALL = get("SmolLM2-135M").replace(name="small", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16)


@pytest.mark.parametrize(
    ("loops_over_torch", "rows"),
    [
        ({2: 0.3, 4: 0.3, 8: 0.5}, 8),  # two EPYC cores
        ({2: 0.6, 4: 1.05, 8: 1.05}, 8),  # slower, but not clearly
        ({2: 0.6, 4: 0.9, 8: 1.3}, 4),
        ({2: 0.9, 4: 1.2, 8: 0.7}, 2),  # what follows does not count
        ({2: 1.5, 4: 2.0, 8: 3.0}, 1),
    ],
)
def test_the_loops_keep_what_they_are_not_clearly_slower_at(loops_over_torch, rows):
    device = SimulatedDevice()
    clock = Clock("cpu", device.now, device.synchronize, lambda _: contextlib.nullcontext())
    assert measuring.measure(clock, lambda n: (device.kernel(loops_over_torch[n] * 0.01), device.kernel(0.01))) == rows


def test_a_noisy_machine_changes_nothing():
    slow = iter([1.0, 4.0, 1.0, 1.0, 3.0] * 10_000)
    device = SimulatedDevice(noise=lambda _: next(slow))
    clock = Clock("cpu", device.now, device.synchronize, lambda _: contextlib.nullcontext())
    assert measuring.measure(clock, lambda n: (device.kernel(0.012), device.kernel(0.01))) == small_batch.MOST


def test_what_was_measured_is_kept_and_nonsense_is_not_believed(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    assert small_batch.kept() == small_batch.MOST
    small_batch.keep(4)
    assert small_batch.kept() == 4
    for nonsense in ("", "0", "9", "four", "\x00"):
        small_batch._file().write_text(nonsense)
        assert small_batch.kept() == small_batch.MOST
    monkeypatch.setattr(small_batch.binding, "get_host_cpu_name", lambda: "another")
    assert small_batch.kept() == small_batch.MOST


def test_without_memory_or_a_folder_to_write_in_the_set_up_goes_on(monkeypatch, tmp_path, capsys):
    def refused():
        raise MemoryError("0.5 GB must be free")

    (tmp_path / "file").touch()
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "file"))
    for measured, why in ((refused, "must be free"), (lambda: 4, "set COURSE_CACHE to one you can write")):
        monkeypatch.setattr(measuring, "measure", measured)
        measuring.set_up()
        assert why in capsys.readouterr().out
    assert small_batch.kept() == small_batch.MOST


def test_with_more_rows_torch_multiplies_and_a_step_says_the_same(monkeypatch):
    decoder = Decoder(SMALL)
    logits = []
    monkeypatch.setattr(cpu, "SMALL_BATCH", small_batch.MOST)
    logits.append(decoder.decode(torch.arange(4), FullCache(SMALL, 8, batch=4)))
    monkeypatch.setattr(cpu, "SMALL_BATCH", 2)
    for loops in ("linear", "norm_linear", "finish_block"):
        monkeypatch.setattr(cpu.cpu_kernels, loops, None)
    logits.append(decoder.decode(torch.arange(4), FullCache(SMALL, 8, batch=4)))
    torch.testing.assert_close(*logits)
