"""The device card: what it refuses, what it keeps, and that it measures what it says."""

import dataclasses
import json
import math

import pytest
import torch

from helpers import data
from helpers.clock import computer, devices
from helpers.clock.devices import DeviceCard
from helpers.clock.timing import Timing

CPU = torch.device("cpu")


class FakeClock:
    """Runs every step once and says it took so long; the first dimension of a product decides its time."""

    def __init__(self, read_seconds=(0.010, 0.008, 0.009), spread=0.0, launch_seconds=2e-6):
        self.read_seconds = list(read_seconds)
        self.spread = spread
        self.launch_seconds = launch_seconds
        self.steps = 0

    def measure(self, step, budget_seconds=2.0, min_samples=20, floor_seconds=None, progress=True):
        self.steps += 1
        result = step()
        if result is None:
            seconds = 100 * self.launch_seconds
        elif result.ndim == 2:
            slow = {torch.float32: 1.0, torch.bfloat16: 0.5, torch.float16: 100.0}[result.dtype]
            seconds = slow * 2 * result.shape[0] ** 3 / 1e11
        else:
            seconds = self.read_seconds.pop(0)
        return Timing(tuple(seconds * (1 + self.spread * (i % 2)) for i in range(20)))


@pytest.fixture(autouse=True)
def small_machine(monkeypatch, tmp_path):
    """A cache of 1 MB keeps the buffers small; nothing is written outside the test's own folder."""
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    monkeypatch.setattr(devices, "cache_bytes", lambda device: 2**20)
    monkeypatch.setitem(devices.BUFFER_BYTES, "cpu", 64 * 2**20)
    monkeypatch.setattr(devices, "_crowded", lambda: False)
    monkeypatch.setattr(devices, "_of_this_session", {})


def a_card(**changes):
    card = DeviceCard("NVIDIA L4", "cuda", 250e9, {"float32": 20e12, "bfloat16": 100e12}, 4e-6, "today")
    return dataclasses.replace(card, **changes)


# --- picking ------------------------------------------------------------------------------------


def test_auto_takes_what_is_there():
    assert devices.pick("auto").type in {"cuda", "mps", "cpu"}
    assert devices.pick("cpu") == CPU


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "", "meta"])
def test_a_device_that_is_not_there_is_refused_with_what_is(name):
    with pytest.raises(ValueError, match="there is no"):
        devices.pick(name)


# --- the card itself ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"read_bytes_per_second": float("nan")},
        {"read_bytes_per_second": -1.0},
        {"read_bytes_per_second": "fast"},
        {"launch_seconds": 0.0},
        {"launch_seconds": math.inf},
        {"matmul_flops_per_second": {"float32": float("nan")}},
        {"matmul_flops_per_second": {"bfloat16": 1e12}},
    ],
)
def test_a_card_with_a_senseless_number_is_refused(changes):
    with pytest.raises(ValueError, match="device card needs"):
        a_card(**changes)


def test_floor_is_the_slower_of_reading_and_multiplying():
    card = a_card()
    assert card.floor_seconds(read_bytes=250e9) == pytest.approx(1.0)
    assert card.floor_seconds(read_bytes=1, flops=40e12) == pytest.approx(2.0)
    assert card.floor_seconds(flops=50e12, dtype="bfloat16") == pytest.approx(0.5)
    assert card.ridge("bfloat16") == pytest.approx(400)
    # At the ridge both take equally long.
    assert card.floor_seconds(read_bytes=1e9) == pytest.approx(card.floor_seconds(flops=1e9 * card.ridge()))


def test_floor_refuses_what_is_no_count():
    with pytest.raises(ValueError, match="read_bytes"):
        a_card().floor_seconds(read_bytes=float("nan"))
    with pytest.raises(ValueError, match="flops"):
        a_card().floor_seconds(flops=-1)
    with pytest.raises(ValueError, match="no matmul rate for 'int8'; it has float32, bfloat16"):
        a_card().floor_seconds(flops=1, dtype="int8")


def test_shown_beside_the_data_sheet(capsys):
    a_card().show()
    shown = capsys.readouterr()
    assert "250 GB/s" in shown.out and "data sheet 300 GB/s: 83% of it" in shown.out
    assert "data sheet 121 TFLOP/s: 83% of it" in shown.out and shown.err == ""
    a_card(name="Unheard of", busy=True).show()
    shown = capsys.readouterr().out
    assert "no data sheet" in shown and "busy" in shown


@pytest.mark.parametrize(
    "driver, sheet",
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA B200", "B200 SXM"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("Apple M1 Pro GPU", "Apple M1 Pro"),
        ("Apple M2, 8 threads", None),  # the sheet is its GPU's: CPU cores alone do not reach its bandwidth
        ("NVIDIA L40S", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GB200", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H200 NVL", None),
        ("Apple M3 Max GPU", None),  # sold with two bandwidths
        ("AMD EPYC, 2 threads", None),
    ],
)
def test_drivers_name_to_data_sheet(driver, sheet):
    found = devices.data_sheet(driver)
    assert (found and found["id"]) == sheet


def test_every_sheet_named_is_in_the_tables():
    known = {row["id"] for row in data.load("devices")}
    assert {sheet for _, sheet in devices.SHEETS if sheet} <= known


# --- measuring ----------------------------------------------------------------------------------


def test_card_holds_the_best_median_and_leaves_out_a_dtype_that_crawls():
    card = devices.measure_card(CPU, FakeClock(read_seconds=(0.010, 0.008, 0.009)))
    assert card.read_bytes_per_second == pytest.approx(32 * 2**20 / 0.008)
    assert card.matmul_flops_per_second == pytest.approx({"float32": 1e11, "bfloat16": 2e11})
    assert card.launch_seconds == pytest.approx(2e-6)
    assert not card.busy


def test_a_read_beside_other_steps_takes_several_parts_and_counts_them():
    buffer = torch.ones(32 * 2**20)
    step, read_bytes = devices.read_step(CPU, buffer, parts=3)
    assert read_bytes == 3 * 32 * 2**20 and step() == 8 * 2**20
    assert devices.read_step(CPU, buffer)[1] == 8 * 32 * 2**20


def test_an_accelerator_reads_what_is_held_anyway_where_that_is_much_more_than_its_cache(monkeypatch):
    monkeypatch.setattr(devices, "buffer_bytes", lambda device, largest: 4)
    monkeypatch.setattr(devices, "cache_bytes", lambda device: 1_000)
    for numbers, kind, read in ((1_000, "meta", 4_000), (999, "meta", 4), (1_000, "cpu", 8 * 4)):
        held = torch.ones(numbers, device=kind)
        assert devices.read_step(torch.device(kind), held=held)[1] == read, (numbers, kind)


@pytest.mark.parametrize("mib, parts", [(264, 8), (33, 1), (8, 1)])
def test_a_rest_that_is_no_whole_part_is_not_counted_as_one(mib, parts):
    buffer = torch.empty(mib * 2**18)
    step, read_bytes = devices.read_step(CPU, buffer, parts=parts)
    read = []
    buffer_sum = torch.Tensor.sum

    def count(part):
        read.append(part.nbytes)
        return buffer_sum(part[:1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "sum", count)
        for _ in range(3):
            step()
    assert sum(read) == 3 * read_bytes, "every call reads what it says"


def gib(number):
    return int(number * 2**30)


@pytest.mark.parametrize(
    "cache, alone, beside, from_memory",
    [
        (gib(1 / 32), gib(1 / 4), gib(1 / 4), True),
        (300 * 2**20, devices.LARGEST_BUFFER_BYTES, devices.LARGEST_BUFFER_BESIDE_BYTES, True),
        (gib(1.125), devices.LARGEST_BUFFER_BYTES, devices.LARGEST_BUFFER_BESIDE_BYTES, False),
    ],
)
def test_a_large_cache_does_not_make_the_buffer_large_and_the_card_says_what_it_read(
    monkeypatch, capsys, cache, alone, beside, from_memory
):
    monkeypatch.setattr(devices, "cache_bytes", lambda device: cache)
    monkeypatch.setattr(devices, "free_bytes", lambda device: None)
    monkeypatch.setitem(devices.BUFFER_BYTES, "cpu", gib(1 / 4))
    assert devices.buffer_bytes(CPU) == alone < 1.4e9
    assert devices.buffer_bytes(CPU, devices.LARGEST_BUFFER_BESIDE_BYTES) == beside < 0.6e9
    card = a_card(device="cpu", buffer_bytes=alone, cache_bytes=cache)
    assert card.from_memory is from_memory
    card.show()
    assert ("memory alone is slower" in capsys.readouterr().out) is not from_memory


def test_card_of_this_machine_is_a_card(capsys):
    card = devices.card("cpu", refresh=True)
    assert card.device == "cpu" and card.read_bytes_per_second > 1e8
    assert card.launch_seconds < 1e-3
    assert capsys.readouterr().err == ""


def test_card_is_measured_once_and_then_read():
    clock = FakeClock()
    first = devices.card("cpu", clock=clock)
    steps = clock.steps
    assert devices.card("cpu", clock=clock) == first and clock.steps == steps
    assert devices.card("cpu", refresh=True, clock=FakeClock()) and clock.steps == steps


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"name": "x"}', "\x00\xff"],
)
def test_a_corrupt_file_is_measured_again_with_a_line_saying_so(content, tmp_path, capsys):
    devices.card("cpu", clock=FakeClock())
    (path,) = tmp_path.glob("card-*.json")
    path.write_text(content, encoding="latin-1")
    again = devices.card("cpu", clock=FakeClock())
    assert "cannot be used" in capsys.readouterr().out
    assert json.loads(path.read_text())["launch_seconds"] == again.launch_seconds


@pytest.mark.parametrize("change", [{"version": 0}, {"launch_seconds": -1}, {"read_bytes_per_second": None}])
def test_a_card_of_another_version_or_with_nonsense_is_measured_again(change, tmp_path, capsys):
    devices.card("cpu", clock=FakeClock())
    (path,) = tmp_path.glob("card-*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    devices.card("cpu", clock=FakeClock())
    assert "measuring again" in capsys.readouterr().out


def test_a_full_disk_costs_a_line_and_no_half_file(monkeypatch, tmp_path, capsys):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(devices.json, "dump", full)
    assert devices.card("cpu", clock=FakeClock()).name
    assert "could not be kept" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_made_costs_a_line(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "file" / "cache"))
    assert devices.card("cpu", clock=FakeClock()).name
    assert "will not be kept" in capsys.readouterr().out


def test_a_busy_machine_gives_a_card_for_this_session_only(tmp_path, capsys, monkeypatch):
    clock = FakeClock(spread=0.5)
    card = devices.card("cpu", clock=clock)
    assert card.busy and "busy" in capsys.readouterr().out
    assert list(tmp_path.glob("card-*")) == []
    steps = clock.steps
    assert devices.card("cpu", clock=clock) is card and clock.steps == steps
    card.show()
    said = capsys.readouterr().out.splitlines()[-1].strip()
    monkeypatch.setattr(devices, "measure_card", lambda device, _: a_card(device=str(device)))
    exec(said, {})  # as it is printed, wherever it is pasted
    assert not devices.card("cpu").busy


def test_too_little_memory_says_how_much_is_needed(monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda _: 2**20)
    with pytest.raises(MemoryError, match="must be free.*close other notebooks"):
        devices.card("cpu", clock=FakeClock())


VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               100000.
Pages active:                             400000.
Pages inactive:                           300000.
Pages speculative:                          5000.
Pages wired down:                         150000.
Pages purgeable:                            1000.
"Translation faults":                  123456789.
"""


def on_a_mac(monkeypatch, answers):
    monkeypatch.setattr(computer.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(computer.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(computer, "asked", lambda *command: answers.get(" ".join(command), ""))


def test_on_a_mac_what_other_programs_use_counts(monkeypatch):
    """Its GPU has the same memory; here 6.65 GB of it are left of the 20 that Metal recommends."""
    on_a_mac(monkeypatch, {"vm_stat": VM_STAT})
    left = 16384 * 406_000
    assert devices.free_bytes(CPU) == left
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 20e9)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 1e9)
    assert devices.free_bytes(torch.device("mps")) == left
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 18e9)
    assert devices.free_bytes(torch.device("mps")) == 2e9
    on_a_mac(monkeypatch, {})
    assert devices.free_bytes(CPU) is None


def test_an_apple_cpu_has_a_rate_for_its_loops_and_every_card_its_power(monkeypatch, capsys):
    """Where torch multiplies on a unit that the loops do not have: 4 rows, 0.01 s, in this clock's time."""
    assert devices.measure_card(CPU, FakeClock()).decode_flops_per_second == 0
    assert a_card().decode_rate() == 20e12
    asks = {"pmset -g batt": "Now drawing from 'Battery Power'\n -InternalBattery-0 77%; discharging"}
    on_a_mac(monkeypatch, asks | {"sysctl -n machdep.cpu.brand_string": "Apple M2\n"})
    card = devices.measure_card(CPU, FakeClock())
    seconds = 2 * 4**3 / 1e11
    assert card.decode_rate() == card.decode_flops_per_second == pytest.approx(2 * 4 * 512 * 512 / seconds)
    assert card.rate() == pytest.approx(1e11) and card.name.startswith("Apple M2, ") and card.sheet is None
    card.show()
    shown = capsys.readouterr().out
    assert "in a decode step" in shown and "Measured on battery" in shown
    on_a_mac(monkeypatch, {"pmset -g batt": "Now drawing from 'AC Power'"})
    assert computer.power() == "mains"
    on_a_mac(monkeypatch, {})
    assert computer.power() == ""


def test_last_level_caches_that_a_process_may_use_add_up(tmp_path):
    """Two chips with a cache of 32 MB each, one of 1 MB for each core, and a core that is not ours."""

    def core(number, shared):
        for index, (level, size, cores) in enumerate(((1, "32K", number), (2, "1024K", number), (3, "32768K", shared))):
            folder = tmp_path / f"cpu{number}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, content in {"level": level, "size": size, "shared_cpu_list": cores}.items():
                (folder / name).write_text(f"{content}\n")

    for number, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        core(number, shared)
    assert computer._last_level_bytes(tmp_path, [0]) == computer._last_level_bytes(tmp_path, [0, 1]) == 32 * 2**20
    assert computer._last_level_bytes(tmp_path, range(4)) == 64 * 2**20
    assert computer._last_level_bytes(tmp_path, [9]) == 0
    assert computer.cache_bytes(CPU) > 0


def test_free_memory_is_a_count_or_unknown():
    free = devices.free_bytes(CPU)
    assert free is None or free > 0


def test_what_torch_keeps_of_a_gpus_memory_and_what_only_cycles_hold_counts_as_free(monkeypatch):
    """A captured step that nothing needs any more is in a cycle; what it held, torch's allocator keeps for later."""
    memory = {"used": 3, "kept": 0}

    class Step:
        def __init__(self):
            self.again = self

        def __del__(self):
            memory.update(used=memory["used"] - 2, kept=memory["kept"] + 2)

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 - memory["used"] - memory["kept"], 8))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: memory.update(kept=0))
    Step()
    assert devices.free_bytes(torch.device("cuda")) == 7


def test_a_gpu_named_by_its_number_becomes_the_current_one(monkeypatch):
    """Triton launches on the current device, whichever device its tensors are on."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(devices.driver, "problem", lambda: "")
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert devices.pick("cuda") == torch.device("cuda") and not chosen
    assert devices.pick("cuda:1") == torch.device("cuda", 1) and chosen == [torch.device("cuda", 1)]
    with pytest.raises(ValueError, match="no 'cuda:2' here: this machine has 2"):
        devices.pick("cuda:2")


def test_the_load_of_the_cpu_does_not_make_a_gpus_card_busy(monkeypatch):
    monkeypatch.setattr(devices, "_crowded", lambda: True)
    monkeypatch.setattr(devices, "buffer_bytes", lambda device: 2**20)
    monkeypatch.setattr(devices, "cache_bytes", lambda device: 2**18)
    monkeypatch.setattr(devices, "name_of", lambda device: "a device")
    assert devices.measure_card(CPU, FakeClock()).busy
    for make in ("ones", "zeros", "rand"):
        plain = getattr(torch, make)
        monkeypatch.setattr(torch, make, lambda *size, plain=plain, device=None, **options: plain(*size, **options))
    assert not devices.measure_card(torch.device("cuda"), FakeClock()).busy
