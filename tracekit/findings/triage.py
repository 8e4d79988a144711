"""The answer of `tracekit triage` as data (contract `tracekit.triage/1`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tracekit.findings.hang import HangFinding
from tracekit.findings.shared import Columns, Rejected, Row, Tabular
from tracekit.findings.slowrank import SlowRankFinding

EvidenceKind = Literal[
    "dump",
    "watchdog_log",
    "job_log",
    "nccl_ras",
    "py_spy",
    "faulthandler",
    "pystack",
    "gdb",
    "trace",
    "run",
    "operation_table",
    "nccl_inspector",
    "nsys",
    "counters",
    "capture",
]
"""What a file is, by its content."""
Says = Literal["supports", "excludes", "contradicts", "silent"]
"""Whether a kind of evidence supports the answer, excludes its cause, contradicts its ranks, or shows nothing of it."""
Question = Literal["hang", "slowrank", "none"]
"""The question that an answer is to: which rank hung the job, which slows it, or neither."""


@dataclass(frozen=True)
class FoundFile:
    """One file or folder: what it is, of which ranks, and from when to when as its own clock tells it.

    `job` is the folder of the recorded run that it belongs to. `detail` says what it tells, or what reads it.
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
    """What one kind of evidence, taken alone, says of the answer."""

    kind: EvidenceKind
    says: Says
    detail: str


@dataclass(frozen=True)
class ToCollect:
    """A command that would tell more, and why."""

    command: str
    why: str


@dataclass(frozen=True)
class JobAnswer:
    """The answer for one job. job: the folder of its recorded run, None where all files are of one.

    reason: why there is no answer. other: the answer to the other question, where the files answer both.
    """

    job: str | None
    question: Question
    answer: HangFinding | SlowRankFinding | None
    reason: str = ""
    evidence: tuple[Testimony, ...] = ()
    collect: tuple[ToCollect, ...] = ()
    other: HangFinding | SlowRankFinding | None = None

    @property
    def verdict(self) -> str:
        """The verdict; `inconclusive` where the files answer no question."""
        return "inconclusive" if self.answer is None else self.answer.verdict

    def headline(self) -> str:
        """The verdict and why."""
        return f"inconclusive: {self.reason}" if self.answer is None else self.answer.headline()


@dataclass(frozen=True)
class TriageFinding(Tabular):
    """The answer of `tracekit triage`: the files found, and an answer for each job among them.

    `skipped` are files that could not be read or were not unpacked, with the reason.
    """

    found: tuple[FoundFile, ...]
    unknown: tuple[str, ...]
    answers: tuple[JobAnswer, ...]
    skipped: tuple[Rejected, ...] = ()

    @property
    def first(self) -> JobAnswer:
        """The first answer that names something; else the first one."""
        calm = {"healthy", "none", "inconclusive"}
        return next((a for a in self.answers if a.verdict not in calm), self.answers[0])

    def columns(self) -> Columns:
        """A file a row."""
        return dict.fromkeys(("kind", "path", "begin", "end", "job", "detail"), "string") | {"ranks": "int64"}

    def rows(self) -> Iterator[Row]:
        """The files as the answer lists them."""
        for file in self.found:
            yield file.kind, file.path, file.begin, file.end, file.job, file.detail, len(file.ranks)

    def headline(self) -> str:
        """The verdict of the first job that stands out, and why."""
        return self.first.headline()
