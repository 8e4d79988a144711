"""Exact discrete replay of a table: when each action runs, how long ranks idle, what they hold.

Every rank runs its actions in order, each as soon as its tokens (`flow`) have come; a message takes `p2p`
after its sender's computation and occupies no rank; the sum over replicas runs beside the computation.
Times are fractions, so that bubbles can be compared with closed forms without rounding.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import COMPUTE, Action, Kind, Schedule
from reftrain.schedule.costs import Costs, check_costs
from reftrain.schedule.flow import SYNC, Flow, Token, gives

ZERO = Fraction(0)


@dataclass(frozen=True)
class Span:
    """An action of a rank with its begin and end in the costs' unit of time."""

    slot: int
    action: Action
    begin: Fraction
    end: Fraction


@dataclass(frozen=True)
class Timing:
    """A replayed table. `spans[r]` are the actions of rank r that take time, in order.

    `window` is the interval over which ratios are taken: the whole of a synchronous table, the steady part
    of an asynchronous one, which is never flushed (`steady_window`).
    """

    spans: tuple[tuple[Span, ...], ...]
    window: tuple[Fraction, Fraction]
    makespan: Fraction

    def busy(self, rank: int, window: tuple[Fraction, Fraction] | None = None) -> Fraction:
        """Time a rank computes within a window, the whole table where none is given."""
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


def replay(schedule: Schedule, costs: Costs, *, steady: bool = False) -> Timing:
    """Run a table with costs; with `steady` take ratios over `steady_window`.

    Raises `ScheduleError` when ranks wait in a circle or the costs do not fit the stages.
    """
    check_costs(costs, schedule.stages)
    spans = _Replay(schedule, costs).run()
    end = max((s[-1].end for s in spans if s), default=ZERO)
    window = steady_window(spans) if steady else None
    return Timing(spans, window or (ZERO, end), end)


def steady_window(spans: Sequence[Sequence[Span]]) -> tuple[Fraction, Fraction] | None:
    """Interval in which every rank is past its first backward and none has begun its last forward.

    The start-up and the final drain of a table are no property of a schedule that is never flushed. None
    when the table is too short to have such an interval.
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


class _Replay:
    """Ranks advance until they wait for a token; the token's arrival wakes them."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.schedule, self.costs, self.flow = schedule, costs, Flow(schedule)
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
        """Run a rank as far as it goes; return the ranks that this woke."""
        woken: list[int] = []
        actions = self.schedule.actions[rank]
        while self.position[rank] < len(actions):
            action = actions[self.position[rank]]
            ready = self.clock[rank]
            for token in self.flow.needs(action):
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
