"""Rules of messages: each that is needed is sent once and received once, in time and in the same order."""

from collections import defaultdict
from collections.abc import Iterator

from reftrain.schedule.actions import PASSES_GRADIENT, RECEIVES, SENDS, Action, Kind, Schedule
from reftrain.schedule.rules import Problem, Rule

Place = tuple[int, int]


def message_of(action: Action) -> Action | None:
    """Return the receive that belongs to a send, or None for another action."""
    if action.kind is Kind.SEND_ACTIVATION:
        return action.of(Kind.RECV_ACTIVATION, 1)
    if action.kind is Kind.SEND_GRADIENT:
        return action.of(Kind.RECV_GRADIENT, -1)
    return None


def needed_message(schedule: Schedule, action: Action) -> tuple[int, Action] | None:
    """Return sender and receive of the message that a computation reads, or None where it reads none."""
    forward = action.kind is Kind.FORWARD
    if not forward and action.kind not in PASSES_GRADIENT:
        return None
    neighbour = action.stage - (1 if forward else -1)
    if not 0 <= neighbour < schedule.stages:
        return None
    sender = schedule.rank_of(neighbour, action.replica)
    receive = action.of(Kind.RECV_ACTIVATION if forward else Kind.RECV_GRADIENT)
    return None if sender == schedule.rank_of(action.stage, action.replica) else (sender, receive)


def is_lowered(schedule: Schedule) -> bool:
    """Return whether a table has messages; a table without any is taken as computations only."""
    return any(a.kind in SENDS or a.kind in RECEIVES for _, _, a in schedule.everything())


def check_messages(schedule: Schedule) -> Iterator[Problem]:
    """Yield the breaches of sends and receives in a lowered table."""
    if not is_lowered(schedule):
        return
    sent: dict[Action, Place] = {}
    received: dict[Action, Place] = {}
    for rank, slot, action in schedule.everything():
        message = message_of(action)
        if message is not None:
            sent[message] = rank, slot
        elif action.kind in RECEIVES:
            received[action] = rank, slot
    wanted = dict(_wanted(schedule))
    for message, (rank, slot) in sorted(wanted.items()):
        if message not in received:
            yield Problem(
                rank,
                slot,
                Rule.NO_RECEIVE,
                f"{message} never runs, which {schedule.actions[rank][slot]} reads",
            )
        elif received[message][1] > slot:
            yield Problem(
                rank, received[message][1], Rule.LATE_RECEIVE, f"{message} runs after what reads it"
            )
        if message not in sent:
            yield Problem(rank, slot, Rule.NO_SEND, f"{message} waits for a message that no rank sends")
    for ends in (sent, received):
        for message, (rank, slot) in sorted(ends.items()):
            if message not in wanted:
                text = f"{schedule.actions[rank][slot]} has no rank at its other end"
                yield Problem(rank, slot, Rule.NO_MESSAGE, text)
    yield from _early_sends(schedule)
    yield from _orders(sent, received)


def _wanted(schedule: Schedule) -> Iterator[tuple[Action, Place]]:
    for rank, slot, action in schedule.everything():
        need = needed_message(schedule, action)
        if need is not None:
            yield need[1], (rank, slot)


def _early_sends(schedule: Schedule) -> Iterator[Problem]:
    for rank, actions in enumerate(schedule.actions):
        made: set[Action] = set()
        for slot, action in enumerate(actions):
            if action.kind is Kind.FORWARD:
                made.add(action.of(Kind.SEND_ACTIVATION))
            elif action.kind in PASSES_GRADIENT:
                made.add(action.of(Kind.SEND_GRADIENT))
            elif action.kind in SENDS and action not in made:
                yield Problem(rank, slot, Rule.EARLY_SEND, f"{action} sends what is not computed yet")


def _orders(sent: dict[Action, Place], received: dict[Action, Place]) -> Iterator[Problem]:
    """NCCL matches messages between two ranks by order, not by tag."""
    pairs: dict[tuple[int, int], list[Action]] = defaultdict(list)
    for message in received.keys() & sent.keys():
        pairs[sent[message][0], received[message][0]].append(message)
    for (sender, receiver), messages in sorted(pairs.items()):
        at_sender = sorted(messages, key=sent.__getitem__)
        at_receiver = sorted(messages, key=received.__getitem__)
        for left, right in zip(at_sender, at_receiver, strict=True):
            if left != right:
                text = f"{right} comes before {left}, which rank {sender} sends first"
                yield Problem(receiver, received[right][1], Rule.MESSAGE_ORDER, text)
                break
