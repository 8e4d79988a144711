"""The ladder's answer as one HTML page: the verdict, each rung, and modules by step as a whole and on every rung."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from numerics.precision.ladder import LadderFinding, Rung
from numerics.report.ladder import VERDICTS, ladder_text, telling
from numerics.report.page import Place, facts, field, listed, page, picture, strength, text
from numerics.thresholds.report import DECADES_DRAWN, MODULES_DRAWN, STEPS_DRAWN

_RED, _AMBER, _GREEN, _BLUE, _GREY = "194,50,31", "214,158,46", "44,122,75", "60,110,190", "128,136,144"
_SHAPES: Final[dict[str, tuple[str | None, str]]] = {
    "plateau": (_RED, "stay apart"),
    "unknown": (None, "not comparable on the two finest rungs"),
    "reported": (_BLUE, "reported values that stay apart"),
    "slope": (_AMBER, "fall with the format"),
    "vanishing": (_GREY, "zero but for rounding"),
    "equal": (_GREEN, "equal on every rung"),
}
"""Colour and words of what tensors do on the ladder, the worst first: a field has the worst of its tensors."""
_PALE: Final = 0.35
_FAINT: Final = 0.12


def ladder_html(finding: LadderFinding) -> str:
    """Return one page: verdict, what each rung compares, modules by step on the ladder and on each rung, tensors."""
    title = f"numerics ladder: {finding.verdict}"
    parts = [
        f"<h1>{text(title)}</h1>",
        verdict_box(finding),
        *sections(finding),
        listed("Notes", finding.notes),
        f"<h2>As text</h2><pre>{escape(ladder_text(finding))}</pre>",
    ]
    return page(title, parts)


def verdict_box(finding: LadderFinding) -> str:
    """Return the verdict in one sentence, with the formats and the first tensor that stays apart."""
    return (
        f'<div class="verdict {finding.verdict}"><p><b>{VERDICTS[finding.verdict]}</b>: {text(finding.reason)}</p>'
        f"{facts([*_facts(finding)])}</div>"
    )


def sections(finding: LadderFinding) -> list[str]:
    """Return what a page shows of a ladder: its rungs, modules by step as a whole and on each rung, tensors."""
    fields, left = _fields(finding.rungs)
    pictures = (_rung_picture(finding, fields, number) for number in range(len(finding.policies)))
    return [_rungs(finding), _ladder_picture(fields, left), *pictures, _tensors(finding)]


def _facts(finding: LadderFinding) -> Iterator[tuple[str, str]]:
    """Yield the facts below the verdict: formats, and the first tensor that stays apart."""
    yield "formats", ", ".join(finding.policies)
    if finding.first is not None:
        first = finding.first
        yield "first to stay apart", f"{first.tensor}, step {first.step}, {first.phase}"
        yield "module", first.module or "-"


def _rungs(finding: LadderFinding) -> str:
    """Return the table of what the pair of each format says for itself."""
    rows = "".join(
        f"<tr><th>{text(policy)}</th>" + "".join(f"<td class=n>{text(cell)}</td>" for cell in cells) + "</tr>"
        for policy, cells in zip(finding.policies, _comparisons(finding), strict=True)
    )
    head = "".join(
        f"<th>{name}</th>"
        for name in ("rung", "equal", "differ", "not comparable", "largest relative distance", "its tensor")
    )
    return (
        "<h3>The rungs</h3><p>The same pair of runs in each format. One rung alone proves nothing: what counts is "
        f"how distances go from rung to rung.</p><div class=scroll><table><tr>{head}</tr>{rows}</table></div>"
    )


def _comparisons(finding: LadderFinding) -> Iterator[tuple[str, ...]]:
    """Yield for each rung how many tensors are equal, differ and cannot be compared, and the farthest of them."""
    for number in range(len(finding.policies)):
        known = [rung for rung in finding.rungs if not math.isnan(rung.distances[number])]
        apart = [rung for rung in known if rung.distances[number]]
        farthest = max(apart, key=lambda rung: rung.distances[number], default=None)
        yield (
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
        f" {over[0]} more modules and {over[1]} more steps are not drawn; --json holds all."
        if any(over)
        else ""
    )
    return fields, left


def _module(rung: Rung) -> str:
    return rung.module or "(model)"


def _behaviour(rung: Rung) -> str:
    """Return what a tensor does on the ladder; a reported value that stays apart proves nothing."""
    return "reported" if rung.kind == "metric" and rung.shape == "plateau" else rung.shape


def _ladder_picture(fields: dict[Place, list[Rung]], left: str) -> str:
    """Return the picture of what the tensors of each module do from rung to rung."""
    return (
        "<h3>From rung to rung</h3><p>Red: stays apart however fine the format. Amber: falls with it, as rounding "
        "does. Grey: zero but for rounding. Green: equal. Blue: a reported value stays apart. Dashed: not comparable, "
        "so open. "
        f"Stronger: larger on the finest rung.{left}</p>"
        + picture({place: _ladder_field(members) for place, members in fields.items()})
    )


def _ladder_field(members: Sequence[Rung]) -> str:
    found = [_behaviour(rung) for rung in members]
    worst = next(name for name in _SHAPES if name in found)
    largest = _largest([rung for rung in members if _behaviour(rung) == worst], -1)
    words = ", ".join(f"{found.count(name)} {told}" for name, (_, told) in _SHAPES.items() if name in found)
    return field(_SHAPES[worst][0], _PALE if worst == "equal" else strength(largest), words)


def _largest(members: Sequence[Rung], number: int) -> float:
    """Return the largest distance on a rung; NaN where none is known."""
    known = [rung.distances[number] for rung in members if not math.isnan(rung.distances[number])]
    return max(known, default=math.nan)


def _rung_picture(finding: LadderFinding, fields: dict[Place, list[Rung]], number: int) -> str:
    """Return the picture of the distances on one rung, on a scale that all rungs share."""
    return (
        f"<h3>On the rung {text(finding.policies[number])}</h3><p>The stronger, the farther apart; one scale for all "
        "rungs, so that what rounds fades downwards. Green: equal. Dashed: not comparable.</p>"
        + picture({place: _rung_field(members, number) for place, members in fields.items()})
    )


def _rung_field(members: Sequence[Rung], number: int) -> str:
    largest = _largest(members, number)
    unknown = sum(math.isnan(rung.distances[number]) for rung in members)
    if not largest and not unknown:
        return field(_GREEN, _PALE, f"{len(members)} equal")
    words = "" if math.isnan(largest) else f"at most {largest:.1e} apart"
    words += f"{', ' if words else ''}{unknown} not comparable" if unknown else ""
    return field(_AMBER if largest > 0 else None, _depth(largest), words)


def _depth(distance: float) -> float:
    """Return how strong a distance is drawn: logarithmic, from faint at FP64's roundings to full at the whole size."""
    if not 0 < distance < math.inf:
        return 1.0
    return min(1.0, max(_FAINT, 1 + math.log10(distance) / DECADES_DRAWN))


def _tensors(finding: LadderFinding) -> str:
    """Return the table of the most informative tensors: the first that stay apart, else the farthest."""
    shown = telling(finding)
    if not shown:
        return ""
    head = "".join(
        f"<th>{text(name)}</th>" for name in ("tensor", "step", *finding.policies, "slope", "shape")
    )
    rows = "".join(
        f"<tr><td><code>{text(rung.tensor)}</code></td><td class=n>{rung.step}</td>"
        + "".join(f"<td class=n>{distance:.1e}</td>" for distance in rung.distances)
        + f"<td class=n>{rung.slope:.2f}</td><td>{text(rung.shape)}</td></tr>"
        for rung in shown
    )
    return (
        "<h3>Tensors that tell most</h3><p>Relative distance on each rung; the slope is the power of the unit roundoff "
        f"with which it falls.</p><div class=scroll><table><tr>{head}</tr>{rows}</table></div>"
    )
