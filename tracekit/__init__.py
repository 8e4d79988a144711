"""Finds the rank that makes a distributed training job slow or stuck, and what it costs.

    run = tracekit.load(["traces/"])              # files → a Run: typed tables and a quality record
    finding = tracekit.slowrank(run)              # the slow rank, where, why, and what it costs
    finding = tracekit.whatif(run, ["rank=5"])    # the step if rank 5 were typical
    finding = tracekit.breakdown(run)             # what each step consists of, and what each axis moved
    finding = tracekit.floor(run)                 # what a step could take, part by part, and what each brings
    finding = tracekit.diff(run, other)           # what takes longer in another run, tested over steps
    finding = tracekit.trend(run)                 # how a job changes over its windows: drift, changes, ranks
    finding = tracekit.places(run)                # the mesh, the groups that show it, the place of each rank
    table = tracekit.operations(run)              # all communication, one row an operation (Arrow)
    analysis = tracekit.interop.hta(run)          # the same events in HolisticTraceAnalysis
    dumps = tracekit.load_dumps(["dumps/"])       # flight-recorder dumps → a DumpSet
    finding = tracekit.hang(dumps)                # the ranks that never came, and the call they missed
    finding = tracekit.triage(["incident.tgz"])   # whatever is left, logs included → one answer

A finding is a table as well: `to_pandas()`, `to_arrow()`, and a notebook shows it. `run.slowrank()`, `whatif`,
`breakdown` and `operations` are the functions above with the run as their first argument.

Files → ingest → operations → steps → analysis → findings → report: one way, and every stage can be looked at.

The names below and the classes in `tracekit.findings` are the public API; they are imported when they are first used,
so that `import tracekit` loads nothing else. Times are milliseconds where a name ends in `_ms`, else nanoseconds.
Ranks are global ranks. Every error that is not a fault of ours is a `TracekitError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import InputError, MeshError, TracekitError, UsageError

if TYPE_CHECKING:
    from tracekit import findings, interop
    from tracekit.analysis.breakdown.analyse import analyse as breakdown
    from tracekit.analysis.diff.analyse import diff
    from tracekit.analysis.floor.analyse import floor
    from tracekit.analysis.hang.analyse import analyse as hang
    from tracekit.analysis.places import operations, places
    from tracekit.analysis.questions.answer import answer as whatif
    from tracekit.analysis.slowrank.analyse import analyse as slowrank
    from tracekit.analysis.trend.analyse import trend
    from tracekit.analysis.triage.triage import triage_files as triage
    from tracekit.dumps.load import DumpSet, load_dumps
    from tracekit.findings import BreakdownFinding, HangFinding, SlowRankFinding, WhatIfFinding
    from tracekit.findings.diff import DiffFinding
    from tracekit.findings.floor import FloorFinding
    from tracekit.findings.mesh import PlacesFinding
    from tracekit.findings.trend import TrendFinding
    from tracekit.findings.triage import TriageFinding
    from tracekit.ingest import load
    from tracekit.store import Run

__all__ = [
    "BreakdownFinding",
    "DiffFinding",
    "DumpSet",
    "FloorFinding",
    "HangFinding",
    "InputError",
    "MeshError",
    "PlacesFinding",
    "Run",
    "SlowRankFinding",
    "TracekitError",
    "TrendFinding",
    "TriageFinding",
    "UsageError",
    "WhatIfFinding",
    "breakdown",
    "diff",
    "findings",
    "floor",
    "hang",
    "interop",
    "load",
    "load_dumps",
    "operations",
    "places",
    "slowrank",
    "trend",
    "triage",
    "whatif",
]

_HOMES: Final = {
    "BreakdownFinding": ("tracekit.findings", "BreakdownFinding"),
    "DiffFinding": ("tracekit.findings.diff", "DiffFinding"),
    "DumpSet": ("tracekit.dumps.load", "DumpSet"),
    "FloorFinding": ("tracekit.findings.floor", "FloorFinding"),
    "HangFinding": ("tracekit.findings", "HangFinding"),
    "PlacesFinding": ("tracekit.findings.mesh", "PlacesFinding"),
    "Run": ("tracekit.store", "Run"),
    "SlowRankFinding": ("tracekit.findings", "SlowRankFinding"),
    "TrendFinding": ("tracekit.findings.trend", "TrendFinding"),
    "TriageFinding": ("tracekit.findings.triage", "TriageFinding"),
    "WhatIfFinding": ("tracekit.findings", "WhatIfFinding"),
    "breakdown": ("tracekit.analysis.breakdown.analyse", "analyse"),
    "diff": ("tracekit.analysis.diff.analyse", "diff"),
    "floor": ("tracekit.analysis.floor.analyse", "floor"),
    "hang": ("tracekit.analysis.hang.analyse", "analyse"),
    "load": ("tracekit.ingest", "load"),
    "load_dumps": ("tracekit.dumps.load", "load_dumps"),
    "operations": ("tracekit.analysis.places", "operations"),
    "places": ("tracekit.analysis.places", "places"),
    "slowrank": ("tracekit.analysis.slowrank.analyse", "analyse"),
    "trend": ("tracekit.analysis.trend.analyse", "trend"),
    "triage": ("tracekit.analysis.triage.triage", "triage_files"),
    "whatif": ("tracekit.analysis.questions.answer", "answer"),
}
"""Module and name of everything public that is imported when it is first used (PEP 562)."""


def __getattr__(name: str) -> Any:
    """The public object of that name; raises AttributeError where there is none."""
    if name in {"findings", "interop"}:
        return import_module(f"tracekit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    found = getattr(import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
