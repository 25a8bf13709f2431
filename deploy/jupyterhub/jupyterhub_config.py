"""A hub for one class on one Linux machine: accounts of the system, a server for each, nbgrader's exchange.

    sudo .venv/bin/python -m jupyterhub -f deploy/jupyterhub/jupyterhub_config.py

Set it up as docs/hub.md says.
"""

import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821  (traitlets provides it)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STATE = Path(os.environ.get("COURSE_HUB", "/srv/chat-course"))

c.JupyterHub.bind_url = "http://127.0.0.1:8000"  # put TLS in front of it
c.JupyterHub.db_url = f"sqlite:///{STATE}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = str(STATE / "cookie-secret")
c.ConfigurableHTTPProxy.command = [str(HERE / "node_modules" / ".bin" / "configurable-http-proxy")]
c.ConfigurableHTTPProxy.pid_file = str(STATE / "proxy.pid")

# Who is in this group of the system may log in, learners and instructors alike.
c.LocalAuthenticator.allowed_groups = {"chat-course"}

c.Spawner.cmd = [sys.executable, str(HERE / "single_user.py")]
c.Spawner.notebook_dir = "~/chat-course"
c.Spawner.default_url = "/lab/tree/START.ipynb"
c.Spawner.start_timeout = 120
c.Spawner.http_timeout = 120
c.Spawner.environment = {
    "COURSE_HUB": str(STATE),
    "JUPYTER_CONFIG_PATH": str(HERE / "jupyter"),
    "PYTHONPATH": str(ROOT),
    "GOMP_SPINCOUNT": "0",  # threads that wait sleep: on a shared machine they would take the others' cores
}
