"""Every form that engineers have is read, in the right unit, and what cannot be read says why."""

import json
from dataclasses import replace

import pytest

from helpers.serving import benchmarks
from helpers.serving.benchmarks import BadBenchmark, Point

# Fields and units as llama.cpp's own README prints them (tools/llama-bench), shortened.
LLAMA = [
    {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ns": 72_135_640, "stddev_ns": 1_453_752},
    {"n_prompt": 0, "n_gen": 128, "n_depth": 0, "avg_ns": 1_076_767_880, "stddev_ns": 9_449_585, "avg_ts": 118.881588},
    {"n_prompt": 0, "n_gen": 128, "n_depth": 4096, "avg_ns": 1_280_000_000, "stddev_ns": 0},
]
VLLM = {
    "model_id": "m", "max_concurrency": 8, "duration": 100.0, "completed": 40, "total_input_tokens": 40_000,
    "total_output_tokens": 8_000, "mean_ttft_ms": 500.0, "mean_tpot_ms": 20.0, "std_tpot_ms": 1.0,
}  # fmt: skip


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
def test_llama_bench_counts_generation_at_its_depth(tmp_path, form):
    if form == "json":
        text = json.dumps(LLAMA)
    elif form == "jsonl":
        text = "\n".join(map(json.dumps, LLAMA))
    else:
        keys = ["n_prompt", "n_gen", "n_depth", "avg_ns", "stddev_ns"]
        text = "\n".join([",".join(keys), *(",".join(f'"{row[key]}"' for key in keys) for row in LLAMA)])
    points = benchmarks.read(write(tmp_path, f"bench.{form}", text))
    assert [(p.context, p.batch, p.tpot_seconds) for p in points] == [(64, 1, 1.07676788 / 128), (4160, 1, 0.01)]
    assert 1 / points[0].tpot_seconds == pytest.approx(LLAMA[1]["avg_ts"], rel=1e-3)  # its own tokens a second
    assert points[0].spread_seconds == pytest.approx(9_449_585e-9 / 128)


def test_vllm_counts_who_decodes_and_not_who_waits(tmp_path):
    (point,) = benchmarks.read(write(tmp_path, "serve.json", json.dumps(VLLM)))
    # 40 answers of 199 further tokens at 20 ms are 159.2 s of decoding in a run of 100 s.
    assert point.batch == pytest.approx(1.592)
    assert replace(point, batch=1) == Point(1100, 1, 0.02, 0.001, 0.5, output_tokens=200)


def test_a_table_and_a_byte_order_mark(tmp_path):
    text = "\ufeffcontext,batch,tpot_ms,ttft_ms,hit_rate,output_tokens\n1000,4,40,300,0.9,128\n30000,4,120,,,\n"
    first, last = benchmarks.read(write(tmp_path, "t.csv", text))
    assert first == Point(1000, 4, 0.04, None, 0.3, 0.9, 128)
    assert last == Point(30000, 4, 0.12)


def test_several_files_are_one_sweep(tmp_path):
    paths = [write(tmp_path, f"{n}.json", json.dumps(VLLM | {"total_input_tokens": n * 40})) for n in (8000, 1000)]
    assert [p.context for p in benchmarks.read(*paths)] == [1100, 8100]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rows"),
        ("[]", "no rows"),
        ('{"latency": 3}', "expected a file of llama-bench"),
        ("[1, 2]", "not an object"),
        ('{"a": 1}\n{"b"', "neither JSON nor JSON lines"),
        (json.dumps(LLAMA[:1]), "no row that only generates"),
        ("context,batch,tpot_ms\n1000,,40", "no batch"),
        ("context,batch,tpot_ms\n1000,1,fast", "'fast', not a number"),
        ("context,batch,tpot_ms\n1000,1,nan", "tpot_ms is nan"),
        ("context,batch,tpot_ms\n1000,1,-4", "a time per token of"),
        ("context,batch,tpot_ms,hit_rate\n1000,1,4,97", "give 0 to 1"),
        (json.dumps(VLLM | {"completed": 0}), "no request was completed"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, text, said):
    with pytest.raises(BadBenchmark, match="f.txt: ") as caught:
        benchmarks.read(write(tmp_path, "f.txt", text))
    assert said in str(caught.value)


def test_a_stream_is_timed_per_token_and_not_per_chunk():
    point = benchmarks.from_stream(10.0, [10.5, 10.6, 10.7], prompt_tokens=100, tokens=[2, 4, 4])
    assert point.ttft_seconds == pytest.approx(0.5) and point.tpot_seconds == pytest.approx(0.2 / 8)
    assert point.context == 105 and point.output_tokens == 10
    single = benchmarks.from_stream(0, [1, 1.25, 1.5], 10)
    assert single.tpot_seconds == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("arrivals", "tokens", "said"),
    [
        ([1.0], None, "fewer than two"),
        ([1.0, 0.5], None, "backward"),
        ([1.0, 2.0], [1], "counts"),
        ([1, 2], [0, 3], "two"),
    ],
)
def test_a_stream_that_tells_no_time(arrivals, tokens, said):
    with pytest.raises(BadBenchmark, match=said):
        benchmarks.from_stream(0.0, arrivals, 10, tokens)
