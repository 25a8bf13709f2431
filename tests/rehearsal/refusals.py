"""What the pretend chip must notice, in a process of its own: `python -m tests.rehearsal.refusals`."""

import contextlib

import torch

from tests.rehearsal import chip

machine = chip.install(chip.Chip("small", (9, 0), 4, 1_000_000, 1e9))


@contextlib.contextmanager
def refused(kind, words):
    try:
        yield
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"nothing was refused: {words}")


here, away = torch.zeros(8, 8, device="cuda"), torch.zeros(8, 8)
assert here.device == (here @ here + 1).device == torch.device("cuda:0") and here.cpu().device == away.device
with refused(RuntimeError, "same device"):
    here + away
with refused(TypeError, "numpy"):
    here.numpy()
with refused(torch.OutOfMemoryError, "out of memory"):
    torch.zeros(1_000_000, device="cuda")

held = machine.memory.held
more = torch.zeros(1024, device="cuda")
view = more[:16]
del more
assert machine.memory.held == held + 4096, "a view keeps its memory"
del view
assert machine.memory.held == held and machine.memory.peak >= held + 4096


def captured(step):
    graph = chip.CUDAGraph()
    with chip.capture(graph):
        step()
    return graph


steps = lambda: here.sum().item(), lambda: here.cpu(), lambda: here + torch.ones(8).to("cuda"), torch.cuda.synchronize
for waiting in steps:
    with refused(RuntimeError, "captur"):
        captured(waiting)

# A replay is what was captured: a constant, an address or one more operation that differs is a wrong one.
state = {"n": 2, "to": here}


def step():
    state["to"].mul_(state["n"])


graph = captured(step)
graph.replay()
assert graph.trace.differs(chip.launched(step)) == ""
for change in ({"n": 3}, {"to": torch.zeros(8, 8, device="cuda")}):
    kept, state = state, state | change
    assert graph.trace.differs(chip.launched(step)), change
    state = kept
assert graph.trace.differs(chip.launched(lambda: (step(), step())))
state["to"] = here = None
with refused(RuntimeError, "freed"):
    graph.replay()
print("all refused")
