"""Deviations of kernels from their usual length on ranks that do the same work, by rank, step and place."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from tracekit.rank_events.coded_words import numbered
from tracekit.rank_events.event_columns import categories, ints, matches, truth
from tracekit.steps.features import COMMUNICATION
from tracekit.steps.medians import weighted_median
from tracekit.steps.step_kernels import StepKernels
from tracekit.steps.steps import windows_of
from tracekit.thresholds.slowrank import KIND_RATIO, MAJORITY, NEARLY_ALL, PEERS_SAMPLED
from tracekit.thresholds.tables import LIKE_SHARE
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64, Mask


@dataclass(frozen=True)
class SameKernels:
    """The kernels of one kind that ranks of a stage run equally often in every step."""

    rows: tuple[int, ...]  # of Steps
    index: I64  # ranks × steps × places: which kernel of its rank
    lasted: F64  # the same shape, ns
    alone: Mask  # places where all ranks share the device equally with communication

    def at(self, places: I64) -> "SameKernels":
        """The kernels at some places only."""
        return SameKernels(self.rows, self.index[:, :, places], self.lasted[:, :, places], self.alone[places])

    @property
    def usual(self) -> F64:
        """The mean length at each place over ranks and steps, ns."""
        return np.asarray(np.maximum(self.lasted.mean(axis=(0, 1)), 1.0), np.float64)

    @cached_property
    def share(self) -> F64:
        """The relative excess of each kernel over the usual length at its place: ranks × steps × places."""
        return np.asarray(self.lasted / self.usual - 1.0, np.float64)

    @cached_property
    def lasting(self) -> F64:
        """The relative excess of all kernels of a rank in all steps, which its device causes; by rank."""
        return np.asarray(self.share.mean(axis=(1, 2)), np.float64)

    @cached_property
    def off(self) -> F64:
        """`share` without the mean of each rank over all steps, and the mean of each step over all ranks."""
        share = self.share - self.lasting[:, None, None]
        return np.asarray(share - share.mean(axis=(0, 2), keepdims=True), np.float64)

    def typical(self) -> F64:
        """The usual length of each place, ns, shrunk towards places of about the same length as far as chance explains.

        Few ranks and steps were recorded, so the mean of one place has an error of its own: a James-Stein estimator.
        """
        usual = self.usual
        drawn = usual.copy()
        chance = np.square(self.off).mean(axis=(0, 1)) / (self.lasted.shape[0] * self.lasted.shape[1])
        for places in as_long(usual):
            level = float(usual[places].mean())
            kept = beyond_chance(usual[places] / level - 1.0, float(chance[places].mean()))
            drawn[places] = level + (usual[places] - level) * kept
        return drawn

    def lasting_by_chance(self) -> F64:
        """The part of `lasting` that chance explains, because few steps were recorded; by rank."""
        by_step = self.off.mean(axis=2)
        chance = float(np.square(by_step).mean()) / max(by_step.shape[1] - 1, 1)
        return np.asarray(self.lasting * (1.0 - beyond_chance(self.lasting, chance)), np.float64)

    @cached_property
    def off_in_step(self) -> F64:
        """`off` of all kernels of a step together, as one place."""
        sums = self.lasted.sum(axis=2, keepdims=True)
        return SameKernels(self.rows, self.index[:, :, :1], sums, np.ones(1, bool)).off

    @cached_property
    def off_within(self) -> F64:
        """`off` without the mean of each step of a rank: a slow device does not lengthen single places."""
        return np.asarray(self.off - self.off.mean(axis=2, keepdims=True), np.float64)


NO_PLACES: Final = np.zeros(0, np.int64)

Kind = tuple[str, int]
"""The name of a kernel, and the ordinal of its length: forward and backward share some names of kernels."""


def same_kernels(kernels: Sequence[StepKernels], rows: Sequence[int], steps: int) -> dict[Kind, SameKernels]:
    """The kernels that all ranks in `rows` run equally often in each of `steps` steps, by kind."""
    found: dict[Kind, SameKernels] = {}
    by_name = [_by_name(k) for k in kernels]
    for name in sorted(by_name[0]):
        index = _places(kernels, [named.get(name, NO_PLACES) for named in by_name], steps)
        if index is None:
            continue
        lasted = np.stack([k.lasted[at] for k, at in zip(kernels, index, strict=True)])
        shared = np.stack([k.shared[at] for k, at in zip(kernels, index, strict=True)])
        shared /= np.maximum(lasted, 1.0)
        every = SameKernels(tuple(rows), index, lasted, np.ptp(shared, axis=(0, 1)) <= LIKE_SHARE)
        found |= {(name, n): every.at(places) for n, places in enumerate(as_long(every.usual))}
    return found


def _by_name(kernels: StepKernels) -> dict[str, I64]:
    """The indices of the kernels of each name, ascending."""
    words, code = numbered(kernels.name)
    edges = np.cumsum(np.bincount(code, minlength=len(words)))[:-1]
    return dict(zip(words, np.split(np.argsort(code, kind="stable"), edges), strict=False))


def _places(kernels: Sequence[StepKernels], at: Sequence[I64], steps: int) -> I64 | None:
    """The indices of kernels of a name, ranks × steps × places; None where ranks or steps run different numbers.

    `at`: the indices of each rank's kernels of that name.

    Windows may cut the first step: then only its last kernels, and as many of the other steps, are used.
    """
    count = np.stack([np.bincount(k.column[w], minlength=steps) for k, w in zip(kernels, at, strict=True)])
    few = int(count.min())
    regular = not np.ptp(count, axis=0).any() and len(np.unique(count[0, 1:])) < 2 and few == count[0, 0]
    if not regular or few < MAJORITY * count.max() or few == 0:
        return None
    ends = np.cumsum(count, axis=1)
    return np.stack([w[e[:, None] - few + np.arange(few)] for w, e in zip(at, ends, strict=True)])


def as_long(usual: F64) -> list[I64]:
    """The places in groups of about equal length, shortest first, each in order; `usual` are their lengths, ns."""
    order = np.argsort(usual, kind="stable")
    ascending = usual[order]
    cuts = np.flatnonzero(ascending[1:] > KIND_RATIO * ascending[:-1]) + 1
    return [np.sort(places) for places in np.split(order, cuts)]


def beyond_chance(deviations: F64, chance: float) -> float:
    """The factor, 0 to 1, by which `deviations` shrink if chance alone gives the variance `chance`."""
    found = float(np.square(deviations).mean())
    return max(0.0, 1.0 - chance / found) if found > 0 else 0.0


# How fast a pipeline stage does the work that other stages do as well.
#
# Stages differ by design: one has more layers, or embeds tokens. Kernels at the same place of the program (on a CPU:
# operators) do the same work on every stage, so that they separate a stage that is slow from one that has more to do.

Place = tuple[str, str, str]
"""The names of a kernel, of the one before and of the one behind."""


def places_of(names: Sequence[str]) -> list[Place]:
    """Return the place of each piece of work by its name; `names` are in order."""
    ends = ["", *names, ""]
    return list(zip(names, ends[:-2], ends[2:], strict=True))


def middle_rows(run: Measured, rows: I64) -> list[int]:
    """Return the few of `rows` with own times nearest to their lower median; none of rows without a whole step."""
    rows = rows[np.isfinite(run.steps.own[rows]).any(axis=1)]
    if not len(rows):
        return []
    own = np.nanmean(run.steps.own[rows], axis=1)
    middle = float(np.sort(own)[(len(own) - 1) // 2])
    near: list[int] = rows[np.lexsort((rows, np.abs(own - middle)))][:PEERS_SAMPLED].tolist()
    return near


class Ran(NamedTuple):
    """What a rank runs at one place: the median length, ns, and how often."""

    median: float
    times: int


def pace_at(mine: Mapping[Place, Ran], others: Sequence[Mapping[Place, Ran]]) -> float | None:
    """Return how many times as long a stage takes as the others for the work that both do, from what they run.

    None where no place is common, or where nearly all of the time does not share the factor: then the stages differ by
    their work.
    """
    common = sorted(place for place in mine if any(place in other for other in others))
    if not common:
        return None
    medians = ([other[place].median for other in others if place in other] for place in common)
    usual = np.array([np.median(of_place) for of_place in medians])
    ratio = np.array([mine[place].median for place in common]) / np.maximum(usual, 1.0)
    weight = usual * np.array([mine[place].times for place in common])
    pace = weighted_median(ratio, weight, 1.0)
    sharing = ratio - 1.0 >= MAJORITY * (pace - 1.0)
    return pace if weight[sharing].sum() >= NEARLY_ALL * weight.sum() > 0 else None


def at_places(run: Measured, rows: I64, steps: Mask | None = None) -> dict[Place, Ran]:
    """Return what a stage's middle rank runs at each place, in `steps` or in all; not where its length varies."""
    found: dict[Place, list[float]] = defaultdict(list)
    for row in middle_rows(run, rows)[:1]:
        names, lasted, column = _pieces(run, row)
        for place, ns, at in zip(places_of(names), lasted.tolist(), column.tolist(), strict=True):
            if steps is None or steps[at]:
                found[place].append(ns)
    usual = {place: float(np.median(ns)) for place, ns in found.items()}
    return {
        place: Ran(usual[place], len(ns))
        for place, ns in found.items()
        if np.median(np.abs(np.array(ns) - usual[place])) <= (KIND_RATIO - 1.0) * usual[place]
    }


def _pieces(run: Measured, row: int) -> tuple[list[str], F64, I64]:
    """(names, lengths in ns, columns of Steps) of a rank's kernels, or a CPU's outermost operators, in order."""
    rank = run.steps.ranks[row]
    if run.ops.per_rank[rank].on_gpu:
        kernels = run.kernels(row)
        return kernels.name.tolist(), kernels.lasted, kernels.column
    columns = [c for c in range(len(run.steps.numbers)) if np.isfinite(run.steps.own[row, c])]
    begins, ends = windows_of(run.ops, run.steps, rank, columns)
    events = run.run.events(rank, ["ts", "dur", "cat", "name"])
    operator = categories(events) == "cpu_op"
    mine = operator & ~truth(events, "name", COMMUNICATION)
    start = ints(events, "ts", 0)[mine]
    end = start + ints(events, "dur", 0)[mine]
    names = matches(events, "name", lambda name: name or "")[mine]
    order = np.lexsort((-end, start))
    start, end, names = start[order], end[order], names[order]
    outer = start >= np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]])[: len(start)]
    at = np.searchsorted(begins, start, "right") - 1
    inside = outer & (at >= 0) & (start < ends[np.maximum(at, 0)]) if columns else np.zeros(len(start), bool)
    of = np.array(columns, np.int64)[np.maximum(at, 0)[inside]]
    return names[inside].tolist(), (end - start)[inside].astype(np.float64), of
