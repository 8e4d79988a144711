"""Work on devices: what starts when all before it is done, and ends when all who meet in it have come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf


class Due:
    """Calls that are due, made one after another, so that a long chain of tasks is no deep recursion."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], None]] = deque()
        self.busy = False

    def add(self, calls: list[Callable[[], None]]) -> None:
        """Make these calls, now or when the present one is over."""
        self.calls.extend(calls)
        if self.busy:
            return
        self.busy = True
        while self.calls:
            self.calls.popleft()()
        self.busy = False


DUE = Due()


@dataclass(eq=False)
class Task:
    """Work on one stream of one rank; its times are infinite until they are known."""

    us: float = 0.0
    meetings: list[Meeting] = field(default_factory=list)
    start: float = inf
    end: float = inf
    began_after: float = 0.0
    open: int = 0
    unmet: int = 0
    then: list[Callable[[], None]] = field(default_factory=list)

    def enqueue(self, at: float, before: list[Task | None]) -> None:
        """Put it behind other tasks; it starts if they are done."""
        self.began_after = at
        waits = [task for task in before if task is not None]
        self.open = len(waits) + 1
        self.unmet = len(self.meetings)
        for task in waits:
            task.on_end(lambda task=task: self.freed(task.end))  # type: ignore[misc]
        self.freed(at)

    def freed(self, at: float) -> None:
        """One of the tasks before it is done."""
        self.began_after = max(self.began_after, at)
        self.open -= 1
        if self.open:
            return
        self.start = self.began_after
        if not self.meetings:
            self.finish(self.start + self.us)
        for meeting in self.meetings:
            meeting.arrive(self)

    def met(self) -> None:
        """One of its meetings is over."""
        self.unmet -= 1
        if not self.unmet:
            self.finish(max(meeting.over for meeting in self.meetings))

    def finish(self, at: float) -> None:
        """It is done, unless that never happens."""
        if at == inf:
            return
        self.end = at
        calls, self.then = self.then, []
        DUE.add(calls)

    def on_end(self, call: Callable[[], None]) -> None:
        """Call this when it is done, or now."""
        if self.end < inf:
            call()
        else:
            self.then.append(call)


@dataclass(eq=False)
class Meeting:
    """The k-th call of a group or the k-th message of a pair: over when all have come who must, and agree."""

    size: int
    us: float
    dead: bool = False
    spared: Task | None = None
    """The one task that ends although the link is dead."""
    tasks: list[Task] = field(default_factory=list)
    signatures: list[object] = field(default_factory=list)
    over: float = inf

    def arrive(self, task: Task) -> None:
        """A device has started its part."""
        self.tasks.append(task)
        if len(self.tasks) < self.size or any(s != self.signatures[0] for s in self.signatures):
            return
        self.over = max(some.start for some in self.tasks) + self.us
        if self.dead:
            over, self.over = self.over, inf
            if self.spared is not None:
                self.spared.finish(over)
            return
        for some in self.tasks:
            some.met()
