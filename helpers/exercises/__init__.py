"""The checks of every exercise, one module a unit; `helpers.check.grade` finds them by number.

Knows all other rooms; none of them must know it: `check` imports a unit's module by name, when it is asked to grade.
"""
