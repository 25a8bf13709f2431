"""Every number in the prose of unit 10, recomputed; and the reference answers in a scheduler."""

import re

import pytest
import torch

from helpers import data
from helpers.caches import BlockPool
from helpers.exercises.traffic import Traffic
from helpers.models.counts import kv_bytes, weight_bytes
from helpers.models.decoder import Decoder
from helpers.models.geometry import get
from helpers.serving import traces
from helpers.serving.scheduler import Arrival, Scheduler, from_trace, poisson
from tests.misconceptions.harness import ROOT
from tests.prose import Prose

SOURCE = ROOT / "solutions" / "10-sharing-the-machine" / "10-sharing-the-machine.py"
PROSE = Prose(SOURCE)
says = PROSE.says
SMALL = get("SmolLM2-135M").replace(
    name="small", layers=1, hidden=32, q_heads=2, kv_heads=1, head_dim=16, intermediate=48, vocab=100
)


@pytest.fixture(scope="module")
def reference():
    return PROSE.reference()


def test_the_givens_of_the_predictions():
    says("a step reads 15.0 GB of weights at 3.35 TB/s, and 131,072 bytes of cache for each token of each session")
    llama, h100 = get("Llama-3.1-8B"), data.device("H100 SXM")
    assert round(weight_bytes(llama) / 1e9, 1) == 15.0 and kv_bytes(llama, 1) == 131_072
    says("A token costs 15.0 GFLOP (leave the attention's out). Say that the kernels reach 495 TFLOP/s, half of")
    assert round(2 * weight_bytes(llama) / 2 / 1e9, 1) == 15.0  # two FLOP a weight, of two bytes each
    assert 495 == pytest.approx(h100["dense_bf16_TFLOPs"] / 2, rel=1e-3) and h100["bandwidth_GBps"] == 3_350
    says("an H100 with 132 SMs")
    assert h100["streaming_multiprocessors"] == 132
    assert kv_bytes(get("SmolLM2-135M"), 1, dtype=torch.float32) == 46_080
    says("token_bytes = 46_080")


def test_the_allowed_gap_is_kept_and_hardly_missed(reference):
    stall = reference["stall"]
    gap = stall["step of the chats alone"] + stall["largest chunk"] * 15.0e9 / 495e9
    assert gap <= 20 < gap + 15.0e9 / 495e9
    assert stall["largest chunk"] * stall["steps of the prompt"] >= 16_384
    assert stall["largest chunk"] * (stall["steps of the prompt"] - 1) < 16_384


def test_throughput_by_stepping_through_batches(reference):
    def rate(batch, tokens):
        arithmetic, read = batch * 15.0e9 / 495e12, (15.0e9 + batch * tokens * 131_072) / 3.35e12
        return batch / max(arithmetic, read), arithmetic > read

    said = reference["throughput"]
    for batch in (1, 64):
        assert said[f"batch {batch}"] == pytest.approx(rate(batch, 4_000)[0])
    assert 0.99 * said["no batch exceeds"] < rate(10_000, 4_000)[0] < said["no batch exceeds"]
    first = next(batch for batch in range(1, 1_000) if rate(batch, 100)[1])
    assert first - 1 <= said["arithmetic sets the pace, 100 tokens each"] <= first


def test_attention_by_counting(reference):
    """What the cells of the unit count is what 10.4 predicts."""
    q, k, v = (torch.randn(1, 1, 1_024, 64) for _ in range(3))
    with Traffic() as written:
        (q @ k.transpose(-1, -2)).softmax(dim=-1) @ v
    assert written.bytes / 1e6 == pytest.approx(reference["attention"]["scores written out"])
    with Traffic() as tiled:
        for tile in q.split(128, dim=2):
            torch.nn.functional.scaled_dot_product_attention(tile, k, v, scale=1.0)
    # The fused kernel also returns a log-sum-exp for each row.
    assert tiled.bytes / 1e6 == pytest.approx(reference["attention"]["tiles of 128"], rel=2e-3)


def test_read_again_by_counting_a_cache(reference):
    for prompt, chunk in ((10, 4), (33, 8), (7, 9)):
        held = [start for start in range(prompt) if start % chunk == 0]
        assert reference["read_again"](prompt, chunk) == sum(held)


@pytest.mark.parametrize("budget", [None, 1, 7, 40])
def test_the_learners_decisions_serve_as_the_engines_do(reference, budget):
    decoder, arrivals, answers = Decoder(SMALL), poisson(12, 1e6, 100, (1, 30), (1, 9), seed=2), []
    for engine in (reference["YourScheduler"], Scheduler):
        served = engine(decoder, BlockPool(SMALL, 24, 4, 64), budget, now=lambda: 0.0)
        answers.append([job.answer for job in served.run(arrivals)])
        shape = [(step.decoded, step.read) for step in served.steps]
        answers.append(shape)
    assert answers[0] == answers[2] and answers[1] == answers[3]


def test_the_pool_of_the_day_is_too_small_and_serves_whoever_fits(reference):
    arrivals = from_trace(traces.hashed(traces.generate(4, seed=1, turns=1), 16), 16, 100)
    served = reference["YourScheduler"](Decoder(SMALL), BlockPool(SMALL, 110, 16, 4_096), 256)
    jobs = served.run([Arrival(0.0, a.prompt, a.answer_tokens) for a in arrivals])
    assert [bool(job.refused) for job in jobs] == [len(a.prompt) + a.answer_tokens - 1 > 110 * 16 for a in arrivals]
    assert sum(bool(job.refused) for job in jobs) == 1 and sum(job.preemptions for job in jobs)
    assert all(job.refused or len(job.answer) == job.arrival.answer_tokens for job in jobs)


def test_published():
    paged = data.measurement("paged")["data"][0]
    says("found 60 to 80 % wasted in the systems before it, and under 4 % with pages (vLLM, June 2023)")
    assert (paged["waste_before"], paged["waste_after"]) == ("60-80%", "<4%")
    first = data.measurement("sarathi")["data"][0]
    says("On an A6000 (LLaMA-13B) decode throughput rose up to 10 times, that of whole requests up to 1.33 times")
    assert first == {"model": "LLaMA-13B A6000", "decode": "up to 10x", "e2e": 1.33}
    says("2.6 times as many requests as vLLM of its day on one A100 (Mistral-7B)")
    assert data.measurement("sarathi-serve")["data"][0] == {"model": "Mistral-7B, one A100", "capacity": 2.6}
    issues = [(row["issue"], row["says"]) for row in data.measurement("vllm-chunked-prefill")["data"]]
    says("vLLM's developers expect the same (issue 3130)")
    says("chunking does *not* raise it (issue 7604, prompts of 40,000 tokens, answers of 256)")
    says('found it "greatly" improved (3130 again, 2,000 chats, Llama-2-70B on 8 A100)')
    assert [issue for issue, _ in issues] == [3130, 3130, 7604]
    (_, slower), (_, improves), (_, stays) = issues
    assert "KV cache memory load overhead" in slower
    assert "greatly improves" in improves and "2,000 ShareGPT prompts, Llama-2-70B on 8 A100" in improves
    assert "does not improve offline throughput" in stays and "40,000 tokens, answers of 256" in stays
    says("chunks of 6,144 instead of 2,048 read a prompt faster by")
    rows = data.measurement("chunk-size-vllm")["data"]
    assert [row["faster_pct"] for row in rows] == sorted(
        row["faster_pct"] for row in rows
    )  # "longer prompts gain more"
    says("the products with them alone gained 13 to 15 %")
    assert "13-15 %" in data.measurement("chunk-size-vllm")["check"]


def test_flash_decoding_is_flat_and_the_other_is_not():
    says("Not split, the same bytes take longer with few sessions; split, they do not.")
    rows = [row for row in data.measurement("flash-decoding")["data"] if row["batch"] * row["seqlen"] == 65_536]
    split, plain = ([row[way] for row in rows] for way in ("flashdec_us", "fa2_us"))
    assert max(split) < 1.4 * min(split)
    says("takes 5.9 times as long for the same bytes")
    says("it still takes 6.2 times as long as the other")
    assert (rows[0]["batch"], rows[-1]["batch"]) == (256, 1)
    assert (round(plain[-1] / plain[0], 1), round(plain[0] / split[0], 1)) == (5.9, 6.2)
    for row in data.measurement("flash-decoding")["data"]:
        kv = row["batch"] * row["seqlen"] * 2 * 2 * 128 * 2
        assert kv / 2_039e3 < row["flashdec_us"]  # never faster than its bytes


def test_the_machines_of_the_outlook(reference):
    names = re.search(r"machines = \[(.*?)\]", SOURCE.read_text(encoding="utf-8"), re.DOTALL)
    sheets = {name: data.device(name) for name in re.findall(r'"([^"]+)"', names[1])}
    reads = {name: sheet["bandwidth_GBps"] / sheet["capacity_GB"] for name, sheet in sheets.items()}
    sram = {name: reads.pop(name) for name in ("Groq LPU", "Cerebras WSE-3")}
    says("Six generations of GPUs lie between 12.5 and 42 full reads a second")
    assert (len(reads), min(reads.values()), round(max(reads.values()))) == (6, 12.5, 42)
    says("reading it takes 24 to 80 ms")
    assert [round(1e3 / bound(reads.values())) for bound in (max, min)] == [24, 80]
    says("what fits is read in microseconds")
    assert all(1e6 / rate < 3 for rate in sram.values())
    says("0.23 GB or 44 GB")
    assert [sheets[name]["capacity_GB"] for name in sram] == [0.23, 44]
    says("140 of the first kind, or one of the second, and then there is no second chat")
    weights, chat = 15.0, 131_072 * 131_072 / 1e9
    assert -(-(weights + chat) // 0.23) == 140 and weights + chat < 44 < weights + 2 * chat
