"""What README.md and docs/ promise exists: files, `make` targets and their variables, modules, units."""

import importlib.util
import re

import pytest

from tools.units import ROOT, find

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def found(pattern: str, text: str) -> list:
    return sorted(set(re.findall(pattern, text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in found(r"\]\(([^)#\s]+)", TEXTS[page]):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page):
    for target, rest in found(r"(?m)(?:^ {4}|`)(?:[A-Z_]+=\S+ )?make ([a-z-]+)([^`\n]*)", TEXTS[page]):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"{page.name}: make {target}"
        for variable in re.findall(r"([A-Z_]+)=", rest):
            assert f"$({variable})" in MAKEFILE, f"{page.name}: make {target} {variable}=…"
    for module in found(r"python -m ((?:tools|helpers)[\w.]+)", TEXTS[page]):
        assert importlib.util.find_spec(module), f"{page.name}: python -m {module}"


def test_the_readme_lists_every_unit_and_the_time_it_takes():
    rows = dict(found(r"\(notebooks/([\w-]+)/[^)]+\)[^\n]*\| (\d+) min \|", TEXTS[ROOT / "README.md"]))
    assert sorted(rows) == [unit.name for unit in find()], "README.md has a line for each unit, with its minutes"
    for unit in find():
        said = re.search(r"About (\d+)[\s#]+minutes", unit.source.read_text(encoding="utf-8"))
        assert said, f"{unit.name}: its introduction has to say “About {rows[unit.name]} minutes”, as README.md does"
        assert said[1] == rows[unit.name], f"{unit.name}: README says {rows[unit.name]} min"


def test_no_page_names_a_path_of_one_machine():
    for page, text in TEXTS.items():
        assert not re.search(r"(?<![\w~.])/(work|tmp|root|home)/", text), page.name
