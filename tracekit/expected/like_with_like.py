"""Confounders: parts of a rank's own time that it does not cause, removed before ranks are compared.

A rank works longer than its peers because it is slow, because it got more tokens, or because communication that other
ranks do not have shares its device; sizes and overlapping operations in the recording show the last two. Ranks of
tensor index 0 load data for their tensor groups by design: such a rank's longer idle time is not a fault as far as the
other ranks of this role, of all stages, are idle as long.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tracekit.expected.contention import Spun, spun_longer
from tracekit.expected.equal_work import Peers, peers_of_work
from tracekit.expected.excess import over_peers, per_step, rank_excess, recurs, throttled
from tracekit.expected.nodes import whole_part
from tracekit.step_graph.statistics import MAD_TO_SIGMA, Excess, spread
from tracekit.steps.dealt_tokens import Dealt, dealt_tokens
from tracekit.steps.host_need import paced_compute
from tracekit.steps.medians import median_by_column, sampled
from tracekit.thresholds.slowrank import MAJORITY, Z_LIMIT
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64, Mask


@dataclass(frozen=True)
class Circumstances:
    """Own time beyond the peers' that the rank does not cause; ranks × steps as in `Steps`, ns."""

    tokens: Dealt  # all-to-alls brought more or fewer tokens
    beside: F64  # kernels shared the device with more communication than the peers', or with less (below 0)
    role: F64  # gaps that the rank's role makes
    chance: F64  # what differs by chance on ranks that the other part of own time shows to be slow
    of_role: I64  # rows of ranks with such a role
    spun: Spun  # what communication adds to kernels in total
    peers: Peers  # the ranks that are compared with each other
    by_compute: tuple[int, ...] = ()  # the rows that compute alone shows to be slow
    by_idle: tuple[int, ...] = ()  # the rows that time without compute alone shows to be slow
    computing: Excess | None = None  # compute beyond the peers', where `by_compute` or `by_idle` has rows
    idling: Excess | None = None  # time without compute beyond the peers', where `by_idle` has rows

    @property
    def gaps(self) -> F64:
        """The gaps that the rank does not cause."""
        by_compute = np.isin(np.arange(len(self.role)), self.by_compute)
        return self.role + np.where(by_compute[:, None], self.chance, 0.0)

    def parts(self) -> Iterator[tuple[Excess, tuple[int, ...]]]:
        """Yield each part of own time, as its excess, with the rows that it alone shows to be slow."""
        for part, rows in ((self.computing, self.by_compute), (self.idling, self.by_idle)):
            if part is not None:
                yield part, rows

    @property
    def explained(self) -> F64:
        """The sum of all confounders that the recording shows."""
        return self.tokens.beyond + self.beside + self.role + self.chance


def circumstances(run: Measured, *, of_table: bool) -> Circumstances:
    """The confounders of each rank; none for an operation table, which shows neither tokens nor overlap."""
    none = np.zeros(run.steps.own.shape)
    no_rows = np.zeros(0, np.int64)
    peers = peers_of_work(run, partial(whole_part, run), of_table=of_table)
    if of_table:
        unknown = Spun(none * np.nan, none * np.nan)
        return Circumstances(Dealt(none, none, 0.0), none, none, none, no_rows, unknown, peers)
    tokens = dealt_tokens(run.ops, run.steps, run.stages)
    spun = spun_longer(run)
    beside = np.zeros(none.shape)
    for stage in run.stages:
        beside[stage] = np.nan_to_num(spun.longer[stage] - median_by_column(spun.longer[stage]))
    met = Circumstances(tokens, beside, none, none, no_rows, spun, peers)
    if not run.on_gpus:  # CPUs do not show compute apart from host work
        return _of_pace(run, met)
    computed = run.computed
    rows, role = role_gaps(run, computed, peers)
    met = replace(met, role=role, of_role=rows)
    return _of_one_part(run, met, _computes_longer(run, met, computed), _idles_longer(run, met, computed))


def _of_pace(run: Measured, met: Circumstances) -> Circumstances:
    """`met` with interruptions counted as chance on ranks of CPUs that the pace of their operators shows to be slow."""
    if len(run.steps.numbers) < 2:
        return met
    found = alike_excess(run, met)
    longer = np.nan_to_num(found.mean, nan=0.0) > run.suspect_ns
    noisy = np.flatnonzero(longer & ~found.significant(run.suspect_ns)).tolist()
    computed = np.full(run.steps.own.shape, np.nan)
    for stage in run.stages:
        mine = [row for row in stage.tolist() if row in noisy]
        others = sampled([row for row in stage.tolist() if row not in noisy])
        if mine:
            asked = sorted([*mine, *others])
            computed[asked] = paced_compute(run.run, run.ops, run.steps, asked)[asked]
    idling, by_idle = _idles_longer(run, met, run.computed)
    by_idle &= np.isin(np.arange(len(by_idle)), noisy)
    return _of_one_part(run, met, _computes_longer(run, met, computed), (idling, by_idle))


def alike_excess(run: Measured, met: Circumstances) -> Excess:
    """The excess of every rank over its peers without confounders.

    Ranks of a role differ by what they load as well, so their own noise scales their z. Ranks that one
    part of own time shows to be slow get the excess of that part.
    """
    found = rank_excess(run, run.steps.own - met.explained, met.peers)
    z, mean, value, once = found.z.copy(), found.mean.copy(), found.value.copy(), found.throughout
    if len(met.of_role):
        z[met.of_role] *= found.sigma / max(found.sigma, noise_of(value[met.of_role]))
    for part, alone in met.parts():
        rows = list(alone)
        z[rows], mean[rows], value[rows] = part.z[rows], part.mean[rows], part.value[rows]
        once |= part.throughout.intersection(rows)
    return replace(found, z=z, mean=mean, value=value, throughout=once)


def _parts(run: Measured, met: Circumstances, computed: F64) -> tuple[F64, F64]:
    """The compute and the rest of own time without their confounders, ranks × steps, ns."""
    return computed - met.tokens.beyond - met.beside, run.steps.own - computed - met.role


def _computes_longer(run: Measured, met: Circumstances, computed: F64) -> tuple[Excess, Mask]:
    """The excess of compute over the peers', and whether it alone makes each row slow, with gaps that differ by chance.

    Gaps much shorter than the peers' are not chance: the host of a slow device runs ahead of it, so the device makes up
    for its kernels where others are idle. Gaps that are clearly longer are not chance either.
    """
    return _alone(run, *_parts(run, met, computed), met.peers, of_device=run.on_gpus)


def _idles_longer(run: Measured, met: Circumstances, computed: F64) -> tuple[Excess, Mask]:
    """The excess of time without compute, and whether it alone makes each row slow: compute differs by chance.

    Uneven data lengthens kernels of changing ranks, which hides a host that pauses in every step. Ranks idle unlike by
    design, so that a fault must exceed by far what they differ by, and none is found on a rank that loads for others.
    """
    compute, idle = _parts(run, met, computed)
    found, apart = _alone(run, idle, compute, met.peers)
    apart &= np.nan_to_num(found.mean) > Z_LIMIT * spread(found.mean)
    apart[met.of_role] = False
    return found, apart


def _alone(
    run: Measured, part: F64, rest: F64, peers: Peers, *, of_device: bool = False
) -> tuple[Excess, Mask]:
    """The excess of `part` of own time (ranks × steps, ns), and whether it alone makes each row slow.

    It recurs, or, `of_device`, lasts throughout its one step.
    """
    found = per_step(run, over_peers(run, part, peers), peers)
    many = len(run.steps.numbers)
    if many < 2:
        return found, np.zeros(len(run.steps.ranks), bool)
    still = over_peers(run, rest, peers)
    own_noise = np.nanstd(np.where(np.isfinite(still.value), still.value, 0.0), axis=1, ddof=1)
    lasting = recurs(found.value / run.steps.shares, run.step_ns)
    if of_device:
        found = replace(found, throughout=throttled(run, found, lasting))
        lasting[list(found.throughout)] = True
    apart = replace(found, limit=Z_LIMIT).significant(run.suspect_ns) & lasting
    pairs = [len(stage) == 2 and apart[stage].any() for stage in run.stages]  # the other one is off as far
    rows = [stage for stage, pair in zip(run.stages, pairs, strict=True) if not pair]
    usual = spread(still.mean[np.concatenate(rows)]) if rows else 0.0
    error = np.maximum(np.maximum(still.sigma, own_noise) / np.sqrt(many), usual)
    beyond = np.nan_to_num(still.mean)
    chance = (beyond > -Z_LIMIT * error) & (beyond < Z_LIMIT * error)
    return found, np.asarray(apart & chance, bool)


def _of_one_part(
    run: Measured, met: Circumstances, compute: tuple[Excess, Mask], idle: tuple[Excess, Mask]
) -> Circumstances:
    """`met` with the rest of own time as chance on ranks that compute, or time without it, alone shows to be slow."""
    (computing, by_compute), (idling, by_idle) = compute, idle
    by_idle = by_idle & ~by_compute
    if not (by_compute | by_idle).any():
        return met
    beyond = met.peers.beyond(run.steps.own - met.explained)
    part = np.where(by_idle[:, None], idling.value, computing.value)
    chance = np.where((by_compute | by_idle)[:, None], np.nan_to_num(beyond - part), 0.0)
    return replace(
        met, chance=chance, by_compute=tuple(np.flatnonzero(by_compute).tolist()),
        by_idle=tuple(np.flatnonzero(by_idle).tolist()), computing=computing, idling=idling,
    )  # fmt: skip


def role_gaps(run: Measured, computed: F64, peers: Peers) -> tuple[I64, F64]:
    """Return the rows of the ranks with such a role, and the idle time that it explains, ranks × steps, ns.

    `computed` is the compute of each rank in each step, ns. The second value is 0 where no role shows. Each rank gets
    the median excess of the other ranks of the role, so that a rank which loads for longer keeps the difference.
    """
    longer = np.zeros(computed.shape)
    no_role = np.zeros(0, np.int64), longer
    if not run.mesh.roles or len(run.steps.numbers) < 2:
        return no_role
    rows = _role(run, over_peers(run, run.steps.own - computed, peers))
    if not len(rows):
        return no_role
    explained, beyond = longer.copy(), idle_beyond(run, computed, rows)
    for row in rows.tolist():
        explained[row] = np.nan_to_num(np.maximum(median_by_column(beyond[np.setdiff1d(rows, row)]), 0.0))
    return rows, explained


def idle_beyond(run: Measured, computed: F64, rows: I64) -> F64:
    """Return the idle time of each rank beyond the ranks of its stage outside a role's `rows`, ranks × steps, ns."""
    idle = run.steps.own - computed
    beyond = np.zeros(idle.shape)
    for stage in run.stages:
        others = np.setdiff1d(stage, rows)
        if len(others):
            beyond[stage] = np.nan_to_num(idle[stage] - median_by_column(idle[others]))
    return beyond


def noise_of(value: F64) -> float:
    """The robust standard deviation of an entry about its row's median, ns; `value` is ranks × steps.

    The smallest deviation of each row is left out, because the median is an entry of the row or lies between two.
    """
    off = np.abs(value - median_by_column(value.T)[:, None])
    left = np.sort(off, axis=1)[:, 1:]  # NaN last
    left = left[np.isfinite(left)]
    return float(MAD_TO_SIGMA * np.median(left)) if len(left) else 0.0


def _role(run: Measured, still: Excess) -> I64:
    """The rows of all ranks with index 0 in stages where each of them is idle longer than its peers; else empty."""
    mean, long = np.nan_to_num(still.mean), still.significant(run.suspect_ns)
    for axes in run.mesh.roles:
        first = np.array([run.mesh.leads(r, axes) for r in run.steps.ranks])
        mine = [stage[first[stage]] for stage in run.stages if not first[stage].all()]
        found = [rows for rows in mine if len(rows) and long[rows].all()]
        rows = np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)
        similar = len(rows) and mean[rows].min() >= MAJORITY * np.median(mean[rows])
        if similar and len(rows) >= 2 and int(long.sum()) - len(rows) < len(rows):
            return rows
    return np.zeros(0, np.int64)
