"""Peers of messages in a pipeline that show little, not even their direction.

Without the host, and in batches up to torch 2.3, only a kernel shows that a stage exchanged something; later batches
lose their records, or name no peer. Pipelines run few schedules (`line_kernels`): the right one gives as many
kernels as every stage runs, contradicts no recorded fact, and its messages fit the times at which they began and ended.
Stages run the same in every step and replica, so a kernel is judged at its place of the step, over all of them
(tables.message_fits).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracekit.inference.peers.clock_difference import clock_difference, windows
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
from tracekit.thresholds.slowrank import MAJORITY
from tracekit.thresholds.tables import COMMON_END_NS
from tracekit.units import I64


class _Stage(NamedTuple):
    """The kernels of a rank that may carry its pipeline's messages, and step → places of those of usual steps."""

    kernels: LineKernels
    steps: dict[int, I64]


class _Line(NamedTuple):
    """The ranks of a line by stage, and the kernels of each, by how many a usual step has."""

    ranks: tuple[int, ...]
    stages: tuple[dict[int, _Stage], ...]
    silent: bool  # whether a message names no peer

    def may_run(self, counts: Sequence[int]) -> bool:
        """Return whether each recorded stage has one of `counts` of kernels."""
        return all(
            not options or count in options for options, count in zip(self.stages, counts, strict=True)
        )

    def at(self, counts: Sequence[int]) -> list[_Stage]:
        """Return the kernels of each stage that are `counts` a step."""
        return [options[count] for options, count in zip(self.stages, counts, strict=True)]


class _Pair(NamedTuple):
    """A message: the sending stage and its kernel's position in the step, the receiving stage and its kernel's."""

    sender: int
    sends: int
    receiver: int
    receives: int


def with_line_order(
    ops: Operations, clocks: Clocks, lines: Sequence[tuple[int, ...]]
) -> tuple[list[RankOps], int]:
    """Return (operations of all ranks with the peers that a schedule gives to kernels along `lines`, their number).

    `lines` hold ranks in the order of their stages. Lines that run the same are judged together.
    """
    by_counts: dict[tuple[tuple[int, ...], ...], list[_Line]] = defaultdict(list)
    in_part: list[_Line] = []
    for line in filter(None, (_line(ops, clocks, ranks) for ranks in sorted(lines))):
        if all(line.stages):
            by_counts[tuple(tuple(sorted(options)) for options in line.stages)].append(line)
        else:
            in_part.append(line)
    learnt: dict[int, list[Learnt]] = defaultdict(list)
    known = (r.message for r in ops.per_rank.values() if r.message is not None)
    number = 1 + max((int(m.max(initial=-1)) for m in known), default=-1)
    open_ = any(line.silent for line in in_part)
    found = [
        (*_scheduled(every, members), members)
        for every, members in by_counts.items()
        if open_ or any(line.silent for line in members)
    ]
    if found and all(part[:2] == found[0][:2] for part in found):
        found[0][2].extend(line for line in in_part if found[0][0] and line.may_run(found[0][0]))
    for counts, pairs, members in found:
        for pair in pairs:
            for line in members:
                number = _learn(learnt, line, counts, pair, number)
    count = sum(map(len, learnt.values()))
    return [with_learnt(ops.per_rank[r], learnt.get(r, [])) for r in ops.ranks], count


def _line(ops: Operations, clocks: Clocks, ranks: tuple[int, ...]) -> _Line | None:
    """Return the kernels of a pipeline's ranks; None if a recorded rank has no message.

    A stage without a trace has no kernels.
    """
    found = [line_kernels(ops, r, clocks, ranks) if r in ops.per_rank else [] for r in ranks]
    if not all(options or r not in ops.per_rank for options, r in zip(found, ranks, strict=True)):
        return None
    silent = any(options[0].silent for options in found if options)
    return _Line(ranks, tuple(_by_count(options) for options in found), silent)


def _by_count(options: Sequence[LineKernels]) -> dict[int, _Stage]:
    """Return the kernels by how many a usual step has: all, and of the streams with numbers of their own."""
    stages = [_Stage(kernels, _usual_steps(kernels.times)) for kernels in options]
    counts = [len(next(iter(stage.steps.values()), ())) for stage in stages]
    return {
        count: stage
        for at, (count, stage) in enumerate(zip(counts, stages, strict=True))
        if 0 < count <= MOST_DEALT_MESSAGES and (at == 0 or counts.count(count) == 1)
    }


def _usual_steps(kernels: OpenKernels) -> dict[int, I64]:
    """Return step → its kernels in order of start, for the steps with the most frequent number of kernels."""
    order = np.argsort(kernels.start, kind="stable")
    steps = {n: order[kernels.step[order] == n] for n in np.unique(kernels.step).tolist() if n != NO_STEP}
    usual = Counter(len(mine) for mine in steps.values()).most_common(1)
    return {n: mine for n, mine in steps.items() if len(mine) == usual[0][0]}


def _scheduled(
    every: Sequence[tuple[int, ...]], lines: Sequence[_Line]
) -> tuple[tuple[int, ...], list[_Pair]]:
    """Return the one schedule that fits one of `every` stage's counts: kernels by stage, and its messages.

    Empty if none does, or two with different messages do.
    """
    said = {(stage, count): _said(lines, stage, count) for stage, of in enumerate(every) for count in of}
    tried: list[tuple[float, tuple[int, ...], list[_Pair]]] = []
    for stages in schedules(every):
        counts = tuple(map(len, stages))
        agrees = _contradicts_nothing(stages, [said[at] for at in enumerate(counts)])
        pairs = _pairs(stages) if agrees else None
        if pairs and (counts, pairs) not in [t[1:] for t in tried]:
            tried.append((_cost([line.at(counts) for line in lines], stages, pairs), counts, pairs))
    tried.sort(key=lambda t: t[0])
    if not tried or tried[0][0] > DEALT_MISFITS * len(tried[0][2]):
        return (), []
    rival = tried[1][0] if len(tried) > 1 else np.inf
    return tried[0][1:] if rival - tried[0][0] >= DEALT_MARGIN else ((), [])


def _said(lines: Sequence[_Line], stage: int, count: int) -> list[set[Says]]:
    """Return what kernels show at each place of a stage's step, over all lines and usual steps."""
    found: list[set[Says]] = [set() for _ in range(count)]
    for line in lines:
        kernels, steps = line.stages[stage][count]
        for places in steps.values():
            for place, kernel in enumerate(places.tolist()):
                found[place].add(kernels.says[kernel])
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
            for peer, sent in kernel.messages:
                ends[(stage, peer) if sent else (peer, stage)][not sent].append(place)
    if any(len(sends) != len(receives) for sends, receives in ends.values()):
        return None
    return [
        _Pair(a, i, b, j)
        for (a, b), (sends, receives) in sorted(ends.items())
        for i, j in zip(sends, receives, strict=True)
    ]


def _cost(
    lines: Sequence[Sequence[_Stage]],
    stages: Sequence[Sequence[Kernel]],
    pairs: Sequence[_Pair],
) -> float:
    """Return the sum over messages of the share of steps that rule them out; infinite where no step shows them."""
    alone = [np.array([len(kernel.messages) == 1 for kernel in kernels], bool) for kernels in stages]
    cost = sum(_work_outside_tasks([line[at] for line in lines], stages[at]) for at in range(len(stages)))
    for a, b in sorted({(min(p[::2]), max(p[::2])) for p in pairs}):
        ends = [[p[1::2] for p in pairs if p[::2] == way] for way in ((a, b), (b, a))]
        there, back = (np.array(way, np.int64).reshape(-1, 2).T for way in ends)
        sides = _exchange([(line[a], line[b]) for line in lines], there, back)
        if sides is None:
            return float("inf")
        mine, theirs = (side._replace(alone=alone[at]) for side, at in zip(sides, (a, b), strict=True))
        cost += float(misfits(mine, theirs)[*there].sum() + misfits(theirs, mine)[*back].sum())
    return cost


def _work_outside_tasks(lines: Sequence[_Stage], kernels: Sequence[Kernel]) -> float:
    """Return the sum over kernels of the share of steps with work like a task's before it, though none is scheduled.

    A kernel starts after all work that was launched before it.
    """
    worked = [stage.kernels.worked[places] for stage in lines for places in stage.steps.values()]
    spent, tasks = np.diff(np.array(worked, np.float64), axis=1), np.diff([k.done for k in kernels])
    if not len(spent) or tasks.all() or not tasks.any():
        return 0.0
    usual = np.median(spent[:, tasks > 0] / tasks[tasks > 0], axis=1, keepdims=True)
    return float((spent[:, tasks == 0] > MAJORITY * usual).mean(axis=0).sum()) if usual.all() else 0.0


def _exchange(lines: Sequence[tuple[_Stage, _Stage]], there: I64, back: I64) -> tuple[Times, Times] | None:
    """Return the kernels of two stages in steps that both recorded, on one clock; None without any.

    `there` are the places of the sends and the receives from the first stage to the second, `back` those of the other
    way. Where no collective links the clocks of two ranks, these messages show their difference.
    """
    parts: tuple[list[Times], list[Times]] = ([], [])
    for one, two in lines:
        shared, shift = sorted(set(one.steps) & set(two.steps)), None
        if len(parts[0]) >= MOST_DEALT_STEPS:
            break
        if one.kernels.times.island == two.kernels.times.island:
            shift = clock_difference(one.kernels.times, two.kernels.times, COMMON_END_NS)
        elif not there.size or not back.size:
            continue
        for step, mine, theirs in zip(shared, _times(one, shared), _times(two, shared), strict=True):
            known = _ahead(mine, theirs, there, back) if shift is None else shift[two.steps[step]]
            parts[0].append(mine)
            parts[1].append(theirs._replace(start=theirs.start + known, end=theirs.end + known))
    return (_stacked(parts[0]), _stacked(parts[1])) if parts[0] else None


def _stacked(steps: Sequence[Times]) -> Times:
    """Return the kernels of a stage, one row a step."""
    start, end, quickest = (np.array([step[n] for step in steps], np.int64) for n in range(3))
    return Times(start, end, quickest, steps[0].alone)


def _times(stage: _Stage, steps: Sequence[int]) -> list[Times]:
    """Return the kernels of a stage in each of the `steps`."""
    kernels = stage.kernels.times
    took = kernels.end - kernels.start
    quickest = np.min([took[stage.steps[n]] for n in steps] or [took], axis=0)
    rows = (stage.steps[n] for n in steps)
    return [Times(kernels.start[at], kernels.end[at], quickest, np.ones(len(at), bool)) for at in rows]


def _ahead(mine: Times, theirs: Times, there: I64, back: I64) -> int:
    """Return the ns to add to `theirs` of a step: where most messages end together, among those with all arriving."""
    (sends, receives), (theirs_sent, mine_received) = there, back
    least = int((mine.start[sends] - theirs.end[receives]).max())
    most = int((mine.end[mine_received] - theirs.start[theirs_sent]).min())
    sent, received = mine.end[sends] - theirs.end[receives], mine.end[mine_received] - theirs.end[theirs_sent]
    apart = np.sort(np.append(sent, received))
    possible = apart[(apart >= least - COMMON_END_NS) & (apart <= most + COMMON_END_NS)]
    together = windows(possible, COMMON_END_NS)
    return max(together, key=lambda w: w[1])[0] if together else (least + most) // 2


def _learn(
    learnt: dict[int, list[Learnt]], line: _Line, counts: Sequence[int], pair: _Pair, number: int
) -> int:
    """Add the messages of `pair` to `learnt`, for each step that its recorded ranks share; return the next free number.

    Skips messages that name their peer at all recorded ends.
    """
    a, b = line.ranks[pair.sender], line.ranks[pair.receiver]
    both = (pair.sender, "send", pair.sends), (pair.receiver, "recv", pair.receives)
    ends = [
        (line.ranks[at], op, *line.stages[at][counts[at]], place) for at, op, place in both if line.stages[at]
    ]
    shared = [set(steps) for _, _, _, steps, _ in ends]
    for step in sorted(set.intersection(*shared)) if shared else ():
        found = [(rank, op, kernels, int(steps[step][place])) for rank, op, kernels, steps, place in ends]
        if any(kernels.says[n].ways for _, _, kernels, n in found):
            for rank, op, kernels, n in found:
                learnt[rank].append(Learnt(int(kernels.times.kernel[n]), op, a, b, number))
            number += 1
    return number
