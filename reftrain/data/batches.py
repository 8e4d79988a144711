"""Micro-batches of one data-parallel rank: tokens, targets and documents of whole sequences.

The loader knows nothing of tensor, context or pipeline parallelism; `model.batch` cuts what a rank computes
on.
"""

from dataclasses import dataclass

import torch

from reftrain.config.run import DataConfig
from reftrain.data.sequences import Source, make_source, stack

IGNORED = -100


@dataclass(frozen=True)
class MicroBatch:
    """Whole sequences of a micro-batch.

    `tokens`, `targets` and `documents` are (B, S): the input, the next token or `IGNORED`, and the number
    of the document within the sequence (an `eos` belongs to the document it ends).
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    documents: torch.Tensor

    @property
    def valid(self) -> int:
        """Count of targets that are not ignored."""
        return int((self.targets != IGNORED).sum())


class Loader:
    """Micro-batches of one data-parallel rank by step; stateless, so that a resumed run goes on exactly."""

    def __init__(self, config: DataConfig, vocab_size: int, dp_size: int, dp_index: int) -> None:
        self.config = config
        self.source = make_source(config, vocab_size)
        self.per_rank = config.batch_size // dp_size
        self.first = dp_index * self.per_rank

    def numbers(self, step: int) -> list[range]:
        """Numbers of the sequences of each micro-batch: the rank's contiguous share of the step's sequences."""
        start = self.config.offset + step * self.config.batch_size + self.first
        size = self.config.micro_batch_size
        return [range(at, at + size) for at in range(start, start + self.per_rank, size)]

    def state(self, steps_done: int) -> tuple[int, int] | None:
        """Return what a checkpoint keeps of tokenised data: the tokens read, and the data set's identity."""
        identity = getattr(self.source, "identity", None)
        read = self.config.offset + steps_done * self.config.batch_size
        return None if identity is None else (read * self.config.seq_len, identity)

    def step(self, step: int) -> list[MicroBatch]:
        """Micro-batches of a step, in order."""
        return [
            pack(torch.from_numpy(stack(self.source, numbers)), self.source) for numbers in self.numbers(step)
        ]


def pack(sequences: torch.Tensor, source: Source) -> MicroBatch:
    """Cut (B, S + 1) sequences into inputs and targets.

    Not trained on: what follows an `eos` (the next document's first token cannot be foreseen) and padding.
    """
    tokens, following = sequences[:, :-1], sequences[:, 1:]
    ends = tokens == source.eos
    ignored = ends | (tokens == source.pad) | (following == source.pad)
    documents = torch.cumsum(ends, dim=1) - ends.long()
    return MicroBatch(
        tokens.contiguous(), following.masked_fill(ignored, IGNORED).contiguous(), documents.contiguous()
    )
