"""The parts of the summed steps, from what is lost to what is left, in whole ns; they add up to the steps.

They begin with the parts of `tracekit breakdown`. Compute is cut further: forwards that run again, small kernels, time
beyond the best rate of a class, and with FLOPs and peak known what these need at peak. Waiting in a pipeline is cut in
two: what stages of unequal length cost is imbalance, and the rest the schedule's bubble.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tracekit.analysis.breakdown.parts import added, counted, steps_of, waits_known
from tracekit.analysis.floor.removed import Removed
from tracekit.analysis.floor.work import RankWork, work_of
from tracekit.case.case import Case
from tracekit.errors import UsageError
from tracekit.findings import StepBreakdown, TimeParts
from tracekit.findings.floor import KernelClass
from tracekit.thresholds.slowrank import Z_LIMIT
from tracekit.units import I64, ms


@dataclass(frozen=True)
class Best:
    """slow: by rank the time beyond the best in each of its steps, ns, at most regular compute. classes: compared."""

    slow: dict[int, I64]
    classes: tuple[KernelClass, ...]


NEEDED: Final = ("model", "compute", "unknown")
"""Parts without a saving: work that has to be done, and time of unknown use."""


@dataclass(frozen=True)
class Measure:
    """The case with what its ranks computed; times in ns."""

    case: Case
    cells: tuple[StepBreakdown, ...]
    works: tuple[RankWork, ...]

    @cached_property
    def total(self) -> TimeParts:
        """The sum of the steps of all ranks."""
        return added(cell.parts for cell in self.cells)

    @property
    def kept_ns(self) -> int:
        """Compute without recomputation, the sum of the steps of all ranks."""
        return self.total.compute_ns - _summed(self.works, "recomputed")

    @cached_property
    def best(self) -> Best:
        """Each class of kernel beside its best rate."""
        return at_best(self.case, self.works)

    @cached_property
    def removed(self) -> Removed:
        """The replays of the step without a part."""
        return Removed(self.case, self.step_ns)

    @cached_property
    def count(self) -> float:
        """The whole steps of ranks that the cells make up."""
        return counted(self.case, self.cells)

    @cached_property
    def step_ns(self) -> float:
        """The mean of the steps that are cut into parts, ns: begins that were not recorded make it shorter."""
        return self.total.step_ns / max(self.count, 1)

    @cached_property
    def level_ns(self) -> float:
        """What a step saves if ranks share the work evenly."""
        return self.removed.imbalance()

    def flops(self, ranks: int) -> float | None:
        """Return the FLOPs of products by shapes, of a step of a job of so many `ranks`; None unless all show them."""
        every = [w.flops for w in self.works]
        known = [n for n in every if n is not None]
        if not self.cells or len(known) < len(every) or not sum(known):
            return None
        return sum(known) / len(known) * ranks

    def of_cells(self, kind: str) -> dict[int, I64]:
        """Return by rank the part `kind` of TimeParts in each column of Steps."""
        steps = self.case.steps
        column = {number: i for i, number in enumerate(steps.numbers)}
        found = {cell.rank: np.zeros(len(column), np.int64) for cell in self.cells}
        for cell in self.cells:
            found[cell.rank][column[cell.step]] = getattr(cell.parts, kind)
        return found

    def of_works(self, kind: str) -> dict[int, I64]:
        """Return by rank the array `kind` of RankWork in each column of Steps."""
        return self.spread({w.rank: getattr(w, kind) for w in self.works})

    def spread(self, by_rank: Mapping[int, I64]) -> dict[int, I64]:
        """Return arrays with an entry a recorded step of a rank as arrays with an entry a column of Steps."""
        found = {}
        for w in self.works:
            found[w.rank] = np.zeros(len(self.case.steps.numbers), np.int64)
            found[w.rank][w.columns] = by_rank[w.rank]
        return found


def measured(case: Case) -> Measure:
    """Return the case with its steps cut into parts; raises InputError where events cannot be read."""
    known = waits_known(case)
    cells = tuple(cell for rank in case.ops.ranks for cell in steps_of(case, rank, known).cells)
    works = tuple(work for rank in case.ops.ranks if (work := work_of(case, rank)))
    return Measure(case, cells, works)


def amounts_of(measure: Measure, useful_ns: float | None) -> dict[str, int]:
    """Return the parts of the summed steps by name, ns; they add up to `measure.total.step_ns`.

    useful_ns: what the model's FLOPs need at peak, in all steps of all ranks; None where not known. Raises UsageError
    where that is longer than all compute.
    """
    total, kept = measure.total, measure.kept_ns
    useful = None if useful_ns is None else round(useful_ns)
    if useful is not None and useful > kept:
        raise UsageError(
            "the model's FLOPs need longer at this peak than the ranks computed; correct FLOPs or peak"
        )
    room = kept - (useful or 0)  # a kernel at peak is neither small nor slow
    small = min(_summed(measure.works, "small"), room)
    slower = min(sum(int(ns.sum()) for ns in measure.best.slow.values()), room - small)
    rest = kept - small - slower
    work = {"compute": rest} if useful is None else {"other_work": rest - useful, "model": useful}
    uneven, allocator = _uneven_stages(measure), _summed(measure.works, "allocator")
    exposed = {
        f"{e.axis} {kind}": ns
        for e in total.exposed
        for kind, ns in (("transfer", e.transfer_ns), ("either", e.open_ns))
        if ns
    }
    return {
        "bubble": total.bubble_ns - uneven, **exposed, "imbalance": total.waiting_ns + uneven,
        "allocator_calls": allocator, "launch_gaps": total.host_ns - allocator, "idle": total.idle_ns,
        "small_kernels": small, "slow_kernels": slower, "recomputation": total.compute_ns - kept,
        "unknown": total.unknown_ns, **work,
    }  # fmt: skip


def savings_of(measure: Measure, names: Sequence[str], useful_ns: float) -> dict[str, float]:
    """Return what a step saves at most without each of the parts `names`, ns; parts of NEEDED have no saving.

    useful_ns: what the model's FLOPs need at peak in one step of a rank; only `other_work` asks for it.
    """
    return {name: _saving(measure, name, useful_ns) for name in names if name not in NEEDED}


def _saving(measure: Measure, name: str, useful_ns: float) -> float:
    removed = measure.removed
    if name == "other_work":
        slow, most = measure.spread(measure.best.slow), round(useful_ns)
        regular = measure.of_works("regular")
        return removed.work({rank: np.maximum(ns - slow[rank] - most, 0) for rank, ns in regular.items()})
    if name == "bubble":
        waits = removed.pipeline_waits()
        return _without_bubble(measure) if waits is None else waits
    if name == "imbalance":
        return measure.level_ns
    if name == "allocator_calls":
        return removed.work(measure.of_works("allocator"))
    if name == "launch_gaps":
        held, host = measure.of_works("allocator"), measure.of_cells("host_ns")
        return removed.work({rank: ns - held[rank] if rank in held else ns for rank, ns in host.items()})
    if name == "idle":
        return removed.work(measure.of_cells("idle_ns"))
    if name == "small_kernels":
        return removed.work(measure.of_works("small"))
    if name == "slow_kernels":
        return removed.work(measure.spread(measure.best.slow))
    if name == "recomputation":
        return removed.work(measure.of_works("recomputed"))
    return removed.transfers(name.rpartition(" ")[0])


def _without_bubble(measure: Measure) -> float:
    """Return what a step saves if each rank is as long as without its bubble, ns: for tables, which hold no posts."""
    by_rank: dict[int, list[int]] = {}
    for cell in measure.cells:
        by_rank.setdefault(cell.rank, []).append(cell.parts.step_ns - cell.parts.bubble_ns)
    longest = max((sum(ns) / len(ns) for ns in by_rank.values()), default=measure.step_ns)
    return max(measure.step_ns - longest, 0.0)


def _uneven_stages(measure: Measure) -> int:
    """Return the part of the bubble that ranks of unequal work cause, ns over all steps.

    For traces the replay with even work shows how long ranks still wait for other stages. For a table, which holds no
    posts: where even work saves S of a step, a rank that works D less waits S − D less, first inside collectives.
    """
    removed, total = measure.removed, measure.total
    if not total.bubble_ns or not measure.level_ns:
        return 0
    if measure.case.table is None:
        return round((1 - removed.bubble_left()) * total.bubble_ns)
    spared = measure.level_ns - (measure.case.steps.own - removed.even)
    less = round(float(np.nansum(np.maximum(spared, 0.0)))) - total.waiting_ns
    return min(max(less, 0), total.bubble_ns)


def _summed(works: Sequence[RankWork], kind: str) -> int:
    return sum(int(getattr(w, kind).sum()) for w in works)


# Each class of kernel at the best rate in this job: the rank of a stage that runs it fastest sets the others'
# limit.
#
# Ranks of a stage run the same shapes: a class is compared if its name runs equally often in every step of
# each rank, and its sum over a step counts, so that shapes of one name weigh the same. A rank's rate is its
# median step.


def at_best(case: Case, works: Sequence[RankWork]) -> Best:
    """Return what ranks lose beside the best rate of each class; classes with the largest loss come first."""
    slow: dict[int, I64] = {}
    classes: list[KernelClass] = []
    for stage in sorted({case.mesh.stage(w.rank) for w in works}):
        mine = [w for w in works if case.mesh.stage(w.rank) == stage]
        beyond = {w.rank: np.zeros(len(w.columns), np.int64) for w in mine}
        names = _comparable(mine) if len(mine) > 1 else []
        classes += [_compared(name, stage, mine, beyond) for name in names]
        slow |= {w.rank: np.minimum(beyond[w.rank], w.regular) for w in mine}
    return Best(slow, tuple(sorted(classes, key=lambda c: (-c.lost_ms, c.stage, c.name))))


def _comparable(works: Sequence[RankWork]) -> list[str]:
    """Return the names that run equally often in every step of all `works`."""
    first = works[0]
    names = []
    for name, calls in first.calls.items():
        every = [w.calls.get(name) for w in works]
        if all(c is not None and (c == calls[0]).all() for c in every):
            names.append(name)
    return names


def _compared(name: str, stage: int, works: Sequence[RankWork], beyond: dict[int, I64]) -> KernelClass:
    """Return the class, and add to `beyond` what each rank loses on it in each step.

    A rank loses where it is slower than the best one by more than steps vary: work that follows the data, as attention
    over documents, takes another time in each step, and neither rank is slow.
    """
    usual = {w.rank: int(np.median(w.spent[name])) for w in works}
    best = min(usual, key=lambda rank: (usual[rank], rank))
    varies = float(np.median([_error_of(w.spent[name]) for w in works]))
    lost = 0
    for w in works:
        if usual[w.rank] - usual[best] > varies:
            more = np.maximum(w.spent[name] - usual[best], 0)
            beyond[w.rank] += more
            lost += int(more.sum())
    spent = np.concatenate([w.spent[name] for w in works])
    return KernelClass(
        name, stage, int(works[0].calls[name][0]), ms(float(spent.mean())), ms(usual[best]), best,
        ms(lost / len(spent)),
    )  # fmt: skip


def _error_of(spent: I64) -> float:
    """Return the least difference of two ranks' usual steps that chance does not make, ns; 0 of a single step."""
    return Z_LIMIT * float(np.std(spent, ddof=1)) * float(np.sqrt(2 / len(spent))) if len(spent) > 1 else 0.0
