"""The floor as JSON, the contract `tracekit.floor/1` with its fields in a fixed order, and as text.

The text has the parts of the step with what each brings, then the step under each assumption.
"""

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
from tracekit.report.shared_text import (
    Line,
    ground_lines,
    laid_out,
)
from tracekit.report.slowrank_json import (
    coverage_document,
    mesh_document,
    number,
    quality_document,
    ranks_document,
    steps_document,
)
from tracekit.text import plain
from tracekit.thresholds.floor import CLASSES_SHOWN, LEAST_SAVING

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


def floor_text(finding: FloorFinding, *, verbose: bool = False) -> str:
    """Return the finding in lines of `label  text`; `verbose` adds all parts, classes, quality rows and assumptions."""
    lines: list[Line] = [("FLOOR", headline(finding)), *_part_lines(finding, verbose=verbose)]
    lines += [(words(limit.limit), _limit_text(limit)) for limit in finding.limits]
    lines += [("unknown", _unknown_words(u.part, u.inside, u.needs)) for u in finding.unknown]
    lines += _class_lines(finding, verbose=verbose)
    return laid_out(lines + foundations(finding, verbose=verbose))


def headline(finding: FloorFinding) -> str:
    """Return the step, what it achieves of the peak, and the part that brings most."""
    step = f"{finding.step_ms:.1f} ms a step"
    if finding.reached:
        step += f" at {finding.reached}"
    best = best_part(finding)
    if best is None:
        return f"{step}; no part that the traces show brings {LEAST_SAVING:.0%} of it"
    return f"{step}; {finding.step_ms - (best.brings_ms or 0.0):.1f} ms without {words(best.part)}, the largest gain"


def best_part(finding: FloorFinding) -> FloorPart | None:
    """Return the part that brings most; None where none brings enough to recommend."""
    enough = [p for p in finding.parts if worth(p, finding)]
    return max(enough, key=lambda p: p.brings_ms or 0.0, default=None)


def worth(part: FloorPart, finding: FloorFinding) -> bool:
    """Whether a part brings enough to recommend its remedy."""
    return part.brings_ms is not None and part.brings_ms > max(
        LEAST_SAVING * finding.step_ms, finding.residual_ms
    )


def words(name: str) -> str:
    """Return the name of a part or a limit as words; axes keep their names, as in `cp_dp transfer`."""
    return plain(name) if " " in name else plain(name).replace("_", " ")


def foundations(finding: FloorFinding, *, verbose: bool) -> list[Line]:
    """Return the lines on what the answer rests on, as pairs of label and text."""
    lines: list[Line] = []
    if finding.flops is not None:
        what = "of the model" if finding.flops_from == "given" else "of products, by their recorded shapes"
        lines.append(("flops", f"{finding.flops:.4g} a step of the job, {what}"))
    if finding.peak_tflops is not None:
        lines.append(("peak", f"{finding.peak_tflops:g} TFLOP/s a device{_peak_source(finding)}"))
    lines.append(("replay", f"misses the recorded step by {finding.residual_ms:.1f} ms with nothing changed"))
    return lines + ground_lines(finding, verbose=verbose)


def _peak_source(finding: FloorFinding) -> str:
    """Return the device that the peak is of, where no option gives the peak."""
    if finding.peak_from != "device":
        return ""
    return f": the dense 16-bit peak of {plain(finding.device or '')}, which the traces name (--hardware overrides it)"


def class_cells(kernel: KernelClass) -> tuple[str, str, str, str, str]:
    """Return calls, mean ms, best ms, the rank with the best, and the ms lost, of a class of kernel in a step."""
    lost = f"{kernel.lost_ms:.3f}"
    return f"{kernel.calls}", f"{kernel.mean_ms:.3f}", f"{kernel.best_ms:.3f}", f"{kernel.best_rank}", lost


def _part_lines(finding: FloorFinding, *, verbose: bool) -> list[Line]:
    """Return a line for each part that takes time, or all, and the remedies that bring enough."""
    lines: list[Line] = [("part", f"{'ms a step':>12} {'share':>7}  brings at most")]
    for part in finding.parts:
        if part.ns or verbose:
            lines.append((words(part.part), _part_text(part)))
        if part.remedy and (verbose or worth(part, finding) or _open(part)):
            lines.append(("", f"  → {part.remedy}"))
    return lines


def _open(part: FloorPart) -> bool:
    """Whether a large part has a remedy, and nothing shows what that brings."""
    return part.brings_ms is None and part.share > LEAST_SAVING


def _part_text(part: FloorPart) -> str:
    brings = "" if part.brings_ms is None else f"{part.brings_ms:9.1f} ms"
    return f"{part.mean_ms:12.3f} {part.share:7.1%}  {brings}".rstrip()


def _limit_text(limit: FloorLimit) -> str:
    if limit.step_ms is None:
        return f"unknown; give {limit.needs}"
    return f"{limit.step_ms:12.3f} ms  {plain(limit.meaning)}"


def _unknown_words(part: str, inside: str, needs: str) -> str:
    return f"{words(part)}, inside {words(inside)}; needs {needs}"


def _class_lines(finding: FloorFinding, *, verbose: bool) -> list[Line]:
    """Return the classes of kernel that lose most beside their best rate."""
    shown = [k for k in finding.kernels if k.lost_ms > 0][: None if verbose else CLASSES_SHOWN]
    if not shown:
        return []
    rows = [(f"stage {k.stage}", _class(k)) for k in shown]
    return [("kernels", f"{'calls':>7} {'mean ms':>10} {'best ms':>10}  rank {'lost ms':>10}"), *rows]


def _class(kernel: KernelClass) -> str:
    calls, mean, best, rank, lost = class_cells(kernel)
    return f"{calls:>7} {mean:>10} {best:>10} {rank:>5} {lost:>10}  {plain(kernel.name):.60}"
