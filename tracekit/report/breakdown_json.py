"""The breakdown as JSON: the contract `tracekit.breakdown/1`, field by field, in a fixed order."""

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from tracekit.findings import BreakdownFinding, RankBreakdown, Share, TimeParts, Traffic, Volume
from tracekit.report.documents import (
    CoverageDocument,
    MeshDocument,
    Place,
    QualityDocument,
    RanksDocument,
    StepsDocument,
)
from tracekit.report.slowrank_json import (
    coverage_document,
    mesh_document,
    quality_document,
    ranks_document,
    steps_document,
)

# The JSON answer of `tracekit breakdown` as types; `documents` has the types shared by all answers. Times are
# ns.

Ns = Annotated[int, Meta(description="nanoseconds")]
Part = Annotated[float, Meta(description="share of the step, 0 to 1")]


class ExposedDocument(TypedDict):
    """Exposed communication along one axis: waiting for a late member, transfer, or either."""

    wait_ns: Ns
    transfer_ns: Ns
    open_ns: Ns


class PartsDocument(TypedDict):
    """The parts of a step, or of several; they add up to `step_ns`. `exposed` is by axis."""

    step_ns: Ns
    compute_ns: Ns
    exposed: dict[str, ExposedDocument]
    bubble_ns: Ns
    host_ns: Ns
    idle_ns: Ns
    unknown_ns: Ns


class ShareDocument(TypedDict):
    """One part over all ranks: its mean a step, its share, and the least, median and greatest share of a rank."""

    part: str
    mean_ns: Ns
    share: Part
    least: Part
    median: Part
    most: Part


class RankDocument(PartsDocument):
    """All analysed steps of a rank; `hidden_ns` is the communication beneath which it computed."""

    rank: int
    host: str | None
    coords: Place
    steps: int
    communication_ns: Ns
    hidden_ns: Ns


class CellDocument(PartsDocument):
    """One step of one rank."""

    rank: int
    step: int


class TrafficDocument(TypedDict):
    """One kind of communication along an axis, summed over the analysed steps of all ranks; null speeds are unknown."""

    axis: str
    op: str
    members: int
    rank_steps: int
    calls: int
    unsized: int
    bytes: int
    moved_bytes: int
    exposed_ns: Ns
    algorithm_gb_s: float | None
    bus_gb_s: float | None


class VolumeDocument(TypedDict):
    """What a rank sends in a step beside a formula, elements; `fits` is null where `times` counts something."""

    axis: str
    what: Literal["gradients", "activations", "loss"]
    phi: int
    recorded: float
    formula: str
    scheme: str
    expected: float
    times: float
    fits: bool | None


class BreakdownDocument(TypedDict):
    """The answer of `tracekit breakdown`; the rank that waited least comes first."""

    schema: Literal["tracekit.breakdown/1"]
    ranks: RanksDocument
    mesh: MeshDocument
    steps: StepsDocument
    total: PartsDocument
    shares: list[ShareDocument]
    by_rank: list[RankDocument]
    cells: list[CellDocument]
    traffic: list[TrafficDocument]
    volumes: list[VolumeDocument]
    coverage: CoverageDocument
    quality: list[QualityDocument]
    notes: list[str]


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
