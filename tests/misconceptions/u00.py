"""Known wrong answers of unit 00 with a phrase of the message each must get, and other right ones."""


def _with(name: str, key: str, value: str) -> str:
    """The reference answer, a dictionary, with one entry replaced."""
    return f"{name} = {{**{name}, {key!r}: {value}}}"


WRONG = {
    "00.1": [
        (_with("floor_ms", "decode", "15.01 / G.bandwidth * 1e3 + 15.01e9 / (G.rate * 1e12) * 1e3"), "overlap"),
        (_with("floor_ms", "decode", "15.01e9 / (G.rate * 1e12) * 1e3"), "reading takes longer"),
        (_with("floor_ms", "decode", "7.505 / G.bandwidth * 1e3"), "one byte a weight"),
        (_with("floor_ms", "decode", "15.01 * 2**30 / G.bandwidth / 1e9 * 1e3"), "gib"),
        (_with("floor_ms", "decode", "15.01 / G.bandwidth"), "unit is off"),
        (_with("floor_ms", "prompt", "floor_ms['prompt'] + 15.01 / G.bandwidth * 1e3"), "overlap"),
        (_with("floor_ms", "prompt", "G.tokens * 15.01e9 / (G.rate * 1e12) * 1e3"), "needs it once"),
        (_with("floor_ms", "prompt", "15.01 / G.bandwidth * 1e3"), "multiply for longer"),
        (_with("floor_ms", "prompt", "G.with_attention / G.rate / 1e9"), "attention over the prompt"),
        (_with("floor_ms", "prompt", "G.tokens * 15.01 / G.bandwidth * 1e3"), "share one reading"),
        (_with("floor_ms", "prompt", "floor_ms['prompt'] / 2"), "dense rate"),
        (_with("floor_ms", "prompt", "15.01e9 / (G.rate * 1e12) * 1e3"), "the prompt has"),
        (_with("floor_ms", "prompt", "float('nan')"), "NaN"),
        (_with("floor_ms", "prompt", "'14.1 ms'"), "text"),
        (_with("floor_ms", "decode", "-floor_ms['decode']"), "positive"),
        ("floor_ms = {'decode': 4.48}", "no entry 'prompt'"),
        ("floor_ms = 4.48", "has to stay a dictionary"),
    ],
    "00.2": [
        ("ridge_flop_per_byte = G.bandwidth / (G.rate * 1e3)", "upside down"),
        ("ridge_flop_per_byte = 2 * G.rate * 1e3 / G.bandwidth", "sparse"),
        ("ridge_flop_per_byte = G.rate / G.bandwidth", "bring both"),
        ("tokens_at_ridge = 1e3 * G.rate / G.bandwidth / 2", "cancel"),
        ("tokens_at_ridge = 1e3 * G.rate / G.bandwidth * 2", "cancel"),
        ("tokens_at_ridge = 1e3 * G.rate / G.bandwidth * 4", "4 bytes a weight"),
        ("tokens_at_ridge = 1", "far below the ridge"),
        ("tokens_at_ridge = True", "truth value"),
    ],
    "00.3": [
        ("no_sync_ms = G.kernel_ms + G.launch_us / 1e3", "returns at once"),
        ("no_sync_ms = G.kernel_ms", "returns at once"),
        ("no_sync_ms = G.launch_us", "microseconds"),
        ("no_sync_ms = 0", "not free"),
        ("sync_ms = G.kernel_ms", "left the launch out"),
        ("sync_ms = G.launch_us / 1e3", "until the queue is empty"),
        ("hundred_ms = G.kernel_ms + G.launch_us / 1e3", "only the first launch is seen"),
        ("hundred_ms = G.launch_us / 1e3", "waits for all 100"),
        ("hundred_ms = 100 * G.kernel_ms + G.launch_us / 1e3", "divide by 100"),
        ("hundred_ms = [10.0]", "one number"),
    ],
    "00.4": [
        (
            "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
            "    for _ in range(warm_up + samples):\n        step()\n"
            "    return [now() - now() + 0.01002] * samples",
            "slows down from call to call",
        ),
        (
            "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
            "    for _ in range(warm_up):\n        step()\n"
            "    taken = []\n"
            "    for _ in range(samples):\n"
            "        synchronize()\n        start = now()\n        step()\n        synchronize()\n"
            "        taken.append(now() - start)\n"
            "    return [min(taken)] * samples",
            "slows down from call to call",
        ),
        (
            "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
            "    for _ in range(warm_up):\n        step()\n"
            "    taken = []\n"
            "    for _ in range(samples):\n"
            "        synchronize()\n        start = now()\n        step()\n        taken.append(now() - start)\n"
            "    return taken",
            "that is the launch",
        ),
        (
            "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
            "    for _ in range(warm_up):\n        step()\n"
            "    taken = []\n"
            "    for _ in range(samples):\n"
            "        start = now()\n        step()\n        synchronize()\n        taken.append(now() - start)\n"
            "    return taken",
            "somebody else's work",
        ),
        (
            "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
            "    taken = []\n"
            "    for _ in range(samples):\n"
            "        synchronize()\n        start = now()\n        step()\n        synchronize()\n"
            "        taken.append(now() - start)\n"
            "    return taken",
            "compiles",
        ),
        (
            "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
            "    taken = []\n"
            "    for _ in range(samples):\n"
            "        synchronize()\n        start = now()\n        step()\n        synchronize()\n"
            "        taken.append(now() - start)\n"
            "    return taken[warm_up:]",
            "not cut off the samples",
        ),
        (
            "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
            "    for _ in range(warm_up):\n        step()\n"
            "    taken = []\n"
            "    for _ in range(samples):\n"
            "        synchronize()\n        start = time.perf_counter()\n        step()\n        synchronize()\n"
            "        taken.append(time.perf_counter() - start)\n"
            "    return taken",
            "did not call now()",
        ),
        (
            "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
            "    for _ in range(warm_up):\n        step()\n"
            "    taken = []\n"
            "    synchronize()\n    start = now()\n"
            "    for _ in range(samples):\n"
            "        step()\n        synchronize()\n        taken.append(now() - start)\n"
            "    return taken",
            "add up",
        ),
        (
            "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
            "    for _ in range(warm_up):\n        step()\n"
            "    taken = []\n"
            "    for _ in range(samples):\n"
            "        synchronize()\n        start = now()\n        step()\n        synchronize()\n"
            "        taken.append(1e3 * (now() - start))\n"
            "    return taken",
            "milliseconds",
        ),
        (
            "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
            "    synchronize()\n    start = now()\n"
            "    for _ in range(samples):\n        step()\n"
            "    synchronize()\n"
            "    return (now() - start) / samples",
            "list of all samples",
        ),
        (
            "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
            "    synchronize()\n    for _ in range(warm_up):\n        step()\n"
            "    taken = []\n"
            "    for _ in range(samples):\n"
            "        start = now()\n        step()\n        synchronize()\n        taken.append(now() - start)\n"
            "    return taken",
            "still in the queue",
        ),
        (
            "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
            "    for _ in range(samples):\n"
            "        synchronize()\n        start = now()\n        step()\n        synchronize()\n",
            "`return` line is missing",
        ),
        (
            "def time_step(step, now, synchronise, samples=20, warm_up=5):\n    return [now() - strat]",
            "NameError",
        ),
    ],
    "00.5": [
        (
            "def median_and_spread(samples):\n"
            "    low, middle, high = np.percentile(samples, [25, 50, 75])\n"
            "    return (high - low) / 2, middle",
            "the median comes first",
        ),
        (
            "def median_and_spread(samples):\n"
            "    low, high = np.percentile(samples, [25, 75])\n"
            "    return np.mean(samples), (high - low) / 2",
            "that is the mean",
        ),
        (
            "def median_and_spread(samples):\n"
            "    low, middle, high = np.percentile(samples, [25, 50, 75])\n"
            "    return middle, high - low",
            "half of it",
        ),
        (
            "def median_and_spread(samples):\n    return np.median(samples), np.std(samples)",
            "standard deviation",
        ),
        (
            "def median_and_spread(samples):\n    return np.median(samples), (max(samples) - min(samples)) / 2",
            "largest minus smallest",
        ),
        (
            "def median_and_spread(samples):\n"
            "    low, high = np.percentile(samples, [25, 75])\n"
            "    return samples[len(samples) // 2], (high - low) / 2",
            "sort it first",
        ),
        (
            "def median_and_spread(samples):\n"
            "    low, high = np.percentile(samples, [25, 75])\n"
            "    return sorted(samples)[len(samples) // 2], (high - low) / 2",
            "half-way",
        ),
        (
            "def median_and_spread(samples):\n"
            "    low, middle, high = np.percentile(samples, [0.25, 0.5, 0.75])\n"
            "    return middle, (high - low) / 2",
            "0 to 100",
        ),
        (
            "def median_and_spread(samples):\n"
            "    low, high = np.percentile(samples, 0.25), np.percentile(samples, 0.75)\n"
            "    return np.median(samples), (high - low) / 2",
            "0 to 100",
        ),
        ("def median_and_spread(samples):\n    return np.median(samples)", "two numbers"),
    ],
    "00.6": [
        (
            "def measure_in_turns(steps, time_once, rounds):\n"
            "    return {name: [time_once(step) for _ in range(rounds)] for name, step in steps.items()}",
            "one step to the end",
        ),
        (
            "def measure_in_turns(steps, time_once, rounds):\n"
            "    samples = dict.fromkeys(steps, [])\n"
            "    for _ in range(rounds):\n"
            "        for name, step in steps.items():\n            samples[name].append(time_once(step))\n"
            "    return samples",
            "share one list",
        ),
        (
            "def measure_in_turns(steps, time_once, rounds):\n"
            "    samples = {name: [] for name in steps}\n"
            "    for _ in range(rounds):\n"
            "        for name in steps:\n            samples[name].append(time_once(name))\n"
            "    return samples",
            "the step itself",
        ),
        (
            "def measure_in_turns(steps, time_once, rounds):\n"
            "    samples = {}\n"
            "    for _ in range(rounds):\n"
            "        for name, step in steps.items():\n            samples[name] = time_once(step)\n"
            "    return samples",
            "list of 4 samples",
        ),
        (
            "def measure_in_turns(steps, time_once, rounds):\n"
            "    samples = {name: [] for name in steps}\n"
            "    for i in range(rounds):\n"
            "        name = list(steps)[i % len(steps)]\n"
            "        samples[name].append(time_once(steps[name]))\n"
            "    return samples",
            "12 measurements",
        ),
        (
            "def measure_in_turns(steps, time_once, rounds):\n"
            "    samples = [[] for _ in steps]\n"
            "    for _ in range(rounds):\n"
            "        for i, step in enumerate(steps.values()):\n            samples[i].append(time_once(step))\n"
            "    return samples",
            "return a dictionary",
        ),
    ],
    "00.7": [
        (_with("achieved_gb_per_s", "H100", "131_072 / 4.37e-5 / 1e9"), "taken for seconds"),
        (_with("achieved_gb_per_s", "H100", "3_350"), "data sheet"),
        (_with("achieved_gb_per_s", "B200", "1.80e-8 / 131_072 * 1e9"), "upside down"),
        (_with("achieved_gb_per_s", "L4", "30_720 * 147_456 * (29.1 - 19.4) / 1e9"), "rates do not"),
        (_with("achieved_gb_per_s", "L4", "30_720 * 147_456 / (29.1 - 19.4) / 1e9"), "rates do not"),
        (_with("achieved_gb_per_s", "L4", "32_768 * 147_456 * 19.4 / 1e9"), "whole step"),
        (_with("achieved_gb_per_s", "L4", "32_768 * 147_456 / (1 / 19.4 - 1 / 29.1) / 1e9"), "30k more"),
        (_with("achieved_gb_per_s", "B200", "7_672"), "data sheet"),
        (_with("achieved_gb_per_s", "L4", "300"), "data sheet"),
        (_with("achieved_gb_per_s", "H100", "np.array([2_999.4])"), "array"),
    ],
}

RIGHT = {
    "00.1": [
        "floor_ms = {'decode': np.float64(floor_ms['decode']), 'prompt': torch.tensor(floor_ms['prompt'])}",
        "floor_ms = {key: float(f'{ms:.3g}') for key, ms in floor_ms.items()}",
    ],
    "00.2": [
        "ridge_flop_per_byte, tokens_at_ridge = round(ridge_flop_per_byte), np.int64(round(tokens_at_ridge))",
        "ridge_flop_per_byte, tokens_at_ridge = 0.9953 * ridge_flop_per_byte, 1.0047 * tokens_at_ridge",
    ],
    "00.3": ["no_sync_ms, sync_ms, hundred_ms = G.launch_us / 1e3, np.float32(sync_ms), G.kernel_ms"],
    "00.4": [
        "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
        "    def once():\n"
        "        synchronize()\n        start = now()\n        step()\n        synchronize()\n"
        "        return now() - start\n"
        "    return [once() for _ in range(warm_up + samples)][warm_up:]",
        "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
        "    for _ in range(warm_up):\n        step()\n"
        "    synchronize()\n"
        "    marks = []\n"
        "    for _ in range(samples):\n"
        "        start = now()\n        step()\n        synchronize()\n        marks.append(now() - start)\n"
        "    return tuple(marks)",
        "def time_step(step, now, synchronize, samples=20, warm_up=5):\n"
        "    for _ in range(warm_up):\n        step()\n"
        "    taken = np.empty(samples)\n"
        "    for i in range(samples):\n"
        "        synchronize()\n        start = now()\n        step()\n        synchronize()\n"
        "        taken[i] = now() - start\n"
        "    return taken",
    ],
    "00.5": [
        "def median_and_spread(samples):\n"
        "    low, middle, high = __import__('statistics').quantiles(samples, n=4, method='inclusive')\n"
        "    return [middle, (high - low) / 2]",
        "def median_and_spread(samples):\n"
        "    quartiles = torch.quantile(torch.tensor(samples, dtype=torch.float64),\n"
        "                               torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))\n"
        "    return quartiles[1], (quartiles[2] - quartiles[0]) / 2",
        "def median_and_spread(samples):\n"
        "    low, middle, high = np.percentile(samples, [25, 50, 75])\n"
        "    return np.array([middle, (high - low) / 2])",
    ],
    "00.6": [
        "def measure_in_turns(steps, time_once, rounds):\n"
        "    seen = [{name: time_once(step) for name, step in steps.items()} for _ in range(rounds)]\n"
        "    return {name: [turn[name] for turn in seen] for name in steps}",
        "def measure_in_turns(steps, time_once, rounds):\n"
        "    samples = {name: [] for name in steps}\n"
        "    for i in range(rounds):\n"
        "        for name in (list(steps) if i % 2 else list(steps)[::-1]):\n"
        "            samples[name].append(time_once(steps[name]))\n"
        "    return samples",
    ],
    "00.7": [
        "achieved_gb_per_s = {'H100': 3_000, 'B200': np.float32(7_280), 'L4': 264}",
        _with("achieved_gb_per_s", "L4", "30_000 * 147_456 / (1 / 19.4 - 1 / 29.1) / 1e9"),
    ],
}
