"""Decoder layers and the pipeline stages made of them: the seam that the pipeline executor calls.

A stage is any module with `forward(inputs, batch)`: activations in (None on the first stage), activations
out, or on the last stage the sum of the token losses. Parameters bear the whole model's names, whatever
stage holds them.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn

from reftrain.config.run import RunConfig
from reftrain.model.attention import recomputed
from reftrain.model.batch import LocalBatch
from reftrain.model.context import ModelContext
from reftrain.model.experts import Experts
from reftrain.model.layers import Attention, CrossAttention, FeedForward, RMSNorm
from reftrain.model.parameters import SpecModule, freeze, gathered
from reftrain.parallel.cross_entropy import vocab_parallel_cross_entropy

EMBEDDING = "tok_embeddings.weight"


class Layer(nn.Module):
    """One pre-norm decoder layer: self-attention, or cross-attention to image tokens where the model has it."""

    attends: type[Attention] = Attention

    def __init__(self, context: ModelContext, number: int) -> None:
        super().__init__()
        self.context = context
        model = context.model
        self.attention_norm = self.make_norm(context, f"layers.{number}.attention_norm")
        kind = CrossAttention if model.crosses(number) else self.attends
        self.attention = kind(context, f"layers.{number}.attention", number)
        self.ffn_norm = self.make_norm(context, f"layers.{number}.ffn_norm")
        feed_forward = Experts if model.experts else FeedForward
        self.feed_forward = feed_forward(context, f"layers.{number}.feed_forward", number)

    @staticmethod
    def make_norm(context: ModelContext, name: str) -> RMSNorm:
        """Make one of the layer's norms."""
        del name
        model = context.model
        return RMSNorm(model.dim, model.norm_eps, context.sequence_sum, context.parameter_dtype)

    def compute(self, x: torch.Tensor, batch: LocalBatch) -> torch.Tensor:
        """Both residual branches; (B, S or S/tp, D) to the same."""
        x = x + self.attention(self.attention_norm(x), batch)
        out: torch.Tensor = x + self.feed_forward(self.ffn_norm(x))
        return out

    def forward(self, x: torch.Tensor, batch: LocalBatch) -> torch.Tensor:
        """Like `compute`, keeping only the input when everything is recomputed."""
        return (
            recomputed(self.compute, x, batch) if self.context.recompute == "full" else self.compute(x, batch)
        )


class Embedding(SpecModule):
    """Vocabulary-parallel embedding: each tensor rank looks up its rows, the sum is the whole."""

    weight: nn.Parameter

    def __init__(self, context: ModelContext) -> None:
        super().__init__()
        self.context = context
        self.declare("weight", context.vocabulary(embeds=True), context.parameter_dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, S) tokens to (B, S or S/tp, D)."""
        local = tokens - self.context.tp.axis.index * self.context.vocab_rows
        mine = (local >= 0) & (local < self.context.vocab_rows)
        rows = F.embedding(local.masked_fill(~mine, 0), gathered(self.weight))
        return self.context.tp.leave(rows.masked_fill(~mine.unsqueeze(-1), 0.0), "tok_embeddings")


class Head(SpecModule):
    """Final norm, vocabulary-parallel output projection and loss."""

    weight: nn.Parameter

    def __init__(self, context: ModelContext) -> None:
        super().__init__()
        self.context = context
        tied = EMBEDDING if context.model.tied_embeddings else None
        self.declare("weight", context.vocabulary(tied), context.parameter_dtype)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S or S/tp, D) to this rank's share of the vocabulary, (B·S, V_padded/tp)."""
        context = self.context
        segment = context.segment("head", -1)
        whole = context.tp.enter(x, "output")
        (whole,) = context.segments.begin(segment, whole)
        (logits,) = context.segments.end(segment, F.linear(whole, gathered(self.weight)).flatten(0, 1))
        return logits

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """(B, S or S/tp, D) and (B, S) targets to the sum of the token losses, in nats."""
        context = self.context
        logits = self.logits(x)
        context.segments.hooks.value("output.logits", logits)
        losses = vocab_parallel_cross_entropy(
            logits, targets.flatten(), context.tp.axis, context.model.vocab_size, context.label_smoothing
        )
        return losses.sum()


class Stage(nn.Module):
    """Consecutive layers, with the embedding on the first stage and the head on the last."""

    unit = "stage"
    layer: type[Layer] = Layer

    def __init__(self, context: ModelContext, layers: Sequence[int], *, first: bool, last: bool) -> None:
        super().__init__()
        self.tok_embeddings = Embedding(context) if first else None
        made = {str(number): self.layer(context, number) for number in layers}
        self.layers = nn.ModuleDict(made)
        model = context.model
        self.norm = self.layer.make_norm(context, "norm") if last else None
        self.output = Head(context) if last else None
        parts = [*self.layers.items(), *((None, m) for m in (self.tok_embeddings, self.norm, self.output))]
        for number, part in parts:
            if part is not None and model.frozen and (number is None or not model.trains(int(number))):
                freeze(part)

    def experts(self) -> list[nn.Module]:
        """Return the experts of every layer that has them."""
        kinds = (layer.feed_forward for layer in self.layers.values() if isinstance(layer, Layer))
        return [kind.experts for kind in kinds if isinstance(kind, Experts)]

    def forward(self, inputs: torch.Tensor | None, batch: LocalBatch) -> torch.Tensor:
        """Activations (B, S or S/tp, D) to the next stage's, or to the loss sum on the last stage."""
        if self.tok_embeddings is not None:
            x: torch.Tensor = self.tok_embeddings(batch.tokens)
        elif inputs is not None:
            x = inputs
        else:
            raise AssertionError("only the first stage makes its own activations")
        for layer in self.layers.values():
            x = layer(x, batch)
        if self.norm is not None and self.output is not None:
            loss: torch.Tensor = self.output(self.norm(x), batch.targets)
            return loss
        return x


def layers_of_stages(config: RunConfig) -> list[range]:
    """Layers of every virtual stage in order.

    Even by default, the first stages taking what is left over; `balanced` counts embedding and head as a
    layer each, so that the first and the last stage hold one layer less ("Scaling Llama 3 Training",
    balanced pipeline). A model with cross-attention is dealt in groups of N self-attention layers and 1 cross-attention
    layer (section 3.2.2).
    """
    stages, group = config.stages, config.model.group
    layers = config.model.layers // group
    counts = list(config.pipeline.layers_per_stage)
    if not counts:
        total = layers + (2 if config.pipeline.balanced else 0)
        counts = [total // stages + (stage < total % stages) for stage in range(stages)]
        if config.pipeline.balanced:
            counts[0] -= 1
            counts[-1] -= 1
        counts = [group * count for count in counts]
    ends = [sum(counts[: stage + 1]) for stage in range(stages)]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
