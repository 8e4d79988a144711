"""Answers the questions of users, one package each: `slowrank` (which rank slows a job), `hang` (which stopped it).

The packages are in a folder of their own so that `tracekit.slowrank` and `tracekit.hang` are the public functions,
whatever was imported before: Python sets a package's attribute to a submodule as soon as that is imported.
"""
