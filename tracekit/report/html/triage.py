"""The page of `tracekit triage`: the answer of each job, what each kind of evidence says, what was found."""

from typing import Final

from tracekit.findings.triage import FoundFile, JobAnswer, TriageFinding
from tracekit.page.shell import About
from tracekit.report.html.answer import answer_page
from tracekit.report.slowrank_json import dumps
from tracekit.report.triage import triage_document, triage_text
from tracekit.text import ranges
from tracekit.thresholds.report import PAGE_ROWS, RANK_RUNS_SHOWN

_TONES: Final = {"none": "calm", "healthy": "calm", "inconclusive": "open"}


def triage_html(finding: TriageFinding, about: About | None = None) -> str:
    """Return the page as text; the same arguments give the same bytes."""
    first = finding.first
    return answer_page(
        "triage.html.j2",
        word=first.verdict.upper(),
        headline=first.headline(),
        tone=_TONES.get(first.verdict, "blames"),
        next_steps=[f"{c.command}: {c.why}" for c in first.collect],
        lines=[
            *([("job", first.job)] if first.job else []),
            *(("rejected", f"{r.path}: {r.reason}") for r in finding.skipped),
            *(("note", f"unknown: {path}") for path in finding.unknown[:PAGE_ROWS]),
        ],
        document=("triage", dumps(triage_document(finding))),
        about=about,
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
