"""The case that every verdict reads: the measurements, each rank's excess over its peers, and a model of the step."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tracekit.expected.like_with_like import Circumstances, alike_excess, circumstances
from tracekit.findings import Quality
from tracekit.matching.match import Operations, with_concealed
from tracekit.mesh import Mesh
from tracekit.step_graph.host_timeline import Host, hosts_of
from tracekit.step_graph.own_parts import WaitingParts
from tracekit.step_graph.replay import StepModel, Usual
from tracekit.step_graph.statistics import NORMAL_95, Excess
from tracekit.step_graph.table_model import TableModel, tabulated
from tracekit.step_graph.traced_model import mates, model_of, using_early
from tracekit.step_graph.waiting_parts import concealed_work, waiting_parts
from tracekit.steps.host_need import host_need
from tracekit.steps.step_ends import with_cut, with_cut_step
from tracekit.store import Run
from tracekit.thresholds.slowrank import LITTLE_SHARE, RANKS_SAMPLED
from tracekit.timing.measured import Measured, StepRange, measure_run
from tracekit.units import F64, I64


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
    slowest: StepModel | None = None  # pinned, with relays that work as long as the recording admits
    of_part: bool = False  # no step is whole: what all ranks recorded counts as one step

    @property
    def table(self) -> TableModel | None:
        """The model of an operation table; None where the case holds traces."""
        return self.model.of_table

    @cached_property
    def timelines(self) -> Timelines | None:
        """The models with a time line of each rank; None of an operation table."""
        found = self.model, self.pinned_model, self.free_model
        likely, pinned, free = (m.of_traces for m in found)
        return Timelines(likely, pinned, free) if likely and pinned and free else None

    @property
    def timeline(self) -> StepModel | None:
        """The likeliest of `timelines`; None of an operation table."""
        return self.model.of_traces

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
        spun = np.flatnonzero(np.isfinite(self.met.spun.longer).any(axis=1))
        return waiting_parts(self, spun.tolist())

    @cached_property
    def usual_work(self) -> dict[tuple[int, ...], Usual]:
        """What replays of this case found to be the usual work of suspected rows (`cures.usual_of`)."""
        return {}

    @property
    def exposed_ns(self) -> float:
        """The mean exposed communication of a rank, ns a step."""
        exposed = float(np.where(self.analysed, self.ops.exposed, 0).sum())
        return exposed / self.steps.count / len(self.steps.ranks)

    def significant(self, least: float) -> I64:
        """The rows with a significant excess over their peers of more than `least`, ns a step."""
        return np.flatnonzero(self.found.significant(least))

    def line_of(self, row: int) -> tuple[int, ...]:
        """The rows of the recorded ranks on the pipeline of the rank in `row`."""
        line = self.mesh.pipeline(self.steps.ranks[row])
        return tuple(self.steps.row(rank) for rank in line if rank in self.steps.ranks)

    def peers_of(self, row: int) -> I64:
        """Return the rows of the ranks that the rank in `row` is compared with, and its own."""
        return next(rows for rows in self.met.peers.groups if row in rows)

    def unsuspected(self, row: int, suspects: Sequence[int]) -> list[int]:
        """The rows of the peers of `row` without `suspects`; all other peers where each is suspected."""
        others = np.setdiff1d(self.peers_of(row), row)
        free = np.setdiff1d(others, np.array(suspects, np.int64))
        found: list[int] = (free if len(free) else others).tolist()
        return found

    def beside(self, row: int, suspects: Collection[int]) -> list[int]:
        """The unsuspected peers of `row`; of all its stage where its peers have more work than others, and all are."""
        pools = (self.peers_of(row), self.stage_of(row))
        free = ([r for r in pool.tolist() if r not in suspects] for pool in pools)
        return next((rows for rows in free if rows), [])

    def replica_of(self, row: int) -> int:
        """The replica of the rank in `row`: its ranks work on the same data."""
        return self.mesh.replica(self.steps.ranks[row])

    @cached_property
    def residual_ns(self) -> float:
        """The error of the unchanged model, ns a step: a smaller effect is not proven."""
        return self.model.missed_ns(self)

    def least_saved(self, pinned: float, *likely: float) -> float:
        """What a cure saves at least, ns: its saving `pinned`, or the `likely` ones beyond the error of the model."""
        return max(pinned, min(likely) - NORMAL_95 * self.residual_ns)

    @cached_property
    def pinned_residual_ns(self) -> float:
        """The error of the model that keeps recorded lengths, ns a step: only wrong matches cause it."""
        return self.pinned_model.missed_ns(self)

    @cached_property
    def host_needs(self) -> F64:
        """The time that hosts need for each step, ranks × steps, ns; NaN where not recorded, or not in the sample."""
        needs = np.full(self.steps.own.shape, np.nan)
        for row, host in self.hosts.items():
            needs[row] = host_need(self.ops, self.steps, self.steps.ranks[row], host.working, host.launched)
        return needs

    @cached_property
    def hosts(self) -> dict[int, Host]:
        """What the hosts of a sample of ranks did, by row; only hosts that a GPU trace recorded."""
        return hosts_of(self, range(0, len(self.steps.ranks), max(1, len(self.steps.ranks) // RANKS_SAMPLED)))

    @cached_property
    def hosted(self) -> dict[tuple[int, frozenset[int]], tuple[StepModel, StepModel]]:
        """The models that were given hosts, and the same with them, by what was asked for (`cures.with_hosts`)."""
        return {}

    @cached_property
    def concealing(self) -> tuple["Case", "Case"] | None:
        """The case with as much work beside waits as the recording admits, and with as much as is likely.

        None where compute was recorded.
        """
        found = concealed_work(self)
        if found is None or self.table is not None:
            return None
        same = [(n, n + 1) for n in self.steps.numbers] if self.steps.labelled else None
        cut = self.steps.cut.number if self.steps.cut else None
        most, likely = (
            build(self.run, with_concealed(self.ops, work), self.mesh, same, cut)
            for work in (found.most, found.likely)
        )
        return most, likely

    @cached_property
    def free_model(self) -> StepModel | TableModel:
        """The step model in which every unmatched wait may vanish: a cure saves most in it."""
        model = self.seen or self.model
        traced = model.of_traces
        return model if traced is None else model_of(self, free=True, like=traced)

    @cached_property
    def early_model(self) -> StepModel | TableModel:
        """The model of recorded ranks in which compute uses messages early, where the traces do not show when."""
        model = self.seen or self.model
        traced = model.of_traces
        return model if traced is None else using_early(self, traced)

    @cached_property
    def pinned_model(self) -> StepModel | TableModel:
        """The model in which a cure saves least: unmatched operations keep their length, messages are used early."""
        return self.slowest or self.early_model.pinned(self)


def build(
    run: Run, ops: Operations, mesh: Mesh, wanted: Sequence[StepRange] | None, cut: int | None = None
) -> Case:
    """Return the case of `run`, of the `wanted` steps or of all. Raises InputError where nothing can be compared.

    `cut` is the number of a step that `ops` hold as far as all ranks recorded it.

    Where groups are unknown, the model lets ranks of a stage wait for each other if that reproduces the recorded waits.
    """
    if cut is None:
        run, ops, cut = _with_cut_step(run, ops, mesh)
    measured = measure_run(run, ops, mesh, wanted)
    measured = replace(measured, steps=with_cut(ops, measured.steps, cut))
    m, model = tabulated(measured) or (measured, model_of(measured))
    met = circumstances(m, of_table=model.of_table is not None)
    case = Case(
        m.run, m.ops, m.waits, m.steps, m.clocks, m.mesh, m.buffered, model=model, met=met,
        found=alike_excess(m, met),
    )  # fmt: skip
    if model.of_table is not None or not (mates(m) >= 0).any():
        return case
    joined = replace(case, model=model_of(m, joined=True))
    return joined if joined.residual_ns < max(case.residual_ns, LITTLE_SHARE * case.step_ns) else case


def without_steps(case: Case, steps: Collection[int], note: Quality) -> Case:
    """Return the case of the same recording without some steps, for the reason in `note`."""
    run = replace(case.run, quality=(*case.run.quality, note))
    kept = [(n, n + 1) for n in case.steps.numbers if n not in steps]
    return build(run, case.ops, case.mesh, kept, case.steps.cut.number if case.steps.cut else None)


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
