"""Schedules with split backwards: ZB-H1 and DualPipeV.

Sources: "Zero Bubble Pipeline Parallelism" (Qi et al. 2023), section 2.1; DualPipe (DeepSeek-V3, 2024) cut
in half to a V, where each rank holds one stage of the way down and one of the way up.
"""

from collections import deque

from reftrain.schedule.actions import Action, Kind, Schedule
from reftrain.schedule.spec import ScheduleSpec


def zb_h1(spec: ScheduleSpec) -> Schedule:
    """1F1B with the weight part of each backward delayed by r micro-batches on rank r.

    Every rank then holds as many micro-batches as the first one of 1F1B, and the weight parts fill the
    drain: the bubble is (p-1)·(f + i - w).
    """
    spec.one_stage_a_rank()
    ranks, m = spec.ranks, spec.micro_batches
    actions = tuple(_zb_h1_rank(rank, ranks, m) for rank in range(ranks))
    return Schedule(spec.name, m, m, tuple(range(ranks)), actions)


def _zb_h1_rank(rank: int, ranks: int, m: int) -> tuple[Action, ...]:
    warm_up = min(ranks - rank - 1, m)
    out = [Action(Kind.FORWARD, rank, mb) for mb in range(warm_up)]
    weights = deque[Action]()
    for mb in range(m):
        if mb + warm_up < m:
            out.append(Action(Kind.FORWARD, rank, mb + warm_up))
        out.append(Action(Kind.BACKWARD_INPUT, rank, mb))
        weights.append(Action(Kind.BACKWARD_WEIGHT, rank, mb))
        if len(weights) > rank:
            out.append(weights.popleft())
    return tuple(out) + tuple(weights)


def dualpipe_v(spec: ScheduleSpec) -> Schedule:
    """Return the schedule in which each rank holds stages r and 2p-1-r, forwards of one next to backwards of the other.

    Raises `ScheduleError` when m < 2p, which the scheme's steady phase needs.
    """
    ranks, m = spec.ranks, spec.micro_batches
    if spec.virtual != 2:
        raise spec.refuse("pipeline.virtual_stages", "holds two stages a rank", "give 2")
    if m < 2 * ranks:
        problem = f"cannot take {m} micro-batches on {ranks} ranks"
        raise spec.refuse("pipeline.schedule", problem, f"give {2 * ranks} or more, or schedule = flexible")
    placement = (*range(ranks), *reversed(range(ranks)))
    actions = tuple(_DualPipeRank(rank, ranks, m).build() for rank in range(ranks))
    return Schedule(spec.name, m, m, placement, actions)


class _DualPipeRank:
    """Writes the list of one rank phase by phase; part 0 is the way down, part 1 the way up."""

    def __init__(self, rank: int, ranks: int, m: int) -> None:
        self.rank, self.ranks, self.m = rank, ranks, m
        self.stage = (rank, 2 * ranks - 1 - rank)
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.out: list[Action] = []
        self.weights = deque[Action]()

    def _forward(self, part: int) -> None:
        self.out.append(Action(Kind.FORWARD, self.stage[part], self.forwards[part]))
        self.forwards[part] += 1

    def _backward(self, part: int, *, split: bool = False) -> None:
        kind = Kind.BACKWARD_INPUT if split else Kind.BACKWARD
        action = Action(kind, self.stage[part], self.backwards[part])
        self.out.append(action)
        self.backwards[part] += 1
        if split:
            self.weights.append(action.of(Kind.BACKWARD_WEIGHT))

    def _weight(self) -> None:
        self.out.append(self.weights.popleft())

    def build(self) -> tuple[Action, ...]:
        """Return the eight phases of the scheme in a row."""
        deep, high = self.ranks - self.rank - 1, self.rank + 1
        for _ in range(2 * deep):
            self._forward(0)
        for _ in range(high):
            self._forward(0)
            self._forward(1)
        for _ in range(deep):
            self._backward(1, split=True)
            self._weight()
            self._forward(1)
        for _ in range(self.m - 2 * self.ranks + high):
            for part in (0, 1):
                self._forward(part)
                self._backward(1 - part)
        for _ in range(deep):
            self._backward(1)
            self._forward(1)
            self._backward(0)
        self._drain(deep, high)
        return tuple(self.out)

    def _drain(self, deep: int, high: int) -> None:
        """Backwards alone: from the middle on, weight parts are delayed to fill the waits of the end."""
        split = False
        for i in range(high):
            split = split or (i == high // 2 and self.rank % 2 == 1)
            self._backward(1, split=split)
            split = split or (i == high // 2 and self.rank % 2 == 0)
            self._backward(0, split=split)
        for _ in range(deep):
            self._weight()
            self._backward(0, split=True)
        while self.weights:
            self._weight()
