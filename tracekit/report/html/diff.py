"""The page of `tracekit diff`: the changes between two runs, the largest of each kind first."""

from collections.abc import Sequence
from typing import Any

from tracekit.findings.diff import Change, DiffFinding
from tracekit.page.scale import scale_of
from tracekit.page.shell import About
from tracekit.report.diff import change_lines, diff_document, foundations
from tracekit.report.html.answer import answer_page
from tracekit.report.html.cells import number
from tracekit.report.slowrank_json import dumps
from tracekit.text import plain
from tracekit.thresholds.diff import LEAST_CHANGE
from tracekit.thresholds.report import ALONE, BARS_DRAWN, PAGE_ROWS
from tracekit.units import ms

_TONES = {"slower": "blames", "faster": "better", "inconclusive": "open"}


def diff_html(finding: DiffFinding, about: About | None = None) -> str:
    """Return the page as text; the same arguments give the same bytes."""
    threshold = ms(LEAST_CHANGE * finding.step.before_ns)
    kinds = {"parts": finding.parts, "ranks": finding.ranks, "kernels": finding.kernels}
    titles = {
        "parts": ("Parts of the step", "Mean over ranks."),
        "ranks": ("Own time of ranks", "Compute, host and idle, at equal places."),
        "kernels": ("Kernels", "All calls in a step, mean over ranks."),
    }
    lines = [*change_lines(finding), *foundations(finding, verbose=True)]
    return answer_page(
        "diff.html.j2",
        word=finding.verdict.upper(),
        headline="; ".join([finding.reason, *_foremost(finding, threshold)]),
        tone=_TONES.get(finding.verdict, "calm"),
        next_steps=[_next(finding)],
        lines=[line for line in lines if line[0] != "to decide"],
        document=("diff", dumps(diff_document(finding))),
        about=about,
        data={"bars": {kind: _bars(rows, threshold) for kind, rows in kinds.items() if rows}},
        scripts=("bars.js",),
        threshold=f"{LEAST_CHANGE:.0%} of the step before, {threshold:.1f} ms",
        sections=[_section(kind, *titles[kind], rows) for kind, rows in kinds.items()],
    )


def _foremost(finding: DiffFinding, threshold: float) -> list[str]:
    """Return the rank that changed most, where the step would feel it and no other rank changed nearly as much."""
    ranks = sorted(finding.ranks, key=lambda c: -abs(c.change_ns))
    if not ranks or ms(abs(ranks[0].change_ns)) < threshold:
        return []
    first = ranks[0]
    if len(ranks) > 1 and abs(ranks[1].change_ns) > abs(first.change_ns) * ALONE:
        return []
    proof = "" if first.proven else " (not proven)"
    return [f"{plain(first.what)} changed most, own time {ms(first.change_ns):+.1f} ms a step{proof}"]


def _next(finding: DiffFinding) -> str:
    """Return what to do about the change."""
    if finding.to_decide:
        return finding.to_decide
    return {
        "slower": "tracekit slowrank on the second run shows the cause",
        "inconclusive": "record more steps of both runs",
    }.get(finding.verdict, "nothing to fix")


def _bars(rows: Sequence[Change], threshold: float) -> dict[str, Any]:
    """Return the largest changes as bars, ms a step, on a scale that ends at the threshold or beyond."""
    drawn = rows[:BARS_DRAWN]
    return {
        "title": "change, ms a step",
        "scale": scale_of([ms(c.change_ns) for c in drawn], threshold).document(),
        "rows": [_bar(c, threshold) for c in drawn],
    }


def _bar(change: Change, threshold: float) -> dict[str, Any]:
    """Return one bar: faint where the step would not feel it, striped where it is not proven."""
    size = ms(change.change_ns)
    towards = "less" if size < 0 else "culprit"
    words = f"{size:+.1f} ms" + ("" if change.proven else ", not proven")
    return {
        "what": plain(change.what),
        "value": number(size),
        "fill": (towards,) if change.proven else (towards, "page"),
        "faint": abs(size) < threshold,
        "words": words,
        "tooltip": f"{plain(change.what)}: {ms(change.before_ns):.2f} → {ms(change.after_ns):.2f} ms, {words}",
    }


def _section(kind: str, title: str, note: str, rows: Sequence[Change]) -> dict[str, Any]:
    """Return what the template shows of one kind of change."""
    left = len(rows) - PAGE_ROWS
    return {
        "kind": kind,
        "title": title,
        "note": note,
        "rows": [_row(c) for c in rows[:PAGE_ROWS]],
        "drawn": min(len(rows), BARS_DRAWN),
        "left": max(left, 0),
    }


def _row(change: Change) -> tuple[str, ...]:
    share = f"{change.change_ns / change.before_ns:+.1%}" if change.before_ns else "–"
    times = (f"{ms(change.before_ns):.3f}", f"{ms(change.after_ns):.3f}", f"{ms(change.change_ns):+.3f}")
    chance = "–" if change.p is None else f"{change.p:.3g}"
    return (change.what, *times, share, chance, "yes" if change.proven else "no")
