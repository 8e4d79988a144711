"""Image tokens of one data-parallel rank in a step: encoded before its micro-batches, run back after them.

`ExchangedTokens`: each pipeline rank has its own copy of a micro-batch's tokens, which collects the gradients of its
cross-attention layers; the copies' gradients are summed over the pipeline ranks in the order of one reduction a step.
`CarriedTokens`: each virtual stage has its own copy, and adds its gradient to the one from the stage behind.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reftrain.config.run import RunConfig
from reftrain.layout.declaration import ENCODER, Declaration
from reftrain.layout.grid import Seat
from reftrain.replay.batch import Reader
from reftrain.replay.formats import Formats
from reftrain.replay.forward.encoder import encode
from reftrain.replay.observer import Observer
from reftrain.replay.ring import ring_sum
from reftrain.replay.virtual_ranks import Ranks, VirtualRanks

Leaves = list[dict[str, Tensor]]
Accumulate = Callable[[int, int, Leaves], None]
"""Takes (pipeline rank, micro-batch, weights with the micro-batch's gradients for every rank in lock step)."""
LABEL = "image_tokens"


class ImageTokens(ABC):
    """The tokens of one data-parallel rank's images: encoded, and run back with their gradients."""

    def __init__(
        self,
        config: RunConfig,
        declared: Declaration,
        formats: Formats,
        observer: Observer,
        reader: Reader,
        dp: int,
    ) -> None:
        self.config, self.formats, self.observer, self.reader, self.dp = config, formats, observer, reader, dp
        self.table = declared.pipeline.schedule
        self.encoders = self.table.encoders
        self.held = formats.wide if config.encoder.sum_format == "fp32" else formats.compute
        self.count, self.pp = config.micro_batches, config.mesh.pp
        self.places = config.mesh.cp * config.mesh.tp
        self.virtual_ranks = VirtualRanks(
            config.mesh.tp,
            config.mesh.cp,
            1,
            sequence_parallel=False,
            sums_wide=config.numerics.tp_reduce == "fp32",
            observer=observer,
        )
        self._outputs: dict[int, Ranks] = {}
        self._weights: dict[int, Leaves] = {}

    def encode(self, step: int, weights: Mapping[tuple[int, int], Sequence[Mapping[str, Tensor]]]) -> None:
        """Encode all images."""
        now = self.observer.now
        now.dp, now.phase, now.stage = self.dp, "forward", ENCODER
        for pp in self.encoders:
            for now.micro_batch in self.table.encoded_by(pp):
                images = self.reader.images(step, self.dp, now.micro_batch).to(self.formats.compute)
                gathered = weights[ENCODER, pp]
                local = [
                    {n: w.detach().requires_grad_() for n, w in gathered[place % self.config.mesh.tp].items()}
                    for place in range(self.places)
                ]
                local = self.observer.weights(local)
                tokens = encode(self.config, self.virtual_ranks, local, images)
                self._outputs[now.micro_batch] = self.observer.value("encoder.out", tokens)
                self._weights[now.micro_batch] = local

    @abstractmethod
    def of(self, stage: int, pp: int, number: int) -> Ranks:
        """Return the copies of a micro-batch's tokens that a stage reads, for every rank in lock step."""

    def collect(self, stage: int, number: int) -> None:
        """Take the gradients of a stage's copies after its backward, where `backward` does not read them later."""
        del stage, number

    def _run_back(self, pp: int, number: int, grads: Ranks, accumulate: Accumulate) -> None:
        self.observer.now.phase, self.observer.now.micro_batch = "backward", number
        outputs = self._outputs.pop(number)
        torch.autograd.backward(
            outputs, [grad.to(out.dtype) for grad, out in zip(grads, outputs, strict=True)]
        )
        accumulate(pp, number, self._weights.pop(number))

    @abstractmethod
    def backward(self, accumulate: Accumulate) -> None:
        """Run back through the encoder with the gradients of all tokens."""

    def _seat(self, pp: int, place: int) -> Seat:
        return Seat(self.dp, pp, *divmod(place, self.config.mesh.tp))

    def _over_tensor_ranks(self, parts: Mapping[Seat, Tensor]) -> Mapping[Seat, Tensor]:
        """Sum the parts of the tensor ranks, which saw their own heads alone."""
        if len(parts) == 1:
            return parts
        name = ("tp", "all_reduce", f"{LABEL}.grad")
        parts = self.observer.reduction_in(*name, parts)
        return self.observer.reduction_out(*name, dict.fromkeys(parts, ring_sum(list(parts.values()))))


class CarriedTokens(ImageTokens):
    """Tokens that travel with the activations, from an encoder inside the first stage."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._copies: dict[int, Ranks] = {}
        self._behind: Ranks = []
        self._grads: dict[int, Ranks] = {}

    def of(self, stage: int, pp: int, number: int) -> Ranks:
        """Return the copies of a micro-batch's tokens that a stage reads, for every rank in lock step."""
        del pp
        if stage:
            tokens = [copy.detach().to(self.formats.compute) for copy in self._copies[stage - 1]]
            tokens = self.observer.message("pp", "A", stage - 1, stage, tokens, LABEL)
        else:
            tokens = self._outputs[number]
        self._copies[stage] = [t.detach().to(self.held, copy=True).requires_grad_() for t in tokens]
        return self._copies[stage]

    def collect(self, stage: int, number: int) -> None:
        """Add the gradients of a stage's copies to those from the stage behind."""
        total = [torch.zeros_like(c) if c.grad is None else c.grad for c in self._copies.pop(stage)]
        if stage + 1 < self.config.stages:
            behind = self.observer.message("pp", "G", stage + 1, stage, self._behind, LABEL)
            total = [own + other for own, other in zip(total, behind, strict=True)]
        self._behind = total
        if not stage:
            self._grads[number] = total

    def backward(self, accumulate: Accumulate) -> None:
        """Run back through the encoder with the gradients of all tokens."""
        now, tp = self.observer.now, self.config.mesh.tp
        for pp in self.encoders:
            for number in self.table.encoded_by(pp):
                now.dp, now.phase, now.stage, now.micro_batch = self.dp, "backward", ENCODER, number
                grads = self._grads.pop(number)
                for first in range(0, self.places, tp):
                    group = {self._seat(pp, place): grads[place] for place in range(first, first + tp)}
                    grads[first : first + tp] = self._over_tensor_ranks(group).values()
                self._run_back(pp, number, grads, accumulate)


class ExchangedTokens(ImageTokens):
    """Tokens that are handed to all pipeline ranks before their micro-batches."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.each = -(-self.count // len(self.encoders))
        self._copies: dict[tuple[int, int], Ranks] = {}

    def encode(self, step: int, weights: Mapping[tuple[int, int], Sequence[Mapping[str, Tensor]]]) -> None:
        """Encode all images and hand their tokens to all pipeline ranks."""
        super().encode(step, weights)
        self._share()

    def _share(self) -> None:
        """Make every pipeline rank's copies of the tokens."""
        now = self.observer.now
        now.micro_batch = -1
        replicated = len(self.encoders) > 1
        for place in range(self.places):
            sent = {self._seat(pp, place): self._padded(pp, place) for pp in range(self.pp)}
            name = ("pp", "all_gather" if replicated else "broadcast", LABEL)
            sent = self.observer.reduction_in(*name, sent)
            each = [sent[self._seat(pp, place)] for pp in range(self.pp)]
            whole = torch.stack(each) if replicated else each[0]
            got = self.observer.reduction_out(*name, dict.fromkeys(sent, whole))
            for pp in range(self.pp):
                tokens = got[self._seat(pp, place)]
                tokens = tokens.flatten(0, 1) if replicated else tokens
                for number in range(self.count):
                    copy = tokens[number].to(self.held).detach().requires_grad_()
                    self._copies.setdefault((pp, number), []).append(copy)

    def _padded(self, pp: int, place: int) -> Tensor:
        """Tokens of a pipeline rank's share, and zeros up to the size of the largest share."""
        some = next(iter(self._outputs.values()))[0].detach()
        own = [self._outputs[number][place].detach() for number in self.table.encoded_by(pp)]
        return torch.stack([*own, *(torch.zeros_like(some) for _ in range(self.each - len(own)))])

    def of(self, stage: int, pp: int, number: int) -> Ranks:
        """Return a pipeline rank's copies of a micro-batch's tokens, for every rank in lock step."""
        del stage
        return self._copies[pp, number]

    def backward(self, accumulate: Accumulate) -> None:
        """Sum the copies' gradients over the pipeline ranks and run back through the encoder."""
        now, replicated = self.observer.now, len(self.encoders) > 1
        now.dp, now.phase, now.stage, now.micro_batch = self.dp, "reduce", ENCODER, -1
        grads: dict[tuple[int, int], Tensor] = {}
        summed: dict[Seat, Tensor] = {}
        for place in range(self.places):
            sent = {self._seat(pp, place): self._gradients(pp, place) for pp in range(self.pp)}
            name = ("pp", "reduce_scatter" if replicated else "all_reduce", f"{LABEL}.grad")
            sent = self.observer.reduction_in(*name, sent)
            total = ring_sum(list(sent.values()))
            got = {seat: total[seat.pp] if replicated else total for seat in sent}
            summed |= self.observer.reduction_out(*name, got)
        for pp, cp in itertools.product(self.encoders, range(self.config.mesh.cp)):
            group = [Seat(self.dp, pp, cp, tp) for tp in range(self.config.mesh.tp)]
            whole = self._over_tensor_ranks({seat: summed[seat] for seat in group})
            for seat in group:
                for at, number in enumerate(self.table.encoded_by(pp)):
                    grads[number, cp * self.config.mesh.tp + seat.tp] = whole[seat][at]
        for pp in self.encoders:
            for number in self.table.encoded_by(pp):
                of_ranks = [grads[number, place] for place in range(self.places)]
                self._run_back(pp, number, of_ranks, accumulate)

    def _gradients(self, pp: int, place: int) -> Tensor:
        """Gradients of a pipeline rank's copies, (micro-batches, B, I, D), by the rank that encodes where all do."""
        copies = [self._copies[pp, number][place] for number in range(self.count)]
        found = [torch.zeros_like(c) if c.grad is None else c.grad for c in copies]
        if len(self.encoders) == 1:
            return torch.stack(found)
        empty = len(self.encoders) * self.each - self.count
        padded = torch.stack([*found, *([torch.zeros_like(copies[0])] * empty)])
        return torch.unflatten(padded, 0, (-1, self.each))
