"""What one step costs, in the parts that another layout of the same job changes: measured from matched traces."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracekit.analysis.breakdown.analyse import calls_of
from tracekit.analysis.breakdown.parts import between_stages, steps_of, waits_known
from tracekit.analysis.floor.work import work_of
from tracekit.axes import crosses_replicas
from tracekit.case.case import Case
from tracekit.errors import UsageError
from tracekit.findings import StepBreakdown
from tracekit.rank_events.coded_words import numbered
from tracekit.thresholds.layouts import PER_BATCH
from tracekit.timing.buffered_sends import bytes_of
from tracekit.units import I64


class Stage(NamedTuple):
    """One pipeline stage in one step, ns.

    compute: what follows the tokens of a rank. summed: gradients added to those of earlier micro-batches, which follow
    its parameters. gaps: without compute. transfers: the exposed ones, by axes (as `cp_dp`). waits: for members that
    arrive later, likewise.
    """

    compute: float
    summed: float
    gaps: float
    transfers: dict[str, float]
    waits: dict[str, float]


@dataclass(frozen=True)
class Costs:
    """The costs of one recorded step; ns, means over steps and ranks, which add up to the step.

    sizes: of the recorded mesh. batches: micro-batches a step and replica; 0 unknown, because one stage sends none.
    edges: own time before the first and after the last communication of a step: data, optimizer. stages: the time
    between both. latency: by axes, the share of their transfers that is the same for messages of any size; None where
    all have one size. on_host: whether threads of hosts carry transfers out, which share cores with the compute.
    """

    sizes: dict[str, int]
    batches: int
    edges: float
    stages: tuple[Stage, ...]
    latency: dict[str, float | None]
    on_host: bool = False


def costs_of(case: Case) -> Costs:
    """Return the costs of `case`. Raises UsageError, with what to do, where its traces do not show them."""
    if case.timeline is None:
        raise UsageError(
            "--to-mesh: an operation table does not show transfers; give the traces of the ranks"
        )
    if case.mesh.parts:
        raise UsageError(
            f"--to-mesh does not predict jobs with experts ({', '.join(case.mesh.parts)}); use --fix"
        )
    if _each_batch(case):
        raise UsageError(
            "--to-mesh: ranks of a replica gather weights or sum gradients with every micro-batch (as ZeRO-3 does), "
            "so the traces do not separate what grows with the micro-batches; record with an optimizer that is sharded "
            "alone (ZeRO-1)"
        )
    sizes = {axis: case.mesh.size(axis) for axis in case.mesh.order}
    edges = _edges(case)
    known = waits_known(case)
    whole = {
        number for number, share in zip(case.steps.numbers, case.steps.shares, strict=True) if share == 1.0
    }
    cells = {r: [c for c in steps_of(case, r, known).cells if c.step in whole] for r in case.ops.ranks}
    stages = []
    for number, rows in enumerate(case.stages):
        mine = [cell for row in rows for cell in cells[case.steps.ranks[row]]]
        if not mine:
            raise UsageError(f"--to-mesh: no whole step of stage {number} was read; add its traces")
        stages.append(_stage(mine, edges, _summed(case, rows)))
    axes = {axis for stage in stages for axis in stage.transfers}
    on_host = not case.on_gpus
    latency = {axis: _latency(case, axis) for axis in axes}
    return Costs(sizes, _batches(case), edges, tuple(stages), latency, on_host)


def _summed(case: Case, rows: I64) -> float:
    """Return the median time in which the ranks of a stage add gradients to those of earlier micro-batches, ns."""
    found = [work_of(case, case.steps.ranks[row]) for row in rows.tolist()]
    each = [work.summed for work in found if work is not None]
    return float(np.median(np.concatenate(each))) if each else 0.0


def _stage(cells: list[StepBreakdown], edges: float, summed: float) -> Stage:
    """Return the means of a stage's steps; the edges are taken from the gaps first.

    Transfers that threads of hosts carry out are long in few steps: medians would leave that to all other parts.
    """
    parts = [cell.parts for cell in cells]
    compute = float(np.mean([p.compute_ns for p in parts]))
    gaps = float(np.mean([p.host_ns + p.idle_ns + p.unknown_ns for p in parts]))
    axes = {e.axis for p in parts for e in p.exposed}
    spent = {
        axis: float(np.mean([sum(e.transfer_ns for e in p.exposed if e.axis == axis) for p in parts]))
        for axis in axes
    }
    waits = {
        axis: float(np.mean([sum(e.wait_ns for e in p.exposed if e.axis == axis) for p in parts]))
        for axis in axes
    }
    compute -= max(edges - gaps, 0.0)
    summed = min(summed, compute)
    return Stage(compute - summed, summed, max(gaps - edges, 0.0), spent, waits)


def _edges(case: Case) -> float:
    """Return the median own time outside the first and the last communication of a step, ns."""
    ops, steps = case.ops, case.steps
    found = []
    for rank in ops.ranks:
        where, row = ops.of(rank), steps.row(rank)
        for column, number in enumerate(steps.numbers):
            inside = np.flatnonzero(ops.step[where] == number) + where.start if steps.labelled else np.arange(
                where.start, where.stop
            )  # fmt: skip
            if len(inside) and np.isfinite(steps.own[row, column]):
                between = float(ops.at_end[inside].max() - ops.at_start[inside].min())
                found.append(max(float(steps.own[row, column]) - between, 0.0))
    return float(np.median(found)) if found else 0.0


def _batches(case: Case) -> int:
    """Return the messages that a rank of the first stage sends in a step: one a micro-batch; 0 without stages.

    Raises UsageError where the last stage sends to the first: stages take turns on the ranks.
    """
    stages = case.mesh.stages
    if stages < 2:
        return 0
    ops = case.ops
    messages = between_stages(case) & case.analysed & (ops.op == "send")
    ends = np.array([[case.mesh.stage(m) for m in c.members[:2]] if c.p2p else [0, 0] for c in ops.channels])
    apart = np.abs(ends[:, 0] - ends[:, 1])[ops.channel]
    if stages > 2 and (apart[messages] == stages - 1).any():
        raise UsageError(
            "--to-mesh: the last stage sends to the first, as interleaved schedules do, and only schedules with one "
            "stage a rank are predicted; use reftrain plan for others"
        )
    first = np.isin(ops.rank, [case.steps.ranks[row] for row in case.stages[0]])
    return round(int((messages & first).sum()) / max(len(case.stages[0]) * case.steps.count, 1))


def _each_batch(case: Case) -> bool:
    """Return whether replicas gather much more than they sum, or the reverse: one of both with every micro-batch.

    An optimizer that is sharded alone gathers in a step what it sums; whole copies gather nothing.
    """
    calls = calls_of(case)
    mine = calls.of(
        np.array([crosses_replicas(axis.split("_")) for axis in calls.axis.astype(str).tolist()], bool)
    )
    known = mine.elements.clip(0)
    gathered = int(known[mine.op == "all_gather"].sum())
    summed = int(known[np.isin(mine.op.astype(str), ("reduce_scatter", "all_reduce"))].sum())
    return gathered > 0 and not 1 / PER_BATCH < summed / gathered < PER_BATCH


def _latency(case: Case, axis: str) -> float | None:
    """Return the share of the axis's transfers that does not depend on their size; None where all have one size."""
    waits, ops = case.waits, case.ops
    rows = waits.first_row
    mine = np.flatnonzero(waits.complete & (case.axis[rows] == axis) & case.analysed[rows])
    words, code = numbered(ops.token[rows[mine]])
    size = (
        np.array([bytes_of(word) for word in words], np.int64)[code] if len(mine) else np.zeros(0, np.int64)
    )
    spent = waits.transfer[mine].astype(np.float64)
    known = size >= 0
    if len(np.unique(size[known])) < 2 or not spent[known].sum():
        return None
    least, most = size[known].min(), size[known].max()
    short, long = (float(np.median(spent[size == end])) for end in (least, most))
    rate = max(long - short, 0.0) / float(most - least)
    start = max(short - rate * float(least), 0.0)
    of_calls, of_bytes = start * float(known.sum()), rate * float(size[known].sum())
    return of_calls / (of_calls + of_bytes) if of_calls + of_bytes else None
