"""A headless Chromium for the tests of this folder, and what it complains about.

They run with `make test-all`, not with `make test`, and are skipped with the reason where a piece is missing.
"""

import io
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.browser.lab import Lab
from tools.units import ROOT

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",  # which Chromium refuses to do without where the tests run as root, as in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Chromium from the system, or the one that Playwright brought, with a home of its own."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: run `make test-all`")
    with api.sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = os.environ.get("COURSE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
        found = found or (own if Path(own).exists() else None)
        if found is None:
            pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is on PATH, and COURSE_CHROMIUM names none")
        home = tmp_path_factory.mktemp("browser-home")
        environment = os.environ | {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)}
        chromium = playwright.chromium.launch(executable_path=found, args=FLAGS, env=environment)
        yield chromium
        chromium.close()


class Tab:
    """A page, and in `problems` what went wrong on it: errors of the console, of scripts, of what it loads."""

    def __init__(self, browser, **settings):
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}} | settings)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda said: said.type == "error" and self.problems.append(f"console: {said.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        self.page.on("requestfailed", lambda request: self.problems.append(f"not loaded: {request.url}"))


@pytest.fixture
def open_tab(browser):
    """A function that opens a new `Tab`, with settings of Playwright's `new_context`."""
    tabs = []

    def opened(**settings) -> Tab:
        tabs.append(Tab(browser, **settings))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.context.close()


@pytest.fixture(scope="session")
def lab(browser, tmp_path_factory):
    """A running JupyterLab on a copy of the notebooks; see `tests.browser.lab`."""
    running = Lab(tmp_path_factory.mktemp("lab"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def shots():
    """A function that keeps a picture of a page in build/screenshots/, in 256 colours."""
    folder = ROOT / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)

    def keep(page, name: str) -> None:
        Image.open(io.BytesIO(page.screenshot())).quantize(256).save(folder / f"{name}.png", optimize=True)

    return keep


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built site."""
    folder = ROOT / "build" / "site"
    if not (folder / "index.html").exists():
        pytest.skip("there is no build/site: run `make site`")
    return folder
