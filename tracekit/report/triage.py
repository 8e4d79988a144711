"""`tracekit triage` as text and as JSON (contract `tracekit.triage/1`), from one finding.

First stands the answer, then what each kind of evidence says of it, what was found, and what to collect next.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal, TypedDict

from tracekit.findings.hang import HangFinding
from tracekit.findings.slowrank import SlowRankFinding
from tracekit.findings.triage import (
    EvidenceKind,
    FoundFile,
    JobAnswer,
    Question,
    Says,
    TriageFinding,
)
from tracekit.report.hang import hang_document, hang_text
from tracekit.report.shared_text import laid_out
from tracekit.report.slowrank_json import slowrank_document
from tracekit.report.slowrank_text import slowrank_lines
from tracekit.text import plain, ranges
from tracekit.thresholds.evidence import FILES_IN_ANSWER
from tracekit.thresholds.report import RANK_RUNS_SHOWN, REJECTED_SHOWN

FoundDocument = TypedDict(
    "FoundDocument",
    {
        "kind": EvidenceKind,
        "path": str,
        "ranks": list[int],
        "from": str | None,
        "to": str | None,
        "job": str | None,
        "detail": str,
    },
)
"""One file: what it is, its ranks, and its time span as its own clock tells it."""


class TestimonyDocument(TypedDict):
    """What one kind of evidence, taken alone, says of the answer."""

    kind: EvidenceKind
    says: Says
    detail: str


class CollectDocument(TypedDict):
    """A command that collects more evidence, and why."""

    command: str
    why: str


class JobDocument(TypedDict):
    """The answer for one job; `reason` is why there is none."""

    job: str | None
    question: Question
    verdict: str
    answer: dict[str, Any] | None
    reason: str
    evidence: list[TestimonyDocument]
    collect: list[CollectDocument]


class SkippedDocument(TypedDict):
    """A file that could not be read or was not unpacked, and why."""

    path: str
    reason: str


class TriageDocument(TypedDict):
    """The answer of `tracekit triage`; `answer`, `evidence` and `collect` are of the first job with a named rank."""

    schema: Literal["tracekit.triage/1"]
    found: list[FoundDocument]
    unknown: list[str]
    skipped: list[SkippedDocument]
    question: Question
    verdict: str
    answer: dict[str, Any] | None
    evidence: list[TestimonyDocument]
    collect: list[CollectDocument]
    answers: list[JobDocument]


def triage_document(finding: TriageFinding) -> TriageDocument:
    """Return the finding as a JSON-ready dict of the contract `tracekit.triage/1`."""
    first = _job(finding.first)
    return {
        "schema": "tracekit.triage/1",
        "found": [_file(file) for file in finding.found],
        "unknown": list(finding.unknown),
        "skipped": [{"path": r.path, "reason": r.reason} for r in finding.skipped],
        "question": first["question"],
        "verdict": first["verdict"],
        "answer": first["answer"],
        "evidence": first["evidence"],
        "collect": first["collect"],
        "answers": [_job(answer) for answer in finding.answers],
    }


def _file(file: FoundFile) -> FoundDocument:
    return {
        "kind": file.kind,
        "path": file.path,
        "ranks": list(file.ranks),
        "from": file.begin,
        "to": file.end,
        "job": file.job,
        "detail": file.detail,
    }


def _job(answer: JobAnswer) -> JobDocument:
    return {
        "job": answer.job,
        "question": answer.question,
        "verdict": answer.verdict,
        "answer": _answer(answer.answer),
        "reason": answer.reason,
        "evidence": [{"kind": t.kind, "says": t.says, "detail": t.detail} for t in answer.evidence],
        "collect": [{"command": c.command, "why": c.why} for c in answer.collect],
    }


def _answer(answer: HangFinding | SlowRankFinding | None) -> dict[str, Any] | None:
    """Return the document of the command that gave the answer; its schema stands in that of this one."""
    if isinstance(answer, HangFinding):
        return {**hang_document(answer)}
    return None if answer is None else {**slowrank_document(answer)}


def triage_text(finding: TriageFinding, *, verbose: bool = False) -> str:
    """Return the answer for a terminal or a log, with a newline at the end.

    verbose: also every file, and the answers as the special commands print them with --verbose.
    """
    lines: list[str] = []
    for answer in finding.answers:
        lines.extend([*_answer_lines(answer, verbose=verbose), ""])
    lines.extend(_found(finding.found, verbose=verbose))
    shown = None if verbose else REJECTED_SHOWN
    lines.extend(f"skipped {_clean(r.path)}: {_clean(r.reason)}" for r in finding.skipped[:shown])
    if finding.unknown:
        names = ", ".join(_clean(path) for path in finding.unknown[: shown or FILES_IN_ANSWER])
        more = len(finding.unknown) - len(finding.unknown[: shown or FILES_IN_ANSWER])
        lines.append(f"unknown: {names}" + (f" and {more} more" if more else ""))
    return "\n".join(lines).rstrip("\n") + "\n"


def _answer_lines(answer: JobAnswer, *, verbose: bool) -> list[str]:
    """Return the answer of one job, what each kind says of it, and what to collect."""
    head = [f"job {_clean(answer.job)}"] if answer.job is not None else []
    if isinstance(answer.answer, HangFinding):
        body = hang_text(answer.answer, verbose=verbose)
    elif answer.answer is not None:
        body = laid_out(slowrank_lines(answer.answer, verbose=verbose))
    else:
        body = f"inconclusive: {_clean(answer.reason)}\n"
    lines = [*head, *body.rstrip("\n").split("\n")]
    if answer.other is not None:
        lines.append(f"also asked: {_clean(answer.other.headline())}")
    lines.extend(f"evidence: {t.kind} {t.says}: {_clean(t.detail)}" for t in answer.evidence)
    lines.extend(f"collect: {c.command}\n    {_clean(c.why)}" for c in answer.collect)
    return lines


def _found(files: Iterable[FoundFile], *, verbose: bool) -> list[str]:
    """Return a table of what was found: a row for each kind of each job, or, if verbose, for each file."""
    rows = by_kind(files, apart=verbose)
    lines = ["found:"] if rows else ["found: nothing that any command reads"]
    for same in rows:
        ranks = ranges(sorted({rank for file in same for rank in file.ranks}), RANK_RUNS_SHOWN)
        begin, end = span_of(same)
        what = _clean(same[0].path) if len(same) == 1 else f"{len(same)} files"
        parts = [f"  {same[0].kind:<16} {what}"]
        parts += [f"ranks {ranks}"] if ranks else []
        parts += [begin if begin == end else f"{begin} to {end}"] if begin and end else []
        parts += [f"job {_clean(same[0].job)}"] if same[0].job else []
        parts += [_clean(same[0].detail)] if same[0].detail and (len(same) == 1 or not ranks) else []
        lines.append("; ".join(parts))
    return lines


def by_kind(files: Iterable[FoundFile], *, apart: bool = False) -> list[list[FoundFile]]:
    """Return the files of each kind of each job; apart: each file alone."""
    rows: dict[tuple[str, str], list[FoundFile]] = defaultdict(list)
    for file in files:
        rows[file.job or "", file.path if apart else file.kind].append(file)
    return list(rows.values())


def span_of(files: Iterable[FoundFile]) -> tuple[str | None, str | None]:
    """Return the first begin and the last end of files, as their clocks have them; None where none has one."""
    listed = list(files)
    return min((f.begin for f in listed if f.begin), default=None), max(
        (f.end for f in listed if f.end), default=None
    )


def _clean(text: str | None) -> str:
    return plain(text or "", mark=None)
