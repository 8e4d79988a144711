"""Separates ranks that were not recorded together, by the ends of the collectives that they share.

Members of a collective leave it together, so the ends on two ranks differ only by their clocks: by a constant and a
slow drift. Two recordings of different jobs, or of different times of one job, fit no such line, for any clocks; they
are separated without trusting any clock, and never compared.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np

from tracekit.arrays import numbered_rows
from tracekit.disjoint_sets import DisjointSets
from tracekit.errors import InputError, UsageError
from tracekit.matching.clock import common_collectives, line_through
from tracekit.matching.match import Operations
from tracekit.rank_events.operation_names import ROOTED
from tracekit.rank_events.rank_ops import RankOps
from tracekit.store import Run
from tracekit.thresholds.inference import (
    ENDS_DRIFT,
    ENDS_ELSEWHEN_NS,
    ENDS_LEAST,
    ENDS_MATCHED,
    ENDS_MISFIT,
    ENDS_MOST_RANKS,
    ENDS_MOSTLY,
    ENDS_NEARLY_ALL,
    ENDS_ODD_NS,
    ENDS_PAIRS,
    ENDS_SHIFTS,
    ENDS_TAIL,
    ENDS_TOGETHER,
    ENDS_WIDTH_NS,
)
from tracekit.thresholds.slowrank import RANKS_LISTED
from tracekit.thresholds.tables import CLOCK_FIT_FROM, MAX_CLOCK_RATE, TAIL_NS
from tracekit.units import F64, I64, Mask


def named_by_traces(ranks: Sequence[RankOps]) -> dict[int, Mask]:
    """Return rank → which of its operations have a named group, before anything is inferred from streams."""
    return {r.rank: (r.group >= 0) | (False if r.hint is None else r.hint >= 0) for r in ranks}


def is_placed(run: Run) -> bool:
    """Return whether the times of calls are known only to within the poll of a watchdog, which recorded them."""
    return any(q.kind == "placed_calls" for q in run.quality)


def strangers(
    ops: Operations,
    named: Mapping[int, Mask],
    job: int | None = None,
    *,
    chosen: bool = False,
    placed: bool = False,
) -> tuple[int, ...]:
    """Return the ranks that were not recorded with those of `job`, sorted; () where all were recorded together.

    `named` comes from `named_by_traces`; where a group was inferred, ends that do not meet show only a wrong group.
    Recordings are numbered from 1, the one with most ranks first, which is analysed where `job` is None. `chosen`
    says that the number was used to choose among jobs, so that it cannot choose among the recordings of one. Ends that
    are `placed` to within a watchdog's poll set no ranks apart: a poll may be longer than a step.

    Raises InputError where the first one does not hold most ranks, UsageError where there is no such recording.
    """
    recordings = [] if placed else _recordings(ops, named)
    why = "collectives that they share do not end together"
    if not recordings:
        recordings, why = _elsewhen(ops), "they share no operation and no time"
    if job is not None and job > len(recordings):
        held = "one job" if len(recordings) == 1 else f"{len(recordings)} jobs"
        raise UsageError(f"--job {job}: the input holds {held}; {_numbered(recordings)}")
    others = [ranks for number, ranks in enumerate(recordings, 1) if number != (job or 1)]
    if job is None and others and len(recordings[0]) <= sum(map(len, others)):
        number = "" if chosen else "choose one with --job 1, or "
        raise InputError(
            f"the ranks were not recorded together: {why} "
            f"({_numbered(recordings)}); {number}give the files of one job, recorded at one time"
        )
    return tuple(sorted(r for ranks in others for r in ranks))


def _numbered(recordings: Sequence[Sequence[int]]) -> str:
    if len(recordings) == 1:
        return "leave --job out"
    shown = recordings[:RANKS_LISTED]
    return "; ".join(f"{number}: {_shown(ranks)}" for number, ranks in enumerate(shown, 1))


def _recordings(ops: Operations, named: Mapping[int, Mask], *, exact: bool = True) -> list[list[int]]:
    """Return the ranks of the largest recording and of each that is set apart, largest first; empty without any apart.

    `exact` ends may set only few ranks apart: if they split a job in halves, another cause is assumed.
    """
    apart, together, few, room = _judged(ops, named)
    if room is not None and not exact:
        apart, together, room = [p for p in apart if p not in room.odd], [*together, *room.odd], None
    if not apart:
        return []
    linked = DisjointSets(ops.ranks)
    for a, b in together:
        linked.join(a, b)
    for a, b in few:  # they fit anything: they join no ranks that others set apart
        sides = {linked.find(a), linked.find(b)}
        if not any({linked.find(x), linked.find(y)} == sides for x, y in apart):
            linked.join(a, b)
    if room is not None:
        _join_across(ops, linked, {r for pair in apart for r in pair}, room._replace(ends=TAIL_NS))
    split = {r for pair in apart if linked.find(pair[0]) != linked.find(pair[1]) for r in pair}
    recordings: dict[int, list[int]] = defaultdict(list)
    for rank in ops.ranks:
        recordings[linked.find(rank)].append(rank)
    by_size = sorted(recordings.values(), key=lambda ranks: (-len(ranks), ranks))
    result = [ranks for n, ranks in enumerate(by_size) if split and (not n or not split.isdisjoint(ranks))]
    if room is not None and result and len(result[0]) < ENDS_MOST_RANKS * len(ops.ranks):
        return _recordings(ops, named, exact=False)
    return result


def _join_across(ops: Operations, linked: DisjointSets, odd: set[int], room: "_Room") -> None:
    """Join recordings that only `odd` ranks set apart, since only neighbouring members of a group were compared."""
    for a, b in combinations(sorted({linked.find(r) for r in ops.ranks} | odd), 2):
        if linked.find(a) == linked.find(b):
            continue
        rows = [np.flatnonzero((ops.rank == r) & (ops.instance >= 0) & ~ops.among(ROOTED)) for r in (a, b)]
        _, i, j = np.intersect1d(ops.instance[rows[0]], ops.instance[rows[1]], return_indices=True)
        ends = np.stack([ops.end[rows[0][i]], ops.end[rows[1][j]]], axis=1)
        if len(ends) >= 2 * ENDS_LEAST and not _misfit(ends[np.argsort(ends[:, 0], kind="stable")], room):
            linked.join(a, b)


def _elsewhen(ops: Operations) -> list[list[int]]:
    """Return the ranks of each recording, split where ranks share no operation and lie far apart in time."""
    linked = DisjointSets(ops.ranks)
    rows = np.flatnonzero(ops.instance >= 0)
    met = np.stack([ops.rank[rows], ops.rank[_first_rows(ops.instance[rows], rows)]], axis=1)
    for rank, first in met[numbered_rows(*met.T)[0]].tolist():
        linked.join(rank, first)
    parts: dict[int, list[int]] = defaultdict(list)
    for rank in ops.ranks:
        parts[linked.find(rank)].append(rank)
    spans = sorted((*_span(ops, ranks), ranks) for ranks in parts.values())
    found: list[list[int]] = []
    until = 0
    for begin, end, ranks in spans:
        if not found or begin - until > ENDS_ELSEWHEN_NS:
            found.append([])
        found[-1].extend(ranks)
        until = max(until, end)
    return sorted((sorted(ranks) for ranks in found), key=lambda ranks: (-len(ranks), ranks))


def _first_rows(instance: I64, rows: I64) -> I64:
    """Return for each of `rows` the first one of the same instance."""
    _, first, place = np.unique(instance, return_index=True, return_inverse=True)
    return np.asarray(rows[first][place.reshape(-1)], np.int64)


def _span(ops: Operations, ranks: Sequence[int]) -> tuple[int, int]:
    """Return begin and end of the operations of some ranks, on their own clocks, ns."""
    mine = [ops.of(r) for r in ranks if len(ops.start[ops.of(r)])]
    if not mine:
        return 0, 0
    return min(int(ops.start[m].min()) for m in mine), max(int(ops.end[m].max()) for m in mine)


def _shared(ops: Operations, named: Mapping[int, Mask]) -> dict[tuple[int, int], I64]:
    """Return pairs of ranks with their operations in common collectives, shape (collectives, 2).

    Only collectives with a named group count: for others the matching itself is a guess.
    """
    both = common_collectives(ops)
    grouped = np.array([c.group >= 0 and not c.p2p for c in ops.channels] or [False])
    recorded = np.concatenate([named[r] for r in ops.ranks]) if ops.ranks else np.zeros(0, bool)
    both = both[grouped[ops.channel[both[:, 0]]] & recorded[both].all(axis=1)]
    ranks = ops.rank[both]
    distinct, place = numbered_rows(*ranks.T)
    pairs = ranks[distinct]
    order = np.argsort(place, kind="stable")
    bounds = np.searchsorted(place[order], np.arange(1, len(pairs)))
    parts = np.split(both[order], bounds)[: len(pairs)]
    return {(a, b): mine for (a, b), mine in zip(pairs.tolist(), parts, strict=True)}


def _judged(
    ops: Operations, named: Mapping[int, Mask]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]], "_Room | None"]:
    """Return pairs of ranks with common ends that fit no line, that fit one, or that are too few, and the tolerance.

    If the ends of most pairs agree to microseconds, as on devices, those of the others must as well: two runs of one
    job have such similar steps that each rank would pass for one of the other run.
    """
    apart: list[tuple[int, int]] = []
    together: list[tuple[int, int]] = []
    lasted = ops.end - ops.start
    loose: list[tuple[int, int]] = []
    few: list[tuple[int, int]] = []
    exact = 0
    pairs = _shared(ops, named)
    for (a, b), mine in pairs.items():
        ends, on_gpu = ops.end[mine], ops.per_rank[a].on_gpu and ops.per_rank[b].on_gpu
        if len(ends) < ENDS_LEAST:
            few.append((a, b))
        elif _misfit(ends, _Room.of(float(np.median(lasted[mine].min(axis=1))))):
            apart.append((a, b))
        elif on_gpu and _misfit(ends, _TIGHT):
            loose.append((a, b))
        else:
            together.append((a, b))
            exact += on_gpu and len(ends) >= 2 * ENDS_LEAST
    most = exact >= max(ENDS_MOSTLY * len(pairs), len(loose) + 1, ENDS_PAIRS)
    return (
        (apart + loose, together, few, _TIGHT._replace(odd=tuple(loose)))
        if most
        else (apart, together + loose, few, None)
    )


class _Room(NamedTuple):
    """The tolerance of ends of one collective: a fixed one, ns, and a share of the usual time between two ends.

    width: ns within which two ends meet. meet: share of ends that meet under one clock difference, if two ranks ran
    together. odd: pairs of ranks that only this tolerance sets apart.
    """

    ends: float
    width: float
    share: float
    meet: float
    odd: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, shortest: float) -> "_Room":
        """Return the tolerance for members that leave one after the other, at most about one duration apart; ns."""
        return cls(ENDS_TAIL * shortest, shortest, ENDS_MISFIT, ENDS_TOGETHER)


_TIGHT: Final = _Room(ENDS_ODD_NS, ENDS_ODD_NS, 0.0, ENDS_NEARLY_ALL)
"""The tolerance of devices, which leave together to microseconds."""


def _misfit(ends: I64, room: _Room) -> bool:
    """Whether the ends on two ranks, shape (operations, 2), fit no line that two clocks could produce; ns.

    Operations with shifted numbers, because a window began elsewhere, fit after a shift and prove nothing. Ends that
    reach over twice the time on one rank show a clock that jumped, or counts in another unit.
    """
    mine, theirs = (ends - ends[0]).astype(np.float64).T
    most = min(len(ends) - ENDS_LEAST, ENDS_SHIFTS, round(2 * (1 - room.meet) * len(ends)))
    shifted = any(
        _fits(mine[max(-s, 0) : len(mine) - max(s, 0)], theirs[max(s, 0) : len(theirs) + min(s, 0)], room)
        for s in sorted(range(-most, most + 1), key=abs)
    )
    short, long = sorted((float(np.ptp(mine)), float(np.ptp(theirs))))
    return long > 2 * short + room.ends or not (shifted or _coincide(mine, theirs, room) >= room.meet)


def _coincide(mine: F64, theirs: F64, room: _Room) -> float:
    """Return the largest share of ends that meet an end of the other rank under one difference of the clocks.

    The pairing does not matter, so it may be wrong because one rank lost operations. At most ENDS_MATCHED ends of
    each rank are compared.
    """
    mine, theirs = mine[:ENDS_MATCHED], theirs[:ENDS_MATCHED]
    difference = np.sort((theirs[:, None] - mine[None, :]).ravel())
    between = float(np.median(np.diff(np.sort(mine))))
    width = max(ENDS_WIDTH_NS, min(room.width, ENDS_MISFIT * between))
    reach = np.searchsorted(difference, difference + width, side="right") - np.arange(len(difference))
    return float(reach.max()) / len(mine)


def _fits(mine: F64, theirs: F64, room: _Room) -> bool:
    """Whether the ends, shape (operations,), differ by a constant and a drift that clocks may have; ns.

    A few ends do not determine the rate, so they need only fit a line with a rate that crystals can have. Most clocks
    hardly drift in a recording: a constant is tried first, as the robust line takes forty times as long.
    """
    shift = theirs - mine
    missed, most = float(np.median(np.abs(shift - np.median(shift)))), room.ends
    if missed > most:
        most = max(room.share * float(np.median(np.diff(np.sort(theirs)))), most)
    if missed <= most:
        return True
    lines = [(line_through(shift, theirs), ENDS_DRIFT)]
    if len(mine) < CLOCK_FIT_FROM:
        lines.append((line_through(shift, theirs, ENDS_LEAST), MAX_CLOCK_RATE))
    return any(
        abs(rate) <= fastest and float(np.median(np.abs(shift - begin - rate * theirs))) <= most
        for (begin, rate), fastest in lines
    )


def _shown(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - RANKS_LISTED} more" if len(ranks) > RANKS_LISTED else ""
    return "ranks " + ", ".join(map(str, ranks[:RANKS_LISTED])) + more
