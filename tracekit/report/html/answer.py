"""What every page of tracekit begins and ends with: the answer as its headline, its price as a bar, and its doubts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Final

from tracekit.page.shell import About, render
from tracekit.report.shared_text import Line

_BELOW: Final = ("evidence", "quality", "rejected", "note")
"""Labels whose lines have sections of their own."""


@dataclass(frozen=True)
class Price:
    """A price and its interval on a bar that is as long as the step; in hundredths of it, and in words."""

    low: float
    open: float
    at: float
    words: str


def price_of(likely: float, low: float | None, high: float | None, step_ms: float) -> Price | None:
    """Return the bar of a price, ms a step; None where nothing of it is known."""
    ends = [v for v in (low, likely, high) if v is not None and isfinite(v)]
    if not ends or not 0 < step_ms < inf:
        return None
    least, most = max(min(ends), 0.0), max(*ends, 0.0)
    low_text, high_text = f"{least:.1f}", f"{most:.1f}"
    between = f"{likely:.1f}" + (f" (between {low_text} and {high_text})" if low_text != high_text else "")
    part = 100 / step_ms
    return Price(
        round(min(least * part, 100), 2),
        round(min(max(most - least, 0.0) * part, 100), 2),
        round(min(max(likely, 0.0) * part, 100), 2),
        f"costs {between} ms of {step_ms:.1f} ms a step",
    )


def answer_page(
    template: str,
    *,
    word: str,
    headline: str,
    tone: str,
    next_steps: Sequence[str],
    lines: Sequence[Line],
    document: tuple[str, str],
    about: About | None,
    data: Mapping[str, Any] | None = None,
    scripts: Sequence[str] = (),
    **values: Any,
) -> str:
    """Return the page of a template of this folder, with an answer at its head.

    word: the verdict or the name of the command. tone: `blames`, `open`, `better` or `calm`, the look of the head.
    lines: what the answer rests on; those of repairs, doubts and rejected files go to a section of their own.
    """
    return render(
        __package__,
        template,
        {
            "title": f"{word}: {headline}",
            "word": word,
            "headline": headline,
            "tone": tone,
            "next": list(next_steps),
            "lines": [line for line in lines if line[0] not in _BELOW],
            "below": [(name, [text for label, text in lines if label == name]) for name in _BELOW],
            **values,
        },
        document=document,
        about=about,
        data=data,
        scripts=scripts,
    )
