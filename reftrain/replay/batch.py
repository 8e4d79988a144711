"""Inputs of each rank: sequences of its micro-batches, cut for context parallelism, with rotary table and mask.

Only the inputs themselves, sequences and images, come from `reftrain.data`; which of them a rank reads, what is a
target and what a document are defined here once more.
"""

from dataclasses import dataclass

import torch

from reftrain.config.run import RunConfig
from reftrain.data.images import patches
from reftrain.data.sequences import Source, make_source, stack
from reftrain.replay.document_pieces import Piece, pieces_of
from reftrain.replay.formats import Formats

IGNORED = -100


@dataclass(frozen=True)
class MicroBatch:
    """Whole sequences, (B, S) each: tokens, next tokens or `IGNORED`, number of the document in its sequence."""

    tokens: torch.Tensor
    targets: torch.Tensor
    documents: torch.Tensor

    @property
    def valid(self) -> int:
        """Count of targets that train."""
        return int((self.targets != IGNORED).sum())


class Reader:
    """Reads the sequences of any step and data-parallel rank."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.source: Source = make_source(config.data, config.model.vocab_size)

    def micro_batches(self, step: int, dp: int) -> list[MicroBatch]:
        """Micro-batches of a rank: consecutive sequences of its consecutive share of the step's batch."""
        data, each = self.config.data, self.config.data.micro_batch_size
        first = data.offset + step * data.batch_size + dp * (data.batch_size // self.config.mesh.dp)
        return [
            self._micro_batch(range(first + number * each, first + (number + 1) * each))
            for number in range(self.config.micro_batches)
        ]

    def images(self, step: int, dp: int, number: int) -> torch.Tensor:
        """Patches of the images of a rank's micro-batch, (B, I, patch)."""
        data, each = self.config.data, self.config.data.micro_batch_size
        first = data.offset + step * data.batch_size + dp * (data.batch_size // self.config.mesh.dp)
        first += number * each
        return torch.from_numpy(patches(self.config.encoder, data.seed, range(first, first + each)))

    def _micro_batch(self, numbers: range) -> MicroBatch:
        """Return inputs and targets; targets after an end of document and padding are ignored."""
        sequences = torch.from_numpy(stack(self.source, numbers))
        tokens, following = sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
        ends = (tokens == self.source.eos).long()
        unlearned = (ends > 0) | (tokens == self.source.pad) | (following == self.source.pad)
        return MicroBatch(tokens, following.masked_fill(unlearned, IGNORED), ends.cumsum(dim=1) - ends)


@dataclass(frozen=True)
class Share:
    """One context rank's share of a micro-batch; S/cp tokens.

    `tokens` and `targets` (B, S/cp); `positions` (S/cp,); `rope` (2, S/cp, head_dim/2); `mask` (B, 1, S/cp, S),
    or by source rank (cp, B, 1, 1, S/cp, S/cp) for a ring; None where attention is causal without documents, or
    goes document by document, in `pieces`. `images` (B, I, D) are image tokens of a multimodal model.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    rope: torch.Tensor
    mask: torch.Tensor | None
    pieces: tuple[Piece, ...] = ()
    images: torch.Tensor | None = None


def positions_of(length: int, ranks: int, index: int) -> torch.Tensor:
    """Positions of a context rank's tokens: chunks i and 2·cp-1-i of 2·cp."""
    if ranks == 1:
        return torch.arange(length)
    width = length // (2 * ranks)
    head, tail = index * width, (2 * ranks - 1 - index) * width
    return torch.cat([torch.arange(head, head + width), torch.arange(tail, tail + width)])


def rope_table(positions: torch.Tensor, width: int, base: float, dtype: torch.dtype) -> torch.Tensor:
    """Cosines and sines, (2, S, width/2), from angles in float64; RoFormer, equation 34."""
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = torch.outer(positions.double(), base**-exponents)
    return torch.stack([angles.cos(), angles.sin()]).to(dtype)


def visible(
    queries: torch.Tensor, keys: torch.Tensor, documents: torch.Tensor, *, by_document: bool
) -> torch.Tensor:
    """Which keys a query sees, (B, Sq, Sk): earlier ones and itself, of its own document if asked."""
    seen = (queries[:, None] >= keys[None, :]).expand(len(documents), -1, -1)
    if not by_document:
        return seen
    return seen & (documents[:, queries][:, :, None] == documents[:, keys][:, None, :])


def shares(config: RunConfig, batch: MicroBatch, formats: Formats) -> list[Share]:
    """Cut a micro-batch for every context rank."""
    numerics, ranks, length = config.numerics, config.mesh.cp, batch.tokens.shape[1]
    places = [positions_of(length, ranks, index) for index in range(ranks)]
    ring = numerics.cp_method == "ring" and ranks > 1
    piecewise = numerics.attention == "documents" and not ring
    causal_only = not numerics.document_mask and ranks == 1 and numerics.attention in {"auto", "flash"}
    out = []
    for here in places:
        if ring:
            by_source = [
                visible(here, there, batch.documents, by_document=numerics.document_mask) for there in places
            ]
            mask: torch.Tensor | None = torch.stack(by_source)[:, :, None, None]
        elif causal_only or piecewise:
            mask = None
        else:
            keys = torch.arange(length)
            mask = visible(here, keys, batch.documents, by_document=numerics.document_mask)[:, None]
        table = rope_table(here, config.model.head_dim, config.model.rope_base, formats.rope).to(formats.wide)
        documents = batch.documents if numerics.document_mask else torch.zeros_like(batch.documents)
        pieces = pieces_of(documents, here) if piecewise else ()
        out.append(Share(batch.tokens[:, here], batch.targets[:, here], here, table, mask, pieces))
    return out
