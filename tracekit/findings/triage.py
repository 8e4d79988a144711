"""The answer of `tracekit triage` as data (contract `tracekit.triage/1`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tracekit.findings.hang import HangFinding
from tracekit.findings.shared import Rejected
from tracekit.findings.slowrank import SlowRankFinding
from tracekit.findings.tabular import Columns, Row, Tabular

EvidenceKind = Literal[
    "dump",
    "watchdog_log",
    "job_log",
    "nccl_ras",
    "py_spy",
    "faulthandler",
    "trace",
    "run",
    "operation_table",
    "nccl_inspector",
    "nsys",
    "counters",
    "capture",
]
"""What a file is, by its content."""
Says = Literal["supports", "contradicts", "silent"]
"""Whether a kind of evidence supports the answer, contradicts it, or tells nothing of it."""
Question = Literal["hang", "slowrank", "none"]
"""The question that the answer is to: who hung the job, who slows it, or neither."""


@dataclass(frozen=True)
class FoundFile:
    """One file or folder: what it is, of which ranks, and from when to when as its own clock tells it.

    `job` is the number of the job, where the input held several. `detail` says what it tells, or what reads it.
    """

    kind: EvidenceKind
    path: str
    ranks: tuple[int, ...] = ()
    begin: str | None = None
    end: str | None = None
    job: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class Testimony:
    """What one kind of evidence says of the answer."""

    kind: EvidenceKind
    says: Says
    detail: str


@dataclass(frozen=True)
class ToCollect:
    """A command that would tell more, and why."""

    command: str
    why: str


@dataclass(frozen=True)
class TriageFinding(Tabular):
    """The answer of `tracekit triage`: what was found, the answer, what each kind says of it, and what to collect.

    `other` is the answer to the other question, where the files answer both. `named` are files that another command
    reads, with the command. `skipped` are files of archives that were not unpacked, with the reason.
    """

    found: tuple[FoundFile, ...]
    unknown: tuple[str, ...]
    question: Question
    answer: HangFinding | SlowRankFinding | None
    evidence: tuple[Testimony, ...] = ()
    collect: tuple[ToCollect, ...] = ()
    other: SlowRankFinding | None = None
    skipped: tuple[Rejected, ...] = ()

    @property
    def verdict(self) -> str:
        """The verdict of the answer; `inconclusive` where the files answer no question."""
        return "inconclusive" if self.answer is None else self.answer.verdict

    def columns(self) -> Columns:
        """A file a row."""
        return dict.fromkeys(("kind", "path", "begin", "end", "detail"), "string") | {"ranks": "int64"}

    def rows(self) -> Iterator[Row]:
        """The files as the answer lists them."""
        for file in self.found:
            yield file.kind, file.path, file.begin, file.end, file.detail, len(file.ranks)

    def headline(self) -> str:
        """The verdict and why."""
        return (
            self.answer.headline()
            if self.answer is not None
            else "inconclusive: no evidence of a slow or stuck job"
        )
