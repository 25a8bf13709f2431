"""Which computers PyTorch and numba make wheels for.

    python tools/wheels.py       what to do on a computer that they make none for; exit 1 there. `make` asks first
    python -m tools.wheels all   `make wheels`: ask the package index for every compiled package that constraints.txt
                                 pins, for computers that this one is not

Needs nothing that is not Python's own, but for `all`.
"""

import platform
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Markers of a requirement there, and the tags of wheels that run there.
TARGETS = {
    "macOS on Apple chips": (
        {"sys_platform": "darwin", "platform_machine": "arm64", "platform_system": "Darwin", "os_name": "posix"},
        [f"macosx_{v}_arm64" for v in ("11_0", "12_0", "13_0", "14_0")]
        + [f"macosx_{v}_universal2" for v in ("10_9", "10_13", "10_15", "11_0")],
    ),
    "Linux on aarch64": (
        {"sys_platform": "linux", "platform_machine": "aarch64", "platform_system": "Linux", "os_name": "posix"},
        ["manylinux2014_aarch64"] + [f"manylinux_2_{v}_aarch64" for v in (17, 24, 26, 27, 28, 31)],
    ),
}


def advice(system: str, machine: str, release: str = "") -> str:
    """What somebody with this computer has to do first; "" where the course installs as it is.

    Args:
        system, machine: as `platform` calls them.
        release: of macOS, e.g. "14.5".
    """
    if system == "Windows" or system.startswith(("MINGW", "MSYS", "CYGWIN")):
        return (
            "On Windows the course runs in WSL2: `wsl --install -d Ubuntu-24.04` in PowerShell, then "
            "`sudo apt install python3-venv make` and `make lab` in a clone inside of it."
        )
    if system == "Darwin" and machine != "arm64":
        return (
            "PyTorch makes no wheels for Intel Macs any more, nor for a Python that runs under Rosetta. On an Intel "
            "Mac open the notebooks on Colab or Kaggle; on an Apple chip take a Python for arm64."
        )
    if system == "Darwin" and release and int(release.split(".")[0]) < 14:
        return f"PyTorch needs macOS 14 or later, and this is {release}: update it, or take Colab or Kaggle."
    return ""


def needed(environment: dict[str, str]) -> list[str]:
    """Names of the compiled packages that the course needs in `environment`, of those that are installed here."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    todo = [*project["dependencies"], *extras["home"], *extras["test"]]
    seen, compiled = set(), set()
    while todo:
        requirement = Requirement(todo.pop())
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        for extra in requirement.extras or {""}:
            if (requirement.name, extra) in seen:
                continue
            seen.add((requirement.name, extra))
            try:
                package = metadata.distribution(requirement.name)
            except metadata.PackageNotFoundError:
                continue  # what only another system needs, such as appnope, and CUDA's own libraries
            if "none-any" not in (package.read_text("WHEEL") or "none-any"):
                compiled.add(requirement.name)
            for line in package.requires or []:
                wanted = Requirement(line)
                if not wanted.marker or wanted.marker.evaluate(environment | {"extra": extra}):
                    todo.append(line.split(";")[0])
    return sorted(compiled)


def unresolved(target: str) -> str:
    """What pip says against installing those packages as wheels on a computer of `target`; "" if it would."""
    environment, tags = TARGETS[target]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    pins = ["-c", str(ROOT / "constraints.txt")]
    with tempfile.TemporaryDirectory() as nowhere:
        options = ["--dry-run", "-q", "--no-deps", "--only-binary=:all:", "--python-version", "3.12"]
        options += ["--target", nowhere, *platforms, *pins]
        command = [sys.executable, "-m", "pip", "install", *options, *needed(environment)]
        done = subprocess.run(command, capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "\n".join(errors or [done.stderr]) if done.returncode else ""


def main(arguments: list[str]) -> int:
    if arguments != ["all"]:
        said = advice(platform.system(), platform.machine(), platform.mac_ver()[0])
        print(said, file=sys.stderr, end="\n" if said else "")
        return 1 if said else 0
    found = {target: unresolved(target) for target in TARGETS}
    for target, problem in found.items():
        offline = "connection" in problem.lower() or "name resolution" in problem
        said = "not checked, for there is no network" if offline else problem or "every compiled pin has a wheel"
        print(f"{target}: {said}")
        if offline:
            found[target] = ""
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
