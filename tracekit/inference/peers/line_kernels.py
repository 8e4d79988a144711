"""The kernels of a rank that carry messages along its pipeline: what each shows, and what was learnt about them."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracekit.inference.peers.directed_messages import ways
from tracekit.inference.peers.known_schedules import Kernel
from tracekit.inference.peers.lost_batches import with_rows
from tracekit.inference.peers.open_messages import OpenKernels, told
from tracekit.matching.clock import Clocks
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import RECEIVES, SENDS, UNDIRECTED
from tracekit.rank_events.operations import RankOps
from tracekit.units import I64


class Says(NamedTuple):
    """What a kernel shows of its messages: (stage of the peer, whether it is sent) of some, the direction of others."""

    ends: tuple[tuple[int, bool], ...]
    ways: tuple[int, ...]  # SENDS, RECEIVES or 0, of those without a peer

    def may_be(self, kernel: Kernel) -> bool:
        """Whether it may carry the messages of `kernel`; a kernel without a record may carry any number."""
        left = Counter((m.peer, m.sent) for m in kernel)
        left.subtract(self.ends)
        if min(left.values(), default=0) < 0 or left.total() < len(self.ways):
            return False
        if self.ways == (0,):
            return True
        sent = sum(n for (_, out), n in left.items() if out)
        fits = self.ways.count(SENDS) <= sent and self.ways.count(RECEIVES) <= left.total() - sent
        return fits and left.total() == len(self.ways)


class LineKernels(NamedTuple):
    """The kernels of a rank that carry messages of its pipeline, in order of end; one entry a kernel."""

    times: OpenKernels
    says: tuple[Says, ...]

    @property
    def silent(self) -> bool:
        """Whether a message of any kernel names no peer."""
        return any(s.ways for s in self.says)


class Learnt(NamedTuple):
    """A message of one rank: its kernel, what it is, its ends, and its number."""

    kernel: int
    op: str
    src: int
    dst: int
    number: int


def line_kernels(source: RankOps, clocks: Clocks, line: Sequence[int]) -> LineKernels | None:
    """Return the message kernels of `source` along the pipeline `line` (ranks by stage); None without any."""
    stage = {rank: at for at, rank in enumerate(line)}
    peer = np.where(source.src == source.rank, source.dst, source.src)
    message = among(source.op, UNDIRECTED)
    mine = message & ((source.src < 0) | np.isin(peer, [r for r in line if r != source.rank]))
    rows = np.flatnonzero(mine)
    if not len(rows):
        return None
    way = ways(source)
    ends: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    open_: dict[int, list[int]] = defaultdict(list)
    for row in rows.tolist():
        number = int(source.kernel[row])
        if source.src[row] < 0:
            open_[number].append(int(way[row]))
        else:
            ends[number].append((stage[int(peer[row])], bool(source.src[row] == source.rank)))
    numbers, first = np.unique(source.kernel[rows], return_index=True)
    times = _times(source, clocks, numbers.astype(np.int64), rows[first])
    says = (Says(tuple(sorted(ends[k])), tuple(sorted(open_[k]))) for k in times.kernel.tolist())
    return LineKernels(times, tuple(says))


def _times(source: RankOps, clocks: Clocks, kernel: I64, rows: I64) -> OpenKernels:
    """Return when the kernels with first operations in `rows` ran; nothing of what they carry."""
    rank = source.rank
    start, end = (clocks.align(rank, t[rows]) for t in (source.start, source.end))
    order = np.lexsort((kernel, end))
    none = np.zeros(len(rows), np.int64)
    return OpenKernels(
        rank, clocks.island[rank], clocks.exact.get(rank, clocks.island[rank]), kernel[order], start[order],
        end[order], source.step[rows][order].astype(np.int64), none, none, none - 1,
    )  # fmt: skip


def with_learnt(rank: RankOps, learnt: Sequence[Learnt]) -> RankOps:
    """Return `rank` with kernels that carry the `learnt` messages; one that was counted as one has a row for each."""
    of: dict[int, list[Learnt]] = defaultdict(list)
    for message in learnt:
        of[message.kernel].append(message)
    many = np.bincount(rank.kernel, minlength=1)[rank.kernel] if len(rank.kernel) else rank.kernel
    alone = (many == 1) & (ways(rank) == 0) & (rank.src < 0)
    times = [len(of[k]) if one and k in of else 1 for k, one in zip(rank.kernel.tolist(), alone, strict=True)]
    own = np.repeat(np.arange(len(times)), times)
    again = with_rows(rank, own, own) if len(own) > len(times) else rank
    rows: dict[int, tuple[str, int, int, int]] = {}
    way = ways(again)
    for row, kernel in enumerate(again.kernel.tolist()):
        fits = [m for m in of.get(kernel, ()) if _is(again, row, int(way[row]), m)]
        if fits:
            of[kernel].remove(fits[0])
            rows[row] = fits[0][1:]
    return told(again, rows)


def _is(rank: RankOps, row: int, way: int, message: Learnt) -> bool:
    """Whether the operation in `row` may be a message, by the ends that it names or its direction."""
    if rank.op[row] not in UNDIRECTED:
        return False
    if rank.src[row] >= 0:
        return (int(rank.src[row]), int(rank.dst[row])) == (message.src, message.dst)
    return way in {0, SENDS if message.src == rank.rank else RECEIVES}
