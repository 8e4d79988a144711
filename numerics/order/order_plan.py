"""The order plan: every reduction of a run as data. Recorded by the trainer, declared by its replayer, diffed here.

    RUN/order_plan.json    "numerics.orders/1"

A reduction adds tensors of several ranks (all_reduce, reduce_scatter), of several micro-batches (accumulate) or of
blocks that travel round a ring (ring). What it adds, in which order, in which format and at what scale decides
every bit of the result; where two plans agree on a reduction, it gives equal results for equal inputs.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from numerics.errors import CaptureError

SCHEMA: Final = "numerics.orders/1"
FILE: Final = "order_plan.json"
_MOST_BYTES: Final = 256 << 20


class Reduction(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One reduction of a step, as the ranks of one group do it.

    `label` names what is reduced ("layers.1.attention.wo", "stages.0"), `op` is all_reduce, reduce_scatter,
    accumulate or ring, `reduction` sum, max or avg. `elements` is the length of the buffer, `bounds` the ring's
    chunks (first and end element of each rank's), `layout` the parameters within the buffer and their elements,
    in order. `operands` are the micro-batches: of an accumulation those that are added, in order; else those for
    which the reduction takes place (-1: once a step). `cuts` are the micro-batches after which an accumulation is
    reduced and starts anew. The sum is multiplied by `scale`. `steps` are the first step and the one after the
    last for which this holds.
    """

    label: str
    axis: str
    op: str
    phase: str
    dtype: str
    group: tuple[int, ...]
    operands: tuple[int, ...]
    reduction: str = "sum"
    elements: int = 0
    bounds: tuple[tuple[int, int], ...] = ()
    layout: tuple[tuple[str, int], ...] = ()
    cuts: tuple[int, ...] = ()
    scale: float = 1.0
    steps: tuple[int, int] = (0, 0)

    @property
    def place(self) -> tuple[str, str, str, str]:
        """What the reduction is, whoever takes part."""
        return self.phase, self.axis, self.op, self.label


class OrderPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All reductions of a run. `source` is recorded or declared; `mesh` the sizes of the axes.

    `local` is what besides reductions decides a rank's bits: shapes of a micro-batch, formats and kernels.
    """

    schema: str = SCHEMA
    source: str
    world_size: int
    mesh: dict[str, int]
    local: dict[str, str] = {}
    reductions: tuple[Reduction, ...]


class PlanDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which two plans differ at one reduction; `sentence` says it for people.

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
        """Whether it changes only the order in which the same terms are added."""
        return self.field in {"group", "layout", "order", "cuts", "elements", "bounds"}


def write_plan(folder: Path, plan: OrderPlan) -> None:
    """Write `folder`/order_plan.json; the file appears whole or not at all."""
    temporary = folder / f".{FILE}.tmp"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=0) + b"\n")
    temporary.replace(folder / FILE)


def read_plan(folder: Path) -> OrderPlan | None:
    """Return the plan of a run folder, or None where it has none.

    CaptureError where the file is damaged or of another schema.
    """
    path = folder / FILE
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise CaptureError(f"{path}: larger than {_MOST_BYTES >> 20} MiB; run again to record it anew")
        plan = msgspec.json.decode(path.read_bytes(), type=OrderPlan)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CaptureError(
            f"{path}: no order plan ({str(error)[:200]}); run again to record it anew"
        ) from error
    if plan.schema != SCHEMA:
        raise CaptureError(f"{path}: written as {plan.schema[:60]!r}, this is {SCHEMA}; run again")
    return plan


def merged(parts: Iterable[Sequence[Reduction]]) -> tuple[Reduction, ...]:
    """Join what every rank recorded: ranks of one group tell the same, in the order in which the first told it."""
    seen: dict[Reduction, None] = {}
    for reductions in parts:
        seen.update(dict.fromkeys(reductions))
    return tuple(seen)


def differences(left: OrderPlan, right: OrderPlan) -> list[PlanDifference]:
    """How `left` differs from `right`, reduction by reduction; the same mesh is compared group by group."""
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
    if field in {"layout", "elements"} and reduction.op == "accumulate":
        return ()  # added tensor by tensor: there is no buffer in which the place would matter
    if field == "count":
        return len(reduction.operands)
    if field == "order":
        return reduction.operands
    if field == "group":
        return len(reduction.group)
    return getattr(reduction, field)


def _compared(mine: list[Reduction], other: list[Reduction]) -> list[PlanDifference]:
    """Differences of the reductions of one place; where several differ by group, all must be found."""
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
        return ",".join(_short(v) for v in value[:12]) + (",…" if len(value) > 12 else "")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _difference(reduction: Reduction, field: str, left: str, right: str, words: str) -> PlanDifference:
    what = f"{reduction.label} ({reduction.op} over {reduction.axis})"
    return PlanDifference(
        label=reduction.label,
        axis=reduction.axis,
        op=reduction.op,
        phase=reduction.phase,
        field=field,
        left=left,
        right=right,
        ranks=reduction.group,
        sentence=f"{what} {words}",
    )
