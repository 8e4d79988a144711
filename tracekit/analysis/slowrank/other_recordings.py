"""Which ranks were recorded with the others, by the ends of the collectives that they share.

Members of a collective leave it together, so the ends on two ranks differ by their clocks alone: by a constant and a
slow drift. Two recordings of different jobs, or of different times of one job, agree in no such line, whatever their
clocks say; they are told apart without trusting any clock, and never compared.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from tracekit.disjoint_sets import DisjointSets
from tracekit.errors import InputError, UsageError
from tracekit.tables.clock import F64, common_collectives, line_through
from tracekit.tables.intervals import I64
from tracekit.tables.match import Mask, Operations
from tracekit.tables.operations import RankOps
from tracekit.thresholds.slowrank import (
    ENDS_DRIFT,
    ENDS_ELSEWHEN_NS,
    ENDS_LEAST,
    ENDS_MATCHED,
    ENDS_MISFIT,
    ENDS_SHIFTS,
    ENDS_TAIL,
    ENDS_TOGETHER,
    ENDS_WIDTH_NS,
    RANKS_LISTED,
)


def named_by_traces(ranks: Sequence[RankOps]) -> dict[int, Mask]:
    """Rank → which of its operations have a group before anything is inferred from streams, or had one told of them."""
    return {r.rank: (r.group >= 0) | (False if r.hint is None else r.hint >= 0) for r in ranks}


def strangers(
    ops: Operations, named: Mapping[int, Mask], job: int | None = None, *, chosen: bool = False
) -> tuple[int, ...]:
    """Ranks that were not recorded with those of `job`, sorted; () where all were recorded together.

    `named` is what `named_by_traces` gives: where a group was inferred, ends that do not meet show a wrong one.
    Recordings are numbered from 1, the one of most ranks first; without a number that is the one that is answered.
    Where a number has `chosen` among jobs already, none can choose among recordings of one.
    Raises InputError where it does not hold most ranks, UsageError where there is no such recording.
    """
    recordings = _recordings(ops, named)
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


def _recordings(ops: Operations, named: Mapping[int, Mask]) -> list[list[int]]:
    """Ranks by recording, the one of most ranks first, without ranks that nothing sets apart; often none."""
    apart, together = _judged(ops, named)
    if not apart:
        return []
    linked = DisjointSets(ops.ranks)
    for a, b in together:
        linked.join(a, b)
    split = {r for pair in apart if linked.find(pair[0]) != linked.find(pair[1]) for r in pair}
    recordings: dict[int, list[int]] = defaultdict(list)
    for rank in ops.ranks:
        recordings[linked.find(rank)].append(rank)
    told = [recordings[root] for root in {linked.find(r) for r in split}]
    return sorted(told, key=lambda ranks: (-len(ranks), ranks))


def _elsewhen(ops: Operations) -> list[list[int]]:
    """Ranks by recording where some share no operation with the others and were recorded long before or after them."""
    linked = DisjointSets(ops.ranks)
    rows = np.flatnonzero(ops.instance >= 0)
    met = np.stack([ops.rank[rows], ops.rank[_first_rows(ops.instance[rows], rows)]], axis=1)
    for rank, first in np.unique(met, axis=0).tolist():
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
    """The first of `rows` that is of the same instance, for each of them."""
    _, first, place = np.unique(instance, return_index=True, return_inverse=True)
    return np.asarray(rows[first][place.reshape(-1)], np.int64)


def _span(ops: Operations, ranks: Sequence[int]) -> tuple[int, int]:
    """Begin and end of the operations of some ranks, by their own clocks, ns."""
    mine = [ops.of(r) for r in ranks if len(ops.start[ops.of(r)])]
    if not mine:
        return 0, 0
    return min(int(ops.start[m].min()) for m in mine), max(int(ops.end[m].max()) for m in mine)


def _judged(
    ops: Operations, named: Mapping[int, Mask]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs of ranks whose common ends fit no line, and pairs whose ends fit one or are too few to tell.

    Only collectives whose group the traces name count: elsewhere the matching itself is a guess.
    """
    apart: list[tuple[int, int]] = []
    together: list[tuple[int, int]] = []
    both = common_collectives(ops)
    grouped = np.array([c.group >= 0 and not c.p2p for c in ops.channels] or [False])
    told = np.concatenate([named[r] for r in ops.ranks]) if ops.ranks else np.zeros(0, bool)
    both = both[grouped[ops.channel[both[:, 0]]] & told[both].all(axis=1)]
    pairs, place = np.unique(ops.rank[both], axis=0, return_inverse=True)
    order = np.argsort(place.reshape(-1), kind="stable")
    bounds = np.searchsorted(place.reshape(-1)[order], np.arange(len(pairs) + 1))
    lasted = ops.end - ops.start
    for number, (a, b) in enumerate(pairs.tolist()):
        mine = both[order[bounds[number] : bounds[number + 1]]]
        shortest = lasted[mine].min(axis=1)
        (apart if _misfit(ops.end[mine], float(np.median(shortest))) else together).append((a, b))
    return apart, together


def _misfit(ends: I64, shortest: float) -> bool:
    """Whether the ends on two ranks, shape (operations, 2), fit no line that two clocks could draw; ns.

    Operations that were numbered differently, because a window began elsewhere, fit after a shift: they are no proof.
    Members may leave one after the other, but hardly by more than the operation takes: `shortest` is the usual time of
    the member that came last.
    """
    if len(ends) < ENDS_LEAST:
        return False
    mine, theirs = (ends - ends[0]).astype(np.float64).T
    most = min(len(ends) - ENDS_LEAST, ENDS_SHIFTS)
    shifted = any(
        _fits(mine[max(-s, 0) : len(mine) - max(s, 0)], theirs[max(s, 0) : len(theirs) + min(s, 0)], shortest)
        for s in sorted(range(-most, most + 1), key=abs)
    )
    return not shifted and _coincide(mine, theirs, shortest) < ENDS_TOGETHER


def _coincide(mine: F64, theirs: F64, shortest: float) -> float:
    """The largest share of ends that meet an end of the other rank under one difference of the clocks.

    Operations that were paired wrongly, because some of one rank are lost, still meet their own ends. At most
    ENDS_MATCHED ends of each rank are compared.
    """
    mine, theirs = mine[:ENDS_MATCHED], theirs[:ENDS_MATCHED]
    difference = np.sort((theirs[:, None] - mine[None, :]).ravel())
    width = max(ENDS_WIDTH_NS, min(shortest, ENDS_MISFIT * float(np.median(np.diff(np.sort(mine))))))
    reach = np.searchsorted(difference, difference + width, side="right") - np.arange(len(difference))
    return float(reach.max()) / len(mine)


def _fits(mine: F64, theirs: F64, shortest: float) -> bool:
    """Whether the ends, shape (operations,), differ by a constant and a drift that clocks may have; ns."""
    shift, rate = line_through(theirs - mine, theirs)
    missed = float(np.median(np.abs(theirs - mine - shift - rate * theirs)))
    apart = float(np.median(np.diff(np.sort(theirs))))
    return abs(rate) <= ENDS_DRIFT and missed <= max(ENDS_MISFIT * apart, ENDS_TAIL * shortest)


def _shown(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - RANKS_LISTED} more" if len(ranks) > RANKS_LISTED else ""
    return "ranks " + ", ".join(map(str, ranks[:RANKS_LISTED])) + more
