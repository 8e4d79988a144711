"""Executes an image encoder: its forwards, the way of its tokens to the pipeline ranks, its backwards.

`Encoding` runs an encoder and knows one batch of tokens after the other. `Exchange` hands all tokens to all pipeline
ranks around the pipeline: each keeps one copy of a micro-batch's tokens, which collects the gradients of all its
cross-attention layers; the copies' gradients are summed over the pipeline ranks once, for all micro-batches.
`carried_tokens` has the other way, with the activations.
"""

from collections.abc import Callable
from typing import Any

import torch

from reftrain.execute.backward import backward_through
from reftrain.execute.sharded_stage import ShardedStage
from reftrain.rank.comm import Axis
from reftrain.schedule.actions import Action, Schedule

LABEL = "image_tokens"


class Encoding:
    """One rank's part in the encoding of a step.

    `stage` is the encoder, where this pipeline rank holds it. `shape` and `dtype` are those of a micro-batch's image
    tokens, `held` the format in which their gradients are summed. `patches` returns the images of a micro-batch.
    """

    def __init__(
        self,
        schedule: Schedule,
        stage: ShardedStage | None,
        pp: Axis,
        tp: Axis,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        held: torch.dtype,
        device: torch.device,
        patches: Callable[[int], torch.Tensor],
    ) -> None:
        self.tp = tp
        self.stage, self.pp, self.shape, self.dtype, self.held = stage, pp, shape, dtype, held
        self.device, self.patches = device, patches
        self.count = schedule.micro_batches
        self.own = schedule.encoded_by(pp.index)
        self.outputs: dict[int, torch.Tensor] = {}
        self.grads: dict[int, torch.Tensor] = {}

    def encode(self, action: Action) -> None:
        """Encode the images of a micro-batch."""
        if self.stage is None:
            raise AssertionError(f"{action} is on a rank that holds the encoder")
        self.outputs[action.micro_batch] = self.stage.module(self.patches(action.micro_batch))

    def backward(self, action: Action) -> None:
        """Run back through the encoder with a micro-batch's gradient."""
        output = self.outputs.pop(action.micro_batch)
        backward_through(output, self.grads.pop(action.micro_batch).to(output.dtype))


class Exchange(Encoding):
    """Encoding around the pipeline: the tokens of all micro-batches are handed over at once, their gradients back."""

    def __init__(self, schedule: Schedule, *arguments: Any) -> None:
        super().__init__(schedule, *arguments)
        encoders = len(schedule.encoders)
        self.replicated, self.each = encoders > 1, -(-self.count // encoders)
        self.tokens: list[torch.Tensor] = []

    def share(self) -> list[torch.Tensor]:
        """Return the tokens of every micro-batch, each a leaf that collects this rank's gradients."""
        own = torch.zeros((self.each, *self.shape), dtype=self.dtype, device=self.device)
        for place, number in enumerate(self.own):
            own[place].copy_(self.outputs[number].detach())
        exchange = self._gathered if self.replicated else self.pp.broadcast
        whole = exchange(own, LABEL)
        self.tokens = [whole[n].to(self.held).requires_grad_() for n in range(self.count)]
        return self.tokens

    def _gathered(self, own: torch.Tensor, label: str) -> torch.Tensor:
        return self.pp.all_gather(own, label).flatten(0, 1)

    def gather(self) -> None:
        """Sum the gradients of the tokens over pipeline and tensor ranks, for the micro-batches encoded here."""
        ranks = self.pp.size if self.replicated else 1
        grads = torch.zeros((ranks * self.each, *self.shape), dtype=self.held, device=self.device)
        for number, leaf in enumerate(self.tokens):
            if leaf.grad is not None:
                grads[number].copy_(leaf.grad)
        if self.replicated:
            whole = self.pp.reduce_scatter(torch.unflatten(grads, 0, (ranks, self.each)), f"{LABEL}.grad")
        else:
            whole = self.pp.all_reduce(grads, f"{LABEL}.grad")
        if self.stage is not None:
            whole = self.tp.all_reduce(whole, f"{LABEL}.grad")
        self.grads = {number: whole[place] for place, number in enumerate(self.own)}
        self.tokens = []
