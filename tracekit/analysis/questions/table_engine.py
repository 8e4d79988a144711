"""Fixes priced on operation tables, and the cost of stragglers, by the method of the OSDI'25 paper.

After Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25). Typical is what
the paper calls ideal: compute takes the mean of its type over all ranks and steps, communication the median.
Operations with unrecorded ranks keep their time, or may shrink to the shortest of their type.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.analysis.questions.fixes import Fix, Saved
from tracekit.axes import LEVELS
from tracekit.case.case import Case
from tracekit.ingest.operation_table.kinds import kind_of
from tracekit.mesh import Mesh
from tracekit.rank_events.operation_names import canonical_op
from tracekit.step_graph.table.timeline import Timeline
from tracekit.step_graph.table_model import TableModel, met_absent_ranks
from tracekit.thresholds.slowrank import WORST_WORKERS
from tracekit.units import F64, I64, Mask

_MEANINGS: Final = {
    "rank": "every operation of rank {} takes the usual time of its type",
    "stage": "every operation of stage {} takes the usual time of its type",
    "axis": "all communication along {} takes the median of its type",
    "op": "every {} takes the usual time of its type",
}


class TableEngine:
    """Prices fixes on an operation table."""

    def __init__(self, case: Case, model: TableModel) -> None:
        self.case, self.model, self.timeline = case, model, model.timeline
        names = [o.name for o in self.timeline.recording.operations]
        self._rank = np.array([o.rank for o in self.timeline.recording.operations], np.int64)
        self._labels: dict[str, Callable[[Fix], Mask]] = {
            "rank": lambda fix: self._rank == int(fix.value),
            "stage": lambda fix: self._stage == int(fix.value),
            "axis": lambda fix: self._axis == fix.value,
            "op": lambda fix: np.array([fix.value in self._types[n] for n in names]),
        }

    @property
    def base_ns(self) -> float:
        """Return the recorded step as the model computes it, ns."""
        return self.model.recorded_ns

    def known(self, key: str) -> tuple[str, ...]:
        """The values that `key` can have in this run."""
        if key == "rank":
            return tuple(str(r) for r in sorted(set(self._rank.tolist())))
        if key == "stage":
            return tuple(str(s) for s in sorted(set(self._stage.tolist())))
        if key == "axis":
            seen = set(self._axis.tolist()) - {""}
            return (*(a for a in LEVELS if a in seen), *sorted(seen - set(LEVELS)))
        return tuple(sorted({name for names in self._types.values() for name in names}))

    def refusal(self, fix: Fix) -> str | None:
        """Return None, because the usual time of every type is known."""
        del fix
        return None

    def meaning(self, fix: Fix) -> str:
        """The change by `fix`, as a clause."""
        return _MEANINGS[fix.key].format(fix.value)

    def ranks_of(self, fixes: Sequence[Fix]) -> tuple[int, ...]:
        """Return the ranks with own work that `fixes` change."""
        mine = self._fixed([fix for fix in fixes if fix.key in ("rank", "stage")])
        return tuple(sorted(set(self._rank[mine].tolist())))

    def saved(self, fixes: Sequence[Fix]) -> Saved:
        """The saving of all `fixes` together."""
        return self._priced(self._fixed(fixes))

    def saved_by_all(self) -> Saved:
        """The saving if every operation takes the usual time of its type: S of the paper."""
        return self._priced(np.ones(len(self._rank), bool))

    def worst(self) -> tuple[int, ...]:
        """The worst workers of the paper (Eq. 4), as many as M_W takes (Eq. 5)."""
        return slowdowns(self.timeline, self.case.mesh).worst

    def _priced(self, fixed: Mask) -> Saved:
        work = self.timeline.work
        pinned = np.where(fixed[:, None], self.model.typical, work)
        low = self.base_ns - self._step_ns(pinned)
        open_ = met_absent_ranks(self.case, self.timeline)
        if not open_.any():
            return Saved(low, low, low)
        free = np.where(open_[:, None], np.minimum(work, self._shortest[:, None]), pinned)
        return Saved(low, low, max(low, self.base_ns - self._step_ns(free)))

    def _step_ns(self, work: F64) -> float:
        return float(self.timeline.step_ns(work).mean())

    def _fixed(self, fixes: Sequence[Fix]) -> Mask:
        """Whether `fixes` make each operation typical."""
        fixed = np.zeros(len(self._rank), bool)
        for fix in fixes:
            fixed |= self._labels[fix.key](fix)
        return fixed

    @cached_property
    def _stage(self) -> I64:
        stage = {r: self.case.mesh.stage(r) for r in set(self._rank.tolist())}
        return np.array([stage[r] for r in self._rank.tolist()], np.int64)

    @cached_property
    def _axis(self) -> npt.NDArray[np.str_]:
        """The axis along which each operation communicates; empty for compute."""
        return np.array([kind_of(o.name).axis or "" for o in self.timeline.recording.operations], str)

    @cached_property
    def _types(self) -> dict[str, frozenset[str]]:
        """The names under which each operation can be fixed: its own, the paper's type, the collective; by its name."""
        found = {}
        for name in {o.name for o in self.timeline.recording.operations}:
            collective = {canonical_op(name)} if kind_of(name).collective else set()
            found[name] = frozenset({name, operation_type(name), *collective})
        return found

    @cached_property
    def _shortest(self) -> F64:
        """The shortest work of each operation's name on any rank in any step, ns."""
        least = np.zeros(len(self._rank))
        for name in self._types:
            rows = self.timeline.rows(name)
            least[rows] = self.timeline.work[rows].min()
        return least


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
