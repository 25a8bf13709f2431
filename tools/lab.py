"""`make lab`: your own copy of the notebooks in work/, and JupyterLab opened on it.

A file that you changed is never overwritten. What this tool last put there is remembered in work/.released.json.
"""

import argparse
import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

from ipykernel.ipkernel import IPythonKernel

from helpers import threads
from tools.units import ROOT, CourseError, notebook_text, write_whole

MANIFEST = ".released.json"
FIRST = "START.ipynb"
TUTORS = ROOT / "docs" / "tutors.md"


def refresh(release: Path, work: Path) -> list[str]:
    """Bring the files of `release`, and the rules for AI tutors, into `work`; returns one line per file that it wrote.

    New files are added, files that the learner did not touch follow the release; where both changed, the learner's
    stays and the new one is put beside it as `NAME.new.ipynb`. Raises `CourseError` when the disk refuses; every file
    is then either the old one or the new one.
    """
    said = []
    try:
        work.mkdir(parents=True, exist_ok=True)
        for unfinished in work.rglob(".*.part"):
            unfinished.unlink()
        known = _known(work)
        files = {"AGENTS.md": TUTORS.read_bytes()}
        for path in sorted(p for p in release.rglob("*") if p.is_file() and ".ipynb_checkpoints" not in p.parts):
            files[path.relative_to(release).as_posix()] = _as_opened(path.read_bytes())
        for name, content in files.items():
            if line := _bring(content, work / name, name, known):
                said.append(line)
                write_whole(work / MANIFEST, (json.dumps(known, indent=1, sort_keys=True) + "\n").encode())
    except OSError as error:
        raise CourseError(
            f"could not write your copy in {work}: {error.strerror or error}. Nothing of yours was changed; "
            "make room or mend the permissions, then run `make lab` again"
        ) from error
    return said


def _as_opened(content: bytes) -> bytes:
    """A notebook as JupyterLab would save it on this machine.

    It writes the language of the kernel that it starts into every notebook it opens, Python's version included, and
    marks a notebook in which that is new as changed.
    """
    try:
        notebook = json.loads(content)
        notebook["metadata"]["language_info"] = dict(IPythonKernel.language_info)
    except (ValueError, KeyError, TypeError):
        return content
    return notebook_text(notebook).encode()


def _bring(content: bytes, target: Path, name: str, known: dict[str, str]) -> str:
    """Bring one file up to date and note it in `known`; returns what to say, or ""."""
    new = _digest(name, content)
    if not target.exists():
        write_whole(target, content)
        known[name] = new
        return f"added      work/{name}"
    present = _digest(name, target.read_bytes())
    if present == new:
        if known.get(name) != new:
            known[name] = new
            return f"unchanged  work/{name}"
        return ""
    if present == known.get(name):
        write_whole(target, content)
        known[name] = new
        return f"refreshed  work/{name}"
    if known.get(name) == new:
        return ""
    beside = target.with_suffix(f".new{target.suffix}")
    write_whole(beside, content)
    known[name] = new
    return f"kept yours work/{name}; the course's new version is beside it: {beside.name}"


def _known(work: Path) -> dict[str, str]:
    try:
        known = json.loads((work / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _digest(name: str, content: bytes) -> str:
    """What a file is known by: its bytes, or of the page that everybody runs and nobody edits, its cells' sources."""
    if name == FIRST:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            content = json.dumps(["".join(cell["source"]) for cell in json.loads(content)["cells"]]).encode()
    return hashlib.sha256(content).hexdigest()


def _explain_from_the_start() -> None:
    """Have every kernel of this environment explain cells that need another one first, also after a restart, and say
    when it loads PyTorch.

    Where the environment cannot be written to, importing `helpers.check` does the first, a little later.
    """
    with contextlib.suppress(OSError):
        config = "c = get_config()\nc.InteractiveShellApp.extensions = ['helpers.blanks', 'helpers.loading']\n"
        write_whole(Path(sys.prefix) / "etc" / "ipython" / "ipython_kernel_config.py", config.encode())


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.lab",
        description="make or refresh work/ and open JupyterLab on it; other options go to JupyterLab",
        allow_abbrev=False,
    )
    parser.add_argument("--copy-only", action="store_true", help="refresh work/, do not open JupyterLab")
    options, passed_on = parser.parse_known_args(arguments)
    work = root / "work"
    try:
        for line in refresh(root / "notebooks", work):
            print(line)
    except CourseError as error:
        print(error)
        return 1
    first = next(iter([*work.glob(FIRST), *sorted(work.glob("[0-9][0-9]-*/*.ipynb"))]), None)
    if first is None:
        print("there is no notebook to open; an author builds them with `make notebooks`")
        return 1
    if options.copy_only:
        return 0
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={work}"]
    command.append(f"--LabApp.default_url=/lab/tree/{first.relative_to(work).as_posix()}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    _explain_from_the_start()
    sys.stdout.flush()
    # What nbgrader adds for instructors, and a question about Jupyter's news, would only puzzle a learner.
    settings = os.pathsep.join(filter(None, [str(ROOT / "tools" / "jupyter"), os.environ.get("JUPYTER_CONFIG_PATH")]))
    threads.settle(os.environ)  # for notebooks that import torch before helpers
    environment = os.environ | {"COURSE_HOME": str(work / ".course"), "JUPYTER_CONFIG_PATH": settings}
    os.execve(sys.executable, command + passed_on, environment)


if __name__ == "__main__":
    sys.exit(main())
