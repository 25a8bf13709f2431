"""Answers that are asked for over a connection are to checks what they would be in one process, and nothing more."""

import collections
import contextlib
import json
import socket
import threading
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest
import torch

from helpers import check
from helpers.blanks import is_stub
from helpers.caches import SinkBuffers
from helpers.clock.simulated import SimulatedDevice
from helpers.exercises.traffic import Traffic
from helpers.models.geometry import get
from helpers.serving.blocks import BlockManager
from tools import answering
from tools.asking import Conversation, NoAnswer, Replaced, TookTooLong


@pytest.fixture
def asked():
    """asked(cell) runs a notebook cell and returns the conversation about its names; both ends are in this process."""
    opened = []

    def start(cell, seconds=120):
        here, there = socket.socketpair()
        names = {"__name__": "__main__"}
        exec(compile(cell, "<cell>", "exec"), names)
        server = answering.Conversation(Connection(there.detach()), names)

        def serve():
            with contextlib.suppress(EOFError, OSError):  # who asked has gone while this side was at work, as in `main`
                server.serve()

        threading.Thread(target=serve, daemon=True).start()
        opened.append(Conversation(Connection(here.detach()), time.monotonic() + seconds))
        return opened[-1]

    yield start
    for conversation in opened:
        conversation.close()


VALUES = {
    "None": None,
    "[True, 1, -2.5, 'text', b'bytes', ...]": [True, 1, -2.5, "text", b"bytes", ...],
    "{('a', 8): [1], 2: {3}}": {("a", 8): [1], 2: {3}},
    "10**40": 10**40,
    "__import__('decimal').Decimal('1.5')": 1.5,
    "__import__('fractions').Fraction(1, 4)": 0.25,
    "__import__('numpy').float32(0.5)": 0.5,
    "__import__('numpy').bool_(False)": False,
    "__import__('numpy').longdouble(0)": 0.0,
    "range(3)": [0, 1, 2],
    "{1: 2}.values()": [2],
    "{range(2): {frozenset({1})}}": {(0, 1): {frozenset({1})}},
    "__import__('torch').int8": torch.int8,
    "__import__('torch').device('cpu')": torch.device("cpu"),
}


@pytest.mark.parametrize("written", VALUES)
def test_values(asked, written):
    got = asked(f"x = {written}").value("x")
    assert got == VALUES[written] and type(got) is type(VALUES[written])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint8", "bool", "float64", "int64"])
def test_tensors(asked, dtype):
    cell = f"import torch\nx = (torch.arange(6).view(2, 3).T * 1.5).to(torch.{dtype})\ny = x[0, 0]\nz = x[:0]"
    conversation = asked(cell)
    expect = (torch.arange(6).view(2, 3).T * 1.5).to(getattr(torch, dtype))
    assert torch.equal(conversation.value("x"), expect) and conversation.value("x").dtype == expect.dtype
    assert conversation.value("y").shape == () and conversation.value("z").shape == (0, 2)


def test_a_tensor_that_wants_a_gradient_is_a_number(asked):
    check.number(asked("import torch\nx = torch.tensor(2.0, requires_grad=True) * 3").value("x"), 6)


def test_arrays(asked):
    got = asked("import numpy as np\nx = np.arange(6, dtype='<i2').reshape(3, 2).T").value("x")
    assert np.array_equal(got, np.arange(6).reshape(3, 2).T) and got.dtype == np.int16


def test_what_is_no_value_is_named_in_the_message(asked):
    conversation = asked("class Odd: pass\nx, y = Odd(), 3j")
    with pytest.raises(check.Wrong, match="it is a Odd"):
        check.number(conversation.value("x"), 6)
    with pytest.raises(check.Wrong, match="has to be one number"):
        check.number(conversation.value("y"), 6)
    with pytest.raises(NameError, match="does not define z"):
        conversation.value("z")


def test_an_answer_that_is_too_large_is_refused_over_there(asked, monkeypatch):
    monkeypatch.setattr(answering, "MOST_BYTES", 1_000)
    conversation = asked("x, y = 'a' * 2_000, 5")
    with pytest.raises(ValueError, match="takes more than"):
        conversation.value("x")
    assert conversation.value("y") == 5


def test_a_stub_is_not_answered_and_a_blank_in_a_function_is_found(asked):
    conversation = asked('def f(x):\n    """What it does."""\n\n\nclass C:\n    def g(self):\n        pass')
    assert is_stub(conversation.value("f")) and is_stub(conversation.value("C"))
    blank = asked("def f(x):\n    y = x\n").value("f")
    blank.blank = True
    with pytest.raises(check.NotAnswered):
        check.call(blank, 1)


def test_a_function_runs_there_and_its_error_names_its_line(asked):
    conversation = asked("def f(x, *, by=2):\n    return by * x\ndef g(x):\n    return 1 / x\ndef h(x): raise Odd\n")
    f, g, h = (conversation.value(name) for name in "fgh")
    assert f(3) == 6 and f([1], by=3) == [1, 1, 1] and f.__name__ == "f"
    with pytest.raises(ZeroDivisionError) as found:
        g(0)
    assert "g() raised ZeroDivisionError: division by zero" in check._explain(found.value)
    with pytest.raises(NameError):
        h(0)


def test_a_function_may_end_the_process_or_print_and_is_still_asked(asked):
    conversation = asked("def f(x):\n    raise SystemExit\ndef g(x):\n    print('noise')\n    return x")
    with pytest.raises(Exception, match="SystemExit|^$"):
        conversation.value("f")(1)
    assert conversation.value("g")(2) == 2


def test_what_a_function_changes_in_its_arguments_is_changed_here(asked):
    cell = "def f(a, b, c, d):\n    a.append(b)\n    b['x'] = a\n    c += 1\n    d |= {9}\n    return a"
    a, b, c, d = [1], {}, torch.zeros(2), {3}
    got = asked(cell).value("f")(a, b, c, d)
    assert got is a and a[1] is b and b["x"] is a and c.tolist() == [1.0, 1.0] and d == {3, 9}
    array = np.zeros(2)
    asked("def f(a):\n    a[1] = 7").value("f")(array)
    assert array.tolist() == [0.0, 7.0]


def test_an_engine_of_the_course_travels_with_its_state(asked):
    class Yours(BlockManager):
        def take(self):
            return take(self)

    cell = (
        "def take(pool):\n    block = pool.free.pop()\n    pool.references[block] = 1\n    pool.cached[block] = None\n"
    )
    take = asked(cell + "    return block").value("take")
    pool = Yours(3, 2)
    assert take(pool) == 0 and pool.free == [2, 1] and pool.references == [1, 0, 0] and list(pool.cached) == [0]
    assert isinstance(pool.cached, collections.OrderedDict)
    cell = "def store(cache, layer, row):\n    cache.keys[layer, :, :, row] = 1.0\n"
    cell += "    cache.mark = cache.next_token(layer)"
    tiny = get("SmolLM2-135M").replace(name="tiny", layers=2, hidden=8, q_heads=2, kv_heads=1, head_dim=4)

    class Cache(SinkBuffers):
        append = attend = None

    cache = Cache(tiny, 10, 1, 2, backend="reference")
    keys = cache.keys
    asked(cell).value("store")(cache, 1, 2)
    assert cache.keys is keys and keys[1, 0, 0, 2].tolist() == [1.0] * 4 and not keys[0].any()
    assert cache.mark == 0 and cache.next_token(1) == 1 and cache.next_token(0) == 0


def test_what_a_check_has_the_learner_write_is_not_the_courses_own_over_there(asked):
    class Yours(BlockManager):
        def take(self):
            return take(self)

    conversation = asked("def take(pool): return pool.take()\ndef let_go(pool): pool.let_go(pool.table[0])")
    take = conversation.value("take")
    with pytest.raises(RecursionError, match="call itself"):
        take(Yours(2, 4))
    pool = Yours(2, 4)
    pool.references[0], pool.table = 1, [0]
    conversation.value("let_go")(pool)
    assert pool.references[0] == 0, "what it does not override is there"
    assert take(BlockManager(2, 4)) == 0
    assert type(answering.bare(BlockManager, ["take"])).__module__ == BlockManager.__module__


@pytest.mark.parametrize("lie", ["pool.let_go = print", "pool.free = iter([1])", "pool.free = lambda: 0"])
def test_what_a_check_looks_at_cannot_be_made_to_answer(asked, lie):
    pool = BlockManager(2, 4)
    with pytest.raises(Replaced):
        asked(f"def f(pool):\n    {lie}").value("f")(pool)


def test_another_container_of_the_same_kind_may_take_its_place(asked):
    pool = BlockManager(2, 4)
    pool.cached[1] = pool.cached[0] = None
    cell = "from collections import OrderedDict, deque\ndef f(pool):\n    pool.free = deque([7])\n    pool.note = len\n"
    asked(cell + "    pool.cached = OrderedDict(sorted(pool.cached.items()))").value("f")(pool)
    pool.cached.move_to_end(0)
    assert pool.free == [7] and list(pool.cached) == [1, 0]


def test_a_check_is_called_back_and_what_it_raises_comes_through(asked):
    cell = "def f(step, now, wait):\n    start = now()\n    step()\n    wait()\n    return now() - start"
    device = SimulatedDevice(launch_seconds=1.0)
    f = asked(cell).value("f")
    assert f(device.kernel(2.0), device.now, device.synchronize) == 3.0

    def refuse():
        raise check.Wrong("not like this")

    with pytest.raises(check.Wrong, match="not like this"):
        f(refuse, device.now, device.synchronize)
    hiding = (
        "def f(step):\n    try:\n        step()\n    except Exception as error:\n        return type(error).__name__"
    )
    assert asked(hiding).value("f")(refuse) == "RuntimeError"


def test_a_generator_runs_step_by_step_beside_what_it_is_handed(asked):
    cell = (
        "def f(counter, box):\n    for i in range(3):\n        box.append(i)\n        yield counter.add(i) + len(box)"
    )
    names = {"__name__": "judge", "torch": torch}
    exec("class Counter:\n    def add(self, x):\n        self.seen.append(x)\n        return torch.tensor([x])", names)
    counter, box = names["Counter"](), []
    counter.seen = []
    stream = asked(cell).value("f")(counter, box)
    assert counter.seen == [] and next(stream).item() == 1 and counter.seen == [0] and box == [0]
    assert [t.item() for t in stream] == [3, 5] and box == [0, 1, 2]


def test_a_function_of_theirs_goes_back_as_itself(asked):
    conversation = asked("def f(g, x): return g(x) if g is h else None\ndef h(x): return x + 1")
    assert conversation.value("f")(conversation.value("h"), 1) == 2
    both = asked("def f(back):\n    return back(lambda x: 2 * x)").value("f")
    assert both(lambda function: function(21)) == 42


def test_traffic_over_there_is_counted_here(asked):
    k = torch.ones(100)
    with Traffic() as seen:
        asked("def f(k):\n    return (k * 2).sum()").value("f")(k)
    with Traffic() as plain:
        (k * 2).sum()
    assert (seen.read_bytes, seen.written_bytes, seen.largest) == (
        plain.read_bytes,
        plain.written_bytes,
        plain.largest,
    )


REACHING = [
    "now.__globals__",
    "now.__self__",
    "device._now",
    "device.now.__func__",
    "device.launch.__self__",
    "getattr(device, 'launch.__self__')",
    "device.noise.sub",
]


@pytest.mark.parametrize("path", REACHING)
def test_nothing_of_this_process_can_be_reached_from_there(asked, path):
    cell = f"def f(device, now):\n    try:\n        return 'got ' + str({path})\n"
    cell += "    except AttributeError:\n        return 'no'"
    device = SimulatedDevice()
    device.noise = __import__("re")
    assert asked(cell).value("f")(device, device.now) == "no"


def test_a_call_that_does_not_come_back_is_given_up(asked):
    conversation = asked("import time\ndef f():\n    time.sleep(30)", seconds=0.5)
    with pytest.raises(TookTooLong):
        conversation.value("f")()


LIES = [
    b"not json",
    b"[]",
    b'{"value": {"yours": 99}}',
    b'{"value": {"ref": 0}}',
    b'{"value": {"tensor": "AAAA", "dtype": "float32", "shape": [9]}}',
    b'{"value": {"tensor": "AAAA", "dtype": "load", "shape": [1]}}',
    b'{"value": {"array": "AAAA", "dtype": "O", "shape": [1]}}',
    b'{"value": {"dict": [[{"dict": []}, 1]]}}',
    b'{"value": [1]}',
    b'{"ask": 7, "attribute": null, "args": []}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("lie", LIES)
def test_what_cannot_be_read_is_no_answer(lie):
    here, there = socket.socketpair()
    conversation = Conversation(Connection(here.detach()), time.monotonic() + 5)
    liar = Connection(there.detach())
    threading.Thread(target=lambda: (liar.send_bytes(lie), liar.recv_bytes(), liar.close()), daemon=True).start()
    with pytest.raises(NoAnswer):
        conversation.value("x")


def test_an_answer_that_claims_a_changed_argument_of_another_kind_is_no_answer():
    here, there = socket.socketpair()
    conversation = Conversation(Connection(here.detach()), time.monotonic() + 5)
    liar = Connection(there.detach())
    liar.send_bytes(json.dumps({"value": 1, "changed": {"0": {"content": 5}}}).encode())
    with pytest.raises(NoAnswer):
        conversation.call(0, ([1],), {})
