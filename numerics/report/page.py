"""What the pages of numerics share: the head of an answer, and the picture of modules by step, as tables of fields."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tracekit.page.shell import About, render

Place = tuple[str, int, str]
"""A module, a step and a phase: one field of a picture."""
_PHASES: Final = {"init": 0, "forward": 1, "backward": 2, "reduce": 3, "step": 4, "save": 5}
TONES: Final = {
    "bug": "blames",
    "precision_policy": "blames",
    "undecided": "open",
    "incomparable": "open",
}
"""How the head of a page looks, by verdict; the others are calm."""


@dataclass(frozen=True)
class Field:
    """A field of a picture: its colour by name (None: unknown), how strong it is (0 to 1), and what is said of it."""

    colour: str | None
    depth: float
    words: str


@dataclass(frozen=True)
class Picture:
    """Modules downwards as they come, steps and phases to the right; None where nothing was recorded."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Field | None, ...]], ...]


def answer_page(
    template: str,
    *,
    title: str,
    verdict: str,
    headline: str,
    next_step: str | None,
    facts: Sequence[tuple[str, str]],
    document: tuple[str, str],
    about: About | None,
    **values: Any,
) -> str:
    """Return the page of a template of this folder without a script: the verdict in a sentence, and what it rests on.

    Raises MissingExtraError where the extra `report` is not installed.
    """
    word, _, reason = headline.partition(": ")
    return render(
        __package__,
        template,
        {
            "title": title,
            "word": word,
            "headline": reason or word,
            "tone": TONES.get(verdict, "calm"),
            "next": [next_step] if next_step else [],
            "lines": list(facts),
            "below": [],
            **values,
        },
        document=document,
        about=about,
    )


def next_of(verdict: str, module: str, step: int, phase: str) -> str | None:
    """Return what to do about a verdict that comes without a next step of its own; `module` is empty if unknown."""
    tone = TONES.get(verdict, "calm")
    if tone == "blames" and module:
        when = f"step {step}, {phase}" if step >= 0 else phase
        return f"look at {module} in {when}, where the difference begins"
    return "nothing to fix" if tone == "calm" else None


def picture(fields: Mapping[Place, Field]) -> Picture:
    """Return the picture of fields."""
    columns = sorted({(step, _PHASES.get(phase, 9), phase) for _, step, phase in fields})
    modules = dict.fromkeys(module for module, _, _ in fields)
    return Picture(
        tuple(f"{f'{step} ' * (step >= 0)}{phase}" for step, _, phase in columns),
        tuple(
            (module, tuple(fields.get((module, step, phase)) for step, _, phase in columns))
            for module in modules
        ),
    )


def strength(relative: float | None) -> float:
    """Return how strong the colour of a relative size is: from 0.45 at 1e-9, or for none, to 1 above 1."""
    if relative is None or not 0 < relative < math.inf:
        return 0.99
    return min(1.0, 0.45 + 0.06 * max(0.0, 9 + float(f"{relative:e}".partition("e")[2])))
