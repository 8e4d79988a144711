"""The kernels of a rank that carry messages along its pipeline: what each shows, and what was learnt about them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from tracekit.inference.peers.directed_messages import ways
from tracekit.inference.peers.lost_arguments import with_rows
from tracekit.inference.peers.open_messages import OpenKernels, with_messages
from tracekit.matching.clock import Clocks
from tracekit.matching.match import Operations
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import RECEIVES, SENDS, UNDIRECTED
from tracekit.rank_events.rank_ops import RankOps
from tracekit.units import I64

# The messages that pipeline stages exchange in a step, kernel by kernel, under the schedules in common use.
#
# 1F1B (Narayanan et al., SOSP 2019), interleaved 1F1B (Narayanan et al., SC 2021) and GPipe (Huang et al.,
# NeurIPS 2019), looped where a stage has several chunks (Lamy-Poirier, MLSys 2023). A stage receives what a task needs
# before it, and sends its result behind it. Frameworks put each message into a kernel of its own, batch the two of a
# change between forward and backward, or batch all between two tasks. Of two messages alone, both ends of a change must
# take the same one first, or block each other: in DeepSpeed that is the gradient. torch.distributed.pipelining posts
# a receive where its sender sends, in one common order of all stages.

Grouping = Literal[
    "alone",
    "alone, receives first",
    "alone, gradients first",
    "of a change",
    "between tasks",
    "posted",
    "posted, between tasks",
]
GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)
_ALONE: Final = {"alone", "alone, receives first", "alone, gradients first", "posted"}
CHUNKS: Final = (2, 3, 4)
"""Model chunks a stage, where stages are interleaved."""


class Message(NamedTuple):
    """A message as one of its two stages sees it."""

    peer: int  # the other stage
    sent: bool


class Kernel(NamedTuple):
    """What one kernel carries, and how many tasks its stage has done before it in the step."""

    messages: tuple[Message, ...]
    done: int


class _Task(NamedTuple):
    """Forward or backward of one micro-batch through one chunk."""

    forward: bool
    chunk: int


def schedules(counts: Sequence[Collection[int]]) -> Iterator[list[list[Kernel]]]:
    """Yield the kernels of each stage under each schedule with one of the stage's `counts` of kernels."""
    stages = len(counts)
    for chunks in (1, *CHUNKS):
        for micro_batches in range(1, max(counts[0]) // chunks + 2):
            sends = [micro_batches * (2 * chunks - (s == 0) - (s == stages - 1)) for s in range(stages)]
            # each send has a kernel of its own, with none, some or all of the receives, which are as many
            able = all(any(n <= c <= 2 * n for c in of) for n, of in zip(sends, counts, strict=True))
            alone = all(2 * n in of for n, of in zip(sends, counts, strict=True))
            for gpipe in (False, True) if able else ():
                if gpipe or chunks == 1 or micro_batches % stages == 0:
                    tasks = [_tasks(s, stages, micro_batches, chunks, gpipe=gpipe) for s in range(stages)]
                    every = (_grouped(tasks, chunks, g) for g in GROUPINGS if alone or g not in _ALONE)
                    yield from (found for found in every if _fits(found, counts))


def _fits(kernels: list[list[Kernel]], counts: Sequence[Collection[int]]) -> bool:
    """Whether each stage has one of its `counts` of kernels."""
    return all(len(mine) in of for mine, of in zip(kernels, counts, strict=True))


def _grouped(tasks: list[list[_Task]], chunks: int, grouping: Grouping) -> list[list[Kernel]]:
    """Return the kernels of each stage, by `grouping`."""
    if grouping in {"posted", "posted, between tasks"}:
        return _posted(tasks, chunks, together=grouping != "posted")
    return [_kernels(mine, stage, len(tasks), chunks, grouping) for stage, mine in enumerate(tasks)]


def _tasks(stage: int, stages: int, micro_batches: int, chunks: int, *, gpipe: bool) -> list[_Task]:
    """The tasks of a stage in order."""
    total, behind = micro_batches * chunks, stages - 1 - stage
    warm = behind if chunks == 1 else 2 * behind + (chunks - 1) * stages
    ahead = total if gpipe else min(total, warm)
    turn = total if gpipe else stages * chunks
    order = [(n % turn) // (turn // chunks) for n in range(total)]
    forth = [_Task(True, c) for c in order]
    back = [_Task(False, chunks - 1 - c) for c in order]
    steady = [t for pair in zip(forth[ahead:], back[: total - ahead], strict=True) for t in pair]
    return [*forth[:ahead], *steady, *back[total - ahead :]]


def _posted(tasks: list[list[_Task]], chunks: int, *, together: bool) -> list[list[Kernel]]:
    """Return the kernels of each stage where each send posts its receive at the peer, in turns of one task a stage.

    A stage has its receives where the sender's turn puts them; with `together` all between two tasks are one kernel.
    Ends early where the stages would block each other.
    """
    stages, at = len(tasks), [0] * len(tasks)
    inputs: Counter[tuple[int, bool, int]] = Counter()
    posts: list[list[tuple[int, Message]]] = [[] for _ in tasks]
    waits = True
    while waits:
        waits = False
        for stage in (s for s in range(stages) if at[s] < len(tasks[s])):
            task = tasks[stage][at[stage]]
            received, sent = _messages(task, stage, stages, chunks)
            if received is not None and not inputs[stage, *task]:
                continue
            inputs[stage, *task] -= received is not None
            at[stage], waits = at[stage] + 1, True
            if sent is not None:
                posts[stage].append((at[stage], sent))
                posts[sent.peer].append((at[sent.peer], Message(stage, False)))
                turns = (1 if task.forward else -1) * (stage == (stages - 1 if task.forward else 0))
                inputs[sent.peer, task.forward, task.chunk + turns] += 1
    return [_between(mine) if together else [Kernel((m,), done) for done, m in mine] for mine in posts]


def _between(posts: list[tuple[int, Message]]) -> list[Kernel]:
    """Return one kernel for all messages between two tasks."""
    groups = groupby(posts, key=lambda post: post[0])
    return [Kernel(tuple(message for _, message in several), done) for done, several in groups]


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
            found += [Kernel(tuple(here), at)] if here else []
        else:
            to_gradients = changes and tasks[at - 1].forward
            received_first = grouping == "alone, receives first" or (
                grouping == "alone, gradients first" and to_gradients
            )
            found += [Kernel((m,), at) for m in (here[::-1] if received_first else here)]
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
        left = Counter((m.peer, m.sent) for m in kernel.messages)
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
    worked: I64  # the rank's own time when each started, ns

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


def line_kernels(ops: Operations, rank: int, clocks: Clocks, line: Sequence[int]) -> list[LineKernels]:
    """Return the message kernels of `rank` along the pipeline `line`: all, and those of each stream.

    `line` holds the ranks by stage. Empty without any. An all-to-all without arguments looks like a message, but is on
    another stream.
    """
    source = ops.per_rank[rank]
    peer = np.where(source.src == rank, source.dst, source.src)
    message = among(source.op, UNDIRECTED)
    mine = message & ((source.src < 0) | np.isin(peer, [r for r in line if r != rank]))
    rows = np.flatnonzero(mine)
    stream = np.zeros(len(rows)) if source.stream is None else source.stream[rows]
    streams = np.unique(stream[(ways(source)[rows] == 0) & (source.src[rows] < 0)])
    parts = [rows[stream == number] for number in streams] if len(np.unique(stream)) > 1 else []
    worked = ops.at_start[ops.of(rank)]
    return [_line_kernels(source, worked, clocks, line, part) for part in (rows, *parts) if len(part)]


def _line_kernels(
    source: RankOps, worked: I64, clocks: Clocks, line: Sequence[int], rows: I64
) -> LineKernels:
    """Return the kernels of the messages `rows`."""
    stage = {rank: at for at, rank in enumerate(line)}
    peer = np.where(source.src == source.rank, source.dst, source.src)
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
    own = worked[rows[first]][np.searchsorted(numbers, times.kernel)]
    return LineKernels(times, tuple(says), np.asarray(own, np.int64))


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
