"""Which device the course runs on, and what it can do: the *device card*.

Three numbers decide how long a step takes: how fast memory is read, how fast matrices are multiplied, and
what it costs to launch anything at all. The card holds them as measured here, not as printed on the box.
"""

import itertools
import json
import math
import os
import re
import tempfile
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import torch

from helpers import data, kernels, paths
from helpers.clock import computer, driver
from helpers.clock.computer import cache_bytes, free_bytes
from helpers.clock.timing import Clock, Timing, pretty_seconds
from helpers.numbers import prefixed
from helpers.progress import each

# Increase when a card means something else than before, so that old files are measured again.
CARD_VERSION = 3

# The buffer that is read to measure bandwidth, unless the caches are so large that it must be larger.
BUFFER_BYTES = {"cpu": 256 * 2**20, "mps": 1024 * 2**20, "cuda": 2048 * 2**20}
# However large a CPU's cache, its buffer is no larger than this: alone, for the card, and beside a sweep, whose own
# steps push it out of the cache between two turns. The course promises to run in 4 GB.
LARGEST_BUFFER_BYTES = 1280 * 2**20
LARGEST_BUFFER_BESIDE_BYTES = 512 * 2**20
# A buffer of at least so many caches is read from memory; of a smaller one the cache may hold too large a share.
CACHES_A_BUFFER = 4
# What a CPU reads in one go.
PART_BYTES = 32 * 2**20

# What the driver calls a device, whole, and the row of helpers/data/devices.json with its data sheet (None:
# the row has the same name). Slices of a GPU, laptop chips and names that leave the variant open match
# nothing: no sheet beats a wrong one.
SHEETS = (
    (r"Tesla T4|NVIDIA T4", "T4"),
    (r"NVIDIA A10G", "A10G"),
    (r"NVIDIA L4", "L4"),
    (r"NVIDIA GeForce RTX 3090", "RTX 3090"),
    (r"NVIDIA GeForce RTX 4090", "RTX 4090"),
    (r"NVIDIA GeForce RTX 5090", "RTX 5090"),
    (r"NVIDIA A100-SXM4?-40GB", "A100-40GB SXM"),
    (r"NVIDIA A100-SXM4?-80GB", "A100-80GB SXM"),
    (r"NVIDIA A100[ -]80GB PCIe|NVIDIA A100-PCIE-80GB", "A100-80GB PCIe"),
    (r"NVIDIA H100 80GB HBM3", "H100 SXM"),
    (r"NVIDIA H100 PCIe", "H100 PCIe"),
    (r"NVIDIA H100 NVL", "H100 NVL"),
    (r"NVIDIA H200", "H200 SXM"),
    (r"NVIDIA B200", "B200 SXM"),
    (r"AMD Instinct MI300X", "MI300X"),
    (r"NVIDIA GB10", "GB10 (DGX Spark)"),
    (r"Apple M\d( Pro| Max| Ultra)?", None),
)


_said: set[str] = set()


def pick(name: str = "auto") -> torch.device:
    """The device to run on: "auto" takes CUDA, else MPS, else the CPU; any other name is taken literally.

    Where a GPU is there that torch cannot use, "auto" says why, once, and takes the CPU. A GPU named by its number
    becomes the current one: Triton launches there, and streams, events and graphs are made there.

    Raises ValueError when the named device is not there, saying what is.
    """
    there = ["cpu"]
    if torch.backends.mps.is_available():
        there.insert(0, "mps")
    idle = driver.problem()
    if torch.cuda.is_available() and not idle:
        there.insert(0, "cuda")
    if name == "auto":
        if idle and idle not in _said:
            _said.add(idle)
            print(f"Note: this GPU is not used: {idle}.")
        return torch.device(there[0])
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in there:
        why = f" ({idle})" if idle and str(name).startswith("cuda") else ""
        raise ValueError(f"there is no device {name!r} here{why}; use one of: auto, {', '.join(there)}")
    if device.type == "cuda" and device.index is not None:
        if device.index >= (count := torch.cuda.device_count()):
            raise ValueError(f"there is no {name!r} here: this machine has {count} CUDA device(s)")
        torch.cuda.set_device(device)
    return device


def name_of(device: torch.device) -> str:
    """What the maker calls it, e.g. "NVIDIA L4" or "AMD EPYC 9654 96-Core Processor, 8 threads"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    chip = computer.cpu_name()
    # On a CPU the number of threads that torch uses is part of what is measured.
    return f"{chip} GPU" if device.type == "mps" else f"{chip}, {torch.get_num_threads()} threads"


@dataclass(frozen=True)
class DeviceCard:
    """What one device was measured to do.

    read_bytes_per_second     summing a buffer larger than any cache: of memory, where `from_memory` says so
    matmul_flops_per_second   square matrix products, by dtype name; dtypes that crawl are left out
    launch_seconds            one tiny operation, launched in a row with others
    decode_flops_per_second   the course's own loops, where they multiply on other units than torch; 0 elsewhere
    busy                      the samples disagreed: something else was using the device
    power                     "mains" or "battery" while it was measured, "" where the system does not say
    buffer_bytes, cache_bytes what was read, and what the last-level cache holds; 0 where it is not known
    """

    name: str
    device: str
    read_bytes_per_second: float
    matmul_flops_per_second: dict[str, float]
    launch_seconds: float
    measured_at: str
    busy: bool = False
    buffer_bytes: int = 0
    cache_bytes: int = 0
    decode_flops_per_second: float = 0.0
    power: str = ""
    version: int = field(default=CARD_VERSION)

    def __post_init__(self):
        rates = {
            "read_bytes_per_second": self.read_bytes_per_second,
            "launch_seconds": self.launch_seconds,
            **{f"matmul_flops_per_second[{k!r}]": v for k, v in self.matmul_flops_per_second.items()},
        }
        for what, value in rates.items():
            good = isinstance(value, int | float) and not isinstance(value, bool)
            if not (good and math.isfinite(value) and value > 0):
                raise ValueError(f"a device card needs a positive {what}, got {value!r}")
        if "float32" not in self.matmul_flops_per_second:
            raise ValueError("a device card needs matmul_flops_per_second['float32']")

    def floor_seconds(self, read_bytes: float = 0, flops: float = 0, dtype: str = "float32") -> float:
        """The least time in which so many bytes are read and so many FLOPs are done on this device.

        The slower of the two decides, for they overlap (roofline: Williams, Waterman, Patterson 2009).
        """
        for what, value in (("read_bytes", read_bytes), ("flops", flops)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{what} must be a finite number, at least 0; got {value}")
        return max(read_bytes / self.read_bytes_per_second, flops / self.rate(dtype))

    def rate(self, dtype: str = "float32") -> float:
        """FLOPs per second of a matrix product in `dtype`."""
        try:
            return self.matmul_flops_per_second[dtype]
        except KeyError:
            known = ", ".join(self.matmul_flops_per_second)
            raise ValueError(f"this card has no matmul rate for {dtype!r}; it has {known}") from None

    def decode_rate(self) -> float:
        """FLOPs per second of a decode step in float32.

        An Apple CPU multiplies matrices on a unit of its own, which torch uses and the course's loops do not.
        """
        return self.decode_flops_per_second or self.rate("float32")

    def ridge(self, dtype: str = "float32") -> float:
        """FLOPs per byte at which reading and multiplying take equally long."""
        return self.rate(dtype) / self.read_bytes_per_second

    @property
    def from_memory(self) -> bool:
        """Whether the bandwidth is that of memory: no more than a quarter of what was read fits the cache."""
        return not self.buffer_bytes or self.buffer_bytes >= CACHES_A_BUFFER * self.cache_bytes

    @property
    def sheet(self) -> dict | None:
        """The row of `helpers.data` with this device's data sheet, or None when it is not known."""
        return data_sheet(self.name)

    def show(self) -> None:
        """Print the card, beside the data sheet where there is one."""
        sheet = self.sheet or {}
        lines = [f"{self.name}  ({self.device}, measured {self.measured_at})"]
        lines.append(
            f"  reads memory        {prefixed(self.read_bytes_per_second, 'B/s'):>12}"
            + _beside(self.read_bytes_per_second, sheet.get("bandwidth_GBps"), 1e9, "GB/s")
        )
        for dtype, rate in self.matmul_flops_per_second.items():
            printed = sheet.get("dense_bf16_TFLOPs") if dtype in ("bfloat16", "float16") else None
            shown = f"{prefixed(rate, 'FLOP/s'):>12}" + _beside(rate, printed, 1e12, "TFLOP/s")
            lines.append(f"  multiplies {dtype:<9}{shown}")
        if self.decode_flops_per_second:
            lines.append(f"  in a decode step    {prefixed(self.decode_flops_per_second, 'FLOP/s'):>12}")
        lines.append(f"  launches one op in  {pretty_seconds(self.launch_seconds):>12}")
        lines.append(f"  ridge point         {self.ridge():>6.1f} FLOP/B in float32")
        if not sheet:
            lines.append("  (no data sheet of this device in the course's tables)")
        if not self.from_memory:
            lines.append(
                f"  The cache of {prefixed(self.cache_bytes, 'B')} may have held up to "
                f"{min(1.0, self.cache_bytes / self.buffer_bytes):.0%} of what was read: memory alone is slower."
            )
        if self.power == "battery":
            lines.append("  Measured on battery. Plugged in it may be faster: devices.card(refresh=True).")
        if self.busy:
            lines.append(
                "  The machine was busy: close what else runs, then\n"
                f'  from helpers.clock import devices; devices.card("{self.device}", refresh=True)'
            )
        print("\n".join(lines))


def _beside(measured: float, printed: float | None, size: float, unit: str) -> str:
    if printed is None:
        return ""
    return f"   data sheet {printed:g} {unit}: {measured / (printed * size):.0%} of it"


def data_sheet(name: str) -> dict | None:
    """The data sheet of a device by the name its driver gives it; None when the course has none."""
    rows = {row["id"]: row for row in data.load("devices")}
    # An Apple chip's sheet is its GPU's: its CPU cores alone do not reach the memory's bandwidth.
    chip = name.removesuffix(" GPU") if name.startswith("Apple") and name.endswith(" GPU") else name
    if name.startswith("Apple") and chip == name:
        return None
    for pattern, row in SHEETS:
        if re.fullmatch(pattern, chip):
            return rows.get(row or chip)
    return None


# Cards measured while the machine was busy, by device.
_of_this_session: dict[str, DeviceCard] = {}


def card(device: torch.device | str | None = None, refresh: bool = False, clock: Clock | None = None) -> DeviceCard:
    """The card of `device` (default: the one `pick` takes), measured once and then read from the cache.

    `refresh=True` measures again (under 10 s). A cache file that cannot be understood is measured again,
    one that cannot be written costs a line and nothing else. `clock` is for tests.

    Raises MemoryError when there is not enough memory for a buffer larger than the caches.
    """
    device = pick("auto") if device is None else pick(str(device))
    path = _card_path(device)
    known = _of_this_session.get(str(device)) or _read(path)
    if known is not None and not refresh:
        return known
    measured = measure_card(device, clock or Clock(device))
    if measured.busy:
        print("The machine is busy: this device card serves this session, and is not kept for the next.")
        _of_this_session[str(device)] = measured
    elif path is not None:
        _of_this_session.pop(str(device), None)
        _write(measured, path)
    return measured


def _card_path(device: torch.device) -> Path | None:
    slug = re.sub(r"[^a-z0-9]+", "-", f"{device.type} {name_of(device)} torch {torch.__version__}".lower())
    try:
        return paths.cache_dir() / f"card-{slug}.json"
    except OSError as error:
        print(f"The device card will not be kept: {error}")
        return None


def _read(path: Path | None) -> DeviceCard | None:
    if path is None or not path.exists():
        return None
    try:
        found = DeviceCard(**json.loads(path.read_text(encoding="utf-8")))
        if found.version != CARD_VERSION:
            raise ValueError(f"version {found.version}, this course writes {CARD_VERSION}")
        return found
    except (OSError, ValueError, TypeError, AttributeError) as error:
        print(f"The stored device card cannot be used ({error}): measuring again.")
        return None


def _write(card: DeviceCard, path: Path) -> None:
    """Write beside the target and rename, so that no reader ever sees half a file."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(card), file, indent=1)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        print(f"The device card could not be kept ({error}): it will be measured again next time.")


def measure_card(device: torch.device, clock: Clock, seconds: float = 5.0) -> DeviceCard:
    """Measure a card in about `seconds`.

    Memory is read three times, before, between and after the matrix products, and the best of the three
    medians counts: a neighbour can only make a device look slower.
    """
    crowded = _crowded()
    buffer = torch.ones(buffer_bytes(device) // 4, device=device)
    share = seconds / 10
    read, flops = [], {}
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    for dtype in each((None, *dtypes, None), f"measuring what {name_of(device)} can do, about {seconds:.0f} s"):
        if dtype is not None:
            rate = _matmul_rate(device, dtype, clock, at_least=0.1 * flops.get("float32", 0.0))
            if rate is not None:
                flops[str(dtype).removeprefix("torch.")] = rate
        if dtype in (None, torch.float32):
            read.append(_time_read(buffer, clock, share))
    best, read_bytes = min(read, key=lambda timed_and_bytes: timed_and_bytes[0].median)
    return DeviceCard(
        name=name_of(device),
        device=str(device),
        read_bytes_per_second=read_bytes / best.median,
        matmul_flops_per_second=flops,
        launch_seconds=_time_launch(device, clock, share / 2).median,
        measured_at=datetime.now().astimezone().isoformat(" ", "minutes"),
        busy=(crowded and device.type == "cpu") or best.verdict == "busy",  # a GPU does not share the CPU's load
        buffer_bytes=buffer.nbytes,
        cache_bytes=cache_bytes(device),
        decode_flops_per_second=_decode_rate(device, clock) if computer.is_apple_cpu(device) else 0.0,
        power=computer.power(),
    )


def _crowded() -> bool:
    """Whether clearly more work is waiting for the CPU than it has cores, where the system can tell.

    A steady neighbour leaves the samples in agreement, and wrong; the load average still shows it.
    """
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)


def buffer_bytes(device: torch.device, largest: int = LARGEST_BUFFER_BYTES) -> int:
    """Size of the buffer to read on `device`: many times what a cache holds, at most a quarter of the free memory.

    Args:
        largest: a CPU's buffer is no larger; a cache so large that it cannot hold CACHES_A_BUFFER of them is said on
            the device card.

    Raises MemoryError where too little is free.
    """
    cache = cache_bytes(device)
    wanted, least = max(BUFFER_BYTES[device.type], 2 * CACHES_A_BUFFER * cache), CACHES_A_BUFFER * cache
    if device.type == "cpu":
        wanted, least = min(wanted, largest), min(least, largest)
    free = free_bytes(device)
    size = wanted if free is None else min(wanted, free // 4)
    if size < least:
        raise MemoryError(
            f"to measure how fast {name_of(device)} reads memory, {4 * least / 1e9:.1f} GB must be free, "
            f"and only {free / 1e9:.1f} GB are: close other notebooks or programs and try again"
        )
    return size


class MemoryRead:
    """A step that reads memory and does next to nothing else; `nbytes` is what one call reads.

    A CPU goes round the buffer, so that each part of 32 MB has long left the cache when its turn comes again. One part
    takes less than a millisecond, of which a decode step that went before, its threads still waiting for work, can take
    a tenth: hence several a call. An accelerator, where a launch costs as much as reading a few MB, takes the whole
    buffer at once.
    """

    def __init__(self, buffer: torch.Tensor, parts: int):
        if buffer.device.type == "cpu":
            # The rest that is no whole part is left alone: every call reads the same number of bytes.
            split = [part for part in buffer.split(PART_BYTES // 4) if part.nbytes == PART_BYTES] or [buffer]
        else:
            split, parts = [buffer], 1
        self.nbytes = parts * split[0].nbytes
        self._parts, self._turns = parts, itertools.cycle(split)

    def __call__(self) -> torch.Tensor:
        if self._turns is None:
            raise RuntimeError("the buffer of this read was freed after its sweep; make another: devices.read_step")
        return [next(self._turns).sum() for _ in range(self._parts)][-1]

    def free(self) -> None:
        """Give the buffer back; a sweep does so with what it timed beside its engines."""
        self._turns = None


def read_step(
    device: torch.device, buffer: torch.Tensor | None = None, parts: int = 8, held: torch.Tensor | None = None
) -> tuple[MemoryRead, int]:
    """A step that reads memory, and the bytes that one call reads.

    Timed in turns with other steps, it says what the memory gave in those very minutes.

    Args:
        buffer: float32; made here when None, and smaller than for the card where caches are large, since the other
            steps of a sweep stream through the cache between two calls.
        parts: of 32 MB that a CPU reads in one call.
        held: a contiguous tensor that is there anyway. An accelerator, which reads all of it in one call, reads it in
            place of a buffer, if it is as many times its cache; a CPU, in whose cache parts of it may lie, does not.

    Raises MemoryError where too little is free.
    """
    if buffer is None and held is not None and device.type != "cpu":
        buffer = held.view(-1) if held.nbytes >= CACHES_A_BUFFER * cache_bytes(device) else None
    if buffer is None:
        buffer = torch.ones(buffer_bytes(device, LARGEST_BUFFER_BESIDE_BYTES) // 4, device=device)
    step = MemoryRead(buffer, parts)
    return step, step.nbytes


def _time_read(buffer: torch.Tensor, clock: Clock, seconds: float) -> tuple[Timing, int]:
    """How long one such step takes, and how many bytes it reads: a part alone, which a neighbour seldom hits."""
    step, read_bytes = read_step(buffer.device, buffer, parts=1)
    return clock.measure(step, seconds, progress=False), read_bytes


def _matmul_rate(
    device: torch.device, dtype: torch.dtype, clock: Clock, at_least: float, enough_seconds: float = 0.06
) -> float | None:
    """FLOPs per second of the best square product, sizes doubling until one takes `enough_seconds`.

    The best sample and not the median: a product keeps all cores in step, so that a neighbour on one of them
    stops them all, and what is wanted is the ceiling. None for a dtype that this device does not have, or
    has at less than `at_least`.
    """
    size, rate = 256, 0.0
    while size <= 8192:
        try:
            # Random numbers: of ones and zeros too few wires change, and a chip that saves that power clocks higher.
            a, b = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
            timed = clock.measure(lambda a=a, b=b: a @ b, enough_seconds, min_samples=5, progress=False)
        except (RuntimeError, TypeError):
            return None
        rate = max(rate, 2 * size**3 / timed.best)
        if timed.best > enough_seconds:
            break
        size *= 2
    return rate if rate >= at_least else None


def _decode_rate(device: torch.device, clock: Clock, seconds: float = 0.2) -> float:
    """FLOPs per second of the loops that a decode step of four sequences runs, on weights of 1 MB (from a cache)."""
    x, weight = torch.rand(4, 512, device=device), torch.rand(512, 512, device=device)
    linear = kernels.select(device).linear
    timed = clock.measure(lambda: linear(x, weight), seconds, progress=False)
    return 2 * x.shape[0] * weight.numel() / timed.best


def _time_launch(device: torch.device, clock: Clock, seconds: float, ops: int = 100) -> Timing:
    """Seconds of one tiny operation when `ops` are launched in a row, as the layers of a decoder are."""
    tiny = torch.zeros(1, device=device)

    def launches() -> None:
        for _ in range(ops):
            tiny.add_(1.0)

    timed = clock.measure(launches, seconds, progress=False)
    return Timing(tuple(s / ops for s in timed.samples))
