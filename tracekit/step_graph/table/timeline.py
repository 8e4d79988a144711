"""Simulates steps: an operation starts when those before it have ended, a meeting when its last member starts.

Dependencies are those of Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI'25, section 3.2, and the published analysis beside it). On each rank compute runs in one stream, and sends and
receives of either direction run in four more; where two ranks show one stream for all their messages, these run in its
order. A receive lets its compute start, a send follows its compute. Operations ahead of the first compute hold it back,
and operations after the last one run in order.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from tracekit.step_graph.table.recording import NORM, Operation, Recording, communicates, message_queues
from tracekit.thresholds.slowrank import QUEUED_NS
from tracekit.units import F64, I64, Mask

PHASES = ("forward", "backward")
Edges = list[list[int]]
"""For each operation, the operations that must have ended before it starts."""


@dataclass(frozen=True)
class Timeline:
    """Operations with their dependencies, in topological order of their meetings.

    order: meetings, each the places of its operations. before: by operation what must have ended. work: how long each
    takes once all members are there (transfer for communication, duration for compute), ns, operations × steps.
    communication: by operation whether its type is, also without a counterpart.
    """

    recording: Recording
    order: tuple[tuple[int, ...], ...]
    before: tuple[I64, ...]
    work: F64
    communication: Mask

    def ends(self, work: F64, late: F64 | None = None) -> F64:
        """Return when every operation ends, ns from the begin of its step, if it took `work` (operations × any).

        late: the gap before each operation that waits for no other, ns, of the same shape; no gaps if it is None.
        """
        end = np.zeros_like(work)
        for members in self.order:
            begin = np.zeros(work.shape[1])
            for i in members:
                come = end[self.before[i]].max(axis=0) if len(self.before[i]) else np.zeros(work.shape[1])
                np.maximum(begin, come if late is None else come + late[i], out=begin)
            for i in members:
                np.add(begin, work[i], out=end[i])
        return end

    def step_ns(self, work: F64, late: F64 | None = None) -> F64:
        """Return the time of each step, ns, if operations took `work` after gaps of `late`, as in `ends`."""
        return np.asarray(self.ends(work, late).max(axis=0), np.float64)

    @cached_property
    def late(self) -> F64:
        """Return how long after all its predecessors each operation started, shape as `work`, ns."""
        start, end = self.recording.start, self.recording.end
        ready = [end[b].max(axis=0) if len(b) else np.zeros(start.shape[1]) for b in self.before]
        return np.asarray(np.maximum(start - np.array(ready), 0.0), np.float64)

    @cached_property
    def ideal(self) -> F64:
        """Return the work without stragglers (shape as `work`, ns): means of types for compute, medians for the rest.

        Means and medians are over all ranks and steps (section 3.3 of the paper).
        """
        result = np.empty_like(self.work)
        for name in {o.name for o in self.recording.operations}:
            rows = self.rows(name)
            typical = np.median if self.communication[rows[0]] else np.mean
            result[rows] = typical(self.work[rows])
        return result

    def rows(self, name: str) -> I64:
        """Return the indices of the operations of one name."""
        return np.flatnonzero(np.array([o.name == name for o in self.recording.operations]))


def timeline_of(recording: Recording) -> Timeline | None:
    """Return the timeline of recorded steps; None where dependencies are unknown or contradict each other."""
    before = dependencies(recording)
    if before is None:
        return None
    together = meetings(recording.operations)
    order = _topological(together, before)
    if order is None:
        return None
    work = recording.end - recording.start
    for members in together:
        if len(members) > 1:
            work[members] = recording.end[members] - recording.start[members].max(axis=0)
    communication = np.array([o.meeting is not None or communicates(o.name) for o in recording.operations])
    return Timeline(
        recording, order, tuple(np.array(b, np.int64) for b in before), np.maximum(work, 0.0), communication
    )


def _topological(together: Sequence[Sequence[int]], before: Edges) -> tuple[tuple[int, ...], ...] | None:
    """Return the meetings so that each comes after the ones its members wait for; None if they wait in a circle."""
    home = {i: n for n, members in enumerate(together) for i in members}
    waits = [{home[b] for i in members for b in before[i]} for members in together]
    after: list[list[int]] = [[] for _ in together]
    for n, earlier in enumerate(waits):
        for m in earlier:
            after[m].append(n)
    left = [len(w) for w in waits]
    ready = deque(n for n, count in enumerate(left) if count == 0)
    order = []
    while ready:
        n = ready.popleft()
        order.append(tuple(together[n]))
        for m in after[n]:
            left[m] -= 1
            if left[m] == 0:
                ready.append(m)
    return tuple(order) if len(order) == len(together) else None


def dependencies(recording: Recording) -> Edges | None:
    """Return the operations that each operation waits for on its own rank; None if messages do not pair with computes.

    That is so if a stage holds several model chunks, the first one receives nothing, and the table has no chunks
    (`mc`).
    """
    before: Edges = [[] for _ in recording.operations]
    by_rank: dict[int, list[int]] = defaultdict(list)
    for i, operation in enumerate(recording.operations):
        by_rank[operation.rank].append(i)
    for mine in by_rank.values():
        if not _link_rank(recording, mine, before):
            return None
    for queue in message_queues(recording):
        for i in queue:  # a receive may be posted earlier
            before[i] = [b for b in before[i] if (recording.end[b] <= recording.start[i] + QUEUED_NS).all()]
        _chain(queue, before)
    return before


def meetings(operations: Sequence[Operation]) -> list[list[int]]:
    """Return sets of operations that end only when all of a set have started; an unmatched one is a set of its own.

    The gradient norm is a sum over all ranks, although tables record it like compute.
    """
    found: dict[object, list[int]] = defaultdict(list)
    for i, operation in enumerate(operations):
        key: object = operation.meeting if operation.meeting is not None else (i, "alone")
        found[(NORM, operation.ordinal) if operation.name == NORM else key].append(i)
    return list(found.values())


def _link_rank(recording: Recording, mine: list[int], before: Edges) -> bool:
    """Add the dependencies among the operations of one rank; false where they do not fit."""
    named: dict[str, list[int]] = defaultdict(list)
    for i in mine:  # in order of start
        named[recording.operations[i].name].append(i)
    compute = [i for i in mine if recording.operations[i].name in _COMPUTE]
    if not compute:
        return False
    _chain(compute, before)
    for phase in PHASES:
        work = named[f"{phase}-compute"]
        for end in ("recv", "send"):
            messages = named[f"{phase}-{end}"]
            served = _served(recording, work, messages)
            if served is None:
                return False
            _chain(messages, before)
            _link_messages(work, served, messages, before, receives=end == "recv")
    _hold_first_backward(recording, compute, named, before)
    _link_rest(recording, mine, compute, before)
    return True


_COLLECTION = "gc"
_COMPUTE = tuple(f"{phase}-compute" for phase in PHASES)
_MESSAGES = tuple(f"{phase}-{end}" for phase in PHASES for end in ("recv", "send"))


def _chain(row: Sequence[int], before: Edges) -> None:
    for earlier, later in pairwise(row):
        before[later].append(earlier)


def _served(recording: Recording, work: Sequence[int], messages: Sequence[int]) -> list[int] | None:
    """Return by message the place in `work` of its computation; None if neither table nor counts show it."""
    at = {recording.operations[i].serves: k for k, i in enumerate(work)}
    served = [recording.operations[i].serves for i in messages]
    if all(t >= 0 and t in at for t in served):
        return [at[t] for t in served]
    return list(range(len(work))) if len(messages) == len(work) else None


def _link_messages(
    work: Sequence[int], served: Sequence[int], messages: Sequence[int], before: Edges, *, receives: bool
) -> None:
    """Let each message precede or follow the compute it serves; a receive is posted after the compute before that."""
    for k, message in zip(served, messages, strict=True):
        if not receives:
            before[message].append(work[k])
            continue
        before[work[k]].append(message)
        if k:
            before[message].append(work[k - 1])


def _hold_first_backward(
    recording: Recording, compute: Sequence[int], named: dict[str, list[int]], before: Edges
) -> None:
    """Post the first backward message no earlier than the end of the warm-up: one compute before the last forward."""
    first = next((k for k, i in enumerate(compute) if recording.operations[i].name == _COMPUTE[1]), 0)
    held = compute[first - 2] if first >= len(PHASES) else None
    for end in ("recv", "send"):
        messages = named[f"backward-{end}"]
        if held is not None and messages:
            before[messages[0]].append(held)


def _link_rest(recording: Recording, mine: Sequence[int], compute: Sequence[int], before: Edges) -> None:
    """Order operations that are neither compute nor message: before the first compute, beside, and after the last."""
    rest = [i for i in mine if recording.operations[i].name not in (*_COMPUTE, *_MESSAGES)]
    of_chunks = [i for i in rest if recording.operations[i].serves >= 0]
    summed = _link_chunks(recording, of_chunks, compute, before)
    rest = [i for i in rest if i not in of_chunks]
    start, end = recording.start[:, 0], recording.end[:, 0]
    ahead = [i for i in rest if start[i] < start[compute[0]]]
    behind = [i for i in rest if i not in ahead and start[i] >= start[compute[-1]]]
    beside = [i for i in rest if i not in ahead and i not in behind]
    _chain(ahead, before)
    _chain([*beside, *behind], before)
    before[compute[0]].extend(ahead[-1:])
    for i in beside:
        before[i].extend([c for c in compute if end[c] <= start[i]][-1:])
    if behind:
        before[behind[0]].append(compute[-1])
        before[next((i for i in behind if recording.operations[i].name != _COLLECTION), behind[0])] += summed


def _link_chunks(
    recording: Recording, mine: Sequence[int], compute: Sequence[int], before: Edges
) -> list[int]:
    """Order the gathers and sums of model chunks: a forward waits for its gather, a sum follows its backward.

    Returns the last sum, if any.
    """
    _chain(mine, before)
    home = {recording.operations[i].serves: i for i in compute}
    first = {i: recording.start[i, 0] for i in mine}
    summed = []
    for i in mine:
        served = home.get(recording.operations[i].serves)
        if served is None:
            continue
        if recording.operations[served].name == _COMPUTE[0]:
            before[served].append(i)
        else:
            before[i].append(served)
            summed.append(i)
    return sorted(summed, key=lambda i: first[i])[-1:]
