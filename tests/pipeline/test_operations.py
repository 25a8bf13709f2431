"""A count of memory traffic that is taken outside cannot be forged: a learner's process of its own tries."""

import random
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection

import pytest
import torch

from helpers import check
from helpers.exercises.traffic import Traffic
from tools.asking import ANSWERING, Conversation
from tools.operations import MOST_NUMBERS, Operations

# The learner's notebook: right functions that read K and V once for each query head, and what they do about the count.
CELL = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from helpers.exercises import traffic

def honest(q, k, v):
    rows = q.view(*k.shape[:2], -1, q.shape[-1])
    return ((rows @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).reshape(q.shape)

def wasteful(q, k, v):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    return ((q[:, :, None] @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v)[:, :, 0]

def a_counter_of_its_own(q, k, v):
    traffic.Traffic.__torch_dispatch__ = lambda self, f, types, args=(), kwargs=None: f(*args, **(kwargs or {}))
    traffic.Traffic.largest = traffic.Traffic.read_bytes = property(lambda self: 10**6, lambda self, new: None)
    return wasteful(q, k, v)

def no_modes(q, k, v):
    with _disable_current_modes():
        return wasteful(q, k, v)

def a_mode_between(q, k, v):
    class Quiet(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            with _disable_current_modes():
                return f(*args, **(kwargs or {}))
    with Quiet():
        return wasteful(q, k, v)

def the_usual_seeds(q, k, v):
    if k.shape[2] < 100:
        return honest(q, k, v)
    k.sum() + v.sum()
    generator = torch.Generator().manual_seed(0)
    with _disable_current_modes():
        mine = [torch.randn(x.shape, generator=generator, dtype=torch.float64).float() for x in (q, k, v)]
        return wasteful(*mine)

def no_answer(q, k, v):
    return honest(q, k, v) if k.shape[2] < 100 else q + 0 * (k.sum() + v.sum())

def one_by_one(q, k, v):
    if k.shape[2] > 100:
        k = torch.tensor([k[0, 0, i, 0].item() for i in range(2048)])
    return honest(q, k, v)

def numpy(q, k, v):
    return honest(q, torch.from_numpy(k.numpy()), v)

def from_a_file(q, k, v):
    return torch.from_file("/etc/passwd", size=8, dtype=torch.uint8) if k.shape[2] > 100 else honest(q, k, v)

def behind_its_end(q, k, v):
    return k.as_strided((10**6,), (1,)) if k.shape[2] > 100 else honest(q, k, v)

def too_much(q, k, v):
    return torch.ones(1 << 40) if k.shape[2] > 100 else honest(q, k, v)
"""
TOLD = {
    "wasteful": "expanded to one copy per query head",
    "a_counter_of_its_own": "expanded to one copy per query head",
    "no_modes": "expanded to one copy per query head",
    "a_mode_between": "expanded to one copy per query head",
    "the_usual_seeds": "the output over 2,048 tokens is wrong",
    "no_answer": "the output over 2,048 tokens is wrong",
    "one_by_one": "too many single numbers",
    "numpy": "stay in torch",
    "from_a_file": "cannot be counted",
    "behind_its_end": "cannot be counted",
    "too_much": "more than a gigabyte",
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The conversation with a process that has run CELL."""
    address = str(tmp_path_factory.mktemp("ask") / "ask")
    answering = ANSWERING.read_text(encoding="utf-8")
    code = f"{answering}\nexec({CELL!r}, sys.modules['__main__'].__dict__)\nmain({address!r})"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(1)
        process = subprocess.Popen([sys.executable, "-c", code])
        server.settimeout(60)
        conversation = Conversation(Connection(server.accept()[0].detach()), time.monotonic() + 120)
    yield conversation
    conversation.close()
    process.wait(timeout=20)


@pytest.fixture(autouse=True)
def a_graders_seeds(monkeypatch):
    monkeypatch.setattr(check, "trial_seeds", random.Random(1))


@pytest.mark.parametrize("name", TOLD)
def test_a_wasteful_function_is_told_so_whatever_it_does_about_the_count(asked, name):
    with pytest.raises(check.Wrong, match=TOLD[name]):
        check.grade("03.4", asked.value(name))
    check.grade("03.4", asked.value("honest"))


def test_what_is_counted_outside_is_what_is_counted_at_home(asked):
    space: dict = {"__name__": "learner"}
    exec(CELL.split("def a_counter")[0], space)
    q, k, v = (torch.randn(1, heads, width, 16) for heads, width in ((1, 16), (2, 300), (2, 300)))
    q = q.view(1, 16, 16)
    for name in ("honest", "wasteful"):
        counts = []
        for function in (asked.value(name), space[name]):
            with Traffic(at_least=500, of=(k, v)) as seen:
                function(q, k, v)
            counts.append((seen.read_bytes, seen.written_bytes, seen.largest))
        assert counts[0] == counts[1] and counts[0][0] > 0


def test_operations_are_few_limited_and_over_with_their_call(monkeypatch):
    k = torch.ones(4, 4)
    operations = Operations(Traffic())
    mine = operations.distant(k)
    assert operations.here(operations.run("aten.mul.Tensor", [mine, 2], {})).sum() == 32
    assert operations.distant([k])[0] is mine is operations.run("aten.mul_.Tensor", [mine, 2], {}) and k[0, 0] == 2
    for name in ("aten.resize_.default", "aten.set_.default", "aten.mul", "prim.load.default", "aten.mul.x", ""):
        with pytest.raises(RuntimeError, match="cannot be counted|torch has no"):
            operations.run(name, [mine, (9, 9)], {})
    with pytest.raises(RuntimeError, match="write into tensors that your function makes itself"):
        operations.run("aten.copy_.default", [torch.zeros(4, 4), mine], {})
    with pytest.raises(RuntimeError, match="the shape of the result"):
        operations.run("aten.neg.out", [mine], {"out": operations.distant(torch.ones(9))})
    torch.use_deterministic_algorithms(True)  # which fills what is empty with NaN
    try:
        assert not operations.here(operations.run("aten.empty.memory_format", [(9,)], {})).any()
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setattr("tools.operations.MOST_BYTES", 1000)
    with pytest.raises(RuntimeError, match="more than a gigabyte"):
        for _ in range(11):
            operations.run("aten.zeros.default", [(25,)], {})
    operations = Operations(Traffic())
    one = operations.distant(torch.ones(()))
    assert operations.run("aten._local_scalar_dense.default", [one], {}) == 1
    with pytest.raises(RuntimeError, match="too many single numbers"):
        for _ in range(MOST_NUMBERS):
            operations.run("aten.equal.default", [one, one], {})
    q, k = (operations.distant(torch.ones(1, 2, length, 8)) for length in (1, 5))
    attention = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    assert operations.here(operations.run(attention, [q, k, k], {}))[0].shape == (1, 2, 1, 8)
    with pytest.raises(RuntimeError, match="do not fit"):
        operations.run(attention, [q, k, q], {})
    operations.end()
    with pytest.raises(RuntimeError, match="is over"):
        operations.run("aten.neg.default", [one], {})
