"""Kernels of messages that lost all arguments, restored from other steps: one kernel may carry several messages.

A kernel without a record counts as one operation. If it is a batch, its step has fewer operations than others, so its
places can be compared only by kernels.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tracekit.inference.peers.step_places import places
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import UNDIRECTED
from tracekit.rank_events.operations import RankOps
from tracekit.units import I64

_Scalar = TypeVar("_Scalar", bound=np.generic)


def with_lost_batches(rank: RankOps) -> RankOps:
    """Return `rank` with the messages of kernels without a record copied from their position in other steps."""
    if rank.stream is None or rank.way is None or not len(rank.op):
        return rank
    mute = _mute(rank, rank.way)
    lanes = _lanes(rank, rank.stream, mute)
    like = {kernel: told for lane in lanes for kernel, told in _told(rank, lane, mute)}
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


def _told(rank: RankOps, lane: I64, mute: npt.NDArray[np.bool_]) -> Iterator[tuple[int, list[int]]]:
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
        waited=_at(rank.waited, own), held=_at(rank.held, own), found=_at(rank.found, own),
        message=_at(rank.message, own), seq=np.where(source == own, rank.seq[own], -1),
        op=tuple(rank.op[i] for i in source), token=tuple(rank.token[i] for i in source),
        group=rank.group[source], src=rank.src[source], dst=rank.dst[source], nelems=rank.nelems[source],
        way=_at(rank.way, source), told_size=_at(rank.told_size, source), taken=_at(rank.taken, source),
        place=_at(rank.place, source), own=_at(rank.own, source), grid=_at(rank.grid, source),
        hint=_at(rank.hint, source), inferred=_at(rank.inferred, source),
    )  # fmt: skip


def _at(values: npt.NDArray[_Scalar] | None, rows: I64) -> npt.NDArray[_Scalar] | None:
    """Return the `values` of `rows`; None if the trace has none."""
    return None if values is None else values[rows]
