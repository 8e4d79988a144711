"""Findings as JSON: the contract `tracekit.slowrank/1`, field by field, in a fixed order."""

import json
import math
from collections.abc import Mapping
from typing import Any

from tracekit.findings import (
    Coverage,
    Cure,
    Evidence,
    ExpertWaits,
    MeshFinding,
    Quality,
    RankCoverage,
    SlowRankFinding,
    StepsFinding,
    Suspect,
)
from tracekit.findings.slowrank import Explanation
from tracekit.report.documents import (
    CoverageDocument,
    CureDocument,
    EvidenceDocument,
    ExpertWaitsDocument,
    ExplanationDocument,
    MeshDocument,
    QualityDocument,
    RanksDocument,
    SlowRankDocument,
    StepsDocument,
    SuspectDocument,
)


def slowrank_document(finding: SlowRankFinding) -> SlowRankDocument:
    """Return the finding as a JSON-ready dict, with its working if asked for; times in ms, rounded to 0.1 µs."""
    document: SlowRankDocument = {
        "schema": "tracekit.slowrank/1",
        "ranks": ranks_document(finding.ranks),
        "mesh": mesh_document(finding.mesh),
        "steps": steps_document(finding.steps),
        "verdict": finding.verdict,
        "cause": finding.cause,
        "reason": finding.reason,
        "path": [{"dim": p.dim, "index": p.index, "lag_ms": number(p.lag_ms)} for p in finding.path],
        "suspects": [_suspect(s) for s in finding.suspects],
        "candidates": [_suspect(s) for s in finding.candidates],
        "to_decide": finding.to_decide,
        "to_record": list(finding.to_record),
        "what_if": {
            "step_ms": number(finding.what_if.step_ms),
            "without_suspects_ms": number(finding.what_if.without_suspects_ms),
            "slowdown": number(finding.what_if.slowdown),
        },
        "cures": [_cure(c) for c in finding.cures],
        "network_parts": [
            {"kind": p.kind, "name": p.name, "ranks": list(p.ranks)} for p in finding.network_parts
        ],
        "expert_waits": _expert_waits(finding.expert_waits),
        "coverage": coverage_document(finding.coverage),
        "quality": [quality_document(q) for q in finding.quality],
        "notes": list(finding.notes),
    }
    if finding.explanation is not None:
        document["explanation"] = _explanation(finding.explanation)
    return document


def _cure(cure: Cure) -> CureDocument:
    """One fault that is cured after those before it; times in ms."""
    return {
        "cause": cure.cause,
        "ranks": list(cure.ranks),
        "saved_ms": number(cure.saved_ms),
        "saved_ms_low": number(cure.saved_ms_low),
        "saved_ms_high": number(cure.saved_ms_high),
        "step_ms": number(cure.step_ms),
    }


def _explanation(found: Explanation) -> ExplanationDocument:
    """The working of an answer; times in ms."""
    return {
        "considered": [
            {
                "kind": c.kind,
                "subject": c.subject,
                "ranks": list(c.ranks),
                "longer_ms": None if c.longer_ms is None else number(c.longer_ms),
                "significance": None if c.significance is None else number(c.significance),
                "limit": None if c.limit is None else number(c.limit),
                "low_ms": number(c.low_ms),
                "likely_ms": number(c.likely_ms),
                "high_ms": number(c.high_ms),
                "outcome": c.outcome,
            }
            for c in found.considered
        ],
        "gaps": [
            {"what": g.what, "could_hide_ms": number(g.could_hide_ms), "remedy": g.remedy} for g in found.gaps
        ],
        "threshold_ms": number(found.threshold_ms),
        "rule": found.rule,
    }


def ranks_document(ranks: RankCoverage) -> RanksDocument:
    """Return the ranks that an answer rests on, as in every answer."""
    return {
        "expected": ranks.expected,
        "read": ranks.read,
        "missing": list(ranks.missing),
        "rejected": [{"path": r.path, "reason": r.reason} for r in ranks.rejected],
    }


def mesh_document(mesh: MeshFinding) -> MeshDocument:
    """The mesh as in every answer: axes from inner to outer, sizes, source, and axes that divide others if any do."""
    document: MeshDocument = {
        "order": list(mesh.order),
        "sizes": {d: mesh.sizes[d] for d in mesh.order},
        "source": mesh.source,
    }
    if mesh.parts:
        document["parts"] = dict(mesh.parts)
    if mesh.programs:
        document["programs"] = [
            {"ranks": list(ranks), "sizes": dict(sizes)} for ranks, sizes in mesh.programs
        ]
    return document


def steps_document(steps: StepsFinding) -> StepsDocument:
    """Return the analysed steps, and their median time in ms."""
    return {"analysed": list(steps.analysed), "median_ms": number(steps.median_ms)}


def coverage_document(coverage: Coverage) -> CoverageDocument:
    """Return the matched shares of exposed communication time."""
    return {"matched": coverage.matched, "by_axis": dict(coverage.by_axis)}


def quality_document(row: Quality) -> QualityDocument:
    """Return one repair or doubt as a dict; empty fields are left out."""
    document: QualityDocument = {"kind": row.kind}
    if row.path is not None:
        document["path"] = row.path
    if row.count:
        document["count"] = row.count
    if row.kept_events is not None:
        document["kept_events"] = row.kept_events
    if row.detail:
        document["detail"] = row.detail
    return document


def _expert_waits(waits: ExpertWaits | None) -> ExpertWaitsDocument | None:
    if waits is None:
        return None
    return {"ranks": list(waits.ranks), "ms": [[round(value, 4) for value in line] for line in waits.ms]}


def _suspect(suspect: Suspect) -> SuspectDocument:
    return {
        "rank": suspect.rank,
        "host": suspect.host,
        "coords": dict(suspect.coords),
        "lost_ms_per_step": number(suspect.lost_ms_per_step),
        "lost_ms_low": None if suspect.lost_ms_low is None else number(suspect.lost_ms_low),
        "lost_ms_high": None if suspect.lost_ms_high is None else number(suspect.lost_ms_high),
        "confidence": suspect.confidence,
        "steps": list(suspect.steps),
        "cause": suspect.cause,
        "causes": [{"name": c.name, "share": round(c.share, 3), "named": c.sure} for c in suspect.causes],
        "mechanisms": [
            {"name": m.name, "share": round(m.share, 3), "detail": m.detail, "named": m.sure}
            for m in suspect.mechanisms
        ],
        "evidence": [_evidence(e) for e in suspect.evidence],
    }


def _evidence(row: Evidence) -> EvidenceDocument:
    peers = None if row.peers_median is None else number(row.peers_median)
    return {"what": row.what, "value": number(row.value), "peers_median": peers, "unit": row.unit}


def number(value: float) -> float | None:
    """Return `value` (ms) rounded to 0.1 µs; None where it is not finite, because JSON has no NaN."""
    return round(float(value), 4) if math.isfinite(value) else None


def dumps(document: Mapping[str, Any]) -> str:
    """Return the JSON text of `document`, ASCII (a terminal or log may show it), with a newline at the end.

    The same document always gives the same bytes. Raises ValueError for NaN and infinity.
    """
    return json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False) + "\n"
