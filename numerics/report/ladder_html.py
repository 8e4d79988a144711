"""The ladder's answer as one HTML page: the verdict, each rung, and modules by step as a whole and on every rung."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from numerics.precision.ladder import LadderFinding, Rung
from numerics.report.json import dumps
from numerics.report.ladder import VERDICTS, ladder_document, ladder_text, telling
from numerics.report.page import TONES, Field, Picture, Place, answer_page, next_of, picture, strength
from numerics.thresholds.report import DECADES_DRAWN, MODULES_DRAWN, STEPS_DRAWN
from tracekit.page.shell import About

_SHAPES: Final[dict[str, tuple[str | None, str]]] = {
    "plateau": ("culprit", "stay apart"),
    "unknown": (None, "not comparable on the two finest rungs"),
    "reported": ("reported", "reported values that stay apart"),
    "slope": ("rounding", "fall with the format"),
    "vanishing": ("soft", "zero but for rounding"),
    "equal": ("panel", "equal on every rung"),
}
"""Colour and words of what tensors do on the ladder, the worst first: a field has the worst of its tensors."""
_FAINT: Final = 0.12


@dataclass(frozen=True)
class Ladder:
    """What a page shows of a ladder: its verdict, each rung, and the pictures; `left` says what is not drawn."""

    verdict: str
    tone: str
    reason: str
    facts: tuple[tuple[str, str], ...]
    rungs: tuple[tuple[str, ...], ...]
    whole: Picture
    left: str
    pictures: tuple[tuple[str, Picture], ...]
    policies: tuple[str, ...]
    tensors: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def ladder_html(finding: LadderFinding, about: About | None = None) -> str:
    """Return one page: verdict, what each rung compares, modules by step on the ladder and on each rung, tensors."""
    ladder = ladder_of(finding)
    return answer_page(
        "ladder.html.j2",
        title=f"numerics ladder: {finding.verdict}",
        verdict=finding.verdict,
        headline=f"{ladder.verdict}: {finding.reason}",
        next_step=_next(finding),
        facts=ladder.facts,
        document=("ladder", dumps(ladder_document(finding))),
        about=about,
        ladder=ladder,
        text=ladder_text(finding),
    )


def _next(finding: LadderFinding) -> str | None:
    """Return what to do, by the verdict and the first tensor that stays apart."""
    first = finding.first
    if first is None:
        return next_of(finding.verdict, "", -1, "")
    return next_of(finding.verdict, first.module or first.tensor, first.step, first.phase)


def ladder_of(finding: LadderFinding) -> Ladder:
    """Return what a page shows of a ladder."""
    fields, left = _fields(finding.rungs)
    return Ladder(
        VERDICTS[finding.verdict],
        TONES.get(finding.verdict, "calm"),
        finding.reason,
        tuple(_facts(finding)),
        tuple(_comparisons(finding)),
        picture({place: _ladder_field(members) for place, members in fields.items()}),
        left,
        tuple(_rung_pictures(finding, fields)),
        finding.policies,
        tuple(_tensor(rung) for rung in telling(finding)),
        finding.notes,
    )


def _facts(finding: LadderFinding) -> Iterator[tuple[str, str]]:
    """Yield the facts below the verdict: formats, and the first tensor that stays apart."""
    yield "formats", ", ".join(finding.policies)
    if finding.first is not None:
        first = finding.first
        yield "first to stay apart", f"{first.tensor}, step {first.step}, {first.phase}"
        yield "module", first.module or "-"


def _comparisons(finding: LadderFinding) -> Iterator[tuple[str, ...]]:
    """Yield for each rung how many tensors are equal, differ and cannot be compared, and the farthest of them."""
    for number, policy in enumerate(finding.policies):
        known = [rung for rung in finding.rungs if not math.isnan(rung.distances[number])]
        apart = [rung for rung in known if rung.distances[number]]
        farthest = max(apart, key=lambda rung: rung.distances[number], default=None)
        yield (
            policy,
            str(len(known) - len(apart)),
            str(len(apart)),
            str(len(finding.rungs) - len(known)),
            "-" if farthest is None else f"{farthest.distances[number]:.1e}",
            "-" if farthest is None else farthest.tensor,
        )


def _fields(rungs: Sequence[Rung]) -> tuple[dict[Place, list[Rung]], str]:
    """Return the tensors of each field of the pictures, in execution order, and what is left out in words."""
    modules = dict.fromkeys(_module(rung) for rung in sorted(rungs, key=lambda rung: rung.order))
    steps = sorted({rung.step for rung in rungs})
    fields: dict[Place, list[Rung]] = {}
    wanted = set(list(modules)[:MODULES_DRAWN]), set(steps[:STEPS_DRAWN])
    for rung in sorted(rungs, key=lambda rung: rung.order):
        if _module(rung) in wanted[0] and rung.step in wanted[1]:
            fields.setdefault((_module(rung), rung.step, rung.phase), []).append(rung)
    over = max(0, len(modules) - MODULES_DRAWN), max(0, len(steps) - STEPS_DRAWN)
    left = (
        f"{over[0]} more modules and {over[1]} more steps are not drawn; the JSON holds all."
        if any(over)
        else ""
    )
    return fields, left


def _module(rung: Rung) -> str:
    return rung.module or "(model)"


def _behaviour(rung: Rung) -> str:
    """Return what a tensor does on the ladder; a reported value that stays apart proves nothing."""
    return "reported" if rung.kind == "metric" and rung.shape == "plateau" else rung.shape


def _ladder_field(members: Sequence[Rung]) -> Field:
    """Return the field of what the tensors of a module do from rung to rung: that of the worst of them."""
    found = [_behaviour(rung) for rung in members]
    worst = next(name for name in _SHAPES if name in found)
    largest = _largest([rung for rung in members if _behaviour(rung) == worst], -1)
    words = ", ".join(f"{found.count(name)} {does}" for name, (_, does) in _SHAPES.items() if name in found)
    return Field(_SHAPES[worst][0], 1.0 if worst == "equal" else strength(largest), words)


def _largest(members: Sequence[Rung], number: int) -> float:
    """Return the largest distance on a rung; NaN where none is known."""
    known = [rung.distances[number] for rung in members if not math.isnan(rung.distances[number])]
    return max(known, default=math.nan)


def _rung_pictures(
    finding: LadderFinding, fields: Mapping[Place, Sequence[Rung]]
) -> Iterator[tuple[str, Picture]]:
    """Yield the picture of the distances on each rung, all on one scale."""
    for number, policy in enumerate(finding.policies):
        yield policy, picture({place: _rung_field(members, number) for place, members in fields.items()})


def _rung_field(members: Sequence[Rung], number: int) -> Field:
    largest = _largest(members, number)
    unknown = sum(math.isnan(rung.distances[number]) for rung in members)
    if not largest and not unknown:
        return Field("panel", 1.0, f"{len(members)} equal")
    words = "" if math.isnan(largest) else f"at most {largest:.1e} apart"
    words += f"{', ' if words else ''}{unknown} not comparable" if unknown else ""
    return Field("rounding" if largest > 0 else None, _depth(largest), words)


def _depth(distance: float) -> float:
    """Return how strong a distance is drawn: logarithmic, from faint at FP64's roundings to full at the whole size."""
    if not 0 < distance < math.inf:
        return 1.0
    return min(1.0, max(_FAINT, 1 + math.log10(distance) / DECADES_DRAWN))


def _tensor(rung: Rung) -> tuple[str, ...]:
    """Return a row of the table of tensors: name, step, the distance on each rung, slope and shape."""
    distances = (f"{distance:.1e}" for distance in rung.distances)
    return (rung.tensor, str(rung.step), *distances, f"{rung.slope:.2f}", rung.shape)
