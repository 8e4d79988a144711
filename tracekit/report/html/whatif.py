"""The page of `tracekit whatif`: the saving of each question, with its interval."""

from typing import Any

from tracekit.findings import WhatIfAnswer, WhatIfFinding
from tracekit.findings.whatif import EVERYBODY
from tracekit.page.palette import DOUBTED, MISSING, Fill
from tracekit.page.scale import scale_of
from tracekit.page.shell import About
from tracekit.report.html.answer import answer_page
from tracekit.report.html.cells import number
from tracekit.report.shared_text import Line
from tracekit.report.slowrank_json import dumps
from tracekit.report.whatif_text import asked, foundations, whatif_document
from tracekit.text import plain
from tracekit.thresholds.report import MOSTLY_THEIRS
from tracekit.thresholds.slowrank import MIN_LOST_SHARE


def whatif_html(finding: WhatIfFinding, about: About | None = None) -> str:
    """Return the page as text; the same arguments give the same bytes."""
    threshold = MIN_LOST_SHARE * finding.step_ms
    step: Line = ("step", f"{finding.step_ms:.1f} ms as recorded")
    best = _best(finding)
    calm = best is None or best.lost_ms < threshold
    return answer_page(
        "whatif.html.j2",
        word="WHAT IF",
        headline=_headline(finding, best, calm=calm),
        tone="calm" if calm else "blames",
        next_steps=[
            "nothing to fix that these questions ask for"
            if calm
            else "tracekit slowrank shows the cause of what costs most, and what fixes it"
        ],
        lines=[step, *foundations(finding, verbose=True)],
        document=("whatif", dumps(whatif_document(finding))),
        about=about,
        data={"bars": {"saved": _bars(finding, threshold)}},
        scripts=("bars.js",),
        residual=f"{finding.residual_ms:.1f}",
        threshold=f"{MIN_LOST_SHARE:.0%} of the step, {threshold:.1f} ms",
        answers=[_row(a) for a in asked(finding)],
    )


def _best(finding: WhatIfFinding) -> WhatIfAnswer | None:
    """Return, of the proven answers that save nearly as much as the best, the one that changes fewest ranks.

    What all parts of the job would save at once is the fix of none.
    """
    proven = [a for a in finding.answers if a.proven and a.question != EVERYBODY]
    most = max((a.lost_ms for a in proven), default=0.0)
    near = [a for a in proven if a.lost_ms >= MOSTLY_THEIRS * most]
    return min(near, key=lambda a: (not a.ranks, len(a.ranks), -a.lost_ms), default=None)


def _headline(finding: WhatIfFinding, best: WhatIfAnswer | None, *, calm: bool) -> str:
    """Return what the best fix saves, and all of them where that is more; calm: no fix saves the threshold."""
    every = max(asked(finding), key=lambda a: (a.proven, a.lost_ms))
    if best is None:
        best = next((a for a in finding.answers if a.proven and a.question == EVERYBODY), None)
    if best is None:
        return f"no question saves more than the model's error of {finding.residual_ms:.1f} ms a step"
    share = best.lost_ms / finding.step_ms if finding.step_ms else 0.0
    first = f"{best.lost_ms:.1f} ms of {finding.step_ms:.1f} ms a step ({share:.1%}) saved if {plain(best.meaning)}"
    if calm:
        first = f"no part alone costs {MIN_LOST_SHARE:.0%} of the step: {first}"
    if every is best or not every.proven or every.lost_ms <= best.lost_ms:
        return first
    return f"{first}; {every.lost_ms:.1f} ms if {plain(every.meaning)}"


def _bars(finding: WhatIfFinding, threshold: float) -> dict[str, Any]:
    """Return the bars of all answers, ms a step, on a scale that ends at the threshold or beyond."""
    rows = asked(finding)
    ends = [v for a in rows for v in (a.lost_ms, a.lost_ms_low, a.lost_ms_high)]
    return {
        "title": "saved, ms a step",
        "scale": scale_of(ends, threshold).document(),
        "rows": [_bar(a, threshold) for a in rows],
    }


def _bar(answer: WhatIfAnswer, threshold: float) -> dict[str, Any]:
    """Return one bar with its interval: faint below the threshold, striped where it is not proven."""
    saved = f"{answer.lost_ms:.1f} ms" + ("" if answer.proven else ", not proven")
    return {
        "what": plain(answer.question),
        "value": number(answer.lost_ms),
        "low": number(answer.lost_ms_low),
        "high": number(answer.lost_ms_high),
        "fill": _fill(answer),
        "faint": answer.lost_ms < threshold,
        "words": saved,
        "tooltip": f"{plain(answer.question)}: {saved}\n{answer.lost_ms_low:.1f} to {answer.lost_ms_high:.1f} ms",
    }


def _fill(answer: WhatIfAnswer) -> Fill:
    """Return the culprit's colour, striped where it is not proven; all parts at once are no culprit."""
    if answer.question == EVERYBODY:
        return ("soft",) if answer.proven else MISSING
    return ("culprit",) if answer.proven else DOUBTED


def _row(answer: WhatIfAnswer) -> tuple[str, ...]:
    return (
        answer.question,
        answer.meaning,
        f"{answer.without_ms:.1f}",
        f"{answer.without_ms_low:.1f}",
        f"{answer.without_ms_high:.1f}",
        f"{answer.slowdown:.3f}",
        "–" if answer.share is None else f"{answer.share:.1%}",
        "yes" if answer.proven else "no",
    )
