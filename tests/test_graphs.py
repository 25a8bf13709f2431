"""Graphs without a GPU: what may be captured, and that capturing and replaying go in the right order."""

import contextlib
import gc
from types import SimpleNamespace

import pytest
import torch

from helpers.caches import FullCache, Int8Cache, StaticCache
from helpers.clock import graphs
from helpers.clock.simulated import SimulatedDevice
from helpers.models.decoder import Decoder
from helpers.models.geometry import Geometry

TINY = Geometry("tiny", layers=2, hidden=32, q_heads=4, kv_heads=2, head_dim=16, intermediate=48, vocab=64)


@pytest.fixture(scope="module")
def decoder():
    return Decoder(TINY, backend="reference")


def decode_step(decoder, cache):
    tokens = torch.arange(cache.batch)
    return lambda: decoder.decode(tokens, cache)


def test_a_static_step_may_be_captured(decoder):
    cache = StaticCache(TINY, 64, batch=2, backend="reference")
    cache.fill(7)
    assert graphs.problems(decode_step(decoder, cache), cache, decoder) == []


def test_a_static_cache_decodes_as_a_full_one(decoder):
    prompt = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(0))
    caches = (
        FullCache(TINY, 64, batch=2, backend="reference"),
        StaticCache(TINY, 64, batch=2, backend="reference"),
    )
    for cache in caches:
        decoder.prefill(prompt, cache)
    for token in range(3):
        expected, got = (decoder.decode(torch.tensor([token, 5]), cache) for cache in caches)
        torch.testing.assert_close(got, expected)
    caches[1].rewind(9)
    again = decoder.decode(torch.tensor([0, 5]), caches[1])
    caches[0].rewind(9)
    torch.testing.assert_close(again, decoder.decode(torch.tensor([0, 5]), caches[0]))


def test_unequal_lengths_decode_as_each_alone(decoder):
    both = StaticCache(TINY, 64, batch=2, backend="reference")
    both.fill(20)
    both.counts.copy_(torch.tensor([5, 20]))
    logits = decoder.decode(torch.tensor([3, 4]), both)
    for row, (length, token) in enumerate(((5, 3), (20, 4))):
        alone = FullCache(TINY, 64, backend="reference")
        alone.keys.copy_(both.keys[:, row : row + 1])
        alone.values.copy_(both.values[:, row : row + 1])
        alone.rewind(length)
        torch.testing.assert_close(logits[row : row + 1], decoder.decode(torch.tensor([token]), alone))


class Asking(StaticCache):
    def attend(self, layer, q):
        assert self.counts.max().item() >= 0
        return super().attend(layer, q)


class Growing(StaticCache):
    def append(self, layer, k, v):
        super().append(layer, k, v)
        self.history = torch.cat((getattr(self, "history", k), k), dim=2)


class Moving(StaticCache):
    def attend(self, layer, q):
        self.keys = self.keys.clone()
        return super().attend(layer, q)


class Sorting(StaticCache):
    def attend(self, layer, q):
        torch.nonzero(self.counts)
        return super().attend(layer, q)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (FullCache, "changes between calls"),
        (Asking, "item waits"),
        (Growing, "aten::cat changes between calls"),
        (Moving, "Moving.keys moved"),
        (Sorting, "nonzero waits"),
    ],
)
def test_what_cannot_be_captured_is_named(decoder, kind, says):
    cache = kind(TINY, 64, batch=2, backend="reference")
    cache.fill(7)
    assert any(says in problem for problem in graphs.problems(decode_step(decoder, cache), cache))


class PretendCuda:
    """Just enough of torch.cuda to see the order of events; capturing records the function, replaying runs it."""

    def __init__(self):
        self.log, self.streams = [], 0

    class _Stream:
        def __init__(self, cuda, name):
            self.cuda, self.name = cuda, name

        def wait_stream(self, other):
            self.cuda.log.append(f"{self.name} waits for {other.name}")

    class _Event:
        def __init__(self, cuda):
            self.cuda = cuda

        def record(self):
            self.cuda.log.append("event")

        def synchronize(self):
            self.cuda.log.append("synchronize")

        def elapsed_time(self, end):
            return 12.0

    class _Graph:
        def __init__(self, cuda):
            self.cuda = cuda

        def replay(self):
            self.cuda.log.append("replay")

    def Stream(self):
        self.streams += 1
        return self._Stream(self, "side")

    def current_device(self):
        return 0

    def current_stream(self):
        return self._Stream(self, "main")

    def _sleep(self, cycles):
        self.log.append("busy")

    def Event(self, enable_timing):
        assert enable_timing
        return self._Event(self)

    def CUDAGraph(self):
        return self._Graph(self)

    @contextlib.contextmanager
    def stream(self, stream):
        self.log.append(f"on {stream.name}")
        yield
        self.log.append(f"off {stream.name}")

    @contextlib.contextmanager
    def graph(self, graph, stream):
        assert not gc.isenabled(), "an older graph, destroyed now, would spoil the capture"
        self.log.append(f"capture on {stream.name}")
        yield
        self.log.append("captured")


def test_warm_up_on_a_side_stream_then_capture_then_replay_between_events():
    cuda = PretendCuda()
    graph = graphs.Graph(lambda: cuda.log.append("launch"), cuda)
    warm_up = ["side waits for main", "on side", *["launch"] * graphs.WARM_UP_CALLS, "off side", "main waits for side"]
    assert cuda.log == [*warm_up, "capture on side", "launch", "captured"]
    cuda.log.clear()
    graphs.Graph(lambda: None, cuda)
    assert cuda.streams == 1, "cuBLAS keeps a workspace for every stream that there ever was"
    cuda.log.clear()
    assert graph.elapsed_seconds() == 12e-3
    assert cuda.log == ["busy", "event", "replay", "event", "synchronize"]


def test_what_cannot_be_captured_is_timed_as_it_is(capsys):
    class Refusing(PretendCuda):
        def graph(self, graph, stream):
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    def step():
        return 5

    assert isinstance(graphs.captured(step, PretendCuda()), graphs.Graph)
    assert graphs.captured(step, Refusing()) is step
    assert capsys.readouterr().out.endswith("not permitted when stream is capturing\n")


def test_capturing_leaves_the_cache_as_it_was(decoder):
    cache = StaticCache(TINY, 64, batch=2, backend="reference")
    cache.fill(9)
    keys, values = cache.keys.clone(), cache.values.clone()
    step = graphs.DecodeGraph(decoder, cache, PretendCuda())
    assert cache.length == 9
    assert cache.counts.tolist() == [9, 9]
    assert torch.equal(cache.keys, keys)
    assert torch.equal(cache.values, values)
    step(torch.tensor([1, 2]))
    assert cache.length == 10
    step.at(4)()
    assert cache.counts.tolist() == [4, 4]
    cache.rewind(64)
    with pytest.raises(ValueError, match="64"):
        step(torch.tensor([1, 2]))


def test_what_waits_is_found_before_it_is_captured(decoder, capsys, monkeypatch):
    asking = torch.ones(3)
    assert any("item" in name or "scalar" in name for name in graphs.waits(lambda: asking.sum().item()))
    assert graphs.waits(decode_step(decoder, StaticCache(TINY, 64, backend="reference"))) == []
    quantised = Int8Cache(TINY, 64, backend="reference")
    quantised.fill(4)

    def step():
        quantised.rewind(4)
        return decoder.decode(torch.zeros(1, dtype=torch.long), quantised)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    assert graphs.waits(lambda: torch.cuda.synchronize()) == ["torch.cuda.synchronize waits for the device"]
    assert graphs.waits(step) == []  # it asks whether all is finite, but not while it is captured
    cuda = PretendCuda()
    waiting = asking.sum().item
    assert graphs.captured(waiting, cuda) is waiting and cuda.log == []
    assert "waits for the device" in capsys.readouterr().out
    with graphs.one_note():
        graphs.captured(waiting, cuda), graphs.captured(waiting, cuda)
    assert capsys.readouterr().out.count("Note: ") == 1


def test_the_device_is_busy_while_a_graph_is_submitted():
    """On a simulated device, whose queue an event joins: without work before it, submitting 0.1 ms would count."""
    device = SimulatedDevice(launch_seconds=0.0)

    class Cuda(PretendCuda):
        class Event(PretendCuda._Event):
            def __init__(self, enable_timing):
                pass

            def record(self):
                device.launch(0.0)
                self.at = device._queue_empty_at

            def synchronize(self):
                device.synchronize()

            def elapsed_time(self, end):
                return 1e3 * (end.at - self.at)

        def _sleep(self, cycles):
            device.launch(cycles / 2e9)  # at 2 GHz

        def CUDAGraph(self):
            return SimpleNamespace(replay=lambda: (device.sleep(1e-4), device.launch(3e-3)))

    assert graphs.Graph(lambda: None, Cuda()).elapsed_seconds() == pytest.approx(3e-3, rel=1e-9)
