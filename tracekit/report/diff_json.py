"""What changed between two runs as JSON: the contract `tracekit.diff/1`, its types and its writer. Times are ns."""

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from tracekit.findings.diff import Change, ComparedRun, DiffFinding, DiffVerdict
from tracekit.report.documents import MeshDocument, QualityDocument, RanksDocument, StepsDocument
from tracekit.report.slowrank_json import mesh_document, quality_document, ranks_document, steps_document

Ns = Annotated[int, Meta(description="nanoseconds")]


class ChangeDocument(TypedDict):
    """One quantity in both runs, median over steps; `p` is null where a run has fewer than three steps."""

    what: str
    before_ns: Ns
    after_ns: Ns
    change_ns: Ns
    p: float | None
    proven: bool


class ComparedDocument(TypedDict):
    """What of one run was compared."""

    ranks: RanksDocument
    mesh: MeshDocument
    steps: StepsDocument
    quality: list[QualityDocument]


class DiffDocument(TypedDict):
    """The answer of `tracekit diff`; lists hold the changes of each kind, the largest first."""

    schema: Literal["tracekit.diff/1"]
    before: ComparedDocument
    after: ComparedDocument
    verdict: DiffVerdict
    reason: str
    to_decide: str | None
    step: ChangeDocument
    low_ns: Ns
    high_ns: Ns
    parts: list[ChangeDocument]
    ranks: list[ChangeDocument]
    kernels: list[ChangeDocument]
    compared: Annotated[
        int, Meta(description="places of the mesh that both runs recorded; 0 of different meshes")
    ]
    notes: list[str]


def diff_document(finding: DiffFinding) -> DiffDocument:
    """Return the finding as a JSON-ready dict; times in whole ns."""
    return {
        "schema": "tracekit.diff/1",
        "before": _run(finding.before),
        "after": _run(finding.after),
        "verdict": finding.verdict,
        "reason": finding.reason,
        "to_decide": finding.to_decide,
        "step": _change(finding.step),
        "low_ns": round(finding.low_ns),
        "high_ns": round(finding.high_ns),
        "parts": [_change(c) for c in finding.parts],
        "ranks": [_change(c) for c in finding.ranks],
        "kernels": [_change(c) for c in finding.kernels],
        "compared": finding.compared,
        "notes": list(finding.notes),
    }


def _run(run: ComparedRun) -> ComparedDocument:
    return {
        "ranks": ranks_document(run.ranks),
        "mesh": mesh_document(run.mesh),
        "steps": steps_document(run.steps),
        "quality": [quality_document(q) for q in run.quality],
    }


def _change(change: Change) -> ChangeDocument:
    return {
        "what": change.what,
        "before_ns": round(change.before_ns),
        "after_ns": round(change.after_ns),
        "change_ns": round(change.change_ns),
        "p": change.p,
        "proven": change.proven,
    }
