"""Why torch does not use an NVIDIA GPU that is here, and what to do."""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import torch

# The oldest driver for a build of torch, by the major version of its CUDA: NVIDIA, "Minor Version Compatibility",
# table 1 (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
OLDEST_DRIVER = {12: 525, 13: 580}
# The build for older drivers and chips: for torch 2.12 to 2.14, CUDA 12.6 has Maxwell, Pascal and Volta, CUDA 13 begins
# with Turing (pytorch/pytorch, RELEASE.md, "PyTorch CUDA Support Matrix").
OLDER_CUDA, OLDER_CHIPS = "12.6", (5, 0)


def problem() -> str:
    """What keeps torch from an NVIDIA GPU of this machine, with what to do; "" when nothing does, or there is none."""
    if torch.cuda.is_available():
        return _chip_problem(
            torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0), torch.cuda.get_arch_list()
        )
    return _driver_problem(torch.version.cuda, _driver())


def _driver_problem(cuda: str | None, driver: str) -> str:
    """Why no CUDA device is there, from the CUDA that torch was built for and the driver's version, "" for none."""
    if not driver:
        return ""
    there = f"the NVIDIA driver {driver} is there"
    if cuda is None:
        return (
            f"{there}, but this torch is a CPU build: install one with CUDA ({_command()}, or PyPI's for a new driver)"
        )
    needed = OLDEST_DRIVER.get(int(cuda.split(".")[0]))
    if needed and int(driver.split(".")[0]) < needed:
        older = OLDEST_DRIVER[int(OLDER_CUDA.split(".")[0])]
        return (
            f"{there}, and this torch (CUDA {cuda}) needs {needed} or later: update the driver, or take torch's CUDA "
            f"{OLDER_CUDA} build, which needs {older}: {_command()}"
        )
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = f"CUDA_VISIBLE_DEVICES={hidden!r} hides the GPU" if hidden is not None else "ask nvidia-smi what it sees"
    return f"{there} and new enough for this torch (CUDA {cuda}), which finds no GPU: {why}"


def _chip_problem(name: str, capability: tuple[int, int], built_for: list[str]) -> str:
    """Why a device that is there cannot run this torch's kernels, "" if it can.

    Machine code for a chip runs on later ones of its generation; PTX (compute_…) on all later ones.
    """
    targets = [
        (kind, divmod(int(number), 10)) for kind, number in re.findall(r"(sm|compute)_(\d+)", " ".join(built_for))
    ]
    runs = any(target <= capability and (kind == "compute" or target[0] == capability[0]) for kind, target in targets)
    if runs or not targets:
        return ""
    chip = f"{name} (sm_{capability[0]}{capability[1]}) is not among the chips of this torch ({', '.join(built_for)})"
    if capability >= OLDER_CHIPS:
        return f"{chip}; its CUDA {OLDER_CUDA} build has those before Turing: {_command()}"
    return f"{chip}, nor of any build of it"


def _command() -> str:
    release = torch.__version__.split("+")[0]
    build = "cu" + OLDER_CUDA.replace(".", "")
    return f'pip install "torch=={release}+{build}" --extra-index-url https://download.pytorch.org/whl/{build}'


@functools.cache
def _driver() -> str:
    """The version of the NVIDIA driver, "" where there is none."""
    try:
        said = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if shutil.which("nvidia-smi") is None:
            return ""
        ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(ask, capture_output=True, text=True, timeout=30).stdout
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", said)
    return found[1] if found else ""
