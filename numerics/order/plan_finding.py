"""The answer of `numerics plan`: how two runs order their sums, and which captured tensors may differ by that."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from numerics.columns import Names, read_columns
from numerics.errors import CaptureError
from numerics.order.affected_tensors import AffectedTensors, affected_tensors
from numerics.order.order_plan import OrderPlan, read_plan
from numerics.order.plan_differences import PlanDifference, differences
from numerics.schema import FOLDER
from numerics.store import open_capture
from tracekit.errors import InputError

PLAN_SCHEMA: Final = "numerics.plan/1"


@dataclass(frozen=True)
class TensorGroup:
    """The captured tensors of one step, phase and kind: their number, and the names of tensors that may differ."""

    step: int
    phase: str
    kind: str
    captured: int
    may_differ: tuple[str, ...]


@dataclass(frozen=True)
class PlanFinding:
    """Answer of `numerics plan`.

    `local` are the differing settings that decide bits besides reductions: (name, of the run, of the other).
    `tensors` are those of the run's capture, empty where it has none.
    """

    run: str
    other: str
    reductions: int
    differences: tuple[PlanDifference, ...]
    local: tuple[tuple[str, str, str], ...]
    affected: AffectedTensors
    tensors: tuple[TensorGroup, ...]


def required_plan(run: Path) -> OrderPlan:
    """Return the plan of a run folder. InputError where it has none, or a damaged one."""
    try:
        plan = read_plan(run)
    except CaptureError as error:
        raise InputError(str(error)) from error
    if plan is None:
        raise InputError(f"{run}: no order_plan.json; run again with reftrain run --capture digest")
    return plan


def plan_finding(run: Path, other: Path) -> PlanFinding:
    """Return how the plans of two run folders differ. InputError where one of them has no plan."""
    left, right = required_plan(run), required_plan(other)
    found = affected_tensors(left, right)
    names = sorted(left.local.keys() | right.local.keys())
    local = tuple(
        (name, left.local.get(name, "not said"), right.local.get(name, "not said"))
        for name in names
        if left.local.get(name) != right.local.get(name)
    )
    return PlanFinding(
        run=str(run),
        other=str(other),
        reductions=len(left.reductions),
        differences=tuple(differences(left, right)),
        local=local,
        affected=found,
        tensors=_groups(run, found) if (run / FOLDER).is_dir() else (),
    )


def _groups(run: Path, found: AffectedTensors) -> tuple[TensorGroup, ...]:
    """Return the captured tensors by step, phase and kind, in the order in which they first occur."""
    rows = read_columns(open_capture(run), Names())
    counts: dict[tuple[int, str, str], dict[str, None]] = {}
    columns = ("step", "phase", "kind", "tensor")
    seen = dict.fromkeys(zip(*(rows[c].tolist() for c in columns), strict=True))
    for step, phase, kind, tensor in seen:
        key = step, rows.names.text(phase), rows.names.text(kind)
        counts.setdefault(key, {})[rows.names.text(tensor)] = None
    return tuple(
        TensorGroup(
            step,
            phase,
            kind,
            len(tensors),
            tuple(t for t in tensors if found.may_differ(step, phase, kind, t)),
        )
        for (step, phase, kind), tensors in sorted(counts.items(), key=lambda item: item[0][0])
    )
