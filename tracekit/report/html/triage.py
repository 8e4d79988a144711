"""The page of `tracekit triage`: the answer of each job, what each kind of evidence says, what was found."""

from tracekit.findings.triage import FoundFile, JobAnswer, TriageFinding
from tracekit.report.html.page import render
from tracekit.report.triage import triage_text
from tracekit.text import ranges
from tracekit.thresholds.report import PAGE_ROWS, RANK_RUNS_SHOWN


def triage_html(finding: TriageFinding) -> str:
    """The page as text; the same finding gives the same bytes."""
    first = finding.first
    return render(
        "triage.html.j2",
        {},
        title=first.headline(),
        verdict=first.verdict,
        word=first.verdict.upper(),
        headline=first.headline(),
        lines=[("job", first.job)] if first.job else [],
        below=[
            ("quality", []),
            ("rejected", [f"{r.path}: {r.reason}" for r in finding.skipped]),
            ("note", [f"unknown: {path}" for path in finding.unknown[:PAGE_ROWS]]),
        ],
        answers=[_rows(answer) for answer in finding.answers],
        found=[_file(file) for file in finding.found[:PAGE_ROWS]],
        found_left=max(0, len(finding.found) - PAGE_ROWS),
        text=triage_text(finding),
    )


def _rows(answer: JobAnswer) -> dict[str, object]:
    return {
        "job": answer.job or "all files",
        "headline": answer.headline(),
        "evidence": [(t.kind, t.says, t.detail) for t in answer.evidence],
        "collect": [(c.command, c.why) for c in answer.collect],
    }


def _file(file: FoundFile) -> tuple[str, ...]:
    span = " to ".join(dict.fromkeys(t for t in (file.begin, file.end) if t))
    return file.kind, file.path, ranges(file.ranks, RANK_RUNS_SHOWN), span, file.job or "", file.detail
