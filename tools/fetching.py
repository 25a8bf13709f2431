"""A notebook that is opened on Colab or Kaggle fetches the course: the cell that does, and the badges that lead there.

Where the course is published stands in pyproject.toml, `[tool.course] repository`; while that is empty there are no
badges, and the cell asks for the address.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.units import ROOT, Unit

CELL = """\
# @title Fetch the course: not needed at home
import os
import sys

COURSE, RELEASE = "{repository}", "{release}"  # a fork: its address, and a tag or branch
try:
    from helpers import hosted
except ImportError:
    clone = f"git clone -q --depth 1 -b {{RELEASE}} '{{COURSE}}' course-{{RELEASE}}"
    if not os.path.isdir(f"course-{{RELEASE}}") and os.system(clone):
        ask = "Is the address above right? On Kaggle: Settings, Turn on internet"
        raise OSError(f"no course at {{COURSE!r}}. {{ask}}") from None
    sys.modules.pop("helpers", None)
    sys.path.insert(0, os.path.abspath(f"course-{{RELEASE}}"))
    from helpers import hosted

    hosted.prepare("{unit}")"""
BADGES = {
    "Open in Colab": (
        "https://colab.research.google.com/assets/colab-badge.svg",
        "https://colab.research.google.com/github/{owner}/blob/{release}/{path}",
    ),
    "Open in Kaggle": (
        "https://kaggle.com/static/images/open-in-kaggle.svg",
        "https://kaggle.com/kernels/welcome?src=https://github.com/{owner}/blob/{release}/{path}",
    ),
}
ANY_BADGE = re.compile(r" ?\[!\[Open in \w+\]\([^)]*\)\]\([^)]*\)")


@dataclass(frozen=True)
class Published:
    """Where learners' copies come from: the address of a git repository ("" while there is none), and a tag in it."""

    repository: str
    release: str

    def badges(self, path: str) -> str:
        """Markdown that opens the notebook at `path` in the repository on Colab and Kaggle; both know GitHub only."""
        owner = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?/?", self.repository)
        if not owner:
            return ""
        where = {"owner": owner[1], "release": self.release, "path": path}
        return " ".join(f"[![{name}]({icon})]({link.format(**where)})" for name, (icon, link) in BADGES.items())


def published(root: Path) -> Published:
    """What pyproject.toml of the course at `root`, or else this project's own, says."""
    file = next(p for p in (root / "pyproject.toml", ROOT / "pyproject.toml") if p.exists())
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    return Published(content["tool"]["course"]["repository"], f"v{content['project']['version']}")


def fetching(notebook: dict, root: Path, path: str, unit: str = "") -> dict:
    """`notebook` with the cell that fetches the course below its title, which gets the badges.

    Args:
        root: of the course.
        path: of the released notebook, from there.
        unit: its number.
    """
    where = published(root)
    source = CELL.format(repository=where.repository, release=where.release, unit=unit)
    cell = {
        "cell_type": "code",
        "execution_count": None,
        "id": f"{Path(path).stem}-fetch",
        # Folded by JupyterLab, a form on Colab, left out of the site's pages, and not run when grading.
        "metadata": {"cellView": "form", "jupyter": {"source_hidden": True}, "tags": ["measure", "remove-cell"]},
        "outputs": [],
        "source": source.splitlines(keepends=True),
    }
    title, *others = notebook["cells"]
    if badges := where.badges(path):
        heading, *text = title["source"]
        title = title | {"source": [heading, "\n", f"{badges}\n", *text]}
    return notebook | {"cells": [title, cell, *others]}


def with_badges(readme: str, units: list[Unit]) -> str:
    """README.md with each unit's badges behind its link in the table of units, and no others."""
    plain = ANY_BADGE.sub("", readme)
    for unit in units:
        path = unit.release.relative_to(unit.root).as_posix()
        badges = published(unit.root).badges(path)
        plain = re.sub(rf"(?m)^(\| \[[^]]+\]\({re.escape(path)}\))", rf"\1 {badges}" if badges else r"\1", plain)
    return plain
