"""The what-if finding as text, one line for each question, then the evidence; and as JSON."""

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
from tracekit.report.shared_text import (
    Line,
    ground_lines,
    laid_out,
)
from tracekit.report.slowrank_json import (
    coverage_document,
    mesh_document,
    number,
    quality_document,
    ranks_document,
    steps_document,
)
from tracekit.text import plain
from tracekit.thresholds.report import TIGHT_INTERVAL


def whatif_text(finding: WhatIfFinding, *, verbose: bool = False) -> str:
    """Return the finding in lines of `label  text`; `verbose` adds meanings, quality rows and assumptions."""
    return laid_out(whatif_lines(finding, verbose=verbose))


def whatif_lines(finding: WhatIfFinding, *, verbose: bool = False) -> list[Line]:
    """Return the finding as pairs of label and text, the recorded step first, for text and Markdown."""
    lines: list[Line] = [("WHAT IF", f"{finding.step_ms:.1f} ms a step as recorded")]
    for answer in asked(finding):
        lines.append((plain(answer.question), _priced(answer, finding.residual_ms)))
        if verbose:
            lines.append(("", plain(answer.meaning)))
    return lines + foundations(finding, verbose=verbose)


def asked(finding: WhatIfFinding) -> list[WhatIfAnswer]:
    """Return the answers, with the one to all fixes together where there are several."""
    if finding.together is None or len(finding.answers) <= 1:
        return [*finding.answers]
    return [*finding.answers, finding.together]


def foundations(finding: WhatIfFinding, *, verbose: bool) -> list[Line]:
    """Return the lines on what the answers rest on, as pairs of label and text."""
    replayed = f"misses the recorded step by {finding.residual_ms:.1f} ms with nothing changed"
    return [("model", replayed), *ground_lines(finding, verbose=verbose)]


def _priced(answer: WhatIfAnswer, residual_ms: float) -> str:
    """Return the step with the fix, the slowdown and the share of the loss, with the interval where it is wide."""
    text = f"{answer.without_ms:9.1f} ms"
    if answer.lost_ms_high - answer.lost_ms_low > max(TIGHT_INTERVAL * answer.lost_ms_low, residual_ms):
        text += f" ({answer.without_ms_low:.1f} to {answer.without_ms_high:.1f})"
    text += f", slowdown {answer.slowdown:.3f}×"
    if answer.share is not None:
        text += f", {answer.share:7.1%} of the loss"
    if answer.proven:
        return text
    doubt = "not proven" if answer.lost_ms_high > residual_ms else "within the model's error"
    return f"{text}, {doubt}"


# The what-if finding as JSON: the contract `tracekit.whatif/1`, field by field, in a fixed order.


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
