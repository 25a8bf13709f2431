"""Every number in the prose of unit 08 is computed here."""

import math
from pathlib import Path

import pytest

from helpers import data
from helpers.models.counts import decode_flops, kv_bytes, resident_bytes, weight_bytes
from helpers.models.geometry import get
from helpers.serving import depth_sweeps, plan, symptoms
from helpers.serving.incident import CAUSES
from tests.misconceptions.harness import load
from tests.prose import Prose

SOURCE = Path(__file__).parents[1] / "solutions" / "08-incident" / "08-incident.py"
TEXT = SOURCE.read_text(encoding="utf-8")
PROSE = Prose(SOURCE)
says = PROSE.says
SLOPE = 80e-3 / 29_000
INTERCEPT = 40e-3 - 1_000 * SLOPE
RATE = 139.0e9 / INTERCEPT


def test_the_model_and_the_machine():
    g = get("Llama-3.1-70B")
    assert weight_bytes(g) / 1e9 == pytest.approx(139.0, abs=0.05)
    assert resident_bytes(g) / 1e9 == pytest.approx(141.1, abs=0.05)
    assert kv_bytes(g, 1) == 327_680 and kv_bytes(g.replace(kv_heads=64), 1) == 2_621_440
    per_token = SLOPE * RATE
    assert f"{per_token / 327_680:.1f}" == "31.4" and f"{per_token * 30_000 / 1e9:.0f}" == "309"
    assert f"{RATE / 1e12:.2f}" == "3.73" and round((141.1e9 + per_token * 30_000) / 1e9) == 450
    assert f"{per_token / 1e6:.1f}" == "10.3" and f"{RATE / (8 * 3.35e12):.0%}" == "14%"
    assert f"{per_token / 2_621_440:.1f}" == "3.9"
    alone = 40 * (139.0e9 + 30_000 * 327_680) / (139.0e9 + 1_000 * 327_680)
    assert f"{alone:.1f}" == "42.7"
    assert "31.4 sessions with 8 KV heads, or 3.9 with MHA" in load(SOURCE).run("08.2").stdout
    says("from 40 to 42.7 ms", "3.73e12 bytes", "450e9 bytes")
    PROSE.hides("309e9", "309", "3.73e12", "3.73", "31.4")  # below 08.2's blank a cell prints them
    says("10.3 MB", "14 % of their bandwidth")
    assert f"{resident_bytes(g) * 4.5 / 16 / 1e9:.1f}" == "39.7" and f"{139.0 * 4.5 / 16:.1f}" == "39.1"
    sheets = {"L4": "L4", "A100-80GB": "A100-80GB SXM", "H100 SXM": "H100 SXM", "H200 SXM": "H200 SXM"}
    for shown, id in sheets.items():
        sheet = data.device(id)
        assert f"| {shown} | {sheet['capacity_GB']} GB | {sheet['bandwidth_GBps']:,} GB/s |" in TEXT


def test_the_arithmetic_and_what_is_left_of_it():
    g = get("Llama-3.1-70B")
    exact = 1e3 * decode_flops(g, 30_000, 31) / (8 * 989.5e12)
    stated = 1e3 * 31 * (2 * 69.5e9 + 4 * 80 * 64 * 128 * 30_000) / (8 * 989.5e12)
    assert stated == pytest.approx(exact, rel=2e-3) and f"{stated:.1f}" == "0.9"
    assert data.device("H100 SXM")["dense_bf16_TFLOPs"] == 989.5
    assert round(500 * INTERCEPT) == 19
    says("would start near 19 ms", "0.9 ms at 30,000")


def test_the_plan_in_the_text():
    service, levers, limits = plan.scenario()
    by_name = {lever.name: lever for lever in levers}
    order = [
        "fp8 cache", "weights in 4.5 bits", "compaction at 16,000", "system prompt of 4,000 read once",
    ]  # fmt: skip
    steps = [1e3 * service.tpot_seconds([by_name[n] for n in order[:i]]) for i in range(5)]
    assert [round(ms) for ms in steps] == [120, 79, 52, 32, 27]
    alone = [steps[0] - 1e3 * service.tpot_seconds([by_name[n]]) for n in order]
    assert [round(ms) for ms in alone] == [41, 27, 38, 11]
    assert round(sum(alone)) == 117 and round(steps[0] - steps[-1]) == 93
    assert sum(by_name[n].days for n in order) == 33 and sum(by_name[n].quality for n in order) == 3.5
    multiplied = steps[0] * math.prod(1 - ms / steps[0] for ms in alone)
    assert round(steps[0] - sum(alone)) == 3 and round(multiplied) == 38
    says("they save 93 and not 117")
    says("41, 27, 38 and 11 ms", "33 days and 3.5 %", "35 days")
    assert (limits.quality, limits.days) == (4.0, 35)
    assert f"{1e3 * service.tpot_seconds():.1f}" == "119.9"


def test_published_curves_are_predicted_from_their_first_point():
    kinds = set()
    for sweep in depth_sweeps.sweeps():
        assert max(sweep.measured) == 32_768 and sweep.worst < 0.07, sweep.model
        assert sweep.bytes_per_second < 1e9 * data.device("GB10 (DGX Spark)")["bandwidth_GBps"]
        kinds |= {kind for kind in ("dense", "GQA", "windowed", "MoE", "sees 128") if kind in sweep.attention}
    assert kinds == {"dense", "GQA", "windowed", "MoE", "sees 128"}
    columns, rows = depth_sweeps.table()
    assert len(rows) == len(depth_sweeps.FORMATS) and all(len(row) == len(columns) for row in rows)
    says("Five models")


def test_the_sweeps_that_bend():
    for id, ends in (("depth-glm-4.7-flash-2x3090", "121 → 89"), ("depth-glm-4.7-flash-3090", "119 → 90")):
        points = {point["depth"]: point["tok_s"] for point in data.measurement(id)["data"]}
        assert f"{points[0]:.0f} → {points[8_192]:.0f}" == ends
        assert f"{1e3 / points[8_192] - 1e3 / points[0]:.0f}" == "3"
        says(ends)
    latents = 47 * 576 * 2 * 8_192  # layers · numbers · bytes · tokens
    assert f"{latents / 1e9:.2f}" == "0.44"
    assert latents / (1e9 * data.device("RTX 3090")["bandwidth_GBps"]) == pytest.approx(0.5e-3, rel=0.06)
    says("0.44 GB in 16 bits", "half a millisecond")


def test_the_first_picture_has_a_service_for_every_cause():
    for i, cause in enumerate(CAUSES):
        rows = symptoms.generate(61 + i, cause).table()
        flat = max(rows["tpot_ms"]) / min(rows["tpot_ms"]) < 1.2
        moves = max(rows["batch"]) - min(rows["batch"]) > 10
        assert flat == (cause == "a fixed cost per step") and moves == (cause == "the batch grows")
    assert "zip([4, 1, 3, 0, 5, 2], panels.flat" in TEXT  # each once, and not in the order in which they are listed
