"""One built miniature course, shared by the tests that only read it."""

import pytest

from tests.pipeline import miniature
from tools import build


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Root of a course whose one unit is built and released."""
    root = tmp_path_factory.mktemp("course")
    miniature.make(root)
    assert build.main([], root) == 0
    return root
