"""The built site in a browser, opened from its folder: no server, no network."""

import json
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from helpers import hints
from tools.units import find

READABLE = (Path(__file__).parent / "readable.js").read_text(encoding="utf-8")
UNITS = find()
LOOK = """() => ({
    links: [...document.querySelectorAll("a[href]")].map((link) => link.href),
    ids: [...document.querySelectorAll("[id]")].map((element) => element.id),
    pictures: [...document.images].map((picture) => [picture.src, picture.naturalWidth, picture.alt]),
})"""


def unit_page(site: Path, unit) -> Path:
    return site / "notebooks" / unit.name / f"{unit.name}.html"


def test_every_page_opens_quietly_with_its_pictures_and_leads_somewhere(site, open_tab):
    tab = open_tab()
    pages = [page for page in sorted(site.rglob("*.html")) if "_static" not in page.parts]
    assert {unit_page(site, unit) for unit in UNITS} <= set(pages)
    assert {site / "slides" / f"{unit.name}.html" for unit in UNITS} <= set(pages)
    wrong, ids, links = [], {}, []
    for page in pages:
        tab.page.goto(page.as_uri())
        # Pictures further down load when they come into sight; `decode` waits for each.
        tab.page.evaluate(
            "() => Promise.allSettled([...document.images].map((p) => (p.loading = 'eager', p.decode())))"
        )
        seen = tab.page.evaluate(LOOK)
        ids[page] = set(seen["ids"])
        links += [(page, link) for link in seen["links"]]
        wrong += [f"{page.name}: no picture {src}" for src, width, _ in seen["pictures"] if not width]
        wrong += [f"{page.name}: no words for {src}" for src, _, alt in seen["pictures"] if not alt]
        wrong += [f"{page.name}: {problem}" for problem in tab.problems]
        tab.problems.clear()
    for page, link in links:
        address, fragment = urldefrag(link)
        if urlsplit(address).scheme != "file":
            continue
        target = Path(unquote(urlsplit(address).path))
        if not target.is_file():
            wrong.append(f"{page.name}: {link} is not there")
        elif target in ids and fragment and not fragment.startswith("/") and unquote(fragment) not in ids[target]:
            wrong.append(f"{page.name}: {link}: the page has no such place")
    assert not wrong, "\n".join(wrong)
    assert len(links) > 100


def test_search_finds_a_word_in_its_unit_and_leads_there(site, open_tab):
    tab = open_tab()
    tab.page.goto((site / "index.html").as_uri())
    tab.page.keyboard.press("Control+k")
    tab.page.keyboard.type("perplexity")
    tab.page.keyboard.press("Enter")
    found = tab.page.locator("#search-results li a", has_text="StreamingLLM")
    found.first.wait_for()
    found.first.click()
    tab.page.wait_for_url("**/04-streaming-llm.html*")
    assert not tab.problems


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable(site, open_tab, scheme):
    tab = open_tab(color_scheme=scheme)
    for page in (site / "index.html", site / "gallery.html", *(unit_page(site, unit) for unit in UNITS)):
        tab.page.goto(page.as_uri())
        assert tab.page.evaluate("document.documentElement.dataset.theme") == scheme
        tab.page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true })")
        seen, faint = tab.page.evaluate(READABLE, "article")
        assert seen > 20
        assert not faint, f"{page.name}: {faint[:10]}"


def test_the_button_turns_the_page_dark(site, open_tab):
    tab = open_tab(color_scheme="light")
    tab.page.goto((site / "index.html").as_uri())
    bright = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.page.locator("button.theme-switch-button:visible").click()
    tab.page.locator("button.theme-change-button[data-mode=dark]:visible").click()
    tab.page.wait_for_function("(bright) => getComputedStyle(document.body).backgroundColor !== bright", arg=bright)


def test_answers_are_behind_folds(site, open_tab):
    tab = open_tab()
    for unit in UNITS:
        tab.page.goto(unit_page(site, unit).as_uri())
        exercises = hints.unit(unit.number)["exercises"]
        folds = tab.page.locator("details.answer")
        assert folds.count() == len(exercises)
        assert not tab.page.locator("details[open]").count()
        assert "✓" not in tab.page.locator("article").inner_text()
        assert not any(fold.locator("pre").is_visible() for fold in folds.all())
        folds.first.locator("summary").click()
        shown = folds.first.locator("pre").inner_text()
        assert shown.split() == next(iter(exercises.values()))["solution"].split()


def test_no_page_is_wider_than_a_telephone(site, open_tab):
    tab = open_tab(viewport={"width": 390, "height": 800})
    for page in (site / "index.html", site / "gallery.html", *(unit_page(site, unit) for unit in UNITS)):
        tab.page.goto(page.as_uri())
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390, page.name


def test_slides_hold_what_is_on_them(site, open_tab):
    tab = open_tab(viewport={"width": 1280, "height": 720})
    sizes = """() => Reveal.getSlides().map((slide) => {
        const { h, v } = Reveal.getIndices(slide);
        Reveal.slide(h, v);
        return [slide.innerText.slice(0, 60), slide.scrollHeight, slide.scrollWidth];
    })"""
    for unit in UNITS:
        tab.page.goto((site / "slides" / f"{unit.name}.html").as_uri())
        tab.page.wait_for_function("Reveal.isReady()")
        slides = tab.page.evaluate(sizes)
        assert len(slides) > 10
        over = [slide for slide in slides if slide[1] > 720 or slide[2] > 1290]
        assert not over, f"{unit.name}: {json.dumps(over)}"


def test_pictures_for_the_page_of_screenshots(site, open_tab, shots):
    light = open_tab(color_scheme="light").page
    light.goto((site / "notebooks" / "START.html").as_uri())
    light.locator("img[src*=map]").scroll_into_view_if_needed()
    shots(light, "site-light")

    dark = open_tab(color_scheme="dark").page
    dark.goto(unit_page(site, UNITS[4]).as_uri())
    hint = dark.locator("details.hint").first
    hint.locator("summary").click()
    hint.scroll_into_view_if_needed()
    shots(dark, "site-dark")
    assert hint.locator("p").is_visible()

    narrow = open_tab(viewport={"width": 390, "height": 800}).page
    narrow.goto((site / "gallery.html").as_uri())
    picture = narrow.locator("article img").first
    picture.scroll_into_view_if_needed()
    shots(narrow, "site-narrow")
    assert 300 < picture.bounding_box()["width"] <= 390
