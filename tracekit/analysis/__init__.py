"""The questions that tracekit answers, one room each: `slowrank` (who makes a job slow) and `hang` (who stopped it).

The rooms stand in a folder of their own so that `tracekit.slowrank` and `tracekit.hang` are the public functions,
whatever was imported before: Python sets a package's attribute to a submodule as soon as that is imported.
"""
