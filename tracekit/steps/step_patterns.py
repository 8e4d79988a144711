"""Steps of a recording without marks: the kernels of a training job repeat, and one repetition is a step.

Where all windows hold whole repetitions, because the profiler starts and stops between steps, a step begins
where they begin. Else it begins after the optimizer, else where the host waits longest for the device, as it does
to read the loss. Time between two windows belongs to no step.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tracekit.rank_events.coded_words import among
from tracekit.rank_events.kernel_order import window_of
from tracekit.rank_events.rank_ops import KernelOrder, RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.schema import Group
from tracekit.steps.repetition import OUTSIDE, Pattern, Repeating, repeating
from tracekit.steps.step_numbers import Cuts, numbered
from tracekit.thresholds.tables import (
    NEARLY_ALL_RANKS,
    RAGGED_RIMS,
    RARE_KINDS,
    REPEATING_SHARE,
    WHOLE_REPEATS,
)

Orders = Mapping[int, KernelOrder]
Places = Mapping[int, Repeating]


def with_repeating_steps(ranks: list[RankOps], groups: Sequence[Group] | None) -> list[RankOps] | None:
    """Return `ranks` with a step for each repetition of their program, in place of marks.

    None if marks exist, or if nothing repeats and there is only one window; several windows are a step each. Without
    `groups` also None if only operations that ranks share could show which steps are one.
    """
    if not ranks or any((r.step != NO_STEP).any() for r in ranks):
        return None
    for orders in (_kernels(ranks), _computing(ranks), *(_operations(ranks, rim) for rim in RAGGED_RIMS)):
        places = _places(orders, ranks)
        if len(places) < max(NEARLY_ALL_RANKS * len(ranks), 1) or _one_kernel(orders, places):
            continue
        begin = _begins(orders, places)
        cuts = {r.rank: _cuts(r, orders[r.rank], places[r.rank], begin) for r in ranks if r.rank in places}
        if (found := numbered(ranks, groups, cuts)) is not None:
            return found
        if groups is None:
            return None
    return _windows(ranks) if groups is not None else None


def _one_kernel(orders: Orders, places: Places) -> bool:
    """Whether only a single kernel repeats, which is no step."""
    return any(len(found.pattern) == 1 and orders[r].of_kernels for r, found in places.items())


def _kernels(ranks: Sequence[RankOps]) -> Orders:
    return {r.rank: r.order for r in ranks if r.order is not None}


def _computing(ranks: Sequence[RankOps]) -> Orders:
    """Return the compute kernels of each rank; a loss reduced in only some steps breaks the pattern of all kernels."""
    return {rank: order.computing() for rank, order in _kernels(ranks).items() if order.talks.any()}


def _operations(ranks: Sequence[RankOps], rim: float) -> Orders:
    """Return the communication operations of each rank in order of issue, without the last share `rim` of them.

    At the end of a ragged recording the last operations of single streams are missing. Operations launched before their
    window are left out as well: their order among each other is not known.
    """
    found = {}
    for rank in ranks:
        order = np.argsort(rank.issued, kind="stable")
        begins = np.array(rank.begins)[window_of(rank.start[order], rank.begins)]
        order = order[rank.issued[order] >= begins]
        order = order[: len(order) - int(rim * len(order))]
        streams = rank.group if rank.stream is None else np.where(rank.stream < 0, rank.group, rank.stream)
        kinds = [f"{rank.op[i]} {streams[i]}" for i in order.tolist()]
        names = tuple(sorted(set(kinds)))
        number = {name: i for i, name in enumerate(names)}
        issued = rank.issued[order]
        done = np.maximum.accumulate(rank.end[order])
        found[rank.rank] = KernelOrder(
            names,
            np.array([number[kind] for kind in kinds], np.int64),
            window_of(issued, rank.begins),
            issued,
            issued - np.concatenate([issued[:1], done[:-1]]),
            np.zeros(len(order), bool),
            of_kernels=False,
        )
    return found


def _places(orders: Orders, ranks: Sequence[RankOps]) -> Places:
    """Return rank → the place of each of its kernels in the repetition; without ranks on which nothing repeats.

    A rank that recorded too little is compared with the patterns of other ranks. A pattern is only part of a step if
    some communication is rarer, such as the reduction after several micro-batches.
    """
    found = _repeated(orders)
    rarer = {r.rank: _with_rare(orders[r.rank], r, found[r.rank]) for r in ranks if r.rank in found}
    if all(r is None for r in rarer.values()):
        return found
    marked = _repeated({r: rarer.get(r) or o for r, o in orders.items()})
    return marked if _placed(marked) >= _placed(found) else found


def _placed(places: Places) -> int:
    """Return the number of kernels with a position in a repeating pattern."""
    return sum(int((found.place != OUTSIDE).sum()) for found in places.values())


def _repeated(orders: Orders) -> Places:
    vocabulary = {name: i for i, name in enumerate(sorted({n for o in orders.values() for n in o.names}))}
    kinds = {r: np.array([vocabulary[n] for n in o.names], np.int64)[o.name] for r, o in orders.items()}
    found = {r: p for r, o in orders.items() if (p := repeating(kinds[r], o.window)) is not None}
    known = sorted({p.pattern for p in found.values()})
    for rank in sorted(orders.keys() - found.keys()):
        if (borrowed := repeating(kinds[rank], orders[rank].window, known)) is not None:
            found[rank] = borrowed
    return found


def _with_rare(order: KernelOrder, rank: RankOps, found: Repeating) -> KernelOrder | None:
    """Return `order` with kernels that are also named by the rare communication issued just after them.

    Rare means in at most every second repetition. None if nothing is rare.
    """
    repeats = int((found.place != OUTSIDE).sum()) // len(found.pattern)
    counts = Counter(rank.op)
    rare = sorted(op for op, n in counts.items() if WHOLE_REPEATS <= n <= repeats // WHOLE_REPEATS)
    if not rare or not len(order.issued):
        return None
    moments = np.maximum.accumulate(order.issued)
    behind = np.zeros(len(order.name), np.int64)  # bits of the rare kinds that were issued behind each kernel
    for bit, op in enumerate(rare[:RARE_KINDS]):
        rows = np.flatnonzero(among(rank.op, (op,)))
        place = np.searchsorted(moments, rank.issued[rows], side="right") - 1
        behind[place[place >= 0]] |= 1 << bit
    pairs, name = np.unique(np.stack([order.name, behind], axis=1), axis=0, return_inverse=True)
    names = tuple(f"{order.names[kind]}, then {bits}" for kind, bits in pairs.tolist())
    return replace(order, names=names, name=name.ravel())


def _begins(orders: Orders, places: Places) -> dict[Pattern, int]:
    """Return pattern → the position at which its step begins, by one rule for all ranks."""
    ranks: dict[Pattern, list[int]] = defaultdict(list)
    for rank in sorted(places):
        ranks[places[rank].pattern].append(rank)
    for rule in (_where_windows_begin, _behind_the_optimizer, _after_the_longest_pause):
        found = {p: rule(orders, places, mine) for p, mine in ranks.items()}
        begins = {p: place for p, place in found.items() if place is not None}
        if len(begins) == len(ranks):
            return begins
    raise AssertionError("a pause is always found")


def _where_windows_begin(orders: Orders, places: Places, ranks: Sequence[int]) -> int | None:
    """Return the position at which most windows of `ranks` begin, if they end just before it; else None."""
    votes: Counter[int] = Counter()
    windows = 0
    for rank in ranks:
        order, found = orders[rank], places[rank]
        for number in range(order.windows):
            rows = np.flatnonzero(order.window == number)
            if not len(rows):
                continue
            windows += 1
            first = int(found.place[rows[0]])
            if first != OUTSIDE and first == found.after(rows[-1]):
                votes[first] += 1
    place, often = min(votes.items(), key=lambda v: (-v[1], v[0]), default=(OUTSIDE, 0))
    return place if often and often >= REPEATING_SHARE * windows else None


def _behind_the_optimizer(orders: Orders, places: Places, ranks: Sequence[int]) -> int | None:
    """Return the position after the optimizer's kernels, where the longest stretch without them begins."""
    length = len(places[ranks[0]].pattern)
    runs = np.zeros(length, bool)
    for rank in ranks:
        inside = places[rank].place != OUTSIDE
        runs[places[rank].place[inside & orders[rank].optimizer]] = True
    at = np.flatnonzero(runs)
    if not len(at):
        return None
    apart = np.diff(np.append(at, at[0] + length))
    return int((at[np.argmax(apart)] + 1) % length)


def _after_the_longest_pause(orders: Orders, places: Places, ranks: Sequence[int]) -> int:
    """Return the position before which the host of a typical rank waits longest for its device."""
    length = len(places[ranks[0]].pattern)
    pauses = []
    for rank in ranks:
        place, pause = places[rank].place, orders[rank].pause
        inside = np.flatnonzero(place != OUTSIDE)
        by_place = inside[np.argsort(place[inside], kind="stable")]
        bounds = np.searchsorted(place[by_place], np.arange(length + 1))
        pauses.append(
            [
                float(np.median(pause[by_place[a:b]])) if b > a else np.nan
                for a, b in itertools.pairwise(bounds)
            ]
        )
    return int(np.nanargmax(np.nanmedian(np.array(pauses), axis=0)))


def _cuts(rank: RankOps, order: KernelOrder, found: Repeating, begin: Mapping[Pattern, int]) -> Cuts:
    """Return begin and end of each whole repetition of a rank on its host; `begin` is the position where steps begin.

    A first repetition that the window holds from its begin on begins when the host was free, since the host works
    before it launches anything.
    """
    length, place = len(found.pattern), begin[found.pattern]
    spans: list[tuple[int, int, int]] = []
    closed = []
    ends = (*rank.begins[1:], int(rank.window[1]) + 1)
    for number in range(len(rank.begins)):
        rows = np.flatnonzero(order.window == number)
        inside = rows[found.place[rows] != OUTSIDE]
        closed.append(bool(len(inside)) and found.after(inside[-1]) == place)
        first = inside[found.place[inside] == place]
        first = first[inside[-1] - first + 1 >= length] if len(first) else first
        moments = order.issued[first].tolist()
        if len(first) and first[0] == rows[0]:
            moments[0] = min(moments[0], (rank.opens or rank.begins)[number])
        behind = inside[-1:] if not len(first) else first[-1:] + length
        last = int(order.issued[behind[0]]) if len(behind) and behind[0] <= rows[-1] else ends[number]
        spans += [(a, b, number) for a, b in zip(moments, [*moments[1:], last], strict=False)]
    begins, stops, window = (
        (np.array(column, np.int64) for column in zip(*spans, strict=True))
        if spans
        else (np.zeros(0, np.int64),) * 3
    )
    return Cuts(begins, stops, window, tuple(closed))


def _windows(ranks: list[RankOps]) -> list[RankOps] | None:
    """Return `ranks` with a step for each window; None where each rank has only one, or their numbers differ."""
    many = {len(r.begins) for r in ranks}
    if many == {1} or len(many) > 1:
        return None
    cuts = {}
    for rank in ranks:
        ends = np.array([*rank.begins[1:], int(rank.window[1]) + 1])
        window = np.arange(len(ends))
        cuts[rank.rank] = Cuts(np.array(rank.begins), ends, window, (True,) * len(ends))
    return numbered(ranks, (), cuts)
