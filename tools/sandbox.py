"""Run a grading kernel where a stranger's program can do no harm: bubblewrap, nothing secret to read, no network.

The kernel sees the machine read-only. Home directories, temporary folders, sockets of services, the course's solutions
and the other submissions are empty to it; it talks to nbgrader over sockets in one folder and dies with it.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from traitlets.config import Config

from helpers.paths import cache_dir
from tools.units import ROOT, CourseError

HIDDEN_IN_PROJECT = (".git", "build", "solutions", "submissions", "tests", "work")
KEPT_VARIABLES = ("LANG", "LC_ALL", "OMP_NUM_THREADS", "GOMP_SPINCOUNT", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def problem(bubblewrap: str = "bwrap") -> str:
    """Why kernels cannot be sandboxed on this machine; "" when they can."""
    found = shutil.which(bubblewrap)
    if not found:
        return "bubblewrap is not installed (Debian, Ubuntu: apt install bubblewrap; it exists for Linux only)"
    trial = [found, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all", "true"]
    outcome = subprocess.run(trial, capture_output=True, text=True)
    if outcome.returncode:
        said = outcome.stderr.strip() or f"exit status {outcome.returncode}"
        return (
            f"bubblewrap cannot make a sandbox here: {said}. In a container it needs the right to create user "
            "namespaces; on Ubuntu 24.04 see the AppArmor setting kernel.apparmor_restrict_unprivileged_userns"
        )
    return ""


def settings(course: Path, sockets: Path, hidden: list[Path], bubblewrap: str = "bwrap") -> Config:
    """nbgrader settings that start every kernel in the sandbox; grade with them inside `use`.

    `course` and each of `hidden` look empty inside. `sockets` is a short, existing folder for the kernel's sockets.
    Raises `CourseError` where there is no sandbox to be had.
    """
    reason = problem(bubblewrap)
    if reason:
        raise CourseError(reason)
    for name in ("kernels/python3", "run", "home"):
        (sockets / name).mkdir(parents=True, exist_ok=True)
    spec = {
        "argv": [*_command(course, sockets, hidden, bubblewrap), "-f", "{connection_file}"],
        "display_name": "Python 3 (sandboxed)",
        "interrupt_mode": "message",
        "language": "python",
    }
    (sockets / "kernels" / "python3" / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    config = ipc(sockets)
    if not config:
        raise CourseError(f"{sockets} is too long a path for sockets; set TMPDIR to a shorter one")
    return config


def ipc(sockets: Path) -> Config:
    """Settings for kernels that listen on sockets in the folder `sockets` instead of TCP ports.

    Empty, so that kernels use TCP, when the folder's path is too long for a socket (107 bytes).
    """
    address = str((sockets / "run").absolute() / "k")
    if len(address.encode()) > 100:
        return Config()
    config = Config()
    config.KernelManager.transport = "ipc"
    config.KernelManager.ip = address
    return config


@contextlib.contextmanager
def use(sockets: Path) -> Iterator[None]:
    """Inside the `with`, this process starts its kernels from, and keeps their connection files in, `sockets`."""
    (sockets / "run").mkdir(parents=True, exist_ok=True)
    before = os.environ.get("JUPYTER_PATH"), tempfile.tempdir
    os.environ["JUPYTER_PATH"] = str(sockets)
    # nbclient puts the connection file into the temporary folder, which the sandbox hides.
    tempfile.tempdir = str(sockets / "run")
    try:
        yield
    finally:
        tempfile.tempdir = before[1]
        if before[0] is None:
            del os.environ["JUPYTER_PATH"]
        else:
            os.environ["JUPYTER_PATH"] = before[0]


def _command(course: Path, sockets: Path, hidden: list[Path], bubblewrap: str) -> list[str]:
    home = str(sockets / "home")
    command = [bubblewrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    command += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    masks = [Path(p) for p in ("/home", "/root", "/tmp", "/var/tmp", "/run", "/mnt", "/media", "/srv")]
    masks.append(Path.home())
    for mask in masks:
        if mask.is_dir() and not mask.is_symlink():
            command += ["--tmpfs", str(mask)]
    # Python, the packages and helpers/ may lie below what was just hidden.
    needed = {Path(sys.base_prefix).resolve(), Path(sys.prefix).absolute(), Path(sys.executable).absolute().parent}
    for folder in sorted(needed | {ROOT}):
        command += ["--ro-bind", str(folder), str(folder)]
    cache = cache_dir()
    if cache.is_dir():
        command += ["--ro-bind", str(cache), str(cache)]
    private = [ROOT / name for name in HIDDEN_IN_PROJECT] + [course, *hidden]
    for mask in sorted({p.resolve() for p in private if p.is_dir()}):
        command += ["--tmpfs", str(mask)]
    command += ["--bind", str(sockets / "run"), str(sockets / "run"), "--tmpfs", home, "--chdir", home]
    variables = {k: os.environ[k] for k in KEPT_VARIABLES if k in os.environ}
    variables |= {
        "COURSE_CACHE": str(cache),
        "COURSE_HOME": f"{home}/.course",
        "HOME": home,
        "MPLCONFIGDIR": f"{home}/.matplotlib",
        "NUMBA_CACHE_DIR": f"{home}/.numba",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(ROOT),
    }
    for name, value in sorted(variables.items()):
        command += ["--setenv", name, value]
    return [*command, sys.executable, "-m", "ipykernel_launcher", "--IPKernelApp.log_level=50"]
