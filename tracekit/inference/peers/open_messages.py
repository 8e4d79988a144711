"""Kernels with messages that name no peer: what is known of each, and what was learnt about them, written back.

torch 2.1 records only a message's kernel; later versions lose its arguments or do not record its peer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tracekit.matching.clock import Clocks
from tracekit.matching.match import Operations
from tracekit.matching.message_order import UNKNOWN_SIZE
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import MESSAGES, RECEIVES, SENDS, UNDIRECTED
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.units import I64, Mask

OPEN: Final = "send_recv"
"""The kind of a kernel that may carry messages, as long as none is known."""

BOTH = 2
"""Direction of a kernel that sends and receives; SENDS, RECEIVES and 0 (unknown) are the others."""


@dataclass(frozen=True)
class OpenKernels:
    """One rank's kernels with messages that name no peer, in order of end; one entry a kernel, times in ns."""

    rank: int
    island: int
    exact: int  # the island of clocks with known rates
    kernel: I64  # number of the kernel on its rank
    start: I64  # on the clock of the rank's island
    end: I64
    step: I64
    lane: I64  # number of its stream and direction on its rank: what may share one peer
    way: I64  # SENDS, RECEIVES, BOTH or 0
    nelems: I64  # of its one message, -1 where unknown or several

    def moved(self, shift: I64) -> "OpenKernels":
        """Return the same kernels on a clock that is ahead by `shift` (ns, one entry a kernel)."""
        return replace(self, start=self.start + shift, end=self.end + shift)


@dataclass(frozen=True)
class Link:
    """Two kernels that carry the same message, or exchange messages."""

    ranks: tuple[int, int]
    kernels: tuple[int, int]  # numbers on their ranks
    way: int  # SENDS: the first sends to the second; RECEIVES: the other way; BOTH or 0: an exchange


def any_open(ops: Operations) -> bool:
    """Whether any message of a step names no peer; where no steps are known, any message.

    Kernels that the host launched before the window have no record. They do not count where the messages of their
    stream name their peers in all steps.
    """
    return any(bool((open_rows(r) & ~_left_over(r)).any()) for r in ops.per_rank.values())


def open_rows(source: RankOps) -> Mask:
    """Whether each operation of a rank may be a message and names no peer."""
    return among(source.op, (OPEN,)) & (source.src < 0)


def _left_over(source: RankOps) -> Mask:
    """Return whether each operation lies outside all steps, on a stream with named peers in every step."""
    if source.stream is None:
        return np.zeros(len(source.op), bool)
    stepped, open_ = source.step != NO_STEP, open_rows(source)
    message = among(source.op, UNDIRECTED)
    named = np.setdiff1d(source.stream[message & stepped & ~open_], source.stream[open_ & stepped])
    return np.asarray(~stepped & (source.stream >= 0) & np.isin(source.stream, named), bool)


def open_kernels(ops: Operations, clocks: Clocks) -> dict[int, OpenKernels]:
    """The open kernels of each rank that has some."""
    found = {}
    for rank in ops.ranks:
        source = ops.per_rank[rank]
        unknown = open_rows(source)
        if unknown.any():
            kernels = _kernels(source, unknown)
            if len(kernels):
                found[rank] = _of_rank(source, clocks, kernels)
    return found


def _kernels(source: RankOps, unknown: Mask) -> I64:
    """Return the numbers of the kernels with only `unknown` operations."""
    numbers, place = np.unique(source.kernel, return_inverse=True)
    known = np.zeros(len(numbers), bool)
    known[place[~unknown]] = True
    return np.asarray(numbers[~known], np.int64)


def _of_rank(source: RankOps, clocks: Clocks, kernels: I64) -> OpenKernels:
    """Return the columns of `kernels`."""
    rows = np.flatnonzero(np.isin(source.kernel, kernels))
    place = np.searchsorted(kernels, source.kernel[rows])
    first = rows[np.unique(place, return_index=True)[1]]
    directions = np.zeros(len(source.op), np.int64) if source.way is None else source.way
    sends = np.bincount(place, directions[rows] == SENDS, len(kernels)) > 0
    receives = np.bincount(place, directions[rows] == RECEIVES, len(kernels)) > 0
    way = np.where(sends & receives, BOTH, np.where(sends, SENDS, np.where(receives, RECEIVES, 0)))
    alone = np.bincount(place, minlength=len(kernels)) == 1
    stream = np.full(len(first), -1) if source.stream is None else source.stream[first]
    lane = np.unique(np.stack([stream, way]), axis=1, return_inverse=True)[1].reshape(-1)
    rank = source.rank
    end = clocks.align(rank, source.end[first])
    order = np.lexsort((kernels, end))
    return OpenKernels(
        rank, clocks.island[rank], clocks.exact.get(rank, clocks.island[rank]),
        kernels[order], clocks.align(rank, source.start[first])[order], end[order],
        source.step[first][order].astype(np.int64), lane[order].astype(np.int64), way[order].astype(np.int64),
        np.where(alone, source.nelems[first], -1)[order],
    )  # fmt: skip


def with_links(ops: Operations, links: Iterable[Link]) -> list[RankOps]:
    """Return the operations of all ranks, those of linked kernels with the ends from the links.

    An exchange keeps the kind `send_recv` and names its two ranks in order. A kernel of several messages is resolved
    only if the messages of the other kernel are their counterparts.
    """
    learnt: dict[int, dict[int, tuple[str, int, int, int]]] = {rank: {} for rank in ops.ranks}
    rows_of = {rank: _rows_by_kernel(ops.per_rank[rank]) for rank in ops.ranks}
    known = (r.message for r in ops.per_rank.values() if r.message is not None)
    number = max((int(m.max(initial=-1)) for m in known), default=-1) + 1
    for link in links:
        (a, b), (i, j) = link.ranks, link.kernels
        mine, theirs = rows_of[a][i], rows_of[b][j]
        for row, other, op in _counterparts(ops.per_rank[a], mine, ops.per_rank[b], theirs, link.way):
            src, dst = {"send": (a, b), "recv": (b, a)}.get(op, (min(a, b), max(a, b)))
            learnt[a][row] = (op, src, dst, number)
            learnt[b][other] = (_OTHER_END.get(op, op), src, dst, number)
            number += 1
    return [with_messages(ops.per_rank[rank], learnt[rank]) for rank in ops.ranks]


_OTHER_END = {"send": "recv", "recv": "send"}


def _rows_by_kernel(source: RankOps) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for row, kernel in enumerate(source.kernel.tolist()):
        rows.setdefault(kernel, []).append(row)
    return rows


def _counterparts(
    one: RankOps, mine: list[int], two: RankOps, theirs: list[int], way: int
) -> list[tuple[int, int, str]]:
    """Return (row of the first rank, row of the second, the first's kind) of each message; empty if they disagree."""
    if len(mine) == 1 and len(theirs) == 1:
        return [(mine[0], theirs[0], {SENDS: "send", RECEIVES: "recv"}.get(way, "send_recv"))]
    found = []
    for op, here, there in (("send", SENDS, RECEIVES), ("recv", RECEIVES, SENDS)):
        a = [row for row in mine if one.way is not None and one.way[row] == here]
        b = [row for row in theirs if two.way is not None and two.way[row] == there]
        if len(a) != len(b):
            return []
        found += [(x, y, op) for x, y in zip(a, b, strict=True)]
    return found if len(found) == len(mine) == len(theirs) else []


def with_messages(source: RankOps, learnt: Mapping[int, tuple[str, int, int, int]]) -> RankOps:
    """Return `source` with kind, source, destination and number of the message for each row of `learnt`.

    A send or a receive gets the token of one that was recorded, without a size where its kernel carries several.
    """
    if not learnt:
        return source
    op, token = list(source.op), list(source.token)
    src, dst = source.src.copy(), source.dst.copy()
    message = np.full(len(op), -1, np.int64) if source.message is None else source.message.copy()
    many = np.bincount(source.kernel)
    for row, (kind, begin, end, number) in learnt.items():
        op[row], src[row], dst[row], message[row] = kind, begin, end, number
        if kind in MESSAGES and token[row].startswith(OPEN):
            _, dtype, size = token[row].split("/")
            token[row] = (
                f"p2p/{dtype}/{size}" if many[source.kernel[row]] == 1 else f"p2p/{dtype}{UNKNOWN_SIZE}"
            )
    return replace(source, op=tuple(op), token=tuple(token), src=src, dst=dst, message=message)


# Messages with a peer named on one side only: the other side's kernels are found by their common ends.
#
# A recording may lack its arguments, or its host, while the other ranks' recordings are whole. Their facts
# about messages with that rank are set aside until its kernels are linked; no link may contradict them.

RecordedEnds = Mapping[int, Mapping[int, tuple[str, int, int]]]
"""Rank → its operation → the recorded (kind, source, destination)."""


def half_known(ops: Operations) -> RecordedEnds:
    """Return the messages that name their peer but were not matched, while messages of that peer name none."""
    open_ = {r for r in ops.ranks if (among(ops.per_rank[r].op, (OPEN,)) & (ops.per_rank[r].src < 0)).any()}
    found: dict[int, dict[int, tuple[str, int, int]]] = {}
    for rank in ops.ranks if open_ else ():
        source, where = ops.per_rank[rank], ops.of(rank)
        alone = among(source.op, MESSAGES) & (ops.instance[where] < 0)
        for row in np.flatnonzero(alone).tolist():
            src, dst = int(source.src[row]), int(source.dst[row])
            if (dst if src == rank else src) in open_:
                found.setdefault(rank, {})[row] = (source.op[row], src, dst)
    return found


def set_aside(ranks: Iterable[RankOps], recorded: RecordedEnds) -> list[RankOps]:
    """Return the operations of all ranks without the recorded peers to set aside."""
    return [_with(rank, dict.fromkeys(recorded.get(rank.rank, ()), (OPEN, -1, -1))) for rank in ranks]


def taken_back(ranks: Iterable[RankOps], recorded: RecordedEnds) -> list[RankOps]:
    """Return the operations of all ranks with the peers that were set aside restored where no link was found."""
    found = []
    for rank in ranks:
        left = {row: ends for row, ends in recorded.get(rank.rank, {}).items() if rank.src[row] < 0}
        found.append(_with(rank, left))
    return found


def agreeing(links: Sequence[Link], ops: Operations, recorded: RecordedEnds) -> list[Link]:
    """Return the `links` that do not contradict the peers recorded on either rank."""
    wanted: dict[tuple[int, int], set[int]] = {}
    for rank, rows in recorded.items():
        for row, (_, src, dst) in rows.items():
            key = rank, int(ops.per_rank[rank].kernel[row])
            wanted.setdefault(key, set()).add(dst if src == rank else src)
    kept = []
    for link in links:
        (a, b), (i, j) = link.ranks, link.kernels
        if wanted.get((a, i), {b}) == {b} and wanted.get((b, j), {a}) == {a}:
            kept.append(link)
    return kept


def _with(rank: RankOps, ends: Mapping[int, tuple[str, int, int]]) -> RankOps:
    """Return `rank` with (kind, source, destination) of some operations replaced."""
    if not ends:
        return rank
    op, token, src, dst = list(rank.op), list(rank.token), rank.src.copy(), rank.dst.copy()
    for row, (kind, begin, end) in ends.items():
        op[row], src[row], dst[row] = kind, begin, end
        token[row] = f"{kind if kind == OPEN else 'p2p'}/{token[row].partition('/')[2]}"
    return replace(rank, op=tuple(op), token=tuple(token), src=src, dst=dst)
