"""Image tokens that travel with the activations, from an encoder inside the first stage: a second message each hop.

Every virtual stage keeps its own copy of a micro-batch's tokens, which collects the gradients of its cross-attention
layers. In backward a stage adds the gradient that came from the stage behind, and passes the sum on;
the first stage has the whole gradient when its backward ends, and the encoder runs back at once.

Source: "Scaling Llama 3 Training" (ISCA'25), section 3.2.1, option 1.
"""

from typing import Any

import torch

from reftrain.execute.encoding import LABEL, Encoding
from reftrain.execute.messages import BufferPool, Mailbox
from reftrain.rank.comm import Axis
from reftrain.schedule.actions import Action, Kind, Schedule

Place = tuple[int, int]
"""Virtual stage, micro-batch."""


class TokenMail(Mailbox):
    """Messages of image tokens, in the computing format, and of their gradients, in the format of their sum."""

    def __init__(
        self, schedule: Schedule, down: Axis, up: Axis, tokens: BufferPool, gradients: BufferPool
    ) -> None:
        super().__init__(schedule, down, up, tokens)
        self.gradients = gradients

    def buffers(self, action: Action) -> BufferPool:
        """Return the buffers of a receive."""
        return self.pool if action.kind is Kind.RECV_ACTIVATION else self.gradients

    def label(self, action: Action) -> str:
        """Return the name of a message beside that of the activation or its gradient."""
        return f"{action}:{LABEL}"


class CarriedTokens(Encoding):
    """Encoding inside the first stage: tokens come and go with each micro-batch."""

    def __init__(self, axes: tuple[Axis, Axis], schedule: Schedule, *arguments: Any) -> None:
        super().__init__(schedule, *arguments)
        pools = (BufferPool(self.shape, kind, self.device) for kind in (self.dtype, self.held))
        self.mail = TokenMail(schedule, *axes, *pools)
        self._leaves: dict[Place, torch.Tensor] = {}
        self._passed: dict[Place, torch.Tensor] = {}

    @property
    def buffer_bytes(self) -> int:
        """Size of all receive buffers made so far, in bytes."""
        return self.mail.pool.bytes + self.mail.gradients.bytes

    def arrive(self, action: Action) -> torch.Tensor:
        """Return the tokens that a forward reads, as a leaf of its own."""
        place = action.stage, action.micro_batch
        if action.stage:
            tokens, buffer = self.mail.take(action.of(Kind.RECV_ACTIVATION))
        else:
            tokens, buffer = self.outputs[action.micro_batch].detach(), None
        leaf = tokens.to(self.held, copy=True).requires_grad_()
        if buffer is not None:
            self.mail.buffers(action.of(Kind.RECV_ACTIVATION)).give(buffer)
        self._leaves[place] = leaf
        if self.mail.neighbour(action, 1) == self.mail.own:
            self.mail.hand(action.of(Kind.RECV_ACTIVATION, 1), leaf.detach())
        return leaf

    def held_by(self, action: Action) -> torch.Tensor:
        """Return the leaf that an earlier forward read."""
        return self._leaves[action.stage, action.micro_batch]

    def send(self, action: Action) -> None:
        """Send the tokens of a forward on, or their gradient back."""
        place = action.stage, action.micro_batch
        if action.kind is Kind.SEND_ACTIVATION:
            self.mail.send(action, self._leaves[place].detach().to(self.dtype), None)
        else:
            self.mail.send(action, self._passed.pop(place), None)

    def collect(self, action: Action) -> None:
        """Add a backward's gradient of the tokens to the one from the stage behind, and pass the sum on."""
        place = action.stage, action.micro_batch
        leaf = self._leaves.pop(place)
        total = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        if self.mail.neighbour(action, 1) is not None:
            receipt = action.of(Kind.RECV_GRADIENT)
            behind, buffer = self.mail.take(receipt)
            total = total + behind
            if buffer is not None:
                self.mail.buffers(receipt).give(buffer)
        before = self.mail.neighbour(action, -1)
        if before is None:
            self.grads[action.micro_batch] = total
        elif before == self.mail.own:
            self.mail.hand(action.of(Kind.RECV_GRADIENT, -1), total)
        else:
            self._passed[place] = total

    def backward(self, action: Action) -> None:
        """Sum a micro-batch's gradient over tensor ranks, which saw their own heads alone, and run back with it."""
        number = action.micro_batch
        self.grads[number] = self.tp.all_reduce(self.grads[number].contiguous(), f"{LABEL}.grad")
        super().backward(action)
