"""The parts of a rank's work that overlap with communication that waits for peers, recorded or concealed.

Kernels are longer there. Once no rank waits any more they lose that, and kernels that ran alone keep their length.

Where no compute was recorded, a device may compute beside a collective on another stream, or idle until it ends.
Communication alone shows the difference by what follows: behind a collective that blocks, a rank works equally long
however long it waited; behind one that does not, it works the shorter the longer it waited.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from tracekit.intervals import inside_each, union
from tracekit.matching.match import Operations, with_concealed
from tracekit.rank_events.coded_words import Codes
from tracekit.rank_events.operation_names import UNDIRECTED
from tracekit.step_graph.own_parts import WaitingParts
from tracekit.step_graph.statistics import NORMAL_95
from tracekit.steps.medians import weighted_quantile
from tracekit.steps.steps import windows_of
from tracekit.thresholds.slowrank import (
    LITTLE_SHARE,
    MINOR,
    NEARLY_ALL,
    QUEUED_NS,
    STEP_PARTS,
    USUAL_VARIATION,
)
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64


@dataclass(frozen=True)
class Concealed:
    """Work beside the wait of each operation, ns, at most and likely."""

    most: I64
    likely: I64


def concealed_work(run: Measured) -> Concealed | None:
    """Return the work that the waits of `run` may conceal; None where any rank recorded compute, which shows it.

    Ranks of a stage do the same work between the same two operations, and between a message and what follows it the
    same for each micro-batch. It fits between their begins on each of these ranks, so that what follows a wait cannot
    be short of more than that; on a rank that is slower by a factor, in as much less of that time.
    """
    ops = run.ops
    if any(len(rank.busy[0]) for rank in ops.per_rank.values()):
        return None
    wait, (message, position) = run.waits.wait.astype(np.float64), _positions(run)
    low, high = np.zeros(len(wait)), np.ones(len(wait))
    room = wait.copy()
    for following, bounds in ((_next_begun(ops), True), (_next_on_stream(ops), False)):
        after = np.maximum(ops.at_start[following] - ops.at_end, 0).astype(np.float64)
        place = _numbered(position, position[following])
        known = np.flatnonzero(run.analysed & (following != np.arange(len(following))))
        if bounds:
            slower = _factors(run, after, place, known)
            work = _numbered(message, message[following])
            between = np.where(ops.among(UNDIRECTED), -1 - work, _numbered(place, ops.step))
            room = np.minimum(room, _fits(after / slower + wait, between, known) - after)
        seen = known[(wait[known] > 0) & (after[known] > QUEUED_NS)]
        least, most = _shares(ops, wait, after, place, seen)
        low, high = np.maximum(low, least), np.minimum(high, most)
    high, room = np.maximum(low, high), np.maximum(room, 0.0)
    most = room * high
    likely = room * (low + high) / 2
    return Concealed(*((work * _shares_left(run, work)).astype(np.int64) for work in (most, likely)))


def _fits(time: F64, between: I64, known: I64) -> F64:
    """Return by operation the shortest `time` of the operations `known` with its number in `between`."""
    number = _numbered(between)
    shortest = np.full(len(time), np.inf)
    np.minimum.at(shortest, number[known], time[known])
    return np.asarray(shortest[number], np.float64)


def _factors(run: Measured, after: F64, place: I64, known: I64) -> F64:
    """Return by operation the factor by which its rank works longer than others of its stage; 1 where none shows.

    It shows where nearly all that follows operations is longer by it, be it long or short: what is longer because less
    of it was concealed has no such proportion.
    """
    factors = np.ones(len(after))
    row = np.searchsorted(run.steps.ranks, run.ops.rank[known])
    cells = place[known] * len(run.steps.ranks) + row
    size = (int(place.max(initial=0)) + 1) * len(run.steps.ranks)
    count = np.bincount(cells, minlength=size)
    mean = np.bincount(cells, after[known], size) / np.maximum(count, 1)
    table = np.where(count > 0, mean, np.nan).reshape(-1, len(run.steps.ranks))
    for stage in run.stages:
        mine = table[:, stage]
        mine = mine[np.isfinite(mine).all(axis=1) & (mine > QUEUED_NS).all(axis=1)]
        usual = np.sort(mine, axis=1)[:, (len(stage) - 1) // 2]  # of two ranks the quicker one
        if len(usual) < STEP_PARTS or float(usual.std()) < MINOR * float(usual.mean()):
            continue
        for place_in_stage, longer in enumerate((mine / usual[:, None]).T):
            factor = weighted_quantile(longer, usual, 1.0, 1 / 2)
            alike = np.abs(longer - factor) <= MINOR * (factor - 1.0)
            if float(usual[alike].sum()) >= NEARLY_ALL * float(usual.sum()):
                factors[run.ops.rank == run.steps.ranks[stage[place_in_stage]]] = factor
    return factors


def _shares_left(run: Measured, work: F64) -> F64:
    """Return by operation the share of `work` that leaves no rank a clearly longer own time than another of its stage.

    Ranks of a stage do the same work, so that none conceals more than the others show.
    """
    ops, steps = run.ops, run.steps
    own = _own_with(run, with_concealed(ops, work.astype(np.int64)))
    share = np.ones(own.shape)
    for stage in run.stages:
        most = (1.0 + USUAL_VARIATION) * np.fmin.reduce(own[stage], axis=0)
        more = own[stage] - steps.own[stage]
        left = np.maximum(most - steps.own[stage], 0.0) / np.where(more > 0, more, 1.0)
        share[stage] = np.where(more > 0, np.minimum(left, 1.0), 1.0)
    row, column = run.place
    return np.asarray(share[row, np.minimum(column, len(steps.numbers) - 1)], np.float64)


def _own_with(run: Measured, ops: Operations) -> F64:
    """Return the own time of ranks in the steps of `run`, ranks × steps, ns, where `ops` are exposed otherwise."""
    own = run.steps.own.copy()
    for row, rank in enumerate(run.steps.ranks):
        columns = np.flatnonzero(np.isfinite(own[row])).tolist()
        if columns:
            windows = windows_of(run.ops, run.steps, rank, columns)
            before, after = (inside_each(o.progress[rank].exposed, windows) for o in (run.ops, ops))
            own[row, columns] += np.subtract(before, after)
    return own


def _next_begun(ops: Operations) -> I64:
    """Return by operation the first one of its rank that begins after it ended; itself where none does."""
    found = np.arange(len(ops.start))
    for rank in ops.ranks:
        where = ops.of(rank)
        following = np.searchsorted(ops.start[where], ops.end[where], side="left")
        there = following < where.stop - where.start
        found[where][there] = following[there] + where.start
    return found


def _next_on_stream(ops: Operations) -> I64:
    """Return by operation the next one on its stream; itself where none is."""
    found = np.arange(len(ops.start))
    for rank in ops.ranks:
        where, stream = ops.of(rank), ops.per_rank[rank].stream
        if stream is not None:
            order = np.argsort(stream, kind="stable")
            same = np.diff(stream[order]) == 0
            found[where.start + order[:-1][same]] = where.start + order[1:][same]
    return found


def _positions(run: Measured) -> tuple[I64, I64]:
    """Return two numbers by operation: of its message and stage, and of its place among those in a step."""
    ops, message = run.ops, run.ops.messages[1]
    stage = np.zeros(len(ops.start), np.int64)
    for number, rows in enumerate(run.stages):
        stage[np.isin(ops.rank, np.array(run.steps.ranks)[rows])] = number
    turn = np.lexsort((ops.start, message, ops.step, ops.rank))
    keys = np.stack([ops.rank, ops.step, message])[:, turn]
    begins = np.append(True, (np.diff(keys) != 0).any(axis=0))
    nth = np.empty(len(turn), np.int64)
    nth[turn] = np.arange(len(turn)) - np.flatnonzero(begins)[np.cumsum(begins) - 1]
    return _numbered(stage, message), _numbered(stage, message, nth)


def _numbered(*keys: I64 | Codes) -> I64:
    """Return the number of each combination of `keys` among the distinct ones."""
    return np.asarray(np.unique(np.stack(keys), axis=1, return_inverse=True)[1].reshape(-1), np.int64)


def _shares(ops: Operations, wait: F64, after: F64, place: I64, seen: I64) -> tuple[F64, F64]:
    """Return by operation the least and the most share of its wait that conceals work.

    The slope of `after` over `wait` at each place, from the operations `seen`, is −1 where all of the wait conceals
    work. It holds with its 95 % interval, and within that of the places of the same message, which may differ. Any
    share where too few were seen.
    """
    low, high = np.zeros(len(wait)), np.ones(len(wait))
    slope, error = _slopes(ops, wait, after, place, seen)
    message = np.zeros(len(slope), np.int64)
    message[place] = ops.messages[1]
    for word in np.unique(message[np.isfinite(error)]).tolist():
        mine = np.flatnonzero((message == word) & np.isfinite(error))
        mean, spread = _of_all(-slope[mine], error[mine])
        of_word = np.flatnonzero(ops.messages[1] == word)
        low[of_word], high[of_word] = mean - NORMAL_95 * spread, mean + NORMAL_95 * spread
    known = np.isfinite(error[place])
    own, doubt = -slope[place][known], NORMAL_95 * error[place][known]
    low[known], high[known] = np.maximum(low[known], own - doubt), np.minimum(high[known], own + doubt)
    return np.clip(low, 0.0, 1.0), np.where(after <= QUEUED_NS, 1.0, np.clip(high, 0.0, 1.0))


def _slopes(ops: Operations, wait: F64, after: F64, place: I64, seen: I64) -> tuple[F64, F64]:
    """Return the slope of `after` over `wait` at each place and its standard error; infinite where unknown.

    Without what all ranks of a step, or all steps of a rank, have in common there.
    """
    at, step, rank = place[seen], ops.step[seen], ops.rank[seen]
    by_step, by_rank = _numbered(at, step), _numbered(at, rank)
    count = int(place.max(initial=-1)) + 1
    free = np.bincount(at, minlength=count) + 1
    for key in (by_step, by_rank):
        free -= np.bincount(at[np.unique(key, return_index=True)[1]], minlength=count)
    x, y = (_apart(_apart(values[seen], by_step), by_rank) for values in (wait, after))
    xx, xy, yy = (np.bincount(at, v, count) for v in (x * x, x * y, y * y))
    known = (free > 1) & (xx > 0)
    slope = xy / np.where(xx > 0, xx, 1.0)
    rest = np.maximum(yy - slope * xy, 0.0) / np.maximum(free - 1, 1)
    error = np.where(known, np.sqrt(rest / np.where(xx > 0, xx, 1.0)), np.inf)
    return slope, error


def _of_all(values: F64, error: F64) -> tuple[float, float]:
    """Return the mean of `values` with those standard errors, and the standard deviation of one more of their kind.

    DerSimonian and Laird's estimate: what the values vary beyond their errors is the variance between them.
    """
    weight = 1.0 / np.square(np.maximum(error, LITTLE_SHARE))
    whole = float(weight.sum())
    mean = float((weight * values).sum()) / whole
    beyond = float((weight * np.square(values - mean)).sum()) - (len(values) - 1)
    room = whole - float(np.square(weight).sum()) / whole
    between = max(beyond, 0.0) / room if room > 0 else 0.0
    return mean, float(np.sqrt(between + 1.0 / whole))


def _apart(values: F64, key: I64) -> F64:
    """Return `values` without the mean of those of one key."""
    count = np.bincount(key)
    return np.asarray(values - (np.bincount(key, values) / np.maximum(count, 1))[key], np.float64)


def waiting_parts(run: Measured, rows: Collection[int]) -> dict[int, WaitingParts]:
    """Return by row of Steps the parts of the rank's own time in which an operation waits for its other members."""
    ops = run.ops
    wait = np.asarray(run.waits.wait, np.int64)
    found = {}
    for row in rows:
        rank = run.steps.ranks[row]
        where = ops.of(rank)
        mine = np.flatnonzero(run.analysed[where] & (ops.instance[where] >= 0)) + where.start
        mine = mine[wait[mine] > 0]
        begin, end = union(ops.start[mine], ops.start[mine] + wait[mine])
        at = ops.progress[rank].at
        first, last = at(begin).astype(np.float64), at(end).astype(np.float64)
        found[row] = WaitingParts(first[last > first], last[last > first])
    return found
