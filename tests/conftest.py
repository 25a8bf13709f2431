"""In which order the files go to the workers of `make test`: what takes long begins first. And `one_thread`."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# 20 s of CPU or more each, the longest first. Whoever comes last leaves the other worker without work.
LONG = (
    "rehearsal/test_units.py",
    "test_misconceptions.py",
    "test_pretrained.py",
    "kernels/test_cuda_graph.py",
    "pipeline/test_grading.py",
    "pipeline/test_class.py",
    "kernels/test_cuda_check.py",
    "test_unit_06.py",
    "pipeline/test_hostile.py",
    "test_unit_10.py",
    "pipeline/test_marks.py",
    "test_sink_curve.py",
    "pipeline/test_variant.py",
    "kernels/test_cuda_compiled.py",
)
PLACE = {TESTS / name: place for place, name in enumerate(LONG)}


def pytest_collection_modifyitems(items):
    """The long files in front; xdist hands them out in this order, told so by --no-loadscope-reorder."""
    missing = [str(path) for path in PLACE if not path.exists()]
    assert not missing, f"no such files, correct LONG in tests/conftest.py: {missing}"
    items.sort(key=lambda item: PLACE.get(item.path, len(PLACE)))


@pytest.fixture(scope="module")
def one_thread():
    """For thousands of tiny steps: several threads would mostly wait for one another."""
    import numba
    import torch

    threads = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(threads[0])
    numba.set_num_threads(threads[1])
