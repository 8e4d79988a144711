"""Places the sums of gradients over the replicas of a bidirectional schedule (Chimera, section 3.2).

A sum is asynchronous: it starts at its place in the table and must end before the optimiser steps.
"""

from collections.abc import Iterator
from dataclasses import replace

from reftrain.schedule.actions import COMPUTE, ENDS_BACKWARD, Action, Kind, Schedule
from reftrain.schedule.costs import Costs
from reftrain.schedule.timing import Span, time_schedule

SYNCS = ("lazy", "eager", "eager_opt")


def with_syncs(schedule: Schedule, sync: str) -> Schedule:
    """Return the table with the start of the sum of every stage that replicas share.

    `lazy` starts all of them when the rank has computed everything; `eager` starts each as soon as the
    stage's gradient is complete; `eager_opt` does so only where the rank idles afterwards, because a sum
    that runs beside computation alone slows it (the middle stages).
    """
    if schedule.replicas == 1:
        return schedule
    spans = time_schedule(schedule, Costs()).spans
    actions = tuple(
        _one_rank(list(actions), _delayed(spans[rank], sync)) + tuple(_empty(schedule, rank))
        for rank, actions in enumerate(schedule.actions)
    )
    return replace(schedule, actions=actions)


def _empty(schedule: Schedule, rank: int) -> Iterator[Action]:
    """Yield the sums that a rank joins without a gradient: of stages with a local replica without micro-batches."""
    used = {(a.replica, a.stage) for a in schedule.actions[rank] if a.kind in ENDS_BACKWARD}
    for replica, stage in schedule.held_by(rank):
        if (replica, stage) not in used:
            yield Action(Kind.SYNC_REPLICAS, stage, schedule.micro_batches - 1, replica)


def _delayed(spans: tuple[Span, ...], sync: str) -> set[tuple[int, int]]:
    """Return the (replica, stage) pairs with a sum that waits until the rank has computed everything."""
    last = {(s.action.replica, s.action.stage): s.end for s in spans if s.action.kind in ENDS_BACKWARD}
    if sync == "eager" or not spans:
        return set()
    if sync == "lazy":
        return set(last)
    end = spans[-1].end
    busy = {
        key: sum((s.end - s.begin for s in spans if s.begin >= done), start=0 * end)
        for key, done in last.items()
    }
    return {key for key, done in last.items() if busy[key] == end - done}


def _one_rank(actions: list[Action], delayed: set[tuple[int, int]]) -> tuple[Action, ...]:
    after = {(a.replica, a.stage): slot for slot, a in enumerate(actions) if a.kind in ENDS_BACKWARD}
    reduced = {(a.replica, a.stage): slot for slot, a in enumerate(actions) if a.kind is Kind.REDUCE_GRADIENT}
    after |= {key: max(slot, after[key]) for key, slot in reduced.items()}
    end = max(
        (slot for slot, a in enumerate(actions) if a.kind in COMPUTE | {Kind.REDUCE_GRADIENT}), default=0
    )
    starts = sorted((end if key in delayed else slot, slot, key) for key, slot in after.items())
    out: list[Action] = []
    for slot, action in enumerate(actions):
        out.append(action)
        out += [actions[last].of(Kind.SYNC_REPLICAS) for at, last, _ in starts if at == slot]
    return tuple(out)
