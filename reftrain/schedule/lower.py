"""Adds messages and gradient reductions to a schedule's forward and backward actions.

Messages between two ranks are received in the order in which the sender sends them, because NCCL matches by
order and not by tag: where a receiver needs a message out of that order, the earlier ones are posted before
it. Receives are posted one computation ahead, so that the transfer runs beside it.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from reftrain.schedule.actions import COMPUTE, RECEIVES, Action, Kind, Schedule

Pair = tuple[int, int]


def lower(schedule: Schedule, zero: int) -> Schedule:
    """Add sends, receives and gradient reductions.

    ZeRO-0 and 1 reduce a stage's gradients after its last backward; ZeRO-2 and 3 after each run of k
    consecutive micro-batches ("Scaling Llama 3 Training", the section on pipeline and FSDP).
    """
    with_sends = [_with_sends(schedule, rank) for rank in range(schedule.ranks)]
    order: dict[Pair, list[Action]] = defaultdict(list)
    for rank, actions in enumerate(with_sends):
        for action in actions:
            message = _message(action)
            if message:
                order[rank, schedule.placement[message.stage]].append(message)
    lowered = tuple(
        _with_reductions(_with_receives(schedule, rank, actions, order), schedule, zero)
        for rank, actions in enumerate(with_sends)
    )
    return replace(schedule, actions=lowered)


def _message(action: Action) -> Action | None:
    """Receive that belongs to a send, or None for another action."""
    if action.kind is Kind.SEND_ACTIVATION:
        return Action(Kind.RECV_ACTIVATION, action.stage + 1, action.micro_batch)
    if action.kind is Kind.SEND_GRADIENT:
        return Action(Kind.RECV_GRADIENT, action.stage - 1, action.micro_batch)
    return None


def _with_sends(schedule: Schedule, rank: int) -> list[Action]:
    out: list[Action] = []
    for action in schedule.actions[rank]:
        out.append(action)
        forward = action.kind is Kind.FORWARD
        neighbour = action.stage + (1 if forward else -1)
        if 0 <= neighbour < schedule.stages and schedule.placement[neighbour] != rank:
            kind = Kind.SEND_ACTIVATION if forward else Kind.SEND_GRADIENT
            out.append(Action(kind, action.stage, action.micro_batch))
    return out


def _needed(schedule: Schedule, rank: int, action: Action) -> tuple[int, Action] | None:
    """Sender and receive action of the message that a computation consumes, or None."""
    forward = action.kind is Kind.FORWARD
    neighbour = action.stage - (1 if forward else -1)
    if action.kind not in COMPUTE or not 0 <= neighbour < schedule.stages:
        return None
    sender = schedule.placement[neighbour]
    kind = Kind.RECV_ACTIVATION if forward else Kind.RECV_GRADIENT
    return None if sender == rank else (sender, Action(kind, action.stage, action.micro_batch))


def _with_receives(
    schedule: Schedule, rank: int, actions: Sequence[Action], order: dict[Pair, list[Action]]
) -> list[Action]:
    posted: dict[int, int] = defaultdict(int)
    computes = [a for a in actions if a.kind in COMPUTE]
    following = iter([*computes[1:], None])
    out: list[Action] = []

    def post(action: Action | None) -> None:
        need = _needed(schedule, rank, action) if action else None
        if need is None:
            return
        sender, message = need
        queue = order[sender, rank]
        end = queue.index(message) + 1
        out.extend(queue[posted[sender] : end])
        posted[sender] = max(posted[sender], end)

    post(computes[0] if computes else None)
    for action in actions:
        if action.kind in COMPUTE:
            post(next(following))
        out.append(action)
    return out


def _with_reductions(actions: Sequence[Action], schedule: Schedule, zero: int) -> tuple[Action, ...]:
    backwards = [a for a in actions if a.kind is Kind.BACKWARD]
    last = {a.stage: a for a in backwards}
    reduce_after = set(last.values())
    if zero >= 2:
        size = schedule.consecutive
        for this, following in itertools.pairwise(backwards):
            if this.stage != following.stage or this.micro_batch // size != following.micro_batch // size:
                reduce_after.add(this)
    out: list[Action] = []
    for action in actions:
        out.append(action)
        if action in reduce_after:
            out.append(Action(Kind.REDUCE_GRADIENT, action.stage, action.micro_batch))
    return tuple(out)


def live_receive_buffers(schedule: Schedule, rank: int) -> int:
    """Most receive buffers that a rank of a lowered schedule holds at once.

    An activation's buffer lives from its receive to the backward of that micro-batch on that stage
    (autograd reads it there), a gradient's from its receive to the backward it feeds.
    """
    live: set[Action] = set()
    most = 0
    for action in schedule.actions[rank]:
        if action.kind in RECEIVES:
            live.add(action)
            most = max(most, len(live))
        elif action.kind is Kind.BACKWARD:
            live.discard(Action(Kind.RECV_ACTIVATION, action.stage, action.micro_batch))
            live.discard(Action(Kind.RECV_GRADIENT, action.stage, action.micro_batch))
    return most
