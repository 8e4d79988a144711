"""The comparable part of timed dumps: steps marked by calls that all ranks make, else a common window.

Rings of different ranks reach back to different moments. If all ranks make a call together, that call ends a step; if
there are many such calls, every n-th of them does. Else the calls are cut into parts in which every group has the same
calls on all its members. Used by `reader`.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tracekit.dumps.calls import CallKind
from tracekit.dumps.rank_dump import Int64, RankDump, TimedCalls
from tracekit.thresholds.ingest import (
    BEYOND_ALL_CALLS,
    LEAST_CALLS,
    LEAST_STEPS,
    MAX_RARE_CALLS,
    MAX_TWINS,
    PERIODS_ALIKE,
)

Members = tuple[int, ...]
Channel = tuple[str, Members, int]
"""group or pair, its ranks, and which of several groups of these ranks."""
Side = tuple[Int64, Int64]
"""Places of a channel's calls on one rank, and their numbers."""


@dataclass(frozen=True)
class Marks:
    """Calls that all ranks make and that end a step: their group and kind, and their sequence numbers.

    first: number of the first one. stride: difference between the numbers of two marks. thinned: whether only every
    n-th such call is a mark.
    """

    name: str
    kind: CallKind
    first: int
    stride: int
    thinned: bool


def find_marks(dumps: Mapping[int, RankDump], world: Members) -> Marks | None:
    """Return the rarest call of all ranks with evenly spaced sequence numbers; None without one.

    world: all ranks of the job, sorted; marks are calls of a group of all of them.
    """
    seqs: dict[tuple[str, CallKind], dict[int, Int64]] = defaultdict(dict)
    for rank, dump in dumps.items():
        timing = dump.timing
        if timing is None:
            continue
        for number, group in enumerate(dump.groups):
            mine = (timing.group == number) & (timing.seq >= 0)
            for kind in np.unique(timing.kind[mine]).tolist() if group.ranks == world else ():
                seqs[group.name, timing.kinds[kind]][rank] = np.unique(
                    timing.seq[mine & (timing.kind == kind)]
                )
    calls = min(len(d.timing.start) for d in dumps.values() if d.timing is not None)
    best: tuple[bool, int, str, CallKind, int] | None = None
    for (name, kind), by_rank in seqs.items():
        every = np.unique(np.concatenate(list(by_rank.values())))
        stride = int(every[1] - every[0]) if len(every) > 1 else 0
        if stride <= 0 or (np.diff(every) != stride).any() or len(by_rank) < len(dumps):
            continue
        thin = max(1, -(-LEAST_CALLS * len(every) // max(calls, 1)))
        if len(every) // thin >= LEAST_STEPS:
            known = (thin > 1, -stride * thin, name, kind, int(every[0]))
            best = known if best is None else min(best, known)
    return None if best is None else Marks(best[2], best[3], best[4], -best[1], best[0])


def common_parts(dumps: Mapping[int, RankDump], members: Mapping[int, list[Members]]) -> dict[int, list[int]]:
    """Return, by rank, the index among its calls where each part begins, and then where the last part ends.

    All ranks have the same parts. A part is as long as the period in which calls repeat; there may be only one. In
    every part each group has the same calls on all its members: collectives match by their number, sends and
    receives by the number of those behind them between the two ranks. Calls outside the parts are not on all ranks.
    """
    channels: dict[Channel, dict[int, Side]] = defaultdict(dict)
    for rank, dump in dumps.items():
        if dump.timing is not None:
            for key, places, numbers in _groups(dump, dump.timing, members[rank]):
                channels[key][rank] = places, numbers
    present = {k: [r for r in k[1] if r in dumps] for k in channels}
    ends = _settled(channels, present, {r: _calls(d) for r, d in dumps.items()}, last=True)
    for rank, dump in dumps.items():
        if dump.timing is not None:
            for key, places in _pairs(dump.timing, ends[rank]):
                channels[key][rank] = places, np.arange(len(places), dtype=np.int64) - len(places)
    present = {k: [r for r in k[1] if r in dumps] for k in channels}
    cuts = [_settled(channels, present, dict.fromkeys(dumps, 0), last=False)]
    guide = max(dumps, key=lambda r: (ends[r] - cuts[0][r], -r))
    stride = _period(dumps[guide].timing, cuts[0][guide], ends[guide])
    while stride:
        wanted = {**cuts[-1], guide: cuts[-1][guide] + stride}
        found = _settled(channels, present, wanted, last=False)
        if any(ends[r] - found[r] < LEAST_CALLS for r in dumps):
            break
        cuts.append(found)
    cuts.append(ends)
    return {r: [cut[r] for cut in cuts] for r in dumps}


def _period(timing: TimedCalls | None, begin: int, end: int) -> int:
    """Number of calls after which a rank's sequence of calls repeats, by its rarest call; 0 where it does not."""
    if timing is None:
        return 0
    codes = timing.group[begin:end] * np.int64(len(timing.kinds)) + timing.kind[begin:end]
    known, counts = np.unique(codes, return_counts=True)
    for _, code in sorted(zip(counts.tolist(), known.tolist(), strict=True)):
        at = np.flatnonzero(codes == code)
        for several in range(1, min(len(at) // LEAST_STEPS, MAX_RARE_CALLS) + 1):
            steps = at[several:] - at[:-several]
            period = int(np.median(steps))
            alike = len(codes) >= LEAST_STEPS * period and bool(
                (codes[period:] == codes[:-period]).mean() >= PERIODS_ALIKE
            )
            if period >= LEAST_CALLS and alike and (np.abs(steps - period) <= 1).all():
                return period
    return 0


def _calls(dump: RankDump) -> int:
    return 0 if dump.timing is None else len(dump.timing.start)


def _settled(
    channels: Mapping[Channel, Mapping[int, Side]],
    present: Mapping[Channel, list[int]],
    cut: dict[int, int],
    *,
    last: bool,
) -> dict[int, int]:
    """Move the cuts of all ranks inwards until every channel has the same end (`last`) or begin on its ranks."""
    of: dict[int, list[Channel]] = defaultdict(list)
    for key, sides in channels.items():
        for rank in sides:
            of[rank].append(key)
    todo = dict.fromkeys(sorted(channels))
    while todo:
        key = next(iter(todo))
        del todo[key]
        sides = channels[key]
        if len(present[key]) < 2:
            continue
        bounds = [_bound(sides.get(r), cut[r], last=last) for r in present[key]]
        bound = min(bounds) if last else max(bounds)
        for rank, (places, numbers) in sides.items():
            out = places[numbers > bound] if last else places[numbers < bound]
            moved = len(out) and (int(out.min()) < cut[rank] if last else int(out.max()) >= cut[rank])
            if moved:
                cut[rank] = int(out.min()) if last else int(out.max()) + 1
                todo.update(dict.fromkeys(of[rank]))
    return cut


def _bound(side: Side | None, cut: int, *, last: bool) -> int:
    """Return the last or the first number that is kept; without one, a number beyond all others."""
    if side is None:
        return -BEYOND_ALL_CALLS if last else BEYOND_ALL_CALLS
    kept = side[1][side[0] < cut] if last else side[1][side[0] >= cut]
    if len(kept):
        return int(kept.max() if last else kept.min())
    return int(side[1].min()) - 1 if last else int(side[1].max()) + 1


def _groups(dump: RankDump, timing: TimedCalls, members: list[Members]) -> list[tuple[Channel, Int64, Int64]]:
    """Return (channel, indices of its calls, their numbers) of every group."""
    twin = twins(dump, members)
    found: list[tuple[Channel, Int64, Int64]] = []
    for group in np.unique(timing.group[timing.seq >= 0]).tolist():
        places = np.flatnonzero((timing.group == group) & (timing.seq >= 0))
        found.append((("group", members[group], int(twin[group])), places, timing.seq[places]))
    return found


def _pairs(timing: TimedCalls, end: int) -> list[tuple[Channel, Int64]]:
    """Return (channel, indices of its messages before `end`) of every pair of ranks."""
    pairs = np.array([(k[4], k[5]) for k in timing.kinds], np.int64).reshape(-1, 2)[timing.kind[:end]]
    return [
        (("pair", (a, b), 0), np.flatnonzero((pairs[:, 0] == a) & (pairs[:, 1] == b)))
        for a, b in sorted({(a, b) for a, b in pairs.tolist() if a >= 0 and b >= 0})
    ]


def twins(dump: RankDump, members: list[Members]) -> Int64:
    """Return a number for each group, shape (groups,), that separates groups of the same members.

    Such groups count their calls separately. They are numbered in order of description and name.
    """
    numbers = np.zeros(len(members), np.int64)
    seen: dict[Members, int] = defaultdict(int)
    for place in sorted(range(len(members)), key=lambda i: (dump.groups[i].desc, dump.groups[i].name)):
        numbers[place] = min(seen[members[place]], MAX_TWINS - 1)
        seen[members[place]] += 1
    return numbers
