"""A user of the hub, as their browser speaks to it: login, files, kernels, the list of assignments."""

import json
import time
import uuid
from urllib.parse import urlsplit

import requests
import websocket


class Account:
    """`name` logged in at `address`, with their server running. AssertionError when the hub refuses."""

    def __init__(self, address: str, name: str, password: str):
        self.name = name
        session = requests.Session()
        session.get(f"{address}/hub/login", timeout=30)
        form = {"username": name, "password": password, "_xsrf": session.cookies["_xsrf"]}
        session.post(f"{address}/hub/login", data=form, timeout=200)
        mark = next(c.value for c in session.cookies if c.name == "_xsrf" and c.path == "/hub/")
        asked = session.post(
            f"{address}/hub/api/users/{name}/tokens", json={}, headers={"X-XSRFToken": mark}, timeout=30
        )
        assert asked.status_code == 201, f"{name} is not logged in: {asked.status_code} {asked.text[:300]}"
        self.headers = {"Authorization": f"token {asked.json()['token']}"}
        self.hub, self.server = f"{address}/hub/api/users/{name}", f"{address}/user/{name}"
        self._start()

    def _start(self) -> None:
        requests.post(f"{self.hub}/server", headers=self.headers, timeout=200)
        for _ in range(80):
            if requests.get(self.hub, headers=self.headers, timeout=30).json().get("server"):
                return
            time.sleep(0.5)
        raise AssertionError(f"{self.name}'s server did not start")

    def api(self, method: str, path: str, **arguments) -> dict:
        """What the user's server answers to a request. AssertionError with what it says when it fails."""
        answer = requests.request(method, f"{self.server}/{path}", headers=self.headers, timeout=200, **arguments)
        assert answer.ok, f"{self.name}: {method} {path}: {answer.status_code} {answer.text[:1000]}"
        return answer.json() if answer.text else {}

    def files(self, folder: str = "") -> set[str]:
        """Names in a folder of the user's copy."""
        return {entry["name"] for entry in self.api("GET", f"api/contents/{folder}")["content"]}

    def assignment(self, action: str, name: str) -> None:
        """A button of the list of assignments: "fetch", "submit" or "fetch_feedback"."""
        said = self.api("POST", f"assignments/{action}", data={"course_id": "chat", "assignment_id": name})
        assert said["success"], said

    def run(self, code: str, seconds: float = 200) -> str:
        """What `code` prints, errors included, as a cell of a new kernel in the user's folder."""
        kernel = self.api("POST", "api/kernels", json={"name": "python3", "path": "START.ipynb"})["id"]
        try:
            return self._run(kernel, code, seconds)
        finally:
            self.api("DELETE", f"api/kernels/{kernel}")

    def shell(self, *words: str) -> str:
        """What a command prints in the user's terminal, and its exit status in the last line."""
        return self.run(
            "import subprocess\n"
            f"done = subprocess.run({list(words)!r}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)\n"
            "print(done.stdout)\nprint('exit', done.returncode)"
        )

    def _run(self, kernel: str, code: str, seconds: float) -> str:
        address = f"ws://{urlsplit(self.server).netloc}{urlsplit(self.server).path}/api/kernels/{kernel}/channels"
        headers = [f"{key}: {value}" for key, value in self.headers.items()]
        line = websocket.create_connection(address, header=headers, timeout=seconds)
        identity = uuid.uuid4().hex
        header = {
            "msg_id": identity,
            "msg_type": "execute_request",
            "username": "",
            "session": identity,
            "version": "5.3",
        }
        content = {"code": code, "silent": False, "stop_on_error": True, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        line.send(json.dumps(message))
        said = []
        while True:
            heard = json.loads(line.recv())
            if heard["parent_header"].get("msg_id") != identity:
                continue
            content = heard["content"]
            if heard["msg_type"] == "stream":
                said.append(content["text"])
            elif heard["msg_type"] == "error":
                said.append(f"{content['ename']}: {content['evalue']}\n")
            elif heard["msg_type"] == "status" and content["execution_state"] == "idle":
                line.close()
                return "".join(said)
