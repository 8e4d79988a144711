"""The kernels of a rank that carry messages along its pipeline: what each shows, and what was learnt about them."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from tracekit.inference.peers.directed_messages import ways
from tracekit.inference.peers.lost_arguments import with_rows
from tracekit.inference.peers.open_messages import OpenKernels, with_messages
from tracekit.matching.clock import Clocks
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import RECEIVES, SENDS, UNDIRECTED
from tracekit.rank_events.rank_ops import RankOps
from tracekit.units import I64

# The messages that pipeline stages exchange in a step, kernel by kernel, under the schedules in common use.
#
# 1F1B (Narayanan et al., SOSP 2019), interleaved 1F1B (Narayanan et al., SC 2021) and GPipe (Huang et al.,
# NeurIPS 2019). A stage receives what a task needs before it, and sends its result behind it. Frameworks put
# each message into a kernel of its own, batch the two of a change between forward and backward, or batch all
# between two tasks. Of two messages alone, both ends of a change must take the same one first, or block each other:
# in DeepSpeed that is the gradient.

Grouping = Literal["alone", "alone, receives first", "alone, gradients first", "of a change", "between tasks"]
GROUPINGS: Final[tuple[Grouping, ...]] = (
    "alone",
    "alone, receives first",
    "alone, gradients first",
    "of a change",
    "between tasks",
)
CHUNKS: Final = (2, 3, 4)
"""Model chunks a stage, where stages are interleaved."""


class Message(NamedTuple):
    """A message as one of its two stages sees it."""

    peer: int  # the other stage
    sent: bool


Kernel = tuple[Message, ...]
"""What one kernel carries."""


class _Task(NamedTuple):
    """Forward or backward of one micro-batch through one chunk."""

    forward: bool
    chunk: int


def schedules(counts: tuple[int, ...]) -> Iterator[list[list[Kernel]]]:
    """Yield the kernels of each stage under each schedule in which the stages run `counts` kernels."""
    for chunks in (1, *CHUNKS):
        for micro_batches in range(1, counts[0] // chunks + 2):
            for gpipe in (False, True) if chunks == 1 else (False,):
                for grouping in GROUPINGS if chunks == 1 or micro_batches % len(counts) == 0 else ():
                    found = _scheduled(counts, micro_batches, chunks, grouping, gpipe=gpipe)
                    if found is not None:
                        yield found


def _scheduled(
    counts: tuple[int, ...], micro_batches: int, chunks: int, grouping: Grouping, *, gpipe: bool
) -> list[list[Kernel]] | None:
    """Return the kernels of each stage; None if one stage runs another number of them than `counts`."""
    found: list[list[Kernel]] = []
    for stage, count in enumerate(counts):
        tasks = _tasks(stage, len(counts), micro_batches, chunks, gpipe=gpipe)
        kernels = _kernels(tasks, stage, len(counts), chunks, grouping)
        if len(kernels) != count:
            return None
        found.append(kernels)
    return found


def _tasks(stage: int, stages: int, micro_batches: int, chunks: int, *, gpipe: bool) -> list[_Task]:
    """The tasks of a stage in order."""
    total, behind = micro_batches * chunks, stages - 1 - stage
    warm = behind if chunks == 1 else 2 * behind + (chunks - 1) * stages
    ahead = total if gpipe else min(total, warm)
    order = [(n % (stages * chunks)) // stages if chunks > 1 else 0 for n in range(total)]
    forth = [_Task(True, c) for c in order]
    back = [_Task(False, chunks - 1 - c) for c in order]
    steady = [t for pair in zip(forth[ahead:], back[: total - ahead], strict=True) for t in pair]
    return [*forth[:ahead], *steady, *back[total - ahead :]]


def _kernels(tasks: list[_Task], stage: int, stages: int, chunks: int, grouping: Grouping) -> list[Kernel]:
    """Return the kernels of a stage: the messages between two of its `tasks`, by `grouping`."""
    ends = [_messages(t, stage, stages, chunks) for t in tasks]
    found: list[Kernel] = []
    for at in range(len(tasks) + 1):
        sent = ends[at - 1][1] if at else None
        received = ends[at][0] if at < len(tasks) else None
        here = [m for m in (sent, received) if m is not None]
        changes = 0 < at < len(tasks) and tasks[at - 1].forward != tasks[at].forward
        if grouping == "between tasks" or (grouping == "of a change" and changes):
            found += [tuple(here)] if here else []
        else:
            to_gradients = changes and tasks[at - 1].forward
            received_first = grouping == "alone, receives first" or (
                grouping == "alone, gradients first" and to_gradients
            )
            found += [(m,) for m in (here[::-1] if received_first else here)]
    return found


def _messages(task: _Task, stage: int, stages: int, chunks: int) -> tuple[Message | None, Message | None]:
    """Return the message that a stage receives before a task, and the one that it sends after it."""
    first = stage == 0 and task.chunk == 0
    last = stage == stages - 1 and task.chunk == chunks - 1
    before, behind = (stage - 1) % stages, (stage + 1) % stages
    if task.forward:
        return (None if first else Message(before, False)), (None if last else Message(behind, True))
    return (None if last else Message(behind, False)), (None if first else Message(before, True))


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
    return with_messages(again, rows)


def _is(rank: RankOps, row: int, way: int, message: Learnt) -> bool:
    """Whether the operation in `row` may be a message, by the ends that it names or its direction."""
    if rank.op[row] not in UNDIRECTED:
        return False
    if rank.src[row] >= 0:
        return (int(rank.src[row]), int(rank.dst[row])) == (message.src, message.dst)
    return way in {0, SENDS if message.src == rank.rank else RECEIVES}
