"""Replays a step model rank after rank, where the order of events depends on times and has no levels.

Each rank proceeds until it needs an operation that another rank has not posted; the last post lets it continue.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracekit.step_graph.rank_timeline import MARK, POST, RankTimeline
from tracekit.units import I64


@dataclass
class InTurn:
    """One pass through one run of steps, in turn: how far each rank has come, what has been posted; times ns."""

    timelines: Sequence[RankTimeline]
    clock: list[float]  # by timeline: wall time it has reached
    gaps: Sequence[list[float]]  # by timeline: own time before each of its events; the tail comes last
    transfer: list[float]  # by instance
    instance: list[int]  # this and the following as in StepModel
    fixed: list[float]
    before: list[int]
    later: list[float]
    causes: dict[int, list[int]]  # by instance: instances of other channels that must end before it starts
    delays: Sequence[dict[int, tuple[float, float, float]]]  # by timeline and event: of `delays_of`
    host_clock: list[float]  # by timeline: when its host began, and how long it stood since
    kinds: list[list[int]] = field(init=False)  # by timeline: of each of its events
    events: list[list[int]] = field(init=False)  # by timeline: their operations
    place: list[int] = field(init=False)  # by timeline: its next event
    expected: dict[int, int] = field(init=False)  # by instance: posts until it starts
    posted: dict[int, int] = field(default_factory=dict)  # by instance: posts so far
    latest: dict[int, float] = field(default_factory=dict)  # by instance: when it could start
    alone: dict[int, float] = field(default_factory=dict)  # by unmatched operation: when it ends
    started: set[int] = field(default_factory=set)  # instances
    held: set[int] = field(default_factory=set)  # instances that are posted, and wait for another one
    waiting: dict[int, list[int]] = field(default_factory=dict)  # by instance: timelines that need it
    ready: list[int] = field(init=False)  # timelines that can go on
    following: dict[int, list[int]] = field(default_factory=dict)  # by instance: posted ones that await it
    stood: dict[int, float] = field(default_factory=dict)  # by operation: how long its rank waited for it
    marks: list[list[float]] = field(init=False)  # by timeline: when it came to each of its marks

    def __post_init__(self) -> None:
        """Put every rank before its first event."""
        self.place = [0] * len(self.timelines)
        self.ready = list(range(len(self.timelines)))
        self.marks = [[] for _ in self.timelines]
        self.kinds = [line.kinds.tolist() for line in self.timelines]
        self.events = [line.events.tolist() for line in self.timelines]
        self.expected = {}
        for kinds, events in zip(self.kinds, self.events, strict=True):
            for kind, event in zip(kinds, events, strict=True):
                number = self.instance[event]
                if kind == POST and number >= 0:
                    self.expected[number] = self.expected.get(number, 0) + 1

    def ends(self) -> list[float]:
        """Return the wall time at which each rank ends. Call it only once."""
        while True:
            while self.ready:
                self._advance(self.ready.pop())
            stuck = [n for n, kinds in enumerate(self.kinds) if self.place[n] < len(kinds)]
            if not stuck:
                return [c + g[-1] for c, g in zip(self.clock, self.gaps, strict=True)]
            n = min(stuck, key=lambda i: self.clock[i])  # contradictory matching: let the earliest go on
            self.posted[self.instance[self.events[n][self.place[n]]]] = _ENOUGH_POSTS
            self.ready.append(n)

    def _advance(self, n: int) -> None:
        """Advance rank `n` until it ends or needs an operation that another rank has not posted."""
        kinds, events, gaps = self.kinds[n], self.events[n], self.gaps[n]
        fixed, instance = self.fixed, self.instance
        now, i, delays = self.clock[n], self.place[n], self.delays[n]
        while i < len(kinds):
            event = events[i]
            number = instance[event]
            now += gaps[i]
            if i in delays:
                now = self._delayed(n, now, *delays.pop(i))
            if kinds[i] == MARK:
                self.marks[n].append(now)
            elif kinds[i] == POST:
                if fixed[event] >= 0:
                    self.alone[event] = now + fixed[event]
                if number >= 0:
                    self._post(number, now)
            elif fixed[event] >= 0:
                now = self._stand(event, now, self.alone.get(event, now))
            elif self.posted.get(number, 0) >= self.expected.get(number, 0):
                now = self._stand(event, now, self._end(number, event, now))
            else:
                self.waiting.setdefault(number, []).append(n)
                gaps[i] = 0.0  # spent on the way to this need
                break
            i += 1
        self.clock[n], self.place[n] = now, i

    def _delayed(self, n: int, now: float, floor: float, stop: float, after: float) -> float:
        """Return when rank `n` comes to an event that it reaches at `now`, but for its host."""
        clock = self.host_clock[n]
        here = max(now, clock + floor)
        self.host_clock[n] = clock = max(clock, here + stop)
        return max(here, clock + after)

    def _end(self, number: int, event: int, now: float) -> float:
        """Return when a member's operation ends."""
        return self.latest.get(number, now) + self.transfer[number] + self.later[event]

    def _stand(self, event: int, now: float, until: float) -> float:
        """Return when a rank that needs the operation `event` at `now` continues: at `until`, or at once."""
        self.stood[event] = max(until - now, 0.0)
        return max(now, until)

    def _post(self, number: int, now: float) -> None:
        """Count one post of an instance at `now`; after the last post the ranks that need it continue."""
        self.latest[number] = max(self.latest.get(number, now), now)
        self.posted[number] = self.posted.get(number, 0) + 1
        if self.posted[number] == self.expected.get(number, 0):
            self._start(number)

    def _start(self, number: int) -> None:
        """Start an instance that all members have posted, unless it waits for one that has not started."""
        earlier, others = self.before[number], self.causes.get(number, [])
        late = [one for one in others if self.expected.get(one, 0) > 0 and one not in self.started]
        if late or earlier in self.held:
            self.held.add(number)
            self.posted[number] -= 1  # as if its last member had not come
            self.following.setdefault(late[0] if late else earlier, []).append(number)
            return
        for one in (earlier, *others):
            if 0 < self.expected.get(one, 0) <= self.posted.get(one, 0):
                self.latest[number] = max(self.latest[number], self.latest[one] + self.transfer[one])
        self.started.add(number)
        self.held.discard(number)
        self.ready.extend(self.waiting.pop(number, ()))
        for behind in self.following.pop(number, ()):
            self.posted[behind] += 1
            self._start(behind)


def causes_of(caused: I64) -> dict[int, list[int]]:
    """Return the second instances of the pairs `caused` (two rows) by their first."""
    found: dict[int, list[int]] = {}
    for number, cause in caused.T.tolist():
        found.setdefault(number, []).append(cause)
    return found


_ENOUGH_POSTS = 1 << 40  # more than any instance has members
