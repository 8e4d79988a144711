"""Repairs operations with kernels that lost their arguments, by the others on their stream and by other steps.

Up to about torch 2.12 arguments go missing at random. If the host was not recorded, the stream gives the group if all
its other collectives are of one group, and the same place in other steps gives group and kind if those agree. A message
with a known direction has the peer of all others of its stream and direction, if they have one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tracekit.inference.peers.directed_messages import places
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import MESSAGES, OTHER, UNDIRECTED
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.thresholds.tables import TOLD_SHARE
from tracekit.units import I32, I64, Mask

UNKNOWN = -1


def repaired(rank: RankOps, *, final: bool = True) -> RankOps:
    """Return `rank` with groups, kinds and sequence numbers filled in, as far as the evidence goes.

    Unless it is `final`, steps may still be found in a recording without marks, and show more.
    """
    rank = with_lost_batches(rank)
    recorded = rank.group
    rank = with_lost_calls(with_lost_peers(rank))
    message = among(rank.op, UNDIRECTED)
    open_ = (~message & (rank.group == UNKNOWN)).any() or (rank.group != recorded).any()
    if rank.stream is None or not open_:
        return rank
    group, op, token = rank.group.copy(), list(rank.op), list(rank.token)
    hint = np.full(len(group), UNKNOWN, group.dtype) if rank.hint is None else rank.hint.copy()
    streams = np.unique(rank.stream[~message & (rank.stream != UNKNOWN) & (rank.group != UNKNOWN)])
    for stream in streams.tolist():
        rows = np.flatnonzero((rank.stream == stream) & ~message)
        at = places(rank.step, rows)
        _fill_kinds(op, token, at)
        _fill_groups(group, op, rows if rank.inferred is None else rows[~rank.inferred[rows]], at)
        if final or (rank.step != NO_STEP).any():
            _withdraw_open_steps(group, hint, rank, rows)
    seq = rank.seq.copy()
    for number in np.unique(group[group != recorded]).tolist():
        _fill_sequence(seq, np.flatnonzero((group == number) & ~message))
    return replace(rank, group=group, op=tuple(op), token=tuple(token), seq=seq, hint=hint)


def named_after(
    named: Mapping[int, Mask], before: Sequence[RankOps], after: Sequence[RankOps]
) -> dict[int, Mask]:
    """Return `named`, which is of the operations `before`, for those `after` some were divided into several.

    A kernel of several messages becomes an operation for each of them, with the same start.
    """
    start = {r.rank: r.start for r in before}
    return {
        r.rank: mine if len(r.start) == len(mine := named[r.rank]) else np.isin(r.start, start[r.rank][mine])
        for r in after
    }


def with_lost_peers(rank: RankOps) -> RankOps:
    """Return `rank` with the peers of messages with lost arguments, if their direction is known.

    All other messages of that stream and direction must be equal, and more than the messages without any fact, also of
    kernels that carry several messages, or of an unknown direction.
    """
    if rank.stream is None or rank.way is None:
        return rank
    open_ = among(rank.op, ("send_recv",)) & (rank.src == UNKNOWN)
    silent = open_ & (rank.way != 0) & _lone(rank)
    source = np.arange(len(rank.op))
    for stream, way in sorted({*zip(rank.stream[silent].tolist(), rank.way[silent].tolist(), strict=True)}):
        here = (rank.stream == stream) & (rank.way == way)
        rows = np.flatnonzero(here & silent)
        recorded = np.flatnonzero(here & among(rank.op, MESSAGES))
        lost = int((open_ & (rank.stream == stream) & np.isin(rank.way, (way, 0))).sum())
        if stream != UNKNOWN and len(recorded) > lost and _alike(rank, recorded):
            source[rows] = recorded[0]
    return _taken_over(rank, source)


def with_lost_calls(rank: RankOps) -> RankOps:
    """Return `rank` with operations that lost their record filled in from the same position of other steps.

    On a device these are messages, and collectives that lost their size; in a host's trace, which has no streams, all
    operations.
    """
    if rank.stream is None or rank.way is None:
        return rank
    way = rank.way
    silent = among(rank.op, ("send_recv",)) & (rank.src == UNKNOWN)
    if rank.on_gpu:
        silent |= ~among(rank.op, (*UNDIRECTED, OTHER)) & (rank.nelems < 0)
    else:
        silent |= among(rank.op, (OTHER,)) & (rank.group == UNKNOWN)
    source = np.arange(len(rank.op))
    lanes = np.unique(rank.stream[silent & ((rank.stream != UNKNOWN) | (not rank.on_gpu))])
    for lane in lanes.tolist():
        for place in places(rank.step, np.flatnonzero(rank.stream == lane)):
            lost, recorded = place[silent[place]], place[~silent[place]]
            if len(recorded) and _alike(rank, recorded):
                same = (way[lost] == 0) | (way[lost] == way[recorded[0]])
                named = among(rank.op, (rank.op[recorded[0]], "send_recv", OTHER))[lost]  # by its kernel
                source[lost[same & named]] = recorded[0]
    return _taken_over(rank, source)


def _alike(rank: RankOps, rows: I64) -> bool:
    """Whether the operations `rows` have equal records, apart from their sequence numbers."""
    said = {(rank.op[r], rank.token[r]) for r in rows.tolist()}
    numbers = (rank.src, rank.dst, rank.group, rank.nelems)
    return len(said) == 1 and all((n[rows] == n[rows[0]]).all() for n in numbers)


def _taken_over(rank: RankOps, source: I64) -> RankOps:
    """Return `rank` with the record of each operation copied from the row at its entry of `source`."""
    if (source == np.arange(len(source))).all():
        return rank
    op, token = tuple(rank.op[i] for i in source), tuple(rank.token[i] for i in source)
    way = None if rank.way is None else rank.way[source]
    src, dst, group = rank.src[source], rank.dst[source], rank.group[source]
    return replace(
        rank, op=op, token=token, src=src, dst=dst, group=group, nelems=rank.nelems[source], way=way
    )


def _lone(rank: RankOps) -> npt.NDArray[np.bool_]:
    """Whether each operation has a kernel of its own."""
    return np.asarray(np.bincount(rank.kernel, minlength=1)[rank.kernel] == 1, bool)


def _fill_kinds(op: list[str], token: list[str], places: list[I64]) -> None:
    """Take kinds that no name shows from the same place of other steps, if these agree."""
    for place in places:
        kinds = {op[row] for row in place.tolist() if op[row] != OTHER}
        if len(kinds) == 1:
            like = next(row for row in place.tolist() if op[row] != OTHER)
            for row in place.tolist():
                if op[row] == OTHER:
                    op[row], token[row] = op[like], token[like]


def _fill_groups(group: I32, op: list[str], rows: I64, places: list[I64]) -> None:
    """Take the group of the same place of other steps, else the only one that most of a kind name among `rows`.

    If few name it, the others did not lose their arguments: they are of a CUDA graph, and of any group. So are those
    beside operations with groups inferred from common ends: these would have shown theirs.
    """
    for place in places:
        here = np.unique(group[place][group[place] != UNKNOWN])
        if len(here) == 1:
            group[place] = here[0]
    known = rows[group[rows] != UNKNOWN]
    kinds, every = Counter(op[row] for row in known.tolist()), Counter(op[row] for row in rows.tolist())
    most = {kind for kind, count in kinds.items() if count >= TOLD_SHARE * every[kind]}
    if len(np.unique(group[known])) == 1:
        group[[row for row in rows.tolist() if op[row] in most]] = group[known[0]]


def _withdraw_open_steps(group: I32, hint: I32, rank: RankOps, rows: I64) -> None:
    """Turn groups into hints: of uncounted operations that share stream and step with one of unknown group.

    Operations without a sequence number are matched by order, and a missing operation shifts all after it. Groups
    inferred from the ends of whole steps have the same order on all ranks. Where that leaves no step, nothing places
    the operations outside steps either.
    """
    open_ = np.unique(rank.step[rows][group[rows] == UNKNOWN])
    if len(open_) and np.isin(rank.step[rows], [*open_.tolist(), NO_STEP]).all():
        open_ = np.append(open_, NO_STEP)
    shifted = rows[np.isin(rank.step[rows], open_) & (rank.seq[rows] == UNKNOWN)]
    if rank.inferred is not None:
        shifted = shifted[~rank.inferred[shifted]]
    hint[shifted] = group[shifted]
    group[shifted] = UNKNOWN


def _fill_sequence(seq: I64, rows: I64) -> None:
    """Fill in missing sequence numbers where the gap between known numbers equals the number of missing ones."""
    known = np.flatnonzero(seq[rows] != UNKNOWN)
    if not len(known):
        return
    numbers = seq[rows]
    exact = np.diff(numbers[known]) == np.diff(known)
    for here, there in zip(known[:-1][exact].tolist(), known[1:][exact].tolist(), strict=True):
        numbers[here:there] = numbers[here] + np.arange(there - here)
    if exact.all():
        numbers[: known[0]] = numbers[known[0]] - np.arange(known[0], 0, -1)
        numbers[known[-1] :] = numbers[known[-1]] + np.arange(len(rows) - known[-1])
    seq[rows] = numbers


# Kernels of messages that lost all arguments, restored from other steps: one kernel may carry several
# messages.
#
# A kernel without a record counts as one operation. If it is a batch, its step has fewer operations than
# others, so its places can be compared only by kernels.

_Scalar = TypeVar("_Scalar", bound=np.generic)


def with_lost_batches(rank: RankOps) -> RankOps:
    """Return `rank` with the messages of kernels without a record copied from their position in other steps."""
    if rank.stream is None or rank.way is None or not len(rank.op):
        return rank
    mute = _mute(rank, rank.way)
    lanes = _lanes(rank, rank.stream, mute)
    like = {kernel: rows for lane in lanes for kernel, rows in _shown_elsewhere(rank, lane, mute)}
    if not like:
        return rank
    rows = [like.get(kernel, [row]) for row, kernel in enumerate(rank.kernel.tolist())]
    own = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    return with_rows(rank, np.concatenate(rows).astype(np.int64), own)


def _mute(rank: RankOps, way: I64) -> npt.NDArray[np.bool_]:
    """Return whether each operation is the only one of a kernel without peer, direction or size of a message."""
    message = among(rank.op, UNDIRECTED)
    silent = message & (way == 0) & (rank.nelems < 0) & (rank.src < 0) & (rank.dst < 0)
    return np.asarray(silent & (np.bincount(rank.kernel)[rank.kernel] == 1), bool)


def _lanes(rank: RankOps, stream: I64, mute: npt.NDArray[np.bool_]) -> Iterator[I64]:
    """Yield for each stream with a mute kernel the first operation of each of its kernels."""
    first = np.unique(rank.kernel, return_index=True)[1]
    for number in np.unique(stream[mute & (stream >= 0)]).tolist():
        yield np.sort(first[stream[first] == number])


def _shown_elsewhere(
    rank: RankOps, lane: I64, mute: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, list[int]]]:
    """Yield each mute kernel among the first operations `lane`, with rows of another step that show its messages."""
    for place in places(rank.step, lane):
        recorded = [np.flatnonzero(rank.kernel == rank.kernel[row]).tolist() for row in place[~mute[place]]]
        if recorded and all(_says(rank, rows) == _says(rank, recorded[0]) for rows in recorded):
            for row in place[mute[place]].tolist():
                yield int(rank.kernel[row]), recorded[0]


def _says(rank: RankOps, rows: list[int]) -> list[tuple[object, ...]]:
    """Return the records of the operations `rows`, without their sequence numbers."""
    numbers = (rank.src, rank.dst, rank.group, rank.nelems, rank.way)
    return [(rank.op[r], rank.token[r], *(int(n[r]) for n in numbers if n is not None)) for r in rows]


def with_rows(rank: RankOps, source: I64, own: I64) -> RankOps:
    """Return `rank` with an operation for each entry: the record of its `source` row at the time of its `own` row."""
    return replace(
        rank,
        start=rank.start[own], end=rank.end[own], step=rank.step[own], kernel=rank.kernel[own],
        issued=rank.issued[own], ready=_at(rank.ready, own), stream=_at(rank.stream, own),
        waited=_at(rank.waited, own), held=_at(rank.held, own), used=_at(rank.used, own), usable=_at(rank.usable, own),
        found=_at(rank.found, own), message=_at(rank.message, own), seq=np.where(source == own, rank.seq[own], -1),
        op=tuple(rank.op[i] for i in source), token=tuple(rank.token[i] for i in source),
        group=rank.group[source], src=rank.src[source], dst=rank.dst[source], nelems=rank.nelems[source],
        way=_at(rank.way, source), group_size=_at(rank.group_size, source), taken=_at(rank.taken, source),
        place=_at(rank.place, source), own=_at(rank.own, source), grid=_at(rank.grid, source),
        hint=_at(rank.hint, source), inferred=_at(rank.inferred, source),
    )  # fmt: skip


def _at(values: npt.NDArray[_Scalar] | None, rows: I64) -> npt.NDArray[_Scalar] | None:
    """Return the `values` of `rows`; None if the trace has none."""
    return None if values is None else values[rows]
