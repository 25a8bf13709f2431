"""Traces: what is generated, what is refused, and the replay against the block manager that the engine uses."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.serving import traces
from helpers.serving.blocks import BlockManager
from helpers.serving.traces import BadTrace, Request


def through_the_manager(requests, block_size, blocks):
    """Hit tokens by the engine's own bookkeeping: an independent path to the same numbers."""
    manager, hits = BlockManager(blocks, block_size), []
    for request in requests:
        session = manager.open(request.prompt)
        hits.append(session.hit_tokens)
        manager.extend(session, request.prompt[session.hit_tokens :])
        manager.extend(session, request.answer[:-1])
        manager.close(session)
    return hits


def test_a_trace_is_seeded_and_ordered():
    one, two, other = traces.generate(6, seed=3), traces.generate(6, seed=3), traces.generate(6, seed=4)
    assert one == two != other
    assert [r.time_seconds for r in one] == sorted(r.time_seconds for r in one)
    assert {r.session for r in one} == set(range(6))
    many = traces.generate(60, seed=1)
    assert {r.kind for r in many} == {"turn", "tool", "edit"}
    edits = sum(r.kind == "edit" for r in many) / sum(r.kind == "turn" for r in many)
    assert 0.02 < edits < 0.09


def test_a_next_turn_continues_the_last_answer_and_an_edit_takes_it_back():
    last = {}
    for r in traces.generate(30, seed=2):
        if r.session in last and r.kind != "edit":
            before = last[r.session]
            assert r.prompt[: len(before.prompt) + len(before.answer)] == before.prompt + before.answer
        elif r.kind == "edit":
            before = last[r.session]
            shared = next(i for i, (a, b) in enumerate(zip(r.prompt, before.prompt, strict=False)) if a != b)
            assert len(before.prompt) - 120 <= shared < len(before.prompt)
        last[r.session] = r


def test_a_timestamp_leaves_nothing_to_share():
    plain, stamped = (traces.generate(10, seed=5, timestamp=stamp) for stamp in (False, True))
    assert [r.prompt for r in plain] == [r.prompt[1:] for r in stamped]
    assert traces.hit_rate(traces.hashed(stamped, 16), 16) == 0 < traces.hit_rate(traces.hashed(plain, 16), 16)


def test_compaction_hits_only_when_it_keeps_the_prefix():
    rate = {}
    for same in (False, True):
        requests = traces.generate(20, seed=5, turns=12, compact_at=5_000, same_prefix=same)
        found = [r.kind == "compaction" for r in requests]
        assert sum(found) > 10
        hits = traces.hit_tokens(traces.hashed(requests, 16), 16)
        hits = [hit for hit, wanted in zip(hits, found, strict=True) if wanted]
        rate[same] = sum(hits) / sum(len(r.prompt) for r, wanted in zip(requests, found, strict=True) if wanted)
    assert rate[False] < 0.1 and rate[True] > 0.95


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=12), st.integers(1, 4)), max_size=12),
    st.integers(1, 4),
)
def test_replay_equals_the_block_manager(rows, block_size):
    requests = [Request(float(i), 0, "turn", tuple(p), (1,) * n) for i, (p, n) in enumerate(rows)]
    got = traces.hit_tokens(traces.hashed(requests, block_size), block_size, blocks=200)
    assert got == through_the_manager(requests, block_size, 200)


def test_replay_under_eviction_equals_the_block_manager():
    requests = traces.generate(12, seed=7, turns=4)
    largest = max(len(r.prompt) + len(r.answer) for r in requests)
    for blocks in (-(-largest // 64) + 1, 150, 400):
        hashed = traces.hashed(requests, 64)
        manager = through_the_manager(requests, 64, blocks)
        ours = traces.hit_tokens(hashed, 64, blocks)
        # The manager keeps one partly filled block back while a session is open: never more than one block apart.
        assert sum(manager) == pytest.approx(sum(ours), rel=0.05)
    assert sum(manager) > 0


def test_answers_must_be_kept_for_the_next_turn_to_find_them():
    first = Request(0.0, 0, "turn", tuple(range(100)), tuple(range(100, 150)))
    second = Request(1.0, 0, "turn", (*range(150), 7, 8), (1,))
    with_answers, without = (
        traces.hit_tokens(traces.hashed([first, second], 1, answers=keep), 1)[1] for keep in (True, False)
    )
    assert (with_answers, without) == (149, 100)


def test_sizes_must_be_positive():
    for wrong in (lambda: traces.generate(0), lambda: traces.hashed([], 0), lambda: traces.hit_tokens([], 16, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            wrong()


ROW = {"timestamp": 0, "input_length": 1_000, "output_length": 5, "hash_ids": [0, 1]}


def test_a_public_trace_is_read(tmp_path):
    file = tmp_path / "trace.jsonl"
    rows = [ROW, ROW | {"timestamp": 3_000, "input_length": 1_400, "hash_ids": [0, 2, 3]}]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    first, second = traces.load(file)
    assert first.stored_ids == (0,) and second.hash_ids == (0, 2, 3) and second.time_seconds == 3
    assert traces.hit_tokens([first, second], 512) == [0, 512]
    assert traces.hit_rate([first, second], 512) == 512 / 2_400


def test_a_gzipped_trace_and_one_with_a_byte_order_mark_are_read(tmp_path):
    text = json.dumps(ROW)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "marked.jsonl").write_text(text, encoding="utf-8-sig")
    packed, marked = (traces.load(tmp_path / name) for name in ("packed.jsonl.gz", "marked.jsonl"))
    assert packed == marked and packed[0].input_length == 1_000


def test_bailian_timestamps_are_seconds(tmp_path):
    """The row of AIPerf's description of the format, with an id for each of its blocks."""
    file = tmp_path / "qwen_traceA_blksz_16.jsonl"
    row = {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 521, "output_length": 132}
    row |= {"type": "text", "turn": 1, "hash_ids": list(range(33))}
    file.write_text(json.dumps(row))
    (request,) = traces.load(file, block_size=16)
    assert request.time_seconds == 61.114 and len(request.stored_ids) == 32
    with pytest.raises(BadTrace, match="The Bailian traces have 16"):
        traces.load(file)
    file.write_text(json.dumps(row | {"timestamp": "1"}))
    with pytest.raises(BadTrace, match="a number of seconds"):
        traces.load(file, block_size=16)


@pytest.mark.parametrize(
    "header, row, trace",
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,4808,10", "Azure's"),
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
            "5,ChatGPT,472,18,490,API",
            "BurstGPT",
        ),
    ],
)
def test_a_trace_without_blocks_is_named_and_the_form_that_is_needed_is_said(tmp_path, header, row, trace):
    file = tmp_path / "trace.csv"
    file.write_text(f"{header}\n{row}\n")
    with pytest.raises(BadTrace, match=f"trace.csv, line 1: .*columns of {trace}.*no hash_ids.*one JSON object a line"):
        traces.load(file)


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "not JSON"),
        ("[1]", "a request is a JSON object, not a list"),
        ({"hash_ids": ...}, "hash_ids is missing"),
        ({"timestamp": "12:00"}, "timestamp has to be a number"),
        ({"timestamp": -1}, "not before the line above"),
        ({"timestamp": float("nan")}, "timestamp has to be a number"),
        ({"input_length": 0}, "input_length has to be a whole number of at least 1; it is 0"),
        ({"input_length": 10.5}, "input_length has to be a whole number"),
        ({"output_length": True}, "output_length has to be a whole number"),
        ({"hash_ids": [0, "a"]}, "hash_ids has to be a list of whole numbers"),
        ({"hash_ids": [0]}, "1000 tokens are 2 blocks of 512, and there are 1 hash_ids; is block_size"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    if isinstance(line, dict):
        line = json.dumps({k: v for k, v in (ROW | line).items() if v is not ...})
    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps(ROW) + "\n" + line + "\n")
    with pytest.raises(BadTrace, match=f"trace.jsonl, line 2: .*{message}"):
        traces.load(file)


def test_an_empty_or_missing_file(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(BadTrace, match="empty.jsonl holds no request"):
        traces.load(tmp_path / "empty.jsonl")
    with pytest.raises(FileNotFoundError):
        traces.load(tmp_path / "none.jsonl")
