"""The data files: every row has an id and a source that was read, and the arithmetic in them holds."""

import json
import pathlib

import pytest

from helpers import data

ROWS = [(name, row) for name in data.FILES for row in data.load(name)]


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{name}:{row['id']}" for name, row in ROWS])
def test_rows_have_sources(name, row):
    text = json.dumps(row)
    assert "unverified" not in text and "remembered" not in text
    if name != "claims":  # a claim carries its arithmetic; its figures stand, with sources, in the other files
        assert row["sources"]
        for source in row["sources"]:
            assert source["source"] and source["status"] in ("seen", "seen-secondary", "derived")


@pytest.mark.parametrize("name", data.FILES)
def test_ids_are_unique_and_files_are_utf8_json(name):
    ids = [row["id"] for row in data.load(name)]
    assert ids and len(ids) == len(set(ids))
    json.loads((pathlib.Path(data.__file__).parent / f"{name}.json").read_bytes().decode("utf-8"))


def test_callers_cannot_spoil_each_other():
    data.device("L4")["bandwidth_GBps"] = 1
    data.load("devices")[0].clear()
    assert data.device("L4")["bandwidth_GBps"] == 300 and data.load("devices")[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: data.load("modles"), "no data file named 'modles'"),
        (lambda: data.measurement("vllm-l4"), "vllm-l4-fp8"),
        (lambda: data.device("H100"), "H100 SXM"),
        (lambda: data.claim("z"), "no row 'z' in claims"),
        (lambda: data.price("anthropic-2024"), "anthropic-2024-08"),
    ],
)
def test_unknown_names_are_named(call, words):
    with pytest.raises(LookupError, match=words):
        call()


def test_device_sheets_are_consistent():
    for row in data.load("devices"):
        assert row["bandwidth_GBps"] > 0
        if row["dense_bf16_TFLOPs"]:
            ridge = row["dense_bf16_TFLOPs"] * 1e12 / (row["bandwidth_GBps"] * 1e9)
            assert ridge == pytest.approx(row["ridge_flop_per_byte"], rel=2e-3)


def test_models_agree_with_their_own_counts():
    for row in data.load("models"):
        if "params_read_per_decode_step_b1" in row and not row.get("moe") and "params_matmul_total" in row:
            embedding = 0 if row["tied_embeddings"] else row["vocab"] * row["hidden"]
            assert row["params_matmul_total"] - embedding == row["params_read_per_decode_step_b1"]
