"""The page of `tracekit triage`: the answer of each job, what each kind of evidence says, what was found."""

from collections.abc import Sequence
from typing import Final

from tracekit.findings.hang import HangFinding
from tracekit.findings.triage import FoundFile, JobAnswer, TriageFinding
from tracekit.page.shell import About
from tracekit.report.html import hang, slowrank
from tracekit.report.html.answer import answer_page
from tracekit.report.shared_text import Line
from tracekit.report.slowrank_json import dumps
from tracekit.report.slowrank_text import slowrank_lines
from tracekit.report.triage import by_kind, span_of, triage_document, triage_text
from tracekit.text import ranges
from tracekit.thresholds.report import PAGE_ROWS, RANK_RUNS_SHOWN

_TONES: Final = {"none": "calm", "healthy": "calm", "inconclusive": "open"}


def triage_html(finding: TriageFinding, about: About | None = None) -> str:
    """Return the page as text; the same arguments give the same bytes."""
    first, found = finding.first, by_kind(finding.found)
    return answer_page(
        "triage.html.j2",
        word=first.verdict.replace("_", " ").upper(),
        headline=_alone(first),
        tone=_TONES.get(first.verdict, "blames"),
        next_steps=[f"{c.command}: {c.why}" for c in first.collect] or _next(first),
        lines=[
            *([("job", first.job)] if first.job else []),
            *_foundations(first),
            *(("rejected", f"{r.path}: {r.reason}") for r in finding.skipped),
            *(("note", f"unknown: {path}") for path in finding.unknown[:PAGE_ROWS]),
        ],
        document=("triage", dumps(triage_document(finding))),
        about=about,
        answers=[_rows(answer) for answer in finding.answers],
        found=[_files(same) for same in found[:PAGE_ROWS]],
        found_left=max(0, len(found) - PAGE_ROWS),
        text=triage_text(finding),
    )


def _alone(answer: JobAnswer) -> str:
    """Return the headline without the verdict, shown above it."""
    return answer.headline().removeprefix(f"{answer.verdict}: ")


def _foundations(answer: JobAnswer) -> list[Line]:
    """Return what the answer rests on, its doubts and repairs among it, as the page of its own command has it."""
    if isinstance(answer.answer, HangFinding):
        return hang.hang_lines(answer.answer)
    lines = [] if answer.answer is None else slowrank_lines(answer.answer, verbose=True)[1:]
    return [line for line in lines if line[0] not in ("next", "to decide")]


def _next(answer: JobAnswer) -> list[str]:
    """Return what the page of the answer's own command says to do next."""
    if isinstance(answer.answer, HangFinding):
        return hang.next_of(answer.answer)
    return [] if answer.answer is None else slowrank.next_of(answer.answer)


def _rows(answer: JobAnswer) -> dict[str, object]:
    return {
        "job": answer.job or "The answer",
        "headline": answer.headline(),
        "evidence": [(t.kind, t.says, t.detail) for t in answer.evidence],
        "collect": [(c.command, c.why) for c in answer.collect],
    }


def _files(same: Sequence[FoundFile]) -> tuple[str, ...]:
    """Return the row of files of one kind and job: a path where it is one, else how many they are."""
    first, ranks = same[0], {rank for file in same for rank in file.ranks}
    span = " to ".join(dict.fromkeys(t for t in span_of(same) if t))
    what = first.path if len(same) == 1 else f"{len(same)} files, {first.path} first"
    details = dict.fromkeys(file.detail.replace("`", "") for file in same if file.detail)
    return first.kind, what, ranges(sorted(ranks), RANK_RUNS_SHOWN), span, first.job or "", "; ".join(details)
