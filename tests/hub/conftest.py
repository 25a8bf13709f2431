"""A real JupyterHub on loopback, with the course's own settings and accounts that exist nowhere else.

It runs with `make test-all`, not with `make test`, and is skipped with the reason where a piece is missing. Accounts
are lines of files that are laid over /etc/passwd and /etc/group in a mount namespace of the hub's own, so that
learners are users of their own, as on a real hub, and the machine stays as it is.
"""

import contextlib
import importlib.util
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from tests.hub.account import Account
from tools.units import ROOT

DEPLOYED = ROOT / "deploy" / "jupyterhub"
USERS = {"prof": 20_000, "ada": 20_001, "ben": 20_002}
INSIDE = Path("/mnt")  # where the hub sees this checkout: learners could not enter one below /root
SETTINGS = """
c = get_config()
load_subconfig("{deployed}/jupyterhub_config.py")
c.JupyterHub.bind_url = "{address}"
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api_port}"
c.ConfigurableHTTPProxy.command = ["{proxy}"]
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "{password}"
c.Authenticator.allowed_users = {users}
"""


@dataclass
class Hub:
    """Its address, everybody's password, the folder with its state and the users' homes, and Python as it sees it."""

    address: str
    password: str
    state: Path
    homes: Path
    python: Path
    log: Path

    def login(self, name: str) -> Account:
        """`name` logged in, with their server running. AssertionError when the hub refuses."""
        try:
            return Account(self.address, name, self.password)
        except AssertionError as error:
            said = [line for line in self.log.read_text().splitlines() if " 200 GET " not in line]
            raise AssertionError("\n".join([str(error), *said[-40:]])) from None


def _missing() -> str:
    """Why no hub can run here, or ""."""
    if importlib.util.find_spec("jupyterhub") is None:
        return "JupyterHub is not installed: run `make test-all`"
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "a hub that starts servers as several users needs root, on Linux"
    for program in ("node", "npm", "unshare"):
        if shutil.which(program) is None:
            return f"there is no {program} on PATH"
    if subprocess.run(["unshare", "--mount", "mount", "--bind", "/tmp", "/mnt"], capture_output=True).returncode:
        return "this machine does not allow a mount namespace (a container without that right)"
    return ""


@pytest.fixture(scope="session")
def proxy() -> Path:
    """configurable-http-proxy as package.json pins it, installed into build/hub/."""
    if reason := _missing():
        pytest.skip(reason)
    folder = ROOT / "build" / "hub"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", ".npmrc"):
        shutil.copy(DEPLOYED / name, folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
    asked = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if asked.returncode:
        pytest.skip(f"npm cannot install the proxy: {asked.stderr.strip()[-300:]}")
    return folder / "node_modules" / ".bin" / "configurable-http-proxy"


@pytest.fixture(scope="session")
def hub(proxy):
    """A running `Hub`."""
    base = Path(tempfile.mkdtemp(prefix="hub-"))
    base.chmod(0o755)
    with contextlib.ExitStack() as later:
        later.callback(shutil.rmtree, base, ignore_errors=True)
        python = Path(sys.executable)
        if python.is_relative_to(ROOT):
            python = INSIDE / python.relative_to(ROOT)
        state, homes = base / "state", base / "homes"
        _folders(state, homes)
        _accounts(base, homes)
        port, hub_port, api_port = _free_ports(3)
        running = Hub(f"http://127.0.0.1:{port}", secrets.token_hex(8), state, homes, python, base / "hub.log")
        settings = SETTINGS.format(
            deployed=INSIDE / DEPLOYED.relative_to(ROOT), address=running.address, hub_port=hub_port, api_port=api_port,
            proxy=INSIDE / proxy.relative_to(ROOT), password=running.password, users=set(USERS),
        )  # fmt: skip
        (base / "config.py").write_text(settings, encoding="utf-8")
        command = [
            "unshare",
            "--mount",
            "sh",
            "-e",
            str(_layers(base)),
            str(python),
            "-m",
            "jupyterhub",
            "-f",
            str(base / "config.py"),
        ]
        environment = os.environ | {"COURSE_HUB": str(state), "PYTHONPATH": str(INSIDE)}
        log = later.enter_context(open(base / "hub.log", "w+"))
        process = subprocess.Popen(
            command, cwd=state, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        later.callback(_stop, process)
        _wait(running.address, process, base / "hub.log")
        yield running


def _folders(state: Path, homes: Path) -> None:
    """As docs/hub.md makes them, and a home for each user."""
    for folder, mode in ((state, 0o755), (state / "exchange", 0o777), (state / "cache", 0o755), (homes, 0o755)):
        folder.mkdir()
        folder.chmod(mode)
    for name, number in USERS.items():
        (homes / name).mkdir(mode=0o700)
        os.chown(homes / name, number, number)


def _accounts(base: Path, homes: Path) -> None:
    lines = [f"{name}:x:{number}:{number}::{homes / name}:/bin/sh\n" for name, number in USERS.items()]
    (base / "passwd").write_text(Path("/etc/passwd").read_text() + "".join(lines))
    groups = [f"{name}:x:{number}:\n" for name, number in USERS.items()]
    (base / "group").write_text(Path("/etc/group").read_text() + "".join(groups))


def _layers(base: Path) -> Path:
    """A script that lays accounts, this checkout and Python where the hub's users find them, then runs its words."""
    lay = [(base / "passwd", "/etc/passwd"), (base / "group", "/etc/group"), (ROOT, INSIDE)]
    lines = [f"mount --bind {shlex.quote(str(what))} {where}" for what, where in lay]
    prefix = Path(sys.base_prefix).resolve()
    closed = next((folder for folder in reversed(prefix.parents) if not folder.stat().st_mode & 0o001), None)
    if closed:  # Python is installed below somebody's home
        kept, there = base / "python", shlex.quote(str(prefix))
        lines += [f"mkdir {kept}", f"mount --bind {there} {kept}", f"mount -t tmpfs -o mode=755 none {closed}"]
        lines += [f"mkdir -p {there}", f"mount --bind {kept} {there}"]
    script = base / "layers.sh"
    script.write_text("\n".join([*lines, 'exec "$@"\n']), encoding="utf-8")
    return script


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait(address: str, process: subprocess.Popen, log: Path) -> None:
    for _ in range(240):
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(f"{address}/hub/health", timeout=5).ok:
                return
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.5)
    raise AssertionError(f"the hub did not come up in two minutes:\n{log.read_text()[-3000:]}")


def _stop(process: subprocess.Popen) -> None:
    """The hub stops the servers and the proxy when it is asked to; what is left of its session goes with it."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=30)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
