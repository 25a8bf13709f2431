"""nbgrader's settings, for `make notebooks`, `make score` and `make grade`, and for `nbgrader` run by hand."""

c = get_config()  # noqa: F821  (traitlets provides it)

c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"
# "*.py" keeps the percent sources, which hold every solution, out of what learners get.
c.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", "feedback", "*.py"]

# One comment line: an unwritten function is still a function (its docstring is its body) and returns None,
# so that the checker can say "not answered yet" instead of nbgrader's NotImplementedError.
c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE"}

# In the place of nbgrader's own Execute: the learner's cells run in a sandbox, and the tests outside of it.
c.Autograde.autograde_preprocessors = [
    "tools.outside.Outside",
    "nbgrader.preprocessors.IgnorePattern",
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]

# Points come from artifacts, never from clocks: what only measures is tagged `measure` and not run when grading.
c.Execute.skip_cells_with_tag = "measure"
c.Execute.timeout = 60
c.Execute.startup_timeout = 120
c.Execute.iopub_timeout = 60

# A learner who deleted a test cell is graded on it all the same.
c.OverwriteCells.add_missing_cells = True
