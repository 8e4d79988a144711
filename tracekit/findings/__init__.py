"""Findings of the analyses as data: text and JSON of a report come from these objects alone."""

from tracekit.findings.shared import MeshFinding, MeshSource, Quality, RankCoverage, Rejected
from tracekit.findings.slowrank import (
    Cause,
    Evidence,
    PathLevel,
    SlowRankFinding,
    StepsFinding,
    Suspect,
    Verdict,
    WhatIf,
)

__all__ = [
    "Cause",
    "Evidence",
    "MeshFinding",
    "MeshSource",
    "PathLevel",
    "Quality",
    "RankCoverage",
    "Rejected",
    "SlowRankFinding",
    "StepsFinding",
    "Suspect",
    "Verdict",
    "WhatIf",
]
