from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from helpers.clock import recordings
from helpers.clock.timing import Timing
from tools import picture

READ = 5e10  # bytes a second


def example(ids=("decode-batch-1", "decode-batch-4"), notes=()) -> recordings.Recording:
    recording = recordings.new("pretend", "Pretend CPU, 2 threads", "cpu", {"read_bytes_per_second": READ}, {})
    recording = replace(recording, recorded_at="2026-01-31 12:00+00:00", notes=list(notes))
    for name in ids:
        batch = int(name[-1])
        points = [recordings.point(x, Timing((1e-6 * x * batch,) * 20), 20_000 * x * batch) for x in (16, 4096, 8192)]
        recording.series.append(recordings.series(name, name, points, model="tiny", batch=batch))
    return recording


def test_the_dashed_line_is_bytes_over_the_recorded_bandwidth_and_the_points_are_the_recorded_ones():
    figure = picture.draw(example())
    ax = figure.axes[0]
    lines = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
    np.testing.assert_allclose(lines["predicted, batch 4"], [1e3 * 80_000 * x / READ for x in (16, 4096, 8192)])
    measured = {c.get_label(): c.lines[0].get_ydata() for c in ax.containers}
    np.testing.assert_allclose(measured["measured, batch 1"], [0.016, 4.096, 8.192])
    plt.close(figure)


def test_the_picture_says_where_and_when_it_was_measured():
    figure = picture.draw(example())
    assert "Pretend CPU, 2 threads, 2026-01-31" in figure.get_supxlabel()
    assert "50 GB/s" in figure.get_supxlabel()
    plt.close(figure)
    assert "while it was busy" in picture.caption(example(notes=["batch 1, 16 tokens: busy"]))


def test_one_recording_gives_one_file(tmp_path):
    path = recordings.save(example(), tmp_path)
    for name in ("a.png", "b.png"):
        assert picture.main([str(path), "--out", str(tmp_path / "deep" / name)]) == 0
    assert (tmp_path / "deep" / "a.png").read_bytes() == (tmp_path / "deep" / "b.png").read_bytes()


@pytest.mark.parametrize("ids, says", [((), "no series decode-batch-"), (None, "no recording 'nowhere'")])
def test_what_cannot_be_drawn_is_said_and_nothing_is_written(tmp_path, capsys, ids, says):
    name = "nowhere" if ids is None else str(recordings.save(example(ids), tmp_path))
    assert picture.main([name, "--out", str(tmp_path / "a.png")]) == 2
    assert says in capsys.readouterr().out
    assert not (tmp_path / "a.png").exists()
