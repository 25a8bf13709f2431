"""nbgrader on the hub, for learners and instructors: the course's own settings, and where notebooks are exchanged."""

import os
from pathlib import Path

c = get_config()  # noqa: F821  (traitlets provides it)
load_subconfig("nbgrader_config.py", path=str(Path(__file__).resolve().parents[3]))  # noqa: F821

CLASS = Path.home() / "class"  # an instructor's course directory, made by make_class.py

c.Exchange.root = str(Path(os.environ["COURSE_HUB"]) / "exchange")
c.CourseDirectory.course_id = "chat"
c.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", "feedback", "*.py", "*.new.ipynb"]
if CLASS.exists():
    c.CourseDirectory.root = str(CLASS)
    c.Outside.hidden = [str(CLASS)]

# Everybody has all notebooks from the start; fetching one brings back what was deleted and touches nothing else.
c.ExchangeFetchAssignment.replace_missing_files = True

# nbgrader's own feedback would show the hidden tests.
c.GenerateFeedback.preprocessors = [
    "nbgrader.preprocessors.GetGrades",
    "nbgrader.preprocessors.ClearHiddenTests",
    "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
]
