"""The plain function behind the sliders: bytes of real geometries, and refusals that say what to change."""

import json

import ipywidgets
import matplotlib.pyplot as plt
import pytest

from helpers.exercises import what_if


def test_the_incident():
    found = what_if.step()
    assert found.weight_bytes / 1e9 == pytest.approx(139.0, abs=0.05) and found.fits
    assert found.kv_bytes == pytest.approx(31 * 30_000 * 327_680)
    assert found.held_bytes / 1e9 == pytest.approx(141.1 + 304.7, abs=0.1)  # 31 whole sessions
    assert found.tpot_seconds == pytest.approx((found.weight_bytes + found.kv_bytes) / (8 * 3.35e12))
    assert "fits" in str(found) and not what_if.step(gpus=4).fits


def test_every_slider_changes_the_bytes():
    base = what_if.step()
    assert what_if.step(cache="fp8").kv_bytes == base.kv_bytes / 2
    assert what_if.step(weights="q4_0").weight_bytes == pytest.approx(base.weight_bytes * 18 / 64)
    assert what_if.step(window=1_024).kv_bytes == pytest.approx(base.kv_bytes * 1_024 / 30_000)
    assert what_if.step(kv_heads=64).kv_bytes == 8 * base.kv_bytes
    assert what_if.step(batch=62).kv_bytes == 2 * base.kv_bytes


def test_a_config_of_ones_own(tmp_path):
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100,
        "num_key_value_heads": 2, "intermediate_size": 128,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = what_if.step(str(tmp_path / "config.json"), batch=1, context=10)
    assert found.kv_bytes == 10 * 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"model": "GPT-9"}, LookupError, "no model named 'GPT-9'"),
        ({"device": "H1000"}, LookupError, "H100"),
        ({"device": "Apple M1"}, ValueError, "choose another device"),
        ({"model": "DeepSeek-V3", "kv_heads": 8}, ValueError, "leave kv_heads out"),
        ({"weights": "int3"}, ValueError, "no number format"),
        ({"kv_heads": 7}, ValueError, "not a multiple"),
    ],
)
def test_what_cannot_be_says_so(options, error, said):
    with pytest.raises(error, match=said):
        what_if.step(**options)


def test_a_picture_says_what_does_not_fit():
    ax = what_if.draw(what_if.step(gpus=1))
    assert "DOES NOT FIT" in ax.figure.get_label()
    assert [text.get_text() for text in ax.texts] == ["444 GB"]
    plt.close("all")


def test_without_anybody_to_move_sliders_there_is_the_picture(monkeypatch):
    monkeypatch.setenv("COURSE_UNATTENDED", "1")
    what_if.explore()
    title = plt.gcf().get_label()
    assert "DOES NOT FIT" not in title and "TPOT" in title
    plt.close("all")


def test_the_controls_start_at_what_can_be_drawn(monkeypatch):
    monkeypatch.delenv("COURSE_UNATTENDED", raising=False)
    monkeypatch.setattr(
        ipywidgets, "interact", lambda show, **controls: show(**{name: it.value for name, it in controls.items()})
    )
    what_if.explore()
    assert "TPOT" in plt.gcf().get_label()
    plt.close("all")
