"""For an instructor on the hub: an nbgrader course directory, ~/class, with these units to release and grade.

python deploy/jupyterhub/make_class.py 00 02
"""

import sys
from pathlib import Path

from tools.grading import Grader
from tools.units import ROOT, CourseError, find


def main(names: list[str]) -> int:
    folder = Path.home() / "class"
    try:
        units = find(ROOT, names)
        Grader(folder, units)
    except CourseError as error:
        print(error)
        return 1
    folder.chmod(0o700)  # solutions and hidden tests
    print(f"{folder} holds {', '.join(unit.name for unit in units)}.")
    print(f"Next, there: nbgrader release_assignment {units[0].name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
