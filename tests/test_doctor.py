"""`make doctor`: a page whatever is broken, and nothing on it that tells who somebody is."""

import errno
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from helpers.clock import driver
from tools import doctor, doctor_device
from tools.doctor import NOTE, OK, WRONG, Finding


def test_the_cheap_looks_find_this_machine_fit():
    names = [name for name in doctor.LOOKS if name not in ("driver", "sandbox", "memory")]
    findings = {name: doctor.looked(name, doctor.LOOKS[name]) for name in names}
    assert {f.what: f.text for f in findings.values() if f.state == WRONG} == {}
    assert f"torch {torch.__version__}" in findings["versions"].text


def test_without_packages_it_says_what_is_missing():
    """-S: a Python without a single package."""
    code = "from tools.doctor import *\nprint(page([looked('packages', packages), looked('sandbox', sandbox)]))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=doctor.ROOT)
    assert "missing: filelock" in done.stdout and "ModuleNotFoundError" in done.stdout and "make setup" in done.stdout


def test_a_full_disk_is_named(monkeypatch):
    def full(**options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    found = doctor.looked("disk", doctor.disk)
    assert found.state == WRONG and "No space left" in found.text and "Make room" in found.todo


def test_no_network_and_no_model(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "not" / "there"))
    monkeypatch.delenv("COURSE_MODEL_DIR", raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1, "", ""))
    found = doctor.model()
    assert found.state == WRONG and "COURSE_MODEL_DIR" in found.todo


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('libcudart.so.13: cannot open shared object file')", "ended with 1: libcudart.so.13"),
        ("import os; os.abort()", "ended with -6"),
    ],
)
def test_a_torch_that_dies_costs_only_its_own_lines(code, said):
    first = """print('{"what": "GPU", "state": "ok", "text": "found"}', flush=True); """
    findings = doctor.device([sys.executable, "-c", first + code])
    assert [f.state for f in findings] == [OK, WRONG] and said in findings[1].text


@pytest.mark.parametrize(
    ("build", "installed", "state", "said"),
    [(None, "", NOTE, ""), (None, "550.54.14", WRONG, "CPU build"), ("13.0", "550.54.14", WRONG, "580 or later")],
)
def test_a_gpu_that_torch_does_not_see(monkeypatch, build, installed, state, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(driver, "_driver", lambda: installed)
    found = doctor_device.gpu()
    assert found.state == state and said in found.todo


def test_the_page_hides_names_and_counts_what_to_mend():
    secret = Finding("x", WRONG, f"at {Path.home()}/a on {platform.node()}", f"look into {doctor.ROOT}/b")
    page = doctor.page([secret, Finding("y", OK, "fine")])
    assert str(Path.home()) + "/" not in page and platform.node() not in page and "(course)/b" in page
    assert page.endswith("To mend: x.") and max(map(len, page.splitlines())) <= doctor.WIDTH
    assert doctor.page([Finding("y", OK, "fine")]).endswith("Everything is in order.")
