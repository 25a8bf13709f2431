"""The published depth sweeps and incidents: sound in themselves, and explained by bytes where the sheet allows it."""

import re

import pytest
import torch

from helpers import data
from helpers.models.counts import kv_bytes
from helpers.models.geometry import get

SWEEPS = [row for row in data.load("measurements") if row["id"].startswith("depth-")]
INCIDENTS = [row for row in data.load("measurements") if row["id"].startswith("incident-")]
SPARK = [row for row in SWEEPS if row["id"].endswith("-gb10")]


def milliseconds(row):
    return [1e3 / point["tok_s"] for point in row["data"]]


def depths(row):
    return [point["depth"] for point in row["data"]]


def test_every_kind_of_cache_has_a_sweep_of_five_depths_or_more():
    kinds = " ".join(row["attention"] for row in SWEEPS)
    assert all(kind in kinds for kind in ("dense GQA", "MQA", "windowed", "MoE"))
    assert sum(len(row["data"]) >= 5 for row in SWEEPS) >= 3


@pytest.mark.parametrize("row", SWEEPS, ids=lambda row: row["id"])
def test_a_step_takes_longer_the_deeper_it_is(row):
    times = milliseconds(row)
    assert len(times) >= 5 and depths(row) == sorted(depths(row)) and times == sorted(times)


@pytest.mark.parametrize("row", SPARK, ids=lambda row: row["id"])
def test_no_slope_is_faster_than_the_memory(row):
    """Bytes that the deepest step reads more than the one at 4,096, over the time it takes longer."""
    g, times = get(row["model"]), dict(zip(depths(row), milliseconds(row), strict=True))
    grown = kv_bytes(g, 32_768, dtype=torch.float16, windowed=True) - kv_bytes(
        g, 4_096, dtype=torch.float16, windowed=True
    )
    rate = grown / (times[32_768] - times[4_096]) / 1e6  # GB/s
    assert 0.25 * 273 < rate < 273 == data.device("GB10 (DGX Spark)")["bandwidth_GBps"]


def test_windowed_layers_stop_growing():
    """If every layer of Gemma 3 grew, the same time would mean more than the memory gives."""
    row = data.measurement("depth-gemma-3-4b-gb10")
    g, times = get(row["model"]), dict(zip(depths(row), milliseconds(row), strict=True))
    assert f"{g.sliding_layers} of {g.layers} layers see {g.sliding_window:,} tokens" in row["attention"]
    grown = kv_bytes(g, 32_768, dtype=torch.float16) - kv_bytes(g, 4_096, dtype=torch.float16)
    assert grown / (times[32_768] - times[4_096]) / 1e6 > 273


def test_the_arithmetic_in_the_checks():
    row = data.measurement("depth-qwen2.5-7b-gb10")
    times, token = milliseconds(row), kv_bytes(get("Qwen2.5-7B"), 1, dtype=torch.float16)
    assert token == 57_344 and round(token * 32_768 / (times[-1] - times[0]) / 1e6) == 189
    assert round(7.54 * 2**30 / times[0] / 1e6) == 237
    for row in SPARK:
        g = get(row["model"])
        growing = kv_bytes(g, 8_193, dtype=torch.float16, windowed=True) - kv_bytes(
            g, 8_192, dtype=torch.float16, windowed=True
        )
        assert f"{growing:,} B" in row["check"], row["id"]


def test_six_causes_have_incidents():
    causes = " ".join(row["cause"] for row in INCIDENTS)
    for words in ("prefix cache", "split a long context", "read the whole history", "launches", "batch grew", "memory"):
        assert words in causes
    assert all(row["data"] and row["sources"][0]["status"] == "seen" for row in INCIDENTS)


def test_incident_arithmetic():
    split = {point["depth"]: point for point in data.measurement("incident-unsplit-kernel")["data"]}
    gains = [round(split[depth]["after"] / split[depth]["before"], 2) for depth in (128, 4_096, 16_384, 32_768)]
    assert gains == [1.0, 1.0, 2.35, 2.88]
    copied = data.measurement("incident-window-copied")["data"][0]
    assert copied["bytes_per_token_of_context"] * copied["context"] / 1e6 == pytest.approx(
        copied["copied_MB"], rel=0.02
    )
    graphs = data.measurement("incident-launches")["data"]
    assert [round(point["eager_ms"] / point["graph_ms"], 1) for point in graphs] == [1.8, 3.7]
    for name in ("incident-batch", "incident-batch-memory"):
        times = [point["tpot_ms"] for point in data.measurement(name)["data"]]
        assert times == sorted(times)
    assert re.search("781 to 553", data.measurement("incident-batch-memory")["check"])
    turns = [turn["seconds"] for turn in data.measurement("incident-prefix-miss")["data"]]
    assert turns[1] > turns[0] > 10 * turns[2]
