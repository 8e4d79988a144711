"""Executes an image encoder around the pipeline: its forwards, the exchange of tokens over pp, its backwards.

Every pipeline rank keeps one copy of a micro-batch's image tokens, which collects the gradients of all its
cross-attention layers; the copies' gradients are summed over the pipeline ranks once, for all micro-batches.
"""

from collections.abc import Callable

import torch

from reftrain.execute.backward import backward_through
from reftrain.execute.sharded_stage import ShardedStage
from reftrain.rank.comm import Axis
from reftrain.schedule.actions import Action, Schedule
from reftrain.schedule.encoder import share

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
        self.replicated = len(schedule.encoders) > 1
        self.each = -(-self.count // max(len(schedule.encoders), 1))
        self.own = share(schedule.encoders, self.count, pp.index)
        self._outputs: dict[int, torch.Tensor] = {}
        self._grads: dict[int, torch.Tensor] = {}
        self.tokens: list[torch.Tensor] = []

    def encode(self, action: Action) -> None:
        """Encode the images of a micro-batch."""
        if self.stage is None:
            raise AssertionError(f"{action} is on a rank that holds the encoder")
        self._outputs[action.micro_batch] = self.stage.module(self.patches(action.micro_batch))

    def share(self) -> list[torch.Tensor]:
        """Return the tokens of every micro-batch, each a leaf that collects this rank's gradients."""
        own = torch.zeros((self.each, *self.shape), dtype=self.dtype, device=self.device)
        for place, number in enumerate(self.own):
            own[place].copy_(self._outputs[number].detach())
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
        self._grads = {number: whole[place] for place, number in enumerate(self.own)}
        self.tokens = []

    def backward(self, action: Action) -> None:
        """Run back through the encoder with a micro-batch's gradient."""
        output = self._outputs.pop(action.micro_batch)
        backward_through(output, self._grads.pop(action.micro_batch).to(output.dtype))
