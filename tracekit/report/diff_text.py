"""What changed between two runs as text: the step, then parts, ranks and kernels that changed most."""

from collections.abc import Sequence

from tracekit.findings.diff import Change, ComparedRun, DiffFinding
from tracekit.report.shared_text import (
    Line,
    laid_out,
    mesh_line,
    numbers,
    quality_lines,
    ranks_line,
    rejected_lines,
)
from tracekit.text import plain
from tracekit.thresholds.report import CHANGES_SHOWN, NAME_CHARACTERS, ROWS_SHOWN
from tracekit.units import ms


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
    lines = [line for title, run in runs for line in _run(title, run, verbose=verbose)]
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
    return [(title, head), *(("", _change(c)) for c in shown), *more]


def _change(change: Change) -> str:
    times = f"{ms(change.before_ns):10.2f} {ms(change.after_ns):10.2f} {ms(change.change_ns):+10.2f}"
    doubt = "" if change.proven else "  not proven"
    return f"{plain(change.what)[:NAME_CHARACTERS]:<{NAME_CHARACTERS}} {times}{doubt}"


def _run(title: str, run: ComparedRun, *, verbose: bool) -> list[Line]:
    """The words on the compared part of a run."""
    steps = f"steps {numbers(run.steps.analysed)}, median {run.steps.median_ms:.1f} ms"
    lines = [(title, f"{steps}; ranks {ranks_line(run.ranks)}"), ("", mesh_line(run.mesh))]
    return [*lines, *rejected_lines(run.ranks, verbose=verbose), *quality_lines(run.quality, verbose=verbose)]
