"""The incident at its own size: what is chosen for which GPU, and what bytes and launches predict of it."""

import re

import pytest
import torch

from helpers import data, kernels
from helpers.clock import devices, own_size
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.geometry import get
from tools.units import ROOT

DOCS = (ROOT / "docs" / "gpu-kernels.md").read_text("utf-8").split("## The incident at its own size")[1]


@pytest.mark.parametrize(
    ("free", "budget", "name", "batch"),
    [
        (14.9e9, "full", "Llama-3.2-1B", 8),  # a T4
        (39e9, "full", "Llama-3.2-1B", 8),
        (60e9, "full", "Llama-3.2-3B", 8),
        (79e9, "full", "Llama-3.1-8B", 8),  # an H100
        (180e9, "full", "Llama-3.1-8B", 8),
        (11e9, "full", "Llama-3.2-1B", 4),
        (14.9e9, "quick", "Llama-3.2-1B", 4),
        (79e9, "quick", "Llama-3.2-1B", 4),
    ],
)
def test_the_largest_llama_that_fits_with_eight_sequences_at_32k(free, budget, name, batch):
    one = own_size.fitting(free, budget)
    assert (one.geometry.name, one.batch) == (name, batch)
    assert one.contexts[-1] == (32_768 if batch == 8 else 30_000) and set(own_size.REPORTED) <= set(one.contexts)
    assert one.capacity > one.contexts[-1] and one.free_bytes <= free
    # By hand: 2 bytes, K and V, layers, 8 KV heads.
    g = get(name)
    cache = 2 * 2 * g.layers * 8 * g.head_dim * batch * one.capacity
    assert one.cache_bytes == cache <= 0.7 * (free - one.weight_bytes)
    assert budget == "full" or one.weight_bytes + cache <= 6.7e9


@pytest.mark.parametrize("budget", ["quick", "full"])
def test_a_card_of_8_gb_has_no_room(budget, monkeypatch, capsys):
    assert own_size.fitting(7.4e9, budget) is None
    monkeypatch.setattr(devices, "free_bytes", lambda device: 7.4e9)
    monkeypatch.setattr(kernels, "half", lambda device: torch.float16)
    assert own_size.choose(torch.device("cuda"), budget) is None
    assert "7.4 GB of this GPU are free, and Llama-3.2-1B with 4 sequences" in capsys.readouterr().out


def test_what_is_chosen_is_said_and_in_the_type_that_the_gpu_has(monkeypatch, capsys):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 14.9e9)
    monkeypatch.setattr(kernels, "half", lambda device: torch.float16)
    assert own_size.choose(torch.device("cuda"), "full").dtype == torch.float16
    said = "Llama-3.2-1B in float16, 8 sequences of up to 32,768 tokens: 2.5 GB of weights, 8.6 GB of cache"
    assert capsys.readouterr().out.strip() == said


def test_where_another_program_was_quicker_a_sentence_says_so(monkeypatch, capsys):
    def refused(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(devices, "free_bytes", lambda device: 14.9e9)
    monkeypatch.setattr(kernels, "half", lambda device: torch.float16)
    monkeypatch.setattr(own_size, "Decoder", refused)
    assert own_size.make(torch.device("cuda"), "full") == (None, None, None)
    assert "has gone to somebody else. Run this cell again" in capsys.readouterr().out.splitlines()[1]


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_elsewhere_one_sentence_says_what_a_gpu_would_do(device, capsys):
    assert own_size.make(torch.device(device)) == (None, None, None)
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "Llama-3.2-1B in 16 bits where 8.1 GB are free" in said
    assert 'at budget = "full", up to Llama-3.1-8B with 8 sequences of 32,768 tokens, which takes 65;' in said


# layers, hidden, query heads, head_dim, MLP; 8 KV heads and 128,256 tokens all.
SHAPES = {"Llama-3.1-8B": (32, 4096, 32, 128, 14_336), "Llama-3.2-1B": (16, 2048, 32, 64, 8192)}


def by_hand(name, context, bytes_per_second, kernels_a_layer, kernel_seconds):
    """Milliseconds of a step of 8 sequences in 16 bits; besides the layers, an embedding, a norm and the head."""
    layers, hidden, heads, wide, mlp = SHAPES[name]
    a_layer = hidden * wide * (2 * heads + 16) + 3 * hidden * mlp + 2 * hidden
    elements = layers * a_layer + hidden + 128_256 * hidden + 8 * context * layers * 2 * 8 * wide
    return 1e3 * (2 * elements / bytes_per_second + (kernels_a_layer * layers + 3) * kernel_seconds)


@pytest.mark.parametrize(
    ("name", "bytes_per_second", "with_25", "with_10"),
    [("Llama-3.1-8B", 3.0e12, (6.6, 18), (5.7, 17.1)), ("Llama-3.2-1B", 250e9, (11, 45), (10.2, 44.6))],
)
def test_the_two_predictions_with_25_kernels_a_layer_and_with_todays_10(name, bytes_per_second, with_25, with_10):
    """On an H100 that reads 3.0 TB/s and a T4 that reads 250 GB/s, from 16 to 32,768 tokens, a kernel taken to last
    2 µs; all three are assumed."""
    for kernels_a_layer, expected in ((25, with_25), (10, with_10)):
        for context, ms in zip((16, 32_768), expected, strict=True):
            half_a_digit = 0.5 if isinstance(ms, int) else 0.05
            assert by_hand(name, context, bytes_per_second, kernels_a_layer, 2e-6) == pytest.approx(
                ms, abs=half_a_digit
            )
    g = get(name)
    assert f"| {name} | {10 * g.layers + 3} |" in DOCS  # counted there
    counted = weight_bytes(g) + kv_bytes(g, 32_768, batch=8)
    assert 1e3 * counted / 1e12 == pytest.approx(by_hand(name, 32_768, 1e12, 0, 0), rel=1e-6)


@pytest.mark.parametrize(("gpu", "name"), [("T4", "Llama-3.2-1B"), ("H100 SXM", "Llama-3.1-8B")])
def test_the_table_of_the_docs(gpu, name):
    row = re.search(rf"^\| {gpu} \| {name} \| \d+ \| (.*) \|$", DOCS, re.MULTILINE)[1]
    *ms, times = map(float, row.split(" | "))
    rate = 1e9 * data.device(gpu)["bandwidth_GBps"]
    expected = [by_hand(name, context, rate, 10, 1.7e-6) for context in (16, 1_000, 30_000, 32_768)]
    assert ms == pytest.approx(expected, abs=0.0501)
    assert times == pytest.approx(expected[2] / expected[1], abs=0.0501)
