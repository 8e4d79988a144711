"""A run as every verdict reads it: what was measured, each rank's excess over its peers, and a model of the step."""

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
from tracekit.thresholds.slowrank import JOINED_ERROR, RANKS_SAMPLED
from tracekit.timing.measured import Measured, StepRange, measure_run


@dataclass(frozen=True)
class Timelines:
    """Models of one step from its traces, which differ in what waits without a match last."""

    likely: StepModel  # as the groups and schedules that were found make them
    pinned: StepModel  # as recorded, so that a cure saves least
    free: StepModel  # as short as their transfers, so that it saves most


@dataclass(frozen=True)
class Case(Measured):
    """Everything a verdict rests on; times in ns."""

    model: StepModel | TableModel  # prices an explanation: what the step would take without it
    met: Circumstances  # what of each rank's own time is none of its doing
    found: Excess  # own time of each rank beyond its peers, like with like
    seen: StepModel | TableModel | None = None  # of the recorded ranks alone, if `model` has unseen ones
    cut: int | None = None  # the number of a step that counts in part, as far as all ranks recorded it
    of_part: bool = False  # no step was recorded whole: what all ranks recorded counts as one

    @property
    def table(self) -> TableModel | None:
        """The model of an operation table; None where the case holds traces."""
        return self.model if isinstance(self.model, TableModel) else None

    @cached_property
    def timelines(self) -> Timelines | None:
        """The models that know what each rank does when; None of an operation table."""
        found = self.model, self.pinned_model, self.free_model
        likely, pinned, free = (m if isinstance(m, StepModel) else None for m in found)
        return Timelines(likely, pinned, free) if likely and pinned and free else None

    @property
    def timeline(self) -> StepModel | None:
        """The likeliest of `timelines`; None of an operation table."""
        return self.model if isinstance(self.model, StepModel) else None

    @property
    def base_ns(self) -> float:
        """The step that a saving of the model is a share of, ns: a table's lasts as long as its operations.

        Of traces it is the recorded step, because what is not matched may shorten the model's; where ranks drifted
        apart in the recording, a step of those that no longer do.
        """
        if self.table is not None:
            return self.table.recorded_ns
        return self.step_ns + self.model.recorded_ns - self.model.replayed_ns

    @cached_property
    def waiting_parts(self) -> dict[int, WaitingParts]:
        """The parts of own time that waits beside it make longer, of the ranks on which anything tells by how much."""
        spun = np.flatnonzero(np.isfinite(self.met.spun).any(axis=1))
        return waiting_parts(self, spun.tolist())

    def line_of(self, row: int) -> tuple[int, ...]:
        """The rows of the recorded ranks on the pipeline of the rank in `row`."""
        line = self.mesh.pipeline(self.steps.ranks[row])
        return tuple(self.steps.row(rank) for rank in line if rank in self.steps.ranks)

    @cached_property
    def residual_ns(self) -> float:
        """By how much the model with nothing changed misses what was recorded, ns: no smaller effect is proven."""
        return self.missed_ns(self.model)

    @cached_property
    def pinned_residual_ns(self) -> float:
        """The same of the model that keeps what was not matched: it misses only where matches are wrong."""
        return self.missed_ns(self.pinned_model)

    def missed_ns(self, model: StepModel | TableModel) -> float:
        """By how much `model` with nothing changed misses the recording, ns a step.

        The larger one of two misses: of the mean step, and of the time for which each rank stood still in each step
        (mean of the absolute differences), because errors of ranks and steps may cancel in the mean step. Where a
        profiler started later on some ranks, their first step is shorter, and the mean step as long as the others'.
        """
        if isinstance(
            model, TableModel
        ):  # with its gaps, which count where some ranks lie idle longer than others
            return max(abs(model.replayed_ns - self.step_ns), model.gaps_ns(self.stages))
        whole = abs(model.replayed_ns - self.step_ns)
        if model.replayed_ns > self.step_ns:
            whole = max(0.0, model.replayed_ns - float(np.nanmean(np.nanmax(self.steps.wall, axis=0))))
        row = {rank: i for i, rank in enumerate(self.steps.ranks)}
        column = {number: i for i, number in enumerate(self.steps.numbers)}
        stood = np.zeros(self.steps.own.shape)
        event, spent = model.replay()
        recorded = event < len(self.ops.rank)  # behind these come those of ranks without a trace
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
        """For how long hosts work in each step, ranks × steps, ns; NaN where not recorded, or of no rank asked."""
        needs = np.full(self.steps.own.shape, np.nan)
        asked = range(0, len(needs), max(1, len(needs) // RANKS_SAMPLED))
        for row in asked:
            rank = self.steps.ranks[row]
            if self.ops.per_rank[rank].on_gpu:
                needs[row] = host_need(self.run, self.ops, self.steps, rank)
        return needs

    @cached_property
    def free_model(self) -> StepModel | TableModel:
        """The step model in which every wait that is not matched may vanish: what a cure could save at the most."""
        model = self.seen or self.model
        return model_of(self, free=True, like=model) if isinstance(model, StepModel) else model

    @cached_property
    def pinned_model(self) -> StepModel | TableModel:
        """The step model in which every operation that was not matched with all members keeps its recorded length."""
        model = self.seen or self.model
        if not isinstance(model, StepModel):
            return model
        lonely = self.ops.instance < 0
        fixed = np.where(lonely, (self.ops.end - self.ops.start).astype(np.float64), model.fixed)
        transfer = model.transfer.copy()
        known = transfer[
            : len(self.waits.transfer)
        ]  # those of unknown groups come behind, and keep their lengths
        known[~self.waits.complete] = self.waits.transfer[~self.waits.complete]
        return model.retimed(fixed=fixed, transfer=transfer)


def build(run: Run, ops: Operations, mesh: Mesh, wanted: Sequence[StepRange] | None) -> Case:
    """The case of `run`; only the `wanted` steps, or all of them. Raises InputError where nothing can be compared.

    Where groups are unknown, the model lets a stage wait for each other if that gives the recorded waits as well.
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
    return joined if joined.residual_ns < max(case.residual_ns, JOINED_ERROR * case.step_ns) else case


def _with_cut_step(run: Run, ops: Operations, mesh: Mesh) -> tuple[Run, Operations, int | None]:
    """`run` and `ops` in which a step that windows cut counts as far as all ranks recorded it, where few are whole.

    With the number of that step; None where there is none.
    """
    stages: dict[int, list[int]] = defaultdict(list)
    for rank in ops.ranks:
        stages[mesh.stage(rank)].append(rank)
    ops, number = with_cut_step(ops, list(stages.values()))
    if number is None:
        return run, ops, None
    told = f"step {number} counts as far as all ranks recorded it"
    return replace(run, quality=(*run.quality, Quality("cut_step", None, 1, told))), ops, number
