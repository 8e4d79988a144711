"""The step of an operation table: priced by the dependencies between its operations, which such a table holds whole.

The table tells what ran and not what a rank did between, so own time is its recorded work; gaps are nobody's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracekit.analysis.slowrank.measured import Measured
from tracekit.analysis.slowrank.traced_model import model_of
from tracekit.analysis.slowrank.what_if import StepModel, Usual
from tracekit.analysis.what_if.operations import recording_of
from tracekit.analysis.what_if.timeline import Timeline, timeline_of
from tracekit.tables.steps import F64, Steps


@dataclass(frozen=True)
class TableModel:
    """Recorded steps as a timeline that can be run with any own times; prices as `StepModel` gives them, ns.

    own: recorded work, ranks × steps. row: by operation its rank's row. typical: ideal work, operations × steps; what
    met ranks without rows keeps its recorded time, in which it may have waited for them. links: prices transfers, by
    instance.
    """

    timeline: Timeline
    own: F64
    row: npt.NDArray[np.int64]
    typical: F64
    links: StepModel

    @cached_property
    def recorded_ns(self) -> float:
        """Mean step time of the timeline with the recorded work, ns."""
        return float(self.timeline.step_ns(self.timeline.work).mean())

    @cached_property
    def ideal_ns(self) -> float:
        """Mean step time if every operation were typical of its type on all ranks and steps, ns."""
        return float(self.timeline.step_ns(self.typical).mean())

    def step_ns(
        self,
        target: F64,
        transfer: F64 | None = None,
        usual: Usual | None = None,  # noqa: ARG002 (as StepModel has it)
    ) -> float:
        """Mean step time if own times were `target` (ranks × steps, ns) and transfers `transfer` (by instance, ns).

        A rank that works less than recorded in a step takes the ideal work there, as the paper cures workers; `target`
        tells which. `usual` is not needed.
        """
        cured = (target < self.own)[self.row]
        work = np.where(cured, self.typical, self.timeline.work)
        saved = (
            0.0 if transfer is None else self.links.recorded_ns - self.links.step_ns(self.links.own, transfer)
        )
        return float(self.timeline.step_ns(work).mean()) - saved

    def usual(self, peers: Mapping[int, npt.NDArray[np.int64]]) -> Usual:  # noqa: ARG002 (as StepModel has it)
        """Return nothing: ideal work is typical of all ranks, whoever the peers are."""
        return {}

    def levelled_ns(self, groups: Sequence[npt.NDArray[np.int64]]) -> float:
        """Mean step time if each operation took its median over the rows of a group, step by step, ns."""
        operations = self.timeline.recording.operations
        work = self.timeline.work.copy()
        alike: dict[tuple[int, str, int], list[int]] = {}
        group = {int(row): n for n, rows in enumerate(groups) for row in rows}
        for i in np.flatnonzero(~self.timeline.communication).tolist():
            key = (group.get(int(self.row[i]), -1), operations[i].name, operations[i].ordinal)
            alike.setdefault(key, []).append(i)
        for rows in alike.values():
            work[rows] = np.median(work[rows], axis=0)
        return float(self.timeline.step_ns(work).mean())


def tabulated(run: Measured) -> tuple[Measured, TableModel] | None:
    """Return the run with the work of its operation table as own times, and the model of its steps.

    A step lasts from the first start to the last end of its operations on any rank, on all ranks alike.
    None where the run is no operation table, or its dependencies are not known.
    """
    recording = recording_of(run.run, run.steps.numbers)
    timeline = timeline_of(recording) if recording is not None else None
    if recording is None or timeline is None:
        return None
    links = model_of(run)
    row = np.array([run.steps.row(o.rank) for o in recording.operations], np.int64)
    own = np.zeros((len(run.steps.ranks), len(recording.steps)))
    compute = ~timeline.communication
    np.add.at(own, row[compute], timeline.work[compute])
    steps = _only(run.steps, recording.steps)
    steps = replace(steps, wall=np.where(np.isfinite(steps.wall), recording.end.max(axis=0), np.nan))
    typical = np.where(met_absent_ranks(run, timeline)[:, None], timeline.work, timeline.ideal)
    return replace(run, steps=replace(steps, own=own)), TableModel(timeline, own, row, typical, links)


def met_absent_ranks(run: Measured, timeline: Timeline) -> npt.NDArray[np.bool_]:
    """Whether each operation is communication of a group with a member that was not recorded."""
    absent = {g.group for g in run.run.groups if not set(g.ranks) <= set(run.ops.ranks)}
    meets = [o.meeting[0] in absent if o.meeting else bool(absent) for o in timeline.recording.operations]
    return np.asarray(timeline.communication & np.array(meets), bool)


def _only(steps: Steps, numbers: Sequence[int]) -> Steps:
    """`steps` without those that are not among `numbers`."""
    kept = [steps.numbers.index(n) for n in numbers]
    left = tuple(n for n in steps.numbers if n not in numbers)
    return replace(
        steps, numbers=tuple(numbers), own=steps.own[:, kept], wall=steps.wall[:, kept],
        begin=steps.begin[:, kept], partial=(*steps.partial, *left),
    )  # fmt: skip
