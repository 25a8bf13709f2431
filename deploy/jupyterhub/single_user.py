"""What the hub starts for each user, as that user: their copy of the notebooks, up to date, and JupyterLab on it.

As with `make lab`, a file that somebody changed is never overwritten.
"""

import contextlib
import os
import sys
from pathlib import Path

from helpers.paths import cache_dir
from tools.lab import refresh
from tools.units import ROOT, CourseError


def share_downloads(shared: Path) -> None:
    """Links to the model and the device card that the machine's owner has put into `shared`; see docs/hub.md."""
    for there in shared.glob("*"):
        here = cache_dir() / there.name
        if there.suffix in {".gguf", ".safetensors", ".json"} and not here.exists():
            with contextlib.suppress(OSError):
                here.symlink_to(there)


def main() -> None:
    course = Path.home() / "chat-course"
    try:
        refresh(ROOT / "notebooks", course)
    except CourseError as error:
        print(error)  # into the hub's log; the server starts all the same, on what is there
        course.mkdir(exist_ok=True)
    share_downloads(Path(os.environ["COURSE_HUB"]) / "cache")
    os.chdir(course)  # nbgrader's list of assignments puts what it fetches, and looks for what it submits, here
    environment = os.environ | {"COURSE_HOME": str(course / ".course")}
    os.execve(sys.executable, [sys.executable, "-m", "jupyterhub.singleuser", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
