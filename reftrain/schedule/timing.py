"""Exact times of a table: when each action runs, and how long ranks idle.

Every rank runs its actions in order, each as soon as its tokens (`dependencies`) are there. A message takes `p2p`
after the computation of its sender and occupies no rank; the sum over replicas runs beside the computation.
Times are fractions, so that bubbles can be compared with closed forms without rounding.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import COMPUTE, Action, Kind, Schedule
from reftrain.schedule.costs import Costs, check_costs
from reftrain.schedule.dependencies import SYNC, Dependencies, Token, gives

ZERO = Fraction(0)


@dataclass(frozen=True)
class Span:
    """An action of a rank with its begin and end, in the unit of the costs."""

    slot: int
    action: Action
    begin: Fraction
    end: Fraction


@dataclass(frozen=True)
class Timing:
    """The times of a table. `spans[r]` are the actions of rank r that take time, in order.

    `window` is the interval over which ratios are taken: the whole of a synchronous table, the steady part
    of an asynchronous one, which is never flushed (`steady_window`).
    """

    spans: tuple[tuple[Span, ...], ...]
    window: tuple[Fraction, Fraction]
    makespan: Fraction

    def busy(self, rank: int, window: tuple[Fraction, Fraction] | None = None) -> Fraction:
        """Return the time that a rank computes within a window; the window is the whole table where none is given."""
        low, high = window or (ZERO, self.makespan)
        return sum(
            (
                max(ZERO, min(s.end, high) - max(s.begin, low))
                for s in self.spans[rank]
                if s.action.kind in COMPUTE
            ),
            ZERO,
        )

    @property
    def bubble_ratio(self) -> Fraction:
        """Idle time over total time of all ranks within the window (Chimera, table 2)."""
        busy, total = self._shares()
        return 1 - busy / total if total else ZERO

    @property
    def bubble_over_compute(self) -> Fraction:
        """Idle time over forward and backward time within the window (Llama 3's bubble ratio)."""
        busy, total = self._shares()
        return total / busy - 1 if busy else ZERO

    def _shares(self) -> tuple[Fraction, Fraction]:
        ranks = range(len(self.spans))
        return sum((self.busy(r, self.window) for r in ranks), ZERO), (self.window[1] - self.window[0]) * len(
            ranks
        )


def time_schedule(schedule: Schedule, costs: Costs, *, steady: bool = False) -> Timing:
    """Return the times of a table under costs; with `steady` its ratios are those of `steady_window`.

    Raises `ScheduleError` when ranks wait in a circle or the costs do not fit the stages.
    """
    check_costs(costs, schedule.stages)
    timer = _Timer(schedule, costs)
    spans = timer.run()
    end = max((s[-1].end for s in spans if s), default=ZERO)
    end = max(end, last_sum(schedule, timer.tokens, costs.sync))
    window = steady_window(spans) if steady else None
    return Timing(spans, window or (ZERO, end), end)


def last_sum(schedule: Schedule, tokens: Mapping[Token, tuple[Fraction, int]], seconds: Fraction) -> Fraction:
    """Return the time at which the last sum over replicas ends, 0 without one.

    A sum begins when its last owner has joined and no owner is in another sum; it takes `seconds`.
    """
    joined: dict[int, Fraction] = {}
    for (what, _, stage, _), (time, _) in tokens.items():
        if what == SYNC:
            joined[stage] = max(time, joined.get(stage, ZERO))
    free = [ZERO] * schedule.ranks
    for time, stage in sorted((time, stage) for stage, time in joined.items()):
        owners = schedule.owners(stage)
        end = max(time, *(free[rank] for rank in owners)) + seconds
        for rank in owners:
            free[rank] = end
    return max(free)


def steady_window(spans: Sequence[Sequence[Span]]) -> tuple[Fraction, Fraction] | None:
    """Return the interval in which every rank is past its first backward and none has begun its last forward.

    It leaves out start-up and final drain, which a schedule that is never flushed does not have. The answer is None
    for a table that is too short to have such an interval.
    """
    begin = end = None
    for rank in spans:
        backwards = [s.begin for s in rank if s.action.kind in {Kind.BACKWARD, Kind.BACKWARD_INPUT}]
        forwards = [s.begin for s in rank if s.action.kind is Kind.FORWARD]
        if not backwards or not forwards:
            return None
        begin = backwards[0] if begin is None else max(begin, backwards[0])
        end = forwards[-1] if end is None else min(end, forwards[-1])
    return (begin, end) if begin is not None and end is not None and begin < end else None


class _Timer:
    """Advances every rank until it waits for a token, and again when the token is there."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.schedule, self.costs, self.dependencies = schedule, costs, Dependencies(schedule)
        self.tokens: dict[Token, tuple[Fraction, int]] = {}
        self.waiting: dict[Token, list[int]] = defaultdict(list)
        self.position = [0] * schedule.ranks
        self.clock = [ZERO] * schedule.ranks
        self.spans: list[list[Span]] = [[] for _ in range(schedule.ranks)]

    def run(self) -> tuple[tuple[Span, ...], ...]:
        runnable = list(range(self.schedule.ranks))
        while runnable:
            runnable += self._advance(runnable.pop())
        for rank, actions in enumerate(self.schedule.actions):
            if self.position[rank] < len(actions):
                slot, action = self.position[rank], actions[self.position[rank]]
                problem = (
                    f"{self.schedule.name}: rank {rank}, slot {slot}: {action} never gets what it waits for"
                )
                raise ScheduleError("pipeline.schedule", problem, "correct the table")
        return tuple(tuple(s) for s in self.spans)

    def _advance(self, rank: int) -> list[int]:
        """Run a rank as far as it goes; return the ranks that now have their tokens."""
        woken: list[int] = []
        actions = self.schedule.actions[rank]
        while self.position[rank] < len(actions):
            action = actions[self.position[rank]]
            ready = self.clock[rank]
            for token in self.dependencies.needs(action):
                if token not in self.tokens:
                    self.waiting[token].append(rank)
                    return woken
                ready = max(ready, self._arrival(token, rank))
            woken += self._execute(rank, action, ready)
        return woken

    def _arrival(self, token: Token, rank: int) -> Fraction:
        time, source = self.tokens[token]
        if token[0] == SYNC:
            return time + self.costs.sync
        return time + self.costs.p2p if source != rank else time

    def _execute(self, rank: int, action: Action, begin: Fraction) -> list[int]:
        length = self.costs.of(action)
        if length or action.kind in COMPUTE:
            self.spans[rank].append(Span(self.position[rank], action, begin, begin + length))
            self.clock[rank] = begin + length
        elif action.kind is Kind.OPTIMIZER_STEP:
            self.clock[rank] = begin
        self.position[rank] += 1
        token = gives(action)
        if token is None:
            return []
        self.tokens[token] = self.clock[rank], rank
        return self.waiting.pop(token, [])
