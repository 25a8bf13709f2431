"""Where `make` never ran: the cell that fetches the course, what it installs, and a unit without what only home has."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
import torch

import tools.fetching
from helpers import hosted
from tools.fetching import ANY_BADGE, fetching, published, with_badges
from tools.source import solution_notebook, text
from tools.units import ROOT, find, notebook_text

UNIT = find(ROOT, ["02"])[0]
FETCH = f"{UNIT.name}-fetch"
PATH = UNIT.release.relative_to(ROOT).as_posix()

# What Colab has not, or has in other versions: a unit must not need it.
AT_HOME_ONLY = (
    "IPython ipykernel ipywidgets jupyterlab jupytext nbclient nbformat nbgrader numba papermill psutil triton"
)

ELSEWHERE = """
import builtins, json, os, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in os.environ["BLOCKED"].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path[:] = [Blocked(), *(f for f in sys.meta_path if "editable" not in repr(f).lower())]
sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p, "helpers"))]
import matplotlib
matplotlib.use("Agg")
"""
# The real unit with two of its thirty layers, a card that is not measured, short contexts and three samples a point.
TINY = """
import functools
from helpers.clock import devices, sweeps, timing
from helpers.models import pretrained
from helpers.models.decoder import Decoder
from helpers.models.geometry import get
pretrained.load = lambda device: (Decoder(get("SmolLM2-135M").replace(layers=2, vocab=512), device=device), None)
devices.card = lambda spot: devices.DeviceCard("none", "cpu", 1e10, {"float32": 1e11}, 1e-6, "never")
sweeps.sizes = lambda model, card, budget: ((1, 4), [16, 32, 64])
devices.BUFFER_BYTES["cpu"] = devices.LARGEST_BUFFER_BESIDE_BYTES = 1 << 20
plain_sweep = timing.Clock.sweep
def sweep(self, steps, budget_seconds, floors=None, label=""):
    return plain_sweep(self, steps, 0.01, min_samples=3, floors=floors, progress=False)
timing.Clock.sweep = sweep
"""
RUN = """
from pathlib import Path
space = {"__name__": "__main__"}
for cell in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["cells"]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "code":
        exec(compile(source, cell["id"], "exec"), space)
        if cell["id"].endswith("-fetch"):
            exec(TINY)
print(Path(sys.modules["helpers"].__file__).parent, "numba" in sys.modules)
"""
# Only the cell that fetches, twice, without the seconds that importing torch takes.
RESTARTED = """
from types import SimpleNamespace
sys.modules["torch"] = SimpleNamespace(
    cuda=SimpleNamespace(is_available=lambda: False), version=SimpleNamespace(cuda="13.0")
)
TINY = "exec(compile(source, cell['id'], 'exec'), space); sys.exit(0)"
"""


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """A git repository with what the library needs, tagged as a release is."""
    folder = tmp_path_factory.mktemp("origin")
    shutil.copytree(ROOT / "helpers", folder / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", published(ROOT).release]):
        subprocess.run([*git, *words], check=True)
    return folder


def built_notebook():
    return fetching(solution_notebook(UNIT), ROOT, PATH, UNIT.number)


def elsewhere(folder, program, *arguments, blocked=AT_HOME_ONLY):
    """Run `program` in a new Python that does not find this checkout; returns the finished process."""
    plain = {k: v for k, v in os.environ.items() if k not in ("COURSE_HOME", "PYTHONPATH")}
    environment = plain | {"BLOCKED": blocked, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", ELSEWHERE + f"TINY = {TINY!r}\n" + program, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def notebook_of(origin, folder):
    """The built solution of unit 02, its address that of `origin`."""
    built = built_notebook()
    cell = next(c for c in built["cells"] if c["id"] == FETCH)
    cell["source"] = [text(cell).replace(f'"{published(ROOT).repository}"', f'"{origin}"', 1)]
    path = folder / "02.ipynb"
    path.write_text(notebook_text(built), encoding="utf-8")
    return path


def test_unit_02_runs_where_only_the_library_was_fetched(origin, tmp_path):
    """All of its cells. It takes seven seconds: a process of its own imports torch and runs a unit."""
    path, fetched = notebook_of(origin, tmp_path), tmp_path / f"course-{published(ROOT).release}"
    done = elsewhere(tmp_path, RUN, path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"Ready. Your predictions are kept in {tmp_path / '.course'}" in done.stdout
    assert "Installing" not in done.stdout, "all that the library needs is here"
    assert done.stdout.count("plain torch is used instead") == 1 and "need numba" in done.stdout
    assert "✓ 02.9" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{fetched / 'helpers'} False"

    # As after a restart of the kernel: the folder is there, and its origin need not be.
    notebook_of("/nowhere", tmp_path)
    again = elsewhere(tmp_path, RESTARTED + RUN, path)
    assert again.returncode == 0, again.stderr[-2000:]
    assert again.stdout.count("Ready. ") == 1


def test_what_cannot_be_fetched_is_said(tmp_path):
    done = elsewhere(tmp_path, RUN, notebook_of(tmp_path / "nowhere", tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"OSError: no course at '{tmp_path / 'nowhere'}'. Is the address")
    assert "Turn on internet" in done.stderr and "ModuleNotFoundError" not in done.stderr


# The cell in a Python to which pip gives nothing, and again once it does.
TURNED_ON = """
from types import SimpleNamespace
sys.modules["torch"] = SimpleNamespace(
    cuda=SimpleNamespace(is_available=lambda: False), version=SimpleNamespace(cuda="13.0")
)
cell = next(c for c in json.load(open(sys.argv[1]))["cells"] if c["id"].endswith("-fetch"))
import importlib.metadata, subprocess
plain, asked = importlib.metadata.distributions, []
importlib.metadata.distributions = lambda: [d for d in plain() if d.metadata["Name"] != "gguf"]
def run(command, **options):
    asked.append(command[-1])
    return SimpleNamespace(returncode=len(asked) == 1, stderr="no network")
subprocess.run = run
for turn in range(2):
    try:
        exec("".join(cell["source"]), {"__name__": "__main__"})
    except RuntimeError as error:
        print(error)
print(len(asked), asked[1][:4])
"""


def test_a_cell_that_could_not_install_tries_again(origin, tmp_path):
    """It says "Then run this cell again"; by then the library itself is there."""
    done = elsewhere(tmp_path, TURNED_ON, notebook_of(origin, tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("Turn on internet") == done.stdout.count("Ready. ") == 1
    assert done.stdout.splitlines()[-1] == "2 gguf"


def test_at_home_the_cell_does_nothing(monkeypatch):
    before = dict(os.environ), list(sys.path)
    monkeypatch.setattr(hosted, "prepare", lambda unit: pytest.fail("prepared at home"))
    monkeypatch.setattr(os, "system", lambda command: pytest.fail(command))
    cell = next(c for c in built_notebook()["cells"] if c["id"] == FETCH)
    exec(text(cell), {})
    assert (dict(os.environ), list(sys.path)) == before
    assert "measure" in cell["metadata"]["tags"], "grading leaves out what carries this tag"


def test_what_is_installed_is_what_the_library_and_the_notebooks_import():
    imported = set()
    for path in [*(ROOT / "helpers").rglob("*.py"), *(ROOT / "solutions").glob("*/[0-9]*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.split(".")[0])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = {re.match(r"[\w-]+", requirement)[0] for requirement in project["dependencies"]}
    # Without these it runs, more slowly or without sliders; llvmlite comes with numba.
    without = {"numba", "llvmlite", "triton", "ipywidgets"}
    assert imported - sys.stdlib_module_names - {"helpers"} - without == listed


def test_only_what_is_missing_is_installed(capsys, monkeypatch):
    assert hosted.missing() == []
    assert hosted.missing(["Not_there>=1", "numpy>=99", "PyYAML"]) == ["Not_there>=1"], "numpy is old, and stays"
    asked = []
    monkeypatch.setattr(hosted, "missing", lambda: ["gguf>=0.17"])
    monkeypatch.setattr(hosted, "install", asked.append)
    monkeypatch.setenv("COURSE_HOME", "/somewhere")
    monkeypatch.setenv("COURSE_UNIT", "")
    hosted.prepare("02")
    assert asked == [["gguf>=0.17"]] and os.environ["COURSE_UNIT"] == "02"
    assert "Installing gguf>=0.17 …\nReady. Your predictions are kept in /somewhere.\n" in capsys.readouterr().out


def wheel(folder, name, version, needs=""):
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


def test_an_installation_never_replaces_what_is_there(tmp_path, monkeypatch):
    """pip itself, on wheels made here: one that needs no other numpy is taken, one that does is not."""
    wheel(tmp_path, "numpy", "999.0")
    wheel(tmp_path, "modest", "1.0", "Requires-Dist: numpy\n")
    wheel(tmp_path, "greedy", "1.0", "Requires-Dist: numpy>=999\n")
    for name, value in {"FIND_LINKS": str(tmp_path), "NO_INDEX": "1", "DRY_RUN": "1"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    hosted.install(["modest"])
    with pytest.raises(hosted.CannotPrepare, match="Turn on internet"):
        hosted.install(["greedy"])


def test_a_gpu_that_torch_cannot_use_is_named(monkeypatch):
    """Kaggle's P100, as `driver` finds it; there another GPU is two clicks away."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_70", "sm_75", "sm_120"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla P100-PCIE-16GB")
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)
    assert "Tesla P100-PCIE-16GB (sm_60) is not among" in hosted.unfit_gpu() and "T4" not in hosted.unfit_gpu()
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    assert "GPU T4 x2" in hosted.unfit_gpu()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert hosted.unfit_gpu() == ""


def test_badges_appear_once_the_course_is_published(monkeypatch):
    """One line of pyproject.toml gives README.md and every notebook its badges; without it there are none."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert bool(ANY_BADGE.search(readme)) is bool(tools.fetching.published(ROOT).repository)
    place = tools.fetching.Published("https://github.com/a/b", "v9")
    monkeypatch.setattr(tools.fetching, "published", lambda root: place)
    title, fetch, *_ = map(text, built_notebook()["cells"])
    for unit in find(ROOT):
        path = unit.release.relative_to(ROOT).as_posix()
        assert (ROOT / path).exists()
        for page in (with_badges(readme, find(ROOT)), title) if unit == UNIT else (with_badges(readme, find(ROOT)),):
            assert page.count(f"(https://colab.research.google.com/github/a/b/blob/v9/{path})") == 1
            assert page.count(f"(https://kaggle.com/kernels/welcome?src=https://github.com/a/b/blob/v9/{path})") == 1
    assert 'COURSE, RELEASE = "https://github.com/a/b", "v9"' in fetch
    assert ANY_BADGE.sub("", with_badges(readme, find(ROOT))) == ANY_BADGE.sub("", readme)
    assert tools.fetching.Published("https://gitlab.com/a/b", "v9").badges(PATH) == "", "neither opens anything else"
