"""A GPU that torch cannot use is not passed over in silence."""

import pytest
import torch

from helpers.clock import devices, driver

PYPI = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


@pytest.mark.parametrize(
    ("cuda", "installed", "says"),
    [
        ("13.0", "", ()),  # no NVIDIA GPU: nothing to say
        (None, "", ()),
        ("13.0", "550.54.14", ("550.54.14", "580 or later", "12.6 build, which needs 525", "+cu126")),
        ("12.6", "470.82.01", ("470.82.01", "525 or later")),
        ("13.0", "580.65.06", ("new enough", "ask nvidia-smi")),
        (None, "580.65.06", ("CPU build", "whl/cu126")),
    ],
)
def test_a_driver_that_is_too_old_and_a_build_without_cuda_are_named(cuda, installed, says, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    text = driver._driver_problem(cuda, installed)
    assert bool(text) == bool(says) and all(words in text for words in says), text


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_a_chip_runs_code_of_its_own_generation(capability):
    assert driver._chip_problem("a GPU", capability, PYPI) == ""


def test_a_chip_that_is_not_in_the_build_is_told_which_build_has_it():
    text = driver._chip_problem("Tesla P100-PCIE-16GB", (6, 0), PYPI)
    assert "P100" in text and "sm_60" in text and "CUDA 12.6 build" in text
    assert driver._chip_problem("a later GPU", (13, 0), [*PYPI, "compute_120"]) == ""
    assert "nor of any build" in driver._chip_problem("Tesla K80", (3, 7), PYPI)


def test_auto_says_it_once_and_takes_what_works(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla P100-PCIE-16GB")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (6, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: PYPI)
    monkeypatch.setattr(devices, "_said", set())
    assert [devices.pick().type for _ in range(2)] == ["cpu", "cpu"] or torch.backends.mps.is_available()
    assert capsys.readouterr().out.count("this GPU is not used") == 1
    with pytest.raises(ValueError, match="P100.*use one of: auto"):
        devices.pick("cuda")


def test_the_version_is_read_from_the_kernel_module(monkeypatch):
    said = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n"
    monkeypatch.setattr(driver.Path, "read_text", lambda self, **options: said)
    assert driver._driver.__wrapped__() == "550.54.14"
