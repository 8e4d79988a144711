"""Reports from public trackers on slow, stuck and wrong jobs, remade as inputs and asked as their authors would.

`slow`, `stuck` and `wrong` hold the reports: each a number, one line of input, a maker of that input, the command, and
what a right answer says. `dumps`, `jobs` and `trained` make dumps, traces and captures from a few lines; `asked` asks
the programs; `python -m tests.reports` prints the tables of docs/public_reports.md (`page`).
"""
