"""`numerics plan`: how two runs order their sums, and which of the captured tensors may differ because of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from numerics.columns import Names, frame
from numerics.errors import CaptureError
from numerics.order.affected_tensors import Reach, reach
from numerics.order.order_plan import OrderPlan, PlanDifference, differences, read_plan
from numerics.schema import FOLDER
from numerics.store import open_capture
from tracekit.errors import InputError

PLAN_SCHEMA: Final = "numerics.plan/1"


@dataclass(frozen=True)
class Reachable:
    """Tensors of one phase and kind: how many a run captured, and the names of those that may differ."""

    step: int
    phase: str
    kind: str
    captured: int
    may_differ: tuple[str, ...]


@dataclass(frozen=True)
class PlanFinding:
    """Answer of `numerics plan`.

    `local` are settings that decide bits besides reductions and differ: (name, of the run, of the other). `tensors`
    are those of the run's capture, empty where it has none.
    """

    run: str
    other: str
    reductions: int
    differences: tuple[PlanDifference, ...]
    local: tuple[tuple[str, str, str], ...]
    reach: Reach
    tensors: tuple[Reachable, ...]


def required_plan(run: Path) -> OrderPlan:
    """Plan of a run folder; InputError where it has none, or a damaged one."""
    try:
        plan = read_plan(run)
    except CaptureError as error:
        raise InputError(str(error)) from error
    if plan is None:
        raise InputError(f"{run}: no order_plan.json; run again with reftrain run --capture digest")
    return plan


def plan_finding(run: Path, other: Path) -> PlanFinding:
    """Compare the plans of two run folders."""
    left, right = required_plan(run), required_plan(other)
    found = reach(left, right)
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
        reach=found,
        tensors=_reachable(run, found) if (run / FOLDER).is_dir() else (),
    )


def _reachable(run: Path, found: Reach) -> tuple[Reachable, ...]:
    """Captured tensors by step, phase and kind, in the order in which they first occur."""
    rows = frame(open_capture(run), Names())
    counts: dict[tuple[int, str, str], dict[str, None]] = {}
    columns = ("step", "phase", "kind", "tensor")
    seen = dict.fromkeys(zip(*(rows[c].tolist() for c in columns), strict=True))
    for step, phase, kind, tensor in seen:
        key = step, rows.names.text(phase), rows.names.text(kind)
        counts.setdefault(key, {})[rows.names.text(tensor)] = None
    return tuple(
        Reachable(
            step,
            phase,
            kind,
            len(tensors),
            tuple(t for t in tensors if found.may_differ(step, phase, kind, t)),
        )
        for (step, phase, kind), tensors in sorted(counts.items(), key=lambda item: item[0][0])
    )
