"""What `make` installs: one list of packages for pip, conda, Binder and hub images, and one exact version of each."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tools import wheels

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


EXTRAS = PROJECT["optional-dependencies"]
INSTALLED_BY_MAKE = [*PROJECT["dependencies"], *EXTRAS["home"], *EXTRAS["test"]]


def plain(name):
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", name).group()).lower()


PINS = {
    plain(line): line.split("==")[1]
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
}


def test_environment_yml_is_the_same_environment():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, packages = environment["dependencies"]
    assert environment["name"] == PROJECT["name"]
    assert pip == "pip" and packages == {"pip": ["-c constraints.txt", "-e .[home]"]}
    promised = {plain(requirement) for requirement in [*PROJECT["dependencies"], *EXTRAS["home"]]}
    assert promised >= {"jupyterlab", "torch", "numpy", "matplotlib", "nbgrader", "papermill"}
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    assert int(low) <= int(python.removeprefix("python=3.")) < int(high)


def test_every_requirement_is_pinned_and_within_its_range():
    for requirement in INSTALLED_BY_MAKE:
        assert plain(requirement) in PINS, f"{requirement} has no line in constraints.txt"
        version = [int(n) for n in re.findall(r"\d+", PINS[plain(requirement)])]
        for operator, bound in re.findall(r"(>=|<)([\d.]+)", requirement.split(";")[0]):
            limit = [int(n) for n in bound.split(".")]
            assert version >= limit if operator == ">=" else version < limit, requirement


def test_what_is_installed_and_needed_is_pinned():
    """Walks from this project's own requirements, so that what else a developer installed does not count."""
    todo = list(INSTALLED_BY_MAKE)
    seen, unpinned = set(), set()
    while todo:
        requirement = Requirement(todo.pop())
        name = plain(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        if name not in PINS:
            unpinned.add(name)
        supported = metadata.metadata(name)["Requires-Python"]
        assert not supported or SpecifierSet(supported).contains("3.11.2"), f"{name}: Debian 12 has Python 3.11.2"
        todo += needs
    assert not unpinned


def test_make_alone_prints_every_target_a_line_each():
    # Under `make test` the inner make would announce the directory that it enters.
    command = ["make", "--no-print-directory"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    targets = re.search(r"^\.PHONY: setup (.*)$", (ROOT / "Makefile").read_text(), re.M).group(1).split()
    assert sorted(line.split()[1] for line in said) == sorted(targets)


def test_setup_refuses_a_python_it_cannot_use(tmp_path):
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    script = str(ROOT / "tools" / "setup.sh")
    given = subprocess.run([script, str(tmp_path / "v"), str(old), "--", "x"], capture_output=True, text=True)
    assert given.returncode == 1 and "is not a Python 3.11, 3.12 or 3.13" in given.stderr
    shell = tmp_path / "only"
    shell.mkdir()
    (shell / "python3").symlink_to(old)
    none = subprocess.run(
        ["/bin/sh", script, str(tmp_path / "v"), "", "--", "x"],
        capture_output=True,
        text=True,
        env={"PATH": str(shell)},
    )
    assert none.returncode == 1 and "make PYTHON=" in none.stderr
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(
    "computer, said",
    [
        (("Linux", "x86_64", ""), ""),
        (("Linux", "aarch64", ""), ""),
        (("Darwin", "arm64", "14.0"), ""),
        (("Darwin", "arm64", "26.1"), ""),
        (("Darwin", "arm64", "13.7.1"), "PyTorch needs macOS 14 or later, and this is 13.7.1"),
        (("Darwin", "x86_64", "15.2"), "no wheels for Intel Macs"),
        (("Windows", "AMD64", ""), "wsl --install -d Ubuntu-24.04"),
        (("MINGW64_NT-10.0", "x86_64", ""), "WSL2"),
    ],
)
def test_a_computer_without_wheels_is_told_what_to_do(computer, said):
    assert wheels.advice(*computer) == said if not said else said in wheels.advice(*computer)


def test_setup_asks_for_wheels_before_pip_and_only_where_torch_is_wanted(tmp_path):
    """A stand-in for a Python on such a computer: suitable, and refused by tools/wheels.py."""
    python = tmp_path / "python3"
    python.write_text(
        '#!/bin/sh\ncase "$1" in *wheels.py) echo "no wheels here" >&2; exit 1 ;; -c) exit 0 ;; esac\nexit 9\n'
    )
    python.chmod(0o755)
    script, folder = str(ROOT / "tools" / "setup.sh"), str(tmp_path / "v")
    for what, expected in (("-e .[home]", "no wheels here\n"), ("jupytext", "cannot make a virtual environment")):
        done = subprocess.run([script, folder, str(python), "--", *what.split()], capture_output=True, text=True)
        assert done.returncode == 1 and expected in done.stderr
        assert ("no wheels" in done.stderr) is (what != "jupytext")


def test_every_compiled_pin_is_asked_for_elsewhere():
    """`make wheels` asks the index; here, what it would ask for. Triton is for Linux only."""
    asked = {target: set(wheels.needed(environment)) for target, (environment, _) in wheels.TARGETS.items()}
    assert all({"torch", "numba", "numpy", "llvmlite"} <= names for names in asked.values())
    assert "triton" in asked["Linux on aarch64"] and "triton" not in asked["macOS on Apple chips"]
    assert not {"jupyterlab", "nbgrader"} & set.union(*asked.values()), "pure Python installs anywhere"


def test_this_python_is_one_of_those_supported():
    assert (3, 11) <= sys.version_info[:2] <= (3, 13)
