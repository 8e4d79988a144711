"""The time that communication on the same device adds to overlapping kernels: on all ranks but a late one, on a stage.

A collective that waits for its last member occupies a part of the device of every member that came before. The last
member never waits, so that its own time is shorter than its peers' own time by what its lateness costs them.

Stages differ as well: one overlaps its compute with long collectives, another with none, which lengthens the kernels of
the former without more work. A kernel that shares the device is compared with undisturbed kernels at the same place of
the program: on its own stage, or on other stages, scaled to the pace of its own.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.expected.same_kernels import Place, as_long, middle_rows, places_of
from tracekit.steps.medians import median_by_column, of_rows, sampled, weighted_median
from tracekit.steps.step_kernels import StepKernels
from tracekit.thresholds.slowrank import KIND_RATIO, MOST_STRETCHED, PEERS_SAMPLED
from tracekit.thresholds.tables import LIKE_SHARE
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64


class Spun(NamedTuple):
    """The own time that overlapping communication adds to kernels, ranks × steps as in `Steps`, ns.

    NaN for ranks of a stage in which all share their device equally with communication, and for ranks without a GPU.
    """

    longer: F64
    waiting: F64  # the part of it beside waits, by matched communication, which cures of late ranks save


def spun_longer(run: Measured) -> Spun:
    """Return what overlapping communication adds to kernels, whether it waits or transfers."""
    found = np.full(run.steps.own.shape, np.nan)
    waits, ops = run.waits, run.ops
    analysed, overlap = np.flatnonzero(run.analysed), ops.end - ops.start - ops.exposed
    matched = analysed[ops.instance[analysed] >= 0]
    within = np.where(np.isfinite(run.steps.own), run.by_step(analysed, overlap[analysed]), np.nan)
    beside = run.by_step(matched, (waits.wait - waits.exposed_wait)[matched].astype(np.float64))  # it waits
    shared = of_rows(np.nanmean, within)
    least = run.suspect_ns / (MOST_STRETCHED * len(run.stages))  # a cure relieves all stages of a pipeline
    for stage in run.stages:
        rows = stage[np.isfinite(shared[stage])]
        if len(rows) < 2 or not all(run.on_gpu(r) for r in rows.tolist()):
            continue
        spared = shared[rows].max() - shared[rows] > least
        if spared.any():
            found[rows] = _of_stage(run, rows[spared], rows[~spared], within)
    return Spun(found, found * np.clip(beside / np.fmax(within, 1.0), 0.0, 1.0))


def relieved(spun: Spun, own: F64, stages: list[I64], rows: I64) -> F64:
    """`own` (ranks × steps, ns) with the others relieved of waiting for the cured `rows`; `spun` is `spun_longer`.

    Their kernels keep what transfers add, and at least what is added to those of `rows`.
    """
    less = own.copy()
    for stage in stages:
        mine = np.intersect1d(stage, rows)
        others = np.setdiff1d(stage, rows)
        if len(mine) and np.isfinite(spun.longer[mine]).any():
            more = spun.longer[others] - np.nanmean(median_by_column(spun.longer[mine]))
            less[others] -= np.maximum(np.nan_to_num(np.minimum(more, spun.waiting[others])), 0.0)
    return less


def _of_stage(run: Measured, spared: I64, waiting: I64, within: F64) -> F64:
    """`spun_longer` of the ranks of one stage, in order of rows; a few are read, the others are interpolated.

    By the time `within` each step that compute shares with communication, whether that waits or transfers: some groups
    may communicate beside compute when others do not. The ranks that are read are spread over its mean, up to the ones
    that share most and least, so that they do not depend on how ranks are numbered.
    """
    shared = of_rows(np.nanmean, within)
    longest = spared[np.argsort(-of_rows(np.nanmean, run.steps.own[spared]), kind="stable")]
    every = np.sort(np.concatenate([spared, waiting]))
    ordered = [some[np.argsort(shared[some], kind="stable")] for some in (spared, waiting)]
    spread = (row for some in ordered for row in (*sampled(some), *some[-1:]))
    read = np.unique([*longest[:PEERS_SAMPLED], *spread])
    longer, times = stretched(run, read.tolist()), np.nan_to_num(within)
    up = np.argsort(times[read], axis=None, kind="stable")
    result: F64 = np.interp(times[every], times[read].ravel()[up], longer.ravel()[up])
    result[np.searchsorted(every, read)] = longer
    return result


def stage_contention(run: Measured, stages: list[I64]) -> F64:
    """Return the time that communication adds to the compute of a typical rank of each stage, stages × steps, ns.

    stages: rows of Steps of each. Reads the ranks with own times nearest to the stage's lower median. 0 where no kernel
    at the same place runs without communication.
    """
    read = [[run.kernels(row) for row in middle_rows(run, rows)] for rows in stages]
    free = [_free(kernels) for kernels in read]
    found = np.zeros((len(stages), len(run.steps.numbers)))
    for stage, kernels in enumerate(read):
        if not kernels:
            continue
        alone = _with_others(free[stage], [f for i, f in enumerate(free) if i != stage])
        found[stage] = np.median([_stretched(k, alone, found.shape[1]) for k in kernels], axis=0)
    return found


def _is_free(kernels: StepKernels) -> list[bool]:
    """Whether each kernel shares the device with communication for at most LIKE_SHARE of its length."""
    free: list[bool] = (kernels.shared <= LIKE_SHARE * kernels.lasted).tolist()
    return free


def _free(read: list[StepKernels]) -> dict[Place, F64]:
    """The median lengths of a stage's undisturbed kernels at each place, ns, ascending: one for each kind of length.

    Kernels of different work may have one place: forward and backward share some names of kernels.
    """
    lasted: dict[Place, list[float]] = {}
    for kernels in read:
        rows = zip(places_of(kernels.name.tolist()), kernels.lasted.tolist(), _is_free(kernels), strict=True)
        for place, ns, alone in rows:
            if alone:
                lasted.setdefault(place, []).append(ns)
    every = {place: np.array(ns) for place, ns in lasted.items()}
    return {place: np.array([np.median(ns[at]) for at in as_long(ns)]) for place, ns in every.items()}


def _with_others(mine: Mapping[Place, F64], others: list[dict[Place, F64]]) -> dict[Place, F64]:
    """`mine`, completed by lengths that `others` have at the same place, scaled to the pace of `mine`; ns."""
    found = {place: [ns] for place, ns in mine.items()}
    for stage in others:
        same = [
            place for place in sorted(stage.keys() & mine.keys()) if len(stage[place]) == len(mine[place])
        ]
        usual = np.concatenate([np.zeros(0), *(stage[place] for place in same)])
        ratio = np.concatenate([np.zeros(0), *(mine[place] for place in same)]) / np.maximum(usual, 1.0)
        pace = weighted_median(ratio, usual, 1.0)
        for place, ns in stage.items():
            own = mine.get(place, np.zeros(0))[:, None]
            far = (np.maximum(own, pace * ns) > KIND_RATIO * np.minimum(own, pace * ns)).all(axis=0)
            found.setdefault(place, []).append(pace * ns[far])
    return {place: np.sort(np.concatenate(ns)) for place, ns in found.items()}


def _stretched(kernels: StepKernels, alone: Mapping[Place, F64], steps: int) -> F64:
    """The excess of a rank's device-sharing kernels over the times `alone` at their places, by step, ns.

    Of the lengths at a place the longest counts that a kernel may have been without communication.
    """
    longer, places = np.zeros(steps), places_of(kernels.name.tolist())
    for at in np.flatnonzero(~np.array(_is_free(kernels), bool) & kernels.counts).tolist():
        lasted, least = kernels.lasted[at], kernels.lasted[at] - MOST_STRETCHED * kernels.shared[at]
        usual = alone.get(places[at], np.zeros(0))
        usual = usual[(usual >= least) & (usual <= (1.0 + LIKE_SHARE) * lasted)]
        longer[kernels.column[at]] += max(lasted - usual[-1], 0.0) if len(usual) else 0.0
    return longer


# The extra time of each rank's kernels because communication runs on the device at the same time.
#
# A kernel that shares the device with a collective is longer on every rank, but ranks may share unequally:
# groups differ in the length of their transfers, and some communicate when others do not. The slowdown of a
# kind of kernel is learnt from kernels at the same place of a step that share the device for different parts
# of their time.


def stretched(run: Measured, rows: Sequence[int]) -> F64:
    """Return the own time that kernels of `rows` (of Steps) take longer beside communication, rows × steps, ns.

    `rows` do the same work. 0 if kernels at the same place share the device equally on all of them, so that their
    slowdown is unknown.
    """
    read = [run.kernels(row) for row in rows]
    places = _places_of(read, np.flatnonzero(run.steps.shares == run.steps.shares.max()).tolist())
    for _ in range(2):  # the usual kernel of a few ranks is partly that of a slow one
        places = _at_one_speed(places)
    share = {name: _share(table) for name, table in places.items()}
    result = np.zeros((len(rows), len(run.steps.numbers)))
    for i, kernels in enumerate(read):
        part = np.array([share.get(n, 0.0) for n in kernels.name.tolist()])
        np.add.at(result[i], kernels.column, kernels.shared * part * kernels.counts)
    return result


def _places_of(read: Sequence[StepKernels], columns: Sequence[int]) -> dict[str, F64]:
    """Return kernel name → (length, shared time), ranks × steps × positions × 2; equal counts in `columns` only."""
    found: dict[str, list[F64]] = defaultdict(list)
    for kernels in read:
        for name in np.unique(kernels.name.astype(str)).tolist():
            mine = kernels.name == name
            steps = [np.flatnonzero(mine & (kernels.column == c)) for c in columns]
            if len({len(s) for s in steps}) == 1:
                rows = np.array(steps)
                found[name].append(np.stack([kernels.lasted[rows], kernels.shared[rows]], axis=-1))
    return {
        name: np.stack(tables)
        for name, tables in found.items()
        if len(tables) == len(read) and len({t.shape for t in tables}) == 1
    }


def _like(table: F64) -> tuple[F64, npt.NDArray[np.bool_]]:
    """Return (median kernel of each position, whether each rank's kernel shares the device to the same extent)."""
    usual = np.median(table, axis=0)
    part, others = (length[..., 1] / np.maximum(length[..., 0], 1.0) for length in (table, usual))
    return usual, np.abs(part - others) <= LIKE_SHARE


def _at_one_speed(places: dict[str, F64]) -> dict[str, F64]:
    """Return `places` with each rank's kernels of a step as long as usual ones that share the device as much."""
    tables = [(table, *_like(table)) for table in places.values()]
    speed = np.ones(tables[0][0].shape[:2] if tables else (0, 0))
    for at in np.ndindex(speed.shape):
        ratio = [table[(*at, ..., 0)] / np.maximum(usual[at[1], :, 0], 1.0) for table, usual, _ in tables]
        weight = [np.where(like[at], usual[at[1], :, 0], 0.0) for _, usual, like in tables]
        # kernels of a damaged trace may take no time
        speed[at] = weighted_median(np.concatenate(ratio), np.concatenate(weight), 1.0) or 1.0
    return {name: table / speed[..., None, None] for name, table in places.items()}


def _share(table: F64) -> float:
    """Return the share of their time beside communication that kernels of one name lose, all ranks at one speed.

    A kernel that takes d, with s beside communication, would take d − share × s alone. Kernels at one position of
    different ranks give the share.
    """
    usual, like = _like(table)
    longer, more = (table - usual)[~like].T
    part = weighted_median(longer / np.where(more == 0, 1.0, more), np.abs(more), 0.0)
    return min(max(part, 0.0), MOST_STRETCHED)
