"""`make site`: build/site/index.html, from README.md, docs/ and the notebooks that `make course` or `make test` ran.

A solution that has not been run as it stands is run first.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from tools import course
from tools.lab import FIRST
from tools.site import chart, gallery, pages, slides
from tools.source import text
from tools.units import ROOT, CourseError, Unit, find

SETTINGS = Path(__file__).parent / "sphinx"
GIVES_AWAY = "docs/exercises.md"  # for instructors, who have a link to it: in no menu, and not in the search
MENU = """
```{{toctree}}
:hidden:
:caption: Units
{units}
```

```{{toctree}}
:hidden:
:caption: Around the course
{around}
```
"""


def executed(units: list[Unit]) -> None:
    """Run every solution that build/executed/ does not hold as it stands. Raises CourseError when one fails."""
    for unit in units:
        if not pages.is_current(unit):
            print(f"{unit.name}: running its solution …", flush=True)
            run = course.run(unit, "quick")
            if run.error:
                raise CourseError(f"{unit.name}: its solution does not run:\n{run.error}")


def write_source(units: list[Unit], root: Path, source: Path) -> None:
    """What Sphinx reads, laid out as the repository is, so that links between its files lead somewhere."""
    for page in [*root.glob("*.md"), *root.glob("LICENSE*"), *(root / "docs").rglob("*")]:
        if page.is_file():
            target = source / page.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(page, target)
    away = source / GIVES_AWAY
    away.write_text(f"---\norphan: true\nnosearch: true\n---\n\n{away.read_text(encoding='utf-8')}", encoding="utf-8")
    for unit in units:
        target = source / unit.release.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(pages.page(unit)), encoding="utf-8")
    write_start(root, source / "notebooks")
    gallery.write(source)
    around = [
        "gallery",
        "slides",
        *sorted(f"docs/{page.stem}" for page in (root / "docs").glob("*.md") if page.name != away.name),
    ]
    around += sorted(page.stem for page in root.glob("*.md") if page.name != "README.md")
    names = ["Where to begin <notebooks/START>"]
    names += [str(unit.release.relative_to(root).with_suffix("")) for unit in units]
    front = (source / "README.md").read_text(encoding="utf-8")
    (source / "README.md").unlink()
    menu = MENU.format(units="\n".join(names), around="\n".join(around))
    (source / "index.md").write_text(front + menu, encoding="utf-8")
    (source / "slides.md").write_text(slides.overview(units), encoding="utf-8")


def write_start(root: Path, folder: Path) -> None:
    """START.ipynb, with the map as a picture."""
    notebook = json.loads((root / "notebooks" / FIRST).read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = chart.drawn(text(cell), folder)
    (folder / FIRST).write_text(json.dumps(notebook), encoding="utf-8")


def write_slides(units: list[Unit], source: Path) -> None:
    """The sources of the slides; the first page leads back to the course."""
    source.mkdir(parents=True)
    (source / "index.md").write_text('# Slides\n\n<a href="../slides.html">All slides</a>\n', encoding="utf-8")
    for unit in units:
        slides.write(unit, source)


def sphinx(builder: str, source: Path, out: Path, cache: Path) -> None:
    """Run Sphinx, every warning an error. Raises CourseError."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder, "-t", builder]
    command += ["-c", str(SETTINGS), "-d", str(cache), str(source), str(out)]
    if subprocess.run(command).returncode:
        raise CourseError(f"Sphinx could not make {out}; what it says above is why")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description="the course as static pages")
    parser.parse_args(arguments)
    work, out = root / "build" / "site-source", root / "build" / "site"
    try:
        units = find(root)
        executed(units)
        for folder in (work, out):
            shutil.rmtree(folder, ignore_errors=True)
        write_source(units, root, work / "pages")
        write_slides(units, work / "slides")
        sphinx("html", work / "pages", out, work / "cache-pages")
        sphinx("revealjs", work / "slides", out / "slides", work / "cache-slides")
    except CourseError as error:
        print(error)
        return 1
    print(f"The site: {(out / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
