"""The page of `tracekit diff`: the changes between two runs, the largest of each kind first."""

from collections.abc import Sequence
from typing import Any

from tracekit.findings.diff import Change, DiffFinding
from tracekit.report.diff_text import change_lines, foundations
from tracekit.report.html.cells import number
from tracekit.report.html.page import below, render
from tracekit.text import plain
from tracekit.thresholds.report import BARS_DRAWN, PAGE_ROWS
from tracekit.units import ms


def diff_html(finding: DiffFinding) -> str:
    """Return the page as text; the same finding gives the same bytes."""
    kinds = {"parts": finding.parts, "ranks": finding.ranks, "kernels": finding.kernels}
    return render(
        "diff.html.j2",
        {"changes": {kind: [_bar(c) for c in rows[:BARS_DRAWN]] for kind, rows in kinds.items() if rows}},
        title=f"{finding.verdict.upper()}: {finding.reason}",
        verdict=finding.verdict,
        word=finding.verdict.upper(),
        headline=finding.reason,
        **below([*change_lines(finding), *foundations(finding, verbose=True)]),
        sections=[
            _section("parts", "Parts of the step", "Mean over ranks.", finding.parts),
            _section("ranks", "Own time of ranks", "Compute, host and idle, at equal places.", finding.ranks),
            _section("kernels", "Kernels", "All calls in a step, mean over ranks.", finding.kernels),
        ],
    )


def _section(kind: str, title: str, note: str, rows: Sequence[Change]) -> dict[str, Any]:
    """The values of the template for one kind of change."""
    left = len(rows) - PAGE_ROWS
    return {
        "kind": kind,
        "title": title,
        "note": note,
        "rows": [_row(c) for c in rows[:PAGE_ROWS]],
        "drawn": min(len(rows), BARS_DRAWN),
        "left": max(left, 0),
    }


def _bar(change: Change) -> dict[str, Any]:
    """The data that the script draws of one change, ms."""
    return {
        "what": plain(change.what),
        "before": number(ms(change.before_ns)),
        "after": number(ms(change.after_ns)),
        "change": number(ms(change.change_ns)),
        "proven": change.proven,
    }


def _row(change: Change) -> tuple[str, ...]:
    share = f"{change.change_ns / change.before_ns:+.1%}" if change.before_ns else "–"
    times = (f"{ms(change.before_ns):.3f}", f"{ms(change.after_ns):.3f}", f"{ms(change.change_ns):+.3f}")
    chance = "–" if change.p is None else f"{change.p:.3g}"
    return (change.what, *times, share, chance, "yes" if change.proven else "no")
