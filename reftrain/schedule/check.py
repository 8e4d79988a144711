"""Proves that a table of actions can run: all micro-batches go forward and back, no ranks wait in a circle.

Used by the generators (to choose a warm-up that runs) and before every execution, so that a bad table is
refused with the rank and the rule it breaks instead of hanging a job.
"""

from collections.abc import Iterator

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import COMPUTE, Action, Kind, Schedule


def check(schedule: Schedule) -> None:
    """Raise `ScheduleError` naming rank, slot and rule when the table cannot run."""
    problem = first_problem(schedule)
    if problem:
        raise ScheduleError("pipeline.schedule", f"{schedule.name}: {problem}", "correct the table")


def first_problem(schedule: Schedule) -> str | None:
    """Name the first rule that the forward and backward actions break, or None when they can run."""
    return _first_misplaced(schedule) or _first_missing(schedule) or _first_wait(schedule)


def _computes(schedule: Schedule) -> Iterator[tuple[int, int, Action]]:
    for rank, actions in enumerate(schedule.actions):
        for slot, action in enumerate(actions):
            if action.kind in COMPUTE:
                yield rank, slot, action


def _first_misplaced(schedule: Schedule) -> str | None:
    seen: set[Action] = set()
    for rank, slot, action in _computes(schedule):
        where = f"rank {rank}, slot {slot}: {action}"
        if not 0 <= action.stage < schedule.stages or schedule.placement[action.stage] != rank:
            return f"{where} is not on the rank that holds stage {action.stage}"
        if not 0 <= action.micro_batch < schedule.micro_batches:
            return f"{where} has no such micro-batch"
        if action in seen:
            return f"{where} runs twice"
        seen.add(action)
    return None


def _first_missing(schedule: Schedule) -> str | None:
    seen = {action for _, _, action in _computes(schedule)}
    for stage, rank in enumerate(schedule.placement):
        for micro_batch in range(schedule.micro_batches):
            for kind in (Kind.FORWARD, Kind.BACKWARD):
                if Action(kind, stage, micro_batch) not in seen:
                    return f"rank {rank}: {Action(kind, stage, micro_batch)} never runs"
    return None


def _first_wait(schedule: Schedule) -> str | None:
    """Run the table without times; what cannot go on is a cyclic wait."""
    lists = [[a for a in actions if a.kind in COMPUTE] for actions in schedule.actions]
    position = [0] * len(lists)
    done: set[Action] = set()
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(lists):
            while position[rank] < len(actions) and needs(actions[position[rank]], schedule.stages) <= done:
                done.add(actions[position[rank]])
                position[rank] += 1
                moved = True
    for rank, actions in enumerate(lists):
        if position[rank] < len(actions):
            action = actions[position[rank]]
            missing = min(needs(action, schedule.stages) - done)
            return f"rank {rank}, slot {position[rank]}: {action} waits for {missing} in a circle"
    return None


def needs(action: Action, stages: int) -> set[Action]:
    """Actions that must have run before a forward or backward: the neighbour stage's, and its own forward."""
    stage, micro_batch = action.stage, action.micro_batch
    if action.kind is Kind.FORWARD:
        return {Action(Kind.FORWARD, stage - 1, micro_batch)} if stage else set()
    before = {Action(Kind.FORWARD, stage, micro_batch)}
    if stage + 1 < stages:
        before.add(Action(Kind.BACKWARD, stage + 1, micro_batch))
    return before
