"""Traces are what their cause makes them, and the shipped diagnosis finds it where a guess does not."""

import pytest

from helpers.serving import incident, symptoms
from helpers.serving.incident import CAUSES, CannotTell


def share(guess, traces) -> float:
    return sum(guess(trace) == trace.cause for trace in traces) / len(traces)


def shipped(trace) -> str:
    try:
        return incident.diagnose(trace.points, trace.model, trace.bandwidth).cause
    except CannotTell as doubt:
        return str(doubt)


def by_columns(trace) -> str:
    """Looks at which column moves, and at no byte."""
    contexts = [point.context for point in trace.points]
    return incident.CACHE_GROWS if max(contexts) > 2 * min(contexts) else incident.BATCH_GROWS


def test_the_diagnosis_against_a_thousand_traces():
    traces = [symptoms.generate(seed) for seed in range(1000)]
    right, columns, always = (share(g, traces) for g in (shipped, by_columns, lambda trace: incident.CACHE_GROWS))
    print(f"\nof 1,000 traces: diagnose {right:.1%}, by columns {columns:.1%}, always the cache {always:.1%}")
    assert right >= 0.95 and columns < 0.4 and always < 0.4


@pytest.mark.parametrize("cause", CAUSES)
def test_a_trace_is_seeded_and_has_its_cause(cause):
    one, same, other = (symptoms.generate(seed, cause) for seed in (5, 5, 6))
    assert one == same != other and one.cause == cause
    assert len(one.points) >= 5 and all(point.tpot_seconds > 0 for point in one.points)


def test_published_traces_have_the_cause_that_their_bytes_show():
    traces = symptoms.published()
    assert len(traces) >= 3 and len({trace.cause for trace in traces}) >= 3
    assert share(shipped, traces) == 1


def test_an_unknown_cause_is_refused():
    with pytest.raises(ValueError, match="no cause 'gremlins'; there are the cache grows"):
        symptoms.generate(0, "gremlins")
