"""Levers on one factor do not multiply, and the best set is found by trying all."""

import itertools

import pytest

from helpers.serving import plan
from helpers.serving.plan import Lever, Limits, Service

SERVICE = Service(100.0, 1.0, batch=10, context=100, bytes_per_second=1.0)


@pytest.mark.parametrize(
    ("levers", "seconds"),
    [
        ([], 100 + 1000),
        ([Lever("a", cache=0.5)], 100 + 500),
        ([Lever("a", cache=0.5), Lever("b", cache=0.25)], 100 + 250),
        ([Lever("a", cache=0.5), Lever("b", weights=0.5)], 50 + 500),
        ([Lever("a", keep=40), Lever("b", keep=20)], 100 + 200),
        ([Lever("a", keep=400)], 100 + 1000),
        ([Lever("a", shared=50)], 100 + 10 * 50 + 50),
        ([Lever("a", shared=50), Lever("b", keep=20)], 100 + 20),
        ([Lever("a", shared=50), Lever("b", cache=0.5)], 100 + 0.5 * 550),
    ],
)
def test_a_step_with_levers(levers, seconds):
    assert SERVICE.tpot_seconds(levers) == pytest.approx(seconds)


def test_the_best_four_of_the_scenario_are_no_worse_than_any_other():
    service, levers, limits = plan.scenario()
    lowest, winners = plan.best(service, levers, limits)
    tried = 0
    for chosen in itertools.combinations(levers, 4):
        if sum(x.quality for x in chosen) <= limits.quality and sum(x.days for x in chosen) <= limits.days:
            tried += 1
            assert service.tpot_seconds(chosen) >= lowest
    assert tried > 5 and len(winners) == 1
    # The four that save most alone break a limit, or there would be nothing to find out.
    largest = sorted(levers, key=lambda lever: service.tpot_seconds([lever]))[:4]
    assert limits.broken_by(largest)


def test_ties_are_all_named_and_impossible_limits_refused():
    levers = [Lever("a", cache=0.5), Lever("b", cache=0.5), Lever("c")]
    assert plan.best(SERVICE, levers, Limits(0, 0), 1) == (600.0, [{"a"}, {"b"}])
    with pytest.raises(ValueError, match="no 2 of these 1"):
        plan.best(SERVICE, levers[:1], Limits(0, 0), 2)
    assert "5 days" in Limits(0, 3).broken_by([Lever("a", days=5)])


def test_what_is_held_and_what_a_turn_waits_for():
    assert SERVICE.cache_bytes() == 1000 and SERVICE.cache_bytes([Lever("a", shared=50)]) == 550
    assert SERVICE.prefill_tokens(new=5) == 105 and SERVICE.prefill_tokens([Lever("a", keep=40)], new=5) == 45
    assert SERVICE.prefill_tokens([Lever("a", keep=40), Lever("b", found=True)], new=5) == 5
