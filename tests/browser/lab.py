"""JupyterLab as `make lab` opens it, on a copy of the notebooks that is thrown away, and a notebook driven by hand."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from tools.units import ROOT

START = (
    "import sys; from pathlib import Path; from tools import lab; sys.exit(lab.main(sys.argv[2:], Path(sys.argv[1])))"
)
CELL = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell"  # of the tab in front
# "[3]:" when it has run, "[*]:" while it runs.
RAN = """([cells, index, before]) => {
    const prompt = document.querySelectorAll(cells)[index].querySelector(".jp-InputPrompt").innerText;
    return /\\d/.test(prompt) && prompt !== before;
}"""


class Lab:
    """A running JupyterLab: its `address` with the token, and `work`, the learner's copy."""

    def __init__(self, folder: Path):
        self.work = folder / "work"
        (folder / "notebooks").symlink_to(ROOT / "notebooks")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        token = secrets.token_hex(16)
        self.address = f"http://127.0.0.1:{port}/lab/tree/{{}}?token={token}"
        settings = {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
        settings |= {f"JUPYTERLAB_{kind}_DIR": str(folder / kind) for kind in ("SETTINGS", "WORKSPACES")}
        command = [sys.executable, "-c", START, str(folder), "--no-browser", f"--ServerApp.port={port}"]
        command += [f"--IdentityProvider.token={token}", "--ServerApp.port_retries=0"]
        self._log = open(folder / "lab.log", "w+")
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | settings, stdout=self._log, stderr=subprocess.STDOUT
        )
        for _ in range(240):
            with contextlib.suppress(OSError):
                urlopen(self.address.format(""), timeout=10).close()
                return
            assert self._process.poll() is None, (folder / "lab.log").read_text()
            time.sleep(0.5)
        raise AssertionError((folder / "lab.log").read_text())

    def stop(self) -> None:
        """End the server and the kernels that it started."""
        self._process.terminate()
        self._process.wait(timeout=60)
        self._log.close()


class Notebook:
    """An open notebook; its cells are known by the ids that the build gave them."""

    def __init__(self, page, lab: Lab, path: str):
        self.page, self.file = page, lab.work / path
        cells = json.loads(self.file.read_text(encoding="utf-8"))["cells"]
        self._cells = {cell["id"]: cell for cell in cells}
        self.index = {cell["id"]: number for number, cell in enumerate(cells)}
        page.goto(lab.address.format(path))
        page.locator(CELL).nth(len(cells) - 1).wait_for(state="attached", timeout=120_000)
        page.get_by_text("(ipykernel) | Idle").first.wait_for(timeout=120_000)  # in the status bar

    def source(self, identity: str) -> str:
        """What stood in a cell when the notebook was opened."""
        return "".join(self._cells[identity]["source"])

    def shows_code(self, identity: str) -> bool:
        """Whether it is a code cell, and not one that is folded away."""
        cell = self._cells[identity]
        return cell["cell_type"] == "code" and not cell["metadata"].get("jupyter", {}).get("source_hidden")

    def cell(self, identity: str):
        """The cell as a locator."""
        return self.page.locator(CELL).nth(self.index[identity])

    def run(self, identity: str, seconds: float = 120) -> str:
        """Run one cell, wait for its end, and return the text that it shows below."""
        cell = self.cell(identity)
        cell.scroll_into_view_if_needed()
        prompt = cell.locator(".jp-InputPrompt")
        before = prompt.inner_text()
        prompt.click()
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(RAN, arg=[CELL, self.index[identity], before], timeout=1e3 * seconds)
        return "\n".join(cell.locator(".jp-OutputArea-output").all_inner_texts())

    def write(self, identity: str, source: str) -> None:
        """Replace what stands in a cell, as somebody who types it."""
        self.cell(identity).locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source)

    def insert_below(self, identity: str, name: str, source: str) -> None:
        """A new cell of the learner's, from now on known as `name`."""
        self.cell(identity).locator(".jp-InputPrompt").click()
        self.page.keyboard.press("b")
        place = self.index[identity] + 1
        self.index = {known: number + (number >= place) for known, number in self.index.items()} | {name: place}
        self.write(name, source)

    def save(self) -> None:
        """Save, and wait until the tab says that nothing is unsaved."""
        self.page.keyboard.press("Control+s")
        self.page.locator(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty").first.wait_for(state="detached")
