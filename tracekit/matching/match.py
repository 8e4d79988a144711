"""Matches the operations of different ranks that are one communication: an instance.

Collectives match by group and `Seq` where all members carry it, else by ordinal, in order of issue, within the profiler
step, else by ordinal after aligning ragged capture windows. Point-to-point operations match by source, destination and
order; if their ends were inferred (`inference.peers.neighbours`), by the number that the inference gave both ends.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from tracekit.arrays import compact, numbered_rows
from tracekit.errors import TracekitError
from tracekit.matching.channels import NO_SEQ, Channel, channels_of, groups_with_one_counter
from tracekit.matching.message_order import UNKNOWN_SIZE, by_issue, by_size, instance_keys, whole_tokens
from tracekit.rank_events.coded_words import Codes, Column, joined, numbered
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.rank_events.own_time import Progress, own_progress
from tracekit.rank_events.rank_ops import RankOps
from tracekit.schema import Group
from tracekit.units import F64, I64, Mask

_Refusal = TypeVar("_Refusal", bound=TracekitError)


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
    at_ready: npt.NDArray[np.float64]  # own time from which it could start; NaN where unknown
    exposed: I64  # ns for which compute waited for it
    instance: I64  # -1: unmatched
    channel: I64  # -1: none
    kinds: tuple[list[str], Codes]  # the distinct canonical names, sorted; the index of each operation's
    messages: tuple[list[str], Codes]  # the same of its token: name, dtype and elements
    kernel: I64  # number of the kernel over all ranks: messages of one batch share theirs
    channels: tuple[Channel, ...]
    unmatched: int  # operations of known channels that no other rank has
    mismatched: int  # operations dropped because the members disagree about what they are

    @cached_property
    def op(self) -> Column:
        """Return the canonical name of each operation."""
        return Column(*self.kinds)

    @cached_property
    def token(self) -> Column:
        """Return the token of each operation, as `RankOps`."""
        return Column(*self.messages)

    @cached_property
    def p2p(self) -> Mask:
        """Whether each channel carries messages; the last entry, false, is of operations without a channel."""
        return np.array([*(c.p2p for c in self.channels), False])

    @cached_property
    def calls(self) -> tuple[list[str], Codes]:
        """Return what peers must have in common: the distinct "all_reduce of 4", sorted, and each operation's index.

        The direction of a message does not count: for batches it may be known on one rank and not on its peer.
        """
        words, code = self.kinds
        p2p = self.p2p[self.channel]
        members = np.array([*(len(c.members) for c in self.channels), 0])[self.channel]
        kind = np.where(p2p, len(words), code)
        first, number = numbered_rows(kind, members)
        named = zip(kind[first].tolist(), members[first].tolist(), strict=True)
        calls, place = numbered(f"{[*words, 'message'][k]} of {n}" for k, n in named)
        return calls, place[number]

    def among(self, wanted: Collection[str]) -> Mask:
        """Whether each operation is one of the `wanted`."""
        return self.op.among(wanted)

    def by_rank(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return for each operation the entry of its rank in `values`, which has one for each of `ranks`."""
        return np.repeat(values, [len(self.per_rank[r].start) for r in self.ranks])

    def of(self, rank: int) -> slice:
        """Return the slice of the operations of `rank`; KeyError where the run has no such rank."""
        begin = self.first[rank]
        return slice(begin, begin + len(self.per_rank[rank].start))


def match(ranks: Sequence[RankOps], groups: Sequence[Group]) -> Operations:
    """Return the operations of all ranks, joined into instances; `groups` are the process groups of the run."""
    ordered = sorted(ranks, key=lambda r: r.rank)
    return _joined(ordered, groups, [own_progress(r) for r in ordered], pipelined=False)


def rematch(ops: Operations, ranks: Sequence[RankOps], groups: Sequence[Group]) -> Operations:
    """Return `ops` matched again with the updated operations of `ranks`; their times are those of `ops`.

    A rank may have more operations than before, where a kernel turned out to carry several messages. The job is known
    to be a pipeline, so no kernel that may carry a message counts as a collective.
    """
    ordered = sorted(ranks, key=lambda r: r.rank)
    known = {r.rank: ops.progress[r.rank] for r in ordered if len(r.start) == len(ops.per_rank[r.rank].start)}
    progress = [known.get(r.rank) or own_progress(r) for r in ordered]
    return _joined(ordered, groups, progress, pipelined=True)


def with_concealed(ops: Operations, concealed: I64) -> Operations:
    """Return `ops` if ranks worked beside each operation for the time `concealed` from its begin on, ns."""
    own = _own_times([own_progress(ops.per_rank[r], concealed[ops.of(r)]) for r in ops.ranks])
    return replace(ops, **own._asdict())


class _OwnTimes(NamedTuple):
    """The progress of ranks, by rank, as views of columns over all of them."""

    progress: dict[int, Progress]
    at_start: I64
    at_end: I64
    at_ready: F64
    exposed: I64


def _own_times(ranks: Sequence[Progress]) -> _OwnTimes:
    """Return the progress of `ranks` with its columns, which hold the only copy."""
    at_start, at_end = _cat(p.at_start for p in ranks), _cat(p.at_end for p in ranks)
    at_ready = compact(np.concatenate([np.zeros(0), *(p.at_ready for p in ranks)]))
    exposed = _cat(p.exposed_ns for p in ranks)
    until = np.cumsum([len(p.at_start) for p in ranks], dtype=np.int64).tolist()
    views = {}
    for p, end in zip(ranks, until, strict=True):
        mine = slice(end - len(p.at_start), end)
        views[p.rank] = replace(
            p, at_start=at_start[mine], at_end=at_end[mine], at_ready=at_ready[mine], exposed_ns=exposed[mine]
        )
    return _OwnTimes(views, at_start, at_end, at_ready, exposed)


def _joined(
    ordered: Sequence[RankOps], groups: Sequence[Group], progress: Sequence[Progress], *, pipelined: bool
) -> Operations:
    """Return the operations of `ordered` ranks, joined into instances; `progress` is by rank as well."""
    own = _own_times(progress)
    counts = [len(r.start) for r in ordered]
    begins = np.concatenate([[0], np.cumsum(counts)]).tolist()
    first = dict(zip((r.rank for r in ordered), begins, strict=False))
    rank = np.repeat(np.array([r.rank for r in ordered], np.int32), counts)
    start, end = _cat(r.start for r in ordered), _cat(r.end for r in ordered)
    per_rank = {}
    for r, a, b in zip(ordered, begins[:-1], begins[1:], strict=True):
        per_rank[r.rank] = replace(r, start=start[a:b], end=end[a:b])  # views
        if own.progress[r.rank].resumed is r.end:
            own.progress[r.rank] = replace(own.progress[r.rank], resumed=end[a:b])
    step, seq = _cat(r.step for r in ordered).astype(np.int32), _cat(r.seq for r in ordered)
    channel, channels = channels_of(ordered, groups, pipelined=pipelined)
    messages = whole_tokens(ordered, np.array([*(len(c.members) for c in channels), 0])[channel])
    seq[np.isin(_cat(r.group for r in ordered), groups_with_one_counter(ordered))] = NO_SEQ
    issued = _cat(r.issued for r in ordered)
    message = _cat(np.full(len(r.start), -1) if r.message is None else r.message for r in ordered)
    stream = _cat(np.full(len(r.start), -1) if r.stream is None else r.stream for r in ordered)
    instance, mismatched = _instances(
        channel, channels, rank, step, seq, end, messages, issued, stream, message
    )
    lonely = (channel >= 0) & (instance < 0)
    return Operations(
        tuple(r.rank for r in ordered), per_rank,
        own.progress, first, rank, start, end, step, own.at_start, own.at_end, own.at_ready, own.exposed,
        instance, channel, joined([r.op for r in ordered]), messages, _kernels(ordered), channels,
        int(lonely.sum()) - mismatched, mismatched,
    )  # fmt: skip


def _cat(parts: Iterable[npt.NDArray[Any]]) -> I64:
    arrays = list(parts)
    return np.asarray(np.concatenate(arrays) if arrays else np.zeros(0, np.int64), np.int64)


def _kernels(ranks: Sequence[RankOps]) -> I64:
    """Return the number of each operation's kernel, counted over all ranks."""
    counts = [int(r.kernel.max(initial=-1)) + 1 for r in ranks]
    begins = np.concatenate([[0], np.cumsum(counts)])
    return _cat(r.kernel + begin for r, begin in zip(ranks, begins.tolist(), strict=False))


def _instances(
    channel: I64, channels: Sequence[Channel], rank: npt.NDArray[np.int32], step: npt.NDArray[np.int32],
    seq: I64, end: I64, messages: tuple[list[str], Codes], issued: I64, stream: I64, message: I64,
) -> tuple[I64, int]:  # fmt: skip
    """Return (instance of every operation, number of operations dropped because members disagree about the kind).

    Instances are numbered by channel, then in order within the channel; -1 is an operation without a partner.
    """
    kinds = _Kinds(*messages)
    instance = np.full(len(channel), -1, np.int64)
    following, mismatched = 0, 0
    order = np.argsort(channel, kind="stable")
    bounds = np.searchsorted(channel[order], np.arange(len(channels) + 1))
    for c, known in enumerate(channels):
        rows = order[bounds[c] : bounds[c + 1]]
        sides = _split(rows, rank[rows], known.members)
        if known.p2p:  # messages match in the order in which hosts issued them, on whatever stream they ran
            sides = [s[np.argsort(issued[s], kind="stable")] for s in sides]
        else:
            sides = [by_issue(s, issued, stream) for s in sides]
        present = [s for s in sides if len(s)]
        if len(present) < 2:
            continue
        if known.inferred:
            keys = [message[s] for s in present]
        else:
            keys = instance_keys(present, known.p2p, step, seq, end, messages)
            keys = by_size(present, keys, step, messages, end) if known.p2p else keys
        all_rows = np.concatenate(present)
        _, first, place, counts = np.unique(
            np.concatenate(keys), return_index=True, return_inverse=True, return_counts=True
        )
        agreed = kinds.agreed(all_rows, first, place, whole=known.p2p)
        mismatched += int((counts[place] >= 2)[~agreed[place]].sum())
        good = (counts >= 2) & agreed
        number = np.full(len(counts), -1, np.int64)
        number[good] = following + np.arange(int(good.sum()))
        following += int(good.sum())
        instance[all_rows] = number[place]
    return instance, mismatched


class _Kinds:
    """What members of an instance must have in common, as numbers; from the distinct tokens and those of operations.

    Element counts of collectives may differ (all_to_all, uneven shards); those of messages must agree where known.
    """

    def __init__(self, words: Sequence[str], token: Codes) -> None:
        self._token = token
        self._unsized = np.array([word.endswith(UNKNOWN_SIZE) for word in words], bool)
        self._bare = numbered(word.partition("/")[0] for word in words)[1]

    def agreed(self, rows: I64, first: I64, place: I64, *, whole: bool) -> Mask:
        """Whether all operations of each instance are of one kind; messages (`whole`) by size where all have one.

        `place` is the instance of each operation in `rows`, `first` the place of each instance's first one there.
        """
        token = self._token[rows]
        kind = token if whole and not self._unsized[token].any() else self._bare[token]
        return np.asarray(np.bincount(place[kind != kind[first[place]]], minlength=len(first)) == 0, bool)


def _split(rows: I64, rank: npt.NDArray[np.int32], members: Sequence[int]) -> list[I64]:
    """Return the `rows` of each member; `rank` is by row, ascending."""
    first, last = np.searchsorted(rank, members), np.searchsorted(rank, members, side="right")
    return [rows[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)]


# The two ends of every message: the one place where sends and receives are paired.


def members_of_kernel(ops: Operations) -> I64:
    """Return for each operation the number of operations of its kernel."""
    counts = np.bincount(ops.kernel, minlength=1)
    return np.asarray(counts[ops.kernel], np.int64)


def found_done(ops: Operations) -> npt.NDArray[np.bool_]:
    """Whether the host found each operation done when it looked, so that its end is not when it was done."""
    parts = [r.found if r.found is not None else np.zeros(len(r.start), bool) for r in ops.per_rank.values()]
    return np.concatenate([np.zeros(0, bool), *parts])


def message_ends(ops: Operations) -> tuple[I64, I64]:
    """Return (sends, receives): rows of `ops` of both ends of each matched message, in order of instance."""
    rows = np.flatnonzero((ops.instance >= 0) & ops.among(MESSAGES))
    rows = rows[np.lexsort((ops.kinds[1][rows], ops.instance[rows]))]  # "recv" sorts before "send"
    first = np.flatnonzero(ops.instance[rows[:-1]] == ops.instance[rows[1:]])
    return rows[first + 1], rows[first]


def no_communication(ops: Operations, fails: type[_Refusal]) -> _Refusal:
    """Return the error of traces without communication: what they lack, and how it is recorded."""
    if not any(rank.on_gpu for rank in ops.per_rank.values()):
        return fails(
            "the traces hold only CPU events and no communication operation, so ranks cannot be compared; give "
            "the profiler activities=[CPU, CUDA], and record whole training steps"
        )
    return fails(
        "no communication operation in any trace, so ranks cannot be compared; record whole training steps, because "
        "evaluation, data loading and the time before the first step hold none (breakdown and diff need none)"
    )
