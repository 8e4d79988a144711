"""The step model of an operation table, which records all operations and so all dependencies between them.

The table shows what ran and not what a rank did between, so own time is its recorded work; gaps belong to no rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from tracekit.step_graph.replay import PeersWork, Usual
from tracekit.step_graph.table.recording import Recording, recording_of
from tracekit.step_graph.table.timeline import Timeline, timeline_of
from tracekit.steps.steps import Steps
from tracekit.timing.measured import Measured
from tracekit.timing.waits import Waits
from tracekit.units import F64, I64, Mask


@dataclass(frozen=True)
class TableModel:
    """Recorded steps as a timeline that can be run with any own times; prices as `StepModel` gives them, ns.

    own: recorded work, ranks × steps. row: by operation its rank's row. typical: ideal work, operations × steps; an
    operation with ranks without rows keeps its recorded time, in which it may have waited for them. instance: of each
    operation in each step, -1 without a counterpart. transfer: recorded, by instance.
    """

    timeline: Timeline
    own: F64
    row: I64
    typical: F64
    instance: I64
    transfer: F64
    of_traces: ClassVar[None] = None

    @property
    def of_table(self) -> Self:
        """The model itself: `of_traces` is None."""
        return self

    def pinned(self, _: Measured) -> Self:
        """Return the model in which no wait may vanish: itself, because a table's operations are all matched."""
        return self

    def missed_ns(self, run: Measured) -> float:
        """Return how far the unchanged model is from `run`, ns a step, with gaps where some ranks idle longer."""
        return max(abs(self.replayed_ns - run.step_ns), self.gaps_ns(run.stages))

    @cached_property
    def recorded_ns(self) -> float:
        """Return the mean step time of the timeline with the recorded work, ns."""
        return float(self.timeline.step_ns(self.timeline.work).mean())

    @cached_property
    def replayed_ns(self) -> float:
        """Return the mean step time with the recorded gaps before operations too, as in the table, ns."""
        return self._with_gaps(self.timeline.late)

    @cached_property
    def ideal_ns(self) -> float:
        """Return the mean step time if every operation were typical of its type on all ranks and steps, ns."""
        return float(self.timeline.step_ns(self.typical).mean())

    @property
    def lost_ns(self) -> float:
        """Return the cost of all factors together, ns a step: recorded minus ideal, never negative."""
        return max(self.recorded_ns - self.ideal_ns, 0.0)

    def typical_saves_ns(self, rows: Sequence[int]) -> float:
        """Return the time that the step saves if all work of `rows` is typical, ns; at most `lost_ns`.

        Divided by `lost_ns` it is the share of these rows, for a stage M_S (Lin et al., OSDI'25, section 5.2).
        """
        mine = np.isin(self.row, np.asarray(rows, np.int64))
        saved = self.recorded_ns - float(
            self.timeline.step_ns(np.where(mine[:, None], self.typical, self.timeline.work)).mean()
        )
        return min(max(saved, 0.0), self.lost_ns)

    @cached_property
    def idle(self) -> F64:
        """Return how long each rank's operations started later than they could, ranks × steps, ns."""
        found = np.zeros(self.own.shape)
        np.add.at(found, self.row, self.timeline.late)
        return found

    def step_ns(self, target: F64, transfer: F64 | None = None, usual: Usual | None = None) -> float:
        """Return the mean step time with own times `target` (ranks × steps) and `transfer` (by instance), all ns.

        A rank that works less than recorded in a step takes there the work that is `usual` of its peers in that step,
        and the ideal work if it has no peers; `target` shows which.
        """
        work = self.timeline.work.copy()
        cured = target < self.own
        for row in np.flatnonzero(cured.any(axis=1)).tolist():
            mine = np.flatnonzero(self.row == row)
            peers_work = (usual or {}).get((0, row))
            usually = self.typical[mine] if peers_work is None else peers_work[1]
            work[mine] = np.where(cured[row], usually, work[mine])
        if transfer is not None:
            late = np.append(np.maximum(self.transfer - transfer, 0.0), 0.0)  # instance -1 takes the last
            work = np.maximum(work - late[self.instance], 0.0)
        return float(self.timeline.step_ns(work).mean())

    def scaled_ns(self, target: F64) -> float:
        """Return the mean step time with own times `target` (ranks × steps), both ns.

        All computations of a rank change by the same share; communication keeps its time.
        """
        known = (self.own > 0) & np.isfinite(target)
        share = np.where(known, target / np.where(known, self.own, 1.0), 1.0)
        work = np.where(self.timeline.communication[:, None], 1.0, share[self.row]) * self.timeline.work
        return float(self.timeline.step_ns(work).mean())

    def usual(self, peers: Mapping[int, I64]) -> PeersWork:
        """Return the `peers`' work for the operations of each row, step by step, under the key (0, row), ns.

        Compute takes the median of the same computation on the peers, communication keeps its time. A row without a
        peer with the same operations is left out.
        """
        found = {}
        for row, others in peers.items():
            mine = np.flatnonzero(self.row == row)
            what = self._what(mine)
            mates = [
                self._what(np.flatnonzero(self.row == other)) for other in others.tolist() if other != row
            ]
            matching = [[there[name] for name in what] for there in mates if there.keys() == what.keys()]
            if matching:
                level = np.median([self.timeline.work[rows] for rows in matching], axis=0)
                computed = ~self.timeline.communication[mine]
                found[0, row] = 0, np.where(computed[:, None], level, self.timeline.work[mine])
        return found

    def levelled_ns(self, groups: Sequence[I64]) -> float:
        """Return the mean step time if each computation took its median over the rows of a group, step by step, ns."""
        operations = self.timeline.recording.operations
        work = self.timeline.work.copy()
        by_operation: dict[tuple[int, str, int], list[int]] = {}
        group = {int(row): n for n, rows in enumerate(groups) for row in rows}
        for i in np.flatnonzero(~self.timeline.communication).tolist():
            key = (group.get(int(self.row[i]), -1), operations[i].name, operations[i].ordinal)
            by_operation.setdefault(key, []).append(i)
        for rows in by_operation.values():
            work[rows] = np.median(work[rows], axis=0)
        return float(self.timeline.step_ns(work).mean())

    def gaps_ns(self, groups: Sequence[I64]) -> float:
        """Return the time that a step saves if no rank idles longer than the median of its group, step by step, ns."""
        late, idle = self.timeline.late, self.idle
        share = np.ones(idle.shape)
        for rows in groups:
            if len(rows):
                share[rows] = np.minimum(np.median(idle[rows], axis=0) / np.maximum(idle[rows], 1.0), 1.0)
        return self.replayed_ns - self._with_gaps(late * share[self.row])

    def _with_gaps(self, late: F64) -> float:
        return float(self.timeline.step_ns(self.timeline.work, late).mean())

    def _what(self, rows: I64) -> dict[tuple[str, int], int]:
        """Return the operations in `rows` by (name, ordinal)."""
        operations = self.timeline.recording.operations
        return {(operations[i].name, operations[i].ordinal): i for i in rows.tolist()}


def tabulated(run: Measured) -> tuple[Measured, TableModel] | None:
    """Return the run with the work of its operation table as own times, and the model of its steps.

    A step lasts from the first start to the last end of its operations on any rank, on all ranks alike.
    None where the run is no operation table, or its dependencies are not known.
    """
    recording = recording_of(run.run, run.steps.numbers)
    timeline = timeline_of(recording) if recording is not None else None
    if recording is None or timeline is None:
        return None
    row = np.array([run.steps.row(o.rank) for o in recording.operations], np.int64)
    own = np.zeros((len(run.steps.ranks), len(recording.steps)))
    compute = ~timeline.communication
    np.add.at(own, row[compute], timeline.work[compute])
    steps = _only(run.steps, recording.steps)
    wall = np.where(np.isfinite(steps.wall), recording.end.max(axis=0), np.nan)
    typical = np.where(met_absent_ranks(run, timeline)[:, None], timeline.work, timeline.ideal)
    instance = _instances(run, recording)
    waits = _transferred(run.waits, instance, timeline.work)
    model = TableModel(timeline, own, row, typical, instance, waits.transfer.astype(np.float64))
    return replace(run, steps=replace(steps, own=own, wall=wall), waits=waits), model


def _transferred(waits: Waits, instance: I64, work: F64) -> Waits:
    """Return `waits` with transfers as long as the longest work of their operations: a table holds all transfers."""
    met = instance >= 0
    transfer = waits.transfer.copy()
    transfer[instance[met]] = 0
    np.maximum.at(transfer, instance[met], np.rint(work[met]).astype(np.int64))
    timed = waits.timed.copy()
    timed[instance[met]] = True
    return replace(waits, transfer=transfer, delivery=transfer.copy(), timed=timed)


def _instances(run: Measured, recording: Recording) -> I64:
    """Return the instance of each operation in each step, operations × steps; -1 without a counterpart."""
    known: dict[int, dict[tuple[int, int], int]] = {}
    for rank in run.ops.ranks:
        source, number = run.ops.per_rank[rank], run.ops.instance[run.ops.of(rank)].tolist()
        known[rank] = dict(
            zip(zip(source.group.tolist(), source.seq.tolist(), strict=True), number, strict=True)
        )
    found = np.full(recording.seq.shape, -1, np.int64)
    for i, operation in enumerate(recording.operations):
        if operation.meeting is not None:
            by_seq, group = known[operation.rank], operation.meeting[0]
            found[i] = [by_seq.get((group, s), -1) for s in recording.seq[i].tolist()]
    return found


def met_absent_ranks(run: Measured, timeline: Timeline) -> Mask:
    """Whether each operation is communication of a group with a member that was not recorded."""
    absent = {g.group for g in run.run.groups if not set(g.ranks) <= set(run.ops.ranks)}
    meets = [o.meeting[0] in absent if o.meeting else bool(absent) for o in timeline.recording.operations]
    return np.asarray(timeline.communication & np.array(meets), bool)


def _only(steps: Steps, numbers: Sequence[int]) -> Steps:
    """Return the `steps` among `numbers`."""
    kept = [steps.numbers.index(n) for n in numbers]
    left = tuple(n for n in steps.numbers if n not in numbers)
    return replace(
        steps, numbers=tuple(numbers), own=steps.own[:, kept], wall=steps.wall[:, kept],
        begin=steps.begin[:, kept], tail=steps.tail[:, kept],
        tail_ends=steps.tail_ends[:, kept], partial=(*steps.partial, *left), cut=None,
    )  # fmt: skip
