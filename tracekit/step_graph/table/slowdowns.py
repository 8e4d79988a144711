"""The cost of stragglers, and the part of it that a stage, a replica, a worker or an operation type explains.

The quantities of Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25).
"""

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.mesh import Mesh
from tracekit.step_graph.table.recording import F64
from tracekit.step_graph.table.timeline import Timeline
from tracekit.thresholds.slowrank import WORST_WORKERS

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Slowdowns:
    """Ratios of mean step times over the ideal; keys as their names say.

    slowdown: S, the job's own (Eq. 1). by_type: S_t, if only the type were as recorded (Eq. 2). by_replica, by_stage:
    likewise. by_worker: S_w, the lesser of its replica's and its stage's (Eq. 4). worst_workers: M_W, the share of the
    loss that ideal work on the worst workers saves (Eq. 5). last_stage: M_S, likewise on the last stage (section 5.2).
    by_step: S of each step. worst: the ranks of the worst workers, worst first.
    """

    recorded_ns: float
    ideal_ns: float
    slowdown: float
    by_step: dict[int, float]
    by_type: dict[str, float]
    by_replica: dict[int, float]
    by_stage: dict[int, float]
    by_worker: dict[int, float]
    worst_workers: float
    last_stage: float
    worst: tuple[int, ...]


def slowdowns(timeline: Timeline, mesh: Mesh) -> Slowdowns:
    """Return what the stragglers of recorded steps cost; `mesh` gives the stage and the replica of every rank."""
    operations = timeline.recording.operations
    rank = np.array([o.rank for o in operations])
    ranks = sorted(set(rank.tolist()))
    stage = np.array([mesh.stage(r) for r in rank.tolist()])
    replica = np.array([mesh.replica(r) for r in rank.tolist()])
    kind = np.array([operation_type(o.name) for o in operations])
    steps = timeline.step_ns(timeline.work)
    recorded, ideal = float(steps.mean()), _mean(timeline, timeline.ideal)

    def shares(of: npt.NDArray[Any]) -> dict[Any, float]:
        return {v: _mean(timeline, _mixed(timeline, of == v)) / ideal for v in sorted(set(of.tolist()))}

    by_replica, by_stage = shares(replica), shares(stage)
    by_worker = {r: min(by_replica[mesh.replica(r)], by_stage[mesh.stage(r)]) for r in ranks}
    worst = sorted(by_worker, key=lambda r: (-by_worker[r], r))[: ceil(WORST_WORKERS * len(by_worker))]

    def explained(mine: Mask) -> float:
        cured = _mean(timeline, _mixed(timeline, ~mine))
        return (recorded - cured) / (recorded - ideal) if recorded > ideal else 0.0

    return Slowdowns(
        recorded, ideal, recorded / ideal,
        dict(zip(timeline.recording.steps, (steps / timeline.step_ns(timeline.ideal)).tolist(), strict=True)),
        shares(kind), by_replica, by_stage, by_worker,
        explained(np.isin(rank, worst)), explained(stage == stage.max()), tuple(worst),
    )  # fmt: skip


def _mixed(timeline: Timeline, recorded: Mask) -> F64:
    """Return the work (operations × steps, ns) as recorded where `recorded` (operations) is true, ideal elsewhere."""
    return np.where(recorded[:, None], timeline.work, timeline.ideal)


def _mean(timeline: Timeline, work: F64) -> float:
    return float(timeline.step_ns(work).mean())


def operation_type(name: str) -> str:
    """Return the type of an operation; sends and receives of one phase are one type."""
    phase, _, end = name.rpartition("-")
    return f"{phase}-pp-comm" if end in ("send", "recv") else name
