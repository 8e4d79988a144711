"""The page of `tracekit floor`: the waterfall from the whole step down to the model's work, and the step's limits."""

from typing import Final, NamedTuple

from tracekit.findings.floor import FloorFinding, FloorLimit, FloorPart
from tracekit.page.palette import MISSING, Fill, fill_of
from tracekit.page.shell import About
from tracekit.report.floor import best_part, class_cells, floor_document, foundations, headline, words
from tracekit.report.html.answer import answer_page
from tracekit.report.slowrank_json import dumps
from tracekit.thresholds.report import KERNEL_ROWS, PAGE_ROWS

_FILLS: Final[dict[str, Fill]] = {
    "imbalance": ("victim",),
    "allocator_calls": ("host",),
    "launch_gaps": ("host",),
    "small_kernels": ("culprit",),
    "slow_kernels": ("culprit",),
    "recomputation": ("culprit",),
    "other_work": ("compute", "page"),
    "model": ("compute",),
    "unknown": MISSING,
}
"""Colours by part; those of `breakdown` have the colours that they have there."""


class _Row(NamedTuple):
    """One bar of the waterfall: where it begins and how wide it is, hundredths of the step, and its words."""

    fill: Fill
    left: float
    width: float
    cells: tuple[str, ...]
    remedy: str


def floor_html(finding: FloorFinding, about: About | None = None) -> str:
    """Return the page as text; the same arguments give the same bytes."""
    best = best_part(finding)
    return answer_page(
        "floor.html.j2",
        word="FLOOR",
        headline=headline(finding),
        tone="calm" if best is None else "blames",
        next_steps=["no part brings enough to act on" if best is None else best.remedy],
        lines=foundations(finding, verbose=True),
        document=("floor", dumps(floor_document(finding))),
        about=about,
        of_peak=finding.mfu is not None,
        bars=_waterfall(finding),
        limits=[_limit(limit, finding.step_ms) for limit in finding.limits],
        unknown=[(words(u.part), words(u.inside), u.needs) for u in finding.unknown],
        shown=KERNEL_ROWS,
        kernels=[(k.name, k.stage, *class_cells(k)) for k in finding.kernels[:PAGE_ROWS]],
    )


def _waterfall(finding: FloorFinding) -> list[_Row]:
    """Return a bar for each part that takes time: each begins where the one before it ends, from 100 % downwards."""
    rows, left = [], 1.0
    for part in finding.parts:
        if part.ns:
            left -= part.share
            rows.append(_row(part, max(left, 0.0), finding))
    return rows


def _row(part: FloorPart, left: float, finding: FloorFinding) -> _Row:
    brings = "–" if part.brings_ms is None else f"{part.brings_ms:.1f}"
    peak = finding.peak_tflops
    lost = () if finding.mfu is None or peak is None else (f"{part.share * peak:.1f}",)
    cells = (words(part.part), f"{part.mean_ms:.3f}", f"{part.share:.1%}", *lost, brings)
    fill = _FILLS.get(part.part) or fill_of(part.part)
    return _Row(fill, round(100 * left, 2), round(100 * part.share, 2), cells, part.remedy)


def _limit(limit: FloorLimit, step_ms: float) -> tuple[str, str, str, float, str]:
    """Return name, meaning, ms, the length of the bar in hundredths of the recorded step, and what is missing."""
    if limit.step_ms is None:
        return words(limit.limit), limit.meaning, "unknown", 0.0, f"give {limit.needs}"
    width = min(100 * limit.step_ms / step_ms, 100.0) if step_ms else 0.0
    return words(limit.limit), limit.meaning, f"{limit.step_ms:.1f}", round(width, 2), ""
