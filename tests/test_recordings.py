import json
import tempfile
from dataclasses import asdict

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
import torch

from helpers.clock import devices, recordings, sweeps
from helpers.clock.timing import Timing
from helpers.models.geometry import Geometry
from tools import record

TINY = Geometry("tiny", layers=1, hidden=16, q_heads=2, kv_heads=1, head_dim=8, intermediate=16, vocab=32)
CARD = devices.DeviceCard("Pretend CPU, 2 threads", "cpu", 50e9, {"float32": 1e11}, 1e-6, "2026-01-31 12:00+00:00")


def example() -> recordings.Recording:
    recording = recordings.new("pretend", "Pretend CPU", "cpu", {"read_bytes_per_second": 5e10}, {"torch": "2.13.0"})
    points = [recordings.point(x, Timing((1e-3 * x, 1.1e-3 * x, 0.9e-3 * x)), 1000 * x) for x in (16, 32)]
    recording.series.append(recordings.series("decode", "a curve", points, model="tiny", batch=1))
    recording.checks.append(recordings.Comparison("attention", 1e-6, 1e-5))
    return recording


def test_saved_and_loaded_is_the_same(tmp_path):
    path = recordings.save(example(), tmp_path)
    assert recordings.load(str(path)) == example()
    x, median, spread = recordings.curve(recordings.load(str(path)), "decode")
    assert x == [16, 32]
    assert median == pytest.approx([0.016, 0.032])
    assert all(s > 0 for s in spread)


def test_every_recording_that_ships_is_valid_and_of_a_machine_that_measured_it():
    for name in recordings.available():
        recording = recordings.load(name)
        assert recording.name == name
        assert recording.series, name
        for one in recording.series:
            for each in one.points:
                assert each.samples >= 20, (name, one.id, each)
                if one.y_unit == "s":
                    # No step streams its bytes faster than the machine reads; a tenth is the wobble of the card.
                    floor_seconds = each.bytes / recording.card["read_bytes_per_second"]
                    assert each.y > 0.9 * floor_seconds, (name, one.id, each)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda r: r.pop("card"), "lacks card"),
        (lambda r: r.update(colour="red"), "has colour"),
        (lambda r: r.update(format=99), "format 99"),
        (lambda r: r.update(recorded_at="yesterday"), "no date"),
        (lambda r: r["machine"].pop("device"), "machine needs 'device'"),
        (lambda r: r["card"].update(read_bytes_per_second=0), "positive 'read_bytes_per_second'"),
        (lambda r: r["series"].append(r["series"][0]), "two series"),
        (lambda r: r["series"][0].pop("x_unit"), "lacks x_unit"),
        (lambda r: r["series"][0]["points"][1].pop("bytes"), "point 1 lacks bytes"),
        (lambda r: r["series"][0]["points"][0].update(y=float("nan")), "point 0: y must be"),
        (lambda r: r["series"][0]["points"][0].update(samples=True), "point 0: samples must be"),
        (lambda r: r["series"][0]["points"][0].update(spread=-1.0), "cannot be"),
        (lambda r: r["series"][0]["points"][0].update(y=-1.0), "a time that cannot be"),
        (lambda r: r["checks"].append({"name": "x"}), "a check lacks"),
    ],
)
def test_what_is_no_recording_is_refused(spoil, says):
    content = asdict(example())
    spoil(content)
    with pytest.raises(recordings.BadRecording, match=says):
        recordings.read(content)


def test_a_missing_one_and_a_broken_file(tmp_path):
    with pytest.raises(LookupError, match="no recording 'nowhere'"):
        recordings.load("nowhere")
    broken = tmp_path / "broken.json"
    for text, says in (("{", "not JSON"), ("[]", "a JSON object"), (json.dumps({"format": 1}), "record again")):
        broken.write_text(text, encoding="utf-8")
        with pytest.raises(recordings.BadRecording, match=says):
            recordings.load(str(broken))
    with pytest.raises(LookupError, match="there are: decode"):
        recordings.curve(example(), "prefill")


def test_the_tool_records_decode_steps(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sweeps.SECONDS_PER_POINT, "quick", 0.02)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of its own: no waiting for other measurements
    made = record.record(torch.device("cpu"), TINY, (2, 8), "quick", CARD, "tiny")
    assert [one.id for one in made.series] == ["decode-batch-1", "decode-batch-4"]
    assert recordings.load(str(recordings.save(made, tmp_path))) == made
    for one, batch in zip(made.series, (1, 4), strict=True):
        assert [each.x for each in one.points] == [2, 8]
        keys_and_values = 2 * 8 * 4 * batch  # bytes a token adds to what a step reads
        assert one.points[1].bytes - one.points[0].bytes == 6 * keys_and_values
    record.show(made)
    assert "8 tokens" in capsys.readouterr().out
    assert recordings.slug("AMD EPYC 9654 96-Core Processor, 2 threads") == "amd-epyc-9654-96-core-processor-2-threads"


def test_the_shipped_curve_stands_beside_ones_own_where_there_is_one(capsys):
    _, ax = plt.subplots()
    recordings.beside(ax, 4, 4_096, "cpu")
    (line,) = ax.get_lines()
    shipped = recordings.load(recordings.DECODE)
    x, seconds, _ = recordings.curve(shipped, "decode-batch-4")
    assert line.get_xdata().tolist() == [n for n in x if n <= 4_096] and 8_192 in x
    assert line.get_ydata().tolist() == pytest.approx([1e3 * s for s in seconds[:-1]])
    assert shipped.device in line.get_label() and ax.get_ylim()[0] == 0
    recordings.beside(ax, 16, 4_096, "cpu")
    recordings.beside(ax, 1, 4_096, "cuda")  # a line of text
    assert len(ax.get_lines()) == 1 and shipped.device in capsys.readouterr().out
    plt.close("all")
