"""What changed between two runs: as JSON, the contract `tracekit.diff/1` (times are ns), and as text, largest first."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from tracekit.findings.diff import Change, ComparedRun, DiffFinding, DiffVerdict
from tracekit.report.documents import MeshDocument, QualityDocument, RanksDocument, StepsDocument
from tracekit.report.shared_text import (
    Line,
    laid_out,
    mesh_line,
    numbers,
    quality_lines,
    ranks_line,
    rejected_lines,
)
from tracekit.report.slowrank_json import mesh_document, quality_document, ranks_document, steps_document
from tracekit.text import plain
from tracekit.thresholds.report import CHANGES_SHOWN, NAME_CHARACTERS, ROWS_SHOWN
from tracekit.units import ms

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


def diff_text(finding: DiffFinding, *, verbose: bool = False) -> str:
    """Return the finding in lines of `label  text`; `verbose` adds all changes, quality rows and assumptions."""
    lines: list[Line] = [(finding.verdict.upper(), finding.reason), *change_lines(finding)]
    for title, rows in (("part", finding.parts), ("own time", finding.ranks), ("kernel", finding.kernels)):
        lines += _changes(title, rows, finding.step.before_ns, verbose=verbose)
    return laid_out([*lines, *foundations(finding, verbose=verbose)])


def change_lines(finding: DiffFinding) -> list[Line]:
    """Return the change of the step, and what would decide it if it is open."""
    low, high = ms(finding.low_ns), ms(finding.high_ns)
    change = f"{ms(finding.step.change_ns):+.1f} ms a step, between {low:+.1f} and {high:+.1f}"
    return [("change", change), *([("to decide", finding.to_decide)] if finding.to_decide else [])]


def foundations(finding: DiffFinding, *, verbose: bool) -> list[Line]:
    """Return the lines on the evidence of both runs."""
    runs = (("before", finding.before), ("after", finding.after))
    lines = [line for title, run in runs for line in _run_lines(title, run, verbose=verbose)]
    return [*lines, *(("note", plain(note)) for note in finding.notes)]


def _changes(title: str, rows: Sequence[Change], step_ns: float, *, verbose: bool) -> list[Line]:
    """The lines on changes, under a head; only the largest ones that matter to a step unless `verbose`."""
    felt = [c for c in rows if verbose or abs(c.change_ns) >= CHANGES_SHOWN * step_ns]
    shown = felt[: None if verbose else ROWS_SHOWN]
    if not shown:
        return [(title, "none changed by more than the step would feel")] if rows else []
    left = len(felt) - len(shown)
    more = [("", f"… {left} more")] if left else []
    head = f"{'':{NAME_CHARACTERS}} {'before':>10} {'after':>10} {'change':>10} ms"
    return [(title, head), *(("", _change_text(c)) for c in shown), *more]


def _change_text(change: Change) -> str:
    times = f"{ms(change.before_ns):10.2f} {ms(change.after_ns):10.2f} {ms(change.change_ns):+10.2f}"
    doubt = "" if change.proven else "  not proven"
    return f"{plain(change.what)[:NAME_CHARACTERS]:<{NAME_CHARACTERS}} {times}{doubt}"


def _run_lines(title: str, run: ComparedRun, *, verbose: bool) -> list[Line]:
    """The words on the compared part of a run."""
    steps = f"steps {numbers(run.steps.analysed)}, median {run.steps.median_ms:.1f} ms"
    lines = [(title, f"{steps}; ranks {ranks_line(run.ranks)}"), ("", mesh_line(run.mesh))]
    return [*lines, *rejected_lines(run.ranks, verbose=verbose), *quality_lines(run.quality, verbose=verbose)]
