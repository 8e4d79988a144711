"""Messages of one pipeline rank: receive buffers, messages under way, and tensors handed over on the same rank.

Receive buffers come from a free list. An output that has been sent is released: backward needs only its
place in the graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from reftrain.rank.comm import Axis, Message
from reftrain.schedule.actions import Action, Kind, Schedule


class BufferPool:
    """Receive buffers of one shape: taken from a free list, made only when it is empty."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = tuple(shape), dtype, device
        self.made = 0
        self._free: list[torch.Tensor] = []

    def take(self) -> torch.Tensor:
        """Return an unused buffer."""
        if self._free:
            return self._free.pop()
        self.made += 1
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)

    @property
    def bytes(self) -> int:
        """Size of all buffers made so far, in bytes."""
        one = torch.empty(self.shape, dtype=self.dtype, device="meta")
        return self.made * one.numel() * one.element_size()

    def give(self, buffer: torch.Tensor) -> None:
        """Put back a buffer that is no longer read."""
        self._free.append(buffer)


@dataclass
class _Sent:
    """A message under way: the tensor must live, and its graph output may be released, when it has gone."""

    work: Message
    tensor: torch.Tensor
    output: torch.Tensor | None


class Mailbox:
    """Sends and receives of one rank by action.

    `down` carries messages to higher pipeline ranks and `up` to lower ones: the same group on Gloo, two
    groups on NCCL, which would otherwise serialise the two directions and can deadlock.
    """

    def __init__(self, schedule: Schedule, down: Axis, up: Axis, pool: BufferPool) -> None:
        self.schedule, self.down, self.up, self.pool = schedule, down, up, pool
        self.own = down.index
        self._received: dict[Action, tuple[torch.Tensor, Message]] = {}
        self._arrived: dict[Action, torch.Tensor] = {}
        self._handed: dict[Action, torch.Tensor] = {}
        self._sent: list[_Sent] = []

    def neighbour(self, action: Action, offset: int) -> int | None:
        """Pipeline rank of the stage before (-1) or after (1) an action's, in its replica; None beyond the ends."""
        stage = action.stage + offset
        return self.schedule.rank_of(stage, action.replica) if 0 <= stage < self.schedule.stages else None

    def buffers(self, action: Action) -> BufferPool:
        """Return the buffers of a receive."""
        del action
        return self.pool

    def label(self, action: Action) -> str:
        """Return the name under which a message is recorded."""
        return str(action)

    def receive(self, action: Action) -> None:
        """Start a receive."""
        sender = self.neighbour(action, -1 if action.kind is Kind.RECV_ACTIVATION else 1)
        if sender is None:
            raise AssertionError(f"{action} has no rank to receive from")
        axis = self.down if sender < self.own else self.up
        buffer = self.buffers(action).take()
        self._received[action] = buffer, axis.receive(buffer, sender, self.label(action))

    def send(self, action: Action, tensor: torch.Tensor, output: torch.Tensor | None) -> None:
        """Start sending; `output` is released when the message has gone."""
        receiver = self.neighbour(action, 1 if action.kind is Kind.SEND_ACTIVATION else -1)
        if receiver is None:
            raise AssertionError(f"{action} has no rank to send to")
        axis = self.down if receiver > self.own else self.up
        whole = tensor.contiguous()
        self._sent.append(_Sent(axis.send(whole, receiver, self.label(action)), whole, output))

    def hand(self, action: Action, tensor: torch.Tensor) -> None:
        """Leave a tensor for the neighbour stage on this rank, which takes it as if received."""
        self._handed[action] = tensor

    def wait(self, action: Action) -> None:
        """Wait until a message that was asked for is here."""
        if action in self._received:
            self._arrived[action], work = self._received.pop(action)
            work.wait()

    def take(self, action: Action) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tensor that a message or the neighbour stage on this rank left, and its buffer if it has one."""
        if action in self._handed:
            return self._handed.pop(action), None
        self.wait(action)
        buffer = self._arrived.pop(action)
        return buffer, buffer

    def reap(self, *, wait: bool, arrived: torch.Tensor | None = None) -> None:
        """Release what has been sent: all when waiting, else what is complete or known to have `arrived`."""
        waiting = []
        for sent in self._sent:
            known = arrived is not None and sent.output is arrived
            if not (wait or known or sent.work.is_completed()):
                waiting.append(sent)
                continue
            sent.work.wait()
            if sent.output is not None:
                sent.output.data = sent.output.new_empty(0)
        self._sent = waiting
