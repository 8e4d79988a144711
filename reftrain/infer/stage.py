"""The trainer's whole model as an engine runs it: tokens and positions in, logits out, gradients nowhere.

Layers, weights and names are those of `reftrain.model`; what an engine adds is the cache, and positions by sequence.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from reftrain.infer.cache import KeyValueCache
from reftrain.model.batch import LocalBatch, rope_table
from reftrain.model.context import ModelContext
from reftrain.model.decoder import Stage
from reftrain.model.layers import Attention
from reftrain.model.segments import Segments
from reftrain.model.spmd import SpmdStage
from reftrain.rank.events import Segment

WRONG: Final = ("position", "stale", "scale")
"""What a wrong engine does: decodes one position too far, leaves a cache entry unwritten, forgets attention's scale."""


class ServingSegments(Segments):
    """Segments with the work of the tokens that a forward has, not of a whole micro-batch."""

    share = 1.0

    def begin(self, segment: Segment, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Mark that a segment computes on these tensors from here on."""
        return super().begin(self._scaled(segment), *tensors)

    def end(self, segment: Segment, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Mark that a segment has computed these tensors."""
        return super().end(self._scaled(segment), *tensors)

    def _scaled(self, segment: Segment) -> Segment:
        of_pairs = segment.name == "attention"  # counted from the mask, as in training
        return segment if of_pairs else replace(segment, flops=round(segment.flops * self.share))


class Serving(Stage):
    """A whole model that answers with logits."""

    context: ModelContext
    cache: KeyValueCache | None = None
    wrong = ""
    rope_base = 0.0
    wide = torch.float32

    def serve(self, context: ModelContext, rope_base: float, wide: torch.dtype) -> None:
        """Remember what forwards need."""
        self.context, self.rope_base, self.wide = context, rope_base, wide

    def forward(  # type: ignore[override] # an engine's call, not a pipeline's
        self, tokens: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """(B, S) tokens at (B, S) positions to this rank's logits (B, S, V_padded/tp).

        With a cache the tokens are new ones, and its earlier tokens are attended to; without one they are all.
        """
        if self.tok_embeddings is None or self.norm is None or self.output is None:
            raise AssertionError("an engine holds the whole model")
        batch = self._batch(tokens, positions)
        x: torch.Tensor = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, batch)
        return torch.unflatten(self.output.logits(self.norm(x)), 0, tokens.shape)

    def _batch(self, tokens: torch.Tensor, positions: torch.Tensor) -> LocalBatch:
        """Positions, rotary tables and mask, by sequence."""
        segments = self.context.segments
        if isinstance(segments, ServingSegments):
            segments.share = tokens.numel() / self.context.tokens
        decodes = self.cache is not None and tokens.shape[1] == 1
        turned = positions + 1 if self.wrong == "position" and decodes else positions
        head_dim = self.context.model.head_dim
        table = rope_table(turned.flatten(), head_dim, self.rope_base, self.wide)
        rope = torch.unflatten(table, 1, tokens.shape).unsqueeze(2)  # (2, B, 1, S, D/2)
        keys = torch.arange(int(positions.max()) + 1, device=tokens.device)
        allowed = keys <= positions.unsqueeze(-1)  # (B, S, L)
        return LocalBatch(
            tokens=tokens,
            targets=tokens,
            positions=positions,
            rope=rope,
            allowed=allowed.unsqueeze(1),
            blocks=None,
            pairs=int(allowed.sum()),
            cache=self.cache,
        )

    def break_scale(self) -> None:
        """Let attention forget to divide by the root of the head width, as a wrong kernel would."""
        factor = self.context.model.head_dim**0.5
        for attention in (m for m in self.modules() if isinstance(m, Attention)):
            attention.core = partial(_unscaled, attention.core, factor)  # type: ignore[method-assign]


def _unscaled(
    core: Callable[..., torch.Tensor], factor: float, queries: torch.Tensor, *others: object
) -> torch.Tensor:
    """Attention of queries that are too long by a factor."""
    return core(queries * factor, *others)


class AnnotatedServing(Serving, SpmdStage):
    """The model as SPMD 2-D sharding spreads it."""
