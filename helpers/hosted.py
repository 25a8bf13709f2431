"""Readies a machine on which `make` never ran (Colab, Kaggle) and where a notebook's first cell has fetched the course.

Must not import anything but Python's own modules before `prepare` has installed what is missing.
"""

import importlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

from helpers import loading
from helpers.friendly import Friendly

COURSE = Path(__file__).resolve().parents[1]
DRIVE = Path("/content/drive/MyDrive")  # where Colab puts a learner's own disk, once they have mounted it
SPELT_AS_PIP_WANTS = re.compile(r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*(\+[a-z0-9.]+)?")


class CannotPrepare(Friendly, RuntimeError):
    """Something the learner has to switch on or choose; the message says what."""


def prepare(unit: str) -> None:
    """Install what the library needs and this machine lacks, and say where predictions are kept.

    Nothing that is installed is replaced: a notebook service's own torch, ipykernel and ipywidgets fit its machine and
    its pages, and others do not. To call it again changes nothing.

    Args:
        unit: its number, e.g. "02"; by it a cell that fails knows which exercise it waits for.

    Raises:
        CannotPrepare: pip could not install; the message says what to do.
    """
    lacking = missing()
    if lacking:
        print(f"Installing {', '.join(lacking)} …", flush=True)
        try:
            install(lacking)
        except CannotPrepare:
            _forget()  # the cell, run again, would find the library and take the machine for ready
            raise
    os.environ.setdefault("COURSE_HOME", str((DRIVE if DRIVE.parent.is_dir() else COURSE.parent) / ".course"))
    os.environ["COURSE_UNIT"] = unit
    loading.announce()
    print(f"Ready. Your predictions are kept in {os.environ['COURSE_HOME']}", end="")
    if Path("/content").is_dir() and not DRIVE.parent.is_dir():
        print(", and go with this machine: to keep them, mount your Drive before you run this cell", end="")
    print(".")
    if unfit := unfit_gpu():
        print(unfit)


def missing(requirements: list[str] | None = None) -> list[str]:
    """Those of `requirements` (default: what pyproject.toml says the library needs) that are not installed at all."""
    if requirements is None:
        requirements = tomllib.loads((COURSE / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    there = {_plain(name) for name in installed()}
    return [r for r in requirements if _plain(re.match(r"[\w.-]+", r)[0]) not in there]


def installed() -> dict[str, str]:
    """{name: version} of every package that this Python finds; of two of one name the one that it imports."""
    found = {}
    for package in metadata.distributions():
        found.setdefault(package.metadata["Name"] or "", package.version)
    return found


def install(requirements: list[str]) -> None:
    """pip install `requirements` and what they need in turn, with every package that is there held as it is."""
    held = [f"{name}=={version}" for name, version in installed().items() if SPELT_AS_PIP_WANTS.fullmatch(version)]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "held.txt"
        constraints.write_text("\n".join(held), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(constraints)]
        done = subprocess.run([*command, *requirements], capture_output=True, text=True)
    if done.returncode:
        raise CannotPrepare(
            f"pip could not install {', '.join(requirements)}. Is there a network? On Kaggle: Settings → Turn on "
            "internet, for which Kaggle wants a verified phone number. Then run this cell again.\n"
            + "\n".join(done.stderr.strip().splitlines()[-3:])
        )
    importlib.invalidate_caches()


def unfit_gpu() -> str:
    """What to do about a GPU that the installed torch cannot use, such as Kaggle's P100; "" where there is none."""
    from helpers.clock import driver  # here, for it imports torch

    problem = driver.problem()
    if problem and "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
        problem += ". Or choose another: Settings → Accelerator → GPU T4 x2, which starts a new machine"
    return problem and f"The GPU of this machine is not used: {problem}."


def _forget() -> None:
    """Undo what the cell that fetches did to this Python, so that it begins anew."""
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != COURSE]
    for name in [name for name in sys.modules if name.split(".")[0] == "helpers"]:
        del sys.modules[name]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
