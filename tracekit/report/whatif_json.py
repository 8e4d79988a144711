"""The what-if finding as JSON: the contract `tracekit.whatif/1`, field by field, in a fixed order."""

from typing import Literal, TypedDict

from tracekit.findings import WhatIfAnswer, WhatIfFinding
from tracekit.report.documents import (
    CoverageDocument,
    MeshDocument,
    Ms,
    Number,
    QualityDocument,
    RanksDocument,
    StepsDocument,
)
from tracekit.report.slowrank_json import (
    coverage_document,
    mesh_document,
    number,
    quality_document,
    ranks_document,
    steps_document,
)


class QuestionDocument(TypedDict):
    """The mean step if what a question asks for were typical, with the interval of what was not matched."""

    question: str
    meaning: str
    ranks: list[int]
    without_ms: Ms
    without_ms_low: Ms
    without_ms_high: Ms
    slowdown: Number
    lost_ms: Ms
    lost_ms_low: Ms
    lost_ms_high: Ms
    share: Number
    proven: bool


class WhatIfDocument(TypedDict):
    """The answer of `tracekit whatif`."""

    schema: Literal["tracekit.whatif/1"]
    ranks: RanksDocument
    mesh: MeshDocument
    steps: StepsDocument
    step_ms: Ms
    residual_ms: Ms
    answers: list[QuestionDocument]
    together: QuestionDocument | None
    coverage: CoverageDocument
    quality: list[QualityDocument]
    notes: list[str]


def whatif_document(finding: WhatIfFinding) -> WhatIfDocument:
    """Return the finding as a JSON-ready dict; times in ms, rounded to 0.1 µs."""
    return {
        "schema": "tracekit.whatif/1",
        "ranks": ranks_document(finding.ranks),
        "mesh": mesh_document(finding.mesh),
        "steps": steps_document(finding.steps),
        "step_ms": number(finding.step_ms),
        "residual_ms": number(finding.residual_ms),
        "answers": [_answer(a) for a in finding.answers],
        "together": None if finding.together is None else _answer(finding.together),
        "coverage": coverage_document(finding.coverage),
        "quality": [quality_document(q) for q in finding.quality],
        "notes": list(finding.notes),
    }


def _answer(answer: WhatIfAnswer) -> QuestionDocument:
    return {
        "question": answer.question,
        "meaning": answer.meaning,
        "ranks": list(answer.ranks),
        "without_ms": number(answer.without_ms),
        "without_ms_low": number(answer.without_ms_low),
        "without_ms_high": number(answer.without_ms_high),
        "slowdown": number(answer.slowdown),
        "lost_ms": number(answer.lost_ms),
        "lost_ms_low": number(answer.lost_ms_low),
        "lost_ms_high": number(answer.lost_ms_high),
        "share": None if answer.share is None else number(answer.share),
        "proven": answer.proven,
    }
