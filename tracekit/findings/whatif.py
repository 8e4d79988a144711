"""The answer of `tracekit whatif` as data (contract `tracekit.whatif/1`); times in ms.

A change of meaning needs a new schema number.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tracekit.findings.shared import (
    Columns,
    Coverage,
    MeshFinding,
    Quality,
    RankCoverage,
    Row,
    StepsFinding,
    Tabular,
)

EVERYBODY: Final = "everybody"
"""The question that makes all ranks, stages and transfers typical at once: it names no part of the job."""


@dataclass(frozen=True)
class WhatIfAnswer:
    """One question, and the mean step time if its subject were typical.

    question: `rank=5`, `axis=tp`, …; `everybody` and `worst_ranks` are S and M_W of the OSDI'25 paper. ranks: the ranks
    with changed own work, empty if all or only transfers change. lost_ms: recorded step less `without_ms`; operations
    that were not matched take what is usual of their message. lost_ms_low (without_ms_high): they keep their recorded
    length. lost_ms_high (without_ms_low): they may shrink to their transfer. slowdown: recorded step over `without_ms`.
    share: of what `everybody` costs; None where that is nothing. proven: whether the whole interval is beyond the
    model's residual.
    """

    question: str
    meaning: str
    ranks: tuple[int, ...]
    without_ms: float
    without_ms_low: float
    without_ms_high: float
    slowdown: float
    lost_ms: float
    lost_ms_low: float
    lost_ms_high: float
    share: float | None
    proven: bool


@dataclass(frozen=True)
class WhatIfFinding(Tabular):
    """The answer of `tracekit whatif`.

    step_ms: mean over ranks and analysed steps. residual_ms: the error of the model with nothing changed.
    answers: one for each fix, or the standard questions. together: all fixes at once; None for standard questions.
    """

    ranks: RankCoverage
    mesh: MeshFinding
    steps: StepsFinding
    step_ms: float
    residual_ms: float
    answers: tuple[WhatIfAnswer, ...]
    together: WhatIfAnswer | None
    coverage: Coverage
    quality: tuple[Quality, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def columns(self) -> Columns:
        """An answer a row; times in ms."""
        times = (
            "without_ms",
            "without_ms_low",
            "without_ms_high",
            "slowdown",
            "lost_ms",
            "lost_ms_low",
            "lost_ms_high",
        )
        return {
            "question": "string", "meaning": "string", **dict.fromkeys(times, "double"), "share": "double",
            "proven": "bool",
        }  # fmt: skip

    def rows(self) -> Iterator[Row]:
        """The answers, then that to all fixes at once."""
        for a in (*self.answers, *([self.together] if self.together else [])):
            times = (a.without_ms, a.without_ms_low, a.without_ms_high, a.slowdown)
            yield a.question, a.meaning, *times, a.lost_ms, a.lost_ms_low, a.lost_ms_high, a.share, a.proven

    def headline(self) -> str:
        """The step that the answers are about."""
        return f"a step takes {self.step_ms:.1f} ms"
