"""One file from the package index, with a progress bar and a checksum; a broken download goes on where it stopped."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import requests
from tqdm.auto import tqdm


class FetchError(RuntimeError):
    """A download could not be completed; the message says why and what else can be done."""


def locate(requirement: str) -> str:
    """The address of the wheel that pip would take for `requirement`, from whatever index pip is set up to use.

    Raises:
        FetchError: pip is missing, or cannot reach an index that has the package.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    # A notebook's kernel sets FORCE_COLOR, and then pip paints its JSON.
    plain = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    done = subprocess.run([*command, "--report", "-", requirement], capture_output=True, text=True, env=plain)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise FetchError(f"pip cannot find {requirement}: {reason}")
    return json.loads(done.stdout)["install"][0]["download_info"]["url"]


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file, read once."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(url: str, target: Path, checksum: str) -> None:
    """Download `url` to `target`, resuming `target`.part where an earlier try left one.

    Args:
        url: http(s) address.
        target: written only when complete and verified.
        checksum: hexadecimal SHA-256 of the whole file.

    Raises:
        FetchError: the connection broke (the part is kept), the disk is full, or the checksum does not match
            (the part is deleted).
    """
    part = target.with_name(target.name + ".part")
    try:
        _append(url, part, target.name)
    except requests.RequestException as error:
        raise FetchError(
            f"the download of {target.name} broke off ({error}); run it again to go on from there"
        ) from error
    except OSError as error:
        raise FetchError(
            f"cannot write {part}: {error}; free some space or set COURSE_CACHE to another disk"
        ) from error
    if (found := sha256(part)) != checksum:
        part.unlink()
        raise FetchError(f"{target.name} is damaged (SHA-256 {found[:12]}…, expected {checksum[:12]}…); fetch it again")
    part.replace(target)


def _append(url: str, part: Path, label: str) -> None:
    """Stream what is missing of `url` onto `part`."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    # PIP_CERT is where a company's own certificate authority is usually named on a machine that can pip install.
    verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("PIP_CERT") or True
    with requests.get(url, headers=headers, stream=True, timeout=30, verify=verify) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            return  # everything had arrived already; the checksum decides
        response.raise_for_status()
        resumed = response.status_code == requests.codes.partial_content
        size = int(response.headers.get("Content-Length", 0)) + (have if resumed else 0)
        with (
            part.open("ab" if resumed else "wb") as file,
            tqdm(
                total=size or None,
                initial=have if resumed else 0,
                unit="B",
                unit_scale=True,
                desc=label,
                file=sys.stdout,
            ) as bar,
        ):
            for block in response.iter_content(1 << 20):
                file.write(block)
                bar.update(len(block))
