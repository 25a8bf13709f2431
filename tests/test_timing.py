"""The clock, on a simulated device (exact) and a little for real."""

import contextlib
import math
import multiprocessing
import random
import statistics
import time

import pytest

from helpers.clock import timing
from helpers.clock.simulated import SimulatedDevice, busy_machine
from helpers.clock.timing import Clock, Timing, compare_pairs


def simulated_clock(device: SimulatedDevice) -> Clock:
    return Clock("simulated", now=device.now, synchronize=device.synchronize, lock=contextlib.nullcontext)


def test_the_simulated_device_refuses_negative_times():
    with pytest.raises(ValueError, match="launch_seconds"):
        SimulatedDevice(launch_seconds=-1)
    with pytest.raises(ValueError, match="a kernel cannot take"):
        SimulatedDevice().launch(-1)


def test_the_simulated_device_works_while_the_caller_sleeps():
    device = SimulatedDevice(launch_seconds=0.0)
    device.launch(0.010)
    device.sleep(0.004)
    device.synchronize()
    assert device.now() == pytest.approx(0.010)


# --- one step -----------------------------------------------------------------------------------


def test_an_asynchronous_step_is_timed_to_its_end():
    device = SimulatedDevice(launch_seconds=5e-6)
    timed = simulated_clock(device).measure(device.kernel(0.010), budget_seconds=0.5)
    assert timed.median == pytest.approx(0.010 + 5e-6)
    assert timed.spread == pytest.approx(0, abs=1e-12)
    assert timed.best == pytest.approx(0.010 + 5e-6)
    assert timed.verdict == "ok"
    assert timed.ms == pytest.approx(10.005)


def test_a_clock_without_synchronisation_sees_the_launch_and_is_called_impossible():
    device = SimulatedDevice(launch_seconds=200e-6)
    clock = Clock("simulated", device.now, synchronize=lambda: None, lock=contextlib.nullcontext)
    timed = clock.measure(device.kernel(0.010), budget_seconds=0.1, floor_seconds=0.009)
    assert timed.median == pytest.approx(200e-6)
    assert timed.verdict == "impossible"
    assert "synchronised" in timed.reason and "cache" in str(timed)


def test_work_queued_before_is_not_charged_to_the_step():
    device = SimulatedDevice()
    device.launch(5.0)
    timed = simulated_clock(device).measure(device.kernel(0.010), budget_seconds=0.1)
    assert max(timed.samples) < 0.011


def test_warm_up_outlasts_compilation_and_slow_first_calls():
    device = SimulatedDevice(start_up=(3000.0, 8.0, 4.0, 2.0, 1.5, 1.2))
    timed = simulated_clock(device).measure(device.kernel(0.010), budget_seconds=2.0)
    assert max(timed.samples) < 0.0101


def test_steps_that_are_warm_are_run_for_their_samples_only():
    device = SimulatedDevice()
    steps = {name: device.kernel(seconds) for name, seconds in (("short", 1.0), ("long", 2.0))}
    timed = simulated_clock(device).sweep(steps, budget_seconds=0.1, min_samples=3, warm=True)
    assert [len(t.samples) for t in timed.values()] == [3, 3] and device.launches == 6


def test_at_least_twenty_samples_even_beyond_the_budget():
    device = SimulatedDevice()
    assert len(simulated_clock(device).measure(device.kernel(1.0), budget_seconds=0.1).samples) == 20


def test_budget_is_used_and_kept():
    device = SimulatedDevice()
    simulated_clock(device).measure(device.kernel(0.010), budget_seconds=2.0)
    assert 2.0 <= device.now() < 2.2


def test_a_very_short_step_is_called_several_times_a_sample():
    device = SimulatedDevice(launch_seconds=0.0)
    timed = simulated_clock(device).measure(device.kernel(1e-6), budget_seconds=0.01)
    assert timed.median == pytest.approx(1e-6)
    assert device.launches > 50 * len(timed.samples)


def test_a_step_that_times_itself_is_believed():
    class Graph:
        def elapsed_seconds(self):
            return 0.004

        def __call__(self):
            raise AssertionError("the clock should have used elapsed_seconds")

    ticks = iter(range(10**6))
    clock = Clock("simulated", now=lambda: next(ticks) * 1e-3, synchronize=lambda: None, lock=contextlib.nullcontext)
    assert clock.measure(Graph(), budget_seconds=0.05).median == 0.004


# --- statistics ---------------------------------------------------------------------------------


def exact_binomial_tail(n: int, k: int) -> float:
    """P(Binomial(n, 1/2) <= k)."""
    return sum(math.comb(n, i) for i in range(k + 1)) / 2**n


@pytest.mark.parametrize("n", [8, 20, 21, 40, 75, 200, 1001])
def test_ranks_keep_their_promise_against_the_exact_binomial(n):
    low, high = timing._middle_ranks(n, timing.Z99)
    assert low + high == n - 1
    assert 2 * exact_binomial_tail(n, low) <= 0.0101
    low, _ = timing._middle_ranks(n, timing.Z95)
    assert 2 * exact_binomial_tail(n, low) <= 0.0501
    assert 2 * exact_binomial_tail(n, low + 2) > 0.05  # and they are not needlessly wide


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8])
def test_spread_covers_the_true_median_of_noise_that_remembers_itself(memory):
    rng = random.Random(1)
    hits = 0
    for _ in range(300):
        x, samples = rng.gauss(0, 1), []
        for _ in range(100):
            x = memory * x + (1 - memory**2) ** 0.5 * rng.gauss(0, 1)
            samples.append(math.exp(0.05 * x))
        timed = Timing(tuple(samples))
        hits += abs(timed.median - 1.0) <= timed.spread
    assert hits / 300 >= 0.90


def test_one_burst_moves_the_mean_and_not_the_median():
    samples = (0.031,) * 19 + (48.0,)
    assert Timing(samples).median == 0.031 and Timing(samples).spread == 0.0
    assert statistics.mean(samples) > 2


def test_wide_samples_are_a_busy_machine():
    rng = random.Random(0)
    timed = Timing(tuple(rng.choice((0.010, 0.020)) * rng.uniform(0.9, 1.1) for _ in range(20)))
    assert timed.verdict == "busy"
    assert "something else is using this machine" in timed.reason and "[busy]" in str(timed)


def test_a_time_at_the_floor_is_not_impossible():
    assert Timing((0.0099,) * 20, floor_seconds=0.010).verdict == "ok"
    assert Timing((0.0080,) * 20, floor_seconds=0.010).verdict == "impossible"


def test_one_sample_claims_nothing():
    assert Timing((0.010,)).verdict == "busy"


@pytest.mark.parametrize("samples", [(), (float("nan"),), (-1.0,), (float("inf"),)])
def test_samples_must_be_times(samples):
    with pytest.raises(ValueError, match="sample"):
        Timing(samples)


def test_floor_must_be_a_time():
    with pytest.raises(ValueError, match="floor_seconds"):
        Timing((1.0,), floor_seconds=float("nan"))


# --- sweeps -------------------------------------------------------------------------------------


def test_a_sweep_visits_every_point_once_a_round_in_changing_order():
    device, visited = SimulatedDevice(), []

    def step(key):
        def run():
            visited.append(key)
            device.launch(0.01)

        return run

    simulated_clock(device).sweep({k: step(k) for k in "abcd"}, budget_seconds=0.4, min_samples=20)
    last = visited[-80:]
    rounds = [last[i : i + 4] for i in range(0, 80, 4)]
    assert all(sorted(r) == list("abcd") for r in rounds)
    assert len({tuple(r) for r in rounds}) > 5


def test_drift_hits_all_points_of_a_sweep_alike():
    """The machine slows by half in the course of the sweep; one point after the other would see a slope."""
    device = SimulatedDevice(noise=lambda now: 1 + 0.5 * min(1.0, now / 4))
    steps = {k: device.kernel(0.010) for k in range(8)}
    swept = simulated_clock(device).sweep(steps, budget_seconds=4)
    medians = [swept[k].median for k in range(8)]
    assert max(medians) / min(medians) < 1.02

    device = SimulatedDevice(noise=lambda now: 1 + 0.5 * min(1.0, now / 4))
    clock = simulated_clock(device)
    in_turn = [clock.measure(device.kernel(0.010), budget_seconds=0.5).median for _ in range(8)]
    assert max(in_turn) / min(in_turn) > 1.3


def test_a_lead_in_keeps_what_one_engine_leaves_behind_out_of_the_next_ones_samples():
    """Whoever runs after the other pays 3 ms, as for threads of the other that still wait for work."""
    device, last = SimulatedDevice(), None

    def step(engine):
        def run():
            nonlocal last
            device.launch(0.010 + (0.003 if last not in (None, engine) else 0.0))
            last = engine

        return run

    steps = {engine: step(engine) for engine in "ab"}
    alone = simulated_clock(device).sweep(steps, budget_seconds=1, lead_in_seconds=0.001)
    assert all(each.median == pytest.approx(0.010, rel=1e-3) for each in alone.values())
    mixed = simulated_clock(device).sweep(steps, budget_seconds=1)
    assert any(each.median > 0.012 for each in mixed.values())
    with pytest.raises(ValueError, match="lead_in_seconds"):
        simulated_clock(device).sweep(steps, lead_in_seconds=-1.0)


def test_an_interrupt_keeps_what_was_measured_and_marks_it(capsys):
    device, calls = SimulatedDevice(), 0

    def interrupted():
        nonlocal calls
        calls += 1
        if calls > 30:
            raise KeyboardInterrupt
        device.launch(0.01)

    steps = {"a": device.kernel(0.01), "b": interrupted}
    swept = simulated_clock(device).sweep(steps, budget_seconds=5)
    assert set(swept) == {"a", "b"} and all(t.partial for t in swept.values())
    assert 1 <= len(swept["b"].samples) < 30
    assert "partial" in str(swept["a"])
    assert "Interrupted" in capsys.readouterr().out


def test_an_interrupt_before_the_first_sample_goes_through_as_one_line():
    def interrupted():
        raise KeyboardInterrupt

    for measure in (lambda clock: clock.measure(interrupted), lambda clock: clock.compare(interrupted, interrupted)):
        with pytest.raises(KeyboardInterrupt) as caught:
            measure(simulated_clock(SimulatedDevice()))
        (line,) = caught.value._render_traceback_()
        assert line.startswith("Stopped before the first sample") and "\n" not in line


def test_an_interrupted_comparison_keeps_its_pairs():
    device, calls = SimulatedDevice(), 0

    def interrupted():
        nonlocal calls
        calls += 1
        if calls > 25:
            raise KeyboardInterrupt
        device.launch(0.01)

    compared = simulated_clock(device).compare(interrupted, device.kernel(0.01))
    assert compared.partial and len(compared.pairs) >= 8 and not compared.differs


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf")])
def test_a_senseless_budget_is_refused(budget):
    with pytest.raises(ValueError, match="budget_seconds"):
        simulated_clock(SimulatedDevice()).measure(lambda: None, budget_seconds=budget)


def test_an_empty_sweep_and_a_floor_without_a_step_are_refused():
    clock = simulated_clock(SimulatedDevice())
    with pytest.raises(ValueError, match="nothing to measure"):
        clock.sweep({})
    with pytest.raises(ValueError, match="not in the sweep"):
        clock.sweep({"a": lambda: None}, floors={"b": 1.0})


# --- comparisons --------------------------------------------------------------------------------


CALM = dict(jitter=0.02, drift=0.0, burst_factor=1.0)
BURSTS = dict(drift=0.0, burst_every_seconds=0.2, burst_seconds=0.1, burst_factor=3.0)
DRIFT = dict(drift=0.3, burst_factor=1.0)


def compare_on_a_busy_machine(seed: int, slower: float = 1.0, **kind):
    device = SimulatedDevice(noise=busy_machine(seed, **kind))
    a, b = device.kernel(0.010), device.kernel(0.010 * slower)
    return simulated_clock(device).compare(a, b, budget_seconds=1.0, seed=seed)


@pytest.mark.parametrize("kind", [CALM, BURSTS, DRIFT, {}], ids=["calm", "bursts", "drift", "all"])
def test_the_same_step_twice_differs_in_at_most_5_of_100_runs(kind):
    assert sum(compare_on_a_busy_machine(seed, **kind).differs for seed in range(100)) <= 5


def test_means_taken_one_after_the_other_would_have_failed_that():
    """Why pairs: same machine, same time, a textbook interval that believes in independent samples."""
    wrong = 0
    for seed in range(100):
        device = SimulatedDevice(noise=busy_machine(seed))
        clock = simulated_clock(device)
        a, b = (clock.measure(device.kernel(0.010), budget_seconds=0.5).samples for _ in range(2))
        errors = [statistics.stdev(x) / len(x) ** 0.5 for x in (a, b)]
        wrong += abs(statistics.mean(a) - statistics.mean(b)) > 1.96 * math.hypot(*errors)
    assert wrong > 20


def test_a_real_difference_of_five_percent_is_seen_through_the_same_noise():
    runs = [compare_on_a_busy_machine(seed, slower=1.05) for seed in range(20)]
    assert sum(r.differs and r.ratio > 1 for r in runs) >= 18
    assert statistics.median(r.ratio for r in runs) == pytest.approx(1.05, abs=0.01)


def test_the_first_of_a_pair_may_be_slower_without_creating_a_difference():
    """A step that finds its data in the cache because the other one just ran."""
    device, calls = SimulatedDevice(), 0

    def step():
        nonlocal calls
        calls += 1
        device.launch(0.010 if calls % 2 else 0.008)

    assert not simulated_clock(device).compare(step, step).differs


def test_few_pairs_never_claim_a_difference():
    assert not compare_pairs((2.0,) * 7).differs
    assert compare_pairs((2.0,) * 8).differs


@pytest.mark.clock
def test_same_step_for_real_on_this_machine():
    """A small dose of the 100 runs that the course promises; all 100 take a minute."""
    work = list(range(3000))
    clock = Clock("cpu", lock=contextlib.nullcontext)
    runs = [clock.compare(lambda: sum(work), lambda: sum(work), budget_seconds=0.05) for _ in range(20)]
    assert sum(r.differs for r in runs) <= 3


# --- progress and the lock ----------------------------------------------------------------------


def test_progress_goes_to_stdout_and_only_when_it_takes_long(capsys):
    Clock("cpu", lock=contextlib.nullcontext).measure(lambda: None, budget_seconds=0.05)
    quick = capsys.readouterr()
    assert quick.out == "" and quick.err == ""
    Clock("cpu", lock=contextlib.nullcontext).measure(lambda: time.sleep(0.01), budget_seconds=2.6)
    slow = capsys.readouterr()
    assert "%" in slow.out and slow.err == ""


def test_a_long_measurement_says_what_it_does_before_its_first_step_is_done(capsys):
    said = []

    def stopped():
        said.append(capsys.readouterr().out)
        raise KeyboardInterrupt

    with pytest.raises(timing.Stopped):
        Clock("cpu", lock=contextlib.nullcontext).sweep({"a": stopped}, budget_seconds=3, label="decode steps")
    assert "decode steps:   0 %" in said[0]


def hold_the_lock(device, held, release):
    with timing.device_lock(device):
        held.set()
        release.wait(20)


def test_two_processes_do_not_time_at_once(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(timing.tempfile, "gettempdir", lambda: str(tmp_path))
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    other = context.Process(target=hold_the_lock, args=("cpu", held, release))
    other.start()
    try:
        assert held.wait(20)
        context.Process(target=lambda: (time.sleep(0.5), release.set())).start()
        with timing.device_lock("cpu"):
            assert release.is_set()
    finally:
        release.set()
        other.join(20)
    assert "Somebody else is timing on cpu" in capsys.readouterr().out


def test_the_lock_can_be_taken_again_by_its_holder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(timing.tempfile, "gettempdir", lambda: str(tmp_path))
    with timing.device_lock("cuda"), timing.device_lock("cuda:0"):
        pass
    assert capsys.readouterr().out == ""


def test_a_place_without_room_for_a_lock_is_no_obstacle(tmp_path, monkeypatch, capsys):
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("")
    monkeypatch.setattr(timing.tempfile, "gettempdir", lambda: str(not_a_folder))
    with timing.device_lock("cpu"):
        pass
    assert "measuring without one" in capsys.readouterr().out
