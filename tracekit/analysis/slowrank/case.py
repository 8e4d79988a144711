"""The case that every verdict reads: the measurements, each rank's excess over its peers, and a model of the step."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tracekit.analysis.slowrank.expected.like_with_like import Circumstances, alike_excess, circumstances
from tracekit.findings import Quality
from tracekit.matching.match import Operations
from tracekit.mesh import Mesh
from tracekit.step_graph.replay import StepModel
from tracekit.step_graph.stage_mates import mates
from tracekit.step_graph.statistics import Excess
from tracekit.step_graph.table_model import TableModel, tabulated
from tracekit.step_graph.traced_model import model_of
from tracekit.step_graph.waiting_parts import WaitingParts, waiting_parts
from tracekit.steps.cut_steps import with_cut_step
from tracekit.steps.host_need import host_need
from tracekit.steps.steps import F64
from tracekit.store import Run
from tracekit.thresholds.slowrank import LITTLE_SHARE, RANKS_SAMPLED
from tracekit.timing.measured import Measured, StepRange, measure_run


@dataclass(frozen=True)
class Timelines:
    """Models of one step from its traces, which differ in the length of unmatched waits."""

    likely: StepModel  # by the inferred groups and schedules
    pinned: StepModel  # their recorded length: a cure saves least
    free: StepModel  # the length of their transfers: a cure saves most


@dataclass(frozen=True)
class Case(Measured):
    """All that a verdict rests on; times in ns."""

    model: StepModel | TableModel  # prices an explanation by the length of a step without it
    met: Circumstances  # the confounders of each rank's own time
    found: Excess  # own time of each rank beyond its peers, without confounders
    seen: StepModel | TableModel | None = None  # of the recorded ranks only, if `model` holds unrecorded ones
    cut: int | None = None  # the number of a step that counts as far as all ranks recorded it
    of_part: bool = False  # no step is whole: what all ranks recorded counts as one step

    @property
    def table(self) -> TableModel | None:
        """The model of an operation table; None where the case holds traces."""
        return self.model if isinstance(self.model, TableModel) else None

    @cached_property
    def timelines(self) -> Timelines | None:
        """The models with a time line of each rank; None of an operation table."""
        found = self.model, self.pinned_model, self.free_model
        likely, pinned, free = (m if isinstance(m, StepModel) else None for m in found)
        return Timelines(likely, pinned, free) if likely and pinned and free else None

    @property
    def timeline(self) -> StepModel | None:
        """The likeliest of `timelines`; None of an operation table."""
        return self.model if isinstance(self.model, StepModel) else None

    @property
    def base_ns(self) -> float:
        """The length of the step that savings are shares of, ns; for a table that of its operations.

        For traces it is the recorded step, because unmatched operations may shorten the model's; where ranks drifted
        apart in the recording, the model's difference to a step without drift is added.
        """
        if self.table is not None:
            return self.table.recorded_ns
        return self.step_ns + self.model.recorded_ns - self.model.replayed_ns

    @cached_property
    def waiting_parts(self) -> dict[int, WaitingParts]:
        """The parts of own time that overlapping waits lengthen, by row, for ranks where this is known."""
        spun = np.flatnonzero(np.isfinite(self.met.spun).any(axis=1))
        return waiting_parts(self, spun.tolist())

    def line_of(self, row: int) -> tuple[int, ...]:
        """The rows of the recorded ranks on the pipeline of the rank in `row`."""
        line = self.mesh.pipeline(self.steps.ranks[row])
        return tuple(self.steps.row(rank) for rank in line if rank in self.steps.ranks)

    @cached_property
    def residual_ns(self) -> float:
        """The error of the unchanged model, ns a step: a smaller effect is not proven."""
        return self.missed_ns(self.model)

    @cached_property
    def pinned_residual_ns(self) -> float:
        """The error of the model that keeps recorded lengths, ns a step: only wrong matches cause it."""
        return self.missed_ns(self.pinned_model)

    def missed_ns(self, model: StepModel | TableModel) -> float:
        """The difference between the unchanged `model` and the recording, ns a step.

        The larger of two errors: that of the mean step, and the mean absolute error of each rank's idle time in each
        step, because errors of ranks and steps may cancel in the mean step. Where a profiler started later on some
        ranks, their first step is shorter, so that a model's step may be as long as the longest rank's.
        """
        if isinstance(
            model, TableModel
        ):  # with its gaps, which count where some ranks are idle longer than others
            return max(abs(model.replayed_ns - self.step_ns), model.gaps_ns(self.stages))
        whole = abs(model.replayed_ns - self.step_ns)
        if model.replayed_ns > self.step_ns:
            whole = max(0.0, model.replayed_ns - float(np.nanmean(np.nanmax(self.steps.wall, axis=0))))
        row = {rank: i for i, rank in enumerate(self.steps.ranks)}
        column = {number: i for i, number in enumerate(self.steps.numbers)}
        stood = np.zeros(self.steps.own.shape)
        event, spent = model.replay()
        recorded = event < len(self.ops.rank)  # operations of ranks without a trace follow
        event, spent = event[recorded], spent[recorded]
        ranks, which = np.unique(self.ops.rank[event], return_inverse=True)
        steps, when = np.unique(self.ops.step[event], return_inverse=True)
        rows = np.array([row[int(r)] for r in ranks.tolist()], np.int64)[which]
        columns = np.array(
            [column.get(int(s), 0) if self.steps.labelled else 0 for s in steps.tolist()], np.int64
        )
        np.add.at(stood, (rows, columns[when]), spent)
        miss = np.abs(self.steps.wall - self.steps.own - stood)
        return max(whole, float(np.nanmean(miss)))

    @cached_property
    def host_needs(self) -> F64:
        """The time that hosts need for each step, ranks × steps, ns; NaN where not recorded, or not in the sample."""
        needs = np.full(self.steps.own.shape, np.nan)
        asked = range(0, len(needs), max(1, len(needs) // RANKS_SAMPLED))
        for row in asked:
            rank = self.steps.ranks[row]
            if self.ops.per_rank[rank].on_gpu:
                needs[row] = host_need(self.run, self.ops, self.steps, rank)
        return needs

    @cached_property
    def free_model(self) -> StepModel | TableModel:
        """The step model in which every unmatched wait may vanish: a cure saves most in it."""
        model = self.seen or self.model
        return model_of(self, free=True, like=model) if isinstance(model, StepModel) else model

    @cached_property
    def pinned_model(self) -> StepModel | TableModel:
        """The step model in which every operation not matched with all members keeps its recorded length."""
        model = self.seen or self.model
        if not isinstance(model, StepModel):
            return model
        lonely = self.ops.instance < 0
        fixed = np.where(lonely, (self.ops.end - self.ops.start).astype(np.float64), model.fixed)
        transfer = model.transfer.copy()
        known = transfer[
            : len(self.waits.transfer)
        ]  # operations of unknown groups follow, and keep their lengths
        known[~self.waits.complete] = self.waits.transfer[~self.waits.complete]
        return model.retimed(fixed=fixed, transfer=transfer)


def build(run: Run, ops: Operations, mesh: Mesh, wanted: Sequence[StepRange] | None) -> Case:
    """Return the case of `run`, of the `wanted` steps or of all. Raises InputError where nothing can be compared.

    Where groups are unknown, the model lets ranks of a stage wait for each other if that reproduces the recorded waits.
    """
    run, ops, cut = _with_cut_step(run, ops, mesh)
    measured = measure_run(run, ops, mesh, wanted)
    m, model = tabulated(measured) or (measured, model_of(measured))
    met = circumstances(m, of_table=isinstance(model, TableModel))
    case = Case(
        m.run, m.ops, m.waits, m.steps, m.clocks, m.mesh, m.buffered, model=model, met=met,
        found=alike_excess(m, met), cut=cut,
    )  # fmt: skip
    if isinstance(model, TableModel) or not (mates(m) >= 0).any():
        return case
    joined = replace(case, model=model_of(m, joined=True))
    return joined if joined.residual_ns < max(case.residual_ns, LITTLE_SHARE * case.step_ns) else case


def _with_cut_step(run: Run, ops: Operations, mesh: Mesh) -> tuple[Run, Operations, int | None]:
    """`run`, `ops` and a step that windows cut, which counts as far as all ranks recorded it where few are whole.

    The number of that step is None where there is none.
    """
    stages: dict[int, list[int]] = defaultdict(list)
    for rank in ops.ranks:
        stages[mesh.stage(rank)].append(rank)
    ops, number = with_cut_step(ops, list(stages.values()))
    if number is None:
        return run, ops, None
    detail = f"step {number} counts as far as all ranks recorded it"
    return replace(run, quality=(*run.quality, Quality("cut_step", None, 1, detail))), ops, number
