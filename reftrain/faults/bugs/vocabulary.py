"""Bugs of tensor parallelism over the vocabulary: the embedding and the cross-entropy."""

from typing import Any

import torch
import torch.distributed as dist

from reftrain.config.run import RunConfig
from reftrain.faults.bugs import needs
from reftrain.faults.bugs.bug import BugField, Patches, Place, Values, bug
from reftrain.model import decoder
from reftrain.model.decoder import Embedding
from reftrain.parallel import cross_entropy
from reftrain.rank.comm import Axis


def _padded_vocabulary(config: RunConfig, values: Values) -> str | None:
    del values
    size, tp = config.model.vocab_size, config.mesh.tp
    return f"vocab_size {size} is a multiple of tp {tp}: nothing is padded" if size % tp == 0 else None


@bug(
    "P06",
    "tp",
    "padded vocabulary rows unmasked in the softmax",
    "loss and output.weight's gradient",
    needs.axis("tp"),
    needs.model("pad_vocab"),
    _padded_vocabulary,
)
def padding_in_softmax(patches: Patches, place: Place, values: Values) -> None:
    """Let the loss take the padded size for the vocabulary's."""
    del place, values
    original = cross_entropy.vocab_parallel_cross_entropy

    def planted(
        logits: torch.Tensor, targets: torch.Tensor, axis: Axis, vocab_size: int, smoothing: float = 0.0
    ) -> torch.Tensor:
        del vocab_size
        return original(logits, targets, axis, logits.shape[1] * axis.size, smoothing)

    patches.set(decoder, "vocab_parallel_cross_entropy", planted)


class _CountingTwice(Axis):
    """Sums the exponentials of logits that every rank already holds whole: each is counted tp times."""

    def all_reduce(
        self, tensor: torch.Tensor, label: str, op: "dist.ReduceOp.RedOpType" = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        out = super().all_reduce(tensor, label, op)
        if label == "loss.sums":
            out[0] = super().all_reduce(out[0].contiguous(), label)
        return out


class _LocalMaximum(Axis):
    """Takes each rank's own maximum for the whole row's."""

    def all_reduce(
        self, tensor: torch.Tensor, label: str, op: "dist.ReduceOp.RedOpType" = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        return tensor if label == "loss.max" else super().all_reduce(tensor, label, op)


class _LocalSmoothing(Axis):
    """Sums exponentials and targets, and leaves the smoothing term of each shard by itself."""

    def all_reduce(
        self, tensor: torch.Tensor, label: str, op: "dist.ReduceOp.RedOpType" = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        if label != "loss.sums":
            return super().all_reduce(tensor, label, op)
        tensor[:2] = super().all_reduce(tensor[:2].contiguous(), label)
        tensor[2] *= self.size
        return tensor


_CrossEntropy = cross_entropy._VocabParallelCrossEntropy  # noqa: SLF001 - a bug of its inside


class _SmoothedByShard(_CrossEntropy):
    """The gradient that belongs to smoothing over one shard."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> torch.Tensor:
        out = _CrossEntropy.forward(ctx, *arguments)
        ctx.vocab_size = ctx.vocab_size // arguments[2].size
        return out


def _with_axis(patches: Patches, kind: type[Axis]) -> None:
    """Compute the loss over an axis of another kind."""
    original = cross_entropy.vocab_parallel_cross_entropy

    def planted(
        logits: torch.Tensor, targets: torch.Tensor, axis: Axis, vocab_size: int, smoothing: float = 0.0
    ) -> torch.Tensor:
        other = kind(axis.name, axis.index, axis.ranks, axis.group, axis.hooks)
        return original(logits, targets, other, vocab_size, smoothing)

    patches.set(decoder, "vocab_parallel_cross_entropy", planted)


@bug(
    "P07",
    "tp",
    "vocabulary-parallel cross-entropy on gathered logits (plus log tp)",
    "loss",
    needs.axis("tp"),
)
def loss_on_gathered_logits(patches: Patches, place: Place, values: Values) -> None:
    """Count every exponential tp times."""
    del place, values
    _with_axis(patches, _CountingTwice)


@bug(
    "P08",
    "tp",
    "local maximum of the vocabulary-parallel cross-entropy not all-reduced",
    "loss",
    needs.axis("tp"),
)
def local_maximum(patches: Patches, place: Place, values: Values) -> None:
    """Keep each rank's own maximum."""
    del place, values
    _with_axis(patches, _LocalMaximum)


def _smoothing(config: RunConfig, values: Values) -> str | None:
    del values
    return None if config.numerics.label_smoothing else "it needs numerics.label_smoothing above 0"


@bug(
    "P09",
    "tp",
    "label smoothing over each shard by itself",
    "loss of each rank",
    needs.axis("tp"),
    _smoothing,
)
def smoothing_by_shard(patches: Patches, place: Place, values: Values) -> None:
    """Smooth over this rank's columns only."""
    del place, values
    _with_axis(patches, _LocalSmoothing)
    patches.set(cross_entropy, "_VocabParallelCrossEntropy", _SmoothedByShard)


@bug(
    "P11",
    "tp",
    "the last shard's embedding mask leaves out the last ids",
    "embedding output at these ids",
    needs.axis("tp"),
    fields={
        "ids": BugField("ids left out; the last is padding, the one before it ends documents", 2, least=1)
    },
    magnitudes=({"ids": 64}, {"ids": 2}),
)
def short_last_mask(patches: Patches, place: Place, values: Values) -> None:
    """Let the last shard find nothing for its last ids."""
    del place
    forward, ids = Embedding.forward, int(values["ids"])

    def planted(self: Embedding, tokens: torch.Tensor) -> torch.Tensor:
        axis = self.context.tp.axis
        if axis.index == axis.size - 1:
            tokens = tokens.masked_fill(tokens >= self.context.model.vocab_size - ids, -1)
        return forward(self, tokens)

    patches.set(Embedding, "forward", planted)
