"""Run a grading kernel where a stranger's program can do no harm: bubblewrap, nothing secret to read, no network.

The kernel sees the system's programs, Python with its packages, `helpers/` and the course's downloads, all read-only,
and nothing else of the machine. What it can write is memory of limited size and a folder of its own, in which lie the
sockets over which it talks to the grader; it dies with it.
"""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

from helpers.paths import cache_dir
from tools.units import ROOT, CourseError

MISSING = "bubblewrap is not installed (Debian, Ubuntu: apt install bubblewrap; it exists for Linux only)"
KEPT_VARIABLES = ("LANG", "LC_ALL", "OMP_NUM_THREADS", "GOMP_SPINCOUNT", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
# What the dynamic linker, time zones and thread pools read besides /usr.
SYSTEM = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/nix/store",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
)
MB = 1 << 20
TEMPORARY_BYTES = 256 * MB  # each of home, /tmp and shared memory

# Its standard streams lead nowhere: /proc/1/fd inside would otherwise be the grader's own terminal or log.
STREAMS = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

# Kernels are started through this, so that limits hold from the first line on. Memory is counted as what a process
# writes to (RLIMIT_DATA): torch reserves far more addresses than it uses.
LIMITS = {"RLIMIT_CORE": 0, "RLIMIT_DATA": 8192 * MB, "RLIMIT_FSIZE": 256 * MB, "RLIMIT_NPROC": 1024}
LAUNCH = f"""
import resource, runpy
for name, value in {LIMITS}.items():
    kind = getattr(resource, name)
    most = resource.getrlimit(kind)[1]
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(kind, (value, value))
runpy.run_module("ipykernel_launcher", run_name="__main__")
"""


def problem() -> str:
    """Why kernels cannot be sandboxed on this machine; "" when they can."""
    found = shutil.which("bwrap")
    return _problem(found) if found else MISSING


@functools.cache
def _problem(found: str) -> str:
    said = _trial([found, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all", "true"])
    if said:
        return (
            f"bubblewrap cannot make a sandbox here: {said}. In a container it needs the right to create user "
            "namespaces; on Ubuntu 24.04 see the AppArmor setting kernel.apparmor_restrict_unprivileged_userns"
        )
    with fresh_folder() as folder:
        inside = [*_walls(folder, [], found), sys.executable, "-c", "import ipykernel, helpers"]
        said = _trial(inside)
    return f"Python does not start in the sandbox: {said}" if said else ""


def _trial(command: list[str]) -> str:
    outcome = subprocess.run(command, capture_output=True, text=True)
    lines = outcome.stderr.strip().splitlines() or [f"exit status {outcome.returncode}"]
    return lines[-1] if outcome.returncode else ""


@contextlib.contextmanager
def fresh_folder() -> Iterator[Path]:
    """A new folder, short of name, for one kernel's sockets; gone afterwards with all that was put there."""
    with tempfile.TemporaryDirectory(prefix=f"g-{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def remove_leftovers() -> None:
    """Remove the folders of runs that were killed before they could tidy up."""
    for folder in Path(tempfile.gettempdir()).glob("g-*-*"):
        number = folder.name.split("-")[1]
        if number.isdigit() and folder.stat().st_uid == os.getuid() and not psutil.pid_exists(int(number)):
            shutil.rmtree(folder, ignore_errors=True)


def confine(manager: KernelManager, folder: Path, hidden: Iterable[str], sandboxed: bool) -> None:
    """Make `manager` start its kernel in the sandbox, or plainly as this process, with its sockets in `folder`.

    `folder` is fresh, short and writable to the kernel. Each of `hidden` looks empty inside, wherever it lies.
    Raises `CourseError` where there is no sandbox to be had.
    """
    kernel = [sys.executable, "-m", "ipykernel_launcher"]
    address = str(folder.absolute() / "k")
    fits = len(address.encode()) <= 100  # a socket's path has 107 bytes at most, and a number is appended
    if fits:
        manager.transport, manager.ip = "ipc", address
    if sandboxed:
        reason = problem() if fits else f"{folder} is too long a path for sockets; set TMPDIR to a shorter one"
        if reason:
            raise CourseError(reason)
        kernel = [*_walls(folder, map(Path, hidden), "bwrap"), sys.executable, "-c", LAUNCH]
    manager.connection_file = str(folder / "kernel.json")
    manager.kernel_spec_manager = _OneSpec([*kernel, "--IPKernelApp.log_level=50", "-f", "{connection_file}"])


class _OneSpec(KernelSpecManager):
    """Knows one kernel, by any name."""

    def __init__(self, command: list[str]):
        super().__init__()
        self.command = command

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(argv=self.command, display_name=kernel_name, language="python", interrupt_mode="message")


def _walls(writable: Path, hidden: Iterable[Path], bubblewrap: str) -> list[str]:
    """bubblewrap's command up to the program: an empty machine, and bound into it what Python needs."""
    command = [bubblewrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    if "--disable-userns" in _options(bubblewrap):
        command += ["--unshare-user", "--disable-userns"]
    command += ["--ro-bind", "/usr", "/usr"]
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib32", "/lib64")):
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            command += ["--ro-bind", str(path), str(path)]
    sized = ["--size", str(TEMPORARY_BYTES)] if "--size" in _options(bubblewrap) else []
    command += ["--dev", "/dev", *sized, "--tmpfs", "/dev/shm", "--remount-ro", "/dev", "--proc", "/proc"]
    for path in ("/tmp", "/home/learner"):
        command += [*sized, "--tmpfs", path]
    bound = _bound()
    for path in sorted(bound):
        # Under its own name, link or not: an environment that is a link is looked for under both.
        command += ["--ro-bind", str(path.resolve()), str(path)]
    for path in sorted({p.resolve() for p in hidden}):
        if path.is_dir() and any(path.is_relative_to(seen.resolve()) for seen in bound):
            command += ["--tmpfs", str(path)]
    for path in sorted((ROOT / "helpers" / "exercises").glob("u[0-9][0-9].json")):  # hints, and the reference answers
        command += ["--ro-bind", "/dev/null", str(path)]
    command += ["--bind", str(writable), str(writable), "--remount-ro", "/", "--chdir", "/home/learner"]
    home = "/home/learner"
    variables = {k: os.environ[k] for k in KEPT_VARIABLES if k in os.environ}
    variables |= {
        "COURSE_CACHE": str(cache_dir()),
        "COURSE_HOME": f"{home}/.course",
        "HOME": home,
        "IPYTHONDIR": f"{home}/.ipython",
        "MPLCONFIGDIR": f"{home}/.matplotlib",
        "NUMBA_CACHE_DIR": f"{home}/.numba",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(ROOT),
        "USER": "learner",
    }
    for name, value in sorted(variables.items()):
        command += ["--setenv", name, value]
    return command


def _bound() -> set[Path]:
    python = (sys.base_prefix, sys.base_exec_prefix, sys.prefix, Path(sys.executable).parent)
    wanted = {Path(p).absolute() for p in (*python, *SYSTEM, ROOT / "helpers", cache_dir())}
    wanted |= {p.resolve() for p in wanted if not str(p).startswith("/etc/")}
    wanted = {p for p in wanted if p.exists() and not p.is_relative_to("/usr") and p != Path("/")}
    return {p for p in wanted if not any(p != above and p.is_relative_to(above) for above in wanted)}


@functools.cache
def _options(bubblewrap: str) -> str:
    return subprocess.run([bubblewrap, "--help"], capture_output=True, text=True).stdout
