"""How many threads compute and how they wait: environment variables that OpenMP and numba read when they are loaded.

A variable that is set already stays as it is.
"""

import platform
import subprocess
from collections.abc import Callable, MutableMapping


def settle(environment: MutableMapping[str, str]) -> None:
    """Set what `settings` says in `environment`, usually os.environ, before torch or numba is imported."""
    for name, value in settings(platform.system()).items():
        environment.setdefault(name, value)
    # numba makes threads of its own on a Mac, and they should not be more than torch's.
    if "OMP_NUM_THREADS" in environment and "NUMBA_THREADING_LAYER" in environment:
        environment.setdefault("NUMBA_NUM_THREADS", environment["OMP_NUM_THREADS"])


def settings(system: str, performance_cores: Callable[[], int | None] | None = None) -> dict[str, str]:
    """Variables and values for `system`, as platform.system() calls it."""
    if system != "Darwin":
        # A decode step hands work to the cores some hundred times. GNU OpenMP, which torch and numba share on Linux,
        # lets the waiting threads spin in between: for milliseconds by default, which starves everybody on a machine
        # that is shared, or not at all, and then to wake one costs up to 30 µs. A fraction of a ms serves both.
        # The Makefile sets it too, for notebooks that import torch first.
        #
        # Linux gives out memory in pages of 4 kB, and looking up where each of them lies slows whoever streams through
        # hundreds of megabytes. torch asks for pages of 2 MB if told so before it first needs one: on two EPYC cores a
        # decode step gains 7 %.
        return {"GOMP_SPINCOUNT": "10000", "THP_MEM_ALLOC_ENABLE": "1"}
    # numba's OpenMP layer would load a second library beside the one in torch's wheel, and the process may abort;
    # its own work queue needs none. torch's threads must not spin while numba's work, as they do for 200 ms by default.
    found = {"NUMBA_THREADING_LAYER": "workqueue", "KMP_BLOCKTIME": "1"}
    # A step waits for its slowest thread, and an efficiency core would be that one.
    cores = (performance_cores or _performance_cores)()
    return found | ({"OMP_NUM_THREADS": str(cores)} if cores else {})


def _performance_cores() -> int | None:
    """None on an Intel Mac, whose cores are alike."""
    try:
        asked = subprocess.run(["sysctl", "-n", "hw.perflevel0.physicalcpu"], capture_output=True, text=True).stdout
    except OSError:
        return None
    return int(asked) if asked.strip().isdigit() else None
