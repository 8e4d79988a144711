"""A role: ranks that load data for others by the job's design, all of them, in every step and equally long.

The ranks with tensor index 0 read batches for their groups, and the first or the last stage those of a pipeline. The
time is not a fault of a rank, but the others wait for it. A rank that loads for longer than others of its role keeps
the difference as its excess. A single rank has a role only where its stage has no other rank, and no other rank of the
job loads data. Where only one rank of several was recorded, its idle time may be the role's: the waits of ranks for
which the others would load can show that it is not.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.price import Price
from tracekit.case.case import Case
from tracekit.case.cures import saved_by_gaps
from tracekit.causes import DATALOADER, HOST_STALL
from tracekit.expected.like_with_like import idle_beyond
from tracekit.findings import Cause
from tracekit.steps.features import within_spans_ns
from tracekit.steps.medians import sampled
from tracekit.thresholds.slowrank import MAJORITY


@dataclass(frozen=True)
class Role:
    """The ranks of a role (rows of Steps), what each is idle for it, and what a step saves without that; ns a step."""

    rows: tuple[int, ...]
    longer: float
    price: Price
    cause: Cause
    stage: int | None = None  # the pipeline stage where all ranks have the role


def role_of_tensor_groups(case: Case) -> Role | None:
    """Return the role of ranks with tensor index 0, priced by a replay without their idle time; None without one."""
    rows = tuple(case.met.of_role.tolist())
    if not rows or (models := case.timelines) is None:
        return None
    over = np.maximum(np.fmin(case.met.role, idle_beyond(case, case.computed, case.met.of_role)), 0.0)
    price = Price.between(*saved_by_gaps(case, models, {row: over[row] for row in rows}))
    longer = float(np.median(over[list(rows)].mean(axis=1)))
    loads = [_loading(case, row) for row in sampled(list(rows))]
    costly = min(longer, price.best)  # devices idle for all of it where hosts set the pace
    cause: Cause = DATALOADER if np.median(loads) >= MAJORITY * costly else HOST_STALL
    return Role(rows, longer, price, cause)


def unrecorded_role(case: Case, row: int) -> tuple[int, ...]:
    """Return the ranks without a trace that may load as long as the rank in `row`, by design; () where none may.

    The excess of the rank must be idle time, and no other rank of the role recorded. If the others loaded, the ranks of
    their tensor groups would wait for them in operations with members that were not recorded.
    """
    rank, known = case.steps.ranks[row], np.flatnonzero(np.isfinite(case.steps.own).any(axis=1))
    recorded = {case.steps.ranks[r] for r in known.tolist()}
    idle = case.steps.mean(idle_beyond(case, case.computed, np.array([row]))[row])
    if case.table is not None or not case.on_gpus or idle < MAJORITY * float(case.found.mean[row]):
        return ()
    for axes in case.mesh.roles:
        leads = [r for r in sorted(case.mesh.coordinates) if case.mesh.leads(r, axes)]
        mates = [r for r in leads if r != rank and case.mesh.stage(r) == case.mesh.stage(rank)]
        others = mates or [r for r in leads if r != rank]
        if rank not in leads or not others or not recorded.isdisjoint(others):
            continue
        waiting = recorded.intersection(m for r in others for m in case.mesh.line(r, axes))
        if all(_may_await(case, mate, recorded) >= MAJORITY * idle for mate in waiting):
            return tuple(others)
    return ()


def _may_await(case: Case, rank: int, recorded: AbstractSet[int]) -> float:
    """The longest that the rank may have waited for ranks that are not `recorded`, ns a step."""
    ops, mine = case.ops, case.ops.of(rank)
    unseen = np.array([*(not recorded >= set(c.members) for c in ops.channels), True])[ops.channel[mine]]
    return float(ops.exposed[mine][unseen & case.analysed[mine]].sum()) / case.steps.count


def role_of_stage(case: Case, rows: Sequence[int], longer: float, price: Price) -> Role | None:
    """Return the role of `rows`, all ranks of a stage, which load for `longer`; None where others load as well."""
    if not _load_by_design(case, rows):
        return None
    return Role(tuple(rows), longer, price, DATALOADER, case.mesh.stage(case.steps.ranks[rows[0]]))


def _load_by_design(case: Case, rows: Sequence[int]) -> bool:
    """Whether `rows` are the first or the last stage, and load data alone.

    Several ranks that agree show a design if stages inside load for less than half as long. A single rank shows one if
    no other loads at all, but the opposite end as long.
    """
    ends, several = (0, case.mesh.stages - 1), len(rows) > 1
    stages = [case.mesh.stage(rank) for rank in case.steps.ranks]
    usual = float(np.median([_loading(case, row) for row in sampled(list(rows))]))
    others = sampled([row for row in range(len(stages)) if row not in rows])
    loads = {row: _loading(case, row) for row in others}
    inner = [ns for row, ns in loads.items() if ns > several * MAJORITY * usual and stages[row] not in ends]
    less = [ns for ns in loads.values() if 0 < ns < MAJORITY * usual]
    return stages[rows[0]] in ends and not inner and (several or not less)


def _loading(case: Case, row: int) -> float:
    """How long the rank in `row` loads data while its device is idle, ns a step."""
    return within_spans_ns(case.run, case.ops, case.steps, case.steps.ranks[row])
