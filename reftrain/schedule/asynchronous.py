"""Asynchronous schedules: 1F1B that is never flushed, with the weight versions its backwards need.

PipeDream (Narayanan et al. 2019) steps after every micro-batch and keeps, for each micro-batch in flight,
the weights that its forward used. PipeDream-2BW (Narayanan et al. 2021) steps after m micro-batches and uses weights
one step old for all of them, W(t+1) = W(t) - lr·grad(W(t-1)), for which two versions suffice.
"""

from collections.abc import Sequence
from dataclasses import replace

from reftrain.schedule.actions import Action, Kind, Schedule
from reftrain.schedule.one_way import one_f_one_b
from reftrain.schedule.spec import ScheduleSpec


def pipedream(spec: ScheduleSpec) -> Schedule:
    """1F1B with an optimiser step after every backward, and a stash of the weights of each forward in flight."""
    table = _endless_1f1b(spec)
    return replace(
        table, consecutive=1, update_every=1, actions=tuple(_stash_each(actions) for actions in table.actions)
    )


def pipedream_2bw(spec: ScheduleSpec) -> Schedule:
    """1F1B with an optimiser step after every m micro-batches and double-buffered weights.

    Raises `ScheduleError` when m < p: then micro-batches of three steps are in flight at once.
    """
    m = spec.micro_batches
    if m < spec.ranks:
        problem = f"keeps two versions of weights and cannot take {m} micro-batches on {spec.ranks} ranks"
        raise spec.refuse("pipeline.schedule", problem, f"give {spec.ranks} or more, or schedule = pipedream")
    table = _endless_1f1b(spec)
    return replace(
        table,
        consecutive=m,
        update_every=m,
        actions=tuple(_double_buffer(actions, m, spec.steps) for actions in table.actions),
    )


def _endless_1f1b(spec: ScheduleSpec) -> Schedule:
    return one_f_one_b(replace(spec, micro_batches=spec.micro_batches * spec.steps))


def _stash_each(actions: Sequence[Action]) -> tuple[Action, ...]:
    """Stash after a forward if its own backward comes after others; use and drop around that backward."""
    steps = 0
    forward_at: dict[int, int] = {}
    stale: set[int] = set()
    for action in actions:
        if action.kind is Kind.FORWARD:
            forward_at[action.micro_batch] = steps
        else:
            if forward_at[action.micro_batch] != steps:
                stale.add(action.micro_batch)
            steps += 1
    out: list[Action] = []
    for action in actions:
        stashed = action.micro_batch in stale
        if action.kind is Kind.FORWARD:
            out += [action, action.of(Kind.STASH_WEIGHTS)] if stashed else [action]
        else:
            around = (Kind.USE_WEIGHTS, None, Kind.DROP_WEIGHTS) if stashed else (None,)
            out += [action if kind is None else action.of(kind) for kind in around]
            out.append(action.of(Kind.OPTIMIZER_STEP))
    return tuple(out)


def _double_buffer(actions: Sequence[Action], every: int, steps: int) -> tuple[Action, ...]:
    """Stash the weights of the next m micro-batches just before a step; the tag is the first of them."""
    out: list[Action] = []
    tag: int | None = None
    for action in actions:
        own = action.micro_batch // every * every
        if tag == own:
            out.append(Action(Kind.USE_WEIGHTS, action.stage, tag))
        out.append(action)
        if action.kind is Kind.BACKWARD and (action.micro_batch + 1) % every == 0:
            if tag is not None:
                out.append(Action(Kind.DROP_WEIGHTS, action.stage, tag))
            tag = own + every if own // every + 1 < steps else None
            if tag is not None:
                out.append(Action(Kind.STASH_WEIGHTS, action.stage, tag))
            out.append(action.of(Kind.OPTIMIZER_STEP))
    return tuple(out)
