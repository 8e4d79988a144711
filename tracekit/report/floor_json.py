"""The floor as JSON: the contract `tracekit.floor/1`, its types and its fields in a fixed order."""

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from tracekit.findings.floor import FloorFinding, FloorLimit, FloorPart, KernelClass, LimitName
from tracekit.report.documents import (
    CoverageDocument,
    MeshDocument,
    Ms,
    QualityDocument,
    RanksDocument,
    StepsDocument,
)
from tracekit.report.slowrank_json import (
    coverage_document,
    mesh_document,
    number,
    quality_document,
    ranks_document,
    steps_document,
)

_DIGITS = 6
"""Digits of shares: a millionth of a step is below the resolution of clocks."""


class FloorPartDocument(TypedDict):
    """A part of all steps of all ranks; `brings_ms` is null where the part is work that has to be done, or unknown."""

    part: str
    ns: Annotated[int, Meta(description="nanoseconds, over all steps of all ranks")]
    mean_ms: Ms
    share: float
    brings_ms: Ms | None
    remedy: str


class FloorUnknownDocument(TypedDict):
    """A part that is not shown: its time is inside another one, and `needs` shows it."""

    part: str
    inside: str
    needs: str


class FloorLimitDocument(TypedDict):
    """The step under an assumption; null where `needs` is missing."""

    limit: LimitName
    meaning: str
    step_ms: Ms | None
    needs: str


class KernelClassDocument(TypedDict):
    """A class of kernel of a stage in a step, beside the rank that runs it fastest."""

    name: str
    stage: int
    calls: int
    mean_ms: Ms
    best_ms: Ms
    best_rank: int
    lost_ms: Ms


class FloorDocument(TypedDict):
    """The answer of `tracekit floor`; `ns` of `parts` add up to `total_ns`."""

    schema: Literal["tracekit.floor/1"]
    ranks: RanksDocument
    mesh: MeshDocument
    steps: StepsDocument
    step_ms: Ms
    residual_ms: Ms
    rank_steps: int
    total_ns: Annotated[int, Meta(description="nanoseconds")]
    flops: float | None
    flops_from: Literal["given", "shapes"] | None
    peak_tflops: float | None
    peak_from: Literal["given", "device"] | None
    device: str | None
    mfu: float | None
    parts: list[FloorPartDocument]
    unknown: list[FloorUnknownDocument]
    limits: list[FloorLimitDocument]
    kernels: list[KernelClassDocument]
    coverage: CoverageDocument
    quality: list[QualityDocument]
    notes: list[str]


def floor_document(finding: FloorFinding) -> FloorDocument:
    """Return the finding as a JSON-ready dict; parts in whole ns, so that they add up, times in ms to 0.1 µs."""
    return {
        "schema": "tracekit.floor/1",
        "ranks": ranks_document(finding.ranks),
        "mesh": mesh_document(finding.mesh),
        "steps": steps_document(finding.steps),
        "step_ms": number(finding.step_ms),
        "residual_ms": number(finding.residual_ms),
        "rank_steps": finding.cells,
        "total_ns": finding.total_ns,
        "flops": finding.flops,
        "flops_from": finding.flops_from,
        "peak_tflops": finding.peak_tflops,
        "peak_from": finding.peak_from,
        "device": finding.device,
        "mfu": None if finding.mfu is None else round(finding.mfu, _DIGITS),
        "parts": [_part(p) for p in finding.parts],
        "unknown": [{"part": u.part, "inside": u.inside, "needs": u.needs} for u in finding.unknown],
        "limits": [_limit(x) for x in finding.limits],
        "kernels": [_kernel(k) for k in finding.kernels],
        "coverage": coverage_document(finding.coverage),
        "quality": [quality_document(q) for q in finding.quality],
        "notes": list(finding.notes),
    }


def _part(part: FloorPart) -> FloorPartDocument:
    return {
        "part": part.part,
        "ns": part.ns,
        "mean_ms": number(part.mean_ms),
        "share": round(part.share, _DIGITS),
        "brings_ms": None if part.brings_ms is None else number(part.brings_ms),
        "remedy": part.remedy,
    }


def _limit(limit: FloorLimit) -> FloorLimitDocument:
    step = None if limit.step_ms is None else number(limit.step_ms)
    return {"limit": limit.limit, "meaning": limit.meaning, "step_ms": step, "needs": limit.needs}


def _kernel(kernel: KernelClass) -> KernelClassDocument:
    return {
        "name": kernel.name,
        "stage": kernel.stage,
        "calls": kernel.calls,
        "mean_ms": number(kernel.mean_ms),
        "best_ms": number(kernel.best_ms),
        "best_rank": kernel.best_rank,
        "lost_ms": number(kernel.lost_ms),
    }
