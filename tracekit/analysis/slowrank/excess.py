"""Which ranks work longer than their peers, and whether that is more than chance.

Peers of a rank are those that do the same work: same pipeline stage, any data, context or tensor index.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, norm

from tracekit.analysis.slowrank.statistics import (
    MIN_LOST_SHARE,
    NOISE_FLOOR,
    ONE_STEP_P,
    Excess,
    excess,
    median_of_others,
)
from tracekit.mesh import Mesh
from tracekit.tables.clock import Clocks
from tracekit.tables.match import Operations
from tracekit.tables.operations import NO_STEP
from tracekit.tables.steps import F64, Steps
from tracekit.tables.waits import Waits

Rows = list[npt.NDArray[np.int64]]


def stage_rows(steps: Steps, mesh: Mesh) -> Rows:
    """Rows of `steps` by pipeline stage, in stage order."""
    stage = np.array([mesh.coords(r)["pp"] for r in steps.ranks], np.int64)
    return [np.flatnonzero(stage == s) for s in range(mesh.sizes["pp"])]


def typical(steps: Steps, groups: Rows) -> F64:
    """Own time of each rank and step if the rank worked like the median of its peers; its own where it has none."""
    peers = median_of_others(steps.own, groups)
    return np.where(np.isfinite(peers), peers, steps.own)


def rank_excess(ops: Operations, waits: Waits, steps: Steps, mesh: Mesh) -> Excess:
    """Own-time excess of every rank over its peers; its significance over steps, or over collectives of one step.

    An excess that one operation alone explains is an accident, not a slow rank: z is 0 then.
    """
    found = excess(steps.own, stage_rows(steps, mesh), NOISE_FLOOR * float(np.nanmedian(steps.wall)))
    many = len(steps.numbers)
    if many > 1:
        rest = (found.mean * many - _longest_single(ops, steps, mesh)) / (many - 1)
        lasting = rest > 0.5 * MIN_LOST_SHARE * float(np.nanmean(steps.wall))
        return Excess(
            found.value, found.mean, found.sigma, np.where(lasting, found.z, np.minimum(found.z, 0.0))
        )
    often = [_z_of_coming_last(ops, waits, steps, rank) for rank in steps.ranks]
    z = np.where(found.mean > 0, often, 0.0)
    return Excess(
        found.value, found.mean, found.sigma, z, float(norm.isf(ONE_STEP_P / max(len(steps.ranks), 1)))
    )


def _longest_single(ops: Operations, steps: Steps, mesh: Mesh) -> F64:
    """Per rank, the largest excess over its peers before any one operation; the late entry counts as one. ns."""
    groups = stage_rows(steps, mesh)
    parts = segments(ops, steps, groups)
    if not parts.shape[1] or not np.isfinite(parts).any():
        return np.zeros(len(steps.ranks))
    over = parts - median_of_others(parts, groups)
    longest = np.max(np.where(np.isfinite(over), over, -np.inf), axis=1)
    return np.where(np.isfinite(longest), longest, 0.0)


def _z_of_coming_last(ops: Operations, waits: Waits, steps: Steps, rank: int) -> float:
    """How unlikely it is that chance made the rank come last so often, in standard deviations.

    Each collective is one trial, won with probability 1/members; those in which nobody waited long enough for the
    order to mean anything are left out.
    """
    inside = (ops.instance >= 0) & (ops.rank == rank)
    if steps.labelled:
        inside &= ops.step == steps.numbers[0]
    trials = np.unique(ops.instance[inside])
    p2p = np.array([c.p2p for c in ops.channels])
    trials = trials[~p2p[ops.channel[waits.first_row[trials]]]]
    longest = np.zeros(len(waits.members), np.int64)
    matched = ops.instance >= 0
    np.maximum.at(longest, ops.instance[matched], waits.wait[matched])
    trials = trials[longest[trials] > 0]
    if not len(trials):
        return 0.0
    last = int((ops.rank[waits.last[trials]] == rank).sum())
    chance = float(np.mean(1.0 / waits.members[trials]))
    return float(norm.isf(max(float(binom.sf(last - 1, len(trials), chance)), 1e-300)))


def segments(ops: Operations, steps: Steps, groups: Rows) -> F64:
    """Own time before each operation of the analysed steps, ns; rows as in `steps`, one column an operation.

    The k-th column is the work between the posts of the (k−1)-th and the k-th operation of the rank. Rows of a
    group that has fewer operations end in NaN, and so does a rank that has not as many as its peers.
    """
    parts = []
    for i, rank in enumerate(steps.ranks):
        where = ops.of(rank)
        labels = ops.step[where]
        keep = np.isin(labels, steps.numbers) if steps.labelled else np.ones(len(labels), bool)
        posts = ops.at_start[where][keep].astype(np.float64)
        late = len(steps.numbers) == 1 and np.isfinite(steps.begin[i, 0])
        parts.append(np.diff(posts, prepend=steps.begin[i, 0] if late else posts[:1]))
    result = np.full((len(parts), max((len(p) for p in parts), default=0)), np.nan)
    for rows in groups:
        usual = int(np.median([len(parts[r]) for r in rows])) if len(rows) else 0
        for row in rows:
            if len(parts[row]) == usual:
                result[row, :usual] = parts[row]
    return result


def with_late_start(ops: Operations, steps: Steps, clocks: Clocks) -> Steps:
    """A single step's own times counted from one common moment: who entered it late made the others wait.

    With several steps the first begin is left out instead, because profilers themselves start at other times.
    """
    starts = [ops.start[ops.of(r)] for r in steps.ranks]
    labels = [ops.step[ops.of(r)] for r in steps.ranks]
    aligned = np.full(len(steps.ranks), np.nan)
    for i, rank in enumerate(steps.ranks):
        inside = labels[i] == steps.numbers[0] if steps.labelled else labels[i] >= NO_STEP
        if inside.any() and np.isfinite(steps.own[i, 0]):
            first = int(np.flatnonzero(inside)[0])
            lead = float(ops.at_start[ops.of(rank)][first]) - steps.begin[i, 0]
            aligned[i] = float(clocks.align(rank, starts[i][first : first + 1])[0]) - max(lead, 0.0)
    earliest = np.nanmin(aligned) if np.isfinite(aligned).any() else 0.0
    late = (aligned - earliest)[:, None]
    return Steps(
        steps.ranks,
        steps.numbers,
        steps.own + late,
        steps.wall + late,
        steps.begin - late,
        steps.partial,
        steps.labelled,
    )


@dataclass(frozen=True)
class Dispersion:
    """How unevenly work is dealt between peers: `ratio` is 1 where delays are independent of each other."""

    ratio: float
    spread_share: float  # standard deviation of a peer's own time in a step over its mean


def dispersion(ops: Operations, steps: Steps, mesh: Mesh, blocks: int = 8) -> Dispersion:
    """Overdispersion of own time between peers: variance of blocks against the sum of their operations' variances."""
    groups = [g for g in stage_rows(steps, mesh) if len(g) >= 2]
    parts = segments(ops, steps, groups)
    whole, single, level = 0.0, 0.0, 0.0
    for rows in groups:
        values = parts[rows][:, np.isfinite(parts[rows]).any(axis=0)]
        values = values[np.isfinite(values).all(axis=1)]
        if len(values) < 2 or values.shape[1] < 2 * blocks:
            continue
        cuts = np.linspace(0, values.shape[1], blocks * len(steps.numbers) + 1).astype(int)
        cuts = np.unique(cuts)
        deviation = values - values.mean(axis=0)
        deviation -= deviation.mean(
            axis=1, keepdims=True
        )  # a persistent difference is a slow rank, not an imbalance
        sums = np.add.reduceat(deviation, cuts[:-1], axis=1)
        whole += float(np.square(sums).sum())
        single += float(np.square(deviation).sum())
        level += float(values.sum() / len(values)) ** 2 / len(sums[0]) * len(values)
    return Dispersion(whole / single if single > 0 else 1.0, float(np.sqrt(whole / level)) if level else 0.0)
