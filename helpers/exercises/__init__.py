"""The checks of every exercise, one module a unit; `helpers.check.grade` finds them by number."""
