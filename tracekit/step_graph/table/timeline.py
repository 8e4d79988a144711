"""Simulates steps: an operation starts when those before it have ended, a meeting when its last member starts."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracekit.step_graph.table.dependencies import Edges, dependencies, meetings
from tracekit.step_graph.table.recording import F64, I64, Recording, communicates


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
    communication: npt.NDArray[np.bool_]

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
