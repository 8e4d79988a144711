"""Peers of messages in a pipeline that show little, not even their direction.

Without the host, and in batches up to torch 2.3, only a kernel shows that a stage exchanged something; later batches
lose their records, or name no peer. Pipelines run few schedules (`line_kernels`): the right one gives as many
kernels as every stage runs, contradicts no recorded fact, and its messages fit the times at which they began and ended.
Stages run the same in every step and replica, so a kernel is judged at its place of the step, over all of them
(tables.message_fits).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracekit.inference.peers.clock_difference import clock_differences
from tracekit.inference.peers.line_kernels import (
    Kernel,
    Learnt,
    LineKernels,
    Says,
    line_kernels,
    schedules,
    with_learnt,
)
from tracekit.inference.peers.message_fits import Times, misfits
from tracekit.inference.peers.open_messages import OpenKernels
from tracekit.matching.clock import Clocks
from tracekit.matching.match import Operations
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.thresholds.inference import DEALT_MARGIN, DEALT_MISFITS, MOST_DEALT_MESSAGES, MOST_DEALT_STEPS
from tracekit.thresholds.tables import COMMON_END_NS
from tracekit.units import I64


class _Line(NamedTuple):
    """The ranks of a line by stage, their kernels, and the kernels of their usual steps by position."""

    ranks: tuple[int, ...]
    kernels: tuple[LineKernels, ...]
    steps: tuple[dict[int, I64], ...]  # by stage: step → places in the rank's kernels


class _Pair(NamedTuple):
    """A message: the sending stage and its kernel's position in the step, the receiving stage and its kernel's."""

    sender: int
    sends: int
    receiver: int
    receives: int


class _Exchange(NamedTuple):
    """The kernels of two stages in the steps that both recorded, on one clock."""

    mine: Times
    theirs: Times


def with_line_order(
    ops: Operations, clocks: Clocks, lines: Sequence[tuple[int, ...]]
) -> tuple[list[RankOps], int]:
    """Return (operations of all ranks with the peers that a schedule gives to kernels along `lines`, their number).

    `lines` hold ranks in the order of their stages. Lines that run the same are judged together.
    """
    by_counts: dict[tuple[int, ...], list[_Line]] = defaultdict(list)
    for ranks in sorted(lines):
        line = _line(ops, clocks, ranks)
        counts = tuple(len(next(iter(steps.values()), ())) for steps in line.steps) if line else ()
        if line and min(counts) > 0 and max(counts) <= MOST_DEALT_MESSAGES:
            by_counts[counts].append(line)
    learnt: dict[int, list[Learnt]] = defaultdict(list)
    known = (r.message for r in ops.per_rank.values() if r.message is not None)
    number = 1 + max((int(m.max(initial=-1)) for m in known), default=-1)
    for counts, members in by_counts.items():
        for pair in _scheduled(counts, members):
            for line in members:
                number = _learn(learnt, line, pair, number)
    count = sum(map(len, learnt.values()))
    return [with_learnt(ops.per_rank[r], learnt.get(r, [])) for r in ops.ranks], count


def _line(ops: Operations, clocks: Clocks, ranks: tuple[int, ...]) -> _Line | None:
    """Return the kernels of a pipeline's ranks; None if a rank recorded no message, or all messages name peers."""
    if not all(r in ops.per_rank for r in ranks):
        return None
    kernels = [k for r in ranks if (k := line_kernels(ops.per_rank[r], clocks, ranks)) is not None]
    if len(kernels) < len(ranks) or not any(k.silent for k in kernels):
        return None
    return _Line(ranks, tuple(kernels), tuple(_usual_steps(k.times) for k in kernels))


def _usual_steps(kernels: OpenKernels) -> dict[int, I64]:
    """Return step → its kernels in order of start, for the steps with the most frequent number of kernels."""
    order = np.argsort(kernels.start, kind="stable")
    steps = {n: order[kernels.step[order] == n] for n in np.unique(kernels.step).tolist() if n != NO_STEP}
    usual = Counter(len(mine) for mine in steps.values()).most_common(1)
    return {n: mine for n, mine in steps.items() if len(mine) == usual[0][0]}


def _scheduled(counts: tuple[int, ...], lines: Sequence[_Line]) -> list[_Pair]:
    """Return the messages of the one schedule that fits; empty if none does, or two with different messages do."""
    said = [_said(lines, stage, count) for stage, count in enumerate(counts)]
    exchanges: dict[tuple[int, int], _Exchange | None] = {}
    tried: list[tuple[float, list[_Pair]]] = []
    for stages in schedules(counts):
        pairs = _pairs(stages) if _contradicts_nothing(stages, said) else None
        for a, b in {(p.sender, p.receiver) for p in pairs or ()} - set(exchanges):
            exchanges[a, b] = _exchange(lines, (a, b))
        if pairs and not any(pairs == other for _, other in tried):
            tried.append((_cost(lines, stages, pairs, exchanges), pairs))
    tried.sort(key=lambda t: t[0])
    if not tried or tried[0][0] > DEALT_MISFITS * len(tried[0][1]):
        return []
    rival = tried[1][0] if len(tried) > 1 else np.inf
    return tried[0][1] if rival - tried[0][0] >= DEALT_MARGIN else []


def _said(lines: Sequence[_Line], stage: int, count: int) -> list[set[Says]]:
    """Return what kernels show at each place of a stage's step, over all lines and usual steps."""
    found: list[set[Says]] = [set() for _ in range(count)]
    for line in lines:
        for places in line.steps[stage].values():
            for place, kernel in enumerate(places.tolist()):
                found[place].add(line.kernels[stage].says[kernel])
    return found


def _contradicts_nothing(stages: Sequence[Sequence[Kernel]], said: Sequence[Sequence[set[Says]]]) -> bool:
    """Return whether every kernel of a schedule agrees with the facts at its place."""
    return all(
        says.may_be(kernel)
        for kernels, places in zip(stages, said, strict=True)
        for kernel, records in zip(kernels, places, strict=True)
        for says in records
    )


def _pairs(stages: Sequence[Sequence[Kernel]]) -> list[_Pair] | None:
    """Return the messages of a schedule; None where two stages disagree on the number of their messages."""
    ends: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for stage, kernels in enumerate(stages):
        for place, kernel in enumerate(kernels):
            for peer, sent in kernel:
                ends[(stage, peer) if sent else (peer, stage)][not sent].append(place)
    if any(len(sends) != len(receives) for sends, receives in ends.values()):
        return None
    return [
        _Pair(a, i, b, j)
        for (a, b), (sends, receives) in sorted(ends.items())
        for i, j in zip(sends, receives, strict=True)
    ]


def _exchange(lines: Sequence[_Line], stages: tuple[int, int]) -> _Exchange | None:
    """Return the kernels of two `stages` in steps that both recorded; None without a common clock."""
    sides = [[line.kernels[stage].times for line in lines] for stage in stages]
    every = {k.rank: k for side in sides for k in side}
    pairs = [(a.rank, b.rank) for a, b in zip(*sides, strict=True)]
    shifts = clock_differences(every, pairs, COMMON_END_NS)
    parts: tuple[list[tuple[I64, I64, I64]], list[tuple[I64, I64, I64]]] = ([], [])
    for line, (a, b) in zip(lines, pairs, strict=True):
        steps = [line.steps[stage] for stage in stages]
        shared = sorted(set(steps[0]) & set(steps[1]))
        if (a, b) not in shifts or not shared or len(parts[0]) >= MOST_DEALT_STEPS:
            continue
        for mine, side, at in zip(parts, (every[a], every[b].moved(shifts[a, b])), steps, strict=True):
            least = np.min([(side.end - side.start)[at[n]] for n in shared], axis=0)
            mine += [(side.start[at[n]], side.end[at[n]], least) for n in shared]
    return _Exchange(*(_times(mine) for mine in parts)) if parts[0] else None


def _times(steps: Sequence[tuple[I64, I64, I64]]) -> Times:
    start, end, least = np.array(steps, np.int64).transpose(1, 0, 2)
    return Times(start, end, least, np.ones(start.shape[1], bool))


def _cost(
    lines: Sequence[_Line],
    stages: Sequence[Sequence[Kernel]],
    pairs: Sequence[_Pair],
    exchanges: Mapping[tuple[int, int], _Exchange | None],
) -> float:
    """Return the sum over messages of the share of steps that rule them out.

    Without a common clock of two stages: 0 if some clock lets all their messages arrive, else infinite.
    """
    alone = [np.array([len(kernel) == 1 for kernel in kernels], bool) for kernels in stages]
    cost = 0.0
    for a, b in sorted({(p.sender, p.receiver) for p in pairs}):
        exchange = exchanges[a, b]
        if exchange is None:
            cost += 0.0 if all(_may_meet(line, pairs, a, b) for line in lines) else float("inf")
            continue
        mine, theirs = exchange.mine._replace(alone=alone[a]), exchange.theirs._replace(alone=alone[b])
        table = misfits(mine, theirs)
        cost += sum(float(table[p.sends, p.receives]) for p in pairs if (p.sender, p.receiver) == (a, b))
    return cost


def _may_meet(line: _Line, pairs: Sequence[_Pair], a: int, b: int) -> bool:
    """Whether the clock of stage `b` can be set so that no message of a step arrives before it was sent."""
    one, two = line.kernels[a].times, line.kernels[b].times
    shared = sorted(set(line.steps[a]) & set(line.steps[b]))
    for mine, theirs in ((line.steps[a][step], line.steps[b][step]) for step in shared):
        there = [one.start[mine[p.sends]] - two.end[theirs[p.receives]] for p in pairs if p[::2] == (a, b)]
        back = [one.end[mine[p.receives]] - two.start[theirs[p.sends]] for p in pairs if p[::2] == (b, a)]
        if not there or not back or max(there) > min(back) + 2 * COMMON_END_NS:
            return False
    return bool(shared)


def _learn(learnt: dict[int, list[Learnt]], line: _Line, pair: _Pair, number: int) -> int:
    """Add the messages of `pair` to `learnt`, for each step that both ranks recorded; return the next free number.

    Skips messages that name their peer at both ends.
    """
    a, b = line.ranks[pair.sender], line.ranks[pair.receiver]
    one, two = line.kernels[pair.sender], line.kernels[pair.receiver]
    sends, receives = line.steps[pair.sender], line.steps[pair.receiver]
    for step in sorted(set(sends) & set(receives)):
        i, j = int(sends[step][pair.sends]), int(receives[step][pair.receives])
        if one.says[i].ways or two.says[j].ways:
            learnt[a].append(Learnt(int(one.times.kernel[i]), "send", a, b, number))
            learnt[b].append(Learnt(int(two.times.kernel[j]), "recv", a, b, number))
            number += 1
    return number
