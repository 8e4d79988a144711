"""The order of messages between two pipeline ranks, the same on both, so that one NCCL stream can carry it.

NCCL runs the operations of one communicator in the order of its stream: a send that waits for its receiver holds back
every later message of the pair, in both directions. In torch, sends and receives of two ranks outside a batch have a
communicator and a stream of their own (`ProcessGroupNCCL::pointToPoint`, `getKeySendRecv`); a batch uses the group's.
Two ranks that post a receive each before their sends would therefore wait for ever, so that no framework does:
torch.distributed.pipelining puts both ends of a message into the programs of both ranks at the same place of one walk
through all ranks (`_add_send_recv` in `schedules.py`), and Megatron makes both directions in one batch
(`_batched_p2p_ops` in `p2p_communication.py`). Here the order of a pair is that in which an undisturbed job computes
the messages; every rank posts its receives in it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from reftrain.schedule.actions import COMPUTE, RECEIVES, SENDS, Action, Schedule
from reftrain.schedule.costs import Costs
from reftrain.schedule.rules_messages import message_of, needed_message
from reftrain.schedule.timing import time_schedule

Pair = frozenset[int]


def in_pair_order(schedule: Schedule, costs: Costs) -> Schedule:
    """Return the lowered table with every receive where the order of its pair has it; sends and computations stay.

    A table that asks for a message before what its pair sends earlier keeps that receive; the engine refuses it.
    """
    orders = _orders(schedule, costs)
    actions = tuple(
        tuple(_Poster(schedule, rank, orders).run(actions)) for rank, actions in enumerate(schedule.actions)
    )
    return replace(schedule, actions=actions)


def _orders(schedule: Schedule, costs: Costs) -> dict[Pair, list[Action]]:
    """Return the messages of each pair, as receives, in the order in which their senders have computed them."""
    timing = time_schedule(schedule, costs)
    sent = []
    for rank, actions in enumerate(schedule.actions):
        ends = {span.slot: span.end for span in timing.spans[rank] if span.action.kind in COMPUTE}
        now = Fraction(0)
        for slot, action in enumerate(actions):
            now = ends.get(slot, now)
            message = message_of(action)
            if message is not None:
                peer = schedule.rank_of(message.stage, message.replica)
                sent.append((now, rank, slot, frozenset({rank, peer}), message))
    orders: dict[Pair, list[Action]] = {}
    for *_, pair, message in sorted(sent, key=lambda one: one[:3]):
        orders.setdefault(pair, []).append(message)
    return orders


class _Poster:
    """Puts the receives of one rank where the orders of its pairs have them."""

    def __init__(self, schedule: Schedule, rank: int, orders: dict[Pair, list[Action]]) -> None:
        self.schedule, self.rank = schedule, rank
        self.left = {pair: deque(messages) for pair, messages in orders.items() if rank in pair}
        self.pair_of = {message: pair for pair, messages in self.left.items() for message in messages}
        self.asked: set[Action] = set()  # receives that the table has posted, and this rank has not yet
        self.early: set[Action] = set()  # receives that a send had to wait for, before the table posts them
        self.out: list[Action] = []

    def run(self, actions: Sequence[Action]) -> list[Action]:
        """Return the actions of the rank."""
        for action in actions:
            message = action if action.kind in RECEIVES else message_of(action)
            if message not in self.pair_of:
                self._before(action)
                self.out.append(action)
            elif action.kind in SENDS:
                self._until(message)
                self.out.append(action)
                self._posted(self.pair_of[message])
            elif message not in self.early:
                self.asked.add(message)
                self._posted(self.pair_of[message])
        return self.out

    def _posted(self, pair: Pair) -> None:
        """Post the receives of a pair that have been asked for, up to the next of its sends."""
        left = self.left[pair]
        while left and left[0] in self.asked:
            self.asked.remove(left[0])
            self.out.append(left.popleft())

    def _until(self, sent: Action) -> None:
        """Post all receives that the order has before a send."""
        left = self.left[self.pair_of[sent]]
        while left[0] != sent:
            message = left.popleft()
            if message not in self.asked:
                self.early.add(message)
            self.asked.discard(message)
            self.out.append(message)
        left.popleft()

    def _before(self, action: Action) -> None:
        """Post the receive that a computation reads, if the order of the pair has not come to it."""
        need = needed_message(self.schedule, action)
        if need is not None and need[1] in self.asked:
            self.asked.remove(need[1])
            self.left[self.pair_of[need[1]]].remove(need[1])
            self.out.append(need[1])
