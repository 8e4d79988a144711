"""The breakdown as JSON: the contract `tracekit.breakdown/1`, field by field, in a fixed order."""

from tracekit.findings import BreakdownFinding, RankBreakdown, Share, TimeParts, Traffic, Volume
from tracekit.report.breakdown_document import (
    BreakdownDocument,
    PartsDocument,
    RankDocument,
    ShareDocument,
    TrafficDocument,
    VolumeDocument,
)
from tracekit.report.slowrank_json import (
    coverage_document,
    mesh_document,
    quality_document,
    ranks_document,
    steps_document,
)

_DIGITS = 6
"""Digits of shares and speeds: a millionth of a step is below the resolution of clocks."""


def breakdown_document(finding: BreakdownFinding) -> BreakdownDocument:
    """Return the finding as a JSON-ready dict; times in whole ns, so that the parts of a step add up to it."""
    return {
        "schema": "tracekit.breakdown/1",
        "ranks": ranks_document(finding.ranks),
        "mesh": mesh_document(finding.mesh),
        "steps": steps_document(finding.steps),
        "total": _parts(finding.total),
        "shares": [_share(s) for s in finding.shares],
        "by_rank": [_rank(r) for r in finding.by_rank],
        "cells": [{"rank": c.rank, "step": c.step, **_parts(c.parts)} for c in finding.cells],
        "traffic": [_traffic(t) for t in finding.traffic],
        "volumes": [_volume(v) for v in finding.volumes],
        "coverage": coverage_document(finding.coverage),
        "quality": [quality_document(q) for q in finding.quality],
        "notes": list(finding.notes),
    }


def _parts(parts: TimeParts) -> PartsDocument:
    return {
        "step_ns": parts.step_ns,
        "compute_ns": parts.compute_ns,
        "exposed": {
            e.axis: {"wait_ns": e.wait_ns, "transfer_ns": e.transfer_ns, "open_ns": e.open_ns}
            for e in parts.exposed
        },
        "bubble_ns": parts.bubble_ns,
        "host_ns": parts.host_ns,
        "idle_ns": parts.idle_ns,
        "unknown_ns": parts.unknown_ns,
    }


def _share(share: Share) -> ShareDocument:
    return {
        "part": share.part,
        "mean_ns": round(share.mean_ns),
        "share": round(share.share, _DIGITS),
        "least": round(share.least, _DIGITS),
        "median": round(share.median, _DIGITS),
        "most": round(share.most, _DIGITS),
    }


def _rank(rank: RankBreakdown) -> RankDocument:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "coords": dict(rank.coords),
        "steps": rank.steps,
        **_parts(rank.parts),
        "communication_ns": rank.communication_ns,
        "hidden_ns": rank.hidden_ns,
    }


def _traffic(traffic: Traffic) -> TrafficDocument:
    return {
        "axis": traffic.axis,
        "op": traffic.op,
        "members": traffic.members,
        "rank_steps": traffic.rank_steps,
        "calls": traffic.calls,
        "unsized": traffic.unsized,
        "bytes": traffic.bytes,
        "moved_bytes": traffic.moved_bytes,
        "exposed_ns": traffic.exposed_ns,
        "algorithm_gb_s": _rounded(traffic.algorithm_gb_s),
        "bus_gb_s": _rounded(traffic.bus_gb_s),
    }


def _volume(volume: Volume) -> VolumeDocument:
    return {
        "axis": volume.axis,
        "what": volume.what,
        "phi": volume.phi,
        "recorded": round(volume.recorded, 1),
        "formula": volume.formula,
        "scheme": volume.scheme,
        "expected": round(volume.expected, 1),
        "times": round(volume.times, _DIGITS),
        "fits": volume.fits,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
