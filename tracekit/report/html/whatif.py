"""The page of `tracekit whatif`: the saving of each question, with its interval."""

from typing import Any

from tracekit.findings import WhatIfAnswer, WhatIfFinding
from tracekit.report.html.cells import number
from tracekit.report.html.page import below, render
from tracekit.report.whatif_text import asked, foundations
from tracekit.text import plain


def whatif_html(finding: WhatIfFinding) -> str:
    """Return the page as text; the same finding gives the same bytes."""
    lines = foundations(finding, verbose=True)
    headline = f"{finding.step_ms:.1f} ms a step as recorded"
    return render(
        "whatif.html.j2",
        {"saved": [_saved(a) for a in asked(finding)]},
        title=f"WHAT IF: {headline}",
        verdict="",
        word="WHAT IF",
        headline=headline,
        **below(lines),
        residual=f"{finding.residual_ms:.1f}",
        answers=[_row(a) for a in asked(finding)],
    )


def _saved(answer: WhatIfAnswer) -> dict[str, Any]:
    """The data that the script draws of one answer, ms."""
    return {
        "question": plain(answer.question),
        "lost": number(answer.lost_ms),
        "low": number(answer.lost_ms_low),
        "high": number(answer.lost_ms_high),
        "proven": answer.proven,
    }


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
