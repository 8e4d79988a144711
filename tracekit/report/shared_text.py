"""Lines of text that several answers share: mesh, ranks, steps, coverage and quality rows."""

from collections.abc import Sequence
from typing import Final

from tracekit.findings import (
    BreakdownFinding,
    Coverage,
    MeshFinding,
    Quality,
    RankCoverage,
    WhatIfFinding,
)
from tracekit.findings.floor import FloorFinding
from tracekit.text import plain
from tracekit.thresholds.report import NUMBER_RUNS_SHOWN, ROWS_SHOWN
from tracekit.thresholds.slowrank import COVERAGE_WHOLE

Line = tuple[str, str]
"""A label, and the text beside it."""
_SOURCES: Final = {
    "process_groups": "inferred from process groups",
    "flag": "from --mesh",
    "manifest": "from the run's manifest",
    "flat_world": "assumed: the traces name no process groups",
}


def laid_out(lines: Sequence[Line]) -> str:
    """Return the text of an answer: the first line unchanged, the others indented, with their labels in one column."""
    width = max(len(label) for label, _ in lines[1:])
    head = f"{lines[0][0]}  {lines[0][1]}"
    return "\n".join([head, *(f"  {label:<{width}}  {text}" for label, text in lines[1:])]) + "\n"


def mesh_line(mesh: MeshFinding) -> str:
    """Sizes of the axes from inner to outer, and where they come from."""
    return f"{mesh.written()} (inner to outer; {_SOURCES[mesh.source]})"


def ranks_line(ranks: RankCoverage) -> str:
    """Return the number of ranks read, and the missing ranks."""
    missing = f"; missing {numbers(ranks.missing)}" if ranks.missing else ""
    return f"{ranks.read} of {ranks.expected} read{missing}"


def ground_lines(finding: BreakdownFinding | FloorFinding | WhatIfFinding, *, verbose: bool) -> list[Line]:
    """Return the lines on the steps, mesh, ranks and files that an answer rests on; `verbose` adds assumptions."""
    return [
        ("steps", f"{numbers(finding.steps.analysed)}; median {finding.steps.median_ms:.1f} ms"),
        ("mesh", mesh_line(finding.mesh)),
        ("ranks", ranks_line(finding.ranks)),
        *coverage_lines(finding.coverage, verbose=verbose),
        *rejected_lines(finding.ranks, verbose=verbose),
        *quality_lines(finding.quality, verbose=verbose),
        *(("note", plain(note)) for note in finding.notes if verbose),
    ]


def rejected_lines(ranks: RankCoverage, *, verbose: bool) -> list[Line]:
    """Return a line for each file that could not be used; only the first ones unless `verbose`."""
    shown = ranks.rejected[: None if verbose else ROWS_SHOWN]
    return [("rejected", f"{plain(r.path)}: {plain(r.reason)}") for r in shown]


def coverage_lines(coverage: Coverage, *, verbose: bool) -> list[Line]:
    """Return the line on the matched share of exposed communication, where that is not all of it."""
    matched = coverage.matched
    if matched is None or (matched >= COVERAGE_WHOLE and not verbose):
        return []
    names = {axis: "no known axis" if axis == "unknown" else axis for axis in coverage.by_axis}
    axes = ", ".join(f"{names[axis]} {share:.0%}" for axis, share in coverage.by_axis.items())
    return [("matched", f"{matched:.0%} of the exposed communication ({axes})")]


def quality_lines(rows: Sequence[Quality], *, verbose: bool) -> list[Line]:
    """Return the lines for quality rows: one for each row if `verbose`, else one for each kind."""
    if verbose:
        return [("quality", _row(r)) for r in rows]
    kinds: dict[str, list[Quality]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    return [
        ("quality", _row(same[0]) if len(same) == 1 else f"{kind}: {len(same)} files")
        for kind, same in kinds.items()
    ]


def _row(row: Quality) -> str:
    parts = [row.kind + (f" ×{row.count}" if row.count > 1 else "")]
    if row.path:
        parts.append(plain(row.path))
    if row.detail:
        parts.append(plain(row.detail))
    if row.kept_events is not None:
        parts.append(f"{row.kept_events} events kept")
    return ": ".join(parts)


def numbers(values: Sequence[int]) -> str:
    """Return runs of consecutive numbers, as in `0-3, 7`; the rest are counted if there are too many."""
    runs: list[list[int]] = []
    for n in sorted(values):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:NUMBER_RUNS_SHOWN]]
    return ", ".join(shown) + (f", … ({len(values)} in all)" if len(runs) > NUMBER_RUNS_SHOWN else "")
