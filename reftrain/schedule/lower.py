"""Adds messages and gradient reductions to a schedule's forward and backward actions.

Messages between two ranks are received in the order in which the sender sends them, because NCCL matches by order and
not by tag. Where a receiver needs a message out of that order, it posts the earlier ones before it. Receives are posted
one computation ahead, so that the transfer runs beside it.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from reftrain.schedule.actions import (
    COMPUTE,
    ENDS_BACKWARD,
    PASSES_GRADIENT,
    RECEIVES,
    SENDS,
    Action,
    Kind,
    Schedule,
)
from reftrain.schedule.encoder import with_encoder
from reftrain.schedule.replica_sync import with_syncs
from reftrain.schedule.rules_messages import message_of, needed_message

Pair = tuple[int, int]
_ADDED = SENDS | RECEIVES | {Kind.REDUCE_GRADIENT, Kind.SYNC_REPLICAS}


def complete(schedule: Schedule, zero: int, sync: str = "eager_opt", encoder: str = "") -> Schedule:
    """Return the lowered table; a table that is lowered already, as a file may hold, stays as it is."""
    there = any(a.kind in _ADDED for _, _, a in schedule.everything())
    return with_encoder(schedule, encoder) if there else lower(schedule, zero, sync, encoder)


def lower(schedule: Schedule, zero: int, sync: str = "eager_opt", encoder: str = "") -> Schedule:
    """Return the table with sends, receives, gradient reductions and the sums over replicas.

    ZeRO-0 and 1 reduce a stage's gradients after its last backward before an optimiser step; ZeRO-2 and 3
    after each run of k consecutive micro-batches ("Scaling Llama 3 Training", the section on pipeline and
    FSDP). `sync` places the sums over the replicas of a bidirectional schedule (`replica_sync`),
    `encoder` the image encoder of a multimodal model (`encoder.with_encoder`).
    """
    with_sends = [_with_sends(schedule, rank) for rank in range(schedule.ranks)]
    order: dict[Pair, list[Action]] = defaultdict(list)
    for rank, actions in enumerate(with_sends):
        for action in actions:
            message = message_of(action)
            if message:
                order[rank, schedule.rank_of(message.stage, message.replica)].append(message)
    sent = {pair: _Queue(messages) for pair, messages in order.items()}
    lowered = tuple(
        _with_reductions(_with_receives(schedule, rank, actions, sent), schedule, zero)
        for rank, actions in enumerate(with_sends)
    )
    return with_encoder(with_syncs(replace(schedule, actions=lowered), sync), encoder)


def _with_sends(schedule: Schedule, rank: int) -> list[Action]:
    out: list[Action] = []
    for action in schedule.actions[rank]:
        out.append(action)
        forward = action.kind is Kind.FORWARD
        if not forward and action.kind not in PASSES_GRADIENT:
            continue
        neighbour = action.stage + (1 if forward else -1)
        if 0 <= neighbour < schedule.stages and schedule.rank_of(neighbour, action.replica) != rank:
            out.append(action.of(Kind.SEND_ACTIVATION if forward else Kind.SEND_GRADIENT))
    return out


class _Queue:
    """Messages from one rank to another in the order in which they are sent; receives are posted in that order."""

    def __init__(self, messages: Sequence[Action]) -> None:
        self._messages = messages
        self._places = {message: place for place, message in enumerate(messages)}
        self._posted = 0

    def until(self, message: Action) -> Sequence[Action]:
        """Return the receives up to and with this one that are not posted yet."""
        end = self._places[message] + 1
        receives = self._messages[self._posted : end]
        self._posted = max(self._posted, end)
        return receives


def _with_receives(
    schedule: Schedule, rank: int, actions: Sequence[Action], sent: dict[Pair, _Queue]
) -> list[Action]:
    computes = [a for a in actions if a.kind in COMPUTE]
    following = iter([*computes[1:], None])
    out: list[Action] = []

    def post(action: Action | None) -> None:
        need = needed_message(schedule, action) if action else None
        if need is not None:
            sender, message = need
            out.extend(sent[sender, rank].until(message))

    post(computes[0] if computes else None)
    for action in actions:
        if action.kind in COMPUTE:
            post(next(following))
        out.append(action)
    return out


def _with_reductions(actions: Sequence[Action], schedule: Schedule, zero: int) -> tuple[Action, ...]:
    backwards = [a for a in actions if a.kind in ENDS_BACKWARD]
    reduce_after = set(last_before_steps(actions))
    if zero >= 2:
        for this, following in itertools.pairwise(backwards):
            if _round(this, schedule) != _round(following, schedule):
                reduce_after.add(this)
    out: list[Action] = []
    for action in actions:
        out.append(action)
        if action in reduce_after:
            out.append(action.of(Kind.REDUCE_GRADIENT))
    return tuple(out)


def last_before_steps(actions: Sequence[Action]) -> Iterator[Action]:
    """Yield the last end of a backward of every stage before each of its optimiser steps and before the end."""
    last: dict[Pair, Action] = {}
    for action in actions:
        if action.kind in ENDS_BACKWARD:
            last[action.replica, action.stage] = action
        elif action.kind is Kind.OPTIMIZER_STEP and (action.replica, action.stage) in last:
            yield last.pop((action.replica, action.stage))
    yield from last.values()


def _round(action: Action, schedule: Schedule) -> tuple[int, int, int]:
    return action.replica, action.stage, action.micro_batch // schedule.consecutive
