"""The numbers of steps that no mark counts: operations that ranks share show which repetitions are the same step."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from tracekit.disjoint_sets import DisjointSets
from tracekit.matching.match import Operations, match
from tracekit.rank_events.kernel_order import window_of
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.schema import Group
from tracekit.thresholds.tables import BORDER_SHARE, HOST_GAP_NS, REPEATING_SHARE
from tracekit.units import I64


@dataclass(frozen=True)
class Cuts:
    """Begin, end (on the host, ns) and window of each repetition of one rank; one entry a repetition.

    `closed` holds for each window whether it ends where a repetition ends.
    """

    begin: I64
    end: I64
    window: I64
    closed: tuple[bool, ...]

    def ordinal(self) -> I64:
        """Return the number of each repetition within its window."""
        return np.arange(len(self.window)) - np.searchsorted(self.window, self.window)

    def among(self, common: Sequence[int], count: int) -> "Cuts":
        """Return these cuts with windows numbered by `common` (own window → one of `count` common windows).

        A window that the rank lacks counts as closed.
        """
        closed = dict(zip(common, self.closed, strict=True))
        return replace(
            self,
            window=np.array(common, np.int64)[self.window],
            closed=tuple(closed.get(n, True) for n in range(count)),
        )


def numbered(
    ranks: Sequence[RankOps], groups: Sequence[Group] | None, cuts: Mapping[int, Cuts]
) -> list[RankOps] | None:
    """Return `ranks` with the repetitions `cuts` as steps; a rank without an entry in `cuts` gets none.

    None if operations that ranks share show no common steps, or if they are needed and the `groups` are not yet
    known. Numbers ascend from 0; one is left out between two windows: the number of steps between is unknown.
    """
    cut = [r for r in ranks if r.rank in cuts]
    own = {r.rank: _labels(r, cuts[r.rank]) for r in cut}
    ops: Operations | None = None
    if len({len(c.closed) for c in cuts.values()}) > 1:
        ops = match(cut, groups) if groups is not None else None
        common = common_windows(ops) if ops is not None else None
        if common is None:
            return None
        cuts = {r: c.among(common[r], max(map(len, common.values()))) for r, c in cuts.items()}
    number = {r: np.full(len(c.begin), NO_STEP, np.int64) for r, c in cuts.items()}
    following = 0
    for window in range(len(next(iter(cuts.values())).closed)):
        counts = {r: int((c.window == window).sum()) for r, c in cuts.items()}
        if not any(counts.values()):
            continue
        ahead: dict[int, int] | None = dict.fromkeys(cuts, 0)
        if len(set(counts.values())) > 1 or not all(c.closed[window] for c in cuts.values()):
            if groups is None:
                return None
            ops = ops or match(cut, groups)
            ahead = _ahead(ops, {r: _in_window(own[r], cuts[r], window) for r in own}, counts)
        if ahead is None:
            return None
        low = min(ahead[r] for r, n in counts.items() if n)
        for rank, spans in cuts.items():
            mine = spans.window == window
            number[rank][mine] = spans.ordinal()[mine] + ahead[rank] - low + following
        following = max(int(n.max(initial=NO_STEP)) for n in number.values()) + 2
    return [_with_steps(r, own[r.rank], cuts[r.rank], number[r.rank]) if r.rank in cuts else r for r in ranks]


def _with_steps(rank: RankOps, own: I64, cuts: Cuts, number: I64) -> RankOps:
    """Return `rank` with the steps of its repetitions, `own` by operation, numbered by `number`."""
    step = np.where(own == NO_STEP, NO_STEP, np.append(number, NO_STEP)[own]).astype(np.int32)
    spans = zip(number.tolist(), cuts.begin.tolist(), cuts.end.tolist(), strict=True)
    return replace(rank, step=step, steps={n: (a, b) for n, a, b in spans})


def _in_window(own: I64, cuts: Cuts, window: int) -> I64:
    """Return the number within its window of each operation's repetition; NO_STEP outside `window`."""
    inside = (own != NO_STEP) & (np.append(cuts.window, NO_STEP)[own] == window)
    return np.where(inside, np.append(cuts.ordinal(), NO_STEP)[own], NO_STEP)


def _labels(rank: RankOps, cuts: Cuts) -> I64:
    """Return the repetition of each operation, by when the host issued it; NO_STEP outside all of them.

    A stream runs its operations in order. So where a window ends with a step, the same number of them on each stream
    belongs to each of its steps, counted from its end: near a border, and only there, the clock alone is not enough.
    Operations that ran when its window began were not recorded, and are missing in the first step.
    """
    own = np.full(len(rank.issued), NO_STEP, np.int64)
    if not len(cuts.begin):
        return own
    place = np.searchsorted(cuts.begin, rank.issued, side="right") - 1
    window = window_of(rank.start, rank.begins)
    at = np.maximum(place, 0)
    inside = (place >= 0) & (rank.issued < cuts.end[at]) & (cuts.window[at] == window)
    own[inside] = at[inside]
    stream = rank.group if rank.stream is None else np.where(rank.stream < 0, rank.group, rank.stream)
    recorded = np.flatnonzero(rank.issued >= np.array(rank.begins)[window])
    recorded = recorded[np.lexsort((recorded, stream[recorded], window[recorded]))]
    fresh = (np.diff(stream[recorded]) != 0) | (np.diff(window[recorded]) != 0)
    for rows in np.split(recorded, np.flatnonzero(fresh) + 1):
        number = int(window[rows[0]]) if len(rows) else 0
        low, high = np.searchsorted(cuts.window, [number, number + 1])
        if not cuts.closed[number] or len(rows) < high - low:
            continue
        counts = np.bincount(own[rows][own[rows] != NO_STEP] - low, minlength=high - low)
        each = int(np.median(counts)) if high > low else 0
        steps = np.repeat(np.arange(low, high), each)[-len(rows) :]
        if len(steps) <= each * (high - low - 1):
            continue
        counted = np.full(len(rows), NO_STEP, np.int64)
        counted[len(rows) - len(steps) :] = steps
        whole = len(steps) == each * (high - low)
        if (_borders_only if whole else _waits_only)(rank, cuts, rows, counted):
            own[rows] = counted
    return own


def _borders_only(rank: RankOps, cuts: Cuts, rows: I64, counted: I64) -> bool:
    """Whether the repetitions `counted` for operations `rows` differ from the clock's only near borders.

    One operation more in a step, as a loss that is reduced now and then, would move all before it into the next step.
    If the host shows when each was launched, none lies ahead of the steps, and the numbers must come out even.
    """
    launched = rank.issued[rows] < rank.start[rows]
    if launched.all() and (counted == NO_STEP).any():
        return False
    inside = counted != NO_STEP
    at, issued = counted[inside], rank.issued[rows][inside]
    slack = BORDER_SHARE * (cuts.end[at] - cuts.begin[at])
    return bool(((issued >= cuts.begin[at] - slack) & (issued < cuts.end[at] + slack)).all())


def _waits_only(rank: RankOps, cuts: Cuts, rows: I64, counted: I64) -> bool:
    """Whether operations `rows` that `counted` moves to a later repetition than the clock last until it begins.

    A receive that begins a step does, if no launch shows when it was issued. One that is done earlier is of the step
    before.
    """
    launched = rank.issued[rows] < rank.start[rows]
    if launched.any() or not _borders_only(rank, cuts, rows, counted):
        return False
    moved = rank.issued[rows] < cuts.begin[counted]
    return bool((rank.end[rows][moved] >= cuts.begin[counted][moved] - HOST_GAP_NS).all())


def _ahead(ops: Operations, own: Mapping[int, I64], counts: Mapping[int, int]) -> dict[int, int] | None:
    """Return rank → offset of its step numbers that makes shared operations agree; None where they cannot.

    Pairs of ranks that share most operations are joined first. Where some ranks share none with the others, a profiler
    that starts and stops at the same step on all ranks is assumed, if all have equally many repetitions.
    """
    links = _links(ops, np.concatenate([own[rank] for rank in ops.ranks]))
    present = [r for r in ops.ranks if counts[r]]
    first = present[0]
    ahead: dict[int, int] = {}
    heap: list[tuple[int, int, int]] = [(0, first, 0)]
    while heap:
        _, rank, shift = heappop(heap)
        if rank in ahead:
            continue
        ahead[rank] = shift
        for other, (apart, often, of) in links[rank].items():
            if other not in ahead:
                if often < REPEATING_SHARE * of:
                    return None
                heappush(heap, (-often, other, shift + apart))
    unshifted = dict.fromkeys(ops.ranks, 0)
    if len(ahead) == len(present):
        return unshifted | ahead
    equal = len({counts[r] for r in present}) <= 1 and not any(ahead.values())
    return unshifted if equal else None


def _links(ops: Operations, own: I64) -> dict[int, dict[int, tuple[int, int, int]]]:
    """Return rank → rank that shares operations → (lead of the first one's step, in how many, of how many)."""
    rows = np.flatnonzero((ops.instance >= 0) & (own != NO_STEP))
    rows = rows[np.argsort(ops.instance[rows], kind="stable")]
    one, two = rows[:-1], rows[1:]
    both = ops.instance[one] == ops.instance[two]
    table = np.stack([ops.rank[one], ops.rank[two], own[one] - own[two]], axis=1)[both]
    found: dict[int, dict[int, tuple[int, int, int]]] = defaultdict(dict)
    kinds, often = np.unique(table, axis=0, return_counts=True)
    total: dict[tuple[int, int], int] = defaultdict(int)
    best: dict[tuple[int, int], tuple[int, int]] = {}
    for (a, b, apart), n in zip(kinds.tolist(), often.tolist(), strict=True):
        total[a, b] += n
        if n > best.get((a, b), (0, 0))[1]:
            best[a, b] = apart, n
    for (a, b), (apart, n) in best.items():
        found[a][b] = apart, n, total[a, b]
        found[b][a] = -apart, n, total[a, b]
    return found


# Pairs up the windows of ranks that lack some: operations that ranks share lie in the same window.


def common_windows(ops: Operations) -> dict[int, tuple[int, ...]] | None:
    """Return rank → the common number of each of its windows; None if shared operations do not show it in order.

    The windows of the rank with most windows are the common ones. Their order must agree on all ranks.
    """
    nodes = [(r, n) for r in ops.ranks for n in range(len(ops.per_rank[r].begins))]
    first = {r: nodes.index((r, 0)) for r in ops.ranks}
    parts = [first[r] + window_of(o.start, o.begins) for r, o in ((r, ops.per_rank[r]) for r in ops.ranks)]
    joined = _joined(ops, np.concatenate(parts), nodes)
    fullest = max(ops.ranks, key=lambda r: (len(ops.per_rank[r].begins), -r))
    most = len(ops.per_rank[fullest].begins)
    number = {joined.find(first[fullest] + n): n for n in range(most)}
    numbers = [number.get(joined.find(i)) for i in range(len(nodes))]
    known = [n for n in numbers if n is not None]
    if len(number) < most or len(known) < len(numbers):
        return None
    found = {r: tuple(known[at : at + len(ops.per_rank[r].begins)]) for r, at in first.items()}
    return found if all(a < b for mine in found.values() for a, b in pairwise(mine)) else None


def _joined(ops: Operations, node: I64, nodes: list[tuple[int, int]]) -> DisjointSets:
    """Return sets of equal windows (indices into `nodes`, `node` by operation), by most operations of two ranks."""
    rows = np.flatnonzero(ops.instance >= 0)
    rows = rows[np.argsort(ops.instance[rows], kind="stable")]
    one, two = rows[:-1], rows[1:]
    both = ops.instance[one] == ops.instance[two]
    pairs, often = np.unique(np.stack([node[one], node[two]], axis=1)[both], axis=0, return_counts=True)
    total: dict[tuple[int, int], int] = defaultdict(int)
    for (a, b), n in zip(pairs.tolist(), often.tolist(), strict=True):
        total[a, nodes[b][0]] += n
    sets = DisjointSets(range(len(nodes)))
    for (a, b), n in zip(pairs.tolist(), often.tolist(), strict=True):
        if n >= REPEATING_SHARE * total[a, nodes[b][0]]:
            sets.join(a, b)
    return sets
