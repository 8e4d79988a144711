"""Compares two order plans, reduction by reduction."""

from typing import Any, Final

import msgspec

from numerics.order.order_plan import OrderPlan, Reduction
from numerics.thresholds.report import OPERANDS_IN_SENTENCE, RANKS_IN_SENTENCE


class PlanDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which two plans differ at one reduction; `sentence` says it in words.

    `field` is missing, extra, count, group, dtype, scale, reduction, elements, bounds, layout, order, cuts or steps.
    """

    label: str
    axis: str
    op: str
    phase: str
    field: str
    left: str
    right: str
    ranks: tuple[int, ...]
    sentence: str

    @property
    def is_order(self) -> bool:
        """Whether only the order in which the same terms are added changes."""
        return self.field in {"group", "layout", "order", "cuts", "elements", "bounds"}


def differences(left: OrderPlan, right: OrderPlan) -> list[PlanDifference]:
    """Return how `left` differs from `right`, reduction by reduction; on one mesh, group by group as well."""
    if left.mesh == right.mesh:
        ours, theirs = _by(left, groups=True), _by(right, groups=True)
    else:
        ours, theirs = _by(left, groups=False), _by(right, groups=False)
    found: list[PlanDifference] = []
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        mine, other = ours.get(key), theirs.get(key)
        if mine is None and other is not None:
            found.append(_difference(other[0], "missing", "", _words(other[0]), "is missing"))
        elif other is None and mine is not None:
            words = "is declared nowhere" if right.source == "declared" else "is not done in the other run"
            found.append(_difference(mine[0], "extra", _words(mine[0]), "", words))
        elif mine is not None and other is not None:
            found += _compared(mine, other)
    return found


def _by(plan: OrderPlan, *, groups: bool) -> dict[tuple[Any, ...], list[Reduction]]:
    out: dict[tuple[Any, ...], list[Reduction]] = {}
    for reduction in plan.reductions:
        key = (*reduction.place, reduction.group) if groups else reduction.place
        out.setdefault(key, []).append(reduction)
    return out


def _words(reduction: Reduction) -> str:
    return f"{reduction.axis}/{reduction.op} {reduction.label} of {len(reduction.group)}"


_FIELDS: Final = (
    ("reduction", "combines by {left}, not {right}"),
    ("dtype", "is done in {left}, not {right}"),
    ("scale", "is scaled by {left}, not {right}"),
    ("count", "is done {left} times a step, not {right}"),
    ("group", "adds {left} ranks, not {right}"),
    ("layout", "lays the parameters in its buffer in another order"),
    ("order", "adds the micro-batches in the order {left}, not {right}"),
    ("cuts", "is reduced after the micro-batches {left}, not {right}"),
    ("elements", "has a buffer of {left} elements, not {right}"),
    ("bounds", "cuts its buffer at other places"),
    ("steps", "is so from step {left}, not {right}"),
)


def _view(reduction: Reduction, field: str) -> Any:
    """Return the value of a reduction that is compared under the name of a field."""
    if field in {"layout", "elements"} and reduction.op == "accumulate":
        return ()  # added tensor by tensor: no buffer, so no place in one
    if field == "count":
        return len(reduction.operands)
    if field == "order":
        return reduction.operands
    if field == "group":
        return len(reduction.group)
    return getattr(reduction, field)


def _compared(mine: list[Reduction], other: list[Reduction]) -> list[PlanDifference]:
    """Return the differences between the reductions of one place, by the first on each side without a match."""
    left, right = set(mine), set(other)
    if left == right:
        return []
    first = next((r for r in mine if r not in right), mine[0])
    match = next((r for r in other if r not in left), other[0])
    out = []
    for field, words in _FIELDS:
        a, b = _view(first, field), _view(match, field)
        if a != b:
            text = words.format(left=_short(a), right=_short(b))
            out.append(_difference(first, field, _short(a), _short(b), text))
    return out


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_short(v) for v in value[:OPERANDS_IN_SENTENCE]) + (
            ",…" if len(value) > OPERANDS_IN_SENTENCE else ""
        )
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ranks(group: tuple[int, ...]) -> str:
    """Return a group's ranks as the end of a bracket; nothing where every rank adds on its own."""
    if not group:
        return ""
    shown = ", ".join(str(rank) for rank in group[:RANKS_IN_SENTENCE])
    return f", rank{'s' * (len(group) > 1)} {shown}{', …' * (len(group) > RANKS_IN_SENTENCE)}"


def _difference(reduction: Reduction, field: str, left: str, right: str, words: str) -> PlanDifference:
    return PlanDifference(
        label=reduction.label,
        axis=reduction.axis,
        op=reduction.op,
        phase=reduction.phase,
        field=field,
        left=left,
        right=right,
        ranks=reduction.group,
        sentence=f"{reduction.label} ({reduction.op} over {reduction.axis}{_ranks(reduction.group)}) {words}",
    )
