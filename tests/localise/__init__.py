"""Training jobs made up from facts alone, with traces as torch writes them, to measure whom `slowrank` names.

Nothing here knows tracekit, its own generator or `reftrain`: a job is laid out (`layout`, `job`), its ranks get
programs of host calls and GPU work (`builder`, `styles`), the programs run in a discrete-event machine (`engine`), and
the outcome is written as Kineto writes it (`kineto`, `forms`). Truth is the same job without its fault.
"""
