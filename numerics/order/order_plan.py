"""The order plan: every reduction of a run as data, recorded by the trainer or declared by its replayer.

    RUN/order_plan.json    "numerics.orders/1"

A reduction adds tensors of several ranks (all_reduce, reduce_scatter), of several micro-batches (accumulate) or of
blocks that travel round a ring (ring). Its operands, their order, the format and the scale decide every bit of the
result: a reduction on which two plans agree gives equal results for equal inputs.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from numerics.errors import CaptureError
from numerics.store import LIMITS
from numerics.thresholds.reading import MAX_EXTENT, MAX_ORDINAL, MAX_PLAN_BYTES, MAX_RANKS
from tracekit.small_files import check_regular
from tracekit.workers import deaths

SCHEMA: Final = "numerics.orders/1"
FILE: Final = "order_plan.json"

# the range of every whole number, checked where a plan is read
Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
Ordinal = Annotated[int, msgspec.Meta(ge=-1, lt=MAX_ORDINAL)]
Elements = Annotated[int, msgspec.Meta(ge=0, lt=MAX_EXTENT)]


class Reduction(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One reduction of a step, as the ranks of one group do it.

    `label` names the tensor reduced ("layers.1.attention.wo", "stages.0"), `op` is all_reduce, reduce_scatter,
    accumulate or ring, `reduction` is sum, max or avg. `elements` is the length of the buffer, `bounds` the ring's
    chunks (first and end element for each rank), `layout` the parameters within the buffer and their elements, in
    order. `operands` are micro-batches: for an accumulation the ones added, in order; for other operations the ones
    for which the reduction takes place (-1: once a step). `cuts` are the micro-batches after which an accumulation is
    reduced and starts again. The sum is multiplied by `scale`. `steps` are the first step for which this holds and
    the one after the last.
    """

    label: str
    axis: str
    op: str
    phase: str
    dtype: str
    group: tuple[Rank, ...]
    operands: tuple[Ordinal, ...]
    reduction: str = "sum"
    elements: Elements = 0
    bounds: tuple[tuple[Elements, Elements], ...] = ()
    layout: tuple[tuple[str, Elements], ...] = ()
    cuts: tuple[Ordinal, ...] = ()
    scale: float = 1.0
    steps: tuple[Ordinal, Ordinal] = (0, 0)

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Identity of the reduction, whichever ranks take part: phase, axis, operation, label."""
        return self.phase, self.axis, self.op, self.label


class OrderPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All reductions of a run. `source` is recorded or declared; `mesh` the sizes of the axes.

    `local` holds the settings besides reductions that decide a rank's bits: shapes of a micro-batch, formats, kernels.
    """

    schema: str = SCHEMA
    source: str
    world_size: Count
    mesh: dict[str, Count]
    local: dict[str, str] = {}
    reductions: tuple[Reduction, ...]


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
        check_regular(path)
        if path.stat().st_size > MAX_PLAN_BYTES:
            raise CaptureError(
                f"{path}: larger than {MAX_PLAN_BYTES >> 20} MiB; run again to record a new one"
            )
        if dead := deaths([path], _decoded, LIMITS):
            raise CaptureError(f"{path}: {dead[0]}; run again to record a new one")
        plan = _decoded(path)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CaptureError(
            f"{path}: no order plan ({str(error)[:200]}); run again to record a new one"
        ) from error
    if plan.schema != SCHEMA:
        raise CaptureError(f"{path}: written as {plan.schema[:60]!r}, this is {SCHEMA}; run again")
    return plan


def _decoded(path: Path) -> OrderPlan:
    return msgspec.json.decode(path.read_bytes(), type=OrderPlan)


def merged(parts: Iterable[Sequence[Reduction]]) -> tuple[Reduction, ...]:
    """Return the reductions of all ranks, each once, in the order in which they were first recorded."""
    seen: dict[Reduction, None] = {}
    for reductions in parts:
        seen.update(dict.fromkeys(reductions))
    return tuple(seen)
