"""What the operating system says about this computer: processor, memory, caches, power."""

import gc
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import torch


def cpu_name() -> str:
    """What its maker calls this computer's processor."""
    if platform.system() == "Darwin":
        if name := asked("sysctl", "-n", "machdep.cpu.brand_string").strip():
            return name
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        info = ""
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", info, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine() or "CPU"


def free_bytes(device: torch.device) -> int | None:
    """Memory that can still be allocated on `device`, as far as the system says; None when it does not.

    Where a GPU shares the computer's memory, so do all other programs. What torch keeps of a GPU's memory for later,
    and what only cycles still hold (captured steps and their caches), is given back first and so counts as free.
    """
    if device.type != "cpu":
        gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    limits = []
    if device.type == "mps":
        torch.mps.empty_cache()
        limits.append(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    if platform.system() == "Darwin":
        limits.append(_available(asked("vm_stat")))
    else:
        try:
            found = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
            if found:
                limits.append(int(found[1]) * 1024)
            group = Path("/sys/fs/cgroup")
            limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
        except (OSError, ValueError):
            pass  # no control group, or a group without a limit ("max")
    return min((limit for limit in limits if limit is not None), default=None)


def _available(vm_stat: str) -> int | None:
    """Bytes that macOS would give to a program, from what `vm_stat` prints: free pages, and those it can drop."""
    size = re.search(r"page size of (\d+) bytes", vm_stat)
    pages = re.findall(r"^Pages (?:free|inactive|speculative|purgeable):\s+(\d+)\.", vm_stat, re.MULTILINE)
    return int(size[1]) * sum(map(int, pages)) if size and pages else None


def cache_bytes(device: torch.device) -> int:
    """Size of the last cache level, bytes; where nobody says it, 32 MB for a CPU and 128 MB for an accelerator.

    Of a CPU with several last-level caches it is the sum of those whose cores this process may use, since every core
    keeps its own part of what all of them read together.
    """
    if device.type == "cuda":
        return getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or 128 * 2**20
    if device.type != "cpu":
        return 128 * 2**20
    may_use = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return _last_level_bytes(Path("/sys/devices/system/cpu"), may_use) or 32 * 2**20


def _last_level_bytes(cpus: Path, may_use: Iterable[int]) -> int:
    """The caches of the highest level that Linux lists for these cores, added up; 0 where it lists none."""
    sizes = {}
    for cpu in may_use:
        for cache in (cpus / f"cpu{cpu}" / "cache").glob("index*"):
            try:
                level, shared = (int((cache / "level").read_text()), (cache / "shared_cpu_list").read_text())
                number, unit = re.fullmatch(r"(\d+)([KMG]?)\s*", (cache / "size").read_text()).groups()
            except (OSError, ValueError, AttributeError):
                continue
            sizes.setdefault(level, {})[shared] = int(number) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[unit]
    return sum(sizes[max(sizes)].values()) if sizes else 0


def power() -> str:
    """What this computer runs on: "mains", "battery", or "" where the system does not say."""
    if platform.system() == "Darwin":
        said = re.search(r"drawing from '(AC|Battery) Power'", asked("pmset", "-g", "batt"))
        return {"AC": "mains", "Battery": "battery"}[said[1]] if said else ""
    found = {}
    for supply in Path("/sys/class/power_supply").glob("*"):
        try:
            found[(supply / "type").read_text().strip()] = supply
        except OSError:
            continue
    try:
        if "Battery" in found and (found["Battery"] / "status").read_text().strip() == "Discharging":
            return "battery"
    except OSError:
        return ""
    return "mains" if found else ""


def asked(*command: str) -> str:
    """What one of the system's commands prints; "" where there is none of that name."""
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return ""


def is_apple_cpu(device: torch.device) -> bool:
    return device.type == "cpu" and (platform.system(), platform.machine()) == ("Darwin", "arm64")
