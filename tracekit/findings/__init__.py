"""Findings of the analyses as data: text and JSON of a report come from these objects alone."""

from tracekit.findings.hang import (
    CallRef,
    Culprit,
    CulpritKind,
    GroupFrontier,
    GroupRef,
    HangFinding,
    HangVerdict,
    LastDone,
    Side,
)
from tracekit.findings.shared import MeshFinding, MeshSource, Quality, RankCoverage, Rejected
from tracekit.findings.slowrank import (
    Cause,
    Coverage,
    Evidence,
    PathLevel,
    SlowRankFinding,
    StepsFinding,
    Suspect,
    Verdict,
    WhatIf,
)
from tracekit.findings.whatif import WhatIfAnswer, WhatIfFinding

__all__ = [
    "CallRef",
    "Cause",
    "Coverage",
    "Culprit",
    "CulpritKind",
    "Evidence",
    "GroupFrontier",
    "GroupRef",
    "HangFinding",
    "HangVerdict",
    "LastDone",
    "MeshFinding",
    "MeshSource",
    "PathLevel",
    "Quality",
    "RankCoverage",
    "Rejected",
    "Side",
    "SlowRankFinding",
    "StepsFinding",
    "Suspect",
    "Verdict",
    "WhatIf",
    "WhatIfAnswer",
    "WhatIfFinding",
]
