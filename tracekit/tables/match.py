"""Which operations of different ranks are one communication: an instance.

Collectives match by group and `Seq` where all members carry it, else by ordinal within the profiler step, else by
ordinal after aligning ragged capture windows. Point-to-point operations match by source, destination and order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.store import Group
from tracekit.tables.intervals import I64
from tracekit.tables.operation_names import MESSAGES, UNDIRECTED
from tracekit.tables.operations import RankOps
from tracekit.tables.progress import Progress, own_progress
from tracekit.tables.step_marks import NO_STEP
from tracekit.thresholds import ALIGN_LEAST_OVERLAP

Mask = npt.NDArray[np.bool_]
WORLD: Final = -1
"""Group of an operation whose members the trace does not name."""
NO_SEQ: Final = -1
"""Sequence number of an operation that the trace does not count, or counts differently on each member."""


@dataclass(frozen=True)
class Channel:
    """Operations that match each other in order: those of one group, or the sends of one rank to another."""

    number: int
    members: tuple[int, ...]  # ranks of the group, or (source, destination)
    p2p: bool
    group: int  # index into Run.groups, WORLD where unknown


@dataclass(frozen=True)
class Operations:
    """All communication operations of a run, rank by rank in order of start; one array entry an operation."""

    ranks: tuple[int, ...]
    per_rank: Mapping[int, RankOps]
    progress: Mapping[int, Progress]
    first: Mapping[int, int]  # rank → index of its first operation here
    rank: npt.NDArray[np.int32]
    start: I64
    end: I64
    step: npt.NDArray[np.int32]
    at_start: I64
    at_end: I64
    at_ready: npt.NDArray[np.float64]  # own time from which it could start; NaN where the trace does not tell
    exposed: I64  # ns for which compute stood still for it
    instance: I64  # -1: matched with nobody
    channel: I64  # -1: none
    op: npt.NDArray[np.object_]
    token: npt.NDArray[np.object_]
    kernel: I64  # number of the kernel over all ranks: messages of one batch share theirs
    channels: tuple[Channel, ...]
    unmatched: int  # operations of known channels that no other rank has
    mismatched: int  # operations dropped because the members disagree about what they are

    def of(self, rank: int) -> slice:
        """The entries that hold the operations of `rank`; KeyError where the run has no such rank."""
        begin = self.first[rank]
        return slice(begin, begin + len(self.per_rank[rank].start))


def match(ranks: Sequence[RankOps], groups: Sequence[Group]) -> Operations:
    """The operations of all ranks, joined into instances; `groups` are the process groups of the run."""
    ordered = sorted(ranks, key=lambda r: r.rank)
    progress = {r.rank: own_progress(r) for r in ordered}
    counts = [len(r.start) for r in ordered]
    first = dict(
        zip((r.rank for r in ordered), np.concatenate([[0], np.cumsum(counts)]).tolist(), strict=False)
    )
    rank = np.repeat(np.array([r.rank for r in ordered], np.int32), counts)
    start, end = _cat(r.start for r in ordered), _cat(r.end for r in ordered)
    op = np.array([o for r in ordered for o in r.op], dtype=object)
    token = np.array([t for r in ordered for t in r.token], dtype=object)
    step, seq = _cat(r.step for r in ordered).astype(np.int32), _cat(r.seq for r in ordered)
    channel, channels = _channels(ordered, groups)
    seq[np.isin(_cat(r.group for r in ordered), _with_one_counter(ordered))] = NO_SEQ
    issued = _cat(r.issued for r in ordered)
    instance, mismatched = _instances(channel, channels, rank, step, seq, end, token, issued)
    lonely = (channel >= 0) & (instance < 0)
    return Operations(
        tuple(r.rank for r in ordered), {r.rank: r for r in ordered}, progress, first, rank, start, end, step,
        _cat(progress[r.rank].at_start for r in ordered), _cat(progress[r.rank].at_end for r in ordered),
        np.concatenate([np.zeros(0), *(progress[r.rank].at_ready for r in ordered)]),
        _cat(progress[r.rank].exposed_ns for r in ordered), instance, channel, op, token,
        _kernels(ordered), channels,
        int(lonely.sum()) - mismatched, mismatched,
    )  # fmt: skip


def _cat(parts: Iterable[npt.NDArray[Any]]) -> I64:
    arrays = list(parts)
    return np.asarray(np.concatenate(arrays) if arrays else np.zeros(0, np.int64), np.int64)


def _with_one_counter(ranks: Sequence[RankOps]) -> list[int]:
    """Groups whose `Seq` counts messages and collectives together, and so differs between members.

    The backend of torch 2.15 does that. Elsewhere each kind has a counter of its own, and calls of both kinds in turn
    show numbers that fall.
    """
    found = []
    for r in ranks:
        message = np.isin(np.array(r.op, str), UNDIRECTED)
        for group in np.unique(r.group[message & (r.group != WORLD) & (r.seq != NO_SEQ)]):
            rows = np.flatnonzero((r.group == group) & (r.seq != NO_SEQ))
            rows = rows[np.argsort(r.issued[rows], kind="stable")]
            turn = np.flatnonzero(np.diff(message[rows].astype(np.int8)))
            if len(turn) and (r.seq[rows][turn + 1] > r.seq[rows][turn]).all():
                found.append(int(group))
    return found


def _kernels(ranks: Sequence[RankOps]) -> I64:
    """The number of each operation's kernel, counted over all ranks."""
    counts = [int(r.kernel.max(initial=-1)) + 1 for r in ranks]
    begins = np.concatenate([[0], np.cumsum(counts)])
    return _cat(r.kernel + begin for r, begin in zip(ranks, begins.tolist(), strict=False))


def _channels(ranks: Sequence[RankOps], groups: Sequence[Group]) -> tuple[I64, tuple[Channel, ...]]:
    """The channel of every operation (-1: none), and all channels.

    Messages have a channel for each (source, destination), collectives one for each group. Where no group is known,
    the whole world counts as one.
    """
    numbers: dict[tuple[object, ...], Channel] = {}
    members = {g.group: g.ranks for g in groups}
    everyone = tuple(r.rank for r in ranks)
    anonymous = not any(len(g.ranks) > 1 for g in groups)
    result: list[int] = []
    for r in ranks:
        for op, group, src, dst in zip(r.op, r.group.tolist(), r.src.tolist(), r.dst.tolist(), strict=True):
            key: tuple[object, ...]
            who: tuple[int, ...]
            if op in MESSAGES:
                key, who = ("p2p", src, dst), (src, dst)
            else:
                key, who = ("group", group), members.get(group, everyone)
            coalesced = op == "other" or (op == "send_recv" and group != WORLD)
            if coalesced or len(who) < 2 or (group == WORLD and not anonymous and key[0] == "group"):
                result.append(-1)  # alone, or its members are unknown: the list was cut
                continue
            p2p = key[0] == "p2p"
            channel = numbers.setdefault(key, Channel(len(numbers), who, p2p, group))
            result.append(channel.number)
    return np.asarray(result, np.int64), tuple(numbers.values())


def _instances(
    channel: I64, channels: Sequence[Channel], rank: npt.NDArray[np.int32], step: npt.NDArray[np.int32],
    seq: I64, end: I64, token: npt.NDArray[np.object_], issued: I64,
) -> tuple[I64, int]:  # fmt: skip
    """(instance of every operation, how many operations were dropped because members disagree about the kind).

    Instances are numbered by channel, then in order within the channel; -1 is an operation without a partner.
    """
    instance = np.full(len(channel), -1, np.int64)
    following, mismatched = 0, 0
    order = np.argsort(channel, kind="stable")
    bounds = np.searchsorted(channel[order], np.arange(len(channels) + 1))
    for c, known in enumerate(channels):
        rows = order[bounds[c] : bounds[c + 1]]
        sides = [rows[rank[rows] == r] for r in known.members]
        if known.p2p:  # messages match in the order in which hosts issued them, on whatever stream they ran
            sides = [s[np.argsort(issued[s], kind="stable")] for s in sides]
        present = [s for s in sides if len(s)]
        if len(present) < 2:
            continue
        keys = _keys(present, known.p2p, step, seq, end, token)
        joined, all_rows = np.concatenate(keys), np.concatenate(present)
        unique, place, counts = np.unique(joined, return_inverse=True, return_counts=True)
        agreed = _agreement(place, len(unique), token[all_rows])
        mismatched += int((counts[place] >= 2)[~agreed[place]].sum())
        good = (counts >= 2) & agreed
        number = np.full(len(unique), -1, np.int64)
        number[good] = following + np.arange(int(good.sum()))
        following += int(good.sum())
        instance[all_rows] = number[place]
    return instance, mismatched


def _agreement(place: I64, count: int, tokens: npt.NDArray[np.object_]) -> Mask:
    """Whether all operations of each of `count` instances are of one kind.

    `place` is the instance of each operation. Element counts may differ: all_to_all, uneven shards.
    """
    kinds = {t: i for i, t in enumerate(sorted({str(t).split("/", 1)[0] for t in tokens}))}
    code = np.array([kinds[str(t).split("/", 1)[0]] for t in tokens], np.int64)
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(low, place, code)
    np.maximum.at(high, place, code)
    return np.asarray(low == high, bool)


def _keys(
    sides: Sequence[I64],
    p2p: bool,
    step: npt.NDArray[np.int32],
    seq: I64,
    end: I64,
    token: npt.NDArray[np.object_],
) -> list[I64]:
    """A key for each operation of each side, in the shape of `sides`; operations with equal keys match."""
    if not p2p and all((seq[s] >= 0).all() for s in sides):
        return [_with_occurrence(seq[s]) for s in sides]
    if all((step[s] != NO_STEP).any() for s in sides):
        return _by_step(sides, step)
    if len({len(s) for s in sides}) == 1 and all((token[s] == token[sides[0]]).all() for s in sides):
        return [np.arange(len(s)) for s in sides]
    return _aligned(sides, end, token)


def _with_occurrence(keys: I64) -> I64:
    """`keys` made unique: equal ones (coalesced calls share a sequence number) are told apart by their order."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    fresh = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    begin = np.maximum.accumulate(np.where(fresh, np.arange(len(keys)), 0))
    occurrence = np.empty(len(keys), np.int64)
    occurrence[order] = np.arange(len(keys)) - begin
    return keys * _COALESCED + np.minimum(occurrence, _COALESCED - 1)


_COALESCED: Final = 1024  # calls with one sequence number that keys can tell apart
_BEFORE, _AFTER = 2**30, 2**31  # where operations outside steps stand among the keys of the step beside them


def _by_step(sides: Sequence[I64], step: npt.NDArray[np.int32]) -> list[I64]:
    """Keys by step and ordinal within the step; a side whose first step is cut short is aligned at that step's end.

    Operations outside steps count from the end of the step before them, or back from the first step.
    """
    most: dict[int, int] = {}
    for s in sides:
        for number, count in zip(*np.unique(step[s], return_counts=True), strict=True):
            most[int(number)] = max(most.get(int(number), 0), int(count))
    keys = []
    for s in sides:
        labels = step[s].astype(np.int64)
        key = _outside(labels)
        seen = [int(n) for n in np.unique(labels) if n != NO_STEP]
        for number in seen:
            where = np.flatnonzero(labels == number)
            ordinal = np.arange(len(where))
            if number == seen[0]:
                ordinal += most[number] - len(where)
            key[where] = (number + 1) * 2**32 + ordinal
        keys.append(key)
    return keys


def _outside(labels: I64) -> I64:
    """Keys of one side's operations outside steps: the step beside them, and their distance from it.

    Entries of operations inside steps are meaningless.
    """
    place = np.arange(len(labels))
    inside = labels != NO_STEP
    before = np.maximum.accumulate(np.where(inside, place, -1))
    first = int(np.argmax(inside))
    behind = (labels[np.maximum(before, 0)] + 1) * 2**32 + _AFTER + place - before
    ahead = (labels[first] + 1) * 2**32 + _BEFORE + first - place
    return np.asarray(np.where(before >= 0, behind, ahead), np.int64)


def _aligned(sides: Sequence[I64], end: I64, token: npt.NDArray[np.object_]) -> list[I64]:
    """Ordinals of each side, shifted so that kinds agree and ends differ by a constant.

    Members of a collective end together, so the right shift is the one whose end differences vary least.
    """
    reference = max(range(len(sides)), key=lambda i: len(sides[i]))
    keys = []
    for i, side in enumerate(sides):
        shift = 0 if i == reference else _best_shift(side, sides[reference], end, token)
        keys.append(np.arange(len(side)) + shift)
    return [k + (len(sides[reference]) + 1) for k in keys]


def _best_shift(side: I64, reference: I64, end: I64, token: npt.NDArray[np.object_]) -> int:
    """The position in `reference` at which `side` begins: where kinds agree most, then where ends vary least."""
    best = (2.0, float("inf"), 0)
    need = max(1, ceil(ALIGN_LEAST_OVERLAP * min(len(side), len(reference))))
    for shift in range(need - len(side), len(reference) - need + 1):
        low, high = max(0, -shift), min(len(side), len(reference) - shift)
        mine, theirs = side[low:high], reference[low + shift : high + shift]
        disagree = float(np.mean(token[mine] != token[theirs]))
        difference = (end[mine] - end[theirs]).astype(np.float64)
        spread = float(np.median(np.abs(difference - np.median(difference))))
        best = min(best, (round(disagree, 2), spread, shift))
    return best[2]
