"""Proves that a table of actions can run, or names rank, slot and the rule that it breaks.

The interleaved schemes use it to choose a warm-up that runs; it also runs when a table is read from a file, and
before every execution, so that a bad table is refused and does not hang a job. Every check is one pass over the table.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import COMPUTE, ENCODER, ENCODES, Action, Kind, Schedule
from reftrain.schedule.dependencies import Dependencies, Token, gives
from reftrain.schedule.rules import Problem, Rule
from reftrain.schedule.rules_local import check_order_on_rank
from reftrain.schedule.rules_messages import check_messages


def check(schedule: Schedule) -> None:
    """Raise `ScheduleError` naming rank, slot and rule when the table cannot run."""
    problem = find_problem(schedule)
    if problem:
        raise ScheduleError("pipeline.schedule", f"{schedule.name}: {problem}", "correct the table")


def find_problem(schedule: Schedule) -> Problem | None:
    """Return the first breach of a rule, or None when the table can run."""
    checks: tuple[Callable[[Schedule], Iterator[Problem]], ...] = (
        _misplaced,
        _repeated,
        _missing,
        check_order_on_rank,
        check_messages,
        _not_joined,
        _waits,
    )
    return next((problem for rule in checks for problem in rule(schedule)), None)


def first_problem(schedule: Schedule) -> str | None:
    """Return `find_problem` as text."""
    problem = find_problem(schedule)
    return None if problem is None else str(problem)


def runs(schedule: Schedule) -> bool:
    """Return whether a built table, which can break no other rule, has no cyclic wait."""
    return not _Walk(schedule, Dependencies(schedule)).stuck()


_OF_ENCODER = ENCODES | {
    Kind.SHARE_TOKENS, Kind.GATHER_TOKENS, Kind.REDUCE_GRADIENT, Kind.SYNC_REPLICAS
}  # fmt: skip


def _misplaced(schedule: Schedule) -> Iterator[Problem]:
    for rank, slot, action in schedule.everything():
        if action.stage == ENCODER and action.kind in _OF_ENCODER:
            joins = action.kind in {Kind.SHARE_TOKENS, Kind.GATHER_TOKENS}
            if not schedule.encoders or not (joins or rank in schedule.encoders):
                yield Problem(rank, slot, Rule.PLACEMENT, f"{action} is on a rank without an encoder")
        elif action.kind in _OF_ENCODER - {Kind.REDUCE_GRADIENT, Kind.SYNC_REPLICAS}:
            yield Problem(rank, slot, Rule.UNKNOWN, f"{action} is no action of the encoder, stage -1")
        elif not 0 <= action.replica < schedule.replicas:
            yield Problem(rank, slot, Rule.UNKNOWN, f"{action} has no such replica")
        elif (
            not 0 <= action.stage < schedule.stages or schedule.rank_of(action.stage, action.replica) != rank
        ):
            text = f"{action} is not on the rank that holds stage {action.stage}"
            yield Problem(rank, slot, Rule.PLACEMENT, text)
        elif not 0 <= action.micro_batch < schedule.micro_batches:
            yield Problem(rank, slot, Rule.UNKNOWN, f"{action} has no such micro-batch")


ONCE = frozenset(Kind) - {Kind.FREE, Kind.RECOMPUTE, Kind.USE_WEIGHTS, Kind.STASH_WEIGHTS, Kind.DROP_WEIGHTS}


def _repeated(schedule: Schedule) -> Iterator[Problem]:
    seen: set[Action] = set()
    whole: dict[Action, int] = {}
    for rank, slot, action in schedule.everything():
        if action.kind in ONCE and action in seen and action.stage != ENCODER:
            yield Problem(rank, slot, Rule.TWICE, f"{action} runs twice")
        seen.add(action)
        if action.kind in {Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT}:
            whole[action] = slot
            split = action.kind is not Kind.BACKWARD
            others = (Kind.BACKWARD,) if split else (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
            for other in map(action.of, others):
                if other in whole:
                    text = f"{action} repeats a part of {other}"
                    yield Problem(rank, slot, Rule.TWICE, text)


def _missing(schedule: Schedule) -> Iterator[Problem]:
    """Every micro-batch goes forward and back once on all stages of one replica."""
    seen = {action for _, _, action in schedule.everything() if action.kind in COMPUTE - ENCODES}
    taken: dict[int, set[int]] = defaultdict(set)
    for action in seen:
        taken[action.micro_batch].add(action.replica)
    for micro_batch in range(schedule.micro_batches):
        replicas = sorted(taken[micro_batch]) or [0]
        for stage in range(schedule.stages):
            rank = schedule.rank_of(stage, replicas[0])
            if len(replicas) > 1:
                text = f"micro-batch {micro_batch} runs on replicas {replicas[0]} and {replicas[1]}"
                yield Problem(rank, None, Rule.TWICE, text)
            forward = Action(Kind.FORWARD, stage, micro_batch, replicas[0])
            if forward not in seen:
                yield Problem(rank, None, Rule.NO_FORWARD, f"{forward} never runs")
            yield from _missing_backward(rank, forward, seen)


def _missing_backward(rank: int, forward: Action, seen: set[Action]) -> Iterator[Problem]:
    if forward.of(Kind.BACKWARD) in seen:
        return
    if forward.of(Kind.BACKWARD_INPUT) in seen:
        if forward.of(Kind.BACKWARD_WEIGHT) not in seen:
            yield Problem(rank, None, Rule.NO_BACKWARD, f"{forward.of(Kind.BACKWARD_WEIGHT)} never runs")
    elif forward.of(Kind.BACKWARD_WEIGHT) in seen:
        yield Problem(rank, None, Rule.NO_BACKWARD, f"{forward.of(Kind.BACKWARD_INPUT)} never runs")
    else:
        yield Problem(rank, None, Rule.NO_BACKWARD, f"{forward.of(Kind.BACKWARD)} never runs")


def _not_joined(schedule: Schedule) -> Iterator[Problem]:
    """Every owner of a stage joins the sum over its replicas if one does, else the sum never ends."""
    joined = {(a.replica, a.stage) for _, _, a in schedule.everything() if a.kind is Kind.SYNC_REPLICAS}
    for stage in sorted({stage for _, stage in joined} - {ENCODER}):
        for replica, rank in enumerate(schedule.owners(stage)):
            if (replica, stage) not in joined:
                text = f"the sum of stage {stage} over the replicas waits for replica {replica}"
                yield Problem(rank, None, Rule.NOT_JOINED, text)


@dataclass
class _Walk:
    """A run of the table without times."""

    schedule: Schedule
    dependencies: Dependencies

    def stuck(self) -> list[tuple[int, int, Token]]:
        """(rank, slot, token) of every rank that cannot go on."""
        lists = self.schedule.actions
        position, tokens = [0] * len(lists), set[Token]()
        waiting: dict[Token, list[int]] = defaultdict(list)
        missing: dict[int, Token] = {}
        runnable = list(range(len(lists)))
        while runnable:
            rank = runnable.pop()
            missing.pop(rank, None)
            while position[rank] < len(lists[rank]):
                action = lists[rank][position[rank]]
                absent = next((t for t in self.dependencies.needs(action) if t not in tokens), None)
                if absent is not None:
                    waiting[absent].append(rank)
                    missing[rank] = absent
                    break
                position[rank] += 1
                token = gives(action)
                if token is not None:
                    tokens.add(token)
                    runnable += waiting.pop(token, [])
        return [(rank, position[rank], missing[rank]) for rank in sorted(missing)]


def _waits(schedule: Schedule) -> Iterator[Problem]:
    """Yield the ranks that cannot go on in a run without times: a cyclic wait, as no needed action is missing."""
    dependencies = Dependencies(schedule)
    stuck = _Walk(schedule, dependencies).stuck()
    by_rank = {rank: (slot, token) for rank, slot, token in stuck}
    for rank, slot, token in stuck:
        path, at = [rank], rank
        while True:
            at = dependencies.source(by_rank[at][1])[0]
            if at in path or at not in by_rank:
                break
            path.append(at)
        circle = " -> ".join(map(str, [*path[path.index(at) :], at])) if at in path else "unknown"
        action = schedule.actions[rank][slot]
        text = f"{action} waits for {dependencies.source(token)[1]} in a circle of ranks {circle}"
        yield Problem(rank, slot, Rule.CYCLIC_WAIT, text)
