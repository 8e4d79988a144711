"""One virtual stage: embedding, its layers, and on the last stage norm, output and loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from reftrain.config.run import RunConfig
from reftrain.replay.batch import Share
from reftrain.replay.forward.layers import Layers, Weights
from reftrain.replay.forward.loss import ShardedCrossEntropy
from reftrain.replay.forward.spmd import AnnotatedLayers
from reftrain.replay.virtual_ranks import Ranks, VirtualRanks


@dataclass
class Passed:
    """A stage that a micro-batch has passed forward: inputs (None for the first stage), outputs, and weight leaves.

    Each holds one entry for every rank in lock step.
    """

    inputs: Ranks | None
    outputs: Ranks
    leaves: list[dict[str, torch.Tensor]]


def embed(virtual_ranks: VirtualRanks, weights: Sequence[Weights], batch: Sequence[Share]) -> Ranks:
    """Rows of the embedding: each tensor rank looks up its own, zeros elsewhere; the sum is the whole."""
    out = []
    for place, (rank, share) in enumerate(zip(weights, batch, strict=True)):
        weight = rank["tok_embeddings.weight"]
        row = share.tokens - place % virtual_ranks.tp * len(weight)
        own = (row >= 0) & (row < len(weight))
        rows = F.embedding(row.masked_fill(~own, 0), weight)
        out.append(rows.masked_fill(~own[..., None], 0.0))
    out = virtual_ranks.leave(out, "tok_embeddings")
    return virtual_ranks.observer.value("tok_embeddings.out", out)


def head(
    config: RunConfig,
    virtual_ranks: VirtualRanks,
    xs: Ranks,
    weights: Sequence[Weights],
    batch: Sequence[Share],
) -> Ranks:
    """Sum of the token losses of each rank."""
    whole = virtual_ranks.enter(xs, "output")
    logits = [F.linear(x, w["output.weight"]).flatten(0, 1) for x, w in zip(whole, weights, strict=True)]
    logits = virtual_ranks.observer.value("output.logits", logits)
    entropy = ShardedCrossEntropy(virtual_ranks, config.model.vocab_size, config.numerics.label_smoothing)
    sums = [x.sum() for x in entropy.losses(logits, [share.targets.flatten() for share in batch])]
    return virtual_ranks.observer.value("output.out", sums)


def run_stage(
    config: RunConfig,
    virtual_ranks: VirtualRanks,
    layers: range,
    inputs: Ranks | None,
    weights: Sequence[Weights],
    batch: Sequence[Share],
    *,
    last: bool,
) -> Ranks:
    """Activations of a stage from those of the one before it, or the loss sums of the last."""
    compute = (AnnotatedLayers if config.mesh.annotated else Layers)(config, virtual_ranks)
    xs = embed(virtual_ranks, weights, batch) if inputs is None else inputs
    for number in layers:
        xs = compute.layer(xs, weights, batch, number)
    return head(config, virtual_ranks, compute.norm(xs, weights, "norm"), weights, batch) if last else xs


def leaves(tensors: Ranks) -> Ranks:
    """Copies of a stage's inputs cut off from the stage before, to collect the gradient."""
    return [t.detach().requires_grad_() for t in tensors]


def backward(outputs: Ranks, grads: Ranks | None) -> None:
    """Run all ranks' backward as one."""
    torch.autograd.backward(outputs, grads)
